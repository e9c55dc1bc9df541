// What does each structure do with this input? All modes over several structures: what
// `index_bench` runs.

#ifndef KVATLAS_TOOLS_BENCH_INDEX_BENCH_H_
#define KVATLAS_TOOLS_BENCH_INDEX_BENCH_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/bench_result.h"
#include "tools/bench/contender.h"
#include "tools/bench/ops.h"

namespace kvatlas {

enum class BenchMode { kSeq, kSteady, kClosed, kOpen, kMem };

std::string_view NameOf(BenchMode mode);
std::string_view NameOf(QueryForm form);
std::string_view NameOf(SinkKind sink);

struct BenchPlan {
  BenchMode mode = BenchMode::kSeq;
  BenchOptions options;
};

// One result for every structure, `done` called with each as it comes. Speed is measured for `null`
// first and stands beside all as the harness's own cost.
std::vector<BenchResult> RunBench(const std::vector<Contender>& contenders, const OpsFile& file,
                                  const BenchPlan& plan,
                                  const std::function<void(const BenchResult&)>& done);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_INDEX_BENCH_H_
