// INVALID_ARGUMENT: never right. FAILED_PRECONDITION: right elsewhere or later, so the sender goes
// on trying. Bounds on names keep one hello from filling memory and logs; `stream/validate.h` has
// those of its other fields.

#include "indexer/registry/hello_checks.h"

#include <string>

#include "indexer/stream/validate.h"

namespace kvatlas {
namespace {

constexpr size_t kNameBytesMax = 256;

}  // namespace

absl::Status CheckNames(const Domain& domain, const HolderId& holder, uint32_t block_size) {
  if (domain.model.empty() || domain.model.size() > kNameBytesMax ||
      domain.tenant.size() > kNameBytesMax) {
    return absl::InvalidArgumentError(
        "a domain needs a model of 1 to 256 bytes and a tenant of at most 256");
  }
  if (holder.name.empty() || holder.name.size() > kNameBytesMax ||
      holder.replica.size() > kNameBytesMax) {
    return absl::InvalidArgumentError(
        "a holder needs a name of 1 to 256 bytes and a replica of at most 256");
  }
  if (block_size == 0 || block_size > kBlockSizeMax) {
    return absl::InvalidArgumentError("block size " + std::to_string(block_size) +
                                      " is not in 1.." + std::to_string(kBlockSizeMax));
  }
  return absl::OkStatus();
}

absl::Status CheckHello(const Hello& hello, const HolderRegistryOptions& options) {
  absl::Status names = CheckNames(hello.domain, hello.holder, hello.block_size);
  if (!names.ok()) return names;
  if (hello.contract_id != options.contract_id) {
    return absl::FailedPreconditionError("hash contract \"" + hello.contract_id +
                                         "\" is not ours, \"" + options.contract_id + "\"");
  }
  if (hello.schedule != options.schedule) {
    return absl::FailedPreconditionError("waypoint schedule \"" + hello.schedule +
                                         "\" is not ours, \"" + options.schedule + "\"");
  }
  return CheckEpoch(hello.epoch, options.clock->WallNs());
}

}  // namespace kvatlas
