// What does every worker hold when a file has been played? Counted in another process, so that
// counting leaves no trace in the memory of the one that asks.

#ifndef KVATLAS_TOOLS_BENCH_FINAL_HOLDINGS_H_
#define KVATLAS_TOOLS_BENCH_FINAL_HOLDINGS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/ids.h"
#include "tools/bench/ops.h"

namespace kvatlas {

// Runs `task` in a child process and waits for it. What it leaves in shared memory stays; it must
// not throw. INTERNAL when the child did not end well.
absl::Status RunInChild(const std::function<void()>& task);

// Memory that a child process and its parent share; zeroed, and never counted as anonymous.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  // Null when the system had none.
  void* data() const { return data_; }

 private:
  void* data_;
  size_t bytes_;
};

class FinalHoldings {
 public:
  static absl::StatusOr<FinalHoldings> Of(const OpsFile& file);

  uint64_t holdings() const { return header()->holdings; }
  uint64_t distinct_blocks() const { return header()->distinct_blocks; }
  // Heads of sequences tend to come first.
  std::span<const SequenceHash> of(uint32_t worker) const;

 private:
  struct Header {
    uint64_t holdings;
    uint64_t distinct_blocks;
  };

  FinalHoldings(SharedMemory memory, uint32_t workers)
      : memory_(std::move(memory)), workers_(workers) {}
  static void Count(const OpsFile& file, FinalHoldings* into);

  Header* header() const { return static_cast<Header*>(memory_.data()); }
  // By worker, where its blocks end; then the blocks.
  uint64_t* ends() const { return reinterpret_cast<uint64_t*>(header() + 1); }
  SequenceHash* blocks() const { return reinterpret_cast<SequenceHash*>(ends() + workers_); }

  SharedMemory memory_;
  uint32_t workers_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_FINAL_HOLDINGS_H_
