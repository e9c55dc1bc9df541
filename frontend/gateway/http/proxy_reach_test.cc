// Which engines a request goes to: two where one prefills and another decodes, and none that an
// announced url leads outside to.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "frontend/engine_client/engine_reach.h"
#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// ---- Prefill here, decode there ----

TEST_F(ProxyTest, WhoDecodesGetsTheRequestAndIsToldWhoPrefills) {
  LastMessage got;
  TestEngine prefill(Says(kOk));
  TestEngine decode([&](TestSocket& connection) {
    got.ReadFrom(connection);
    const std::string usage =
        R"({"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}})";
    connection.Send(absl::StrCat("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n",
                                 "content-length: ", usage.size(), "\r\n\r\n", usage));
    connection.ReadMessage();
  });
  cell_.roles = {"prefill", "decode"};
  Start({prefill.url(), decode.url()});
  const std::string answer =
      Ask(Post("/v1/chat/completions", kChat, "X-Prefiller-Host-Port: 10.0.0.1:1\r\n"));
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("x-kvatlas-worker: w0\r\n"),
                            HasSubstr("x-kvatlas-decode-worker: w1\r\n"),
                            HasSubstr("x-kvatlas-decode-cell: cell\r\n"),
                            HasSubstr("x-kvatlas-overlap-blocks: 8\r\n")));
  EXPECT_THAT(got.text(), EndsWith(std::string("\r\n\r\n") + kChat));
  EXPECT_THAT(got.text(),
              AllOf(HasSubstr("x-prefiller-host-port: " + prefill.address().ToString() + "\r\n"),
                    Not(HasSubstr("10.0.0.1:1"))));
  EXPECT_EQ(prefill.connections(), 0u) << "it is asked by who decodes";
  const RouteReport report = reports_.WaitForEnd();
  EXPECT_EQ(report.prompt_tokens, 40u);
  EXPECT_FALSE(report.cached_tokens.has_value()) << "the decoder's, of which nothing was promised";
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ProxyTest, AnotherDecoderIsTriedAndNothingIsHeldAgainstWhoPrefills) {
  TestEngine prefill(Says(kOk));
  TestEngine decode(Says(kOk));
  cell_.roles = {"prefill", "decode", "decode"};
  Start({prefill.url(), "http://" + ClosedPort().ToString(), decode.url()});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("x-kvatlas-worker: w0\r\n"),
                            HasSubstr("x-kvatlas-decode-worker: w2\r\n"),
                            HasSubstr("x-kvatlas-tried: w1 (")));
  EXPECT_EQ(frontend_->stats().suspects, 1u);
}

// ---- Which host a url leads to ----

TEST_F(ProxyTest, AWorkerWhoseUrlLeadsOutsideGetsNothing) {
  LastMessage got;
  TestEngine outside(Says(kOk), "127.0.0.2"), engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(kOk);
  });
  options_.engine.reach.addresses = *EngineAddresses::Parse({"127.0.0.1"});
  Start({outside.url(), engine.url()});
  const std::string secrets =
      "Authorization: Bearer s1\r\nProxy-Authorization: Basic s2\r\nCookie: s3\r\n";
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat, secrets)),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("x-kvatlas-worker: w1\r\n"),
                    HasSubstr("x-kvatlas-tried: w0 (its url leads outside --engine_addresses)")));
  EXPECT_THAT(got.text(), AllOf(HasSubstr("s1\r\n"), HasSubstr("s2\r\n"), HasSubstr("s3\r\n")));
  // The next one knows.
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), Not(HasSubstr("tried")));
  EXPECT_EQ(outside.connections(), 0u);
  EXPECT_THAT(metrics_.Text(), HasSubstr("kvatlas_frontend_proxy_outside_total 1\n"));
}

TEST_F(ProxyTest, ANameThatLeadsOutsideGetsNothing) {
  TestEngine engine(Says(kOk));
  options_.engine.reach.addresses = *EngineAddresses::Parse({"10.0.0.0/8"});
  options_.tries = 10;
  const std::string port = ":" + std::to_string(engine.address().port);
  Start({"http://localhost" + port, "http://127.1" + port, "http://2130706433" + port,
         "http://[::ffff:127.0.0.1]" + port, "http://0.0.0.0" + port});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("engine_addresses")));
  EXPECT_EQ(engine.connections(), 0u);
}

TEST_F(ProxyTest, WhomFlagsNameIsReachedAnywhere) {
  TestEngine engine(Says(kOk));
  options_.engine.reach.addresses = *EngineAddresses::Parse({"10.0.0.0/8"});
  options_.engine.reach.given->Set({engine.address().ToString()});
  Start({engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), StartsWith("HTTP/1.1 200 "));
}

// ---- Engines that were started with an API key ----

TEST_F(ProxyTest, AGivenEnginesApiKeyGoesWithNothingThatAStrangerAsks) {
  const std::string list =
      "HTTP/1.1 200 OK\r\ncontent-length: 22\r\n\r\n{\"data\":[{\"id\":\"m\"}]}\n";
  LastMessage got, of_label;
  TestEngine given([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(list);
  }),
      labelled([&](TestSocket& connection) {
        while (of_label.ReadFrom(connection)) connection.Send(list);
      });
  options_.engine.reach.given->Set({given.address().ToString()});
  options_.engine.reach.given->SetApiKey("k1");
  Start({given.url(), labelled.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(got.text(), Not(HasSubstr("uthorization")));
  Ask("GET /v1/models HTTP/1.1\r\nHost: front\r\n\r\n");
  EXPECT_THAT(got.text(), AllOf(StartsWith("GET /v1/models "), Not(HasSubstr("uthorization"))));
  EXPECT_THAT(of_label.text(), AllOf(StartsWith("GET /v1/models "), Not(HasSubstr("k1"))));
  Ask("GET /v1/models HTTP/1.1\r\nHost: front\r\nAuthorization: Bearer own\r\n\r\n");
  EXPECT_THAT(got.text(), AllOf(HasSubstr("Authorization: Bearer own\r\n"), Not(HasSubstr("k1"))));
}

TEST(EngineApiKeyTest, AFileThatIsNoKeyIsNamedWithoutWhatIsInIt) {
  const std::string path = testing::TempDir() + "/key";
  for (const std::string text : {"", "\n", "two words", "a\r\nb"}) {
    ASSERT_TRUE(WriteFileByRename(path, text, 0600).ok());
    const std::string why(ReadEngineApiKey(path).status().message());
    EXPECT_THAT(why, AllOf(HasSubstr("--engine_api_key_file"), HasSubstr(path),
                           Not(HasSubstr("two words"))));
  }
  ASSERT_TRUE(WriteFileByRename(path, "sk-1\n", 0600).ok());
  EXPECT_EQ(*ReadEngineApiKey(path), "sk-1");
  ASSERT_TRUE(WriteFileByRename(path, "sk-1\n", 0644).ok());
  EXPECT_FALSE(ReadEngineApiKey(path).ok());
}

TEST_F(ProxyTest, NobodyIsToldOfAPrefillerOutside) {
  LastMessage got;
  TestEngine outside(Says(kOk), "127.0.0.2"), prefill(Says(kOk)),
      decode([&](TestSocket& connection) {
        while (got.ReadFrom(connection)) connection.Send(kOk);
      });
  options_.engine.reach.addresses = *EngineAddresses::Parse({"127.0.0.1"});
  cell_.roles = {"prefill", "prefill", "decode"};
  Start({outside.url(), prefill.url(), decode.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("x-kvatlas-worker: w1\r\n"),
                    HasSubstr("x-kvatlas-decode-worker: w2\r\n")));
  EXPECT_THAT(got.text(),
              HasSubstr("x-prefiller-host-port: " + prefill.address().ToString() + "\r\n"));
  EXPECT_EQ(frontend_->stats().suspects, 1u);
}

TEST_F(ProxyTest, WithoutRolesNobodyIsToldOfAPrefiller) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    got.ReadFrom(connection);
    connection.Send(kOk);
  });
  Start({engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat, "X-Prefiller-Host-Port: 10.0.0.1:1\r\n")),
              AllOf(StartsWith("HTTP/1.1 200 "), Not(HasSubstr("decode"))));
  EXPECT_THAT(got.text(), AllOf(Not(HasSubstr("refiller")), Not(HasSubstr("10.0.0.1:1"))));
}

}  // namespace
}  // namespace kvatlas
