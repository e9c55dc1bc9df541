// Does a leaf in the place of SGLang's KV indexer answer what real engines held? Their recordings
// over real sockets, asked for over gRPC by the names that SGLang's router computes from tokens:
// SGLang's engines, and vLLM's behind the same router.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/await.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/sglang_block_hash.h"
#include "indexer/leaf/leaf.h"
#include "indexer/net/grpc_channel.h"
#include "proto/kv_indexer/v1/kv_indexer.grpc.pb.h"
#include "tests/interop/recording.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using ::kv_indexer::v1::KVIndexer;
using ::kv_indexer::v1::MatchExternalKvPrefixRequest;
using ::kv_indexer::v1::MatchExternalKvPrefixResponse;

constexpr char kFolder[] = "tests/interop/recordings";
// A last request is found within this, or the test fails.
constexpr auto kPatience = std::chrono::seconds(60);

std::vector<std::string> RecordingNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".rec.gz")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// What a salted chain of SGLang begins with in a digest's place.
PageDigest SaltSeed(const std::string& salt) {
  const std::string text = std::string("sglang-cache-salt-v1") + '\0' + salt;
  PageDigest seed;
  size_t size = seed.size();
  EXPECT_EQ(EVP_Q_digest(nullptr, "SHA256", nullptr, text.data(), text.size(), seed.data(), &size),
            1);
  return seed;
}

// Leading blocks by worker.
using Depths = std::map<std::string, uint32_t>;

class RecordingsKvIndexerTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<Recording> read = ReadRecording(std::string(kFolder) + "/" + GetParam());
    ASSERT_TRUE(read.ok()) << read.status();
    recording_ = *std::move(read);
    LeafOptions options;
    options.grpc = options.http = {"127.0.0.1", 0};
    options.kv_indexer.domain = DomainOf("m", "");
    absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(std::move(options));
    ASSERT_TRUE(leaf.ok()) << leaf.status();
    leaf_ = *std::move(leaf);
    stub_ = KVIndexer::NewStub(MakeChannel(leaf_->grpc_address().ToString()));
  }

  static std::string WorkerOf(const Recording::Stream& stream) {
    return stream.instance + "/" + std::to_string(stream.rank);
  }

  // Of salted blocks a name can only be taken from an engine that is known to be SGLang.
  bool SaysWhatItIs() const {
    return GetParam().starts_with("sglang") && Contains(GetParam(), "salt");
  }

  // Messages from before a stream was registered come by replay.
  void Play() {
    std::vector<uint64_t> next(recording_.streams.size(), 0);
    for (size_t i = 0; i < recording_.streams.size(); ++i) {
      const auto first = std::find_if(recording_.frames.begin(), recording_.frames.end(),
                                      [i](const Recording::Frame& f) { return f.stream == i; });
      engines_.push_back(std::make_unique<ZmqTestEngine>(ZmqTestEngineOptions{
          .topic = first->topic, .replay = recording_.streams[i].live_from > 0}));
    }
    for (const Recording::Frame& frame : recording_.frames) {
      if (frame.number >= recording_.streams[frame.stream].live_from) continue;
      ASSERT_EQ(engines_[frame.stream]->Drop(frame.payload), frame.number);
      ++next[frame.stream];
    }
    for (size_t i = 0; i < recording_.streams.size(); ++i) {
      const Recording::Stream& stream = recording_.streams[i];
      EngineRegistration registration;
      registration.instance = stream.instance;
      registration.model = "m";
      registration.rank = stream.rank;
      registration.block_size = stream.block_size;
      registration.endpoint = engines_[i]->endpoint();
      if (stream.live_from > 0) registration.replay_endpoint = engines_[i]->replay_endpoint();
      if (SaysWhatItIs()) registration.engine_type = "SGLang";
      const Unsaid unsaid = UnsaidOf(stream);
      registration.chunk_tokens = unsaid.chunk_tokens;
      registration.eagle_drop = unsaid.eagle_drop;
      registration.url = "http://worker-" + stream.instance + ":30000";
      ASSERT_TRUE(leaf_->engines().Register(registration).ok());
    }
    for (const auto& engine : engines_) engine->WaitForSubscribers();
    for (const Recording::Frame& frame : recording_.frames) {
      if (frame.number < recording_.streams[frame.stream].live_from) continue;
      ZmqTestEngine& engine = *engines_[frame.stream];
      if (frame.number < next[frame.stream]) {
        engine.Restart();
        engine.WaitForSubscribers();
      }
      ASSERT_EQ(engine.Publish(frame.payload), frame.number);
      next[frame.stream] = frame.number + 1;
    }
  }

  // As a router computes them: SGLang's chain over tokens, of bigrams where its EAGLE flag is set.
  MatchExternalKvPrefixRequest RequestOf(const Recording::Question& question) const {
    const bool bigrams = Contains(GetParam(), "lookahead") ||
                         (Contains(GetParam(), "eagle") && !Contains(GetParam(), "eagle-drop"));
    const size_t page = recording_.streams[0].block_size;
    MatchExternalKvPrefixRequest request;
    PageHasher hasher;
    std::optional<PageDigest> prior;
    if (!question.cache_salt.empty()) prior = SaltSeed(question.cache_salt);
    const size_t window = page + (bigrams ? 1 : 0);
    for (size_t i = 0; i + window <= question.tokens.size(); i += page) {
      prior = hasher.Hash(prior.has_value() ? &*prior : nullptr,
                          std::span(question.tokens).subspan(i, window), bigrams);
      request.add_hashes(static_cast<int64_t>(PageNameOf(prior.value())));
    }
    return request;
  }

  Depths Ask(const Recording::Question& question) {
    const MatchExternalKvPrefixRequest request = RequestOf(question);
    if (request.hashes().empty()) return {};
    MatchExternalKvPrefixResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->MatchExternalKvPrefix(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    Depths depths;
    uint32_t best = 0;
    for (const auto& match : response.matches()) {
      depths[match.worker_id()] = match.matched_prefix_blocks();
      best = std::max(best, match.matched_prefix_blocks());
      EXPECT_EQ(
          match.worker_address(),
          "http://worker-" + match.worker_id().substr(0, match.worker_id().find('/')) + ":30000");
    }
    EXPECT_EQ(response.best_prefix_blocks(), best);
    return depths;
  }

  Depths Expected(const Recording::Question& question) const {
    Depths depths;
    for (size_t i = 0; i < recording_.streams.size(); ++i)
      if (question.depths[i] > 0) depths[WorkerOf(recording_.streams[i])] = question.depths[i];
    return depths;
  }

  Recording recording_;
  std::unique_ptr<Leaf> leaf_;
  std::unique_ptr<KVIndexer::Stub> stub_;
  std::vector<std::unique_ptr<ZmqTestEngine>> engines_;
};

TEST_P(RecordingsKvIndexerTest, EveryPromptIsFoundAsDeepAsItsEngineHoldsIt) {
  ASSERT_NO_FATAL_FAILURE(Play());
  // A router knows no adapters.
  std::vector<Recording::Question> plain;
  for (Recording::Question& question : recording_.questions)
    if (question.lora_name.empty() && (question.cache_salt.empty() || SaysWhatItIs()))
      plain.push_back(std::move(question));
  const auto is_held = [&](const Recording::Question& question) {
    return !Expected(question).empty();
  };
  ASSERT_TRUE(std::any_of(plain.begin(), plain.end(), is_held)) << plain.size();
  const auto wrong = [&] {
    std::vector<std::string> texts;
    for (const Recording::Question& question : plain) {
      const Depths got = Ask(question);
      const Depths expected = Expected(question);
      if (got == expected) continue;
      std::string text = std::to_string(question.tokens.size()) + " tokens:";
      for (const auto& [worker, depth] : got)
        text += " got " + worker + ": " + std::to_string(depth);
      for (const auto& [worker, depth] : expected)
        text += " expected " + worker + ": " + std::to_string(depth);
      texts.push_back(text);
    }
    return texts;
  };
  std::vector<std::string> left;
  Await([&] { return (left = wrong()).empty(); }, kPatience);
  for (const std::string& text : left) ADD_FAILURE() << text << "\n" << recording_.about;
}

INSTANTIATE_TEST_SUITE_P(Recordings, RecordingsKvIndexerTest, testing::ValuesIn(RecordingNames()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param.substr(0, info.param.find('.'));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvatlas
