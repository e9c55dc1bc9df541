// Reads one event, a tuple or a map, into an `EngineEvent`.
//
//   tuple   [tag, block_hashes, …]        fields by place: those of vLLM, SGLang and Dynamo, one behind the other
//   map     {"type": tag, …}              fields by name, in any order; the tag may be "event_type"
//
// *Truth*: an event is taken whole or refused. A field of a wrong type refuses it when its kind of
// event needs the field; unknown fields are skipped. The last value of a field that is named twice
// counts.
// *Threads*: one per reader. *Bounds*: the arena's and the hash's.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_EVENT_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_EVENT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "indexer/kv_events/decoder_arena.h"
#include "indexer/kv_events/decoder_fields.h"
#include "indexer/kv_events/decoder_values.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/msgpack_reader.h"

namespace kvatlas {

class EventReader {
 public:
  enum class Outcome : uint8_t {
    kDecoded,
    kRefused,  // as `refusal()` says; the reader stands behind the event
    kLost,     // where the event ends cannot be known: nothing behind it can be read
  };

  EventReader(const ValueReader& values, KeyReader* keys)
      : values_(values), in_(*values.in), keys_(*keys) {}

  // Whether the refused event may have removed something.
  enum class Doubt : uint8_t { kNone, kUnknown, kLost };

  // REQUIRES: `*event` is as new.
  Outcome Read(EngineEvent* event);

  Refusal refusal() const { return refusal_; }
  Doubt doubt() const { return doubt_; }

 private:
  // Fields with two names, from which `Finish` chooses.
  struct Choices {
    void Reset();

    std::optional<std::string_view> type, event_type;
    std::span<const EngineBlockHash> block_hashes, seq_hashes;
    bool has_block_hashes = false, has_seq_hashes = false;
    std::optional<EngineBlockHash> parent_block_hash, parent_hash;
    std::span<const std::span<const uint64_t>> block_mm_infos, mm_keys;
    std::optional<uint32_t> block_size;
    uint32_t lookahead_blocks = 0;                 // that say which tokens follow them
    uint32_t lookahead_tokens = 0;                 // behind each
    std::array<TokenId, kLookAheadMax> lookahead;  // those behind the last of them
    std::span<const uint32_t> block_offsets;
    bool has_block_offsets = false;
    std::optional<uint8_t> component_types, component_type;
  };

  bool ReadMap();
  bool ReadTuple();
  bool ReadTupleFields(uint32_t values);
  EventField FieldAt(EventField place);
  bool PeekComponent();
  bool ReadMetadata();
  bool ReadTail(uint32_t values);
  bool ReadField(EventField field);
  DecodeResult DecodeField(EventField field);
  DecodeResult DecodeTokenIds();
  DecodeResult DecodeLookahead();
  bool AddLookahead();
  void SetComponents();
  Outcome Finish();
  bool FindKind();
  Outcome Refuse(Refusal refusal, Doubt doubt);

  const ValueReader values_;
  MsgpackReader& in_;
  KeyReader& keys_;
  EngineEvent* event_ = nullptr;
  Choices choices_;
  EventFields malformed_ = 0;
  EventFields too_large_ = 0;
  Refusal refusal_ = Refusal::kMalformed;
  Doubt doubt_ = Doubt::kNone;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_EVENT_H_
