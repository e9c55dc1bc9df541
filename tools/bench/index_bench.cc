#include "tools/bench/index_bench.h"

#include <malloc.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tools/bench/bench_input.h"
#include "tools/bench/check.h"
#include "tools/bench/modes.h"

namespace kvatlas {
namespace {

// The allocator keeps what is freed, so that only the first repetition touches new pages.
void KeepFreedMemory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 0x7fffffff);
  mallopt(M_TOP_PAD, 64 << 20);
}

BenchResult RunTimed(BenchMode mode, const Contender& contender, const BenchInput& input,
                     const BenchOptions& options) {
  if (mode == BenchMode::kClosed) return RunClosed(contender, input, options);
  if (mode == BenchMode::kOpen) return RunOpen(contender, input, options);
  if (mode == BenchMode::kSteady) return RunSteady(contender, input, options);
  return RunSeq(contender, input, options);
}

HarnessCost CostOf(const BenchResult& null) {
  return {.block_ops_per_s = null.block_ops_per_s.value_or(0),
          .ns_per_stored_block = null.ns_per_stored_block,
          .ns_per_removed_block = null.ns_per_removed_block,
          .ns_per_query_block = null.ns_per_query_block};
}

void Label(const BenchPlan& plan, const std::string& name, BenchResult* result) {
  const BenchOptions& options = plan.options;
  const bool alone = plan.mode != BenchMode::kClosed && plan.mode != BenchMode::kOpen;
  result->index = name;
  result->mode = NameOf(plan.mode);
  result->query = NameOf(options.query);
  result->sink = NameOf(options.sink);
  result->event_threads = alone ? 1 : options.event_threads;
  result->query_threads = alone ? 1 : options.query_threads;
  if (options.write_blocks_max > 0) result->write_blocks_max = options.write_blocks_max;
}

class Runner {
 public:
  Runner(const OpsFile& file, const BenchPlan& plan) : file_(file), plan_(plan) {}

  // In mem mode nothing may be made before the last fork.
  void RunMemory(const std::vector<Contender>& contenders, std::vector<BenchResult>* results) {
    for (const Contender& contender : contenders) {
      results->push_back(RunMem(contender, file_, plan_.options));
    }
  }

  BenchInput& input() {
    if (input_ == nullptr) {
      plan_.options.progress("preparing the input");
      input_ = std::make_unique<BenchInput>(file_, plan_.options.write_blocks_max);
    }
    return *input_;
  }

  void AddCheck(const Contender& contender, BenchResult* result) {
    if (plan_.options.check == 0 || result->skipped.has_value()) return;
    if (expected_ == nullptr) {
      plan_.options.progress("computing the expected answers");
      expected_ = std::make_unique<ExpectedAnswers>(input(), plan_.options.check);
    }
    const BenchResult checked = RunCheck(contender, input(), *expected_, plan_.options);
    result->check = checked.check;
    result->check_skipped = checked.skipped;
  }

 private:
  const OpsFile& file_;
  const BenchPlan& plan_;
  std::unique_ptr<BenchInput> input_;
  std::unique_ptr<ExpectedAnswers> expected_;
};

}  // namespace

std::string_view NameOf(BenchMode mode) {
  constexpr std::string_view kNames[] = {"seq", "steady", "closed", "open", "mem"};
  return kNames[static_cast<int>(mode)];
}

std::string_view NameOf(QueryForm form) {
  constexpr std::string_view kNames[] = {"full", "compact", "content", "tiers"};
  return kNames[static_cast<int>(form)];
}

std::string_view NameOf(SinkKind sink) {
  constexpr std::string_view kNames[] = {"none", "digest", "coverage"};
  return kNames[static_cast<int>(sink)];
}

std::vector<BenchResult> RunBench(const std::vector<Contender>& contenders, const OpsFile& file,
                                  const BenchPlan& plan,
                                  const std::function<void(const BenchResult&)>& done) {
  Runner runner(file, plan);
  std::vector<BenchResult> results;
  if (plan.mode == BenchMode::kMem) {
    runner.RunMemory(contenders, &results);
    for (size_t i = 0; i < results.size(); ++i) {
      runner.AddCheck(contenders[i], &results[i]);
      Label(plan, contenders[i].name, &results[i]);
      done(results[i]);
    }
    return results;
  }
  KeepFreedMemory();
  BenchInput& input = runner.input();
  std::optional<HarnessCost> harness;
  if (plan.mode != BenchMode::kOpen) {
    harness = CostOf(RunTimed(plan.mode, NullContender(), input, plan.options));
  }
  for (const Contender& contender : contenders) {
    BenchResult result = RunTimed(plan.mode, contender, input, plan.options);
    runner.AddCheck(contender, &result);
    Label(plan, contender.name, &result);
    result.harness = harness;
    done(result);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace kvatlas
