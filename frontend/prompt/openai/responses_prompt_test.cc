#include "frontend/prompt/openai/responses_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<ChatPrompt> Read(const char* body) { return ResponsesPrompt(Json::parse(body)); }

TEST(ResponsesPromptTest, InstructionsAndInputAreMessages) {
  const auto chat = Read(R"({"instructions": "be brief", "input": "hello"})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->messages.dump(),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"hello"}])");
  EXPECT_TRUE(chat->add_generation_prompt);
  EXPECT_TRUE(chat->tools.is_null());
}

TEST(ResponsesPromptTest, ItemsOfTextAndFunctionsAreConverted) {
  const auto chat = Read(R"({"input": [
      {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
      {"role": "user", "content": "c"}],
      "tools": [{"type": "function", "name": "f", "parameters": {"b": 1, "a": 2}, "strict": true}]})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->messages.dump(), R"([{"role":"user","content":[{"type":"text","text":"a"}]},)"
                                   R"({"role":"assistant","content":[{"type":"text","text":"b"}]},)"
                                   R"({"role":"user","content":"c"}])");
  EXPECT_EQ(chat->tools.dump(),
            R"([{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2}}}])");
}

TEST(ResponsesPromptTest, WhatEnginesMakeOfItIsNotGuessed) {
  for (const char* body :
       {R"({"input": "x", "previous_response_id": "r"})",
        R"({"input": "x", "prompt": {"id": "p"}})",
        R"({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]})",
        R"({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]})",
        R"({"input": "x", "tools": [{"type": "web_search"}]})"}) {
    EXPECT_EQ(Read(body).status().code(), absl::StatusCode::kUnimplemented) << body;
  }
  for (const char* body : {"{}", R"({"input": 7})", R"({"input": []})", R"({"input": ["x"]})",
                           R"({"input": "x", "instructions": 1})", R"({"input": "x", "tools": 1})",
                           R"({"input": [{"role": "user", "content": 7}]})"}) {
    EXPECT_EQ(Read(body).status().code(), absl::StatusCode::kInvalidArgument) << body;
  }
}

}  // namespace
}  // namespace kvatlas
