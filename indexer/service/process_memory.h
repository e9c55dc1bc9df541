// How much memory does this process use, and how much may it?
//
// *Threads*: any. *Cost*: reads files of the system.

#ifndef KVATLAS_INDEXER_SERVICE_PROCESS_MEMORY_H_
#define KVATLAS_INDEXER_SERVICE_PROCESS_MEMORY_H_

#include <cstdint>

namespace kvatlas {

// Anonymous memory that is resident; 0 where that cannot be read.
uint64_t ResidentBytes();

// Addresses that are mapped, resident or not; 0 likewise.
uint64_t AddressSpaceBytes();

// The smallest limit of its control groups, or the machine's memory.
uint64_t MemoryLimitBytes();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_PROCESS_MEMORY_H_
