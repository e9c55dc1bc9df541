#include "tools/testing/cluster/trace_chats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <variant>

#include "frontend/prompt/request/prompt_request.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/text_model.h"
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kModels[] = "bytes=frontend/prompt/text/testdata/bytes";
constexpr uint32_t kBlockSize = 64;

TraceChats MakeChats(std::vector<TraceRequest>* trace) {
  absl::StatusOr<TraceChats> chats =
      TraceChats::Make({.models = kModels, .block_size = kBlockSize}, trace);
  EXPECT_TRUE(chats.ok()) << chats.status();
  return chats.ok() ? *std::move(chats) : TraceChats();
}

size_t EqualBlocks(const TraceChats& chats, size_t a, size_t b) {
  const std::vector<SequenceHash>& left = chats.Blocks(a);
  const std::vector<SequenceHash>& right = chats.Blocks(b);
  size_t equal = 0;
  while (equal < std::min(left.size(), right.size()) && left[equal] == right[equal]) ++equal;
  return equal;
}

TEST(TraceChatsTest, AHashIdAlwaysSaysTheSameWords) {
  EXPECT_EQ(WordsOfHashId(7, 100), WordsOfHashId(7, 100));
  EXPECT_NE(WordsOfHashId(7, 100), WordsOfHashId(8, 100));
  const std::string shorter = WordsOfHashId(7, 11);
  EXPECT_THAT(WordsOfHashId(7, 100), StartsWith(shorter.substr(0, shorter.size() - 1)));
}

TEST(TraceChatsTest, PromptsThatBeginWithEqualIdsBeginWithEqualBlocks) {
  std::vector<TraceRequest> trace = {{.hash_ids = {0, 1, 2, 3}},
                                     {.hash_ids = {0, 1, 2, 4, 5}},
                                     {.hash_ids = {0, 9}},
                                     {.hash_ids = {10, 1, 2, 3}}};
  const TraceChats chats = MakeChats(&trace);
  constexpr size_t kPerId = kTokensPerHashId / kBlockSize;
  EXPECT_NEAR(double(EqualBlocks(chats, 0, 1)), 3 * kPerId, 2.0);
  EXPECT_NEAR(double(EqualBlocks(chats, 0, 2)), kPerId, 1.0);
  EXPECT_EQ(EqualBlocks(chats, 0, 3), 0u);
}

TEST(TraceChatsTest, ChatsAreAboutAsLongAsTheTracesPrompts) {
  std::vector<TraceRequest> trace;
  for (uint64_t ids = 1; ids <= 30; ++ids) {
    TraceRequest request;
    for (uint64_t i = 0; i < ids; ++i) request.hash_ids.push_back(i < ids / 2 ? i : 1000 * ids + i);
    trace.push_back(request);
  }
  const TraceChats chats = MakeChats(&trace);
  for (const TraceRequest& request : trace) {
    const double full = double(request.hash_ids.size()) * kTokensPerHashId;
    EXPECT_NEAR(request.input_tokens, full, 0.1 * full + 32);
  }
  EXPECT_EQ(chats.tokenize_us().size(), trace.size());
  EXPECT_EQ(chats.model(), "bytes");
  EXPECT_THAT(chats.tokenizer(), StartsWith("bytes (tokenizer.json "));
}

TEST(TraceChatsTest, ABodyIsTokenizedToTheBlocksThatAnEngineHolds) {
  std::vector<TraceRequest> trace = {{.output_tokens = 7, .hash_ids = {1}},
                                     {.output_tokens = 8, .hash_ids = {1, 2, 3, 4}}};
  const TraceChats chats = MakeChats(&trace);
  const auto registry = ModelRegistry::Create(*ParseModels(kModels));
  ASSERT_TRUE(registry.ok()) << registry.status();
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto request = ReadPromptRequest(
        RequestPath::kChat, std::make_shared<const std::string>(chats.Body(trace[i])));
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->model, "bytes");
    EXPECT_EQ(request->output_tokens_max, trace[i].output_tokens);
    const auto tokens =
        (*(*registry)->Find("bytes"))->Tokenize(std::get<BodyPrompt>(request->prompt));
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(tokens->tokens.size(), trace[i].input_tokens);
    EXPECT_EQ(
        SequenceHashes(LocalHashes(tokens->tokens, {.block_size = kBlockSize}, BlockSeed({}))),
        chats.Blocks(i));
  }
}

TEST(TraceChatsTest, AModelThatCannotBeLoadedIsNamed) {
  std::vector<TraceRequest> trace = {{.hash_ids = {1}}};
  const auto missing = TraceChats::Make({.models = "m=/no/such/folder"}, &trace);
  EXPECT_FALSE(missing.ok());
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/no/such/folder"));
  EXPECT_FALSE(TraceChats::Make({.models = ""}, &trace).ok());
}

TEST(TraceChatsTest, StopsWhenTold) {
  std::vector<TraceRequest> trace = {{.hash_ids = {1}}};
  const auto chats = TraceChats::Make({.models = kModels, .stop = [] { return true; }}, &trace);
  EXPECT_EQ(chats.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace kvatlas
