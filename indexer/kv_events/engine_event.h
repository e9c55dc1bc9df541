// An engine's KV events as typed values that point into the frame they came from.
//
//   ZMQ frame ─▶ EngineDecoder ─▶ EngineBatch { EngineEvent … } ─▶ EngineWorker ─▶ Stored, Removed, Cleared
//
// *Truth*: what the frame says, normalised in form alone: tuple and map events, either spelling of
// the tag, hashes of any type. Its meaning (tiers, groups, namespaces, copies) is decided by
// `EngineWorker`.
// *Lifetime*: every view points into the payload or into the decoder's memory: until its next
// `Decode`.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_EVENT_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "indexer/base/hash.h"

namespace kvatlas {

// Length of one name: no engine has longer ones.
inline constexpr size_t kEngineHashBytesMax = 256;
// Length of an adapter's name or a salt, here and in registrations: a store with a longer one is
// refused.
inline constexpr size_t kEngineTextBytesMax = 4096;
// Tokens behind a block that its hash covers: no engine predicts more at once.
inline constexpr uint32_t kLookAheadMax = 31;

// An engine's name for a block: opaque, compared and never computed.
struct EngineBlockHash {
  // An integer's two's complement; of a digest its last 8 bytes, big-endian.
  uint64_t value = 0;
  // The whole digest, when the engine sent bytes or hexadecimal digits (then these bytes, decoded);
  // else empty.
  std::string_view bytes;

  // The other derivation that engines use: a digest's first 8 bytes, big-endian. `value` for an
  // integer.
  uint64_t FirstBytes() const;

  friend bool operator==(const EngineBlockHash& a, const EngineBlockHash& b) {
    return a.value == b.value && a.bytes == b.bytes;
  }
};

// Something beside tokens that went into a block's hash.
struct ExtraKey {
  enum class Kind : uint8_t {
    kText,    // "my-lora", a salt, a multimodal identifier
    kTextAt,  // (identifier, offset of the object relative to the block's start)
    kBytes,
    kNumber,  // integer, float or bool: `offset` has it when it is an integer
  };
  Kind kind = Kind::kText;
  std::string_view text;  // or bytes
  int64_t offset = 0;
};

// Parts of a hybrid model's cache in SGLang's events, as bits of `EngineEvent::components`.
inline constexpr uint8_t kComponentFull = 1;
inline constexpr uint8_t kComponentSwa = 2;
inline constexpr uint8_t kComponentMamba = 4;
inline constexpr uint8_t kComponentUnknown = 128;  // at least one label that is none of these

// The meaning of `components`.
enum class ComponentForm : uint8_t {
  kNone,      // nothing was said of components
  kSnapshot,  // `component_types`: all that is resident of each block of the event
  kOne,       // `component_type`: the event is about this component alone
};

struct EngineEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared, kIgnored };
  Kind kind = Kind::kIgnored;

  // ---- Stored and removed ----
  ComponentForm component_form = ComponentForm::kNone;
  uint8_t components = 0;  // kComponent…; a snapshot may have none of them
  std::span<const EngineBlockHash> hashes;
  std::string_view medium;     // as spelled; empty: absent, nil or ""
  std::string_view locality;   // likewise
  std::string_view ownership;  // likewise; also of cleared
  std::optional<uint32_t> group;
  std::string_view spec_kind;  // kv_cache_spec_kind; empty: absent
  std::optional<uint32_t> sliding_window;

  // ---- Stored ----
  std::optional<EngineBlockHash> parent;
  // Flat. For bigrams [[a,b],[b,c],…] the first of each and the second of the last: one more than
  // there are bigrams. Blocks whose hashes cover k tokens behind them (vLLM's
  // `lookahead_token_ids`) have k tokens more likewise.
  std::span<const TokenId> tokens;
  uint32_t look_ahead = 0;  // k; of bigrams 1
  // Token ids were mixed with strings, or out of range: the content cannot be hashed.
  bool tokens_opaque = false;
  uint32_t block_size = 0;
  // For each hash, which chunk of `block_size` tokens it names (vLLM's `block_offsets`, proposed):
  // as said, neither checked against the tokens nor sorted. Empty: not said; else as many as there
  // are hashes.
  std::span<const uint32_t> block_offsets;
  std::string_view lora_name;
  std::optional<int64_t> lora_id;
  std::optional<std::string_view> cache_salt;  // said explicitly (SGLang), nil is absent
  // Per block; empty when no block has any.
  std::span<const std::span<const ExtraKey>> extra_keys;
  // Hashes of the multimodal objects in each block (`block_mm_infos`, `mm_keys`); empty when no
  // block has any.
  std::span<const std::span<const uint64_t>> multimodal;
  std::string_view session_id;

  // ---- Mooncake's envelope (RFC #1527); empty where absent ----
  bool envelope = false;  // tagged "event_type"
  std::string_view model_name;
  std::string_view tenant_id;
  std::string_view backend_id;
  std::string_view additional_salt;
  std::optional<uint32_t> base_block;  // position of the first block
  std::optional<int64_t> rank;         // dp_rank of the event itself
};

// Why an event, or a part of one, has no effect. Names: `RefusalName`.
enum class Refusal : uint8_t {
  // From the decoder.
  kMalformed,     // not an event at all, or a field of a type that no engine sends
  kMissingField,  // without block_hashes, or a store without block_size
  kUnknownTag,    // a kind of event that did not exist when this was written
  kTooLarge,      // over a bound of `DecoderOptions`
  // From `EngineWorker` and its ranks.
  kIgnoredEvent,    // tag "Ignored"
  kUnknownMedium,   // a tier without a mapping
  kRemoteLocality,  // held elsewhere: not this worker's to announce
  kUnknownLocality,
  kUnsupportedOwnership,
  kNotMainAttention,    // sliding window, Mamba, …: kept apart
  kUnlearnedGroup,      // group 1 or above of unknown kind
  kBlockSize,           // not the domain's
  kNotDense,            // tokens do not cover the blocks
  kOpaqueTokens,        // content that cannot be hashed
  kSelfReference,       // a hash twice in one event, or its own parent
  kAmbiguousNamespace,  // after a parent seen under two namespaces
  kNoContent,           // no tokens, and a hash that was never announced: parked or dropped
  kOrphanDropped,       // parked for too long, or too many
  kUnknownRemoved,      // a removal of what is not held
  kShed,                // the index is at its limit
  kPartBlock,  // names of parts of blocks, which hybrid engines give beside those of whole ones
};
inline constexpr size_t kRefusals = static_cast<size_t>(Refusal::kPartBlock) + 1;

// "block_size": a metric's label.
std::string_view RefusalName(Refusal refusal);

struct EngineBatch {
  double time_s = 0;            // the engine's clock; 0 when it said none
  std::optional<int64_t> rank;  // data-parallel rank; overrides the registered one
  std::vector<EngineEvent> events;
  // Events that could not be decoded, with how many of each; their siblings are in `events`.
  std::vector<Refusal> refused;
  // The last of them that may have removed something, or have been another rank's: how many of
  // `events` came before it. Blocks held until then are in doubt.
  std::optional<size_t> lost_before;
  // Likewise of a kind that did not exist when this was written, those aside that are known to
  // remove nothing.
  std::optional<size_t> unknown_before;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_EVENT_H_
