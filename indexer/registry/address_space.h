// Addresses that another index may take. For processes with a limit of them (`ulimit -v`).

#ifndef KVATLAS_INDEXER_REGISTRY_ADDRESS_SPACE_H_
#define KVATLAS_INDEXER_REGISTRY_ADDRESS_SPACE_H_

#include <cstdint>
#include <optional>

namespace kvatlas {

// An eighth of what is left of three quarters of the limit, so that the next ones find some, and
// threads and everything else have the last quarter. 0: there is no limit. Nothing: too little is
// left.
std::optional<uint64_t> AddressBytesForIndex();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_ADDRESS_SPACE_H_
