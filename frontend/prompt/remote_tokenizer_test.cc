#include "frontend/prompt/remote_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/doors/http/socket_test_util.h"
#include "frontend/prompt/meet_engines.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/tokenizer_choice.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

std::string Answer(int status, const std::string& body) {
  return absl::StrCat("HTTP/1.1 ", status, " X\r\ncontent-length: ", body.size(), "\r\n\r\n", body);
}

TestEngine::Serve Says(std::string answer) {
  return [answer](TestSocket& connection) {
    while (!connection.ReadMessage().empty()) connection.Send(answer);
  };
}

absl::StatusOr<PromptTokens> Ask(PromptTokenizer& tokenizer, const Prompt& prompt,
                                 Duration deadline = seconds(60), const std::string& model = "m") {
  std::promise<absl::StatusOr<PromptTokens>> answer;
  tokenizer.Tokenize(model, prompt, deadline, [&](absl::StatusOr<PromptTokens> tokens) {
    answer.set_value(std::move(tokens));
  });
  return answer.get_future().get();
}

RemoteTokenizerOptions Options(std::vector<std::string> urls) {
  RemoteTokenizerOptions options;
  options.urls = [urls](const std::string&) { return urls; };
  options.engine.connect_timeout = seconds(60);
  return options;
}

ChatPrompt Chat() {
  return {.messages = Json::parse(R"([{"role":"user","content":"é"}])"),
          .tools = Json::parse(R"([{"type":"function"}])"),
          .template_kwargs = Json::parse(R"({"enable_thinking":false})")};
}

TEST(RemoteTokenizerTest, TheEngineIsAskedAsItWantsToBeAsked) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection))
      connection.Send(Answer(200, R"({"count":2,"max_model_len":9,"tokens":[1,4294967295]})"));
  });
  RemoteTokenizer tokenizer(Options({engine.url()}));
  absl::StatusOr<PromptTokens> tokens = Ask(tokenizer, TextPrompt{.text = "hello"});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->tokens, ElementsAre(1u, 4294967295u));
  EXPECT_EQ(tokens->source, engine.url() + "/tokenize");
  EXPECT_THAT(got.text(), StartsWith("POST /tokenize HTTP/1.1\r\n"));
  EXPECT_EQ(BodyOf(got.text()), R"({"model":"m","prompt":"hello"})");
  ASSERT_TRUE(Ask(tokenizer, Chat()).ok());
  EXPECT_EQ(
      BodyOf(got.text()),
      R"({"model":"m","messages":[{"role":"user","content":"é"}],"add_generation_prompt":true,)"
      R"("continue_final_message":false,"chat_template_kwargs":{"enable_thinking":false},)"
      R"("tools":[{"type":"function"}]})");
}

TEST(RemoteTokenizerTest, AGivenEngineGetsItsApiKey) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(Answer(200, R"({"tokens":[1]})"));
  });
  RemoteTokenizerOptions options = Options({engine.url()});
  options.engine.reach.given->SetApiKey("k1");
  RemoteTokenizer tokenizer(options);
  ASSERT_TRUE(Ask(tokenizer, TextPrompt{.text = "a"}).ok());
  EXPECT_EQ(got.text().find("k1"), std::string::npos) << "no flag names it";
  options.engine.reach.given->Set({engine.address().ToString()});
  ASSERT_TRUE(Ask(tokenizer, TextPrompt{.text = "b"}).ok());
  EXPECT_THAT(got.text(), HasSubstr("authorization: Bearer k1\r\n"));
}

TEST(RemoteTokenizerTest, RenderedPromptsHaveTheirTokensInOtherPlaces) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) {
      const bool chat = got.text().starts_with("POST /v1/chat/completions/render ");
      connection.Send(Answer(200, chat ? R"({"request_id":"r","token_ids":[3],"features":{}})"
                                       : R"([{"token_ids":[1,2]},{"token_ids":[9]}])"));
    }
  });
  RemoteTokenizerOptions options = Options({engine.url()});
  options.way = RemoteWay::kRender;
  RemoteTokenizer tokenizer(options);
  EXPECT_THAT(Ask(tokenizer, TextPrompt{.text = "a"})->tokens, ElementsAre(1u, 2u));
  EXPECT_THAT(got.text(), StartsWith("POST /v1/completions/render "));
  EXPECT_THAT(Ask(tokenizer, Chat())->tokens, ElementsAre(3u));
}

TEST(RemoteTokenizerTest, WhatWasAskedBeforeIsNotAskedAgainUpToTheBound) {
  TestEngine engine(Says(Answer(200, R"({"tokens":[1,2,3]})")));
  RemoteTokenizerOptions options = Options({engine.url()});
  options.cache_bytes = 1000;  // two short prompts
  RemoteTokenizer tokenizer(options);
  const auto ask = [&](const std::string& text) {
    return Ask(tokenizer, TextPrompt{.text = text});
  };
  EXPECT_EQ(ask("a")->reused, 0u);
  EXPECT_EQ(ask("a")->reused, 3u);
  for (const char* other : {"b", "c", "d"}) EXPECT_TRUE(ask(other).ok());
  EXPECT_EQ(tokenizer.cache_hits(), 1u);
  EXPECT_EQ(ask("d")->reused, 3u);
  EXPECT_EQ(ask("a")->reused, 0u);
  EXPECT_EQ(ask(std::string(2000, 'x'))->reused, 0u);
  EXPECT_EQ(ask("a")->reused, 3u);  // what is too long for it evicts nothing
}

TEST(RemoteTokenizerTest, AnotherEngineIsAskedAfterOneThatFails) {
  TestEngine nonsense(Says(Answer(200, "[]")));
  TestEngine engine(Says(Answer(200, R"({"tokens":[7]})")));
  for (const std::string& bad :
       {"http://" + ClosedPort().ToString(), nonsense.url(), std::string("ftp://x")}) {
    RemoteTokenizer tokenizer(Options({bad, engine.url()}));
    EXPECT_THAT(Ask(tokenizer, TextPrompt{.text = "a"})->tokens, ElementsAre(7u));
  }
  RemoteTokenizer alone(Options({nonsense.url()}));
  EXPECT_TRUE(absl::IsUnavailable(Ask(alone, TextPrompt{.text = "a"}).status()));
}

TEST(RemoteTokenizerTest, PromptsAreSpreadOverEngines) {
  std::atomic<int> first = 0, second = 0;
  const auto counts = [](std::atomic<int>* asked) -> TestEngine::Serve {
    return [asked](TestSocket& connection) {
      while (!connection.ReadMessage().empty()) {
        ++*asked;
        connection.Send(Answer(200, R"({"tokens":[7]})"));
      }
    };
  };
  TestEngine one(counts(&first)), other(counts(&second));
  RemoteTokenizer tokenizer(Options({one.url(), other.url()}));
  for (const char* text : {"a", "b", "c", "d"})
    EXPECT_TRUE(Ask(tokenizer, TextPrompt{.text = text}).ok());
  EXPECT_EQ(first, 2);
  EXPECT_EQ(second, 2);
}

TEST(RemoteTokenizerTest, AnEngineThatHangsCostsAPartOfTheDeadlineAndIsLeftAloneForAWhile) {
  TestEngine hangs([](TestSocket& connection) { connection.ReadToEnd(); });
  TestEngine engine(Says(Answer(200, R"({"tokens":[7]})")));
  RemoteTokenizer tokenizer(Options({hangs.url(), engine.url()}));
  for (const char* text : {"a", "b", "c", "d"})
    EXPECT_TRUE(Ask(tokenizer, TextPrompt{.text = text}, seconds(4)).ok());
  EXPECT_EQ(hangs.connections(), 1u);
}

// A long prompt may take its time: what was begun is not given up for the other engine.
TEST(RemoteTokenizerTest, AnEngineThatIsSlowMayStillBeTheFirstToAnswer) {
  std::promise<void> other_asked;
  TestEngine slow([&](TestSocket& connection) {
    connection.ReadMessage();
    other_asked.get_future().wait();
    connection.Send(Answer(200, R"({"tokens":[7]})"));
    connection.ReadToEnd();
  });
  TestEngine hangs([&](TestSocket& connection) {
    connection.ReadMessage();
    other_asked.set_value();
    connection.ReadToEnd();
  });
  RemoteTokenizer tokenizer(Options({slow.url(), hangs.url()}));
  EXPECT_THAT(Ask(tokenizer, TextPrompt{.text = "a"}, seconds(4))->tokens, ElementsAre(7u));
}

TEST(RemoteTokenizerTest, WhatTheEngineRefusesIsRefusedInItsWords) {
  TestEngine refuses(Says(Answer(400, R"({"error":{"message":"no such role"}})")));
  TestEngine unknown(Says(Answer(404, R"({"detail":"Not Found"})")));
  RemoteTokenizer first(Options({refuses.url()}));
  const absl::Status bad = Ask(first, Chat()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(bad));
  EXPECT_THAT(std::string(bad.message()), HasSubstr("no such role"));
  RemoteTokenizer second(Options({unknown.url()}));
  EXPECT_TRUE(absl::IsNotFound(Ask(second, Chat()).status()));
  RemoteTokenizer no_engines(Options({}));
  EXPECT_TRUE(absl::IsNotFound(Ask(no_engines, Chat()).status()));
}

TEST(RemoteTokenizerTest, AnAnswerBeyondItsBoundIsRefused) {
  TestEngine engine(Says(Answer(200, std::string(100'000, ' ') + R"({"tokens":[1]})")));
  RemoteTokenizerOptions options = Options({engine.url()});
  options.answer_bytes_max = 50'000;
  RemoteTokenizer tokenizer(std::move(options));
  for (int i = 0; i < 10; ++i)
    EXPECT_THAT(Ask(tokenizer, Chat()).status().message(), HasSubstr("too long"));
}

TEST(RemoteTokenizerTest, AnEngineThatHangsIsLate) {
  TestEngine hangs([](TestSocket& connection) { connection.ReadToEnd(); });
  RemoteTokenizer tokenizer(Options({hangs.url()}));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(Ask(tokenizer, TextPrompt{.text = "a"}, milliseconds(20)).status()));
}

TEST(RemoteTokenizerTest, WhoIsWaitingWhenItEndsIsTold) {
  TestEngine hangs([](TestSocket& connection) { connection.ReadToEnd(); });
  auto tokenizer = std::make_unique<RemoteTokenizer>(Options({hangs.url()}));
  std::promise<absl::Status> told;
  tokenizer->Tokenize(
      "m", TextPrompt{.text = "a"}, seconds(60),
      [&](const absl::StatusOr<PromptTokens>& tokens) { told.set_value(tokens.status()); });
  tokenizer.reset();
  EXPECT_TRUE(absl::IsUnavailable(told.get_future().get()));
}

// ---- Which way ----

class Says1 : public PromptTokenizer {
 public:
  explicit Says1(absl::StatusOr<PromptTokens> answer) : answer_(std::move(answer)) {}
  void Tokenize(const std::string&, const Prompt&, Duration, Callback callback) override {
    callback(answer_);
  }

 private:
  const absl::StatusOr<PromptTokens> answer_;
};

TEST(TokenizerChoiceTest, WaysAreTriedInTheirOrderPerModel) {
  Says1 local(absl::NotFoundError("unknown"));
  Says1 engine(PromptTokens{.tokens = {1}, .source = "engine"});
  Says1 render(absl::InvalidArgumentError("refused"));
  const auto ways = ParseTokenizeWays({"local+engine", "vl=render+engine", "dark=local"});
  ASSERT_TRUE(ways.ok()) << ways.status();
  TokenizerChoice choice(*ways, {{"local", &local}, {"engine", &engine}, {"render", &render}});
  const Prompt prompt = TextPrompt{.text = "a"};
  EXPECT_EQ(Ask(choice, prompt)->source, "engine");
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(choice, prompt, seconds(1), "vl").status()));
  EXPECT_TRUE(absl::IsNotFound(Ask(choice, prompt, seconds(1), "dark").status()));
}

TEST(TokenizerChoiceTest, ThatNoEngineWasMetIsNotForgotten) {
  Says1 local(absl::NotFoundError("unknown"));
  RemoteTokenizer engine(Options({}));
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

}  // namespace
}  // namespace kvatlas
