// Measures the process's memory for its `MemoryBudget`, logs when the level changes, and makes the
// allocator give free memory back. Tick is called from a timer of the process.

#include "indexer/process/memory_watch.h"

#include <malloc.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "indexer/net/message_account.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/process_memory.h"

namespace kvatlas {

// Resident memory that is not allocated: free memory that the allocator keeps, and other memory
// (stacks, files) that hardly changes. Memory that indexes map themselves is in it too, so growth
// of an index looks like kept memory and may cause a trim for nothing.
uint64_t MemoryWatch::Kept() {
  const struct mallinfo2 info = mallinfo2();
  const uint64_t in_use = info.uordblks + info.hblkhd;
  const uint64_t resident = ResidentBytes();
  return resident - std::min(resident, in_use);
}

// 1. Measure, at every tick.
// 2. Every `kLookEvery`: trim if the allocator keeps `kKeptMore` more than at the least since the
//    last trim, or, at most every `kTrimEvery`, while memory is not ample.
// 3. Measure again after a trim, and pass the level on to code without a budget
//    (SetMemoryCritical), and the budget to the account of gRPC's messages.
void MemoryWatch::Tick() {
  auto [before, now] = memory_->Measure();
  const Time at = Clock::Real().Now();
  if (at >= look_at_) {
    look_at_ = at + kLookEvery;
    const uint64_t kept = Kept();
    kept_least_ = std::min(kept_least_, kept);
    const bool more = kept > kept_least_ + kKeptMore;
    if (more || (now > MemoryLevel::kAmple && at >= trim_at_)) {
      trim_at_ = at + kTrimEvery;
      malloc_trim(0);
      now = memory_->Measure().second;
      kept_least_ = Kept();
    }
  }
  SetMemoryCritical(now == MemoryLevel::kCritical);
  MessageAccount::OfProcess().SetBudget(memory_->bytes_max());
  if (now == before) return;
  Log(now > before ? LogLevel::kWarning : LogLevel::kInfo, "memory",
      {{"level", MemoryLevelName(now)},
       {"used_bytes", memory_->used_bytes()},
       {"budget_bytes", memory_->bytes_max()}});
}

void AddMemoryFlag(FlagSet& flags, std::string* value) {
  *value = MemoryBudget::kDefault;
  flags
      .Add("memory_budget", value,
           "memory of this process, in bytes (8000000000, 8G) or as a part of what its control "
           "group or the machine has (70%): from 80 % of it on only heads of new sequences are "
           "taken, from 90 % no new blocks, domains, holders and dumps, from 95 % no large "
           "questions; 0: no limit")
      .Check([](const std::string& text) {
        return MemoryBudget::Parse(text, MemoryLimitBytes()).status();
      });
}

absl::StatusOr<uint64_t> ReadMemoryFlag(const std::string& value) {
  absl::StatusOr<uint64_t> bytes = MemoryBudget::Parse(value, MemoryLimitBytes());
  if (bytes.ok()) return bytes;
  return absl::InvalidArgumentError(absl::StrCat("--memory_budget: ", bytes.status().message()));
}

void SetMemoryGauges(const MemoryBudget& memory, const std::string& prefix, Metrics* metrics) {
  const auto set = [&](const char* name, const char* help, uint64_t value,
                       const MetricLabels& labels = {}) {
    metrics->AddGauge(prefix + name, help, labels).Set(static_cast<double>(value));
  };
  set("_memory_budget_bytes", "--memory_budget; 0: none.", memory.bytes_max());
  set("_memory_used_bytes", "Resident memory that counts against it.", memory.used_bytes());
  set("_memory_level", "0 ample, 1 tight, 2 full, 3 critical.",
      static_cast<uint64_t>(memory.level()));
  for (const auto& [part, bytes] : memory.Parts())
    set("_memory_part_bytes", "Who has how much of the memory.", bytes, {{"part", part}});
}

// Where addresses are limited (ulimit -v), running out of them is as fatal as running out of
// memory. The mapped part of the limit is scaled to `bytes_max`, and the larger of the two measures
// counts.
MemoryBudget::Meter MemoryMeter(uint64_t bytes_max) {
  const std::optional<uint64_t> addresses = AddressSpaceLimitBytes();
  if (!addresses.has_value()) return ResidentBytes;
  const double scale = static_cast<double>(bytes_max) / static_cast<double>(*addresses);
  return [scale] {
    return std::max(ResidentBytes(),
                    static_cast<uint64_t>(static_cast<double>(AddressSpaceBytes()) * scale));
  };
}

}  // namespace kvatlas
