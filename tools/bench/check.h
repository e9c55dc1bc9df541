// How often is a structure wrong? Its answers to some queries of a file beside those of a model
// that is too simple to be wrong: a hash set for every worker.
//
// *Truth*: both directions count: a holder that is promised too much (`over`, also one that does
// not exist or is named twice) and one that is promised too little or left out (`under`).
// *Cost*: the expected answers are computed once for all structures: 8 bytes a pair.

#ifndef KVATLAS_TOOLS_BENCH_CHECK_H_
#define KVATLAS_TOOLS_BENCH_CHECK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "indexer/base/overlap.h"
#include "tools/bench/bench_input.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/bench_result.h"
#include "tools/bench/contender.h"

namespace kvatlas {

class ExpectedAnswers {
 public:
  // Of `samples` queries, drawn evenly from all; all when there are not more.
  ExpectedAnswers(const BenchInput& input, uint64_t samples);

  // Whether the query with this number (from 0) is one of them.
  bool Sampled(uint64_t query) const {
    return samples_ >= queries_ || (query + 1) * samples_ / queries_ > query * samples_ / queries_;
  }

  uint64_t samples() const { return ends_.size(); }
  // Of the sample with this number, by holder.
  std::span<const Overlap> answer(size_t sample) const;

 private:
  const uint64_t samples_;
  const uint64_t queries_;
  std::vector<Overlap> overlaps_;
  std::vector<size_t> ends_;
};

// Runs the whole input once, untimed; fills `check` of the result, or `skipped`.
BenchResult RunCheck(const Contender& contender, const BenchInput& input,
                     const ExpectedAnswers& expected, const BenchOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_CHECK_H_
