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

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "frontend/doors/http/socket_test_util.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/route/finders.h"
#include "frontend/route/frontend.h"
#include "frontend/route/route_observer.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/service/engine_addresses.h"
#include "indexer/service/metrics.h"

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

// One cell, whose workers say where their engines are; the first holds more, and so is chosen while it is alive.
class OneCell : public CellFinder, public OverlapFinder {
 public:
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    callback(absl::UnavailableError("no hierarchy"));
  }
  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    WorkersAnswer answer{.workers = {}, .block_size = 4};
    auto labels = std::make_shared<LabelsByWorker>();
    for (size_t i = 0; i < urls.size(); ++i) {
      const HolderId worker{"w" + std::to_string(i), 0, ""};
      const auto blocks = static_cast<uint32_t>(question.sequence.size());
      answer.workers.push_back({.worker = worker,
                                .blocks = i == 0 ? blocks : 0,
                                .load = Load{.running_requests = static_cast<uint32_t>(i)}});
      (*labels)[worker] = {{"url", urls[i]}};
      if (i < roles.size()) (*labels)[worker]["role"] = roles[i];
    }
    answer.labels = labels;
    callback(std::move(answer));
  }
  std::vector<std::string> urls;
  std::vector<std::string> roles;
};

// A token for each letter; and what it was asked.
class LetterTokenizer : public PromptTokenizer {
 public:
  void Tokenize(const std::string& model, const Prompt& prompt, Duration,
                Callback callback) override {
    if (model != "m") return callback(absl::NotFoundError("no such model: " + model));
    std::string text;
    if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) {
      text = chat->messages.dump();
    } else {
      text = std::get<TextPrompt>(prompt).text;
    }
    PromptTokens tokens{.tokens = {}, .source = "letters"};
    for (char c : text) tokens.tokens.push_back(static_cast<unsigned char>(c));
    ++calls;
    callback(std::move(tokens));
  }
  std::atomic<int> calls = 0;
};

class Reports : public RouteObserver {
 public:
  void OnDecided(const Decided&) override {}
  void OnReported(uint64_t, const RouteReport& report, Time) override {
    MutexLock lock(&mutex_);
    reports_.push_back(report);
    changed_.SignalAll();
  }
  // The next one that says the request is over.
  RouteReport WaitForEnd() {
    MutexLock lock(&mutex_);
    while (true) {
      for (; seen_ < reports_.size(); ++seen_) {
        const RouteReport& report = reports_[seen_];
        if (report.finished || report.abandoned) return reports_[seen_++];
      }
      changed_.Wait(&mutex_);
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<RouteReport> reports_ ABSL_GUARDED_BY(mutex_);
  size_t seen_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::string Post(const std::string& path, const std::string& body, const std::string& more = "") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: front\r\n", more,
                      "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      body);
}

const char kChat[] = R"({"messages": [{"role":"user","content":"hello"}],  "model":"m"})";
const char kOk[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

// Says the same to everybody, for as long as they ask.
TestEngine::Serve Says(std::string answer) {
  return [answer](TestSocket& connection) {
    while (!connection.ReadMessage().empty()) connection.Send(answer);
  };
}

// What one thread tells another.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.SignalAll();
  }
  void Wait() {
    MutexLock lock(&mutex_);
    while (!open_) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

class ProxyTest : public testing::Test {
 protected:
  ~ProxyTest() override {
    if (proxy_ != nullptr) proxy_->Stop();
  }

  void Start(std::vector<std::string> urls) {
    cell_.urls = std::move(urls);
    FrontendOptions options;
    options.leaves = {{"cell", "leaf"}};
    options.deadline = seconds(5);
    options.observer = &reports_;
    options.overload = overload_;
    frontend_ = std::make_unique<Frontend>(options, &cell_, &cell_, &Clock::Real());
    router_ = std::make_unique<PromptRouter>(PromptRouterOptions(), frontend_.get(), &tokenizer_);
    options_.listen = {"127.0.0.1", 0};
    // However slow a test is, its engine sees no idle connection close.
    options_.engine.keep_idle = std::chrono::hours(1);
    proxy_ = std::make_unique<Proxy>(options_, frontend_.get(), router_.get(), &metrics_);
    ASSERT_TRUE(proxy_->Start().ok());
  }

  std::string Ask(const std::string& request) {
    TestSocket client(proxy_->address());
    EXPECT_TRUE(client.Send(request));
    return client.ReadMessage();
  }
  static Json ErrorOf(const std::string& answer) {
    return Json::parse(BodyOf(answer), nullptr, false)["error"];
  }

  OneCell cell_;
  LetterTokenizer tokenizer_;
  Reports reports_;
  Metrics metrics_;
  ProxyOptions options_;
  OverloadThresholds overload_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<PromptRouter> router_;
  std::unique_ptr<Proxy> proxy_;
};

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
            HasSubstr("x-kvatlas-decision: "), HasSubstr("x-kvatlas-fallback: own_cell\r\n"),
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

TEST_F(ProxyTest, AnEngineThatDoesNotAnswerInTimeIsReplacedToo) {
  options_.engine.head_timeout = milliseconds(50);
  options_.tries = 10'000;  // the good one's answer may be late too, where everybody is slow
  TestEngine hangs([](TestSocket& connection) {
    connection.ReadMessage();
    connection.ReadToEnd();
  });
  TestEngine engine(Says(kOk));
  Start({hangs.url(), engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(EndsWith("ok"), HasSubstr("no answer in time")));
}

TEST_F(ProxyTest, WhenNobodyTakesItTheClientHearsWhoWasAsked) {
  options_.tries = 2;
  const std::string closed = "http://" + ClosedPort().ToString();
  Start({closed, closed, closed});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(ErrorOf(answer)["type"], "server_error");
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
    while (engine.connections() == 0) std::this_thread::yield();
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
  constexpr size_t kPieces = 128;
  std::atomic<size_t> sent = 0;
  TestEngine engine([&](TestSocket& connection) {
    connection.ReadMessage();
    connection.Send(
        absl::StrCat("HTTP/1.1 200 OK\r\ncontent-length: ", kPiece * kPieces, "\r\n\r\n"));
    const std::string piece(kPiece, 'y');
    while (sent < kPieces && connection.Send(piece)) ++sent;
    connection.ReadMessage();
  });
  Start({engine.url()});
  TestSocket client(proxy_->address());
  client.Send(Post("/v1/chat/completions", kChat));
  client.ReadUntil("\r\n\r\n");
  while (sent < 1) std::this_thread::yield();
  // Sockets' buffers hold some megabytes, and the proxy one piece.
  EXPECT_LT(sent, kPieces / 2);
  size_t got = 0;
  for (size_t i = 0; i < kPieces; ++i) got += client.Read(kPiece).size();
  EXPECT_EQ(got, kPiece * kPieces);
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
