// Headers of gateways and clients about a request's model and standing: the model's name at the
// engine, and which requests are shed first.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "frontend/gateway/ext_proc/ext_proc_test_util.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;

constexpr char kAsked[] =
    R"({"model": "asked", "prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]})";

class ExtProcModelTest : public ExtProcServiceTest {
 protected:
  void SetUp() override {
    ExtProcServiceTest::SetUp();
    leaf_.SetFor("asked", {});  // no engine has it
  }
  static ext_proc::ProcessingRequest Renamed(std::string_view header) {
    return Request("POST", "/v1/completions", false, {{std::string(header), "m"}});
  }
};

TEST_F(ExtProcModelTest, TheEngineIsAskedForTheNameThatAHeaderSays) {
  for (const std::string_view header : kRewriteHeaders) {
    Stream stream = Open();
    stream.Write(Renamed(header));
    stream.Write(Body(kAsked, true));
    const ext_proc::ProcessingResponse headers = stream.Read();
    EXPECT_EQ(HeadersEndpoint(headers), "10.0.0.1:8000") << "by the prompt, of the other model";
    const std::string sent = Streamed(stream.Read().request_body()).body();
    EXPECT_EQ(sent, kIds) << "what the engine's own clients say";
    EXPECT_EQ(HeaderIn(headers.request_headers().response().header_mutation(), "content-length"),
              std::to_string(sent.size()));
    // Else the next one would be sent past a request that is still under way.
    stream.Write(Response("200", "application/json", true));
    stream.Read();
    EXPECT_EQ(frontend_->stats().in_flight, 0u);
  }
}

TEST_F(ExtProcModelTest, TheClientReadsTheNameThatItAskedFor) {
  Stream stream = Open();
  stream.Write(Renamed(kRewriteHeaders[0]));
  stream.Write(Body(kAsked, true));
  stream.Read();
  stream.Read();
  stream.Write(Response("200", "application/json"));
  EXPECT_THAT(stream.Read().response_headers().response().header_mutation().remove_headers(),
              ElementsAre("content-length"));
  std::string answer;
  for (const bool last : {false, true}) {
    stream.Write(ResponseBody(last ? R"("m", "text": "\"model\":\"m\""})" : R"({"model": )", last));
    const ext_proc::StreamedBodyResponse piece = Streamed(stream.Read().response_body());
    answer += piece.body();
    EXPECT_EQ(piece.end_of_stream(), last);
  }
  EXPECT_EQ(answer, R"({"model": "asked", "text": "\"model\":\"m\""})");
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ExtProcModelTest, AStreamOfEventsToo) {
  Stream stream = Open();
  stream.Write(Renamed(kRewriteHeaders[1]));
  stream.Write(Body(kAsked, true));
  stream.Read();
  stream.Read();
  stream.Write(Response("200", "text/event-stream"));
  stream.Read();
  std::string answer;
  for (const char* piece :
       {"data: {\"mod", "el\":\"m\"}\n\ndata: {\"model\"", ":\"m\"}\n\ndata: \"m"}) {
    stream.Write(ResponseBody(piece, false));
    answer += Streamed(stream.Read().response_body()).body();
  }
  stream.Write(ResponseTrailers());
  const ext_proc::ProcessingResponse rest = stream.Read();
  answer += Streamed(rest.response_body()).body();
  EXPECT_TRUE(stream.Read().has_response_trailers());
  EXPECT_EQ(answer, "data: {\"model\":\"asked\"}\n\ndata: {\"model\":\"asked\"}\n\ndata: \"m");
}

TEST_F(ExtProcModelTest, AProxyThatBuffersIsGivenTheBodies) {
  Stream stream = Open();
  stream.Write(Mode(ext_proc::BUFFERED, Renamed(kRewriteHeaders[0])));
  // Envoy 1.40 answers 500 where the length that the headers had is not that of the new body.
  EXPECT_THAT(stream.Read().request_headers().response().header_mutation().remove_headers(),
              ElementsAre("content-length"));
  stream.Write(Body(kAsked, true));
  const ext_proc::ProcessingResponse body = stream.Read();
  EXPECT_EQ(EndpointIn(body, body.request_body().response()), "10.0.0.1:8000");
  const std::string sent = body.request_body().response().body_mutation().body();
  EXPECT_EQ(sent, kIds);
  EXPECT_EQ(HeaderIn(body.request_body().response().header_mutation(), "content-length"),
            std::to_string(sent.size()));
  stream.Write(Response("200", "application/json"));
  stream.Read();
  stream.Write(ResponseBody(R"({"model":"m"})", true));
  EXPECT_EQ(stream.Read().response_body().response().body_mutation().body(),
            R"({"model":"asked"})");
}

TEST_F(ExtProcModelTest, WhatNamesNoModelOrThisOneGoesOnAsItIs) {
  for (const std::string& body : {std::string(R"({"input": "x"})"), std::string("no JSON"),
                                  std::string(R"({ "model" : "m", "input": "x"})")}) {
    Stream stream = Open();
    stream.Write(
        Request("POST", "/v1/embeddings", false, {{std::string(kRewriteHeaders[0]), "m"}}));
    stream.Write(Body(body, true));
    const ext_proc::ProcessingResponse headers = stream.Read();
    EXPECT_NE(HeadersEndpoint(headers), "");
    EXPECT_EQ(HeaderIn(headers.request_headers().response().header_mutation(), "content-length"),
              "");
    EXPECT_EQ(Streamed(stream.Read().request_body()).body(), body);
  }
}

// ---- Objectives ----

TEST_F(ExtProcModelTest, WhatIsBelowZeroIsShedFirst) {
  picker_options_.objectives = {{"batch", -1}, {"chat", 5}};
  overload_.queue_blocks = 10;
  Load busy;
  busy.waiting_prefill_blocks = 100;
  workers_.workers[0].load = busy;
  leaf_.Set(workers_);
  const auto says = [](std::string_view header, const std::string& objective) {
    return Request("POST", "/v1/completions", false, {{std::string(header), objective}});
  };
  for (const std::string_view header : kObjectiveHeaders) {
    EXPECT_EQ(Refused(says(header, "batch"), kIds), 429);
    EXPECT_EQ(refused_dropped_, "rejected-saturated");
    EXPECT_EQ(HeadersEndpoint(Ask(says(header, "chat"), kIds)), "10.0.0.2:8000");
    EXPECT_EQ(HeadersEndpoint(Ask(says(header, "unknown"), kIds)), "10.0.0.2:8000");
  }
  workers_.workers[0].load = Load{};
  leaf_.Set(workers_);
  EXPECT_NE(HeadersEndpoint(Ask(says(kObjectiveHeaders[0], "batch"), kIds)), "");
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

}  // namespace
}  // namespace kvatlas
