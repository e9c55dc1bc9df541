// Resolves a host name to its addresses.

#ifndef KVATLAS_INDEXER_BASE_RESOLVE_HOST_H_
#define KVATLAS_INDEXER_BASE_RESOLVE_HOST_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvatlas {

// A name's addresses, numeric, without port, in the order to be tried. UNAVAILABLE: it has none
// now.
using HostResolver = std::function<absl::StatusOr<std::vector<std::string>>(const std::string&)>;

// By the system's resolver; waits for it, for some seconds at worst. UNAVAILABLE has the resolver's
// words.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& name);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_RESOLVE_HOST_H_
