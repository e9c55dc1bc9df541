// kvatlas demo: two mock engines, `serve` in front of them and a conversation, in this process.
//
// 1. `StartEngines` starts the engines on free ports.
// 2. `Serve` runs `kvatlas serve` on the main thread, as the command line would, with these
//    engines.
// 3. When its ports are known, the thread `Talk` holds the conversation against the real proxy and
//    prints what each turn found cached.
// 4. Without --once `GoOn` keeps talking for the page's charts, until a signal ends `serve`.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "frontend/serve/serve.h"
#include "indexer/base/address.h"
#include "indexer/net/http_fetch.h"
#include "indexer/process/flags.h"
#include "publisher/publisher.h"
#include "tools/bench/service_bench_http.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/table.h"
#include "tools/testing/mock_engine/byte_tokenizer.h"
#include "tools/testing/mock_engine/engine_ranks.h"
#include "tools/testing/mock_engine/openai_http.h"

namespace kvatlas {
namespace {

constexpr char kModel[] = "mock";
constexpr uint32_t kBlockTokens = 16;
constexpr uint64_t kPoolBlocks = 1024;
// The leaf's dump, of a few dozen blocks.
constexpr size_t kDumpBytesMax = 1 << 20;
// Events take milliseconds; a busy machine takes longer.
constexpr auto kHeardWithin = std::chrono::seconds(10);
constexpr auto kBetweenTurns = std::chrono::seconds(1);
constexpr int kTurnsMax = 12;  // of a conversation; then another one begins

// Long enough for several blocks (a token is a byte here), so that a second turn has something to
// reuse.
constexpr char kSystem[] =
    "You are the assistant of a public library. Be brief and friendly. Opening hours: Monday to "
    "Friday from 9 to 19, Saturday from 10 to 16. Books are lent for four weeks and may be "
    "extended twice where no other reader waits for them. Films are lent for one week. A card "
    "costs nothing below the age of 18. What is returned late costs 20 cents a day. If you do not "
    "know an answer, say so, and name the desk on the ground floor.";
constexpr const char* kQuestions[] = {"How long may I keep a book?", "Can I extend it?",
                                      "And what of films?",          "What does a late film cost?",
                                      "Are you open on Sunday?",     "Where is the desk?"};

// An engine without a GPU: its cache is real, its words are made up.
class MockEngine {
 public:
  // HTTP binds first, since its port is the engine's address; it serves once the ranks are there.
  absl::Status Start() {
    PublisherOptions publishing;
    publishing.domain.model = kModel;
    publishing.worker = kModel;
    publishing.block_size = kBlockTokens;
    publishing.zmq.endpoint = publishing.zmq.replay_endpoint = "tcp://127.0.0.1:0";
    publishing.zmq.attach = ZmqAttach::kBind;
    if (absl::Status bad = http_.Start(); !bad.ok()) return bad;
    absl::StatusOr<std::unique_ptr<EngineRanks>> ranks = EngineRanks::Start(
        {.capacity_blocks = kPoolBlocks, .block_size = kBlockTokens}, publishing, /*ranks=*/1);
    if (!ranks.ok()) return ranks.status();
    ranks_ = *std::move(ranks);
    http_.Serve(ranks_.get());
    return absl::OkStatus();
  }
  ~MockEngine() {
    http_.Stop();
    if (ranks_ != nullptr) ranks_->Stop(Duration::zero());
  }

  Address address() const { return http_.address(); }

 private:
  ByteTokenizer tokenizer_;
  std::unique_ptr<EngineRanks> ranks_;
  OpenAiHttp http_{{.listen = {}, .model = kModel, .block_size = kBlockTokens}, &tokenizer_};
};

// One conversation: what was said, and where its last turn went.
class Conversation {
 public:
  explicit Conversation(const std::string& reader) {
    messages_.push_back({{"role", "system"}, {"content", absl::StrCat(kSystem, " ", reader)}});
  }

  // One answered question, by the headers of the proxy and the usage of the engine.
  struct Turn {
    std::string worker;
    int64_t known_blocks = 0;  // that kvatlas knew of there
    int64_t tokens = 0;
    int64_t cached = 0;  // as the engine counted
  };

  // Asks the next question. Nothing: no answer came.
  std::optional<Turn> Ask(HttpClient& client) {
    const size_t question = messages_.size() / 2 % std::size(kQuestions);
    messages_.push_back({{"role", "user"}, {"content", kQuestions[question]}});
    return Again(client);
  }

  // Asks the last question once more, with the same messages.
  std::optional<Turn> Again(HttpClient& client) {
    const Json body = {{"model", kModel}, {"messages", messages_}, {"max_tokens", 24}};
    const absl::StatusOr<HttpAnswer> answer = client.Post("/v1/chat/completions", body.dump());
    if (!answer.ok() || answer->status != 200) return std::nullopt;
    const Json json = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return std::nullopt;
    Turn turn;
    turn.worker = answer->Header("x-kvatlas-worker");
    // The header is missing when an engine is asked directly: 0 then.
    (void)absl::SimpleAtoi(answer->Header("x-kvatlas-overlap-blocks"), &turn.known_blocks);
    using Pointer = Json::json_pointer;
    turn.tokens = json.value(Pointer("/usage/prompt_tokens"), int64_t{0});
    turn.cached = json.value(Pointer("/usage/prompt_tokens_details/cached_tokens"), int64_t{0});
    answered_ = json.value(Pointer("/choices/0/message"), Json::object());
    return turn;
  }

  // The answer becomes part of the conversation, as a chat client would send it back: it extends
  // the prefix.
  void TakeAnswer() {
    messages_.push_back({{"role", "assistant"}, {"content", answered_["content"]}});
  }
  int turns() const { return static_cast<int>(messages_.size() / 2); }

 private:
  Json messages_ = Json::array();
  Json answered_;
};

class Demo {
 public:
  Demo(std::ostream& out, bool once) : out_(out), once_(once) {}
  // `Serve` has returned: the talker only needs to notice `stopping_`.
  ~Demo() {
    stopping_ = true;
    if (talking_.joinable()) talking_.join();
  }

  absl::Status StartEngines() {
    for (MockEngine& engine : engines_)
      if (absl::Status bad = engine.Start(); !bad.ok()) return bad;
    return absl::OkStatus();
  }

  // Ports other than the two of the flags are free ones, so that a demo runs beside real services.
  int Serve(const Address& listen, const Address& http) {
    std::vector<std::string> arguments = {"--listen=" + listen.ToString(),
                                          "--http=" + http.ToString(),
                                          "--grpc=127.0.0.1:0",
                                          "--leaf_grpc=127.0.0.1:0",
                                          "--leaf_http=127.0.0.1:0",
                                          "--hf_cache=",
                                          "--log_level=warning"};
    for (size_t i = 0; i < std::size(engines_); ++i)
      arguments.push_back(
          absl::StrCat("--engine=http://", engines_[i].address().ToString(), ";name=", kNames[i]));
    return RunServe(arguments, [this](const ServeAddresses& addresses) {
      talking_ = std::thread([this, addresses] { Talk(addresses); });
    });
  }

 private:
  // An address by the flag of `serve` that it belongs to.
  static Address At(const ServeAddresses& addresses, std::string_view flag) {
    for (const auto& [name, address] : addresses)
      if (name == flag) return address;
    return {};
  }

  void Say(const std::string& line) { out_ << line << std::endl; }

  // Waits until the first question's blocks were announced, which takes some milliseconds. Polls
  // the leaf's dump, as an outside observer would. False: not within `kHeardWithin`.
  bool AwaitBlocks(const Address& leaf) {
    HttpFetch fetch;
    const auto end = std::chrono::steady_clock::now() + kHeardWithin;
    while (!stopping_ && std::chrono::steady_clock::now() < end) {
      const absl::StatusOr<int> asked = fetch.Get("http://" + leaf.ToString(), "/dump");
      const absl::StatusOr<std::string> dump =
          asked.ok() ? fetch.ReadAll(kDumpBytesMax) : absl::StatusOr<std::string>(asked.status());
      if (dump.ok() && dump->find("block_hash") != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  // The signal of --once ends `serve` the way Ctrl-C does.
  void Talk(const ServeAddresses& addresses) {
    const Address listen = At(addresses, "listen");
    Say(absl::StrCat("1  two mock engines, ", kNames[0], " and ", kNames[1],
                     ", and kvatlas serve in front of them: http://", listen.ToString(), "/v1"));
    HttpClient client(listen);
    Conversation first("The reader is Ada.");
    const bool told = Tell(first, client, At(addresses, "leaf_http"));
    if (!told) Say("no answer came");
    Say(absl::StrCat("5  the page: http://", At(addresses, "http").ToString(), "/ui/",
                     once_ ? "" : "   a turn a second goes on; Ctrl-C ends"));
    if (once_) {
      kill(getpid(), SIGTERM);
      return;
    }
    GoOn(std::move(first), client);
  }

  // Turn 1 goes by load, turn 2 to the engine that has the prefix. Then the same turn is asked of
  // the other engine directly, to show what taking turns would have cost. False: an answer is
  // missing.
  bool Tell(Conversation& talk, HttpClient& client, const Address& leaf) {
    const std::optional<Conversation::Turn> one = talk.Ask(client);
    if (!one.has_value()) return false;
    Say(absl::StrCat("2  turn 1: ", one->tokens, " tokens, to ", one->worker,
                     ", by load; the engine had ", one->cached, " of them cached"));
    talk.TakeAnswer();
    AwaitBlocks(leaf);
    const std::optional<Conversation::Turn> two = talk.Ask(client);
    if (!two.has_value()) return false;
    Say(absl::StrCat("3  turn 2: ", two->tokens, " tokens, to ", two->worker, ", which has ",
                     two->known_blocks, " blocks of ", kBlockTokens, " of them; the engine had ",
                     two->cached, " tokens cached"));
    const size_t other = two->worker == kNames[0] ? 1 : 0;
    HttpClient past(engines_[other].address());
    const std::optional<Conversation::Turn> missed = talk.Again(past);
    if (!missed.has_value()) return false;
    Say(absl::StrCat("4  turn 2 at ", kNames[other], ", where taking turns would have sent it: ",
                     missed->cached, " cached, all ", missed->tokens, " computed anew"));
    talk.TakeAnswer();
    return true;
  }

  // Three conversations in turn, for the page's charts. Sleeps in small steps, so that an end is
  // noticed.
  void GoOn(Conversation first, HttpClient& client) {
    std::vector<Conversation> talks;
    talks.push_back(std::move(first));
    for (int reader = 1; reader < 3; ++reader)
      talks.emplace_back("The reader has number " + std::to_string(reader) + ".");
    for (uint64_t turn = 0; !stopping_; ++turn) {
      Conversation& talk = talks[turn % talks.size()];
      if (talk.turns() >= kTurnsMax)
        talk = Conversation("The reader has number " + std::to_string(turn) + ".");
      if (talk.Ask(client).has_value()) talk.TakeAnswer();
      const auto next = std::chrono::steady_clock::now() + kBetweenTurns;
      while (!stopping_ && std::chrono::steady_clock::now() < next)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  static constexpr const char* kNames[] = {"a", "b"};

  std::ostream& out_;
  const bool once_;
  MockEngine engines_[2];
  std::thread talking_;
  std::atomic<bool> stopping_{false};
};

}  // namespace

int RunDemo(const std::vector<std::string>& arguments, const CommandIo& io) {
  FlagSet flags(
      "kvatlas demo",
      "Two mock engines, kvatlas serve in front of them and a conversation: what it does, "
      "without an engine.");
  Address listen, http;
  bool once = false;
  flags.Add("listen", &listen, "for clients; port 0: a free one").Listens();
  flags.Add("http", &http, "for the page; port 0: a free one").Listens();
  flags.Add("once", &once, "end after the first five lines");
  flags.Example("kvatlas demo", "five lines, and the page");
  if (io.flags != nullptr) {
    io.flags(flags);
    return kExitOk;
  }
  std::vector<const char*> argv = {"kvatlas demo"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  if (const std::optional<int> exit =
          flags.Parse(static_cast<int>(argv.size()), argv.data(), io.out, io.err))
    return *exit;
  Demo demo(io.out, once);
  if (absl::Status bad = demo.StartEngines(); !bad.ok()) {
    io.err << "kvatlas demo: " << Shown(std::string(bad.message())) << '\n';
    return kExitRefused;
  }
  return demo.Serve(listen, http);
}

}  // namespace kvatlas
