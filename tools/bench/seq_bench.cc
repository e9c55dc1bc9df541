// How fast is a structure on one thread, operation by operation in the order of the file?
//
// Every operation is timed by itself; block ops per second are all hashes over the sum of the
// times, so what the harness does in between costs nothing. Answers go to memory that is used
// again.
//
// Two figures of the same passes: from nothing to the end (cold: every repetition begins with an
// empty structure), and of the second half of the operations alone (steady: the structure has what
// the first half left).

#include "tools/bench/modes.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "indexer/base/clock.h"
#include "tools/bench/bench_sink.h"
#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

constexpr size_t kStepsBetweenLooks = 64;
constexpr int kKinds = 5;  // `OpKind` is 1 … 4

// By step, how long it took.
using StepTicks = std::vector<uint64_t>;

enum class Part { kAll, kSecondHalf };

size_t FirstOf(const BenchInput& input, Part part) {
  return part == Part::kAll ? 0 : input.second_half();
}

// Beside times, of some steps.
struct Counts {
  double cpu_s = 0;
  uint64_t results = 0;
  uint64_t refused = 0;
};

// One pass over the input.
class Pass {
 public:
  Pass(Index* index, const BenchInput& input, const BenchOptions& options)
      : index_(index),
        input_(input),
        asker_(options),
        sink_(options.sink, index, &Clock::Real()),
        limit_(options.limit_s) {
    ticks_.reserve(input.steps().size());
  }

  // Why it was not finished, or nothing.
  std::optional<std::string> Run() {
    const auto all = static_cast<double>(input_.block_ops());
    uint64_t done = 0;
    size_t until_look = kStepsBetweenLooks;
    start_ = Now();
    for (const BenchInput::Step& step : input_.steps()) {
      if (ticks_.size() == input_.second_half()) middle_ = Now();
      ticks_.push_back(step.kind == OpKind::kQuery ? Query(step) : Write(step));
      done += step.blocks;
      if (--until_look > 0 && step.blocks < kStepsBetweenLooks) continue;
      until_look = kStepsBetweenLooks;
      auto exceeded = limit_.Exceeded(static_cast<double>(done), all);
      if (exceeded.has_value()) return exceeded;
    }
    end_ = Now();
    return std::nullopt;
  }

  const StepTicks& ticks() const { return ticks_; }
  const std::optional<std::string>& refused_why() const { return refused_why_; }
  const BenchSink& sink() const { return sink_; }
  // Of all steps, or of those from the second half's first on.
  Counts Of(Part part) const {
    const Counts& before = part == Part::kAll ? start_ : middle_;
    return {.cpu_s = end_.cpu_s - before.cpu_s,
            .results = end_.results - before.results,
            .refused = end_.refused - before.refused};
  }

 private:
  Counts Now() const { return {.cpu_s = CpuSeconds(), .results = results_, .refused = refused_}; }

  uint64_t Query(const BenchInput::Step& step) {
    const OverlapQuery& query = input_.query(step);
    const uint64_t start = Ticks();
    asker_.Ask(*index_, query);
    const uint64_t ticks = Ticks() - start;
    results_ += asker_.results();
    return ticks;
  }

  uint64_t Write(const BenchInput::Step& step) {
    const Event& event = input_.event(step);
    const HolderIndex holder{step.worker};
    const uint64_t start = Ticks();
    const absl::Status status = sink_.Apply(holder, event);
    const uint64_t ticks = Ticks() - start;
    if (!status.ok() && refused_++ == 0) refused_why_ = std::string(status.message());
    return ticks;
  }

  Index* const index_;
  const BenchInput& input_;
  Asker asker_;
  BenchSink sink_;
  const TimeLimit limit_;
  StepTicks ticks_;
  Counts start_, middle_, end_;  // since the beginning
  uint64_t results_ = 0;
  uint64_t refused_ = 0;
  std::optional<std::string> refused_why_;
};

struct Summary {
  uint64_t block_ops = 0;
  uint64_t queries = 0;
  Undisturbed speed;
};

// What the times of a part's steps say.
Summary SummaryOf(const BenchInput& input, const StepTicks& ticks, Part part) {
  uint64_t ticks_of[kKinds] = {}, blocks_of[kKinds] = {};
  Latencies queries, writes;
  queries.Reserve(input.queries());
  writes.Reserve(ticks.size() - input.queries());
  Summary summary;
  uint64_t ticks_sum = 0;
  for (size_t i = FirstOf(input, part); i < ticks.size(); ++i) {
    const BenchInput::Step& step = input.steps()[i];
    ticks_sum += ticks[i];
    ticks_of[static_cast<int>(step.kind)] += ticks[i];
    blocks_of[static_cast<int>(step.kind)] += step.blocks;
    summary.block_ops += step.blocks;
    (step.kind == OpKind::kQuery ? queries : writes).Add(ticks[i]);
  }
  const auto ns_per_block = [&](OpKind kind) -> std::optional<double> {
    const int k = static_cast<int>(kind);
    if (blocks_of[k] == 0) return std::nullopt;
    return NsPerTick() * static_cast<double>(ticks_of[k]) / static_cast<double>(blocks_of[k]);
  };
  Undisturbed& speed = summary.speed;
  speed.block_ops_per_s = 1e9 * static_cast<double>(summary.block_ops) /
                          (NsPerTick() * static_cast<double>(std::max<uint64_t>(1, ticks_sum)));
  speed.ns_per_query_block = ns_per_block(OpKind::kQuery);
  speed.ns_per_stored_block = ns_per_block(OpKind::kStore);
  speed.ns_per_removed_block = ns_per_block(OpKind::kRemove);
  summary.queries = queries.size();
  if (queries.size() > 0) speed.query_ns = queries.InNs();
  if (writes.size() > 0) speed.write_ns = writes.InNs();
  return summary;
}

BenchResult ResultOf(const BenchInput& input, const Pass& pass, Part part) {
  const Summary summary = SummaryOf(input, pass.ticks(), part);
  const Counts counts = pass.Of(part);
  BenchResult result;
  result.block_ops = summary.block_ops;
  result.block_ops_per_s = summary.speed.block_ops_per_s;
  result.block_ops_per_cpu_s = static_cast<double>(summary.block_ops) / counts.cpu_s;
  result.ns_per_query_block = summary.speed.ns_per_query_block;
  result.ns_per_stored_block = summary.speed.ns_per_stored_block;
  result.ns_per_removed_block = summary.speed.ns_per_removed_block;
  result.query_ns = summary.speed.query_ns;
  result.write_ns = summary.speed.write_ns;
  result.refused_events = counts.refused;
  if (counts.refused > 0) result.refused_why = pass.refused_why();
  if (pass.sink().coverage() != nullptr) {
    const CoverageStats stats = pass.sink().coverage()->Stats();
    result.coverage = {.covered = stats.covered, .announced = stats.announced};
  }
  if (summary.queries > 0) {
    result.results_per_query =
        static_cast<double>(counts.results) / static_cast<double>(summary.queries);
  }
  return result;
}

}  // namespace

BenchResult RunSeq(const Contender& contender, const BenchInput& input,
                   const BenchOptions& options) {
  std::vector<BenchResult> repetitions, second_halves;
  std::unique_ptr<Index> index;
  StepTicks fastest;
  for (uint32_t i = 0; i < options.repeat; ++i) {
    BenchResult result;
    absl::StatusOr<std::unique_ptr<Index>> next =
        NextIndex(contender, input.workers(), options.reuse, std::move(index));
    if (!next.ok()) {
      result.skipped = std::string(next.status().message());
      return result;
    }
    index = *std::move(next);
    Pass pass(index.get(), input, options);
    result.skipped = pass.Run();
    if (result.skipped.has_value()) return result;
    result = ResultOf(input, pass, Part::kAll);
    second_halves.push_back(ResultOf(input, pass, Part::kSecondHalf));
    if (i == 1) fastest = pass.ticks();
    for (size_t step = 0; step < fastest.size(); ++step) {
      fastest[step] = std::min(fastest[step], pass.ticks()[step]);
    }
    char line[160];
    std::snprintf(line, sizeof(line),
                  "%s seq %u/%u: %.1f M block ops/s, %.1f per cpu second; steady %.1f, %.1f",
                  contender.name.c_str(), i + 1, options.repeat, *result.block_ops_per_s / 1e6,
                  *result.block_ops_per_cpu_s / 1e6, *second_halves.back().block_ops_per_s / 1e6,
                  *second_halves.back().block_ops_per_cpu_s / 1e6);
    options.progress(line);
    repetitions.push_back(std::move(result));
  }
  BenchResult together = Together(repetitions), steady = Together(second_halves);
  if (options.repeat > 2) {
    together.undisturbed = SummaryOf(input, fastest, Part::kAll).speed;
    steady.undisturbed = SummaryOf(input, fastest, Part::kSecondHalf).speed;
  }
  together.steady = std::make_shared<const BenchResult>(std::move(steady));
  return together;
}

BenchResult RunSteady(const Contender& contender, const BenchInput& input,
                      const BenchOptions& options) {
  BenchResult result = RunSeq(contender, input, options);
  return result.steady == nullptr ? result : *result.steady;
}

}  // namespace kvatlas
