// An engine's calls as vLLM's KV events, for consumers that are not ours: one msgpack batch per
// message, in the profile that every known consumer accepts.
//
//   batch     [time f64, [event…], rank]
//   event     {"type": "BlockStored", …} as vLLM 0.24 and later; ["BlockStored", …] as before, when asked
//
// *Truth*: the engine's own words: its hashes (unsigned integers, never bytes), its parents (nil at
// the root), its token ids, every copy. Nothing is deduplicated: consumers of engines' events count
// copies. An adapter is in `lora_name` and in every block's `extra_keys`; a salt in the
// `extra_keys` of a root block, tagged "dynamo-cache-salt:", so that no consumer takes the block
// for an unsalted one, and in map events in `cache_salt` as well. Blocks stored without tokens
// (held in another tier already) are told as vLLM's offloading does: hashes alone, block size 0.
// *Format*: keys and array places in vLLM's order, its smallest integers; group 0, full attention,
// where nothing else is said.
// *Threads*: none; the caller serialises.
// *Cost*: about 4 ns a token. No allocation but the batch's own once grown.
// *Bounds*: none of its own; `bytes` says how much waits.
//
// Example:
//   ZmqEventEncoder encoder(ZmqEventForm::kMap, /*block_size=*/16, /*rank=*/0);
//   encoder.Stored({.hashes = {…}, .tokens = tokens});
//   std::string payload = encoder.Finish(time_s);

#ifndef KVATLAS_PUBLISHER_ZMQ_EVENTS_H_
#define KVATLAS_PUBLISHER_ZMQ_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/base/tier.h"

namespace kvatlas {

enum class ZmqEventForm : uint8_t {
  kMap,          // vLLM 0.24 and later
  kLegacyArray,  // 11 fields after the tag, for consumers of before mid-2026
};

// A run of consecutive blocks, or, without tokens, blocks that were announced in another tier.
struct ZmqStored {
  Tier tier = Tier::kDevice;
  std::span<const uint64_t> hashes = {};
  std::optional<uint64_t> parent = std::nullopt;
  std::span<const TokenId> tokens = {};  // block_size for each hash, or none at all
  std::string_view lora_name = {};
  std::string_view cache_salt = {};
  // For hybrid models, in vLLM's words; `block_size` tokens for each hash.
  uint32_t group = 0;
  std::string_view spec_kind = "full_attention";
  std::optional<uint32_t> sliding_window = std::nullopt;
  uint32_t block_size = 0;  // 0: the encoder's
};

class ZmqEventEncoder {
 public:
  ZmqEventEncoder(ZmqEventForm form, uint32_t block_size, uint32_t rank);

  // Each appends one event to the batch that is being made.
  void Stored(const ZmqStored& said);
  void Removed(Tier tier, std::span<const uint64_t> hashes, uint32_t group = 0);
  void AllCleared();

  size_t events() const { return events_; }
  size_t bytes() const { return body_.size(); }

  // The batch, with its time in seconds since the Unix epoch; the next one begins empty.
  std::string Finish(double time_s);

  // "GPU", "CPU", "DISK", "EXTERNAL".
  static std::string_view MediumOf(Tier tier);
  // "full_attention", "sliding_window", "mamba", "chunked_local_attention".
  static std::string_view SpecKindOf(CacheKind kind);

 private:
  const ZmqEventForm form_;
  const uint32_t block_size_;
  const uint32_t rank_;
  std::string body_;
  uint32_t events_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_ZMQ_EVENTS_H_
