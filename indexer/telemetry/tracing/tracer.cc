// Spans are recorded on their own threads and handed over when they end (Tracer::Ended, Impl::Add).
// One thread sends them in batches (Impl::Run). A tracer that is off has no `Impl`; its spans carry
// a context and record nothing.

#include "indexer/telemetry/tracing/tracer.h"

#include <algorithm>
#include <deque>
#include <random>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/metric_families.h"
#include "indexer/telemetry/text_escape.h"
#include "indexer/telemetry/tracing/otlp_exporter.h"

namespace kvatlas {
namespace {

// A random id other than 0, which stands for "none". A generator per thread, seeded by the system,
// takes no lock and does not repeat itself in another process.
uint64_t Draw() {
  static thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  uint64_t drawn = 0;
  while (drawn == 0) drawn = random();
  return drawn;
}

uint64_t UnixNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

// Compares the upper 53 bits of the id's lower half with the ratio, which a double holds exactly.
// The standard wants that half to be random. All processes with the same ratio decide alike.
bool IsSampled(uint64_t trace_low, double ratio) {
  constexpr double kAll = 9007199254740992.0;  // 2^53
  return static_cast<double>(trace_low >> 11) < ratio * kAll;
}

// Never destroyed: spans may end while static objects go.
std::shared_ptr<Tracer>& OfThisProcess() {
  static auto& tracer = *new std::shared_ptr<Tracer>(Tracer::Start({}));
  return tracer;
}

}  // namespace

// ---- Span ----

Span::Span(Span&& other) noexcept
    : context_(other.context_), tracer_(std::move(other.tracer_)), data_(std::move(other.data_)) {}

// The span that was here ends now.
Span& Span::operator=(Span&& other) noexcept {
  if (this == &other) return *this;
  End();
  context_ = other.context_;
  tracer_ = std::move(other.tracer_);
  data_ = std::move(other.data_);
  return *this;
}

void Span::Set(const char* name, int64_t value) {
  if (data_ != nullptr && data_->attributes.size() < kSpanAttributesMax)
    data_->attributes.emplace_back(name, value);
}

void Span::Set(const char* name, std::string_view value) {
  if (data_ != nullptr && data_->attributes.size() < kSpanAttributesMax)
    data_->attributes.emplace_back(name, std::string(value.substr(0, kSpanTextMax)));
}

void Span::Fail(std::string_view why) {
  if (data_ == nullptr) return;
  data_->failed = true;
  data_->error = std::string(why.substr(0, kSpanTextMax));
}

// `tracer_` is taken out with `data_`, so a second call does nothing, and the span does not keep
// the tracer.
void Span::End() {
  if (data_ != nullptr) std::exchange(tracer_, nullptr)->Ended(std::move(data_));
}

void Span::End(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
  End();
}

// ---- Tracer ----

// The queue and its thread. `mutex` is held for moving pointers only, never while the exporter
// calls the collector.
struct Tracer::Impl {
  explicit Impl(TracerOptions of)
      : options(std::move(of)), exporter(options.endpoint, options.program) {
    thread = std::thread([this] { Run(); });
  }

  ~Impl() {
    {
      MutexLock lock(&mutex);
      stopping = true;
      wake.SignalAll();
    }
    thread.join();
  }

  // Never waits: a full queue drops the span. The thread is woken for a full batch; a smaller one
  // is sent after `flush_every`.
  void Add(std::unique_ptr<SpanData> span) {
    MutexLock lock(&mutex);
    ++stats.ended;
    if (queue.size() >= options.queue_max) {
      ++stats.dropped_full;
      return;
    }
    queue.push_back(std::move(span));
    if (queue.size() == options.batch_max) wake.SignalAll();
  }

  // The thread. 1. Waits for a full batch, `flush_every` or the stop. 2. Sends batches until the
  // queue is empty. 3. At the stop it does so once more; the first failure then drops the rest, so
  // that the end takes one time-out at most. Spans taken out of the queue do not count in its bound
  // while they are sent.
  void Run() {
    MutexLock lock(&mutex);
    while (true) {
      if (!stopping && queue.size() < options.batch_max) wake.WaitFor(&mutex, options.flush_every);
      const bool last = stopping;
      while (!queue.empty()) {
        std::vector<std::unique_ptr<SpanData>> batch;
        while (!queue.empty() && batch.size() < options.batch_max) {
          batch.push_back(std::move(queue.front()));
          queue.pop_front();
        }
        mutex.Unlock();
        const absl::Status status = exporter.Export(batch, options.export_timeout);
        mutex.Lock();
        (status.ok() ? stats.exported : stats.dropped_failed) += batch.size();
        Say(status);
        if (!status.ok() && stopping) {
          stats.dropped_failed += queue.size();
          queue.clear();
        }
      }
      if (last) return;
    }
  }

  // Logs changes only: once when the collector fails, once when it is back.
  void Say(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (status.ok() == taken) return;
    taken = status.ok();
    if (taken) {
      Log(LogLevel::kInfo, "spans are taken", {{"collector", options.endpoint}});
    } else {
      Log(LogLevel::kWarning, "spans are not taken: they are dropped",
          {{"collector", options.endpoint}, {"reason", status}});
    }
  }

  const TracerOptions options;
  OtlpExporter exporter;  // of the thread
  mutable Mutex mutex;
  CondVar wake;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool taken ABSL_GUARDED_BY(mutex) = true;
  std::deque<std::unique_ptr<SpanData>> queue ABSL_GUARDED_BY(mutex);
  TracerStats stats ABSL_GUARDED_BY(mutex);
  std::thread thread;
};

Tracer::~Tracer() = default;

const std::shared_ptr<Tracer>& Tracer::OfProcess() { return OfThisProcess(); }
void Tracer::SetOfProcess(std::shared_ptr<Tracer> tracer) { OfThisProcess() = std::move(tracer); }

// Without an endpoint the tracer has no thread and costs nothing.
std::shared_ptr<Tracer> Tracer::Start(TracerOptions options) {
  std::shared_ptr<Tracer> tracer(new Tracer());
  if (!options.endpoint.empty()) tracer->impl_ = std::make_unique<Impl>(std::move(options));
  return tracer;
}

TraceContext Tracer::ParentOf(std::string_view traceparent) {
  if (traceparent.empty() || !OfProcess()->on()) return {};
  return ParseTraceparent(traceparent).value_or(TraceContext{});
}

// A root that is not sampled still has a context, unsampled, so that processes below it do not draw
// again.
Span Tracer::Begin(const char* name, SpanKind kind, const TraceContext& parent) {
  if (parent.valid()) return BeginChild(name, kind, parent);
  Span span;
  if (impl_ == nullptr) return span;
  span.context_ = {.trace_high = Draw(), .trace_low = Draw(), .span = Draw()};
  span.context_.sampled = IsSampled(span.context_.trace_low, impl_->options.ratio);
  if (span.context_.sampled) Record(name, kind, /*parent=*/0, &span);
  return span;
}

// Without recording, the span's context is its parent's, and so the next process sees the parent.
Span Tracer::BeginChild(const char* name, SpanKind kind, const TraceContext& parent) {
  Span span;
  span.context_ = parent;
  if (impl_ == nullptr || !parent.valid() || !parent.sampled) return span;
  span.context_.span = Draw();
  Record(name, kind, parent.span, &span);
  return span;
}

// The wall clock gives the start; the duration is taken from the monotonic clock (Ended).
void Tracer::Record(const char* name, SpanKind kind, uint64_t parent, Span* span) {
  span->data_ = std::make_unique<SpanData>();
  SpanData& data = *span->data_;
  data.context = span->context_;
  data.parent = parent;
  data.name = name;
  data.kind = kind;
  data.started_unix_ns = UnixNs();
  data.started = impl_->options.clock->Now();
  span->tracer_ = shared_from_this();
}

void Tracer::Ended(std::unique_ptr<SpanData> span) {
  span->took = impl_->options.clock->Now() - span->started;
  impl_->Add(std::move(span));
}

TracerStats Tracer::stats() const {
  if (impl_ == nullptr) return {};
  MutexLock lock(&impl_->mutex);
  TracerStats stats = impl_->stats;
  stats.queued = impl_->queue.size();
  return stats;
}

void Tracer::AppendMetrics(std::string* text) const {
  const TracerStats now = stats();
  MetricFamilies families;
  families.Count("kvatlas_trace_spans_total", "Spans that ended.", "",
                 static_cast<double>(now.ended));
  families.Count("kvatlas_trace_spans_exported_total", "Of these, taken by the collector.", "",
                 static_cast<double>(now.exported));
  constexpr char kDropped[] = "kvatlas_trace_spans_dropped_total";
  constexpr char kHelp[] = "Of these, dropped: the queue was full, or the collector took none.";
  families.Count(kDropped, kHelp, MetricLabel("reason", "queue_full"),
                 static_cast<double>(now.dropped_full));
  families.Count(kDropped, kHelp, MetricLabel("reason", "not_taken"),
                 static_cast<double>(now.dropped_failed));
  families.Gauge("kvatlas_trace_spans_queued", "Spans that wait to be sent.", "",
                 static_cast<double>(now.queued));
  families.AppendTo(text);
}

}  // namespace kvatlas
