#include "indexer/telemetry/tracing/tracer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "indexer/base/await.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "tools/testing/servers/otlp_test_collector.h"

namespace kvatlas {
namespace {

namespace otlp = opentelemetry::proto;
using std::chrono::seconds;

constexpr seconds kLong(60);

TracerOptions To(const std::string& endpoint, double ratio = 1) {
  return {.endpoint = endpoint,
          .ratio = ratio,
          .program = "kvatlas-test",
          .flush_every = std::chrono::milliseconds(5),
          .export_timeout = kLong};
}

TEST(TracerTest, ACollectorGetsARootAndItsChild) {
  OtlpTestCollector collector;
  const auto tracer = Tracer::Start(To(collector.address()));
  Span root = tracer->Begin("root", SpanKind::kServer, {});
  ASSERT_TRUE(root.recorded());
  Span child = tracer->BeginChild("child", SpanKind::kClient, root.context());
  child.Set("blocks", 7);
  child.Set("cell", "a");
  child.End(absl::UnavailableError("gone"));
  const std::string traceparent = ToTraceparent(root.context());
  root.End();
  ASSERT_TRUE(Await([&] { return collector.Find("root") && collector.Find("child"); }, kLong));
  const auto got = collector.Find("child")->span, parent = collector.Find("root")->span;
  EXPECT_EQ("00-" + HexOf(parent.trace_id()) + "-" + HexOf(parent.span_id()) + "-01", traceparent);
  EXPECT_EQ(got.trace_id(), parent.trace_id());
  EXPECT_EQ(got.parent_span_id(), parent.span_id());
  EXPECT_EQ(parent.parent_span_id(), "");
  EXPECT_EQ(got.kind(), otlp::trace::v1::Span::SPAN_KIND_CLIENT);
  EXPECT_EQ(got.status().code(), otlp::trace::v1::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(got.status().message(), "UNAVAILABLE: gone");
  ASSERT_EQ(got.attributes_size(), 2);
  EXPECT_EQ(got.attributes(0).key(), "blocks");
  EXPECT_EQ(got.attributes(0).value().int_value(), 7);
  EXPECT_EQ(got.attributes(1).value().string_value(), "a");
  EXPECT_GE(got.end_time_unix_nano(), got.start_time_unix_nano());
  EXPECT_EQ(collector.Find("root")->program(), "kvatlas-test");
}

TEST(TracerTest, SamplingIsTheParentsAndElseByRatio) {
  const auto never = Tracer::Start(To("127.0.0.1:1", 0));
  const auto always = Tracer::Start(To("127.0.0.1:1", 1));
  TraceContext parent{.trace_high = 1, .trace_low = 2, .span = 3, .sampled = true};
  EXPECT_TRUE(never->Begin("x", SpanKind::kServer, parent).recorded());
  parent.sampled = false;
  const Span unsampled = always->Begin("x", SpanKind::kServer, parent);
  EXPECT_FALSE(unsampled.recorded());
  EXPECT_EQ(unsampled.context(), parent) << "passed on as it came";
  EXPECT_FALSE(never->Begin("x", SpanKind::kServer, {}).recorded());
  EXPECT_TRUE(never->Begin("x", SpanKind::kServer, {}).context().valid())
      << "so that nothing below draws again";
  EXPECT_FALSE(always->BeginChild("x", SpanKind::kClient, {}).recorded());
}

TEST(TracerTest, AboutTheRatioIsSampled) {
  const auto tracer = Tracer::Start(To("127.0.0.1:1", 0.25));
  int sampled = 0;
  for (int i = 0; i < 4000; ++i) sampled += tracer->Begin("x", SpanKind::kServer, {}).recorded();
  EXPECT_GT(sampled, 800);
  EXPECT_LT(sampled, 1200);
}

TEST(TracerTest, OffItPassesContextsOnAndDoesNothing) {
  const auto tracer = Tracer::Start({});
  EXPECT_FALSE(tracer->on());
  const TraceContext parent{.trace_high = 1, .trace_low = 2, .span = 3, .sampled = true};
  Span span = tracer->Begin("x", SpanKind::kServer, parent);
  span.Set("a", 1);
  EXPECT_EQ(span.context(), parent);
  EXPECT_FALSE(tracer->Begin("x", SpanKind::kServer, {}).context().valid());
  EXPECT_EQ(tracer->stats().ended, 0u);
}

// Nothing listens there: spans are dropped and counted, and the code that makes them never waits.
TEST(TracerTest, ADeadCollectorCostsBoundedMemoryAndNoWaiting) {
  TracerOptions options = To("127.0.0.1:1");
  options.queue_max = 100;
  options.batch_max = 1000;                     // never reached,
  options.flush_every = std::chrono::hours(1);  // so that nothing leaves the queue
  const auto tracer = Tracer::Start(options);
  for (int i = 0; i < 100'000; ++i) tracer->Begin("x", SpanKind::kServer, {}).End();
  const TracerStats stats = tracer->stats();
  EXPECT_EQ(stats.ended, 100'000u);
  EXPECT_EQ(stats.queued, 100u);
  EXPECT_EQ(stats.dropped_full, 100'000u - 100);
  std::string text;
  tracer->AppendMetrics(&text);
  EXPECT_NE(text.find("kvatlas_trace_spans_dropped_total{reason=\"queue_full\"} 99900\n"),
            std::string::npos)
      << text;
}

TEST(TracerTest, WhatACollectorDoesNotTakeIsCounted) {
  const auto dead = Tracer::Start(To("127.0.0.1:1"));
  dead->Begin("x", SpanKind::kServer, {}).End();
  EXPECT_TRUE(Await([&] { return dead->stats().dropped_failed == 1; }, kLong));
  EXPECT_EQ(dead->stats().queued, 0u);
  OtlpTestCollector full;
  full.Refuse();
  const auto refused = Tracer::Start(To(full.address()));
  refused->Begin("x", SpanKind::kServer, {}).End();
  EXPECT_TRUE(Await([&] { return refused->stats().dropped_failed == 1; }, kLong));
  EXPECT_EQ(full.calls(), 1) << "it is not asked again";
}

TEST(TracerTest, WhatIsQueuedAtTheEndIsSent) {
  OtlpTestCollector collector;
  {
    TracerOptions options = To(collector.address());
    options.flush_every = std::chrono::hours(1);
    Tracer::Start(options)->Begin("last", SpanKind::kServer, {}).End();
  }
  EXPECT_TRUE(collector.Find("last").has_value());
}

}  // namespace
}  // namespace kvatlas
