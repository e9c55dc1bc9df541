// The proxy between real sockets: what clients send, what engines get, and what comes back, byte
// for byte.

#include "frontend/gateway/http/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "frontend/gateway/route_metrics.h"
#include "indexer/base/await.h"

namespace kvatlas {
namespace {

using namespace std::string_literals;
using std::chrono::seconds;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

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

// One such request of any client, and no copy that is counted of its blocks is right any more.
TEST_F(ProxyTest, NoEngineIsAskedToAnnounceWhatItHoldsAlready) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    got.ReadFrom(connection);
    connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
  });
  Start({engine.url()});
  const std::string member = R"("kv_cache_report_mode":"full")";
  const std::string begin = R"({"model":"m","prompt":"hello","vllm_xargs":{)";
  Ask(Post("/v1/completions", begin + member + R"(}, "n": 1})"));
  EXPECT_THAT(got.text(),
              EndsWith("\r\n\r\n" + begin + std::string(member.size(), ' ') + R"(}, "n": 1})"));
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

// findings/uvicorn_ends_quietly.sh
TEST_F(ProxyTest, AnIdleConnectionThatTheEngineClosedIsReplacedUnnoticed) {
  std::atomic<int> closed = 0;
  TestEngine engine([&](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send(kOk);
    connection.Shutdown();  // though it did not say so
    ++closed;
  });
  Start({engine.url()});
  for (int i = 1; i <= 5; ++i) {
    const std::string answer = Ask(Post("/v1/chat/completions", kChat));
    EXPECT_THAT(answer, EndsWith("ok"));
    EXPECT_THAT(answer, Not(HasSubstr("tried")));
    // Else the next request might be under way to it already.
    ASSERT_TRUE(Await([&] { return closed == i; }, seconds(60)));
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

TEST_F(ProxyTest, PromptsWithoutTokensAreCountedByReason) {
  TestEngine engine(Says(kOk));
  Start({engine.url()});
  Ask(Post("/v1/completions", R"({"model":"other","prompt":"hello"})"));
  Ask(Post("/v1/completions", R"({"model":"m","prompt_embeds":"AAAA"})"));
  EXPECT_THAT(
      Ask(Post("/v1/embeddings", R"({"model":"m","input":"x"})")),
      HasSubstr("x-kvatlas-fallback: no_tokens: no prompt is read of POST /v1/embeddings\r\n"));
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), HasSubstr("x-kvatlas-fallback: none\r\n"));
  EXPECT_THAT(metrics_.Text(),
              AllOf(HasSubstr("kvatlas_frontend_no_tokens_total{reason=\"no_tokenizer\"} 1\n"),
                    HasSubstr("kvatlas_frontend_no_tokens_total{reason=\"unsupported\"} 1\n"),
                    HasSubstr("kvatlas_frontend_no_tokens_total{reason=\"path\"} 1\n"),
                    HasSubstr("kvatlas_frontend_no_tokens_total{reason=\"refused\"} 0\n")));
}

// vLLM's usage of a list has the sum of its prompts and what the last one found; of several
// choices, what the second one found.
TEST_F(ProxyTest, WhatAnEngineSaysOfSeveralPromptsIsNotHeldAgainstTheFirst) {
  const std::string body =
      R"({"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":8}}})";
  TestEngine engine(Says(absl::StrCat("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n",
                                      "content-length: ", body.size(), "\r\n\r\n", body)));
  Start({engine.url()});
  const auto cached = [&](const std::string& more) {
    Ask(Post("/v1/completions", absl::StrCat(R"({"model":"m",)", more, "}")));
    return reports_.WaitForEnd().cached_tokens;
  };
  EXPECT_EQ(cached(R"("prompt":"hello")"), 8u);
  EXPECT_EQ(cached(R"("prompt":["hello","you"])"), std::nullopt);
  EXPECT_EQ(cached(R"("prompt":[[1,2],[3]])"), std::nullopt);
  EXPECT_EQ(cached(R"("prompt":"hello","n":2)"), std::nullopt);
  EXPECT_EQ(cached(R"("prompt":[1,2,3])"), 8u);
}

TEST_F(ProxyTest, APromptThatIsTooLongToBeHashedIsRoutedByLoad) {
  TestEngine first(Says(kOk)), second(Says(kOk));
  Start({first.url(), second.url()});
  Ask(Post("/v1/completions",
           R"({"model":"m","prompt":"x"})"));  // so that the size of blocks is known
  const std::string text(size_t{4} * (kRouteBlocksMax + 1), 'x');
  const std::string answer =
      Ask(Post("/v1/completions", R"({"model":"m","prompt":")" + text + "\"}"));
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("no_tokens: "),
                            HasSubstr("x-kvatlas-overlap-blocks: 0")));
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
      for (std::string got; !(got = connection.ReadMessage()).empty();) {
        ++asked;
        connection.Send(got.starts_with("GET /v1/models ")
                            ? absl::StrCat("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n",
                                           "content-length: ", body.size(), "\r\n\r\n", body)
                            : kOk);
      }
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
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith(R"({"object":"list","data":[)"
                                                          R"({"id":"b","owned_by":"one"},)"
                                                          R"({"id":"a"},)"
                                                          R"({"id":"c","max_model_len":7}]})")));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(BodyOf(Ask(get)), BodyOf(answer));
  EXPECT_EQ(asked, 2) << "it is kept for a while";
  Ask("GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer x\r\n\r\n");
  EXPECT_EQ(asked, 4) << "but not for others";
}

TEST_F(ProxyTest, AModelIsTheEntryOfTheListWithItsIdWhicheverEngineHasIt) {
  const auto lists = [](const std::string& id) {
    const std::string body =
        R"({"object":"list","data":[{"id":")" + id + R"(","object":"model"}]})";
    return Says(absl::StrCat("HTTP/1.1 200 OK\r\ncontent-length: ", body.size(), "\r\n\r\n", body));
  };
  TestEngine first(lists("org/name")), second(lists("b"));
  engines_ = {{"w0", first.url()}, {"w1", second.url()}};
  Start({});
  for (const char* path : {"org/name", "org%2Fname", "org%2fname?x=1"})
    EXPECT_THAT(
        Ask(absl::StrCat("GET /v1/models/", path, " HTTP/1.1\r\nHost: h\r\n\r\n")),
        AllOf(StartsWith("HTTP/1.1 200 "), EndsWith(R"({"id":"org/name","object":"model"})")))
        << path;
  EXPECT_THAT(Ask("GET /v1/models/b HTTP/1.1\r\nHost: h\r\n\r\n"),
              EndsWith(R"({"id":"b","object":"model"})"));
  const std::string none = Ask("GET /v1/models/org HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(none, StartsWith("HTTP/1.1 404 "));
  EXPECT_EQ(ErrorOf(none)["code"], 404);
  EXPECT_THAT(ErrorOf(none)["message"].get<std::string>(),
              HasSubstr("The model `org` does not exist."));
}

TEST_F(ProxyTest, AHeadOfModelsHasTheHeadersOfAGet) {
  TestEngine engine(
      Says("HTTP/1.1 200 OK\r\ncontent-length: 29\r\n\r\n{\"data\":[{\"id\":\"m\",\"x\":123}]}"));
  engines_ = {{"w0", engine.url()}};
  Start({});
  const std::string got = Ask("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  TestSocket client(proxy_->address());
  client.Send("HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n") + BodyOf(got), got);
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

}  // namespace
}  // namespace kvatlas
