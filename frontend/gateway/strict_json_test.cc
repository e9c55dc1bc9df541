#include "frontend/gateway/strict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::string_view kFields[] = {"model", "tokens", "deadline_ms"};

std::string Why(const Json& body) {
  const absl::Status bad = CheckFields(body, "/route", kFields);
  return std::string(bad.message());
}

TEST(StrictJsonTest, AFieldThatIsNoneIsNamedWithTheOneThatIsNear) {
  EXPECT_EQ(Why({{"model", 1}, {"tokens", 2}}), "");
  EXPECT_EQ(Why(Json::object()), "");
  EXPECT_EQ(
      Why({{"tokns", 1}}),
      "tokns is no field of /route; did you mean tokens? Fields are: model tokens deadline_ms");
  EXPECT_THAT(Why({{"deadline", 1}}), HasSubstr("did you mean deadline_ms?"));
  EXPECT_THAT(Why({{"", 1}}), StartsWith(" is no field"));
  EXPECT_THAT(Why({{"temperature", 1}}), Not(HasSubstr("did you mean")));
  EXPECT_LT(Why({{std::string(100'000, 'x'), 1}}).size(), 300u);
}

TEST(StrictJsonTest, OnlyTrueAndFalseAreBools) {
  bool value = false;
  EXPECT_TRUE(ReadBool({{"a", true}}, "a", &value).ok());
  EXPECT_TRUE(value);
  EXPECT_TRUE(ReadBool({{"a", nullptr}}, "a", &value).ok());
  EXPECT_TRUE(ReadBool(Json::object(), "a", &value).ok());
  EXPECT_TRUE(value);
  for (const Json& bad : {Json("yes"), Json(1), Json::array()}) {
    EXPECT_THAT(std::string(ReadBool({{"a", bad}}, "a", &value).message()),
                StartsWith("a is neither true nor false"));
  }
}

}  // namespace
}  // namespace kvatlas
