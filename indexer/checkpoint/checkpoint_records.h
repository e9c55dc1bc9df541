// Kinds and flags of the format in `checkpoint_file.h`, for its writer and its reader.

#ifndef KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_RECORDS_H_
#define KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "indexer/base/hash.h"
#include "indexer/checkpoint/checkpoint_bytes.h"

namespace kvatlas {

inline constexpr std::string_view kCheckpointMagic = "KVACKP02";
// Without side blocks, and else the same: still read.
inline constexpr std::string_view kCheckpointMagicWithoutSides = "KVACKP01";
inline constexpr size_t kCheckpointFamilyBytes = 6;  // of the magic: what is no version
inline constexpr size_t kRecordHeadBytes = 1 + 4, kRecordTailBytes = 8;

inline constexpr uint8_t kHeaderRecord = 1, kDomainRecord = 2, kHolderRecord = 3, kRunsRecord = 4,
                         kEnginesRecord = 5, kEndRecord = 6, kSidesRecord = 7;

inline constexpr uint8_t kHolderWhole = 1, kHolderLeaseOver = 2, kHolderHasLoad = 4,
                         kHolderSenderDegraded = 8, kHolderHasLayout = 16;
inline constexpr uint8_t kLayoutHasMain = 1;
inline constexpr uint8_t kClassDropsLast = 1;
inline constexpr uint8_t kRunTiers = 15, kRunHasParent = 16, kRunHasLocals = 32;
// In the flags of side names the number of the class stands above the tiers.
inline constexpr int kNamesSideShift = 4;
inline constexpr uint8_t kNamesSideMax = 15;
static_assert(kRunTiers < 1 << kNamesSideShift);

// The checksum of all records so far, with one more.
inline uint64_t FoldChecksum(uint64_t all, uint64_t one) {
  std::string both;
  PutNumber(&both, all);
  PutNumber(&both, one);
  return Xxh3(both, 0);
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_RECORDS_H_
