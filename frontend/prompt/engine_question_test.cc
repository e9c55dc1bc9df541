#include "frontend/prompt/engine_question.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

BodyPrompt Body(RequestPath path, std::string body) {
  return {.path = path, .body = std::make_shared<const std::string>(std::move(body))};
}

std::string Asked(EngineKind engine, RequestPath path, std::string body) {
  const absl::StatusOr<EngineQuestion> question =
      TokenizeQuestion(engine, "m", Body(path, std::move(body)));
  return question.ok() ? question->body : std::string(question.status().message());
}

// If each key were compared with all earlier ones, this would take some 10^11 steps.
TEST(EngineQuestionTest, ManyKeysAreOnePass) {
  std::string body = R"({"messages":[],"a":1,"a":2)";
  for (int i = 0; i < 400'000; ++i) body += ",\"k" + std::to_string(i) + "\":1";
  EXPECT_EQ(Asked(EngineKind::kVllm, RequestPath::kChat, body + "}"),
            R"({"model":"m","messages":[]})");
  body = R"({"tokens":[1,2])";
  for (int i = 0; i < 400'000; ++i) body += ",\"k" + std::to_string(i) + "\":1";
  const absl::StatusOr<PromptTokens> answer = ReadEngineAnswer({}, 200, body + "}");
  ASSERT_TRUE(answer.ok());
  EXPECT_THAT(answer->tokens, ElementsAre(TokenId{1}, TokenId{2}));
}

std::string Rendered(RequestPath path, std::string body) {
  const absl::StatusOr<EngineQuestion> question =
      RenderQuestion(EngineKind::kVllm, "m", Body(path, std::move(body)));
  return question.ok() ? question->target + " " + question->body
                       : std::string(question.status().message());
}

TEST(EngineQuestionTest, VllmsTokenizeIsAskedForWhatItsChatReads) {
  EXPECT_EQ(Asked(EngineKind::kVllm, RequestPath::kChat,
                  R"({"model":"alias","stream":true,"temperature":0.1,)"
                  R"("messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function"}],)"
                  R"("chat_template_kwargs":{"enable_thinking":false},"tool_choice":"auto"})"),
            R"({"model":"m","messages":[{"role":"user","content":"hi"}],)"
            R"("tools":[{"type":"function"}],"chat_template_kwargs":{"enable_thinking":false}})");
}

TEST(EngineQuestionTest, VllmReadsReasoningContentAsReasoningInItsChatAlone) {
  EXPECT_EQ(Asked(EngineKind::kVllm, RequestPath::kChat,
                  R"({"messages":[{"role":"user","content":"\"reasoning_content\""},)"
                  R"({"role":"assistant","reasoning_content":"a","content":null,"reasoning":null},)"
                  R"({"role":"assistant","reasoning_content":"a","reasoning":"b"},)"
                  R"({"role":"assistant","reasoning_content":null,"content":"c"}]})"),
            R"({"model":"m","messages":[{"role":"user","content":"\"reasoning_content\""},)"
            R"({"role":"assistant","content":null,"reasoning":"a"},)"
            R"({"role":"assistant","reasoning":"b"},{"role":"assistant","content":"c"}]})");
}

TEST(EngineQuestionTest, VllmsEffortAndDocumentsAreVariablesOfTheTemplate) {
  EXPECT_EQ(Asked(EngineKind::kVllm, RequestPath::kChat,
                  R"({"messages":[],"reasoning_effort":"low","documents":[{"text":"d"}],)"
                  R"("chat_template_kwargs":{"reasoning_effort":"high","x":1e400}})"),
            R"({"model":"m","messages":[],"chat_template_kwargs":{"x":1e400,)"
            R"("documents":[{"text":"d"}],"reasoning_effort":"low","enable_thinking":true}})");
  EXPECT_THAT(
      Asked(EngineKind::kVllm, RequestPath::kChat, R"({"messages":[],"reasoning_effort":"none"})"),
      HasSubstr(R"({"reasoning_effort":"none","enable_thinking":false})"));
  EXPECT_THAT(Asked(EngineKind::kVllm, RequestPath::kChat,
                    R"({"messages":[],"reasoning_effort":"none",)"
                    R"("chat_template_kwargs":{"enable_thinking":true}})"),
              HasSubstr(R"({"enable_thinking":true,"reasoning_effort":"none"})"));
}

// Harmony takes the effort from the chat's own field, which /tokenize does not have.
TEST(EngineQuestionTest, AnAnswerInHarmonyToAnEffortIsNotTheChats) {
  const auto tokens_of = [](const std::string& effort, const std::string& tokens) {
    const auto question = TokenizeQuestion(
        EngineKind::kVllm, "m",
        Body(RequestPath::kChat, R"({"messages":[],"reasoning_effort":")" + effort + R"("})"));
    return ReadEngineAnswer(*question, 200, R"({"tokens":[)" + tokens + "]}").status();
  };
  EXPECT_TRUE(absl::IsUnimplemented(tokens_of("high", "200006,17360,200008,3575")));
  EXPECT_TRUE(tokens_of("medium", "200006,17360,200008,3575").ok());
  EXPECT_TRUE(tokens_of("high", "1,2,3,4").ok());
}

TEST(EngineQuestionTest, NumbersArePassedOnAsTheyAreWritten) {
  EXPECT_THAT(Asked(EngineKind::kVllm, RequestPath::kChat,
                    R"({"messages":[],"tools":[{"maximum":100000000000000000000, "x":NaN}]})"),
              HasSubstr(R"("tools":[{"maximum":100000000000000000000, "x":NaN}])"));
}

TEST(EngineQuestionTest, SglangsTokenizeGetsTheWholeChatButWhatOnlyItWouldObey) {
  EXPECT_EQ(
      Asked(EngineKind::kSglang, RequestPath::kChat,
            R"({"model":"alias","messages":[{"role":"assistant","reasoning_content":"r"}],)"
            R"("add_generation_prompt":false,"add_special_tokens":true,"prompt":"p","stream":true,)"
            R"("continue_final_message":true,"tool_choice":"none","reasoning_effort":"low",)"
            R"("reasoning":{"effort":"low"},"documents":[],"user":null})"),
      R"({"model":"m","messages":[{"role":"assistant","reasoning_content":"r"}],)"
      R"("continue_final_message":true,"tool_choice":"none","reasoning_effort":"low",)"
      R"("reasoning":{"effort":"low"},"documents":[]})");
}

TEST(EngineQuestionTest, OfSeveralPromptsTheFirstIsAskedFor) {
  EXPECT_EQ(Asked(EngineKind::kVllm, RequestPath::kCompletions,
                  R"({"prompt":["a\n","b"],"add_special_tokens":false})"),
            R"({"model":"m","prompt":"a\n","add_special_tokens":false})");
  EXPECT_EQ(Asked(EngineKind::kSglang, RequestPath::kSglangGenerate, R"({"text":["a","b"]})"),
            R"({"model":"m","prompt":"a"})");
}

TEST(EngineQuestionTest, SglangsCompletionsKnowNoAddSpecialTokensAndDropASuffix) {
  EXPECT_EQ(Asked(EngineKind::kSglang, RequestPath::kCompletions,
                  R"({"prompt":"a","add_special_tokens":false,"suffix":"b"})"),
            R"({"model":"m","prompt":"a"})");
}

TEST(EngineQuestionTest, WhatTokenizeCannotExpressIsNamed) {
  const std::pair<RequestPath, const char*> cases[] = {
      {RequestPath::kMessages, R"({"messages":[]})"},
      {RequestPath::kResponses, R"({"input":"a"})"},
      {RequestPath::kChat, R"({"messages":[],"truncate_prompt_tokens":5})"},
      {RequestPath::kChat, R"({"messages":[],"kv_transfer_params":{"prompt_token_ids":[1]}})"},
      {RequestPath::kChat, R"({"messages":[{"content":[{"type":"image_url"}]}]})"},
      {RequestPath::kCompletions, R"({"prompt":"a","suffix":"b"})"}};
  for (const auto& [path, body] : cases) {
    const absl::Status why = TokenizeQuestion(EngineKind::kVllm, "m", Body(path, body)).status();
    EXPECT_TRUE(absl::IsUnimplemented(why)) << body;
    EXPECT_THAT(std::string(why.message()), HasSubstr("/tokenize cannot express"));
  }
  EXPECT_THAT(Asked(EngineKind::kVllm, RequestPath::kChat,
                    R"({"messages":[],"kv_transfer_params":{"do_remote_decode":true}})"),
              HasSubstr("\"messages\""));
}

TEST(EngineQuestionTest, WhatTheDoorRefusesAndTokenizeDoesNotIsRefused) {
  for (const EngineKind engine : {EngineKind::kVllm, EngineKind::kSglang})
    EXPECT_TRUE(absl::IsInvalidArgument(
        TokenizeQuestion(engine, "m", Body(RequestPath::kCompletions, R"({"prompt":""})"))
            .status()));
  const BodyPrompt no_tools = Body(RequestPath::kChat, R"({"messages":[],"tools":[]})");
  EXPECT_TRUE(absl::IsInvalidArgument(TokenizeQuestion(EngineKind::kVllm, "m", no_tools).status()));
  EXPECT_TRUE(TokenizeQuestion(EngineKind::kSglang, "m", no_tools).ok());
}

TEST(EngineQuestionTest, RenderEndpointsGetTheClientsOwnBody) {
  EXPECT_EQ(Rendered(RequestPath::kChat,
                     R"({"model":"alias","messages":[],"reasoning_effort":"high","stream":true,)"
                     R"("stream_options":{},"truncate_prompt_tokens":5})"),
            R"(/v1/chat/completions/render {"model":"m","messages":[],"reasoning_effort":"high",)"
            R"("truncate_prompt_tokens":5,"mm_payload":"none"})");
  EXPECT_THAT(Rendered(RequestPath::kMessages, R"({"messages":[],"system":"s"})"),
              HasSubstr("/v1/messages/render {"));
  EXPECT_THAT(Rendered(RequestPath::kResponses, R"({"input":"a"})"),
              HasSubstr("/v1/responses/render {"));
  EXPECT_THAT(Rendered(RequestPath::kResponses, R"({"input":"a","previous_response_id":"r"})"),
              HasSubstr("previous_response_id"));
}

TEST(EngineQuestionTest, ARenderedPromptTellsItsItemsAndTheirHashes) {
  const EngineQuestion question;
  const auto answer = ReadEngineAnswer(
      question, 200,
      R"({"token_ids":[1,9,9,2,8,8,3],"features":{"mm_hashes":{"image":["a"],"audio":["b"]},)"
      R"("mm_placeholders":{"audio":[{"offset":4,"length":2}],"image":[{"offset":1,"length":2}]},)"
      R"("kwargs_data":null}})");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->items,
              ElementsAre(PromptItem{.offset = 1, .length = 2, .hash = MultimodalHash("a")},
                          PromptItem{.offset = 4, .length = 2, .hash = MultimodalHash("b")}));
  for (const char* bad : {R"({"image":[{"offset":6,"length":2}]})", R"({"image":[]})",
                          R"({"video":[]})", R"({"image":[{"offset":-1,"length":2}]})"}) {
    const std::string features =
        std::string(R"({"mm_hashes":{"image":["a"]},"mm_placeholders":)") + bad + "}";
    EXPECT_TRUE(absl::IsUnavailable(
        ReadEngineAnswer(question, 200,
                         R"({"token_ids":[1,9,9,2,8,8,3],"features":)" + features + "}")
            .status()))
        << bad;
  }
}

TEST(EngineQuestionTest, AnEngineWithoutAnEndpointIsToldFromOneWithoutTheModel) {
  EXPECT_TRUE(LacksEndpoint(404, R"({"detail":"Not Found"})"));
  EXPECT_TRUE(LacksEndpoint(403, R"({"error":{"message":"Scale-out endpoints are disabled."}})"));
  EXPECT_FALSE(LacksEndpoint(404, R"({"error":{"message":"The model `x` does not exist."}})"));
  EXPECT_FALSE(LacksEndpoint(400, "{}"));
}

}  // namespace
}  // namespace kvatlas
