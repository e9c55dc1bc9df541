#include "frontend/prompt/tokenizer_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontend/prompt/discover_engines.h"
#include "frontend/prompt/text/prompt_tokenizer.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<PromptTokens> Ask(PromptTokenizer& tokenizer, const Prompt& prompt,
                                 const std::string& model = "m") {
  std::promise<absl::StatusOr<PromptTokens>> answer;
  tokenizer.Tokenize(model, prompt, seconds(60), [&](absl::StatusOr<PromptTokens> tokens) {
    answer.set_value(std::move(tokens));
  });
  return answer.get_future().get();
}

// Answers at once, with `answer`.
class Says : public PromptTokenizer {
 public:
  explicit Says(absl::StatusOr<PromptTokens> answer) : answer(std::move(answer)) {}
  void Tokenize(const std::string&, const Prompt&, Duration, Callback callback) override {
    ++asked;
    callback(answer);
  }

  absl::StatusOr<PromptTokens> answer;
  int asked = 0;
};

PromptTokens Tokens(std::vector<TokenId> tokens, const std::string& source = "s") {
  return {.tokens = std::move(tokens), .source = source};
}

BodyPrompt Body(const std::string& body = R"({"messages":[]})") {
  return {.path = RequestPath::kChat, .body = std::make_shared<const std::string>(body)};
}

TEST(TokenizerChoiceTest, WaysAreTriedInTheirOrderPerModel) {
  Says local(absl::NotFoundError("unknown"));
  Says engine(Tokens({1}, "engine"));
  Says render(absl::InvalidArgumentError("refused"));
  const auto ways = ParseTokenizeWays({"local+engine", "vl=render+engine", "dark=local"});
  ASSERT_TRUE(ways.ok()) << ways.status();
  TokenizerChoice choice(*ways, {{"local", &local}, {"engine", &engine}, {"render", &render}});
  const Prompt prompt = TextPrompt{.text = "a"};
  EXPECT_EQ(Ask(choice, prompt)->source, "engine");
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(choice, prompt, "vl").status()));
  EXPECT_TRUE(absl::IsNotFound(Ask(choice, prompt, "dark").status()));
}

TEST(TokenizerChoiceTest, ThatNoEngineWasMetIsNotForgotten) {
  Says local(absl::NotFoundError("unknown"));
  Says engine(NoEngineMet("m"));
  for (const char* way : {"local+engine", "engine+local"}) {
    TokenizerChoice choice(*ParseTokenizeWays({way}), {{"local", &local}, {"engine", &engine}});
    EXPECT_TRUE(IsNoEngineMet(Ask(choice, TextPrompt{.text = "a"}).status())) << way;
  }
}

TEST(TokenizerChoiceTest, NonsenseIsNamed) {
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"locl"}, {"local+"}, {"m="}, {"local", "engine"}, {"m=local", "m=engine"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTokenizeWays(bad).status())) << bad[0];
  }
}

TEST(TokenizerChoiceTest, WhatFilesRefuseIsAskedOfTheEngine) {
  Says local(absl::InvalidArgumentError("the template: no such role"));
  Says engine(Tokens({7}));
  TokenizerChoice choice(*ParseTokenizeWays({"local+engine"}),
                         {{"local", &local}, {"engine", &engine}});
  EXPECT_THAT(Ask(choice, Body())->tokens, ElementsAre(7u));
  local.answer = absl::UnimplementedError("image_url");
  EXPECT_THAT(Ask(choice, Body())->tokens, ElementsAre(7u));
  engine.answer = absl::InvalidArgumentError("the engine refuses");
  EXPECT_THAT(std::string(Ask(choice, Body()).status().message()), HasSubstr("the engine refuses"));
}

TEST(TokenizerChoiceTest, ARefusalByFilesStandsWhereNoEngineAnswers) {
  Says local(absl::InvalidArgumentError("the template: no such role"));
  Says engine(absl::UnavailableError("away"));
  TokenizerChoice choice(*ParseTokenizeWays({"local+engine"}),
                         {{"local", &local}, {"engine", &engine}});
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(choice, Body()).status()));
  // The reason keeps its words and says that an engine may still be met.
  engine.answer = NoEngineMet("m");
  const absl::Status why = Ask(choice, Body()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(why));
  EXPECT_TRUE(IsNoEngineMet(why));
}

TEST(TokenizerChoiceTest, AnEnginesReasonIsTheLastOne) {
  Says local(absl::UnimplementedError("image_url has no tokens here"));
  Says engine(absl::UnimplementedError("start the engine with --enable-scale-out"));
  TokenizerChoice choice(*ParseTokenizeWays({"local+engine"}),
                         {{"local", &local}, {"engine", &engine}});
  EXPECT_THAT(std::string(Ask(choice, Body()).status().message()), HasSubstr("--enable-scale-out"));
}

TEST(TokenizerChoiceTest, LocalTokensAreSampledAndThenTrusted) {
  Says local(Tokens({1, 2})), engine(Tokens({1, 2}));
  TokenizerChoice choice(*ParseTokenizeWays({"local+engine"}),
                         {{"local", &local}, {"engine", &engine}}, {.first = 3, .every = 10});
  EXPECT_FALSE(choice.IsTrusted("m", Body()));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Ask(choice, Body()).ok());
  EXPECT_EQ(engine.asked, 4);  // the first three requests and the eleventh
  EXPECT_TRUE(choice.IsTrusted("m", Body()));
  EXPECT_FALSE(choice.IsTrusted("m", Body(R"({"messages":[],"tools":[]})")));
  EXPECT_EQ(choice.evidence().counts().equal, 4u);
}

TEST(TokenizerChoiceTest, RequestsOfAShapeThatDiffersAreTheEngines) {
  ManualClock clock;
  Says local(Tokens({1, 2}, "local")), engine(Tokens({1, 3}, "engine"));
  TokenizerChoice choice(*ParseTokenizeWays({"local+engine"}),
                         {{"local", &local}, {"engine", &engine}}, {.clock = &clock});
  EXPECT_EQ(Ask(choice, Body())->source, "local");
  EXPECT_EQ(Ask(choice, Body())->source, "engine");
  // Other shapes and models are judged by their own samples.
  EXPECT_EQ(Ask(choice, Body(R"({"messages":[],"tools":[]})"))->source, "local");
  EXPECT_EQ(Ask(choice, Body(), "n")->source, "local");
  EXPECT_EQ(choice.evidence().counts().different, 3u);
  // After a while the shape is sampled again.
  clock.Advance(TokenEvidenceOptions().distrust_for);
  engine.answer = Tokens({1, 2}, "engine");
  EXPECT_EQ(Ask(choice, Body())->source, "local");
  EXPECT_EQ(Ask(choice, Body())->source, "local");
}

TEST(TokenizerChoiceTest, AnEngineThatCannotTellIsNoEvidence) {
  Says local(Tokens({1})), engine(absl::UnimplementedError("no render endpoints"));
  TokenizerChoice choice(*ParseTokenizeWays({"local+engine"}),
                         {{"local", &local}, {"engine", &engine}}, {.under_way_max = 1});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Ask(choice, Body()).ok());
  EXPECT_EQ(engine.asked, 3);
  EXPECT_FALSE(choice.IsTrusted("m", Body()));
  EXPECT_EQ(choice.evidence().counts().different, 0u);
}

// A token for each byte of the messages, up to a part of an image.
class ByBytes : public PromptTokenizer {
 public:
  void Tokenize(const std::string&, const Prompt& prompt, Duration, Callback callback) override {
    const std::string& body = *std::get<BodyPrompt>(prompt).body;
    if (body.find("image_url") != std::string::npos)
      return callback(absl::UnimplementedError("image_url has no tokens here"));
    callback(Tokens({body.begin(), body.end()}));
  }
};

TEST(TokenizerChoiceTest, APromptWithAnImageIsKnownUpToItsMessage) {
  ByBytes local;
  Says engine(absl::UnimplementedError("start the engine with --enable-scale-out"));
  for (const char* ways : {"local", "local+engine"}) {
    TokenizerChoice choice(*ParseTokenizeWays({ways}), {{"local", &local}, {"engine", &engine}});
    const auto tokens = Ask(
        choice,
        Body(
            R"({"messages":[{"content":"a"},{"content":[{"type":"image_url"}]},{"content":"b"}]})"));
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    const std::string known(tokens->tokens.begin(), tokens->tokens.end());
    EXPECT_EQ(known, R"({"messages":[{"content":"a"},{"content":)");
    EXPECT_THAT(tokens->ends_before, HasSubstr("image_url"));
  }
  TokenizerChoice choice(*ParseTokenizeWays({"local+engine"}),
                         {{"local", &local}, {"engine", &engine}});
  EXPECT_THAT(
      Ask(choice, Body(R"({"messages":[{"content":[{"type":"image_url"}]}]})"))->ends_before,
      HasSubstr("--enable-scale-out"));
}

TEST(TokenEvidenceTest, ShapesTellWhatEnginesReadInDifferentWays) {
  EXPECT_EQ(ShapeOf("m", Body(R"({"messages":[{"content":"\"tools\""}]})")),
            "vLLM's /v1/chat/completions of m");
  EXPECT_EQ(ShapeOf("m", Body(R"({"messages":[{"tool_calls":[]}],"tools":[]})")),
            "vLLM's /v1/chat/completions of m with tools, calls of tools");
}

}  // namespace
}  // namespace kvatlas
