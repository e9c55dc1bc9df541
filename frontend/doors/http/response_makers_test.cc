#include "frontend/doors/http/response_makers.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace kvatlas {
namespace {

KnownEngine At(std::string url) {
  KnownEngine engine;
  engine.url = std::move(url);
  return engine;
}

TEST(ResponseMakersTest, TheLastOnesAreKept) {
  ResponseMakers makers;
  for (size_t i = 0; i <= kResponsesMax; ++i)
    makers.Note("r" + std::to_string(i), At("http://e" + std::to_string(i % 2)));
  EXPECT_FALSE(makers.Of("r0").has_value());
  EXPECT_EQ(makers.Of("r1")->url, "http://e1");
  makers.Note("r1", At("http://other"));
  EXPECT_EQ(makers.Of("r1")->url, "http://other");
}

TEST(ResponseMakersTest, TheIdIsFoundOnceItIsWhole) {
  EXPECT_EQ(ResponseIdIn(R"({"id":"resp_1","object":"response","output":[{"id":"msg_1"}]})"),
            "resp_1");
  EXPECT_EQ(ResponseIdIn("event: response.created\ndata: {\"response\": {\"id\" : \"resp_2\", "),
            "resp_2");
  for (const char* none :
       {"", "ok", R"({"id)", R"({"id":)", R"({"id":"resp_)", R"({"id":7,"x":"y"})"})
    EXPECT_EQ(ResponseIdIn(none), std::nullopt) << none;
}

}  // namespace
}  // namespace kvatlas
