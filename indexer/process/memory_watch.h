// Measures the memory of the process and logs when it gets tight: a timer's part of a
// `MemoryBudget`.
//
// It also gives free memory back to the system: by itself the allocator gives back only what lies
// at the end of an arena, and after thousands of calls at once something that lives lies behind.
// *Threads*: one. *Cost*: microseconds, every `kLookEvery` some ten more. Giving back takes
// milliseconds; it is done where the allocator keeps `kKeptMore` more than at the least since the
// last time, and while memory is not ample, every `kTrimEvery`.

#ifndef KVATLAS_INDEXER_PROCESS_MEMORY_WATCH_H_
#define KVATLAS_INDEXER_PROCESS_MEMORY_WATCH_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/memory_budget.h"
#include "indexer/process/flags.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

class MemoryWatch {
 public:
  static constexpr Duration kLookEvery = std::chrono::seconds(2);
  static constexpr Duration kTrimEvery = std::chrono::seconds(10);
  static constexpr uint64_t kKeptMore = uint64_t{16} << 20;

  explicit MemoryWatch(MemoryBudget* memory) : memory_(memory) {}

  // Several times a second.
  void Tick();

 private:
  static uint64_t Kept();

  MemoryBudget* const memory_;
  Time look_at_{0};
  Time trim_at_{0};
  uint64_t kept_least_ = UINT64_MAX;
};

// --memory_budget, with the default of every process that serves.
void AddMemoryFlag(FlagSet& flags, std::string* value);
// INVALID_ARGUMENT names the flag.
absl::StatusOr<uint64_t> ReadMemoryFlag(const std::string& value);
// The measure that counts against `bytes_max`: resident memory; where addresses are limited, also
// as large a part of `bytes_max` as of the addresses is mapped. Indexes never map more than three
// quarters of the addresses, which is ample.
MemoryBudget::Meter MemoryMeter(uint64_t bytes_max);

// "<prefix>_memory_budget_bytes" and so on, for `Metrics::OnScrape`.
void SetMemoryGauges(const MemoryBudget& memory, const std::string& prefix, Metrics* metrics);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_MEMORY_WATCH_H_
