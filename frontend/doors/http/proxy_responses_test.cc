// Calls on a response that an engine made earlier.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "frontend/doors/http/proxy_test_util.h"
#include "frontend/doors/http/socket_test_util.h"

namespace kvatlas {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Makes the response `id`, and knows no other.
TestEngine::Serve Makes(const std::string& id) {
  return [id](TestSocket& connection) {
    for (std::string got; !(got = connection.ReadMessage()).empty();) {
      const bool known = got.starts_with("POST /v1/responses HTTP") ||
                         got.find("/v1/responses/" + id) != std::string::npos;
      const std::string body = known ? R"({"id":")" + id + R"("})" : "{}";
      connection.Send(absl::StrCat(
          "HTTP/1.1 ", known ? "200 OK" : "404 Not Found",
          "\r\ncontent-type: application/json\r\ncontent-length: ", body.size(), "\r\n\r\n", body));
    }
  };
}

class ProxyResponsesTest : public ProxyTest {
 protected:
  std::string On(const std::string& method, const std::string& path) {
    return Ask(absl::StrCat(method, " /v1/responses/", path, " HTTP/1.1\r\nHost: h\r\n",
                            method == "POST" ? "Content-Length: 0\r\n" : "", "\r\n"));
  }
};

TEST_F(ProxyResponsesTest, WhatIsDoneWithAResponseIsDoneByTheEngineThatMadeIt) {
  TestEngine first(Makes("resp_a")), second(Makes("resp_b"));
  Start({first.url(), second.url()});
  EXPECT_THAT(Ask(Post("/v1/responses", R"({"model":"m","input":"hi"})")),
              EndsWith(R"({"id":"resp_a"})"));
  EXPECT_EQ(second.connections(), 0u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(On("GET", "resp_a"), EndsWith(R"({"id":"resp_a"})"));
    EXPECT_THAT(On("GET", "resp_a/input_items"), StartsWith("HTTP/1.1 200 "));
    EXPECT_THAT(On("POST", "resp_a/cancel"), StartsWith("HTTP/1.1 200 "));
    EXPECT_THAT(On("DELETE", "resp_a"), StartsWith("HTTP/1.1 200 "));
  }
  EXPECT_EQ(second.connections(), 0u);
}

TEST_F(ProxyResponsesTest, EnginesAreAskedForAResponseOfUnknownMakerUntilOneHasIt) {
  TestEngine first(Makes("resp_a")), second(Makes("resp_b"));
  engines_ = {
      {"e0", "http://" + ClosedPort().ToString()}, {"e1", first.url()}, {"e2", second.url()}};
  Start({});
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(On("GET", "resp_a"), EndsWith(R"({"id":"resp_a"})"));
    EXPECT_THAT(On("POST", "resp_b/cancel"), EndsWith(R"({"id":"resp_b"})"));
  }
}

TEST_F(ProxyResponsesTest, AResponseThatNoEngineHasIsNotFoundInTheLastOnesWords) {
  TestEngine first(Makes("resp_a")), second(Makes("resp_b"));
  engines_ = {{"e1", first.url()}, {"e2", second.url()}};
  Start({});
  EXPECT_THAT(On("GET", "resp_c"),
              AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("{}"), HasSubstr("x-kvatlas-worker: e"),
                    Not(HasSubstr("tried"))));
  EXPECT_EQ(first.connections(), 1u);
  EXPECT_EQ(second.connections(), 1u);
}

}  // namespace
}  // namespace kvatlas
