// Reports to the frontend about its choices, from what a proxy says of the answer or from its
// silence.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "frontend/gateway/ext_proc/ext_proc_test_util.h"
#include "frontend/gateway/ext_proc/proxy_test_util.h"

namespace kvatlas {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Ne;

using ExtProcReportsTest = ExtProcServiceTest;

constexpr char kRefused[] =
    "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_"
    "Connection_refused}";

TEST_F(ExtProcReportsTest, AClientThatGoesWhileItIsBeingRoutedLeavesNothingInFlight) {
  leaf_.Hold();
  {
    Stream stream = Open();
    stream.Write(Completion());
    stream.Write(Body(kIds, true));
    leaf_.WaitAsked();
  }
  leaf_.LetGo();
  EXPECT_TRUE(reports_.Finished().abandoned);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ExtProcReportsTest, AClientThatGoesBeforeTheResponseLeavesNothingInFlight) {
  Ask(Completion(), kIds);
  EXPECT_TRUE(reports_.Finished().abandoned);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ExtProcReportsTest, AResponseThatBreaksOffIsFinishedWithoutFigures) {
  {
    Stream stream = Open();
    Pick(&stream);
    stream.Write(Response("200", "text/event-stream"));
    stream.Read();
    stream.Write(ResponseBody("data: {}\n\n", false));
    stream.Read();
  }
  const RouteReport report = reports_.Finished();
  EXPECT_TRUE(report.finished);
  EXPECT_EQ(report.cached_tokens, std::nullopt);
}

TEST_F(ExtProcReportsTest, AStreamThatEndsInTheMiddleOfTheBodyIsNoChoice) {
  Stream stream = Open();
  stream.Write(Completion());
  stream.Write(Body("{", false));
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(frontend_->stats().routes, 0u);
}

TEST_F(ExtProcReportsTest, AnEngineThatRefusesIsReported) {
  Stream stream = Open();
  Pick(&stream);
  stream.Write(Response("500", "application/json"));
  stream.Read();
  EXPECT_THAT(reports_.Finished().error, HasSubstr("500"));
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

// ---- Engines that are not there ----

TEST_F(ExtProcReportsTest, AnEngineThatWasNotReachedIsAvoided) {
  EXPECT_EQ(AnsweredInstead("503", kRefused, "10.0.0.1:8000"), "10.0.0.1:8000");
  const RouteReport report = reports_.Finished();
  EXPECT_TRUE(report.decode_unreachable);
  EXPECT_FALSE(report.unreachable);
  EXPECT_THAT(report.error, HasSubstr("the gateway answered 503: upstream_reset"));
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
  EXPECT_EQ(frontend_->stats().suspects, 1u);
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.2:8000");
}

TEST_F(ExtProcReportsTest, AConnectionThatNobodyAnswersIsOneThatIsRefused) {
  AnsweredInstead("503", "upstream_reset_before_response_started{connection_timeout}", "");
  EXPECT_TRUE(reports_.Finished().decode_unreachable)
      << "of one endpoint it need not be said which";
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.2:8000");
}

// Gateways that are not configured to say why: Istio, Envoy AI Gateway.
TEST_F(ExtProcReportsTest, WithoutAttributesEnvoysOwnWordsSayThatAnEngineWasNotReached) {
  const std::string words =
      "upstream connect error or disconnect/reset before headers. retried and the latest reset "
      "reason: ";
  const auto answered = [&](const std::string& text, size_t piece) {
    Stream stream = Open();
    Pick(&stream);
    stream.Write(Response("503", "text/plain"));
    EXPECT_TRUE(stream.Read().has_response_headers());
    for (size_t at = 0; at < text.size(); at += piece) {
      stream.Write(ResponseBody(text.substr(at, piece), at + piece >= text.size()));
      stream.Read();
    }
    EXPECT_TRUE(stream.Finish().ok());
  };
  answered("the engine is busy", 100);
  answered(words + "overflow", 100);
  answered(words + "local connection failure", 100);
  answered(words + "connection termination", 100);
  answered("{\"error\": \"" + words + "remote connection failure\"}", 100);
  EXPECT_EQ(frontend_->stats().suspects, 0u);
  answered(words +
               "remote connection failure, transport failure reason: delayed connect error: "
               "Connection refused",
           7);
  EXPECT_EQ(frontend_->stats().suspects, 1u);
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.2:8000");
  for (int i = 0; i < 4; ++i) {
    Stream get = Open();
    get.Write(Request("GET", "/v1/models", true));
    EXPECT_EQ(HeadersEndpoint(get.Read()), "10.0.0.2:8000") << "turns pass it over too";
  }
}

TEST_F(ExtProcReportsTest, WhatAnEngineAnswersOrAProxyGivesUpIsNotHeldAgainstIt) {
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"503", ""},
      {"503", "via_upstream"},
      {"503", "upstream_reset_before_response_started{connection_termination}"},
      {"503", "upstream_reset_before_response_started{local_connection_failure}"},
      {"503", "upstream_reset_before_response_started{overflow}"},
      {"504", "response_timeout"},
      {"503", "no_healthy_upstream"},
      {"503", "cluster_not_found"}};
  for (const auto& [status, details] : kinds) {
    SCOPED_TRACE(details);
    EXPECT_EQ(AnsweredInstead(status, details, "10.0.0.1:8000"), "10.0.0.1:8000");
    EXPECT_EQ(frontend_->stats().suspects, 0u);
  }
}

TEST_F(ExtProcReportsTest, OfTwoWhoDecodesIsTheOneThatWasNotReached) {
  SetRole("near", "prefill");
  SetRole("far", "decode");
  AddWorker("other", 0, "10.0.0.3:8000");
  SetRole("other", "decode");
  const std::string decoder = AnsweredInstead("503", kRefused, "");
  EXPECT_NE(decoder, "10.0.0.1:8000");
  EXPECT_TRUE(reports_.Finished().decode_unreachable);
  EXPECT_FALSE(reports_.Finished().unreachable) << "no prefill worker was asked for";
  EXPECT_EQ(frontend_->stats().suspects, 1u);
  const ext_proc::ProcessingResponse next = Ask(Completion(), kIds);
  EXPECT_THAT(HeadersEndpoint(next), AllOf(Ne(decoder), Ne("10.0.0.1:8000")));
  EXPECT_EQ(HeaderIn(next.request_headers().response().header_mutation(), kPrefillerHeader),
            "10.0.0.1:8000");
}

TEST_F(ExtProcReportsTest, OfSeveralEndpointsTheOneThatWasAskedLastIsAvoided) {
  picker_options_.endpoints_best = 2;
  AnsweredInstead("503", kRefused, "10.9.9.9:1");
  AnsweredInstead("503", kRefused, "");
  EXPECT_EQ(frontend_->stats().suspects, 0u) << "no worker is known there; it may be either";
  EXPECT_EQ(AnsweredInstead("503", kRefused, "10.0.0.2:8000"), "10.0.0.1:8000,10.0.0.2:8000");
  EXPECT_FALSE(reports_.Finished().decode_unreachable) << "the first failure has no reason";
  EXPECT_EQ(frontend_->stats().suspects, 1u);
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.1:8000")
      << "a suspect is not named to retry";
}

TEST_F(ExtProcReportsTest, ARequestWithoutAPromptGoesToOthersThanWhoWasNotReached) {
  const auto get = [this](const std::string& details, const std::string& upstream) {
    Stream stream = Open();
    stream.Write(Request("GET", "/v1/models", true));
    const std::string endpoint = HeadersEndpoint(stream.Read());
    stream.Write(Because(details, upstream, Response("503", "text/plain", true)));
    EXPECT_TRUE(stream.Read().has_response_headers());
    EXPECT_TRUE(stream.Finish().ok());
    return endpoint;
  };
  EXPECT_EQ(get(kRefused, "10.0.0.1:8000"), "10.0.0.1:8000");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(get("via_upstream", "10.0.0.2:8000"), "10.0.0.2:8000");
  EXPECT_EQ(get("via_upstream", "10.0.0.1:8000"), "10.0.0.2:8000");
  EXPECT_EQ(get("via_upstream", "10.0.0.1:8000"), "10.0.0.1:8000") << "a request reached it";
  EXPECT_EQ(reports_.count(), 0u);
}

TEST_F(ExtProcReportsTest, WhoServedIsSeenByTheAddressToo) {
  picker_options_.endpoints_best = 2;
  Stream stream = Open();
  Pick(&stream);
  stream.Write(Because("via_upstream", "10.0.0.2:8000", Response("200", "application/json")));
  stream.Read();
  stream.Write(ResponseBody(std::string("{") + kUsage + "}", true));
  stream.Read();
  const RouteReport report = reports_.Finished();
  ASSERT_TRUE(report.served_by.has_value());
  EXPECT_EQ(report.served_by->name, "far");
}

TEST_F(ExtProcReportsTest, FiguresAreThoseOfTheEndpointThatServed) {
  const auto served_by = [this](const char* endpoint) {
    Stream stream = Open();
    Pick(&stream);
    auto headers = Response("200", "application/json");
    auto& fields = (*headers.mutable_metadata_context()->mutable_filter_metadata())[kEndpointSpace];
    (*fields.mutable_fields())[kServedKey].set_string_value(endpoint);
    stream.Write(headers);
    stream.Read();
    stream.Write(ResponseBody(std::string("{") + kUsage + "}", true));
    stream.Read();
  };
  served_by("10.0.0.2:8000");
  const RouteReport report = reports_.Finished();
  ASSERT_TRUE(report.served_by.has_value());
  EXPECT_EQ(report.served_by->name, "far");
  EXPECT_EQ(report.cached_tokens, 16u);
}

TEST_F(ExtProcReportsTest, FiguresOfAnUnknownEndpointAreNobodys) {
  Stream stream = Open();
  Pick(&stream);
  auto headers = Response("200", "application/json");
  auto& fields = (*headers.mutable_metadata_context()->mutable_filter_metadata())[kEndpointSpace];
  (*fields.mutable_fields())[kServedKey].set_string_value("10.9.9.9:1");
  stream.Write(headers);
  stream.Read();
  stream.Write(ResponseBody(std::string("{") + kUsage + "}", true));
  stream.Read();
  EXPECT_EQ(reports_.Finished().cached_tokens, std::nullopt);
}

}  // namespace
}  // namespace kvatlas
