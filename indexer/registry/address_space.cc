// A quarter of the limit is left for the rest of the process. An index gets an eighth of what is
// left of the rest, so each next one gets less and none takes all; below `kIndexBytesMin`, what the
// heap of an atlas needs at least, there is none.

#include "indexer/registry/address_space.h"

#include <sys/resource.h>

#include "indexer/telemetry/process_memory.h"

namespace kvatlas {
namespace {

constexpr uint64_t kIndexBytesMin = uint64_t{16} << 20;

}  // namespace

std::optional<uint64_t> AddressBytesForIndex() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  const uint64_t for_indexes = limit.rlim_cur / 4 * 3, used = AddressSpaceBytes();
  const uint64_t bytes = for_indexes > used ? (for_indexes - used) / 8 : 0;
  if (bytes < kIndexBytesMin) return std::nullopt;
  return bytes;
}

}  // namespace kvatlas
