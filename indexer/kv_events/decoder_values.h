// Reads the values of an event's fields as engines write them: hashes, extra keys, multimodal
// hashes.
//
// *Truth*: types that some engine sends are taken, all others are malformed: a field is taken whole
// or not at all.
// *Threads*: pure. *Bounds*: what does not fit into the arena is too large.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_VALUES_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "indexer/kv_events/decoder_arena.h"
#include "indexer/kv_events/decoder_tokens.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/msgpack_reader.h"

namespace kvatlas {

// Where values are read from and where they go.
struct ValueReader {
  MsgpackReader* in = nullptr;
  DecoderArena* arena = nullptr;
  size_t hash_bytes_max = 0;
};

// An integer, 1 to `hash_bytes_max` bytes, or as many bytes in hexadecimal digits, "0x" before them
// or not.
DecodeResult DecodeHash(const ValueReader& reader, EngineBlockHash* hash);

// nil or a hash.
DecodeResult DecodeOptionalHash(const ValueReader& reader, std::optional<EngineBlockHash>* hash);

// nil (`present` false) or an array of hashes.
DecodeResult DecodeHashes(const ValueReader& reader, std::span<const EngineBlockHash>* hashes,
                          bool* present);

// nil or, per block, nil or an array of keys.
DecodeResult DecodeExtraKeys(const ValueReader& reader,
                             std::span<const std::span<const ExtraKey>>* extra_keys);

// nil or, per block, nil, {"mm_objects": [object…]} or [object…], where an object is a map with
// "mm_hash" or "hash".
DecodeResult DecodeMultimodal(const ValueReader& reader,
                              std::span<const std::span<const uint64_t>>* multimodal);

// nil (`present` false) or an array of integers from 0 to 2^32-1.
DecodeResult DecodeOffsets(const ValueReader& reader, std::span<const uint32_t>* offsets,
                           bool* present);

// The bit of a component's label, kComponentUnknown for one that is not known.
uint8_t ComponentOf(std::string_view label);

// nil or an array of labels, as bits.
DecodeResult DecodeComponents(const ValueReader& reader, std::optional<uint8_t>* components);

// nil or a label, as a bit.
DecodeResult DecodeComponent(const ValueReader& reader, std::optional<uint8_t>* component);

// nil or text; nil is "". `DecodeOptionalText` tells them apart.
inline DecodeResult DecodeText(const ValueReader& reader, std::string_view* text) {
  *text = {};
  if (reader.in->ReadNil() || reader.in->ReadText(text)) return DecodeResult::kOk;
  return DecodeResult::kMalformed;
}

inline DecodeResult DecodeOptionalText(const ValueReader& reader,
                                       std::optional<std::string_view>* text) {
  text->reset();
  if (reader.in->ReadNil()) return DecodeResult::kOk;
  std::string_view value;
  if (!reader.in->ReadText(&value)) return DecodeResult::kMalformed;
  *text = value;
  return DecodeResult::kOk;
}

// nil or an integer.
inline DecodeResult DecodeOptionalI64(const ValueReader& reader, std::optional<int64_t>* number) {
  number->reset();
  if (reader.in->ReadNil()) return DecodeResult::kOk;
  MsgpackInteger integer;
  if (!reader.in->ReadInteger(&integer)) return DecodeResult::kMalformed;
  *number = static_cast<int64_t>(integer.bits);
  return DecodeResult::kOk;
}

// nil or an integer from 0 to 2^32-1.
inline DecodeResult DecodeOptionalU32(const ValueReader& reader, std::optional<uint32_t>* number) {
  number->reset();
  if (reader.in->ReadNil()) return DecodeResult::kOk;
  MsgpackInteger integer;
  if (!reader.in->ReadInteger(&integer) || integer.negative ||
      integer.bits > std::numeric_limits<uint32_t>::max()) {
    return DecodeResult::kMalformed;
  }
  *number = static_cast<uint32_t>(integer.bits);
  return DecodeResult::kOk;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_VALUES_H_
