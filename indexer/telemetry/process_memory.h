// How much memory this process uses and may use, and how it lives with few addresses.
//
// *Threads*: any. *Cost*: reads files of the system.

#ifndef KVATLAS_INDEXER_TELEMETRY_PROCESS_MEMORY_H_
#define KVATLAS_INDEXER_TELEMETRY_PROCESS_MEMORY_H_

#include <cstdint>
#include <optional>

namespace kvatlas {

// Anonymous memory that is resident; 0 where that cannot be read.
uint64_t ResidentBytes();

// Addresses that are mapped, resident or not; 0 likewise.
uint64_t AddressSpaceBytes();

// Whether memory is nearly all used (`MemoryLevel::kCritical`), as the last measurement said: for
// code that has no budget at hand.
void SetMemoryCritical(bool critical);
bool MemoryIsCritical();

// How many addresses may be mapped (`ulimit -v`); nothing: no limit.
std::optional<uint64_t> AddressSpaceLimitBytes();

// The smallest limit of its control groups or of its addresses, or the machine's memory.
uint64_t MemoryLimitBytes();

// Where addresses are limited, threads made from now on have stacks of `kSmallStackBytes` instead
// of 8 MiB, and the allocator has two arenas instead of eight a core, each of which reserves 64
// MiB. Call it before other threads are made.
void FitAddressSpace();
inline constexpr uint64_t kSmallStackBytes = uint64_t{1} << 20;

// At most `threads`, and so many that their stacks take an eighth of the addresses.
int ThreadsThatFit(int threads);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_PROCESS_MEMORY_H_
