#include "tools/testing/cluster/replay.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "tools/testing/cluster/at_rest.h"
#include "tools/testing/cluster/client.h"
#include "tools/testing/cluster/fleet.h"
#include "tools/testing/cluster/policy_replay.h"
#include "tools/testing/mock_engine/engine_model.h"
#include "tools/testing/mock_engine/hybrid.h"

namespace kvatlas {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kFreeThreads = 16;
constexpr Duration kLookForStop = std::chrono::milliseconds(200);

double MicrosecondsSince(Time start) {
  return std::chrono::duration<double, std::micro>(Clock::Real().Now() - start).count();
}

EngineOptions EngineOptionsOf(const ClusterOptions& cluster) {
  EngineOptions engine;
  engine.capacity_blocks = cluster.capacity;
  engine.block_size = cluster.block_size;
  engine.prefill_tokens_per_s = cluster.prefill_tokens_per_s;
  engine.decode_ms_per_token = cluster.decode_ms_per_token;
  engine.hybrid = *ParseHybrid(cluster.hybrid);
  return engine;
}

FleetOptions FleetOptionsOf(const ClusterOptions& cluster, const ReplayOptions& options) {
  FleetOptions fleet;
  fleet.policy = options.policy;
  fleet.cells = cluster.cells;
  fleet.workers = cluster.workers;
  fleet.engine = EngineOptionsOf(cluster);
  fleet.weights.seed = options.seed;
  return fleet;
}

std::vector<SequenceHash> BlocksOfRequest(const std::vector<TraceRequest>& trace, size_t request,
                                          const ReplayOptions& options) {
  if (options.chats != nullptr) return options.chats->Blocks(request);
  return PromptBlocks(trace[request], options.split);
}

// What a request's worker was chosen by.
struct Chosen {
  uint32_t worker = 0;
  uint64_t decision_id = 0;
  uint32_t promised = 0;
  bool fell_back = false;
};

class Driver {
 public:
  Driver(const Cluster& cluster, const std::vector<TraceRequest>& trace,
         const ReplayOptions& options)
      : cluster_(cluster),
        trace_(trace),
        options_(options),
        client_(cluster),
        arrival_ms_(ArrivalsOf(trace, options.stretch)),
        engine_locks_(cluster.workers()),
        mirrors_(FleetOptionsOf(cluster.options(), options)),
        next_event_ms_(cluster.workers(), kNever) {
    for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
      worker_numbers_[cluster.WorkerName(worker)] = worker;
    }
    MutexLock lock(&mutex_);
    report_.policy = options.policy;
    report_.cells = cluster.options().cells;
    report_.workers = cluster.options().workers;
    report_.block_size = cluster.options().block_size;
    report_.cached_blocks.chosen = report_.cached_blocks.best_same_state = 0;
    report_.predicted_blocks = report_.promised_over = report_.promised_under = 0;
    report_.promised_over_blocks = report_.promised_under_blocks = 0;
    if (!cluster.options().hybrid.empty()) {
      report_.hybrid = cluster.options().hybrid;
      report_.answer = options.answer;
      report_.cached_blocks.held = 0;
    }
    if (options.rate > 0) report_.rate = options.rate;
    if (options.chats != nullptr) {
      report_.tokenizer = options.chats->tokenizer();
      report_.tokenize_us = options.chats->tokenize_us();
      report_.token_differences = 0;
    }
  }

  absl::StatusOr<ReplayReport> Run() {
    // Every engine has said hello, and every leaf has told the hierarchy of it.
    if (absl::Status status = WaitAtRest(cluster_, client_, options_.rest_timeout); !status.ok())
      return status;
    const Time start = Clock::Real().Now();
    options_.rate > 0 ? RunFreely() : RunInOrder();
    if (options_.stop()) return absl::CancelledError("stopped");
    const double seconds = MicrosecondsSince(start) / 1e6;
    if (absl::Status status = Finish(); !status.ok()) return status;
    MutexLock lock(&mutex_);
    report_.seconds = seconds;
    return report_;
  }

 private:
  // Time never goes back.
  static std::vector<double> ArrivalsOf(const std::vector<TraceRequest>& trace, double stretch) {
    std::vector<double> arrivals;
    double now = 0;
    for (const TraceRequest& request : trace) {
      arrivals.push_back(now = std::max(now, request.timestamp_ms * stretch));
    }
    return arrivals;
  }

  void RunInOrder() {
    for (size_t i = 0; i < trace_.size() && !options_.stop() && !options_.enough(); ++i) {
      if (options_.before) options_.before(i);
      if (options_.faults) options_.faults(i);
      AdvanceDue(arrival_ms_[i]);
      ServeOne(i);
    }
  }

  void RunFreely() {
    const Time start = Clock::Real().Now();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kFreeThreads; ++i)
      threads.emplace_back([this, start] { ServeWhenDue(start); });
    std::thread advancer([this, start] { AdvanceWhenDue(start); });
    if (options_.faults) FaultsWhileServing();
    for (std::thread& thread : threads) thread.join();
    {
      MutexLock lock(&mutex_);
      served_all_ = true;
      changed_.SignalAll();
    }
    advancer.join();
  }

  // Until the last request was begun.
  void FaultsWhileServing() {
    for (size_t told = 0; told < trace_.size() && !options_.stop();) {
      {
        MutexLock lock(&mutex_);
        while (next_request_ == told && !ended_ && !changed_.WaitFor(&mutex_, kLookForStop)) {
          if (options_.stop()) return;
        }
        if (ended_ && next_request_ == told) return;
      }
      while (told < Begun()) options_.faults(told++);
    }
  }

  size_t Begun() {
    MutexLock lock(&mutex_);
    return next_request_;
  }

  // Real time at which simulated time `at_ms` comes.
  Duration DueIn(Time start, double at_ms) const {
    const auto due =
        std::chrono::duration<double, std::milli>(std::min(at_ms, 1e12) / options_.rate);
    return start + std::chrono::duration_cast<Duration>(due) - Clock::Real().Now();
  }

  void ServeWhenDue(Time start) {
    while (!options_.stop()) {
      size_t i;
      {
        MutexLock lock(&mutex_);
        if (options_.enough()) ended_ = true;
        if (ended_ || next_request_ == trace_.size()) {
          ended_ = true;
          changed_.SignalAll();
          return;
        }
        i = next_request_++;
        changed_.SignalAll();
        if (options_.before) options_.before(i);
      }
      if (const Duration wait = DueIn(start, arrival_ms_[i]); wait > Duration(0)) {
        std::this_thread::sleep_for(wait);
      }
      ServeOne(i);
    }
  }

  void AdvanceWhenDue(Time start) {
    for (;;) {
      {
        MutexLock lock(&mutex_);
        if (served_all_) return;
        const double next = *std::min_element(next_event_ms_.begin(), next_event_ms_.end());
        if (const Duration wait = DueIn(start, next); wait > Duration(0)) {
          changed_.WaitFor(&mutex_, std::min<Duration>(wait, std::chrono::seconds(1)));
          continue;
        }
      }
      const Duration passed = Clock::Real().Now() - start;
      const double now_ms =
          std::chrono::duration<double, std::milli>(passed).count() * options_.rate;
      for (uint32_t worker : Due(now_ms)) {
        MutexLock engine(&engine_locks_[worker]);
        Advance({worker}, now_ms);
      }
    }
  }

  std::vector<uint32_t> Due(double time_ms) {
    MutexLock lock(&mutex_);
    std::vector<uint32_t> due;
    for (uint32_t worker = 0; worker < next_event_ms_.size(); ++worker) {
      if (next_event_ms_[worker] <= time_ms) due.push_back(worker);
    }
    return due;
  }

  void AdvanceDue(double time_ms) {
    const std::vector<uint32_t> due = Due(time_ms);
    if (!due.empty()) Advance(due, time_ms);
  }

  uint32_t WaitAckMs() const { return options_.rate > 0 ? 0 : options_.ack_timeout_ms; }

  void Advance(const std::vector<uint32_t>& workers, double time_ms) {
    const auto answers = client_.Advance(workers, time_ms, WaitAckMs());
    MutexLock lock(&mutex_);
    for (size_t i = 0; i < workers.size(); ++i) {
      if (!answers[i].ok()) {
        report_.Note(cluster_.WorkerName(workers[i]) +
                     " did not advance: " + answers[i].status().ToString());
        next_event_ms_[workers[i]] = kNever;
        continue;
      }
      EngineStep step;
      mirrors_.engine(workers[i]).AdvanceTo(time_ms, &step);
      TakeStep(workers[i], *answers[i], step);
    }
  }

  // A trace's last block counts as full.
  uint32_t PromptTokens(size_t i, const std::vector<SequenceHash>& blocks) const {
    const size_t of_blocks = blocks.size() * cluster_.options().block_size;
    return std::max(trace_[i].input_tokens, static_cast<uint32_t>(of_blocks));
  }

  void ServeOne(size_t i) {
    const std::vector<SequenceHash> blocks = BlocksOfRequest(trace_, i, options_);
    uint32_t best;
    {
      MutexLock lock(&mutex_);
      ++report_.requests;
      best = mirrors_.Best(blocks, PromptTokens(i, blocks)).overlap_blocks;
    }
    std::optional<Chosen> chosen = ChooseWorker(i, blocks);
    if (chosen.has_value()) SubmitTo(i, *chosen, blocks, best);
  }

  std::optional<Chosen> ChooseWorker(size_t i, const std::vector<SequenceHash>& blocks) {
    std::string body;
    if (options_.chats != nullptr) body = options_.chats->Body(trace_[i]);
    const Time start = Clock::Real().Now();
    absl::StatusOr<v1::RouteResponse> route = options_.chats != nullptr
                                                  ? client_.RouteChat(std::move(body))
                                                  : client_.Route(blocks, PromptTokens(i, blocks));
    const double us = MicrosecondsSince(start);
    MutexLock lock(&mutex_);
    if (!route.ok()) return Error(i, "was not routed: " + route.status().ToString());
    auto worker = worker_numbers_.find(route->worker().name());
    if (worker == worker_numbers_.end()) return Error(i, "was sent to an unknown worker");
    if (options_.chats != nullptr && route->prompt_tokens() != trace_[i].input_tokens) {
      ++*report_.token_differences;
    }
    const v1::Receipt& receipt = route->receipt();
    report_.route_us.push_back(us);
    report_.find_cells_us.push_back(static_cast<double>(receipt.find_cells_us()));
    report_.find_overlaps_us.push_back(static_cast<double>(receipt.find_overlaps_us()));
    const bool fell_back = receipt.fallback() != v1::FALLBACK_NONE;
    if (fell_back) {
      ++report_.fallbacks;
      report_.Note("request " + std::to_string(i) + " fell back: " + receipt.reason());
    }
    mirrors_.Sent(worker->second,
                  blocks.size() - std::min<size_t>(route->overlap_blocks(), blocks.size()));
    return Chosen{.worker = worker->second,
                  .decision_id = route->decision_id(),
                  .promised = route->overlap_blocks(),
                  .fell_back = fell_back};
  }

  std::optional<Chosen> Error(size_t i, const std::string& what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++report_.errors;
    report_.Note("request " + std::to_string(i) + " " + what);
    return std::nullopt;
  }

  void SubmitTo(size_t i, const Chosen& chosen, const std::vector<SequenceHash>& blocks,
                uint32_t best) {
    engine::v1::SubmitRequest request;
    request.set_id(i);
    request.set_time_ms(arrival_ms_[i]);
    for (SequenceHash hash : blocks) request.add_blocks(Raw(hash));
    request.set_prompt_tokens(trace_[i].input_tokens);
    request.set_output_tokens(trace_[i].output_tokens);
    request.set_wait_ack_ms(WaitAckMs());
    uint32_t cached_tokens = 0;
    {
      MutexLock engine(&engine_locks_[chosen.worker]);
      absl::StatusOr<engine::v1::StepResponse> answer = client_.Submit(chosen.worker, request);
      MutexLock lock(&mutex_);
      if (!answer.ok()) {
        Error(i, "was not taken by its engine: " + answer.status().ToString());
        return;
      }
      cached_tokens = answer->cached_tokens();
      TakeAnswer(i, chosen, blocks, best, *answer);
    }
    ReportBack(i, chosen, cached_tokens);
  }

  void ReportBack(size_t i, const Chosen& chosen, uint32_t cached_tokens) {
    v1::ReportRequest report;
    report.set_decision_id(chosen.decision_id);
    report.set_accepted(true);
    report.set_cached_tokens(cached_tokens);
    report.set_prompt_tokens(trace_[i].input_tokens);
    if (absl::Status status = client_.Report(report); !status.ok()) {
      MutexLock lock(&mutex_);
      report_.Note("request " + std::to_string(i) + " was not reported back: " + status.ToString());
    }
  }

  // An engine's answer to a request, beside its mirror's.
  void TakeAnswer(size_t i, const Chosen& chosen, const std::vector<SequenceHash>& blocks,
                  uint32_t best, const engine::v1::StepResponse& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    EngineStep step;
    const EngineArrival arrival = mirrors_.engine(chosen.worker)
                                      .Submit(arrival_ms_[i],
                                              {.id = i,
                                               .blocks = blocks,
                                               .prompt_tokens = trace_[i].input_tokens,
                                               .output_tokens = trace_[i].output_tokens},
                                              &step);
    if (arrival.too_long != answer.too_long() || arrival.cached_blocks != answer.cached_blocks() ||
        arrival.held_blocks != answer.held_blocks()) {
      ++report_.mirror_differences;
      report_.Note(cluster_.WorkerName(chosen.worker) + " had " +
                   std::to_string(answer.cached_blocks()) + " blocks of request " +
                   std::to_string(i) + " where its mirror had " +
                   std::to_string(arrival.cached_blocks));
    }
    TakeStep(chosen.worker, answer, step);
    if (answer.too_long()) {
      ++report_.too_long;
      return;
    }
    report_.prompt_blocks += blocks.size();
    *report_.cached_blocks.best_same_state += best;
    *report_.cached_blocks.chosen += answer.cached_blocks();
    if (report_.cached_blocks.held.has_value()) *report_.cached_blocks.held += answer.held_blocks();
    *report_.predicted_blocks += chosen.promised;
    const uint32_t truth = answer.cached_blocks();
    *report_.promised_over += chosen.promised > truth;
    *report_.promised_under += chosen.promised < truth;
    *report_.promised_over_blocks += chosen.promised - std::min(chosen.promised, truth);
    *report_.promised_under_blocks += truth - std::min(chosen.promised, truth);
  }

  void TakeStep(uint32_t worker, const engine::v1::StepResponse& answer, const EngineStep& mirrored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    next_event_ms_[worker] = answer.next_event_ms();
    changed_.SignalAll();
    if (options_.rate == 0 && !answer.acknowledged()) ++report_.unacknowledged;
    for (const engine::v1::Admission& admission : answer.admitted()) {
      report_.ttft_ms.push_back(admission.ttft_ms());
    }
    if (static_cast<size_t>(answer.admitted_size()) != mirrored.admitted.size()) {
      ++report_.mirror_differences;
      report_.Note(cluster_.WorkerName(worker) + " admitted other requests than its mirror");
    }
  }

  // Everything runs to its end, then rest, then the check.
  absl::Status Finish() {
    std::vector<uint32_t> all(cluster_.workers());
    for (uint32_t worker = 0; worker < all.size(); ++worker) all[worker] = worker;
    Advance(all, kNever);
    const Time ended = Clock::Real().Now();
    if (absl::Status status = WaitAtRest(cluster_, client_, options_.rest_timeout); !status.ok())
      return status;
    MutexLock lock(&mutex_);
    report_.rest_seconds = MicrosecondsSince(ended) / 1e6;
    if (absl::Status status = AddLeafFigures(cluster_, client_, &report_); !status.ok())
      return status;
    absl::StatusOr<AtRest> at_rest = CheckAtRest(
        cluster_, client_, trace_.size(),
        [this](size_t request) { return BlocksOfRequest(trace_, request, options_); },
        options_.at_rest_pairs);
    if (!at_rest.ok()) return at_rest.status();
    report_.at_rest = *at_rest;
    return absl::OkStatus();
  }

  const Cluster& cluster_;
  const std::vector<TraceRequest>& trace_;
  const ReplayOptions& options_;
  ClusterClient client_;
  const std::vector<double> arrival_ms_;
  std::map<std::string, uint32_t> worker_numbers_;  // immutable after construction

  // Held over a call to an engine and the same call to its mirror; taken before `mutex_`, one at a
  // time. Calls in order need none.
  std::vector<Mutex> engine_locks_;

  Mutex mutex_;
  CondVar changed_;  // `next_event_ms_`, `next_request_`, `ended_`, `served_all_`
  Fleet mirrors_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> next_event_ms_ ABSL_GUARDED_BY(mutex_);  // by worker
  size_t next_request_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // no more requests are begun
  bool served_all_ ABSL_GUARDED_BY(mutex_) = false;
  ReplayReport report_ ABSL_GUARDED_BY(mutex_);
};

// The same trace through a fleet of models: blocks that were cached on arrival.
uint64_t RunInProcess(const std::vector<TraceRequest>& trace, const ClusterOptions& cluster,
                      const ReplayOptions& options, const std::string& policy) {
  PolicyReplayOptions replay;
  replay.fleet = FleetOptionsOf(cluster, options);
  replay.fleet.policy = policy;
  replay.blocks_of = [&](size_t request) { return BlocksOfRequest(trace, request, options); };
  replay.stretch = options.stretch;
  replay.stop = options.stop;
  return ReplayPolicy(trace, replay).cached_blocks;
}

}  // namespace

absl::StatusOr<ReplayReport> Replay(const Cluster& cluster, const std::vector<TraceRequest>& trace,
                                    const ReplayOptions& options) {
  if (const absl::Status bad = ParseHybrid(cluster.options().hybrid).status(); !bad.ok())
    return bad;
  auto driver = std::make_unique<Driver>(cluster, trace, options);
  absl::StatusOr<ReplayReport> report = driver->Run();
  if (!report.ok()) return report;
  if (options.policy == kDefaultPolicy)
    report->cached_blocks.kvatlas = report->cached_blocks.chosen;
  if (!options.compare) return report;
  CachedBlocks& cached = report->cached_blocks;
  cached.exact_global = RunInProcess(trace, cluster.options(), options, options.policy);
  cached.round_robin = options.policy == "round_robin"
                           ? cached.chosen
                           : RunInProcess(trace, cluster.options(), options, "round_robin");
  return report;
}

}  // namespace kvatlas
