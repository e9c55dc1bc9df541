// Does a real leaf that hears real engines' streams over real sockets answer exactly what the
// engines would reuse? The recordings again, published over ZeroMQ, registered and asked for over
// HTTP.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/await.h"
#include "indexer/leaf/http_transcript_test_util.h"
#include "indexer/leaf/leaf.h"
#include "tests/interop/recording.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr char kFolder[] = "tests/interop/recordings";
// All is found within this, or the test fails.
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

// {instance: {rank: tokens}}, without zeros.
using Scores = std::map<std::string, std::map<std::string, uint32_t>>;

class RecordingsLeafTest : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    LeafOptions options;
    options.grpc = {"127.0.0.1", 0};
    options.http = {"127.0.0.1", 0};
    absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(std::move(options));
    ASSERT_TRUE(leaf.ok()) << leaf.status();
    leaf_ = leaf->release();
  }
  static void TearDownTestSuite() {
    delete leaf_;
    leaf_ = nullptr;
  }

  void SetUp() override {
    ASSERT_NE(leaf_, nullptr);
    absl::StatusOr<Recording> read = ReadRecording(std::string(kFolder) + "/" + GetParam());
    ASSERT_TRUE(read.ok()) << read.status();
    recording_ = *std::move(read);
    http_ = std::make_unique<HttpTestClient>(leaf_->http_address());
  }

  // An engine per stream; those that were registered in mid-run have sent before anybody listened.
  void StartEngines() {
    for (size_t i = 0; i < recording_.streams.size(); ++i) {
      const auto first = std::find_if(recording_.frames.begin(), recording_.frames.end(),
                                      [i](const Recording::Frame& f) { return f.stream == i; });
      const bool late = recording_.streams[i].live_from > 0;
      engines_.push_back(std::make_unique<ZmqTestEngine>(
          ZmqTestEngineOptions{.topic = first->topic, .replay = late}));
      next_.push_back(0);
    }
    for (const Recording::Frame& frame : recording_.frames) {
      if (frame.number >= recording_.streams[frame.stream].live_from) continue;
      ASSERT_EQ(engines_[frame.stream]->Drop(frame.payload), frame.number);
      ++next_[frame.stream];
    }
  }

  void Register() {
    for (size_t i = 0; i < recording_.streams.size(); ++i) {
      const Recording::Stream& stream = recording_.streams[i];
      Json body = {{"instance_id", std::stoull(stream.instance)},
                   {"endpoint", engines_[i]->endpoint()},
                   {"model_name", GetParam()},
                   {"block_size", stream.block_size},
                   {"dp_rank", stream.rank}};
      if (stream.live_from > 0) body["replay_endpoint"] = engines_[i]->replay_endpoint();
      const Unsaid unsaid = UnsaidOf(stream);
      if (unsaid.chunk_tokens > 0) body["chunk_tokens"] = unsaid.chunk_tokens;
      if (!unsaid.eagle_drop.empty()) body["eagle_drop"] = unsaid.eagle_drop;
      const HttpAnswerText answer = http_->Post("/register", body.dump());
      ASSERT_EQ(answer.status, 201) << answer.body;
    }
    for (const std::unique_ptr<ZmqTestEngine>& engine : engines_) engine->WaitForSubscribers();
  }

  void Publish() {
    for (const Recording::Frame& frame : recording_.frames) {
      if (frame.number < recording_.streams[frame.stream].live_from) continue;
      ZmqTestEngine& engine = *engines_[frame.stream];
      if (frame.number < next_[frame.stream]) {
        engine.Restart();
        engine.WaitForSubscribers();
      }
      ASSERT_EQ(engine.Publish(frame.payload), frame.number);
      next_[frame.stream] = frame.number + 1;
    }
  }

  Scores Ask(const Recording::Question& question) {
    Json body = {{"token_ids", question.tokens}, {"model_name", GetParam()}};
    if (!question.lora_name.empty()) body["lora_name"] = question.lora_name;
    if (!question.cache_salt.empty()) body["cache_salt"] = question.cache_salt;
    const HttpAnswerText answer = http_->Post("/query", body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    const Json parsed = Json::parse(answer.body, nullptr, false);
    Scores scores;
    if (!parsed.is_object()) return scores;
    for (const auto& [instance, ranks] : parsed["scores"].items()) {
      for (const auto& [rank, tokens] : ranks.items()) scores[instance][rank] = tokens;
    }
    return scores;
  }

  Scores Expected(const Recording::Question& question) const {
    Scores scores;
    for (size_t i = 0; i < recording_.streams.size(); ++i) {
      const Recording::Stream& stream = recording_.streams[i];
      if (question.depths[i] == 0) continue;
      scores[stream.instance][std::to_string(stream.rank)] = question.depths[i] * stream.block_size;
    }
    return scores;
  }

  // Streams are applied each in its order, and beside one another: the last question may be right
  // while one of them is behind.
  void AwaitAll() {
    const auto is_right = [&](const Recording::Question& question) {
      return Ask(question) == Expected(question);
    };
    // The last one is about the engines' last request.
    Await(
        [&] {
          return std::all_of(recording_.questions.rbegin(), recording_.questions.rend(), is_right);
        },
        kPatience);
  }

  void Unregister() {
    for (const Recording::Stream& stream : recording_.streams) {
      const Json body = {{"instance_id", std::stoull(stream.instance)}, {"model_name", GetParam()}};
      http_->Post("/unregister", body.dump());
    }
  }

  static Leaf* leaf_;
  Recording recording_;
  std::unique_ptr<HttpTestClient> http_;
  std::vector<std::unique_ptr<ZmqTestEngine>> engines_;
  std::vector<uint64_t> next_;  // number of the next message, by stream
};

Leaf* RecordingsLeafTest::leaf_ = nullptr;

TEST_P(RecordingsLeafTest, EveryPromptIsFoundAsDeepAsItsEngineHoldsIt) {
  ASSERT_NO_FATAL_FAILURE(StartEngines());
  ASSERT_NO_FATAL_FAILURE(Register());
  ASSERT_NO_FATAL_FAILURE(Publish());
  AwaitAll();
  size_t wrong = 0;
  for (const Recording::Question& question : recording_.questions) {
    const Scores got = Ask(question);
    if (got == Expected(question) || ++wrong > 3) continue;
    ADD_FAILURE() << "a prompt of " << question.tokens.size() << " tokens, salt '"
                  << question.cache_salt << "', adapter '" << question.lora_name << "': answered "
                  << Json(got) << ", the engines hold " << Json(Expected(question));
  }
  EXPECT_EQ(wrong, 0u) << "of " << recording_.questions.size() << "; " << recording_.about;
  Unregister();
}

INSTANTIATE_TEST_SUITE_P(Recordings, RecordingsLeafTest, testing::ValuesIn(RecordingNames()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param.substr(0, info.param.find('.'));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvatlas
