#include "indexer/coverage/coverage_reporter.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/stream/message_size.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender_pump.h"

namespace kvatlas {
namespace {

// For what a stream that is replaced has yet to say.
constexpr Duration kGoodbyeTime = std::chrono::milliseconds(100);

// Blocks of prefill ahead of a request at the average worker.
double AheadPerWorker(const Load& load) {
  return (static_cast<double>(load.waiting_prefill_blocks) + load.running_requests +
          load.waiting_requests) /
         std::max<uint32_t>(load.workers, 1);
}

// Counts what goes through a link.
class CountingLink : public SenderLink {
 public:
  // `bytes` outlives it.
  CountingLink(std::unique_ptr<SenderLink> link, std::atomic<uint64_t>* bytes)
      : link_(std::move(link)), bytes_(bytes) {}

  void Start(SenderLinkObserver* observer) override { link_->Start(observer); }
  bool Write(const SenderMessage& message) override {
    if (!link_->Write(message)) return false;
    bytes_->fetch_add(HoldingsBytes(message), std::memory_order_relaxed);
    return true;
  }
  void Reset() override { link_->Reset(); }
  void Stop(std::chrono::nanoseconds flush_for) override { link_->Stop(flush_for); }

 private:
  const std::unique_ptr<SenderLink> link_;
  std::atomic<uint64_t>* const bytes_;
};

}  // namespace

// One domain: its coverage, what of it was announced, and a pump per parent.
class CoverageReporter::Stream {
 public:
  Stream(const CoverageReporterOptions& options, Domain domain, uint32_t block_size, Epoch epoch)
      : options_(options),
        domain_(std::move(domain)),
        block_size_(block_size),
        epoch_(epoch),
        coverage_(options.schedule, options.coverage, options.clock) {}

  Coverage* coverage() { return &coverage_; }
  const Domain& domain() const { return domain_; }
  uint32_t block_size() const { return block_size_; }

  // The domain has another block size now: another stream takes over.
  void Replace() { replaced_.store(true); }
  bool replaced() const { return replaced_.load(); }

  void Tick() {
    if (replaced_.load()) {
      if (!ended_) Stop(options_.clock->Now() + kGoodbyeTime);
      return;
    }
    if (parents_.empty()) Start();
    Append();
    for (const auto& parent : parents_) parent->pump->Tick();
  }

  void Stop(Time end) {
    if (ended_) return;
    ended_ = true;
    for (const auto& parent : parents_) {
      const Duration left = end - options_.clock->Now();
      parent->pump->Stop(/*goodbye=*/true, std::max(left, Duration::zero()));
    }
  }

  void AddStats(std::vector<ParentStats>* stats) const {
    // A waypoint is in flight between `Take` and `Append`: `Append` takes both under the mutex, so that
    // being at rest is seen whole.
    MutexLock lock(&taking_mutex_);
    const CoverageStats coverage = coverage_.Stats();
    const bool coverage_at_rest = coverage_.AtRest();
    for (size_t i = 0; i < options_.parents.size(); ++i) {
      ParentStats of;
      of.parent = options_.parents[i];
      of.domain = domain_;
      of.waypoints_announced = coverage.announced;
      of.waypoints_withdrawn = coverage.withdrawn;
      of.waypoints_held = coverage.held;
      // Before the first tick there is no stream yet, and so no rest.
      if (i < parents_.size()) AddStats(*parents_[i], coverage_at_rest, &of);
      stats->push_back(std::move(of));
    }
  }

 private:
  struct Parent {
    std::atomic<uint64_t> bytes{0};  // outlives the pump
    std::unique_ptr<SenderPump> pump;
  };

  void Start() {
    std::vector<std::unique_ptr<Parent>> parents;
    for (const std::string& name : options_.parents) {
      parents.push_back(std::make_unique<Parent>());
      Parent& parent = *parents.back();
      parent.pump = std::make_unique<SenderPump>(
          options_.sender, Identity(), &resident_, &resident_mutex_,
          std::make_unique<CountingLink>(options_.make_link(name), &parent.bytes), options_.clock);
      parent.pump->Start();
    }
    MutexLock lock(&taking_mutex_);
    parents_ = std::move(parents);
  }

  static void AddStats(const Parent& parent, bool coverage_at_rest, ParentStats* stats) {
    stats->connected = parent.pump->connected();
    stats->at_rest = coverage_at_rest && parent.pump->AtRest();
    stats->bytes_sent = parent.bytes.load(std::memory_order_relaxed);
    stats->sender = parent.pump->stats();
    stats->status = parent.pump->status();
  }

  SenderIdentity Identity() const {
    return {.holder = options_.cell,
            .domain = domain_,
            .block_size = block_size_,
            .contract_id = options_.contract_id,
            .schedule = options_.schedule_name,
            .address = options_.address,
            .labels = options_.labels,
            .epoch = epoch_,
            .instance_id = options_.instance_id};
  }

  // The load to tell now, if any.
  std::optional<Load> LoadDue() {
    if (std::optional<Load> load = coverage_.TakeLoad(); load.has_value()) load_ = load;
    if (load_ == load_told_) return std::nullopt;
    const Time now = options_.clock->Now();
    if (load_told_.has_value()) {
      const Duration waited = now - load_told_at_;
      const double step = std::abs(AheadPerWorker(*load_) - AheadPerWorker(*load_told_));
      const bool matters = step >= options_.load_step || load_->workers != load_told_->workers;
      if (waited < (matters ? options_.load_every : options_.load_refresh)) return std::nullopt;
    }
    load_told_at_ = now;
    return load_told_ = load_;
  }

  void Append() {
    MutexLock taking(&taking_mutex_);
    const std::vector<Event> due = coverage_.Take(options_.waypoints_per_tick);
    const std::optional<Load> load = LoadDue();
    if (due.empty() && !load.has_value()) return;
    MutexLock lock(&resident_mutex_);
    std::vector<Event> changes;
    for (const Event& event : due) {
      for (Event& change : resident_.Apply(event)) changes.push_back(std::move(change));
    }
    for (const auto& parent : parents_) parent->pump->Append(changes, load);
  }

  const CoverageReporterOptions& options_;
  const Domain domain_;
  const uint32_t block_size_;
  const Epoch epoch_;
  std::atomic<bool> replaced_{false};
  bool ended_ = false;  // only by `Tick` and then by `Stop`
  Coverage coverage_;
  std::optional<Load> load_, load_told_;  // only by `Tick`
  Time load_told_at_{0};
  mutable Mutex taking_mutex_;
  Mutex resident_mutex_;
  ResidentSet resident_ ABSL_GUARDED_BY(resident_mutex_);
  std::vector<std::unique_ptr<Parent>> parents_;  // changed once, by `Tick` under `taking_mutex_`
};

struct CoverageReporter::State {
  explicit State(CoverageReporterOptions given) : options(std::move(given)) {}

  // Streams are never removed: a domain that comes again with another block size has a new one.
  std::vector<Stream*> All() const {
    std::vector<Stream*> all;
    MutexLock lock(&mutex);
    for (const auto& stream : streams) all.push_back(stream.get());
    return all;
  }

  CoverageReporterOptions options;  // immutable from the first tick
  mutable Mutex mutex;
  std::vector<std::unique_ptr<Stream>> streams ABSL_GUARDED_BY(mutex);
};

CoverageReporter::CoverageReporter(CoverageReporterOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}

CoverageReporter::~CoverageReporter() = default;

void CoverageReporter::SetAddress(std::string address) {
  state_->options.address = std::move(address);
}

Coverage* CoverageReporter::AddDomain(const Domain& domain, uint32_t block_size) {
  if (state_->options.parents.empty()) return nullptr;
  MutexLock lock(&state_->mutex);
  Epoch epoch = state_->options.epoch;
  for (const auto& stream : state_->streams) {
    if (stream->domain() != domain) continue;
    // The last one of the domain counts: the others are replaced.
    if (stream->block_size() == block_size && !stream->replaced()) return stream->coverage();
    stream->Replace();
    ++epoch;
  }
  auto stream = std::make_unique<Stream>(state_->options, domain, block_size, epoch);
  Coverage* const coverage = stream->coverage();
  state_->streams.push_back(std::move(stream));
  return coverage;
}

void CoverageReporter::Tick() {
  for (Stream* stream : state_->All()) stream->Tick();
}

void CoverageReporter::Stop(Duration flush_for) {
  const Time end = state_->options.clock->Now() + flush_for;
  for (Stream* stream : state_->All()) stream->Stop(end);
}

std::vector<ParentStats> CoverageReporter::Stats() const {
  std::vector<ParentStats> stats;
  for (const Stream* stream : state_->All())
    if (!stream->replaced()) stream->AddStats(&stats);
  return stats;
}

}  // namespace kvatlas
