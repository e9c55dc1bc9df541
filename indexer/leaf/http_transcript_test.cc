// Replays what Dynamo's indexer answered (testdata/dynamo_http_transcripts.md) against our HTTP
// interface, over real sockets, with engines' events from real PUB sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/leaf/http_transcript_test_util.h"
#include "indexer/leaf/leaf.h"
#include "indexer/net/http_server.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using ::nlohmann::json;

constexpr char kPage[] = "indexer/leaf/testdata/dynamo_http_transcripts.md";

class TestLeaf {
 public:
  explicit TestLeaf(bool test_endpoints = false, std::vector<std::string> peers = {}) {
    LeafOptions options;
    options.grpc = {"127.0.0.1", 0};
    options.http = {"127.0.0.1", 0};
    options.http_api.test_endpoints = test_endpoints;
    options.engines.recovery.peers = std::move(peers);
    absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(std::move(options));
    EXPECT_TRUE(leaf.ok()) << leaf.status();
    leaf_ = *std::move(leaf);
  }

  Address http() const { return leaf_->http_address(); }

  void WaitUntilReady() {
    ASSERT_TRUE(Await([&] { return leaf_->readiness().ready; }, std::chrono::seconds(60)));
  }

  void Register(const std::string& instance, const std::string& model,
                const std::string& endpoint) {
    EngineRegistration registration;
    registration.instance = instance;
    registration.model = model;
    registration.block_size = 4;
    registration.endpoint = endpoint;
    ASSERT_TRUE(leaf_->engines().Register(registration).ok());
  }

  // Whether that message of the instance's engine was applied.
  bool Heard(const std::string& instance, uint64_t number) {
    for (const EngineEntry& entry : leaf_->engines().List()) {
      if (entry.instance != instance) continue;
      for (const EngineListener& listener : entry.listeners)
        if (listener.stream.tracker.last >= number) return true;
    }
    return false;
  }

  // Waits until so many batches of that instance were applied.
  void WaitForBatches(const std::string& instance, uint64_t batches) {
    const auto applied = [&] {
      for (const EngineEntry& entry : leaf_->engines().List()) {
        if (entry.instance == instance && entry.worker.batches >= batches) return true;
      }
      return false;
    };
    ASSERT_TRUE(Await(applied, std::chrono::seconds(60))) << batches << " batches of " << instance;
  }

 private:
  std::unique_ptr<Leaf> leaf_;
};

// ---- Events, as vLLM publishes them ----

struct Store {
  std::vector<uint64_t> hashes;
  std::optional<uint64_t> parent = std::nullopt;
  uint32_t first_token = 0;
  std::string medium = "GPU";
  std::string lora = {};
  std::string extra_key = {};   // of its first block
  std::string cache_salt = {};  // SGLang's
};

std::string StoreEvent(const Store& store) {
  MsgpackWriter writer;
  writer.Map(8 + !store.cache_salt.empty()).Text("type").Text("BlockStored");
  writer.Text("block_hashes").Array(store.hashes.size());
  for (const uint64_t hash : store.hashes) writer.Unsigned(hash);
  writer.Text("parent_block_hash");
  store.parent.has_value() ? writer.Unsigned(*store.parent) : writer.Nil();
  writer.Text("token_ids").Array(store.hashes.size() * 4);
  for (uint32_t i = 0; i < store.hashes.size() * 4; ++i) writer.Unsigned(store.first_token + i);
  writer.Text("block_size").Unsigned(4).Text("medium").Text(store.medium);
  writer.Text("lora_name");
  store.lora.empty() ? writer.Nil() : writer.Text(store.lora);
  writer.Text("extra_keys");
  if (store.extra_key.empty()) {
    writer.Nil();
  } else {
    writer.Array(store.hashes.size());
    for (size_t i = 0; i < store.hashes.size(); ++i) {
      i == 0 ? writer.Array(1).Text(store.extra_key) : writer.Nil();
    }
  }
  if (!store.cache_salt.empty()) writer.Text("cache_salt").Text(store.cache_salt);
  return writer.bytes();
}

std::string RemoveEvent(uint64_t hash) {
  MsgpackWriter writer;
  writer.Map(3).Text("type").Text("BlockRemoved").Text("block_hashes").Array(1).Unsigned(hash);
  writer.Text("medium").Text("GPU");
  return writer.bytes();
}

std::string ClearEvent() {
  MsgpackWriter writer;
  writer.Map(1).Text("type").Text("AllBlocksCleared");
  return writer.bytes();
}

std::string Batch(const std::vector<std::string>& events, uint64_t rank = 0) {
  MsgpackWriter writer;
  writer.Array(3).Float(1.5).Array(events.size());
  for (const std::string& event : events) writer.Raw(event);
  writer.Unsigned(rank);
  return writer.bytes();
}

// ---- Comparing ----

// A list of workers without what ours adds to each of them, and to each listener: how it is
// reached.
json WithoutStates(json workers) {
  if (!workers.is_array()) return workers;
  for (json& worker : workers) {
    if (!worker.is_object() || !worker.contains("listeners")) continue;
    EXPECT_TRUE(worker.contains("state"));
    for (const char* ours : {"state", "reason"}) worker.erase(ours);
    for (json& listener : worker["listeners"]) {
      EXPECT_TRUE(listener.contains("state"));
      for (const char* ours :
           {"state", "reason", "replay_endpoint", "replay_state", "replay_reason"})
        listener.erase(ours);
    }
  }
  return workers;
}

// The holdings in a dump without block names: Dynamo's names are shared by all workers, ours are
// each worker's own.
std::set<std::tuple<std::string, int64_t, std::string, uint64_t>> HoldingsOf(const json& dump) {
  std::set<std::tuple<std::string, int64_t, std::string, uint64_t>> holdings;
  for (const auto& [domain, content] : dump.items()) {
    json events = content["events"];
    if (content.contains("kvatlas")) {
      for (const json& event : content["kvatlas"]["events"]) events.push_back(event);
    }
    for (const json& event : events) {
      for (const json& block : event["event"]["data"]["stored"]["blocks"]) {
        holdings.insert({event["worker_id"].dump(), event["event"]["dp_rank"].get<int64_t>(),
                         event["storage_tier"].get<std::string>(),
                         block["tokens_hash"].get<uint64_t>()});
      }
    }
  }
  return holdings;
}

// An answer of ours that differs on purpose.
struct Better {
  std::string answer;
  std::string reason;
};

// Keyed by the start of the exchange's note, or by its body.
const std::map<std::string, Better>& BetterAnswers() {
  static const auto& answers = *new std::map<std::string, Better>{
      {"BlockRemoved [102] on GPU, rank 0 (a hole in the middle).",
       {R"({"scores":{"1":{"1":8,"5":4,"0":4}},"frequencies":[],"instances":{"1":{"longest_matched":16,"gpu":8,"dp":{"1":8,"5":4,"0":4},"cpu":8,"disk":16}}})",
        "every block of the prompt is still in some tier of rank 0: 0 and 2 on the device, 1 on "
        "disk, 3 in host memory. "
        "Theirs lets lower tiers only continue where the device ends."}},
      {"BlockStored [102] again, parent 101: do the descendants come back?",
       {R"({"scores":{"1":{"5":4,"1":8,"0":12}},"frequencies":[],"instances":{"1":{"longest_matched":16,"gpu":12,"dp":{"1":8,"0":12,"5":4},"cpu":16,"disk":16}}})",
        "the engine never lost block 2 (hash 103), so it counts again. Theirs cuts at a hole for "
        "good."}},
      {R"({"token_ids":[4,5,6,7],"model_name":"ns"})",
       {R"({"scores":{},"frequencies":[],"instances":{}})",
        "the block belongs to tenant-b: an ordinary cache_salt of vLLM isolates. Theirs takes it "
        "for unsalted."}},
      {R"({"token_ids":[4,5,6,7],"cache_salt":"tenant-b","model_name":"ns"})",
       {R"({"scores":{"10":{"0":4}},"frequencies":[],"instances":{"10":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4}}})",
        "and its own tenant finds it."}},
      {"The next batch (sequence 1) arrives over the gap:",
       {R"({"scores":{"1":{"0":8}},"frequencies":[],"instances":{"1":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}})",
        "what an engine published while its listener was paused waits in the socket: nothing is "
        "lost."}},
  };
  return answers;
}

class TranscriptTest : public ::testing::Test {
 protected:
  TranscriptTest() {
    std::ifstream file(kPage);
    std::stringstream page;
    page << file.rdbuf();
    exchanges_ = ReadTranscript(page.str());
  }

  // Ports of the recording stand for those of this run.
  std::string Here(std::string text) const { return Replaced(std::move(text), ports_); }
  std::string There(std::string text) const {
    std::map<std::string, std::string> back;
    for (const auto& [there, here] : ports_) back[here] = there;
    return Replaced(std::move(text), back);
  }
  static std::string Replaced(std::string text, const std::map<std::string, std::string>& by) {
    for (const auto& [from, to] : by) {
      for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
        text.replace(at, from.size(), to);
      }
    }
    return text;
  }

  // Replays the exchanges of these sections. `happen` is called before each, to bring about what
  // its note says has happened.
  void Replay(const std::set<std::string>& sections, TestLeaf* leaf,
              const std::function<void(const RecordedExchange&)>& happen = nullptr) {
    HttpTestClient client(leaf->http());
    size_t replayed = 0;
    for (const RecordedExchange& exchange : exchanges_) {
      if (!sections.contains(exchange.section)) continue;
      SCOPED_TRACE(std::string(kPage) + ":" + std::to_string(exchange.line));
      if (happen) happen(exchange);
      // A refusal that names a column would move with the length of a port, so its body is left as
      // recorded.
      const std::string body = exchange.answer.status == 422 ? exchange.body : Here(exchange.body);
      const HttpAnswerText ours =
          client.Ask(exchange.method, exchange.target, exchange.headers, body);
      Compare(exchange, ours);
      ++replayed;
    }
    EXPECT_GT(replayed, 0u);
  }

  void Compare(const RecordedExchange& exchange, const HttpAnswerText& ours) {
    auto better = BetterAnswers().find(exchange.note);
    if (better == BetterAnswers().end()) better = BetterAnswers().find(exchange.body);
    const HttpAnswerText& theirs = exchange.answer;
    EXPECT_EQ(ours.status, theirs.status);
    for (const std::string name : {"content-type", "allow"}) {
      const auto their_value = theirs.headers.find(name);
      const auto our_value = ours.headers.find(name);
      EXPECT_EQ(our_value == ours.headers.end() ? "" : our_value->second,
                their_value == theirs.headers.end() ? "" : their_value->second)
          << name;
    }
    const auto type = theirs.headers.find("content-type");
    if (type == theirs.headers.end() || type->second != "application/json") {
      EXPECT_EQ(ours.body, theirs.body);
    } else if (better != BetterAnswers().end()) {
      EXPECT_EQ(json::parse(ours.body), json::parse(better->second.answer))
          << better->second.reason;
      EXPECT_NE(json::parse(ours.body), json::parse(theirs.body)) << "no longer different";
    } else if (exchange.target == "/dump" && theirs.body != "{}") {
      auto expected = HoldingsOf(json::parse(theirs.body));
      // Behind the hole that the removal of [102] left, rank 0 still has block 2; theirs has
      // forgotten it.
      if (++dumps_ == 2) expected.insert({"1", 0, "device", 1088361764653601668});
      EXPECT_EQ(HoldingsOf(json::parse(ours.body)), expected);
    } else {
      EXPECT_EQ(WithoutStates(json::parse(There(ours.body))), json::parse(theirs.body));
    }
    // Errors are read by people and matched by programs: byte for byte.
    if (theirs.status >= 400) {
      EXPECT_EQ(There(ours.body), theirs.body);
    }
  }

  std::vector<RecordedExchange> exchanges_;
  int dumps_ = 0;  // of §4 compared, the empty one of §1 aside
  std::map<std::string, std::string> ports_;
};

TEST_F(TranscriptTest, ThePageIsReadWhole) {
  EXPECT_EQ(exchanges_.size(), 137u);
  EXPECT_EQ(exchanges_.front().target, "/health");
  EXPECT_EQ(exchanges_.back().section, "12");
}

TEST_F(TranscriptTest, EmptyServiceAndErrorsBeforeAnythingIsRegistered) {
  TestLeaf leaf;
  Replay({"1", "2"}, &leaf);
}

TEST_F(TranscriptTest, EnginesComeStoreAreAskedAndGo) {
  TestLeaf leaf;
  ZmqTestEngine engine({});
  ZmqTestEngine salted({});
  ports_ = {{"tcp://127.0.0.1:5901", engine.endpoint()}};
  const auto publish = [&](const std::vector<std::string>& events, uint64_t rank = 0) {
    const uint64_t number = engine.Publish(Batch(events, rank));
    ASSERT_TRUE(Await([&] { return leaf.Heard("1", number); }, std::chrono::seconds(60)))
        << "batch " << number;
  };
  const auto happen = [&](const RecordedExchange& exchange) {
    if (exchange.target == "/dump") return;
    const std::string& note = exchange.note;
    if (note.starts_with("Event: BlockStored")) {
      // The instance was registered before, and that subscription may be gone: empty batches are
      // published until one arrives.
      for (bool heard = false; !heard;) {
        const uint64_t number = engine.Publish(Batch({}));
        heard = Await([&] { return leaf.Heard("1", number); }, std::chrono::milliseconds(20));
      }
      publish({StoreEvent({.hashes = {101, 102, 103}})});
    } else if (note.starts_with("Events on the same socket with batch ranks 1")) {
      publish({StoreEvent({.hashes = {301, 302}})}, 1);
      publish({StoreEvent({.hashes = {501}})}, 5);
    } else if (note.starts_with("Lower tiers, rank 0")) {
      publish(
          {StoreEvent({.hashes = {104}, .parent = 103, .first_token = 12, .medium = "CPU"}),
           StoreEvent({.hashes = {104}, .parent = 103, .first_token = 12, .medium = "DISK"}),
           StoreEvent({.hashes = {201}, .medium = "CPU"}),
           StoreEvent({.hashes = {202}, .parent = 201, .first_token = 4, .medium = "STORAGE"})});
    } else if (note.starts_with("BlockRemoved [102]")) {
      publish({RemoveEvent(102)});
    } else if (note.starts_with("BlockStored [102] again")) {
      publish({StoreEvent({.hashes = {102}, .parent = 101, .first_token = 4})});
    } else if (note.starts_with("AllBlocksCleared")) {
      publish({ClearEvent()});
    } else if (note.starts_with("Stored: block 0…3 with lora_name")) {
      leaf.Register("10", "ns", salted.endpoint());
      salted.WaitForSubscribers();
      salted.Publish(
          Batch({StoreEvent({.hashes = {1}, .lora = "adapter-a"}),
                 StoreEvent({.hashes = {2}, .extra_key = "dynamo-cache-salt:tenant-a"}),
                 StoreEvent({.hashes = {3}, .first_token = 4, .extra_key = "tenant-b"}),
                 StoreEvent({.hashes = {4}, .first_token = 8, .cache_salt = "tenant-c"})}));
      leaf.WaitForBatches("10", 1);
    }
  };
  Replay({"3", "4", "5", "6"}, &leaf, happen);
}

TEST_F(TranscriptTest, Peers) {
  TestLeaf leaf;
  Replay({"7"}, &leaf);
}

TEST_F(TranscriptTest, ListenersArePausedAndResumedWhereTestsMay) {
  TestLeaf leaf(/*test_endpoints=*/true);
  ZmqTestEngine engine({});
  ports_ = {{"tcp://127.0.0.1:5921", engine.endpoint()}};
  int exchange_number = 0;
  const auto happen = [&](const RecordedExchange& exchange) {
    if (++exchange_number == 2) {
      leaf.Register("1", "m", engine.endpoint());
      engine.WaitForSubscribers();
    }
    if (exchange.note.starts_with("A batch sent while paused")) {
      engine.Publish(Batch({StoreEvent({.hashes = {1}})}));
    } else if (exchange.note.starts_with("The next batch (sequence 1)")) {
      engine.Publish(Batch({StoreEvent({.hashes = {2}, .parent = 1, .first_token = 4})}));
      leaf.WaitForBatches("1", 2);
    }
  };
  Replay({"11"}, &leaf, happen);
}

TEST_F(TranscriptTest, RecoversFromTheDumpOfDynamosIndexer) {
  std::string dump;
  for (const RecordedExchange& exchange : exchanges_) {
    if (exchange.section == "12" && exchange.target == "/dump") dump = exchange.answer.body;
  }
  HttpServer peer({.listen = {"127.0.0.1", 0}});
  peer.Handle({.method = "GET", .path = "/dump", .handler = [&](const HttpRequest&) {
                 return HttpResponse{.body = dump};
               }});
  peer.Handle({.method = "GET", .path = "/workers", .handler = [&](const HttpRequest&) {
                 return HttpResponse{.body = "[]"};
               }});
  ASSERT_TRUE(peer.Start().ok());
  const std::string url = "http://" + peer.address().ToString();
  ports_ = {{"http://127.0.0.1:8092", url}};
  TestLeaf leaf(/*test_endpoints=*/false, {url});
  leaf.WaitUntilReady();
  Replay({"12"}, &leaf);
}

}  // namespace
}  // namespace kvatlas
