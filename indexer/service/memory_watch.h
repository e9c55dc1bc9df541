// Who measures the memory, and says when it gets tight? A timer's part of a `MemoryBudget`.
//
// *Threads*: one. *Cost*: microseconds; while memory is not ample, free memory that the allocator keeps is given back to the
// system every `kTrimEvery`, which takes milliseconds.

#ifndef KVATLAS_INDEXER_SERVICE_MEMORY_WATCH_H_
#define KVATLAS_INDEXER_SERVICE_MEMORY_WATCH_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/memory_budget.h"
#include "indexer/service/flags.h"

namespace kvatlas {

class MemoryWatch {
 public:
  static constexpr Duration kTrimEvery = std::chrono::seconds(10);

  explicit MemoryWatch(MemoryBudget* memory) : memory_(memory) {}

  // Several times a second.
  void Tick();

 private:
  MemoryBudget* const memory_;
  Time trim_at_{0};
};

// --memory_budget, with the default of every process that serves.
void AddMemoryFlag(FlagSet& flags, std::string* value);
// INVALID_ARGUMENT names the flag.
absl::StatusOr<uint64_t> ReadMemoryFlag(const std::string& value);
// What counts against `bytes_max`: resident memory; where addresses are limited, also as large a part of it as of the addresses is
// mapped. Indexes never map more than three quarters of them, which is ample.
MemoryBudget::Meter MemoryMeter(uint64_t bytes_max);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_MEMORY_WATCH_H_
