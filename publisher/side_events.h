// vLLM's events of a group with a sliding window: batches of one event, for tests of hybrid models.

#ifndef KVATLAS_PUBLISHER_SIDE_EVENTS_H_
#define KVATLAS_PUBLISHER_SIDE_EVENTS_H_

#include <cstdint>
#include <msgpack.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/ids.h"

namespace kvatlas {

inline constexpr uint32_t kWindowGroup = 1;

// The group's blocks `names` are stored on the device, or removed: `block_size` tokens each, of a
// window of `window` tokens.
inline std::string WindowBatch(bool stored, const std::vector<uint64_t>& names, uint32_t block_size,
                               uint32_t window, uint32_t rank = 0) {
  msgpack::sbuffer buffer;
  msgpack::packer<msgpack::sbuffer> packer(buffer);
  packer.pack_array(3);
  packer.pack(1.0);
  packer.pack_array(1);
  packer.pack_map(stored ? 9 : 4);
  const auto field = [&](const char* name, const auto& value) {
    packer.pack(std::string(name));
    packer.pack(value);
  };
  field("type", std::string(stored ? "BlockStored" : "BlockRemoved"));
  field("block_hashes", names);
  field("medium", std::string("GPU"));
  field("group_idx", kWindowGroup);
  if (stored) {
    field("parent_block_hash", msgpack::type::nil_t());
    std::vector<uint32_t> tokens;
    for (const uint64_t name : names)
      tokens.insert(tokens.end(), block_size, static_cast<uint32_t>(name));
    field("token_ids", tokens);
    field("block_size", block_size);
    field("kv_cache_spec_kind", std::string("sliding_window"));
    field("kv_cache_spec_sliding_window", window);
  }
  packer.pack(rank);
  return {buffer.data(), buffer.size()};
}

// The layout of a worker with such a group and main attention.
inline CacheLayout WindowLayout(uint32_t block_size, uint32_t window) {
  return {.main = {.block_size = block_size},
          .sides = {
              {.kind = CacheKind::kWindow, .block_size = block_size, .window_tokens = window - 1}}};
}

// The side blocks that end with these (tier, main block).
inline std::set<std::pair<int, uint64_t>> SidesOf(const std::set<std::pair<int, uint64_t>>& blocks,
                                                  const CacheClass& side) {
  std::set<std::pair<int, uint64_t>> sides;
  for (const auto& [tier, block] : blocks)
    sides.insert({tier, Raw(SideName(SideTag(side), SequenceHash{block}))});
  return sides;
}

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_SIDE_EVENTS_H_
