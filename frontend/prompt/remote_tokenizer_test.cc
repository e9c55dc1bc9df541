#include "frontend/prompt/remote_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "frontend/prompt/discover_engines.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/await.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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
  options.look_every = Duration(0);
  return options;
}

BodyPrompt Chat() {
  return {.path = RequestPath::kChat,
          .body = std::make_shared<const std::string>(
              R"({"messages":[{"role":"user","content":"é"}],"tools":[{"type":"function"}],)"
              R"("chat_template_kwargs":{"enable_thinking":false},"stream":true})")};
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
  EXPECT_EQ(BodyOf(got.text()),
            R"({"model":"m","messages":[{"role":"user","content":"é"}],)"
            R"("tools":[{"type":"function"}],"chat_template_kwargs":{"enable_thinking":false}})");
}

TEST(RemoteTokenizerTest, WithoutADescriptorItFailsAndLaterItDoesNot) {
  std::string url = "http://" + ClosedPort().ToString();
  RemoteTokenizerOptions options = Options({});
  options.urls = [&url](const std::string&) { return std::vector<std::string>{url}; };
  RemoteTokenizer tokenizer(options);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::StatusOr<PromptTokens> failed = Ask(tokenizer, TextPrompt{.text = "hello"});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(failed.ok());
  TestEngine engine(Says(Answer(200, R"({"tokens":[1]})")));
  url = engine.url();
  EXPECT_TRUE(Ask(tokenizer, TextPrompt{.text = "hello"}).ok());
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

BodyPrompt Messages(const std::string& body = R"({"messages":[],"system":"s"})") {
  return {.path = RequestPath::kMessages, .body = std::make_shared<const std::string>(body)};
}

// Answers each request by its target, and counts them.
class ByTarget {
 public:
  using Answers = std::function<std::string(const std::string& target)>;
  explicit ByTarget(Answers answers)
      : engine_([this, answers = std::move(answers)](TestSocket& connection) {
          LastMessage got;
          while (got.ReadFrom(connection)) {
            const std::string text = got.text();
            const std::string target = text.substr(0, text.find(" HTTP/"));
            {
              MutexLock lock(&mutex_);
              ++asked_[target];
              bodies_[target] = std::string(BodyOf(text));
            }
            connection.Send(answers(target));
          }
        }) {}
  std::string url() const { return engine_.url(); }
  int asked(const std::string& target) const {
    MutexLock lock(&mutex_);
    const auto found = asked_.find(target);
    return found == asked_.end() ? 0 : found->second;
  }
  std::string body(const std::string& target) const {
    MutexLock lock(&mutex_);
    const auto found = bodies_.find(target);
    return found == bodies_.end() ? "" : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, int> asked_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> bodies_ ABSL_GUARDED_BY(mutex_);
  TestEngine engine_;
};

std::string RendersNothing(const std::string& target) {
  return target.ends_with("/render")
             ? Answer(403, R"({"error":{"message":"Scale-out endpoints are disabled."}})")
             : Answer(200, R"({"tokens":[1]})");
}

TEST(RemoteTokenizerTest, WhatTokenizeCannotExpressIsAskedOfARenderEndpoint) {
  ByTarget engine([](const std::string& target) {
    return target.ends_with("/v1/messages/render") ? Answer(200, R"({"token_ids":[1,2]})")
                                                   : Answer(200, R"({"tokens":[3]})");
  });
  RemoteTokenizer tokenizer(Options({engine.url()}));
  absl::StatusOr<PromptTokens> tokens = Ask(tokenizer, Messages());
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->tokens, ElementsAre(1u, 2u));
  EXPECT_EQ(tokens->source, engine.url() + "/v1/messages/render");
  EXPECT_EQ(engine.body("POST /v1/messages/render"),
            R"({"model":"m","messages":[],"system":"s","mm_payload":"none"})");
  EXPECT_THAT(Ask(tokenizer, Chat())->tokens, ElementsAre(3u));
}

TEST(RemoteTokenizerTest, AnEngineWithoutRenderEndpointsIsAskedForThemOnce) {
  ByTarget engine(RendersNothing);
  RemoteTokenizer tokenizer(Options({engine.url()}));
  for (int i = 0; i < 3; ++i) {
    const absl::Status why = Ask(tokenizer, Messages()).status();
    EXPECT_TRUE(absl::IsUnimplemented(why)) << why;
    EXPECT_THAT(std::string(why.message()),
                AllOf(HasSubstr("/v1/messages"), HasSubstr("--enable-scale-out")));
  }
  EXPECT_EQ(engine.asked("POST /v1/messages/render"), 1);
  tokenizer.Forget(engine.url());
  EXPECT_FALSE(Ask(tokenizer, Messages()).ok());
  EXPECT_EQ(engine.asked("POST /v1/messages/render"), 2);
}

TEST(RemoteTokenizerTest, OfSeveralEnginesOneThatRendersIsFound) {
  ByTarget first(RendersNothing), second(RendersNothing),
      third([](const std::string&) { return Answer(200, R"({"token_ids":[4]})"); });
  RemoteTokenizer tokenizer(Options({first.url(), second.url(), third.url()}));
  for (int i = 0; i < 4; ++i)
    (void)Ask(tokenizer, Messages(R"({"messages":[],"x":)" + std::to_string(i) + "}"));
  EXPECT_THAT(Ask(tokenizer, Messages())->tokens, ElementsAre(4u));
}

TEST(RemoteTokenizerTest, PreviousResponsesAreNoMatterOfARenderEndpoint) {
  ByTarget engine(RendersNothing);
  RemoteTokenizer tokenizer(Options({engine.url()}));
  const BodyPrompt prompt{
      .path = RequestPath::kResponses,
      .body = std::make_shared<const std::string>(R"({"input":"a","previous_response_id":"r"})")};
  EXPECT_TRUE(absl::IsUnimplemented(Ask(tokenizer, prompt).status()));
  EXPECT_EQ(engine.asked("POST /v1/responses/render"), 0);
}

TEST(RemoteTokenizerTest, AnswersAreForgottenWithTheEnginesStart) {
  std::atomic<int> id = 1;
  ByTarget engine(
      [&](const std::string&) { return Answer(200, absl::StrCat("{\"tokens\":[", id++, "]}")); });
  RemoteTokenizer tokenizer(Options({engine.url()}));
  EXPECT_THAT(Ask(tokenizer, Chat())->tokens, ElementsAre(1u));
  EXPECT_THAT(Ask(tokenizer, Chat())->tokens, ElementsAre(1u));
  tokenizer.Forget(engine.url());
  EXPECT_THAT(Ask(tokenizer, Chat())->tokens, ElementsAre(2u));
  EXPECT_THAT(Ask(tokenizer, Chat())->tokens, ElementsAre(2u));
}

// Prompts of gpt-oss contain the date.
TEST(RemoteTokenizerTest, AnswersAreKeptForAWhile) {
  ByTarget engine([](const std::string&) { return Answer(200, R"({"tokens":[1]})"); });
  RemoteTokenizerOptions options = Options({engine.url()});
  options.answers_for = std::chrono::nanoseconds(0);
  RemoteTokenizer tokenizer(options);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Ask(tokenizer, Chat()).ok());
  EXPECT_EQ(engine.asked("POST /tokenize"), 3);
}

TEST(RemoteTokenizerTest, AnEngineSaysOfItselfThatItWasStartedAgain) {
  std::atomic<int> start = 1, looks = 0, tokens = 0;
  ByTarget engine([&](const std::string& target) {
    if (target == "POST /tokenize")
      return Answer(200, absl::StrCat("{\"tokens\":[", ++tokens, "]}"));
    if (target != "GET /metrics") return Answer(404, "");
    ++looks;
    return Answer(200, absl::StrCat("process_start_time_seconds 1.", start.load(),
                                    "\nvllm:prompt_tokens_total{engine=\"0\"} 5\n"));
  });
  RemoteTokenizerOptions options = Options({engine.url()});
  options.look_every = std::chrono::nanoseconds(1);
  RemoteTokenizer tokenizer(options);
  // True once the start is known and an answer of it was used again.
  const auto hits = [&] {
    (void)Ask(tokenizer, Chat());
    return tokenizer.cache_hits() > 0 && looks > 1;
  };
  EXPECT_TRUE(Await(hits, seconds(60)));
  const TokenId before = Ask(tokenizer, Chat())->tokens.front();
  start = 2;
  EXPECT_TRUE(Await([&] { return Ask(tokenizer, Chat())->tokens.front() > before; }, seconds(60)));
}

TEST(RemoteTokenizerTest, AnEngineThatSaysThatItIsSglangIsAskedAsSuch) {
  ByTarget engine([&](const std::string& target) {
    if (target == "POST /tokenize") return Answer(200, R"({"tokens":[1]})");
    if (target == "GET /server_info")
      return Answer(200, R"({"dp_size":1,"page_size":1,"startup_time":12.5,"version":"0.5.23"})");
    return Answer(404, "");
  });
  RemoteTokenizerOptions options = Options({engine.url()});
  options.look_every = seconds(60);
  options.cache_bytes = 0;
  RemoteTokenizer tokenizer(options);
  const BodyPrompt prompt{
      .body = std::make_shared<const std::string>(R"({"messages":[],"tool_choice":"none"})")};
  const auto asked_as_such = [&] {
    EXPECT_TRUE(Ask(tokenizer, prompt).ok());
    return engine.body("POST /tokenize") == R"({"model":"m","messages":[],"tool_choice":"none"})";
  };
  EXPECT_TRUE(Await(asked_as_such, seconds(60)));
}

// They are asked with equal bodies for a simple chat, and their templates may differ.
TEST(RemoteTokenizerTest, EnginesOfTwoKindsDoNotAnswerForEachOther) {
  ByTarget vllm([&](const std::string& target) {
    if (target == "POST /tokenize") return Answer(200, R"({"tokens":[1]})");
    if (target != "GET /metrics") return Answer(404, "");
    return Answer(200, "process_start_time_seconds 1\nvllm:prompt_tokens_total{engine=\"0\"} 5\n");
  });
  ByTarget sglang([&](const std::string& target) {
    if (target == "POST /tokenize") return Answer(200, R"({"tokens":[2]})");
    if (target == "GET /server_info")
      return Answer(200, R"({"dp_size":1,"page_size":1,"startup_time":12.5,"version":"0.5.23"})");
    return Answer(404, "");
  });
  RemoteTokenizerOptions options = Options({vllm.url(), sglang.url()});
  options.look_every = seconds(60);
  RemoteTokenizer tokenizer(options);
  const auto token = [&](EngineKind kind) {
    const absl::StatusOr<PromptTokens> tokens =
        Ask(tokenizer, BodyPrompt{.path = RequestPath::kChat,
                                  .body = std::make_shared<const std::string>(R"({"messages":[]})"),
                                  .convention = {.engine = kind}});
    return tokens.ok() ? tokens->tokens.front() : 0;
  };
  EXPECT_TRUE(
      Await([&] { return token(EngineKind::kVllm) == 1 && token(EngineKind::kSglang) == 2; },
            seconds(60)));
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
  EXPECT_EQ(ask("a")->reused, 3u);  // an answer too large for the cache evicts nothing
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

// A long prompt may take long: its first call goes on while the other engine is asked.
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

}  // namespace
}  // namespace kvatlas
