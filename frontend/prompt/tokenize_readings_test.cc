#include "frontend/prompt/tokenize_readings.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

const Convention kReadsAsVllm = {.engine = EngineKind::kVllm};
const Convention kReadsAsSglang = {.engine = EngineKind::kSglang};
const Convention kWithParser = {.engine = EngineKind::kSglang, .reasoning_parser = "qwen3"};

class TokenizeReadingsTest : public testing::Test {
 protected:
  TokenizeReadingsTest() {
    conventions_.Set({{.model = "m", .authority = "v:1", .convention = kReadsAsVllm},
                      {.model = "m", .authority = "v:2", .convention = kReadsAsVllm},
                      {.model = "m", .authority = "s:1", .convention = kReadsAsSglang},
                      {.model = "m", .authority = "s:2", .convention = kWithParser}});
  }

  absl::StatusOr<std::vector<ReadingTold>> Read(
      Prompt prompt = BodyPrompt{.body = std::make_shared<const std::string>("{}")}) {
    absl::StatusOr<std::vector<ReadingTold>> read = absl::UnknownError("no answer");
    TokenizeReadings(
        conventions_.Of("m"), std::make_shared<const Prompt>(std::move(prompt)), &input_,
        [this](const std::shared_ptr<const Prompt>& asked, PromptTokenizer::Callback callback) {
          const auto* const body = std::get_if<BodyPrompt>(asked.get());
          asked_.push_back(body == nullptr ? "text" : ToString(body->convention));
          const absl::StatusOr<std::vector<TokenId>>& tokens = tokens_.at(asked_.back());
          if (!tokens.ok()) return callback(tokens.status());
          callback(PromptTokens{.tokens = *tokens, .bos = 7, .source = "by " + asked_.back()});
        },
        [&](absl::StatusOr<std::vector<ReadingTold>> told) { read = std::move(told); });
    return read;
  }

  EngineConventions conventions_;
  RouteInput input_;
  std::map<std::string, absl::StatusOr<std::vector<TokenId>>> tokens_;
  std::vector<std::string> asked_;
};

TEST_F(TokenizeReadingsTest, EachConventionHasItsTokensAndEqualOnesAreOneReading) {
  tokens_ = {{"vllm", std::vector<TokenId>{1, 2}},
             {"sglang", std::vector<TokenId>{1, 3, 4}},
             {"sglang reasoning_parser=qwen3", std::vector<TokenId>{1, 2}}};
  const absl::StatusOr<std::vector<ReadingTold>> told = Read();
  ASSERT_TRUE(told.ok()) << told.status();
  ASSERT_THAT(*told, SizeIs(2));
  EXPECT_THAT(input_.tokens, ElementsAre(1, 2));
  EXPECT_EQ(input_.bos, 7u);
  EXPECT_EQ(input_.reading, "vllm, sglang reasoning_parser=qwen3");
  ASSERT_THAT(input_.other_readings, SizeIs(1));
  EXPECT_THAT(input_.other_readings[0].tokens, ElementsAre(1, 3, 4));
  EXPECT_EQ(input_.other_readings[0].name, "sglang");
  EXPECT_EQ((*told)[0].prompt_tokens, 2u);
  EXPECT_EQ((*told)[1].prompt_tokens, 3u);
  EXPECT_EQ((*told)[1].tokenizer, "by sglang");
  EXPECT_EQ(input_.reading_of("http://v:2"), 0u);
  EXPECT_EQ(input_.reading_of("http://s:1"), 1u);
  EXPECT_EQ(input_.reading_of("http://s:2"), 0u);
  EXPECT_EQ(input_.reading_of("http://unknown:1"), 0u);
}

TEST_F(TokenizeReadingsTest, EqualTokensOfAllAreOneReading) {
  const std::vector<TokenId> same = {1, 2, 3};
  tokens_ = {{"vllm", same}, {"sglang", same}, {"sglang reasoning_parser=qwen3", same}};
  ASSERT_TRUE(Read().ok());
  EXPECT_THAT(input_.tokens, ElementsAre(1, 2, 3));
  EXPECT_THAT(input_.other_readings, IsEmpty());
  EXPECT_EQ(input_.reading_of, nullptr);
}

TEST_F(TokenizeReadingsTest, AConventionThatRefusesIsAReadingWithoutTokensBehindTheOthers) {
  tokens_ = {{"vllm", absl::InvalidArgumentError("refused")},
             {"sglang", std::vector<TokenId>{1}},
             {"sglang reasoning_parser=qwen3", std::vector<TokenId>{}}};
  const absl::StatusOr<std::vector<ReadingTold>> told = Read();
  ASSERT_TRUE(told.ok()) << told.status();
  ASSERT_THAT(*told, SizeIs(3));
  EXPECT_THAT(input_.tokens, ElementsAre(1));
  EXPECT_EQ(input_.reading, "sglang");
  EXPECT_THAT(input_.other_readings[0].tokens, IsEmpty());
  EXPECT_EQ(input_.reading_of("http://v:1"), 1u);
  EXPECT_EQ((*told)[1].no_tokens.message(), "refused");
  EXPECT_TRUE((*told)[0].no_tokens.ok());
  EXPECT_FALSE((*told)[2].no_tokens.ok());
}

TEST_F(TokenizeReadingsTest, WhatNoConventionReadsIsTheFirstOnesError) {
  tokens_ = {{"vllm", absl::InvalidArgumentError("refused")},
             {"sglang", absl::UnimplementedError("not read")},
             {"sglang reasoning_parser=qwen3", absl::UnimplementedError("not read")}};
  EXPECT_EQ(Read().status().message(), "refused");
}

TEST_F(TokenizeReadingsTest, ATextWithoutAnApiIsReadOnce) {
  tokens_ = {{"text", std::vector<TokenId>{1, 2}}};
  ASSERT_TRUE(Read(TextPrompt{.text = "hello"}).ok());
  EXPECT_THAT(asked_, ElementsAre("text"));
  EXPECT_THAT(input_.other_readings, IsEmpty());
}

TEST_F(TokenizeReadingsTest, EnginesOfOneConventionCostOneQuestion) {
  conventions_.Set({{.model = "m", .authority = "s:1", .convention = kReadsAsSglang},
                    {.model = "m", .authority = "s:2", .convention = kReadsAsSglang}});
  tokens_ = {{"sglang", std::vector<TokenId>{1, 2}}};
  const absl::StatusOr<std::vector<ReadingTold>> told = Read();
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(asked_, ElementsAre("sglang"));
  EXPECT_EQ(input_.reading, "sglang");
  EXPECT_EQ(told->front().prompt_tokens, 2u);
}

}  // namespace
}  // namespace kvatlas
