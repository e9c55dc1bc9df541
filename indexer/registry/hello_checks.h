// Checks of hellos and names that need no knowledge of the domain. A part of `HolderRegistry`.

#ifndef KVATLAS_INDEXER_REGISTRY_HELLO_CHECKS_H_
#define KVATLAS_INDEXER_REGISTRY_HELLO_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

// INVALID_ARGUMENT says which is out of range.
absl::Status CheckNames(const Domain& domain, const HolderId& holder, uint32_t block_size);

// FAILED_PRECONDITION: another contract or schedule than the options', or an epoch too far ahead of
// their clock; and as above.
absl::Status CheckHello(const Hello& hello, const HolderRegistryOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_HELLO_CHECKS_H_
