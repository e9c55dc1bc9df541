// How fast is a structure when several threads write and ask at once, as fast as they can?
//
//   first half of the file     its events, unmeasured, on the event threads
//   ── all threads meet ──
//   second half                event threads apply its events, each the workers w with w % threads = its number;
//                              query threads ask its queries again and again until the last event is applied
//
// *Truth*: events of a worker stay in order. Block ops per second are those of events plus those of
// queries. With no event thread every query thread asks all queries `query_passes` times; with no
// query thread only events are measured.

#include "tools/bench/modes.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

// Latencies that a query thread keeps.
constexpr size_t kLatenciesMax = 1 << 22;
constexpr size_t kStepsBetweenLooks = 64;
constexpr int kKinds = 5;  // `OpKind` is 1 … 4

// What one event thread has to do and what came of it.
struct EventLane {
  std::vector<const BenchInput::Step*> before, measured;
  uint64_t ticks[kKinds] = {};
  uint64_t blocks[kKinds] = {};
  Latencies writes;
  double seconds = 0;
  double cpu_s = 0;
  uint64_t refused = 0;
};

struct QueryLane {
  Latencies latencies;
  uint64_t ticks = 0;
  uint64_t queries = 0;
  uint64_t blocks = 0;
  uint64_t results = 0;
  double seconds = 0;
  double cpu_s = 0;
};

class ClosedRun {
 public:
  ClosedRun(Index* index, const BenchInput& input, const BenchOptions& options)
      : index_(index),
        input_(input),
        options_(options),
        limit_(options.limit_s * (options.event_threads + options.query_threads)),
        events_(options.event_threads),
        queries_(options.query_threads),
        meet_(options.event_threads + options.query_threads) {
    Deal();
  }

  std::optional<std::string> Run() {
    if (events_.empty()) ApplyBefore();
    std::vector<std::thread> threads;
    for (EventLane& lane : events_) threads.emplace_back([this, &lane] { RunEvents(&lane); });
    for (size_t i = 0; i < queries_.size(); ++i) {
      threads.emplace_back([this, i] { RunQueries(i, &queries_[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    if (!stop_) return std::nullopt;
    return "takes longer than " + std::to_string(static_cast<int>(options_.limit_s)) + " s";
  }

  void Report(BenchResult* result) {
    uint64_t refused = 0;
    ReportEvents(result, &refused);
    ReportQueries(result);
    result->refused_events = refused;
    result->block_ops_per_s =
        result->event_block_ops_per_s.value_or(0) + result->query_block_ops_per_s.value_or(0);
  }

 private:
  // Gives every event to its lane, and the second half's queries to all.
  void Deal() {
    const std::vector<BenchInput::Step>& steps = input_.steps();
    const size_t lanes = std::max<size_t>(1, events_.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool before = i < input_.second_half();
      if (steps[i].kind == OpKind::kQuery) {
        if (!before) asked_.push_back(&steps[i]);
      } else if (events_.empty()) {
        if (before) built_.push_back(&steps[i]);
      } else {
        EventLane& lane = events_[steps[i].worker % lanes];
        (before ? lane.before : lane.measured).push_back(&steps[i]);
      }
    }
    for (EventLane& lane : events_) lane.writes.Reserve(lane.measured.size());
    for (QueryLane& lane : queries_) lane.latencies.Reserve(kLatenciesMax);
  }

  bool Apply(const BenchInput::Step& step) {
    return index_->Apply(HolderIndex{step.worker}, input_.event(step), nullptr).ok();
  }

  void ApplyBefore() {
    for (const BenchInput::Step* step : built_) Apply(*step);
  }

  // True when time is up; looked at now and then.
  bool TimeIsUp(size_t step) {
    if (step % kStepsBetweenLooks == 0 && limit_.Exceeded(1, 1).has_value()) stop_ = true;
    return stop_.load(std::memory_order_relaxed);
  }

  void RunEvents(EventLane* lane) {
    for (size_t i = 0; i < lane->before.size() && !TimeIsUp(i); ++i) Apply(*lane->before[i]);
    meet_.arrive_and_wait();
    const double start_s = NowSeconds(), cpu_start_s = ThreadCpuSeconds();
    for (size_t i = 0; i < lane->measured.size() && !TimeIsUp(i); ++i) {
      const BenchInput::Step& step = *lane->measured[i];
      const uint64_t start = Ticks();
      const bool ok = Apply(step);
      const uint64_t ticks = Ticks() - start;
      lane->writes.Add(ticks);
      lane->ticks[static_cast<int>(step.kind)] += ticks;
      lane->blocks[static_cast<int>(step.kind)] += step.blocks;
      lane->refused += !ok;
    }
    lane->cpu_s = ThreadCpuSeconds() - cpu_start_s;
    lane->seconds = NowSeconds() - start_s;
    lanes_done_.fetch_add(1);
  }

  void RunQueries(size_t number, QueryLane* lane) {
    Asker asker(options_);
    const uint64_t queries_max =
        events_.empty() ? uint64_t{options_.query_passes} * asked_.size() : ~uint64_t{0};
    size_t next = number * asked_.size() / queries_.size();
    meet_.arrive_and_wait();
    const double start_s = NowSeconds(), cpu_start_s = ThreadCpuSeconds();
    while (!asked_.empty() && lane->queries < queries_max && !EventsAreDone()) {
      if (events_.empty() && TimeIsUp(lane->queries)) break;
      const BenchInput::Step& step = *asked_[next];
      const uint64_t start = Ticks();
      asker.Ask(*index_, input_.query(step));
      const uint64_t ticks = Ticks() - start;
      if (lane->latencies.size() < kLatenciesMax) lane->latencies.Add(ticks);
      lane->ticks += ticks;
      lane->blocks += step.blocks;
      lane->results += asker.results();
      ++lane->queries;
      if (++next == asked_.size()) next = 0;
    }
    lane->seconds = NowSeconds() - start_s;
    lane->cpu_s = ThreadCpuSeconds() - cpu_start_s;
  }

  bool EventsAreDone() const {
    return !events_.empty() && lanes_done_.load(std::memory_order_relaxed) == events_.size();
  }

  void ReportEvents(BenchResult* result, uint64_t* refused) {
    double seconds = 0, cpu_s = 0;
    uint64_t all_blocks = 0;
    uint64_t ticks[kKinds] = {}, blocks[kKinds] = {};
    Latencies writes;
    for (EventLane& lane : events_) {
      seconds = std::max(seconds, lane.seconds);
      cpu_s += lane.cpu_s;
      *refused += lane.refused;
      writes.Append(lane.writes);
      for (int kind = 0; kind < kKinds; ++kind) {
        ticks[kind] += lane.ticks[kind];
        blocks[kind] += lane.blocks[kind];
        all_blocks += lane.blocks[kind];
      }
    }
    if (all_blocks == 0) return;
    result->block_ops = result->block_ops.value_or(0) + all_blocks;
    result->event_block_ops_per_s = static_cast<double>(all_blocks) / seconds;
    result->event_block_ops_per_cpu_s = static_cast<double>(all_blocks) / cpu_s;
    result->write_ns = writes.InNs();
    const auto ns = [&](OpKind kind) -> std::optional<double> {
      const int k = static_cast<int>(kind);
      if (blocks[k] == 0) return std::nullopt;
      return NsPerTick() * static_cast<double>(ticks[k]) / static_cast<double>(blocks[k]);
    };
    result->ns_per_stored_block = ns(OpKind::kStore);
    result->ns_per_removed_block = ns(OpKind::kRemove);
  }

  void ReportQueries(BenchResult* result) {
    double rate = 0, cpu_s = 0;
    uint64_t queries = 0, blocks = 0, ticks = 0, results = 0;
    Latencies latencies;
    for (QueryLane& lane : queries_) {
      if (lane.queries == 0) continue;
      rate += static_cast<double>(lane.blocks) / lane.seconds;
      queries += lane.queries;
      cpu_s += lane.cpu_s;
      blocks += lane.blocks;
      ticks += lane.ticks;
      results += lane.results;
      latencies.Append(lane.latencies);
    }
    if (blocks == 0) return;
    result->block_ops = result->block_ops.value_or(0) + blocks;
    result->query_block_ops_per_s = rate;
    result->query_block_ops_per_cpu_s = static_cast<double>(blocks) / cpu_s;
    result->query_ns = latencies.InNs();
    result->ns_per_query_block =
        NsPerTick() * static_cast<double>(ticks) / static_cast<double>(blocks);
    result->results_per_query = static_cast<double>(results) / static_cast<double>(queries);
  }

  Index* const index_;
  const BenchInput& input_;
  const BenchOptions& options_;
  const TimeLimit limit_;
  std::vector<const BenchInput::Step*> built_;  // without event threads: applied before
  std::vector<const BenchInput::Step*> asked_;
  std::vector<EventLane> events_;
  std::vector<QueryLane> queries_;
  std::barrier<> meet_;
  std::atomic<size_t> lanes_done_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace

BenchResult RunClosed(const Contender& contender, const BenchInput& input,
                      const BenchOptions& options) {
  std::vector<BenchResult> repetitions;
  NsPerTick();
  std::unique_ptr<Index> index;
  for (uint32_t i = 0; i < options.repeat; ++i) {
    BenchResult result;
    absl::StatusOr<std::unique_ptr<Index>> next =
        NextIndex(contender, input.workers(), options.reuse, std::move(index));
    if (!next.ok()) {
      result.skipped = std::string(next.status().message());
      return result;
    }
    index = *std::move(next);
    ClosedRun run(index.get(), input, options);
    result.skipped = run.Run();
    if (result.skipped.has_value()) return result;
    run.Report(&result);
    char line[128];
    std::snprintf(line, sizeof(line), "%s closed %u+%u %u/%u: %.1f M events/s, %.1f M queries/s",
                  contender.name.c_str(), options.event_threads, options.query_threads, i + 1,
                  options.repeat, result.event_block_ops_per_s.value_or(0) / 1e6,
                  result.query_block_ops_per_s.value_or(0) / 1e6);
    options.progress(line);
    repetitions.push_back(std::move(result));
  }
  return Together(repetitions);
}

}  // namespace kvatlas
