// Requests whose engines fail, and whose clients leave or read slowly.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/proxy_parts.h"
#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/await.h"
#include "indexer/net/tcp_buffers_test_util.h"

namespace kvatlas {
namespace {

using namespace std::string_literals;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// ---- Engines that fail ----

TEST_F(ProxyTest, WhenAnEngineIsNotThereTheNextOneAnswersAndItIsAvoided) {
  TestEngine engine(Says(kOk));
  Start({"http://" + ClosedPort().ToString(), engine.url()});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-worker: w1"),
                            HasSubstr("x-kvatlas-tried: w0 (")));
  EXPECT_EQ(frontend_->stats().suspects, 1u);
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), Not(HasSubstr("tried")));
}

// A worker's url leads back here, through a proxy in between that passes headers on.
TEST_F(ProxyTest, ARequestThatComesBackIsRefusedAndAnotherEngineTakesIt) {
  std::atomic<int> round = 0;
  TestEngine back([&](TestSocket& connection) {
    for (std::string request; !(request = connection.ReadMessage()).empty();) {
      ++round;
      connection.Send(Ask(request));
    }
  });
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(kOk);
  });
  Start({back.url(), engine.url()});
  EXPECT_THAT(
      Ask(Post("/v1/chat/completions", kChat, "x-kvatlas-hop: another\r\n")),
      AllOf(EndsWith("ok"), HasSubstr("tried: w0 (answered 508: its url leads back here)")));
  EXPECT_EQ(round, 1);
  EXPECT_THAT(got.text(), HasSubstr("x-kvatlas-hop: another, "));
}

TEST_F(ProxyTest, AFleetThatIsThisProxyAloneSaysSoInTheWordsOfTheApi) {
  std::atomic<int> round = 0;
  TestEngine back([&](TestSocket& connection) {
    for (std::string request; !(request = connection.ReadMessage()).empty();) {
      ++round;
      connection.Send(Ask(request));
    }
  });
  Start({back.url()});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, HasSubstr(" 508 "));
  EXPECT_THAT(std::string(ErrorOf(answer)["message"]), HasSubstr("leads back to it"));
  EXPECT_EQ(round, 1);
  EXPECT_THAT(Ask("GET /v1/models HTTP/1.1\r\nHost: front\r\n\r\n"), HasSubstr(" 508 "));
}

TEST_F(ProxyTest, SoManyProxiesAreARing) {
  TestEngine engine(Says(kOk));
  Start({engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat, "x-kvatlas-hop: 1, 2, 3, 4, 5, 6, 7\r\n")),
              EndsWith("ok"));
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat,
                       "x-kvatlas-hop: 1, 2, 3\r\nX-Kvatlas-Hop: 4, 5, 6, 7, 8\r\n")),
              HasSubstr(" 508 "));
}

TEST_F(ProxyTest, WhatHasNoBodyHasNoLength) {
  TestEngine engine(Says("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"));
  Start({engine.url()});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, HasSubstr(" 204 "));
  EXPECT_THAT(answer, Not(HasSubstr("content-length")));
}

TEST_F(ProxyTest, GetOfNothingSaysWhereThePageIs) {
  options_.page = [] { return "http://h:1/ui/"; };
  Start({});
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: front\r\n\r\n"),
              AllOf(HasSubstr(" 200 "), HasSubstr("http://h:1/ui/")));
}

TEST_F(ProxyTest, ABrowserAtTheRootIsSentToThePageWhereItCanReachIt) {
  std::string page = "http://127.0.0.1:1/ui/";
  options_.page = [&] { return page; };
  Start({});
  const auto browse = [&](const std::string& host) {
    return Ask("GET / HTTP/1.1\r\nHost: " + host +
               "\r\nAccept: text/html,application/xhtml+xml\r\n\r\n");
  };
  EXPECT_THAT(browse("localhost:8000"), AllOf(StartsWith("HTTP/1.1 307 "),
                                              HasSubstr("location: http://127.0.0.1:1/ui/\r\n")));
  EXPECT_THAT(browse("10.0.0.9:8000"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("http://127.0.0.1:1/ui/ of its own")));
  page = "https://0.0.0.0:1/ui/";
  EXPECT_THAT(browse("10.0.0.9:8000"), HasSubstr("location: https://10.0.0.9:1/ui/\r\n"));
  EXPECT_THAT(browse("[fe80::1]"), HasSubstr("location: https://[fe80::1]:1/ui/\r\n"));
}

TEST_F(ProxyTest, AnEngineThatClosesBeforeItsAnswerIsReplacedToo) {
  TestEngine closes([](TestSocket& connection) { connection.ReadMessage(); });
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    got.ReadFrom(connection);
    connection.Send(kOk);
  });
  Start({closes.url(), engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(EndsWith("ok"), HasSubstr("tried: w0 (")));
  EXPECT_THAT(got.text(), EndsWith(kChat));
}

// Nor does an SDK ask again by itself (findings/openai_asks_again.sh).
TEST_F(ProxyTest, AnEngineThatMayStillGenerateIsNotFollowedByASecondOne) {
  options_.engine.head_timeout = milliseconds(50);
  TestEngine works([](TestSocket& connection) {
    connection.ReadMessage();
    connection.ReadToEnd();
  });
  TestEngine engine(Says(kOk));
  Start({works.url(), engine.url()});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 504 "), Not(HasSubstr("retry-after")),
                            HasSubstr("x-should-retry: false\r\n"),
                            HasSubstr("x-kvatlas-tried: w0 (no answer in time)")));
  EXPECT_THAT(ErrorOf(answer)["message"].get<std::string>(), HasSubstr("--proxy_answer_timeout"));
  EXPECT_EQ(engine.connections(), 0u);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

constexpr char kStream[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

// Begins a stream with `first`, and goes on with `next` after a pause that is longer than the limit
// between pieces, which each answer to /v1/completions has run into before.
class ProxyPatienceTest : public ProxyTest {
 protected:
  void StartWith(std::string first, std::string next) {
    options_.engine.idle_timeout = milliseconds(1);
    options_.io_threads = 1;  // all answers are looked at together
    engine_ = std::make_unique<TestEngine>([this, first, next](TestSocket& connection) {
      if (connection.ReadMessage().starts_with("POST /v1/completions ")) {
        connection.Send(absl::StrCat(kStream, "data: {}\n\n"));
      } else {
        connection.Send(kStream + first);
        passed_.Wait();
        connection.Send(next);
      }
      connection.ReadToEnd();
    });
    Start({engine_->url()});
  }
  void PassTheLimit() {
    TestSocket silent(proxy_->address());
    silent.Send(Post("/v1/completions", R"({"model":"m","prompt":"x"})"));
    silent.ReadToEnd();
    EXPECT_THAT(reports_.WaitForEnd().error, HasSubstr("silent"));
    passed_.Open();
  }

  Gate passed_;
  std::unique_ptr<TestEngine> engine_;
};

// Engines send the head of a stream at once; its first event comes after the prefill.
TEST_F(ProxyPatienceTest, TheFirstEventOfAStreamMayTakeAsLongAsAHead) {
  StartWith("", "data: first\n\n");
  TestSocket client(proxy_->address());
  client.Send(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  PassTheLimit();
  EXPECT_THAT(client.ReadToEnd(), AllOf(HasSubstr("data: first"), Not(HasSubstr("\r\n0\r\n"))));
  EXPECT_THAT(reports_.WaitForEnd().error, HasSubstr("silent")) << "after it the limit counts";
}

TEST_F(ProxyPatienceTest, ThatAResponseWasCreatedIsNoEventThatTheEngineWorkedFor) {
  StartWith("event: response.created\ndata: {}\n\n",
            "event: response.output_item.added\ndata: worked\n\n");
  TestSocket client(proxy_->address());
  client.Send(Post("/v1/responses", R"({"model":"m","input":"hi"})"));
  EXPECT_THAT(client.ReadUntil("data: {}"), HasSubstr("response.created"));
  PassTheLimit();
  EXPECT_THAT(client.ReadToEnd(), HasSubstr("data: worked"));
}

TEST(ProxyOptionsTest, BodiesTakeAQuarterOfTheProcessesMemoryAtMost) {
  EXPECT_EQ(BodiesWithin(0, 100), 100u);
  EXPECT_EQ(BodiesWithin(80, 100), 20u);
  EXPECT_EQ(BodiesWithin(8000, 100), 100u);
}

// ---- Engines that say that they cannot ----

std::string Refusal(const std::string& status, const std::string& body) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nRetry-After: 7\r\nContent-Length: ", body.size(),
                      "\r\n\r\n", body);
}

TEST_F(ProxyTest, AnEngineThatAnswers503IsReplacedAndAvoided) {
  TestEngine refuses(Says(Refusal("503 Service Unavailable", "not now")));
  TestEngine engine(Says(kOk));
  Start({refuses.url(), engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("ok"),
                    HasSubstr("x-kvatlas-tried: w0 (answered 503)")));
  EXPECT_EQ(frontend_->stats().suspects, 1u);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
  for (int i = 0; i < 10; ++i)
    EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
                AllOf(EndsWith("ok"), Not(HasSubstr("tried"))));
}

TEST_F(ProxyTest, WhenAllEnginesRefuseTheClientGetsAnAnswerOfTheirs) {
  TestEngine first(Says(Refusal("502 Bad Gateway", "broken")));
  TestEngine second(Says(Refusal("503 Service Unavailable", std::string(100'000, 'x') + "end")));
  Start({first.url(), second.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 7"), EndsWith("xend"),
                    HasSubstr("tried: w0 (answered 502), w1 (answered 503)")));
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ProxyTest, AnEngineThatLimitsItsRateIsReplacedButNotAvoided) {
  TestEngine limits(Says(Refusal("429 Too Many Requests", "slower")));
  TestEngine engine(Says(kOk));
  Start({limits.url(), engine.url()});
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
                AllOf(EndsWith("ok"), HasSubstr("tried: w0 (answered 429)")));
  EXPECT_EQ(frontend_->stats().suspects, 0u);
}

TEST_F(ProxyTest, AnEngineWhoseAnswersAreAllErrorsIsAvoided) {
  TestEngine fails(Says("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops"));
  TestEngine engine(Says(kOk));
  Start({fails.url(), engine.url()});
  for (int i = 0; i < kFailuresInARow; ++i)
    EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
                AllOf(StartsWith("HTTP/1.1 500 "), EndsWith("oops")))
        << "the error may be the request's: no other engine is asked";
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), EndsWith("ok"));
}

TEST_F(ProxyTest, ErrorsBetweenGoodAnswersAreTheRequests) {
  std::atomic<int> asked = 0;
  TestEngine mixed([&](TestSocket& connection) {
    while (!connection.ReadMessage().empty())
      connection.Send(++asked % 3 == 0 ? kOk : "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n");
  });
  TestEngine engine(Says(kOk));
  Start({mixed.url(), engine.url()});
  for (int i = 0; i < 9; ++i)
    EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), HasSubstr("x-kvatlas-worker: w0"));
}

TestEngine::Serve SaysOnce(std::string answer) {
  return [answer](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send(answer);
    connection.ReadToEnd();
  };
}

TEST_F(ProxyTest, AnswersThatAreNoneAreAnEnginesFailure) {
  std::string passing;
  for (int i = 0; i < 2 * kPassingAnswersMax; ++i) passing += "HTTP/1.1 100 Continue\r\n\r\n";
  TestEngine endless(SaysOnce(passing));
  TestEngine switching(SaysOnce("HTTP/1.1 101 Switching Protocols\r\n\r\n"));
  TestEngine nothing(SaysOnce("HTTP/1.1 000 X\r\n\r\n"));
  TestEngine engine(Says(kOk));
  Start({endless.url(), switching.url(), nothing.url(), engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(EndsWith("ok"), HasSubstr("w0 (it answers 1xx without end)"),
                    HasSubstr("w1 (it answers with status 101)"),
                    HasSubstr("w2 (it answers with status 0)")));
}

TEST_F(ProxyTest, WhatAnEngineSaysInOurHeadersIsNotPassedOn) {
  TestEngine engine(
      Says("HTTP/1.1 200 OK\r\nX-Kvatlas-Worker: another\r\nContent-Length: 2\r\n\r\nok"));
  Start({engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(HasSubstr("x-kvatlas-worker: w0"), Not(HasSubstr("another"))));
}

TEST_F(ProxyTest, WhenNobodyTakesItTheClientHearsWhoWasAsked) {
  options_.tries = 2;
  const std::string closed = "http://" + ClosedPort().ToString();
  Start({closed, closed, closed});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(ErrorOf(answer)["type"], "ServiceUnavailableError");
  EXPECT_THAT(ErrorOf(answer)["message"].get<std::string>(),
              AllOf(HasSubstr("w0 ("), HasSubstr("w1 (")));
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ProxyTest, ADeadEngineIsTriedOnceAndTheClientHearsOfNoAddressAndWhenToComeAgain) {
  const Address closed = ClosedPort();
  Start({"http://" + closed.ToString()});
  for (const std::string& request :
       {Post("/v1/chat/completions", kChat), "GET /v1/models/m HTTP/1.1\r\nHost: h\r\n\r\n"s}) {
    const std::string answer = Ask(request);
    EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("retry-after: 1\r\n"),
                              Not(HasSubstr(closed.ToString()))));
    const std::string message = ErrorOf(answer)["message"].get<std::string>();
    EXPECT_EQ(message.find("w0 ("), message.rfind("w0 (")) << message;
  }
}

TEST_F(ProxyTest, AnEngineOfSeveralWorkersIsTriedOnce) {
  std::atomic<int> requests = 0;
  TestEngine closes([&](TestSocket& connection) {
    if (!connection.ReadMessage().empty()) ++requests;
  });
  TestEngine engine(Says(kOk));
  Start({closes.url(), closes.url() + "/", closes.url(), engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-worker: w3\r\n")));
  EXPECT_EQ(requests, 1);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ProxyTest, TokensAreMadeOnceHoweverManyEnginesFail) {
  TestEngine engine(Says(kOk));
  Start({"http://" + ClosedPort().ToString(), "http://" + ClosedPort().ToString(), engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-tried: w0 (")));
  EXPECT_EQ(tokenizer_.calls, 1);
}

TEST_F(ProxyTest, AnEnginesOwnErrorsArePassedOn) {
  TestEngine engine(Says("HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nretry-after: 9\r\n\r\nbusy"));
  Start({engine.url(), "http://127.0.0.1:1"});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(StartsWith("HTTP/1.1 503 Busy\r\nretry-after: 9\r\n"), EndsWith("busy")));
  EXPECT_EQ(reports_.WaitForEnd().error, "the engine answered 503");
}

TEST_F(ProxyTest, AnAnswerThatBreaksOffBreaksOffForTheClient) {
  TestEngine engine([](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nw");
  });
  Start({engine.url(), "http://127.0.0.1:1"});
  TestSocket client(proxy_->address());
  client.Send(Post("/v1/chat/completions", kChat));
  const std::string answer = client.ReadToEnd();
  EXPECT_THAT(answer, HasSubstr("hello"));
  EXPECT_THAT(answer, Not(HasSubstr("\r\n0\r\n")));
  EXPECT_THAT(reports_.WaitForEnd().error, HasSubstr("broken off"));
  EXPECT_EQ(frontend_->stats().suspects, 1u);
}

// ---- Clients that leave, or read slowly ----

TEST_F(ProxyTest, AClientThatLeavesBeforeTheAnswerTakesItsRequestAlong) {
  Gate left;
  TestEngine engine([&](TestSocket& connection) {
    connection.ReadMessage();
    connection.ReadToEnd();  // until the proxy closes
    left.Open();
  });
  Start({engine.url()});
  {
    TestSocket client(proxy_->address());
    client.Send(Post("/v1/chat/completions", kChat));
    ASSERT_TRUE(Await([&] { return engine.connections() > 0; }, std::chrono::seconds(60)));
  }
  left.Wait();
  EXPECT_TRUE(reports_.WaitForEnd().abandoned);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
  EXPECT_EQ(frontend_->stats().suspects, 0u);
}

TEST_F(ProxyTest, AClientThatLeavesAStreamEndsItAtTheEngine) {
  Gate left;
  TestEngine engine([&](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    while (connection.Send("1\r\nx\r\n")) {
    }
    left.Open();
  });
  Start({engine.url()});
  {
    TestSocket client(proxy_->address());
    client.Send(Post("/v1/chat/completions", kChat));
    client.ReadUntil("x");
  }
  left.Wait();
  EXPECT_TRUE(reports_.WaitForEnd().finished);
}

TEST_F(ProxyTest, ASlowReaderSlowsTheEngineAndGetsEverything) {
  constexpr size_t kPiece = 1 << 20;
  // The most that the buffers of both connections hold, and the proxy's one piece.
  const size_t buffered = 2 * (TcpSendBufferMax() + TcpReceiveBufferMax()) / kPiece + 2;
  const size_t pieces = 2 * buffered;
  std::atomic<size_t> sent = 0;
  TestEngine engine([&](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send(
        absl::StrCat("HTTP/1.1 200 OK\r\ncontent-length: ", kPiece * pieces, "\r\n\r\n"));
    const std::string piece(kPiece, 'y');
    while (sent < pieces && connection.Send(piece)) ++sent;
    connection.ReadMessage();
  });
  Start({engine.url()});
  TestSocket client(proxy_->address());
  client.Send(Post("/v1/chat/completions", kChat));
  client.ReadUntil("\r\n\r\n");
  ASSERT_TRUE(Await([&] { return sent >= 1; }, std::chrono::seconds(60)));
  EXPECT_LE(sent, buffered);
  size_t got = 0;
  for (size_t i = 0; i < pieces; ++i) got += client.Read(kPiece).size();
  EXPECT_EQ(got, kPiece * pieces);
}

TEST_F(ProxyTest, StopsWhileEverybodyIsBusy) {
  TestEngine engine([](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send("HTTP/1.1 200 OK\r\n\r\nx");
    connection.ReadToEnd();
  });
  Start({engine.url()});
  std::list<TestSocket> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(proxy_->address()).Send(Post("/v1/chat/completions", kChat));
    clients.back().ReadUntil("x");
  }
  proxy_->Stop();
  for (TestSocket& client : clients) client.ReadToEnd();
}

}  // namespace
}  // namespace kvatlas
