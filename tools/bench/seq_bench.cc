#include "tools/bench/seq_bench.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "tools/bench/thread_pool.h"
#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

constexpr size_t kStepsBetweenLooks = 64;
constexpr int kKinds = 5;  // `OpKind` is 1 … 4

// By step, how long it took.
using StepTicks = std::vector<uint64_t>;

// One pass over the input.
class Pass {
 public:
  Pass(Index* index, ThreadPool* pool, const BenchInput& input, const BenchOptions& options)
      : index_(index), pool_(pool), input_(input), asker_(options), limit_(options.limit_s) {
    ticks_.reserve(input.steps().size());
  }

  // Why it was not finished, or nothing.
  std::optional<std::string> Run() {
    const auto all = static_cast<double>(input_.block_ops());
    const double start_s = CpuSeconds();
    uint64_t done = 0;
    size_t until_look = kStepsBetweenLooks;
    for (const BenchInput::Step& step : input_.steps()) {
      ticks_.push_back(step.kind == OpKind::kQuery ? Query(step) : Write(step));
      done += step.blocks;
      if (--until_look > 0 && step.blocks < kStepsBetweenLooks) continue;
      until_look = kStepsBetweenLooks;
      auto exceeded = limit_.Exceeded(static_cast<double>(done), all);
      if (exceeded.has_value()) return exceeded;
    }
    cpu_s_ = CpuSeconds() - start_s;
    return std::nullopt;
  }

  const StepTicks& ticks() const { return ticks_; }
  uint64_t results() const { return results_; }
  uint64_t refused() const { return refused_; }
  const std::optional<std::string>& refused_why() const { return refused_why_; }
  double cpu_s() const { return cpu_s_; }

 private:
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
    const absl::Status status = index_->Apply(holder, event, nullptr);
    if (pool_ != nullptr) pool_->Drain();
    const uint64_t ticks = Ticks() - start;
    if (!status.ok() && refused_++ == 0) refused_why_ = std::string(status.message());
    return ticks;
  }

  Index* const index_;
  ThreadPool* const pool_;  // null: the structure works on this thread
  const BenchInput& input_;
  Asker asker_;
  const TimeLimit limit_;
  StepTicks ticks_;
  double cpu_s_ = 0;
  uint64_t results_ = 0;
  uint64_t refused_ = 0;
  std::optional<std::string> refused_why_;
};

// What the times of all steps say.
Undisturbed Summary(const BenchInput& input, const StepTicks& ticks) {
  uint64_t ticks_of[kKinds] = {}, blocks_of[kKinds] = {};
  Latencies queries, writes;
  queries.Reserve(input.queries());
  writes.Reserve(ticks.size() - input.queries());
  uint64_t ticks_sum = 0;
  for (size_t i = 0; i < ticks.size(); ++i) {
    const BenchInput::Step& step = input.steps()[i];
    ticks_sum += ticks[i];
    ticks_of[static_cast<int>(step.kind)] += ticks[i];
    blocks_of[static_cast<int>(step.kind)] += step.blocks;
    (step.kind == OpKind::kQuery ? queries : writes).Add(ticks[i]);
  }
  const auto ns_per_block = [&](OpKind kind) -> std::optional<double> {
    const int k = static_cast<int>(kind);
    if (blocks_of[k] == 0) return std::nullopt;
    return NsPerTick() * static_cast<double>(ticks_of[k]) / static_cast<double>(blocks_of[k]);
  };
  Undisturbed summary;
  summary.block_ops_per_s = 1e9 * static_cast<double>(input.block_ops()) /
                            (NsPerTick() * static_cast<double>(std::max<uint64_t>(1, ticks_sum)));
  summary.ns_per_query_block = ns_per_block(OpKind::kQuery);
  summary.ns_per_stored_block = ns_per_block(OpKind::kStore);
  summary.ns_per_removed_block = ns_per_block(OpKind::kRemove);
  if (queries.size() > 0) summary.query_ns = queries.InNs();
  if (writes.size() > 0) summary.write_ns = writes.InNs();
  return summary;
}

BenchResult ResultOf(const BenchInput& input, const Pass& pass) {
  const Undisturbed summary = Summary(input, pass.ticks());
  const auto block_ops = static_cast<double>(input.block_ops());
  BenchResult result;
  result.block_ops = input.block_ops();
  result.block_ops_per_s = summary.block_ops_per_s;
  result.block_ops_per_cpu_s = block_ops / pass.cpu_s();
  result.ns_per_query_block = summary.ns_per_query_block;
  result.ns_per_stored_block = summary.ns_per_stored_block;
  result.ns_per_removed_block = summary.ns_per_removed_block;
  result.query_ns = summary.query_ns;
  result.write_ns = summary.write_ns;
  result.refused_events = pass.refused();
  result.refused_why = pass.refused_why();
  if (input.queries() > 0) {
    result.results_per_query =
        static_cast<double>(pass.results()) / static_cast<double>(input.queries());
  }
  return result;
}

}  // namespace

BenchResult RunSeq(const Contender& contender, const BenchInput& input,
                   const BenchOptions& options) {
  std::vector<BenchResult> repetitions;
  std::unique_ptr<ThreadPool> pool;
  if (options.executor_threads > 0) pool = std::make_unique<ThreadPool>(options.executor_threads);
  std::unique_ptr<Index> index;
  StepTicks fastest;
  for (uint32_t i = 0; i < options.repeat; ++i) {
    BenchResult result;
    absl::StatusOr<std::unique_ptr<Index>> next =
        NextIndex(contender, input.workers(), options.reuse, pool.get(), std::move(index));
    if (!next.ok()) {
      result.skipped = std::string(next.status().message());
      return result;
    }
    index = *std::move(next);
    Pass pass(index.get(), pool.get(), input, options);
    result.skipped = pass.Run();
    if (result.skipped.has_value()) return result;
    result = ResultOf(input, pass);
    if (i == 1) fastest = pass.ticks();
    for (size_t step = 0; step < fastest.size(); ++step) {
      fastest[step] = std::min(fastest[step], pass.ticks()[step]);
    }
    char line[128];
    std::snprintf(line, sizeof(line), "%s seq %u/%u: %.1f M block ops/s, %.1f per cpu second",
                  contender.name.c_str(), i + 1, options.repeat, *result.block_ops_per_s / 1e6,
                  *result.block_ops_per_cpu_s / 1e6);
    options.progress(line);
    repetitions.push_back(std::move(result));
  }
  BenchResult together = Together(repetitions);
  if (options.repeat > 2) together.undisturbed = Summary(input, fastest);
  return together;
}

}  // namespace kvatlas
