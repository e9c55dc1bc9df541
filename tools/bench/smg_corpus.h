// What does a benchmark corpus of SMG's replay harness ask of an index, in our terms?
//
// *Format*: SMGMCK01 version 1, little-endian, nothing aligned: magic; u32 version, block_size; u64
// window, trace_dup, length factor, worker_dup, workers; 7 u64 totals; u64 length and the trace's
// path; three slabs (query hashes, stored pairs, removed hashes), each with its count first; u64
// count of operations, which point into the slabs.
// *Truth*: an engine's hash means something to that engine only, so it is looked up per worker
// rank. Each worker and data-parallel rank becomes a worker of its own, in the order of their first
// events. A store whose parent was never stored by that rank is refused: its sequence hashes cannot
// be known. A removal of what was never stored names nothing and is left out.
// *Bounds*: 2^32 blocks in an operation. Checked: dense ids, deadlines that do not go back, totals,
// slabs, no trailing bytes.

#ifndef KVATLAS_TOOLS_BENCH_SMG_CORPUS_H_
#define KVATLAS_TOOLS_BENCH_SMG_CORPUS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "tools/bench/ops.h"

namespace kvatlas {

struct SmgCorpus {
  uint32_t block_size = 0;
  uint32_t workers = 0;

  // Operations in order; `first` is where the operation's blocks begin in `blocks` or `removed`.
  struct Operation {
    OpHeader header;
    size_t first = 0;
  };
  std::vector<Operation> operations;
  std::vector<OpBlock> blocks;
  std::vector<SequenceHash> removed;

  // The same as `BenchOp`s that point into this; it must not change afterwards.
  std::vector<BenchOp> Ops() const;
};

bool IsSmgCorpus(std::span<const unsigned char> bytes);

// INVALID_ARGUMENT "operation N: reason".
absl::Status ReadSmgCorpus(std::span<const unsigned char> bytes, SmgCorpus* corpus);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SMG_CORPUS_H_
