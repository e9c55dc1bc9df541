// Is what a gateway asks about part of a trace, as a request through the other doors is?

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>

#include "frontend/gateway/ext_proc/ext_proc_test_util.h"
#include "indexer/base/await.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "indexer/telemetry/tracing/tracer.h"
#include "tools/testing/servers/otlp_test_collector.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);
constexpr char kOfEnvoy[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-";

class ExtProcTracingTest : public ExtProcServiceTest {
 protected:
  // Before anything is asked.
  void Trace(double ratio) {
    Tracer::SetOfProcess(Tracer::Start({.endpoint = collector_.address(),
                                        .ratio = ratio,
                                        .program = "kvatlas-frontend",
                                        .flush_every = std::chrono::milliseconds(5),
                                        .export_timeout = kLong}));
  }
  void TearDown() override {
    server_.reset();
    Tracer::SetOfProcess(Tracer::Start({}));
  }

  // The header that a completion goes on to the engine with; empty: as it came.
  std::string SentOn(const Headers& headers = {},
                     ext_proc::BodySendMode mode = ext_proc::FULL_DUPLEX_STREAMED) {
    Stream stream = Open();
    stream.Write(Mode(mode, Request("POST", "/v1/completions", false, headers)));
    if (mode == ext_proc::BUFFERED) {
      EXPECT_TRUE(stream.Read().has_request_headers());
    }
    stream.Write(Body(kIds, true));
    const ext_proc::ProcessingResponse answer = stream.Read();
    const ext_proc::CommonResponse& common = mode == ext_proc::BUFFERED
                                                 ? answer.request_body().response()
                                                 : answer.request_headers().response();
    return HeaderIn(common.header_mutation(), kTraceparent);
  }

  std::optional<CollectedSpan> Collected(const std::string& name) {
    Await([&] { return collector_.Find(name).has_value(); }, kLong);
    EXPECT_TRUE(collector_.Find(name).has_value()) << "no span " << name;
    return collector_.Find(name);
  }

  OtlpTestCollector collector_;
};

TEST_F(ExtProcTracingTest, ARequestWithoutAContextIsARootAndTheEngineIsToldOfIt) {
  Trace(/*ratio=*/1);
  for (const ext_proc::BodySendMode mode : {ext_proc::FULL_DUPLEX_STREAMED, ext_proc::BUFFERED}) {
    const std::optional<TraceContext> told = ParseTraceparent(SentOn({}, mode));
    ASSERT_TRUE(told.has_value());
    EXPECT_TRUE(told->sampled);
  }
  const std::optional<CollectedSpan> root = Collected("ext_proc");
  const std::optional<CollectedSpan> route = Collected("route");
  ASSERT_TRUE(root.has_value() && route.has_value());
  EXPECT_EQ(root->span.parent_span_id(), "");
  EXPECT_EQ(route->span.trace_id(), root->span.trace_id());
  EXPECT_EQ(route->span.parent_span_id(), root->span.span_id());
}

TEST_F(ExtProcTracingTest, TheEngineGoesOnWithTheRootsContext) {
  Trace(/*ratio=*/1);
  const std::string told = SentOn();
  const std::optional<CollectedSpan> root = Collected("ext_proc");
  ASSERT_TRUE(root.has_value());
  EXPECT_EQ(told, "00-" + HexOf(root->span.trace_id()) + "-" + HexOf(root->span.span_id()) + "-01");
}

TEST_F(ExtProcTracingTest, ARequestWithoutAPromptIsTracedToo) {
  Trace(/*ratio=*/1);
  Stream stream = Open();
  stream.Write(Request("GET", "/v1/models", true));
  const ext_proc::ProcessingResponse answer = stream.Read();
  const auto& mutation = answer.request_headers().response().header_mutation();
  EXPECT_NE(HeaderIn(mutation, kTraceparent), "");
  EXPECT_THAT(mutation.remove_headers(), testing::Contains(kTracestate))
      << "it is of another trace";
  ASSERT_TRUE(Collected("ext_proc").has_value());
}

TEST_F(ExtProcTracingTest, AContextOfTheGatewayDecidesAndGoesOnAsItIs) {
  Trace(/*ratio=*/0);
  EXPECT_EQ(SentOn({{kTraceparent, std::string(kOfEnvoy) + "01"}}), "");
  const std::optional<CollectedSpan> child = Collected("ext_proc");
  ASSERT_TRUE(child.has_value());
  EXPECT_EQ(HexOf(child->span.parent_span_id()), "00f067aa0ba902b7");
  EXPECT_EQ(HexOf(child->span.trace_id()), "4bf92f3577b34da6a3ce929d0e0e4736");
}

TEST_F(ExtProcTracingTest, WhatIsNotSampledIsToldToTheEngineAndNotToTheCollector) {
  Trace(/*ratio=*/0);
  const std::optional<TraceContext> told = ParseTraceparent(SentOn());
  ASSERT_TRUE(told.has_value());
  EXPECT_FALSE(told->sampled);
  EXPECT_EQ(SentOn({{kTraceparent, std::string(kOfEnvoy) + "00"}}), "");
  // Their spans would have come before this one's.
  EXPECT_EQ(SentOn({{kTraceparent, std::string(kOfEnvoy) + "01"}}), "");
  ASSERT_TRUE(Collected("ext_proc").has_value());
  for (const CollectedSpan& one : collector_.Spans())
    EXPECT_EQ(HexOf(one.span.trace_id()), "4bf92f3577b34da6a3ce929d0e0e4736");
}

TEST_F(ExtProcTracingTest, ARefusalIsAFailedSpan) {
  Trace(/*ratio=*/1);
  EXPECT_EQ(Refused(Completion(), "no json"), 400);
  const std::optional<CollectedSpan> span = Collected("ext_proc");
  ASSERT_TRUE(span.has_value());
  EXPECT_EQ(span->span.status().code(), opentelemetry::proto::trace::v1::Status::STATUS_CODE_ERROR);
}

TEST_F(ExtProcTracingTest, WithoutACollectorNoHeaderIsTouched) {
  EXPECT_EQ(SentOn(), "");
  EXPECT_EQ(SentOn({{kTraceparent, std::string(kOfEnvoy) + "01"}}), "");
}

}  // namespace
}  // namespace kvatlas
