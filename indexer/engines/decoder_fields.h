// Which field of an event is this key?
//
// *Truth*: keys as engines spell them; every other key is `kUnknown`, and its value nobody's business.
// *Threads*: pure. *Cost*: a few nanoseconds: one slot of a perfect hash, one comparison.

#ifndef KVATLAS_INDEXER_ENGINES_DECODER_FIELDS_H_
#define KVATLAS_INDEXER_ENGINES_DECODER_FIELDS_H_

#include <cstdint>
#include <string_view>

namespace kvatlas {

enum class EventField : uint8_t {
  kUnknown,
  kType,       // "type"
  kEventType,  // "event_type"
  kBlockHashes,
  kSeqHashes,
  kParentBlockHash,
  kParentHash,
  kTokenIds,
  kBlockSize,
  kLoraId,
  kMedium,
  kLoraName,
  kCacheSalt,
  kExtraKeys,
  kGroupIdx,
  kSpecKind,       // "kv_cache_spec_kind"
  kSlidingWindow,  // "kv_cache_spec_sliding_window"
  kLocality,
  kOwnership,
  kSessionId,
  kBlockMmInfos,
  kMmKeys,
  kModelName,
  kTenantId,
  kBackendId,
  kAdditionalSalt,
  kBaseBlockIdx,
  kDpRank,
};

EventField EventFieldOf(std::string_view key);

// A set of fields.
using EventFields = uint32_t;
constexpr EventFields Bit(EventField field) { return EventFields{1} << static_cast<int>(field); }

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINES_DECODER_FIELDS_H_
