// Requests that the proxy refuses, in which words, and requests that it does not send twice.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"

namespace kvatlas {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::json;

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
    EXPECT_EQ(error["type"], "BadRequestError");
    EXPECT_EQ(error["param"], field) << body;
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
  EXPECT_EQ(engine.connections(), 0u);
}

TEST_F(ProxyTest, ABodyWithoutAModelMeansTheOnlyOneOfTheFleet) {
  TestEngine engine(Says(kOk));
  Start({engine.url()});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), EndsWith("ok"));
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}]})";
  EXPECT_THAT(Ask(Post("/v1/chat/completions", chat)),
              AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-fallback: none\r\n")));
  EXPECT_THAT(Ask(Post("/v1/embeddings", R"({"model":null,"input":"x"})")), EndsWith("ok"));
  EXPECT_THAT(Ask(Post("/v1/completions", R"({"prompt_embeds":"AAAA","max_tokens":"5"})")),
              AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-fallback: no_tokens: prompt_embeds")));
  // A second model.
  EXPECT_THAT(Ask(Post("/v1/completions", R"({"model":"other","prompt":[1]})")), EndsWith("ok"));
  const Json error = ErrorOf(Ask(Post("/v1/chat/completions", chat)));
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(error["message"], "model is missing; expected one of m, other");
}

TEST_F(ProxyTest, ABodyThatIsTooLargeIsRefusedBeforeItIsRead) {
  options_.body_bytes_max = 1000;
  Start({"http://127.0.0.1:1"});
  const std::string answer =
      Ask("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413 "));
  EXPECT_EQ(ErrorOf(answer)["type"], "BadRequestError");
  EXPECT_THAT(ErrorOf(answer)["message"].get<std::string>(), HasSubstr("at most 1000 bytes"));
}

// As gateways and cookies make them.
TEST_F(ProxyTest, HeadersOfAsMuchAsEnvoyTakesArePassedOn) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(kOk);
  });
  Start({engine.url()});
  const std::string cookie = absl::StrCat("Cookie: a=", std::string(60 << 10, 'c'), "b\r\n");
  TestSocket client(proxy_->address());
  client.Send(Post("/v1/chat/completions", kChat, cookie));
  EXPECT_THAT(client.ReadMessage(), EndsWith("ok"));
  EXPECT_THAT(got.text(), HasSubstr("cb\r\n"));
  // One after the other on a connection, and at once.
  const std::string plain = Post("/v1/chat/completions", kChat);
  client.Send(plain + Post("/v1/chat/completions", kChat, cookie) + plain);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(client.ReadMessage(), EndsWith("ok"));
  const std::string answer = Ask(Post(
      "/v1/chat/completions", kChat, absl::StrCat("Cookie: ", std::string(64 << 10, 'c'), "\r\n")));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 431 "));
}

TEST_F(ProxyTest, AFleetWithoutWorkersIsAnError) {
  Start({});
  const std::string answer = Ask(Post("/v1/chat/completions", kChat));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(ErrorOf(answer)["message"].get<std::string>(),
              HasSubstr("The model `m` does not exist."));
  EXPECT_EQ(ErrorOf(answer)["code"], 404);
}

TEST_F(ProxyTest, OnlyInferenceIsPassedOn) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(kOk);
  });
  Start({engine.url()});
  for (const char* path :
       {"/v1/load_lora_adapter", "/v1/files", "/v1/chat/completions/../x", "/sleep", "/"}) {
    const std::string answer = Ask(Post(path, R"({"model":"m"})"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 ")) << path;
    EXPECT_EQ(ErrorOf(answer)["code"], 404);
    EXPECT_THAT(ErrorOf(answer)["message"].get<std::string>(), HasSubstr("POST /v1/embeddings"));
  }
  EXPECT_EQ(got.text(), "");
}

TEST_F(ProxyTest, AnUnknownModelIsSaidAsVllmSaysItWhateverThePromptIs) {
  cell_.model = "m";
  Start({"http://" + ClosedPort().ToString()});
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/chat/completions", R"({"model":"nope","messages":[{"role":"user"}]})"},
           {"/v1/completions", R"({"model":"nope","prompt":"x"})"},
           {"/v1/completions", R"({"model":"nope","prompt":[1,2]})"},
           {"/v1/embeddings", R"({"model":"nope","input":"x"})"},
           {"/tokenize", R"({"model":"nope","prompt":"x"})"}}) {
    const std::string answer = Ask(Post(path, body));
    EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 404 "), Not(HasSubstr("retry-after")))) << path;
    EXPECT_EQ(Json::parse(BodyOf(answer)),
              Json::parse(R"({"error":{"message":"The model `nope` does not exist.",)"
                          R"("type":"NotFoundError","param":"model","code":404}})"))
        << path;
  }
  const std::string answer = Ask(Post("/v1/messages", R"({"model":"nope","messages":[]})"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 "));
  EXPECT_EQ(Json::parse(BodyOf(answer)),
            Json::parse(R"({"type":"error","error":{"type":"not_found_error",)"
                        R"("message":"The model `nope` does not exist."}})"));
}

TEST_F(ProxyTest, WhatOneEngineIsAskedGoesToOneOfTheModelOrToAny) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(kOk);
  });
  cell_.model = "m";
  options_.paths = *ProxiedPaths::With({"POST /sleep", "GET /kv_event_sources"});
  Start({engine.url()});
  EXPECT_THAT(
      Ask(Post("/tokenize", R"({"model":"m","prompt":"x"})")),
      AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-worker: w0\r\n"),
            HasSubstr("x-kvatlas-fallback: no_tokens: no prompt is read of POST /tokenize")));
  EXPECT_THAT(got.text(), StartsWith("POST /tokenize HTTP/1.1\r\n"));
  // The only model.
  EXPECT_THAT(Ask(Post("/detokenize", R"({"tokens":[1]})")), EndsWith("ok"));
  EXPECT_THAT(Ask(Post("/ping", "")), EndsWith("ok"));
  EXPECT_THAT(Ask(Post("/sleep", "")), EndsWith("ok"));
  for (const char* path : {"/version", "/ping", "/load", "/kv_event_sources"}) {
    EXPECT_THAT(Ask(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: h\r\n\r\n")), EndsWith("ok"));
    EXPECT_THAT(got.text(), StartsWith(absl::StrCat("GET ", path, " HTTP/1.1\r\n")));
  }
}

TEST_F(ProxyTest, AnotherMethodOfAKnownPathIsRefusedWithThoseThatItHas) {
  Start({});
  for (const auto& [call, allow] : std::vector<std::pair<std::string, std::string>>{
           {"GET /v1/chat/completions", "POST"},
           {"PUT /v1/responses/resp_1", "GET, HEAD, DELETE"},
           {"DELETE /v1/models", "GET, HEAD"},
           {"DELETE /v1/models/org/name", "GET, HEAD"}}) {
    const std::string answer = Ask(call + " HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("allow: " + allow + "\r\n")));
    EXPECT_EQ(ErrorOf(answer)["type"], "BadRequestError");
  }
}

TEST_F(ProxyTest, WhatIsNoJsonIsToldApartFromJsonThatIsNoObject) {
  Start({});
  const auto message = [&](const std::string& path, const std::string& body) {
    return ErrorOf(Ask(Post(path, body)))["message"].get<std::string>();
  };
  for (const char* path : {"/v1/chat/completions", "/v1/embeddings"}) {
    EXPECT_EQ(message(path, R"({"model": m})"), "the body is not JSON: wrong at byte 11");
    EXPECT_EQ(message(path, "[1]"), "the body is not a JSON object");
    EXPECT_EQ(message(path, ""), "the body is empty; expected a JSON object");
  }
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
  EXPECT_EQ(ErrorOf(second)["type"], "RateLimitError");
  refused.Open();
  client.join();
  EXPECT_THAT(first, EndsWith("ok"));
}

}  // namespace
}  // namespace kvatlas
