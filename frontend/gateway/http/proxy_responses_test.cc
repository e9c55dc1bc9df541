// Calls on a response that an engine made earlier.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/await.h"

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
      const bool made = got.starts_with("POST /v1/responses HTTP") &&
                        got.find("previous_response_id") == std::string::npos &&
                        got.find("item_reference") == std::string::npos;
      const bool known = made || got.find(id) != std::string::npos ||
                         got.find("msg_of_" + id) != std::string::npos;
      const std::string body = known ? absl::StrCat(R"({"id":")", id, R"("})") : "{}";
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
  // A choice that nothing came of is given back after the client has its answer.
  bool NothingIsInFlight() {
    return Await([&] { return frontend_->stats().in_flight == 0; }, std::chrono::seconds(60));
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

std::string After(const std::string& id) {
  return Post("/v1/responses",
              absl::StrCat(R"({"model":"m","input":"go on","previous_response_id":")", id, "\"}"));
}

TEST_F(ProxyResponsesTest, WhatGoesOnWithAResponseGoesToTheEngineThatMadeIt) {
  TestEngine first(Makes("resp_a")), second(Makes("resp_b"));
  Start({first.url(), second.url()});
  // The first one does not have it, and the other one has: from then on that one is asked alone.
  EXPECT_THAT(Ask(After("resp_b")),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith(R"({"id":"resp_b"})"),
                    HasSubstr("x-kvatlas-worker: w1\r\n"), HasSubstr("no_tokens: ")));
  EXPECT_EQ(frontend_->stats().suspects, 0u);
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(Ask(After("resp_b")),
                AllOf(EndsWith(R"({"id":"resp_b"})"), HasSubstr("x-kvatlas-worker: w1\r\n"),
                      Not(HasSubstr("tried"))));
  EXPECT_THAT(Ask(Post("/v1/responses", R"({"model":"m","input":"hi"})")),
              EndsWith(R"({"id":"resp_a"})"));
  EXPECT_THAT(Ask(After("resp_a")), AllOf(EndsWith(R"({"id":"resp_a"})"), Not(HasSubstr("tried"))));
  EXPECT_TRUE(NothingIsInFlight());
}

TEST_F(ProxyResponsesTest, ConversationsAndItemsAreWhereTheyWereMade) {
  TestEngine first(Says(kOk));
  TestEngine second([](TestSocket& connection) {
    while (!connection.ReadMessage().empty()) {
      connection.Send(
          "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
          "30\r\ndata: {\"response\":{\"id\":\"resp_b\",\"output\":[]}}\n\n\r\n");
      connection.Send(
          "30\r\ndata: {\"item\":{\"type\":\"message\",\"id\":\"msg_b\"}}\n\n\r\n0\r\n\r\n");
    }
  });
  Start({second.url()});
  EXPECT_THAT(Ask(Post("/v1/responses", R"({"model":"m","input":"hi","conversation":"conv_b"})")),
              HasSubstr("msg_b"));
  cell_.urls = {first.url(), second.url()};
  cell_.names = {"w9", "w0"};
  for (const char* more :
       {R"("input":"x","previous_response_id":"resp_b")", R"("input":"x","conversation":"conv_b")",
        R"("input":"x","conversation":{"id":"conv_b"})",
        R"("input":[{"type":"item_reference","id":"msg_b"}])"})
    EXPECT_THAT(Ask(Post("/v1/responses", absl::StrCat(R"({"model":"m",)", more, "}"))),
                AllOf(HasSubstr("x-kvatlas-worker: w0\r\n"), HasSubstr("msg_b")))
        << more;
  EXPECT_THAT(On("GET", "resp_b"), HasSubstr("msg_b"));
  EXPECT_EQ(first.connections(), 0u);
}

TEST_F(ProxyResponsesTest, WhoseMakerIsGoneTheOthersSayThatItIsNotThere) {
  TestEngine first(Makes("resp_a")), second(Makes("resp_b"));
  Start({second.url()});
  Ask(Post("/v1/responses", R"({"model":"m","input":"hi"})"));
  cell_.urls = {first.url()};
  cell_.names = {"w9"};
  EXPECT_THAT(Ask(After("resp_b")), AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("{}"),
                                          HasSubstr("x-kvatlas-worker: w9")));
  EXPECT_TRUE(NothingIsInFlight());
}

TEST_F(ProxyResponsesTest, WhatNoEngineHasStoredIsNotFoundInTheLastOnesWords) {
  TestEngine first(Makes("resp_a")), second(Makes("resp_b"));
  Start({first.url(), second.url()});
  EXPECT_THAT(Ask(After("resp_c")), AllOf(StartsWith("HTTP/1.1 404 "), EndsWith("{}")));
  EXPECT_EQ(first.connections(), 1u);
  EXPECT_EQ(second.connections(), 1u);
  EXPECT_EQ(frontend_->stats().suspects, 0u);
  EXPECT_TRUE(NothingIsInFlight());
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
