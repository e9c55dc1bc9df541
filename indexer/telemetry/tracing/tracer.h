// Traces requests: spans, as OpenTelemetry defines them, sent to a collector by OTLP over gRPC.
//
//   request ─▶ Span (root, or child of `traceparent`) ─▶ child spans, also in other processes by `Span::context`
//                   │ ends
//                   ▼
//              queue, bounded ─▶ one thread ─▶ TraceService/Export, in batches
//
// *Truth*: off until `SetOfProcess`. A request that came with a context is sampled when that one
// is; others by `ratio`, decided by the trace's id, so that all processes agree. What is not
// sampled costs drawing three numbers at its root, and nothing below.
// *Bounds*: `queue_max` spans wait; what is beyond is dropped and counted, and so is a batch that
// the collector does not take within `export_timeout`. A collector that is dead or silent delays no
// request: only the one thread waits for it. A span has at most `kSpanAttributesMax` attributes,
// texts of `kSpanTextMax` bytes.
// *Threads*: all, but a `Span`, which one thread at a time uses.
// *Lifetime*: what is queued when a tracer goes is sent within `export_timeout`.
//
// Example:
//   Span span = Tracer::OfProcess()->Begin("FindOverlaps", SpanKind::kServer,
//   Tracer::ParentOf(request.traceparent()));
//   span.Set("blocks", request.blocks());
//   …                                 // `ToTraceparent(span.context())` goes with each question to another process
//   span.End(status);                 // or when it goes

#ifndef KVATLAS_INDEXER_TELEMETRY_TRACING_TRACER_H_
#define KVATLAS_INDEXER_TELEMETRY_TRACING_TRACER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/telemetry/tracing/trace_context.h"

namespace kvatlas {

inline constexpr size_t kSpanAttributesMax = 32;
inline constexpr size_t kSpanTextMax = 256;

enum class SpanKind { kInternal = 1, kServer = 2, kClient = 3 };  // as on the wire

struct SpanData {
  TraceContext context;
  uint64_t parent = 0;  // 0: a root
  const char* name = "";
  SpanKind kind = SpanKind::kInternal;
  uint64_t started_unix_ns = 0;
  Time started{0};
  Duration took{0};
  bool failed = false;
  std::string error;
  std::vector<std::pair<const char*, std::variant<int64_t, std::string>>> attributes;
};

struct TracerOptions {
  std::string endpoint;  // HOST:PORT of the collector's gRPC
  double ratio = 0.1;    // of requests that came without a context
  std::string program;   // "kvatlas-leaf"
  size_t queue_max = 4096;
  size_t batch_max = 512;
  Duration flush_every = std::chrono::seconds(1);
  Duration export_timeout = std::chrono::seconds(2);
  const Clock* clock = &Clock::Real();
};

struct TracerStats {
  uint64_t ended = 0;           // spans
  uint64_t exported = 0;        // taken by the collector
  uint64_t dropped_full = 0;    // the queue was full
  uint64_t dropped_failed = 0;  // the collector did not take them
  size_t queued = 0;
};

class Tracer;

// Work that takes time. Moved from, or made by a tracer that is off, it records nothing, and only
// `context` is of use.
class Span {
 public:
  Span() = default;
  Span(Span&& other) noexcept;
  Span& operator=(Span&& other) noexcept;
  ~Span() { End(); }

  // The context for its children: its own, or its parent's if nothing is recorded.
  const TraceContext& context() const { return context_; }
  bool recorded() const { return data_ != nullptr; }

  // `name` is a literal.
  void Set(const char* name, int64_t value);
  void Set(const char* name, std::string_view value);
  void Fail(std::string_view why);

  // Once; what is called after it does nothing.
  void End();
  void End(const absl::Status& status);

 private:
  friend class Tracer;
  TraceContext context_;
  std::shared_ptr<Tracer> tracer_;
  std::unique_ptr<SpanData> data_;
};

class Tracer : public std::enable_shared_from_this<Tracer> {
 public:
  // The tracer of this process; never null, off until it is set.
  static const std::shared_ptr<Tracer>& OfProcess();
  // Before other threads use it.
  static void SetOfProcess(std::shared_ptr<Tracer> tracer);

  // Off without an endpoint.
  static std::shared_ptr<Tracer> Start(TracerOptions options);
  ~Tracer();

  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  bool on() const { return impl_ != nullptr; }

  // The context that a request came with; one that is not valid where it came with none, and while
  // tracing is off.
  static TraceContext ParentOf(std::string_view traceparent);

  // `name` is a literal. Without a valid parent it is a root.
  Span Begin(const char* name, SpanKind kind, const TraceContext& parent);
  // Only as a child of something that is recorded somewhere: no root of its own.
  Span BeginChild(const char* name, SpanKind kind, const TraceContext& parent);

  TracerStats stats() const;
  // `kvatlas_trace_…`, for `Metrics::OnText`.
  void AppendMetrics(std::string* text) const;

 private:
  friend class Span;
  struct Impl;
  Tracer() = default;
  void Record(const char* name, SpanKind kind, uint64_t parent, Span* span);
  void Ended(std::unique_ptr<SpanData> span);

  std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_TRACING_TRACER_H_
