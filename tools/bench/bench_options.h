// How is a structure measured? The options that all modes share, and asking in the form that was
// chosen.

#ifndef KVATLAS_TOOLS_BENCH_BENCH_OPTIONS_H_
#define KVATLAS_TOOLS_BENCH_BENCH_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/index/index.h"

namespace kvatlas {

// What a query asks for: every holder; depths with holder sets; every holder, the chain of local
// hashes hashed first; every holder with its tiers.
enum class QueryForm { kFull, kCompact, kContent, kTiers };

// What is done with the changes that an event makes (`bench_sink.h`).
enum class SinkKind { kNone, kDigest, kCoverage };

struct BenchOptions {
  QueryForm query = QueryForm::kFull;
  SinkKind sink = SinkKind::kNone;
  uint32_t event_threads = 1;
  uint32_t query_threads = 1;
  uint32_t repeat = 1;
  // Queries that are checked; 0: none.
  uint64_t check = 0;
  uint32_t write_blocks_max = 0;
  // A repetition that would take more processor time is not finished.
  double limit_s = 120;
  // Closed loop without events: every query thread asks all queries so often.
  uint32_t query_passes = 20;
  // Open loop: one speed instead of the search for the highest; 0: search.
  double speed = 0;
  // Memory: how many times the live holdings are replaced after building; 0: not.
  uint32_t churn = 0;
  // Repetitions clear one structure and go on with it, instead of making a new one.
  bool reuse = false;
  // Told what goes on.
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

// Asks in one form and keeps the memory of the answers. One thread.
class Asker {
 public:
  explicit Asker(const BenchOptions& options) : form_(options.query) {}

  void Ask(const Index& index, const OverlapQuery& query) {
    overlaps_.clear();
    switch (form_) {
      case QueryForm::kFull:
        return index.FindOverlaps(query, &overlaps_);
      case QueryForm::kCompact:
        return index.FindSteps(query, &steps_);
      case QueryForm::kContent: {
        const std::vector<SequenceHash> blocks = SequenceHashes(query.local_hashes);
        return index.FindOverlaps({.blocks = blocks, .local_hashes = query.local_hashes},
                                  &overlaps_);
      }
      case QueryForm::kTiers:
        tiers_.clear();
        return index.FindTierOverlaps(query, &tiers_);
    }
  }

  // Entries of the last answer: holders, or steps.
  size_t results() const {
    if (form_ == QueryForm::kCompact) return steps_.depths.size();
    return form_ == QueryForm::kTiers ? tiers_.size() : overlaps_.size();
  }

  // The last answer, expanded.
  std::vector<Overlap> Answer() const;

 private:
  const QueryForm form_;
  std::vector<Overlap> overlaps_;
  std::vector<TierOverlap> tiers_;
  OverlapSteps steps_;
};

// Stops what would take too long: estimates the whole from the part that is done. Counts processor
// time, so a busy machine does not change what is measured.
class TimeLimit {
 public:
  explicit TimeLimit(double limit_s);

  // What to say when it would take too long; nothing as long as it would not. `done` and `all` in
  // any unit.
  std::optional<std::string> Exceeded(double done, double all) const;

 private:
  const double limit_s_;
  const double start_s_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_BENCH_OPTIONS_H_
