// The proxy between real sockets: what clients send, what engines get, and what comes back, byte for byte.

#include "frontend/doors/http/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "frontend/doors/http/proxy_test_util.h"
#include "frontend/doors/http/socket_test_util.h"
#include "frontend/doors/route_metrics.h"
#include "indexer/service/engine_addresses.h"

namespace kvatlas {
namespace {

using namespace std::string_literals;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

// ---- What goes through ----

TEST_F(ProxyTest, TheEngineGetsTheVeryBytesAndTheClientItsAnswer) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    got.ReadFrom(connection);
    connection.Send(
        "HTTP/1.1 201 Made it\r\nX-Engine: a b\r\nSet-Cookie: 1\r\nset-cookie: 2\r\n"
        "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        "Content-Length: 5\r\n\r\na\0b\r\n"s);
    connection.ReadMessage();
  });
  Start({engine.url()});
  const std::string body =
      "{\"model\" : \"m\",\n \"messages\":[{\"role\":\"user\",\"content\":\"\\u00e9\"}]}  ";
  const std::string answer =
      Ask(Post("/v1/chat/completions?a=%20b", body,
               "Authorization: Bearer k\r\nConnection: keep-alive, X-Private\r\nX-Private: 1\r\n"
               "TE: trailers\r\nX-Kept: \t two words \r\n"));
  EXPECT_THAT(got.text(), StartsWith("POST /v1/chat/completions?a=%20b HTTP/1.1\r\n"));
  EXPECT_THAT(got.text(), EndsWith("\r\n\r\n" + body));
  EXPECT_THAT(got.text(),
              AllOf(HasSubstr("Authorization: Bearer k\r\n"), HasSubstr("X-Kept: two words\r\n"),
                    HasSubstr("host: " + engine.address().ToString() + "\r\n"),
                    Not(HasSubstr("X-Private")), Not(HasSubstr("TE:")), Not(HasSubstr("front"))));
  EXPECT_THAT(
      answer,
      StartsWith("HTTP/1.1 201 Made it\r\nX-Engine: a b\r\nSet-Cookie: 1\r\nset-cookie: 2\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\na\0b\r\n"s));
  EXPECT_THAT(answer, AllOf(Not(HasSubstr("X-Hop")), Not(HasSubstr("Keep-Alive"))));
  EXPECT_THAT(
      answer,
      AllOf(HasSubstr("x-kvatlas-worker: w0\r\n"), HasSubstr("x-kvatlas-cell: cell\r\n"),
            HasSubstr("x-kvatlas-decision: "), HasSubstr("x-kvatlas-fallback: none\r\n"),
            HasSubstr("x-kvatlas-overlap-blocks: 7\r\n")));  // of 8: the last token is computed
}

TEST_F(ProxyTest, EachPieceOfAStreamGoesOutBeforeTheNextIsThere) {
  Gate gates[3];
  TestEngine engine([&](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    gates[0].Wait();
    connection.Send("9\r\ndata: {\"a\r\n");
    gates[1].Wait();
    connection.Send("5\r\n\":1}\n\r\n1\r\n\n\r\n");
    gates[2].Wait();
    connection.Send("E\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    connection.ReadMessage();
  });
  Start({engine.url()});
  TestSocket client(proxy_->address());
  client.Send(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("transfer-encoding: chunked\r\n"));
  gates[0].Open();
  EXPECT_THAT(client.ReadUntil("{\"a"), EndsWith("data: {\"a"));
  gates[1].Open();
  EXPECT_THAT(client.ReadUntil("\n\n"), HasSubstr("\":1}\n"));
  gates[2].Open();
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), HasSubstr("data: [DONE]\n\n"));
}

TEST_F(ProxyTest, AnswersAreByteForByteWhateverTheirFraming) {
  std::string body;
  for (uint32_t i = 0; i < 300'000; ++i) body += static_cast<char>(i * 7919 >> 3);
  for (const std::string framing : {"length", "chunks", "end"}) {
    TestEngine engine([&](TestSocket& connection) {
      connection.ReadMessage();
      connection.Send("HTTP/1.1 200 OK\r\n");
      if (framing == "length") {
        connection.Send(absl::StrCat("content-length: ", body.size(), "\r\n\r\n", body));
      } else if (framing == "end") {
        connection.Send("\r\n" + body);
      } else {
        connection.Send("transfer-encoding: chunked\r\n\r\n");
        for (size_t at = 0, size = 1; at < body.size(); at += size, size = size * 3 % 9973 + 1) {
          const std::string chunk = body.substr(at, size);
          connection.Send(absl::StrCat(absl::Hex(chunk.size()), ";x=y\r\n", chunk, "\r\n"));
        }
        connection.Send("0\r\nx-trailer: 1\r\n\r\n");
      }
    });
    Start({engine.url()});
    const std::string answer = Ask(Post("/v1/completions", R"({"model":"m","prompt":"hello"})"));
    const std::string came = framing == "length" ? BodyOf(answer) : Dechunked(answer);
    EXPECT_EQ(came.size(), body.size()) << framing;
    EXPECT_TRUE(came == body) << framing;
    proxy_->Stop();
  }
}

TEST_F(ProxyTest, WhatTheEngineSaysItHadCachedIsReported) {
  TestEngine engine([&](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        "data: {\"choices\":[{}]}\n\ndata: {\"usage\":{\"prompt_tokens\":40,"
        "\"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\ndata: [DONE]\n\n");
  });
  Start({engine.url()});
  Ask(Post("/v1/chat/completions", kChat));
  const RouteReport report = reports_.WaitForEnd();
  EXPECT_EQ(report.cached_tokens, 32u);
  EXPECT_EQ(report.prompt_tokens, 40u);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

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

TEST_F(ProxyTest, ConnectionsAreKeptOnBothSides) {
  TestEngine engine(Says(kOk));
  Start({engine.url()});
  TestSocket client(proxy_->address());
  for (int i = 0; i < 5; ++i) {
    client.Send(Post("/v1/chat/completions", kChat));
    EXPECT_THAT(client.ReadMessage(), EndsWith("\r\n\r\nok"));
  }
  EXPECT_EQ(engine.connections(), 1u);
}

TEST_F(ProxyTest, ManyRequestsAtOnceOnOneConnectionAreAnsweredInTurn) {
  TestEngine engine([](TestSocket& connection) {
    for (std::string got; !(got = connection.ReadMessage()).empty();)
      connection.Send(absl::StrCat("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n",
                                   got.substr(got.find("?") + 1, 1)));
  });
  Start({engine.url()});
  TestSocket client(proxy_->address());
  std::string all;
  for (int i = 0; i < 9; ++i)
    all += Post("/v1/completions?" + std::to_string(i), R"({"model":"m","prompt":"a"})");
  client.Send(all);
  for (int i = 0; i < 9; ++i)
    EXPECT_THAT(client.ReadMessage(), EndsWith("\r\n\r\n" + std::to_string(i)));
}

TEST_F(ProxyTest, AnIdleConnectionThatTheEngineClosedIsReplacedUnnoticed) {
  TestEngine engine([](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send(kOk);  // and closes, though it did not say so
  });
  Start({engine.url()});
  for (int i = 0; i < 5; ++i) {
    const std::string answer = Ask(Post("/v1/chat/completions", kChat));
    EXPECT_THAT(answer, EndsWith("ok"));
    EXPECT_THAT(answer, Not(HasSubstr("tried")));
  }
  EXPECT_EQ(frontend_->stats().suspects, 0u);
}

TEST_F(ProxyTest, BodiesInChunksAndThoseThatWaitForAContinueArriveWhole) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) {
      connection.Send("HTTP/1.1 100 Continue\r\n\r\n");  // which is for us, not for the client
      connection.Send(kOk);
    }
  });
  Start({engine.url()});
  TestSocket client(proxy_->address());
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\ntransfer-encoding: chunked\r\n\r\n"
      "9\r\n{\"model\":\r\n14\r\n\"m\",\"prompt\":\"hello\"\r\n1\r\n}\r\n0\r\n\r\n");
  EXPECT_THAT(client.ReadMessage(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("ok")));
  EXPECT_THAT(got.text(),
              EndsWith("content-length: 30\r\n\r\n{\"model\":\"m\",\"prompt\":\"hello\"}"));
  client.Send(
      absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
                   "Content-Length: ",
                   strlen(kChat), "\r\n\r\n"));
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(kChat);
  EXPECT_THAT(client.ReadMessage(), EndsWith("ok"));
  EXPECT_THAT(got.text(), AllOf(EndsWith(kChat), Not(HasSubstr("Expect"))));
}

TEST_F(ProxyTest, OtherCallsGoToAnEngineOfTheirModelOrToAnyone) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) {
      connection.Send(
          got.text().starts_with("HEAD") ? "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" : kOk);
    }
  });
  Start({engine.url()});
  EXPECT_THAT(Ask("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"),
              HasSubstr("no engine is known yet"));
  EXPECT_THAT(Ask(Post("/v1/embeddings", R"({"model":"m","input":"x"})")), EndsWith("ok"));
  EXPECT_THAT(Ask("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"),
              AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-worker: w0")));
  EXPECT_THAT(got.text(), StartsWith("GET /v1/models HTTP/1.1\r\n"));
  TestSocket client(proxy_->address());
  client.Send("HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("content-length: 2\r\n"));
  EXPECT_THAT(got.text(), StartsWith("HEAD "));
  client.Send("DELETE /v1/responses/7 HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(client.ReadMessage(), EndsWith("ok"));
  EXPECT_THAT(got.text(), StartsWith("DELETE /v1/responses/7 "));
  EXPECT_THAT(Ask("GET /v2/models HTTP/1.1\r\nHost: h\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(ProxyTest, APromptThatNobodyCanMakeTokensOfIsRoutedByLoad) {
  TestEngine engine(Says(kOk));
  Start({engine.url()});
  const std::string answer = Ask(Post("/v1/completions", R"({"model":"other","prompt":"hello"})"));
  EXPECT_THAT(answer, AllOf(EndsWith("ok"),
                            HasSubstr("x-kvatlas-fallback: no_tokens: no such model: other")));
}

TEST_F(ProxyTest, ItsPortHasReadinessAndMetricsWithItsRoutes) {
  TestEngine engine(Says(kOk));
  const auto health = std::make_shared<ProcessHealth>();
  health->Set(Health::kServing);
  options_.health = health;
  Start({engine.url()});
  ExportRouteTotals(frontend_.get(), &metrics_);
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), EndsWith("ok"));
  EXPECT_THAT(Ask("GET /ready HTTP/1.1\r\nHost: h\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"),
              AllOf(HasSubstr("kvatlas_frontend_routes_total{fallback=\"none\"} 1\n"),
                    HasSubstr("kvatlas_frontend_route_seconds_count 1\n")));
  health->Set(Health::kLoading, "no hierarchy node or leaf has answered yet");
  EXPECT_THAT(Ask("GET /ready HTTP/1.1\r\nHost: h\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("has answered yet")));
  EXPECT_THAT(Ask("GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  health->SetDeaf("127.0.0.1:7430 takes no connections");
  EXPECT_THAT(Ask("GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("takes no connections")));
}

TEST_F(ProxyTest, FailedRoutesAreCountedInMetrics) {
  Start({});
  ExportRouteTotals(frontend_.get(), &metrics_);
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(metrics_.Text(), HasSubstr("kvatlas_frontend_routes_failed_total 1\n"));
}

TEST_F(ProxyTest, ModelsAreThoseOfAllEnginesInOneList) {
  std::atomic<int> asked = 0;
  const auto lists = [&](const std::string& models) -> TestEngine::Serve {
    return [&asked, body = R"({"object":"list","data":[)" + models + "]}"](TestSocket& connection) {
      for (std::string got; !(got = connection.ReadMessage()).empty(); ++asked)
        connection.Send(got.starts_with("GET /v1/models ")
                            ? absl::StrCat("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n",
                                           "content-length: ", body.size(), "\r\n\r\n", body)
                            : kOk);
    };
  };
  TestEngine first(lists(R"({"id":"b","owned_by":"one"},{"id":"a"})"));
  TestEngine second(lists(R"({"id":"b","owned_by":"two"},{"id":"c","max_model_len":7},{"x":1})"));
  TestEngine refuses(Says("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"));
  engines_ = {{"w0", first.url()},
              {"w1", second.url()},
              {"w2", "http://" + ClosedPort().ToString()},
              {"w3", refuses.url()},
              {"w4", first.url()}};
  Start({});
  const char get[] = "GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n";
  const std::string answer = Ask(get);
  EXPECT_THAT(answer,
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith(R"({"object":"list","data":[{"id":"a"},)"
                                                          R"({"id":"b","owned_by":"one"},)"
                                                          R"({"id":"c","max_model_len":7}]})")));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(BodyOf(Ask(get)), BodyOf(answer));
  EXPECT_EQ(asked, 2) << "it is kept for a while";
  Ask("GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer x\r\n\r\n");
  EXPECT_EQ(asked, 4) << "but not for others";
}

TEST_F(ProxyTest, EnginesThatFlagsNameAreAskedWhenNoLeafKnowsAWorker) {
  TestEngine engine(Says(kOk));
  engines_ = {{"e0", "http://" + ClosedPort().ToString()}, {"e1", engine.url()}};
  Start({});
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
                AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-worker: e1\r\n")));
}

TEST_F(ProxyTest, AResponseIsRoutedByItsPromptAsAChat) {
  TestEngine engine(Says(kOk));
  Start({engine.url()});
  EXPECT_THAT(Ask(Post("/v1/responses", R"({"model":"m","instructions":"be brief","input":"hi"})")),
              AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-fallback: none\r\n"),
                    Not(HasSubstr("x-kvatlas-overlap-blocks: 0\r\n"))));
  EXPECT_EQ(tokenizer_.calls, 1);
  EXPECT_THAT(
      Ask(Post("/v1/responses", R"({"model":"m","input":"hi","previous_response_id":"resp_1"})")),
      AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-fallback: no_tokens: ")));
  EXPECT_THAT(Ask(Post("/v1/responses", R"({"model":"m","input":7})")),
              StartsWith("HTTP/1.1 400 "));
}

// ---- What is refused ----

TEST_F(ProxyTest, BadBodiesAreRefusedInTheClientsOwnWordsNamingTheField) {
  TestEngine engine(Says(kOk));
  Start({engine.url()});
  const std::vector<std::pair<std::string, Json>> bad = {
      {"not json", nullptr},
      {R"({"messages":[{}]})", "model"},
      {R"({"model":7,"messages":[{}]})", "model"},
      {R"({"model":"m"})", "messages"},
      {R"({"model":"m","messages":"hello"})", "messages"},
      {R"({"model":"m","messages":[{}],"tools":{}})", "tools"}};
  for (const auto& [body, field] : bad) {
    const std::string answer = Ask(Post("/v1/chat/completions", body));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 "));
    const Json error = ErrorOf(answer);
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], field) << body;
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
  EXPECT_EQ(engine.connections(), 0u);
}

TEST_F(ProxyTest, ABodyThatIsTooLargeIsRefusedBeforeItIsRead) {
  options_.body_bytes_max = 1000;
  Start({"http://127.0.0.1:1"});
  const std::string answer =
      Ask("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413 "));
  EXPECT_EQ(ErrorOf(answer)["type"], "invalid_request_error");
}

TEST_F(ProxyTest, AFleetWithoutWorkersIsAnError) {
  Start({});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(ErrorOf(answer)["message"].get<std::string>(), HasSubstr("no worker of m"));
  EXPECT_EQ(ErrorOf(answer)["code"], "model_not_found");
}

TEST_F(ProxyTest, OnlyInferenceIsPassedOn) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(kOk);
  });
  Start({engine.url()});
  for (const char* path : {"/v1/load_lora_adapter", "/v1/files", "/v1/chat/completions/../x"}) {
    const std::string answer = Ask(Post(path, R"({"model":"m"})"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 ")) << path;
    EXPECT_EQ(ErrorOf(answer)["code"], "unknown_url");
    EXPECT_THAT(ErrorOf(answer)["message"].get<std::string>(), HasSubstr("POST /v1/embeddings"));
  }
  EXPECT_EQ(got.text(), "");
}

TEST_F(ProxyTest, FormsAreRoutedByLoadForTheirModel) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(kOk);
  });
  Start({engine.url()});
  const std::string form =
      "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\0\1\r\n"
      "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n"s;
  const std::string answer = Ask(
      Post("/v1/audio/transcriptions", form, "Content-Type: multipart/form-data; boundary=b\r\n"));
  EXPECT_THAT(answer, AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-worker: w0")));
  EXPECT_THAT(got.text(), EndsWith("\r\n\r\n" + form));
  // Without a model it goes to any engine, once one is known.
  EXPECT_THAT(Ask(Post("/v1/audio/transcriptions", "--b--",
                       "Content-Type: multipart/form-data; boundary=b\r\n")),
              EndsWith("ok"));
}

// It may be working on it.
TEST_F(ProxyTest, AnEngineThatMayHaveGotTheRequestNeverGetsItAgain) {
  std::atomic<int> requests = 0;
  TestEngine engine([&](TestSocket& connection) {
    if (connection.ReadMessage().empty()) return;
    if (++requests > 1) return;  // closes the kept connection without an answer
    connection.Send(kOk);
    if (!connection.ReadMessage().empty()) ++requests;
  });
  options_.io_threads = 1;  // the second request finds the first one's connection
  Start({engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), EndsWith("ok"));
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(requests, 2);
}

TEST_F(ProxyTest, AFleetOverItsThresholdsSendsClientsAwayForAWhile) {
  overload_.requests = 1;
  Gate asked, refused;
  TestEngine engine([&](TestSocket& connection) {
    connection.ReadMessage();
    asked.Open();
    refused.Wait();
    connection.Send(kOk);
  });
  Start({engine.url()});
  std::string first;
  std::thread client([&] { first = Ask(Post("/v1/chat/completions", kChat)); });
  asked.Wait();
  const std::string second = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(second, AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("retry-after: ")));
  EXPECT_EQ(ErrorOf(second)["type"], "rate_limit_error");
  refused.Open();
  client.join();
  EXPECT_THAT(first, EndsWith("ok"));
}

}  // namespace
}  // namespace kvatlas
