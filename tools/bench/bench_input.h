// What is handed to a structure, ready made? An ops file as events and queries of `index.h`, so
// that no measurement pays for making them.

#ifndef KVATLAS_TOOLS_BENCH_BENCH_INPUT_H_
#define KVATLAS_TOOLS_BENCH_BENCH_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/index/index.h"
#include "tools/bench/ops.h"

namespace kvatlas {

// The event of a store, remove or clear; blocks [from, to) of it.
Event EventOf(const BenchOp& op, size_t from, size_t to);

class BenchInput {
 public:
  struct Step {
    OpKind kind = OpKind::kQuery;
    uint32_t worker = 0;
    uint32_t blocks = 0;
    uint32_t place = 0;  // in `events` or `queries`
    uint64_t time_ns = 0;
  };

  // Events with more than `write_blocks_max` blocks are cut into pieces; 0: as they are.
  BenchInput(const OpsFile& file, uint32_t write_blocks_max);
  BenchInput(const BenchInput&) = delete;
  BenchInput& operator=(const BenchInput&) = delete;

  uint32_t workers() const { return workers_; }
  // Hashes in everything.
  uint64_t block_ops() const { return block_ops_; }
  const std::vector<Step>& steps() const { return steps_; }
  // The number of the step with which the second half of the file's operations begins, however
  // events are cut.
  size_t second_half() const { return second_half_; }
  const Event& event(const Step& step) const { return events_[step.place]; }
  const OverlapQuery& query(const Step& step) const { return queries_[step.place]; }
  size_t queries() const { return queries_.size(); }

 private:
  void AddQuery(const BenchOp& op, size_t first);
  void AddEvents(const BenchOp& op, uint32_t write_blocks_max);

  uint32_t workers_;
  uint64_t block_ops_ = 0;
  size_t second_half_ = 0;
  std::vector<Step> steps_;
  std::vector<Event> events_;
  std::vector<OverlapQuery> queries_;
  std::vector<SequenceHash> blocks_;  // of all queries
  std::vector<LocalHash> locals_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_BENCH_INPUT_H_
