#include "tools/bench/seq_bench.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "tools/bench/thread_pool.h"
#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

constexpr size_t kStepsBetweenLooks = 64;
constexpr int kKinds = 5;  // `OpKind` is 1 … 4

// One pass over the input.
class Pass {
 public:
  Pass(Index* index, ThreadPool* pool, const BenchInput& input, const BenchOptions& options)
      : index_(index), pool_(pool), input_(input), asker_(options), limit_(options.limit_s) {
    writes_.Reserve(input.steps().size() - input.queries());
    queries_.Reserve(input.queries());
  }

  // Why it was not finished, or nothing.
  std::optional<std::string> Run() {
    uint64_t done = 0;
    size_t until_look = kStepsBetweenLooks;
    for (const BenchInput::Step& step : input_.steps()) {
      step.kind == OpKind::kQuery ? Query(step) : Write(step);
      done += step.blocks;
      if (--until_look > 0 && step.blocks < kStepsBetweenLooks) continue;
      until_look = kStepsBetweenLooks;
      auto exceeded =
          limit_.Exceeded(static_cast<double>(done), static_cast<double>(input_.block_ops()));
      if (exceeded.has_value()) return exceeded;
    }
    return std::nullopt;
  }

  void Report(BenchResult* result) {
    uint64_t ticks = 0;
    for (uint64_t of_kind : ticks_) ticks += of_kind;
    result->block_ops = input_.block_ops();
    result->block_ops_per_s =
        1e9 * static_cast<double>(input_.block_ops()) / (NsPerTick() * static_cast<double>(ticks));
    result->ns_per_query_block = NsPerBlock(OpKind::kQuery);
    result->ns_per_stored_block = NsPerBlock(OpKind::kStore);
    result->ns_per_removed_block = NsPerBlock(OpKind::kRemove);
    result->refused_events = refused_;
    if (queries_.size() > 0) {
      result->results_per_query =
          static_cast<double>(results_) / static_cast<double>(queries_.size());
      result->query_ns = queries_.InNs();
    }
    if (writes_.size() > 0) result->write_ns = writes_.InNs();
  }

 private:
  void Query(const BenchInput::Step& step) {
    const OverlapQuery& query = input_.query(step);
    const uint64_t start = Ticks();
    asker_.Ask(*index_, query);
    const uint64_t ticks = Ticks() - start;
    Count(step, ticks);
    queries_.Add(ticks);
    results_ += asker_.results();
  }

  void Write(const BenchInput::Step& step) {
    const Event& event = input_.event(step);
    const HolderIndex holder{step.worker};
    const uint64_t start = Ticks();
    const absl::Status status = index_->Apply(holder, event, nullptr);
    if (pool_ != nullptr) pool_->Drain();
    const uint64_t ticks = Ticks() - start;
    Count(step, ticks);
    writes_.Add(ticks);
    refused_ += !status.ok();
  }

  void Count(const BenchInput::Step& step, uint64_t ticks) {
    ticks_[static_cast<int>(step.kind)] += ticks;
    blocks_[static_cast<int>(step.kind)] += step.blocks;
  }

  std::optional<double> NsPerBlock(OpKind kind) const {
    const auto blocks = static_cast<double>(blocks_[static_cast<int>(kind)]);
    if (blocks == 0) return std::nullopt;
    return NsPerTick() * static_cast<double>(ticks_[static_cast<int>(kind)]) / blocks;
  }

  Index* const index_;
  ThreadPool* const pool_;  // null: the structure works on this thread
  const BenchInput& input_;
  Asker asker_;
  const TimeLimit limit_;
  uint64_t ticks_[kKinds] = {};
  uint64_t blocks_[kKinds] = {};
  Latencies queries_, writes_;
  uint64_t results_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace

BenchResult RunSeq(const Contender& contender, const BenchInput& input,
                   const BenchOptions& options) {
  std::vector<BenchResult> repetitions;
  std::unique_ptr<ThreadPool> pool;
  if (options.executor_threads > 0) pool = std::make_unique<ThreadPool>(options.executor_threads);
  std::unique_ptr<Index> index;
  for (uint32_t i = 0; i < options.repeat; ++i) {
    BenchResult result;
    if (index == nullptr || !options.reuse) {
      index.reset();
      absl::StatusOr<std::unique_ptr<Index>> made =
          MakeWithHolders(contender, WarmOptions(input.workers(), pool.get()), input.workers());
      if (!made.ok()) {
        result.skipped = std::string(made.status().message());
        return result;
      }
      index = *std::move(made);
    } else {
      for (uint32_t worker = 0; worker < input.workers(); ++worker) {
        index->Apply(HolderIndex{worker}, Cleared{}, nullptr).IgnoreError();
      }
    }
    Pass pass(index.get(), pool.get(), input, options);
    result.skipped = pass.Run();
    if (result.skipped.has_value()) return result;
    pass.Report(&result);
    char line[96];
    std::snprintf(line, sizeof(line), "%s seq %u/%u: %.1f M block ops/s", contender.name.c_str(),
                  i + 1, options.repeat, *result.block_ops_per_s / 1e6);
    options.progress(line);
    repetitions.push_back(std::move(result));
  }
  return Together(repetitions);
}

}  // namespace kvatlas
