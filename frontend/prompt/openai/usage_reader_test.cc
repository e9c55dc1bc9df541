#include "frontend/prompt/openai/usage_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace kvatlas {
namespace {

constexpr char kAnswer[] =
    R"({"id": "x", "choices": [{"text": "a \"usage\" of words"}], "usage": {"prompt_tokens": 40,)"
    R"( "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 32}}})";

TEST(UsageReaderTest, AWholeAnswer) {
  UsageReader reader("application/json");
  reader.Add(kAnswer);
  const auto usage = reader.Finish();
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->prompt_tokens, 40u);
  EXPECT_EQ(usage->cached_tokens, 32u);
  EXPECT_EQ(usage->completion_tokens, 2u);
}

// If each key were compared with all earlier ones, this would take some 10^10 steps. 1e400 is a
// number that the parser refuses.
TEST(UsageReaderTest, ManyKeysAreOnePass) {
  std::string answer = R"({"usage":{"prompt_tokens":40},"x":1e400)";
  for (int i = 0; i < 100'000; ++i) answer += ",\"" + std::to_string(i) + "\":1";
  UsageReader large("application/json");
  large.Add(answer + "}");
  EXPECT_FALSE(large.Finish().has_value());
  UsageReader reader("application/json");
  reader.Add(answer.replace(answer.find("1e400"), 5, "1") + "}");
  const auto usage = reader.Finish();
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->prompt_tokens, 40u);
}

TEST(UsageReaderTest, TheResponsesApiHasOtherNames) {
  const std::string usage =
      R"("usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":32},"output_tokens":2})";
  UsageReader whole("application/json");
  whole.Add("{" + usage + "}");
  UsageReader stream("text/event-stream");
  stream.Add("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{" +
             usage + "}}\n\n");
  for (UsageReader* reader : {&whole, &stream}) {
    const auto got = reader->Finish();
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->prompt_tokens, 40u);
    EXPECT_EQ(got->cached_tokens, 32u);
    EXPECT_EQ(got->completion_tokens, 2u);
  }
}

TEST(UsageReaderTest, OfMessagesAllThatWasReadIsThePrompt) {
  UsageReader whole("application/json");
  whole.Add(R"({"type":"message","content":[],"usage":{"input_tokens":13,"output_tokens":2,)"
            R"("cache_read_input_tokens":96,"cache_creation_input_tokens":4}})");
  const auto got = whole.Finish();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->prompt_tokens, 113u);
  EXPECT_EQ(got->cached_tokens, 96u);
  EXPECT_EQ(got->completion_tokens, 2u);
  UsageReader uncounted("application/json");
  uncounted.Add(R"({"type":"message","usage":{"input_tokens":13,"output_tokens":2}})");
  EXPECT_EQ(uncounted.Finish()->prompt_tokens, 13u);
}

TEST(UsageReaderTest, TheEventsOfAStreamOfMessagesAddUp) {
  const std::string start =
      "event: message_start\ndata: "
      "{\"type\":\"message_start\",\"message\":{\"id\":\"x\",\"usage\":";
  const std::string delta =
      "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":";
  // SGLang's stream has the input tokens in its first event and the output tokens in its last.
  UsageReader sglang("text/event-stream");
  sglang.Add(start + R"({"input_tokens":13,"output_tokens":0,"cache_read_input_tokens":96}}})" +
             "\n\n" + delta + R"({"output_tokens":7}})" + "\n\n");
  auto got = sglang.Finish();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->prompt_tokens, 109u);
  EXPECT_EQ(got->cached_tokens, 96u);
  EXPECT_EQ(got->completion_tokens, 7u);
  // vLLM's stream has the cached tokens in its last event alone.
  UsageReader vllm("text/event-stream");
  vllm.Add(start + R"({"input_tokens":109,"output_tokens":0}}})" + "\n\n" + delta +
           R"({"input_tokens":13,"output_tokens":7,"cache_read_input_tokens":96}})" + "\n\n");
  got = vllm.Finish();
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->prompt_tokens, 109u);
  EXPECT_EQ(got->cached_tokens, 96u);
}

TEST(UsageReaderTest, SglangsGenerateSaysItInItsMetaInfo) {
  const std::string answer =
      R"({"text":"a","meta_info":{"id":"x","prompt_tokens":40,"completion_tokens":2,"cached_tokens":32}})";
  UsageReader whole("application/json");
  whole.Add(answer);
  UsageReader stream("text/event-stream");
  stream.Add("data: " + answer + "\n\ndata: [DONE]\n\n");
  for (UsageReader* reader : {&whole, &stream}) {
    const auto got = reader->Finish();
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->prompt_tokens, 40u);
    EXPECT_EQ(got->cached_tokens, 32u);
    EXPECT_EQ(got->completion_tokens, 2u);
  }
  UsageReader several("application/json");
  several.Add("[" + answer + "," + answer + "]");
  EXPECT_FALSE(several.Finish().has_value()) << "of two prompts";
}

// However the stream is divided into chunks.
TEST(UsageReaderTest, AStreamInPiecesOfAnySize) {
  const std::string stream =
      "data: {\"choices\": [{\"text\": \"usage\"}], \"usage\": null}\n\n: a comment\r\n"
      "event: x\ndata: " +
      std::string(kAnswer) + "\r\n\r\ndata: [DONE]\n\n";
  for (size_t size = 1; size <= stream.size(); ++size) {
    UsageReader reader("text/event-stream; charset=utf-8");
    EXPECT_FALSE(reader.began());
    for (size_t at = 0; at < stream.size(); at += size)
      reader.Add(std::string_view(stream).substr(at, size));
    EXPECT_TRUE(reader.began());
    const auto usage = reader.Finish();
    ASSERT_TRUE(usage.has_value()) << size;
    EXPECT_EQ(usage->cached_tokens, 32u) << size;
  }
}

TEST(UsageReaderTest, AStreamBeginsWithTheFirstEventThatTheEngineWorkedFor) {
  UsageReader reader("text/event-stream");
  reader.Add(
      ": waiting\n\nevent: response.created\r\ndata: {\"type\":\"response.created\"}\r\n\r\n");
  reader.Add("event: response.in_progress\ndata: {\"type\":\"response.in_progress\"}\n\n");
  EXPECT_FALSE(reader.began());
  reader.Add("event: response.output_item.added\ndata: {}\n\n");
  EXPECT_TRUE(reader.began());
  UsageReader unnamed("text/event-stream");
  unnamed.Add("event: response.created\ndata: {}\n\ndata: {\"choices\":[]}\n");
  EXPECT_TRUE(unnamed.began()) << "an event without a name";
}

TEST(UsageReaderTest, TheLastUsageCountsAlsoWithoutALineEnd) {
  UsageReader reader("text/event-stream");
  reader.Add("data: {\"usage\": {\"prompt_tokens\": 1}}\n\n");
  reader.Add("data: {\"usage\": {\"prompt_tokens\": 2}}");
  const auto usage = reader.Finish();
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->prompt_tokens, 2u);
  EXPECT_EQ(usage->cached_tokens, std::nullopt);
}

TEST(UsageReaderTest, WhatIsNotSaidIsNotKnown) {
  for (const char* answer :
       {"", "{}", "not json \"usage\"", R"({"usage": null})", R"({"usage": [1]})"}) {
    UsageReader reader("application/json");
    reader.Add(answer);
    EXPECT_FALSE(reader.Finish().has_value()) << answer;
  }
  UsageReader reader("application/json");
  reader.Add(R"({"usage": {"prompt_tokens": -1, "prompt_tokens_details": null}})");
  const auto usage = reader.Finish();
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->prompt_tokens, std::nullopt);
  EXPECT_EQ(usage->cached_tokens, std::nullopt);
}

TEST(UsageReaderTest, WhatIsTooLongIsPassedOver) {
  UsageReader whole("application/json");
  whole.Add(kAnswer);
  whole.Add(std::string(kUsageBytesMax, ' '));
  EXPECT_FALSE(whole.Finish().has_value());

  UsageReader stream("text/event-stream");
  stream.Add("data: {\"usage\": {\"prompt_tokens\": 7}, \"x\": \"");
  for (int i = 0; i < 3; ++i) stream.Add(std::string(kUsageBytesMax / 2, 'x'));
  stream.Add("\"}\n");
  EXPECT_FALSE(stream.Finish().has_value());
  UsageReader after("text/event-stream");
  after.Add("data: " + std::string(2 * kUsageBytesMax, 'x'));
  after.Add("\ndata: {\"usage\": {\"prompt_tokens\": 7}}\n");
  ASSERT_TRUE(after.Finish().has_value());
}

}  // namespace
}  // namespace kvatlas
