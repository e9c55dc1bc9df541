// The memory budget of a process: its resident memory against what it may use, in levels at which
// it stops taking on more.
//
//   level      from    what changes
//   ample              nothing
//   tight      80 %    of new blocks only heads of sequences are taken; who is refused some is degraded
//   full       90 %    no new block, domain, holder, dump, snapshot or explanation
//   critical   95 %    no large question either
//
// Health, metrics, acknowledgements, removals, known blocks and small questions go on at every
// level. A level ends 2 % below where it begins.
// *Place*: the process has one; its timer measures, everything else asks `level`.
// `IndexOptions::memory` carries it.
// *Truth*: what the meter says, which is what the system counts as resident (`process_memory.h`),
// so that nothing is forgotten: the parts that are named are for people to read, and what none of
// them has (code, threads, gRPC, free memory that the allocator keeps) is the rest.
// *Threads*: `level` and `used_bytes` any; `Measure` one; `AddPart` before the others.
// *Cost*: `level` reads an atomic; `Measure` reads a file of the system.
//
// Example:
//   MemoryBudget memory(*MemoryBudget::Parse("70%", MemoryLimitBytes()), ResidentBytes);
//   memory.Measure();   // five times a second
//   if (absl::Status full = memory.Check(MemoryLevel::kFull, "domains"); !full.ok()) return full;

#ifndef KVATLAS_INDEXER_BASE_MEMORY_BUDGET_H_
#define KVATLAS_INDEXER_BASE_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {

enum class MemoryLevel : uint8_t { kAmple, kTight, kFull, kCritical };

std::string_view MemoryLevelName(MemoryLevel level);

class MemoryBudget {
 public:
  using Meter = std::function<uint64_t()>;

  static constexpr char kDefault[] = "70%";
  // From these parts of a hundred on.
  static constexpr uint64_t kTightPercent = 80, kFullPercent = 90, kCriticalPercent = 95;

  // "8000000000", "8G" (also K, M, T; powers of 1024), "70%" of `limit_bytes`, "0": no budget.
  // INVALID_ARGUMENT.
  static absl::StatusOr<uint64_t> Parse(std::string_view text, uint64_t limit_bytes);

  // 0: always ample.
  MemoryBudget(uint64_t bytes_max, Meter meter) : bytes_max_(bytes_max), meter_(std::move(meter)) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Asked for figures only, perhaps taking its time.
  void AddPart(std::string name, Meter bytes) {
    parts_.emplace_back(std::move(name), std::move(bytes));
  }

  // Returns the level before and the one now.
  std::pair<MemoryLevel, MemoryLevel> Measure();

  MemoryLevel level() const { return level_.load(std::memory_order_relaxed); }
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t bytes_max() const { return bytes_max_; }

  // RESOURCE_EXHAUSTED from that level on: "memory is full (92 % of --memory_budget): no new
  // domains".
  absl::Status Check(MemoryLevel from, std::string_view what) const;

  // The bytes of each part, and what is left as "rest".
  std::vector<std::pair<std::string, uint64_t>> Parts() const;

 private:
  const uint64_t bytes_max_;
  const Meter meter_;
  std::vector<std::pair<std::string, Meter>> parts_;
  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<MemoryLevel> level_{MemoryLevel::kAmple};
};

// As `MemoryBudget::Check`, for a budget that may be missing.
inline absl::Status CheckMemory(const MemoryBudget* memory, MemoryLevel from,
                                std::string_view what) {
  return memory == nullptr || memory->level() < from ? absl::OkStatus() : memory->Check(from, what);
}

// Questions of at most this many blocks are answered at every level.
inline constexpr uint64_t kSmallQuestionBlocksMax = 1024;

// Whether a question of so many blocks is answered now.
inline absl::Status CheckMemoryForQuestion(const MemoryBudget* memory, uint64_t blocks) {
  if (blocks <= kSmallQuestionBlocksMax) return absl::OkStatus();
  return CheckMemory(memory, MemoryLevel::kCritical, "questions of more than 1,024 blocks");
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_MEMORY_BUDGET_H_
