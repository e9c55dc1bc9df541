#include "tools/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <sstream>
#include <string>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

constexpr char kGood[] =
    R"({"timestamp": 5, "input_length": 1000, "output_length": 7, "hash_ids": [3, 9], "extra": {"a": 1}})";

absl::StatusOr<std::vector<TraceRequest>> Read(const std::string& text, size_t requests_max = 0) {
  std::istringstream in(text);
  return ReadTrace(in, "trace.jsonl", requests_max);
}

std::string ErrorOf(const std::string& text) {
  absl::StatusOr<std::vector<TraceRequest>> trace = Read(text);
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << text;
  // Without the forms that are told where the first line is none.
  const std::string message(trace.status().message());
  return message.substr(0, message.find("; expected JSON lines"));
}

// A file of these bytes, in gzip or not.
std::string FileOf(const std::string& bytes, bool gzip) {
  const std::string path = ::testing::TempDir() + "/trace";
  const gzFile file = gzopen(path.c_str(), gzip ? "wb" : "wbT");
  EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  EXPECT_EQ(gzclose(file), Z_OK);
  return path;
}

TEST(TraceTest, BailianHasSecondsIdsOf16TokensAndConversations) {
  const auto trace = Read(
      R"({"chat_id": 7, "parent_chat_id": -1, "timestamp": 1.25, "input_length": 9, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [5]})"
      "\n"
      R"({"chat_id": 9, "parent_chat_id": 7, "timestamp": 2.5, "input_length": 33, "output_length": 3, "type": "text", "turn": 2, "hash_ids": [5, 6, 8]})"
      "\n"
      R"({"chat_id": 11, "parent_chat_id": 9, "timestamp": 3, "input_length": 34, "output_length": 3, "type": "text", "turn": 3, "hash_ids": [5, 6, 9]})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3u);
  EXPECT_EQ((*trace)[0].timestamp_ms, 1250);
  EXPECT_EQ((*trace)[1].timestamp_ms, 2500);
  for (const TraceRequest& request : *trace) {
    EXPECT_EQ(request.id_tokens, 16u);
    EXPECT_EQ(request.session_id, "7");
  }
  // Blocks of 16, of 8 and of 32 tokens.
  EXPECT_EQ(PromptLocals((*trace)[1], 32).size(), 3u);
  EXPECT_EQ(PromptLocals((*trace)[1], 64).size(), 6u);
  const std::vector<SequenceHash> a = PromptBlocks((*trace)[1], 16),
                                  b = PromptBlocks((*trace)[2], 16);
  ASSERT_EQ(a.size(), 2u);
  ASSERT_EQ(b.size(), 2u);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[1], b[1]);
  EXPECT_EQ(TraceNote(*trace), "");
}

TEST(TraceTest, IdsOfFewerTokensAreKnownByTheLengths) {
  const auto line = [](int tokens, const char* ids) {
    return "{\"timestamp\": 1, \"input_length\": " + std::to_string(tokens) +
           ", \"output_length\": 1, \"hash_ids\": " + ids + "}\n";
  };
  const auto trace = Read(line(60, "[1]") + line(150, "[1, 2, 3]") + line(64, "[4]"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (const TraceRequest& request : *trace) EXPECT_EQ(request.id_tokens, 64u);
  EXPECT_EQ(ErrorOf(line(150, "[1, 2, 3]") + line(65, "[4]")),
            "trace.jsonl:2: input_length needs 2 hash_ids of 64 tokens, and there are 1");
  EXPECT_EQ(ErrorOf(line(65, "[4]") + line(150, "[1, 2, 3]")),
            "trace.jsonl:2: input_length needs 1 hash_ids of 512 tokens, and there are 3");
}

TEST(TraceTest, TurnsOfAnAiperfSessionComeADelayAfterTheOneBefore) {
  const auto trace = Read(
      R"({"session_id": "a", "timestamp": 100, "input_length": 600, "hash_ids": [1, 2]})"
      "\n"
      R"({"session_id": "a", "delay": 5000, "input_length": 1100, "output_length": 4, "hash_ids": [1, 2, 3]})"
      "\n"
      R"({"session_id": "b", "timestamp": 200, "input_length": 700})"
      "\n"
      R"({"session_id": "c", "delay": null, "input_length": 10})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 4u);
  EXPECT_EQ((*trace)[0].session_id, "c");
  EXPECT_EQ((*trace)[0].timestamp_ms, 0);
  EXPECT_EQ((*trace)[1].timestamp_ms, 100);
  EXPECT_EQ((*trace)[1].output_tokens, 1u);
  EXPECT_EQ((*trace)[2].session_id, "b");
  EXPECT_EQ((*trace)[2].hash_ids.size(), 2u);
  EXPECT_EQ((*trace)[3].timestamp_ms, 5100);
  EXPECT_THAT(TraceNote(*trace), HasSubstr("2 of 4 requests have lengths alone"));
  EXPECT_THAT(ErrorOf(R"({"timestamp": 1, "text_input": "a text", "output_length": 3})"),
              HasSubstr("text_input without input_length"));
}

TEST(TraceTest, TablesOfLengthsAreReadAndSaySo) {
  const auto burst = Read(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log "
      "Type\n"
      "5,x,2.5,ChatGPT,472,18,490,Conversation log\n"
      "45.5,y,1,GPT-4,1087,0,1087,API log\r\n");
  ASSERT_TRUE(burst.ok()) << burst.status();
  ASSERT_EQ(burst->size(), 2u);
  EXPECT_EQ((*burst)[1].timestamp_ms, 40500);
  EXPECT_EQ((*burst)[1].input_tokens, 1087u);
  EXPECT_EQ((*burst)[1].output_tokens, 0u);
  EXPECT_EQ((*burst)[1].session_id, "y");
  EXPECT_EQ((*burst)[1].hash_ids.size(), 3u);
  EXPECT_NE((*burst)[0].hash_ids[0], (*burst)[1].hash_ids[0]);
  EXPECT_THAT(TraceNote(*burst), HasSubstr("they show load"));
  const auto azure = Read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:15:46.6805900,374,44\n"
      "2023-11-16 18:15:50.1805900,396,109\n");
  ASSERT_TRUE(azure.ok()) << azure.status();
  EXPECT_EQ((*azure)[0].timestamp_ms, 0);
  EXPECT_NEAR((*azure)[1].timestamp_ms, 3500, 0.01);
  EXPECT_EQ((*azure)[1].output_tokens, 109u);
  const auto later = Read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-05-10 00:00:00.009930+00:00,2162,5\n");
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(ErrorOf("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n"),
            "trace.jsonl:2: the timestamp is 'noon', and no date with a time");
  EXPECT_EQ(ErrorOf("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n"),
            "trace.jsonl:2: 2 fields, and the header has 3");
}

TEST(TraceTest, GzipIsReadAndWhatIsBrokenIsRefused) {
  const auto trace = ReadTrace(FileOf(kGood, /*gzip=*/true));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->size(), 1u);
  EXPECT_TRUE(ReadTrace(FileOf(kGood, /*gzip=*/false)).ok());
  EXPECT_THAT(ReadTrace(FileOf("\x1f\x8b nonsense", /*gzip=*/false)).status().message(),
              HasSubstr("its gzip is broken"));
}

TEST(TraceTest, WhatIsNoTraceIsNamedWithTheFormsExpected) {
  for (const auto& [bytes, what] :
       {std::pair("PAR1\x15", "this is a Parquet file"),
        std::pair("time;prompt\n1;2\n", "parse error"), std::pair("a,b,c\n", "parse error"),
        std::pair("[{\"timestamp\": 1}]", "not a JSON object"), std::pair("", "the trace is empty"),
        std::pair("{\"time\": 1}", "input_length is missing"),
        std::pair("\x28\xb5\x2f\xfd..", "this is compressed by zstd")}) {
    const std::string message(Read(bytes).status().message());
    EXPECT_THAT(message, HasSubstr(what));
    for (const char* form : {"Mooncake", "Bailian", "aiperf", "BurstGPT", "Azure", "gzip"})
      EXPECT_THAT(message, HasSubstr(form));
  }
}

TEST(TraceTest, ReadsTheFieldsAndIgnoresOthers) {
  absl::StatusOr<std::vector<TraceRequest>> trace = Read(std::string(kGood) + "\n\n" + kGood);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].timestamp_ms, 5);
  EXPECT_EQ((*trace)[0].input_tokens, 1000u);
  EXPECT_EQ((*trace)[0].output_tokens, 7u);
  EXPECT_EQ((*trace)[0].hash_ids, (std::vector<uint64_t>{3, 9}));
}

TEST(TraceTest, ASessionIsATextOrANumberOrAbsent) {
  const std::string begin =
      R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1])";
  absl::StatusOr<std::vector<TraceRequest>> trace =
      Read(begin + "}\n" + begin + R"(, "session_id": "a-7"})" + "\n" + begin +
           R"(, "session_id": 42})" + "\n" + begin + R"(, "session_id": null})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 4u);
  EXPECT_EQ((*trace)[0].session_id, "");
  EXPECT_EQ((*trace)[1].session_id, "a-7");
  EXPECT_EQ((*trace)[2].session_id, "42");
  EXPECT_EQ((*trace)[3].session_id, "");
  EXPECT_EQ(ErrorOf(begin + R"(, "session_id": [1]})"),
            "trace.jsonl:1: session_id is neither text nor integer");
}

TEST(TraceTest, StopsAfterTheRequestsAskedFor) {
  absl::StatusOr<std::vector<TraceRequest>> trace = Read(std::string(kGood) + "\nnonsense", 1);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->size(), 1u);
}

TEST(TraceTest, ALineThatDoesNotParseIsNamedByFileLineAndReason) {
  EXPECT_THAT(ErrorOf(std::string(kGood) + "\n{\"timestamp\": 1,"),
              HasSubstr("trace.jsonl:2: parse error"));
  EXPECT_EQ(ErrorOf("[1]"), "trace.jsonl:1: not a JSON object");
}

TEST(TraceTest, AFieldThatIsMissingOrWrongIsNamed) {
  EXPECT_EQ(ErrorOf(R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})"),
            "trace.jsonl:1: timestamp is missing");
  EXPECT_EQ(ErrorOf(R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]})"),
            "trace.jsonl:1: timestamp is negative or not finite");
  EXPECT_EQ(
      ErrorOf(R"({"timestamp": 1, "input_length": "x", "output_length": 1, "hash_ids": [1]})"),
      "trace.jsonl:1: input_length is not a non-negative integer");
  EXPECT_EQ(
      ErrorOf(R"({"timestamp": 1, "input_length": 1, "output_length": 1e99, "hash_ids": [1]})"),
      "trace.jsonl:1: output_length is not a non-negative integer");
  EXPECT_EQ(
      ErrorOf(
          R"({"timestamp": 1, "input_length": 1, "output_length": 4294967296, "hash_ids": [1]})"),
      "trace.jsonl:1: output_length is too large");
  EXPECT_EQ(ErrorOf(R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 7})"),
            "trace.jsonl:1: hash_ids is not a list");
  EXPECT_EQ(ErrorOf(R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": []})"),
            "trace.jsonl:1: hash_ids is empty");
  EXPECT_EQ(
      ErrorOf(R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1, -2]})"),
      "trace.jsonl:1: hash_ids holds something that is not a non-negative integer");
}

TEST(TraceTest, ALengthThatContradictsTheIdsIsNamed) {
  const auto line = [](int tokens) {
    return "{\"timestamp\": 1, \"input_length\": " + std::to_string(tokens) +
           ", \"output_length\": 1, \"hash_ids\": [1, 2]}";
  };
  EXPECT_TRUE(Read(line(513)).ok());
  EXPECT_TRUE(Read(line(1024)).ok());
  EXPECT_EQ(ErrorOf(line(1024) + "\n" + line(512)),
            "trace.jsonl:2: input_length needs 1 hash_ids of 512 tokens, and there are 2");
  EXPECT_EQ(ErrorOf(line(1025)),
            "trace.jsonl:1: input_length needs 3 hash_ids of 512 tokens, and there are 2");
}

TEST(TraceTest, ATimeThatGoesBackIsNamed) {
  const std::string rest = ", \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n";
  const std::string first = "{\"timestamp\": 7" + rest;
  EXPECT_TRUE(Read(first + first).ok());
  EXPECT_EQ(ErrorOf(first + first + "{\"timestamp\": 6" + rest),
            "trace.jsonl:3: timestamp is before the last request's");
}

TEST(TraceTest, AnEmptyTraceAndAMissingFileAreErrors) {
  EXPECT_EQ(ErrorOf("\n \n"), "trace.jsonl: the trace is empty");
  EXPECT_EQ(ReadTrace("no/such/file").status().code(), absl::StatusCode::kNotFound);
}

TEST(TraceTest, EveryIdStandsForSplitBlocksWithAStablePrefix) {
  const TraceRequest one = {.hash_ids = {3, 9}};
  const TraceRequest two = {.hash_ids = {3, 8}};
  EXPECT_EQ(PromptLocals(one, 8).size(), 16u);
  const std::vector<SequenceHash> a = PromptBlocks(one, 8);
  const std::vector<SequenceHash> b = PromptBlocks(two, 8);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(a[i] == b[i], i < 8) << i;
  EXPECT_EQ(a, SequenceHashes(PromptLocals(one, 8)));
  EXPECT_EQ(
      LocalOfHashId(3, 1),
      LocalHash{Xxh3(std::string_view("\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 16), kDefaultHashSeed)});
}

}  // namespace
}  // namespace kvatlas
