#include "tools/testing/mock_engine/mock_embeddings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

absl::StatusOr<std::vector<TokenId>> Bytes(const std::string& text) {
  return std::vector<TokenId>(text.begin(), text.end());
}

Json Ask(const std::string& body) {
  const absl::StatusOr<std::string> answer = MockEmbeddings(body, "m", Bytes);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? Json::parse(*answer) : Json();
}

std::string Refusal(const std::string& body) {
  const absl::StatusOr<std::string> answer = MockEmbeddings(body, "m", Bytes);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument) << body;
  return std::string(answer.status().message());
}

TEST(MockEmbeddingsTest, EveryFormOfInputHasAVectorEach) {
  const Json one = Ask(R"({"input":"ab"})");
  ASSERT_EQ(one["data"].size(), 1u);
  EXPECT_EQ(one["object"], "list");
  EXPECT_EQ(one["model"], "m");
  EXPECT_EQ(one["usage"]["prompt_tokens"], 2);
  const Json vector = one["data"][0]["embedding"];
  EXPECT_EQ(vector.size(), kEmbeddingDimensions);
  double squares = 0;
  for (const Json& value : vector) squares += value.get<double>() * value.get<double>();
  EXPECT_NEAR(squares, 1, 1e-5);
  EXPECT_EQ(Ask(R"({"input":[97,98]})")["data"], one["data"]);
  const Json both = Ask(R"({"input":["ab","c"]})");
  ASSERT_EQ(both["data"].size(), 2u);
  EXPECT_EQ(both["data"][0], one["data"][0]);
  EXPECT_EQ(both["data"][1]["index"], 1);
  EXPECT_NE(both["data"][1]["embedding"], vector);
  EXPECT_EQ(Ask(R"({"input":[[97,98],[99]]})")["data"], both["data"]);
}

TEST(MockEmbeddingsTest, Base64HasTheSameNumbers) {
  const Json floats = Ask(R"({"input":"ab","encoding_format":"float"})")["data"][0]["embedding"];
  const std::string text =
      Ask(R"({"input":"ab","encoding_format":"base64"})")["data"][0]["embedding"];
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(text, &bytes));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  EXPECT_EQ(floats.get<std::vector<float>>(), values);
}

TEST(MockEmbeddingsTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Refusal("nonsense"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("{}"), HasSubstr("input is missing"));
  for (const char* input : {"[]", "7", "{}", "null", "[[]]", R"(["a",7])", "[-1]", "[4294967296]"})
    EXPECT_THAT(Refusal(std::string(R"({"input":)") + input + "}"), HasSubstr("input is "))
        << input;
  EXPECT_THAT(Refusal(R"({"input":"a","encoding_format":"hex"})"), HasSubstr("\"hex\""));
}

}  // namespace
}  // namespace kvatlas
