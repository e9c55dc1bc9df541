// From a key of a map to the field of an event.
//
// *Truth*: keys as engines spell them; every other key is `kUnknown`, and its value ignored.
// *Threads*: `EventFieldOf` is pure; one thread per `KeyReader`. *Cost*: a few nanoseconds: one
// slot of a perfect hash and one comparison; where an engine repeats itself, half of that.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_FIELDS_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_FIELDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "indexer/kv_events/msgpack_reader.h"

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
  kLookahead,  // "lookahead_token_ids"
  kBlockOffsets,
  kComponentTypes,
  kComponentType,
};
inline constexpr size_t kEventFields = static_cast<size_t>(EventField::kComponentType) + 1;

EventField EventFieldOf(std::string_view key);

// A key as the payload has it, header included: `size` bytes, and ones in the mask where they are.
struct RawKey {
  static constexpr size_t kBytes = 32;
  using Vector = uint64_t __attribute__((vector_size(16)));

  // REQUIRES: kBytes at `payload`.
  bool Begins(const uint8_t* payload) const {
    Vector differ = {};
    for (size_t i = 0; i < kBytes / sizeof(Vector); ++i) {
      Vector vector;
      std::memcpy(&vector, payload + i * sizeof(vector), sizeof(vector));
      differ |= (vector ^ bytes[i]) & mask[i];
    }
    return (differ[0] | differ[1]) == 0;
  }

  Vector bytes[kBytes / sizeof(Vector)] = {};
  Vector mask[kBytes / sizeof(Vector)] = {};
  size_t size = 0;
};

// Reads the keys of maps. Engines write equal maps again and again: the key that stood here in the
// last map of as many keys is tried first, against the bytes as they are.
class KeyReader {
 public:
  // The key number `index` of a map of `pairs`. A key that is no text is `kUnknown`. False: it ends
  // nowhere.
  bool Read(MsgpackReader* in, uint32_t pairs, uint32_t index, EventField* field) {
    if (pairs >= kPairs) return ReadAny(in, field);
    EventField& last = last_[pairs][index];
    const RawKey& key = kRawKeys[static_cast<size_t>(last)];
    if (key.size > 0 && in->remaining() >= RawKey::kBytes && key.Begins(in->position())) {
      in->Seek(in->position() + key.size);
      *field = last;
      return true;
    }
    if (!ReadAny(in, field)) return false;
    last = *field;
    return true;
  }

 private:
  static constexpr size_t kPairs = 16;
  // By field; that of kUnknown has no bytes.
  static const std::array<RawKey, kEventFields> kRawKeys;

  static std::array<RawKey, kEventFields> MakeRawKeys();
  bool ReadAny(MsgpackReader* in, EventField* field);

  std::array<std::array<EventField, kPairs>, kPairs> last_ = {};
};

// A set of fields.
using EventFields = uint64_t;
static_assert(kEventFields <= 64, "a field more needs a wider set");
constexpr EventFields Bit(EventField field) { return EventFields{1} << static_cast<int>(field); }

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_FIELDS_H_
