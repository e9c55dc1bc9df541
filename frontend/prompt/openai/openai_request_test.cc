#include "frontend/prompt/openai/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(OpenAiCallOfTest, OnlyPostsWithAPromptAreCalls) {
  EXPECT_EQ(OpenAiCallOf("POST", "/v1/completions"), OpenAiCall::kCompletion);
  EXPECT_EQ(OpenAiCallOf("POST", "/v1/chat/completions"), OpenAiCall::kChat);
  EXPECT_EQ(OpenAiCallOf("POST", "/team/v1/chat/completions?beta=1"), OpenAiCall::kChat);
  EXPECT_EQ(OpenAiCallOf("GET", "/v1/chat/completions"), std::nullopt);
  EXPECT_EQ(OpenAiCallOf("GET", "/v1/models"), std::nullopt);
  EXPECT_EQ(OpenAiCallOf("POST", "/v1/responses"), OpenAiCall::kResponses);
  EXPECT_EQ(OpenAiCallOf("POST", "/v1/responses/7/cancel"), std::nullopt);
  EXPECT_EQ(OpenAiCallOf("POST", "/v1/embeddings"), std::nullopt);
  EXPECT_EQ(OpenAiCallOf("POST", "/metrics?then=/v1/completions"), std::nullopt);
}

TEST(ParseOpenAiRequestTest, BracketsWithoutEndAreRefusedBeforeAnythingRecurses) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& body :
       {R"({"model":"m","messages":[{"role":"user","content":)" + deep + "}]}",
        R"({"model":"m","messages":)" + deep + "}",
        R"({"model":"m","messages":[],"tools":)" + deep + "}"}) {
    const auto request = ParseOpenAiRequest(OpenAiCall::kChat, body);
    EXPECT_THAT(std::string(request.status().message()), testing::HasSubstr("too deep"));
  }
  // Brackets in text are text.
  const std::string text = std::string(1000, '[') + R"(\")" + std::string(1000, '{');
  const auto request = ParseOpenAiRequest(
      OpenAiCall::kChat,
      R"({"model":"m","messages":[{"role":"user","content":")" + text + R"("}]})");
  EXPECT_TRUE(request.ok()) << request.status();
}

TEST(ParseOpenAiRequestTest, TokenIdsNeedNoTokenizer) {
  const auto request = ParseOpenAiRequest(
      OpenAiCall::kCompletion,
      R"({"model": "m", "prompt": [1, 2, 4294967295], "cache_salt": "s", "max_tokens": 7})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(request->cache_salt, "s");
  EXPECT_EQ(request->output_tokens_max, 7u);
  EXPECT_THAT(std::get<std::vector<TokenId>>(request->prompt), ElementsAre(1, 2, 4294967295));
}

TEST(ParseOpenAiRequestTest, TheFirstOfSeveralPromptsCounts) {
  auto request = ParseOpenAiRequest(OpenAiCall::kCompletion,
                                    R"({"model": "m", "prompt": ["one", "two"], "stream": true})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<TextPrompt>(request->prompt).text, "one");
  EXPECT_EQ(request->prompts, 2u);
  EXPECT_TRUE(request->stream);
  request =
      ParseOpenAiRequest(OpenAiCall::kCompletion, R"({"model": "m", "prompt": [[5, 6], [7]]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(std::get<std::vector<TokenId>>(request->prompt), ElementsAre(5, 6));
}

TEST(ParseOpenAiRequestTest, WhatIsNotSaidIsNotFilledIn) {
  auto request = ParseOpenAiRequest(OpenAiCall::kCompletion, R"({"model": "m", "prompt": "text"})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(std::get<TextPrompt>(request->prompt).add_special_tokens, std::nullopt);
  request = ParseOpenAiRequest(OpenAiCall::kChat,
                               R"({"model": "m", "messages": [{"role": "user"}], "tools": null})");
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& chat = std::get<ChatPrompt>(request->prompt);
  EXPECT_TRUE(chat.add_generation_prompt);
  EXPECT_EQ(chat.add_special_tokens, std::nullopt);
  EXPECT_EQ(chat.chat_template, std::nullopt);
  EXPECT_TRUE(chat.tools.is_null());
  EXPECT_TRUE(chat.template_kwargs.empty());
}

TEST(ParseOpenAiRequestTest, AChatKeepsItsOrderAndItsTemplateFields) {
  const auto request = ParseOpenAiRequest(OpenAiCall::kChat, R"({"model": "m",
      "messages": [{"role": "user", "content": "hi", "name": "z", "a": 1}],
      "tools": [{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}],
      "documents": [{"text": "d"}], "reasoning_effort": "low",
      "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "high"},
      "chat_template": "{{ x }}", "add_generation_prompt": false, "continue_final_message": true,
      "add_special_tokens": true})");
  ASSERT_TRUE(request.ok()) << request.status();
  const auto& chat = std::get<ChatPrompt>(request->prompt);
  EXPECT_EQ(chat.messages.dump(), R"([{"role":"user","content":"hi","name":"z","a":1}])");
  EXPECT_EQ(chat.tools.dump(), R"([{"type":"function","function":{"name":"f","b":1,"a":2}}])");
  EXPECT_EQ(chat.template_kwargs["enable_thinking"], false);
  EXPECT_EQ(chat.template_kwargs["reasoning_effort"], "high");
  EXPECT_EQ(chat.template_kwargs["documents"].size(), 1u);
  EXPECT_EQ(chat.chat_template, "{{ x }}");
  EXPECT_FALSE(chat.add_generation_prompt);
  EXPECT_TRUE(chat.continue_final_message);
  EXPECT_EQ(chat.add_special_tokens, true);
}

TEST(ParseOpenAiRequestTest, EitherIsAChatOnlyIfTheBodyHasMessages) {
  const auto is_chat = [](const char* body) {
    const auto request = ParseOpenAiRequest(OpenAiCall::kEither, body);
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() && std::holds_alternative<ChatPrompt>(request->prompt);
  };
  EXPECT_TRUE(is_chat(R"({"model": "m", "messages": [{}]})"));
  EXPECT_TRUE(is_chat(R"({"model": "m", "mess\u0061ges": [{}]})"));
  EXPECT_FALSE(is_chat(R"({"model": "m", "prompt": "messages"})"));
  EXPECT_FALSE(is_chat(R"({"model": "messages", "prompt": "x", "messages": null})"));
}

TEST(ParseOpenAiRequestTest, WhatIsNoPartOfThePromptIsNotJudged) {
  const auto read = [](const std::string& more) {
    return ParseOpenAiRequest(OpenAiCall::kCompletion, R"({"prompt": "x")" + more + "}");
  };
  for (const auto& [more, tokens] :
       std::vector<std::pair<std::string, size_t>>{{R"(, "max_tokens": 5.0)", 5},
                                                   {R"(, "max_tokens": "5")", 5},
                                                   {R"(, "max_tokens": "many")", 0},
                                                   {R"(, "max_tokens": -1)", 0},
                                                   {R"(, "max_tokens": 1e300)", 0},
                                                   {R"(, "max_tokens": [])", 0},
                                                   {R"(, "stream": "yes")", 0},
                                                   {R"(, "stream": 1)", 0}}) {
    const auto request = read(more);
    ASSERT_TRUE(request.ok()) << more << request.status();
    EXPECT_EQ(request->output_tokens_max, tokens) << more;
    EXPECT_EQ(request->model, "") << "engines with one model need no name";
  }
}

TEST(ParseOpenAiRequestTest, EmbeddingsInThePlaceOfAPromptAreNoPromptThatCouldBeRead) {
  const auto request =
      ParseOpenAiRequest(OpenAiCall::kCompletion, R"({"model": "m", "prompt_embeds": "AAAA"})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(absl::IsUnimplemented(request->no_prompt));
}

TEST(ParseOpenAiRequestTest, WhatIsWrongIsNamed) {
  const auto why = [](OpenAiCall call, const char* body) {
    const auto request = ParseOpenAiRequest(call, body);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << body;
    return std::string(request.status().message());
  };
  constexpr auto kText = OpenAiCall::kCompletion;
  constexpr auto kChat = OpenAiCall::kChat;
  EXPECT_THAT(why(kText, ""), HasSubstr("JSON"));
  EXPECT_THAT(why(kText, "[1]"), HasSubstr("JSON"));
  EXPECT_THAT(why(kText, R"({"model": 1, "prompt": "x"})"), HasSubstr("model"));
  EXPECT_THAT(why(kText, R"({"model": "m"})"), HasSubstr("prompt"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": []})"), HasSubstr("prompt"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": [1, -2]})"), HasSubstr("token ids"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": [4294967296]})"), HasSubstr("token ids"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": {"a": 1}})"), HasSubstr("prompt"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": "x", "cache_salt": 1})"), HasSubstr("salt"));
  EXPECT_THAT(why(kChat, R"({"model": "m"})"), HasSubstr("messages"));
  EXPECT_THAT(why(kChat, R"({"model": "m", "messages": ["hi"]})"), HasSubstr("messages"));
  EXPECT_THAT(why(kChat, R"({"model": "m", "messages": []})"), HasSubstr("messages is empty"));
  EXPECT_THAT(why(kChat, R"({"model": "m", "messages": [{}], "tools": {}})"), HasSubstr("tools"));
  EXPECT_THAT(why(kChat, R"({"model": "m", "messages": [{}], "chat_template_kwargs": 1})"),
              HasSubstr("chat_template_kwargs"));
}

}  // namespace
}  // namespace kvatlas
