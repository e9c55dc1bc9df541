#include "tools/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  return std::string(trace.status().message());
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
