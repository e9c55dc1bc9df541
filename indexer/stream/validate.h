// Bounds of every message, in one place: could a correct peer have said this?
//
// INVALID_ARGUMENT names the field and the bound. Transports call it on what they decoded, the two
// state machines call it again on what they are given; the
// maker of a sender checks its names before. Only names, sizes and numbers are looked at.

#ifndef KVATLAS_INDEXER_STREAM_VALIDATE_H_
#define KVATLAS_INDEXER_STREAM_VALIDATE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

inline constexpr size_t kHelloTextBytesMax = 256;  // every string of a hello, which is UTF-8
inline constexpr size_t kHelloLabelsMax = 32;
// Above any wall time in nanoseconds, and so that one more never wraps.
inline constexpr Epoch kEpochMax = uint64_t{1} << 63;
// Epochs are start times: one that is further ahead of the receiver's clock than this would lock
// out every later sender.
inline constexpr std::chrono::hours kEpochAheadMax{24};
inline constexpr BatchNumber kBatchNumberMax = uint64_t{1} << 63;

// Bounds of a holder's names and labels.
using HolderLabels = std::vector<std::pair<std::string, std::string>>;
absl::Status ValidateHolder(const HolderId& holder, const HolderLabels& labels);
absl::Status ValidateDomain(const Domain& domain);

// FAILED_PRECONDITION: further ahead of the receiver's wall time than `kEpochAheadMax`.
absl::Status CheckEpoch(Epoch epoch, uint64_t wall_ns);

absl::Status ValidateLayout(const CacheLayout& layout);
absl::Status ValidateLoad(const Load& load);

absl::Status Validate(const Event& event);
absl::Status Validate(const SenderMessage& message);
absl::Status Validate(const ReceiverMessage& message);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_VALIDATE_H_
