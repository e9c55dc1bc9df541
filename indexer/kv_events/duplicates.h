// Finds a hash that an event names twice, or that is its own parent.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DUPLICATES_H_
#define KVATLAS_INDEXER_KV_EVENTS_DUPLICATES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

// *Bounds*: memory of the longest event. Reused from event to event. *Cost*: 2 ns a hash.
class Repeats {
 public:
  // How many leading hashes are all different, and none the parent.
  size_t Leading(std::span<const EngineBlockHash> hashes,
                 const std::optional<EngineBlockHash>& parent) {
    if (hashes.size() == 1) return parent == hashes[0] ? 0 : 1;
    const size_t places = std::bit_ceil(hashes.size() * 2 + 2);
    if (seen_.size() < places) seen_.resize(places);
    if (++round_ == 0) {
      seen_.assign(seen_.size(), Seen());
      round_ = 1;
    }
    const size_t mask = seen_.size() - 1;
    for (size_t i = 0; i < hashes.size(); ++i) {
      if (parent == hashes[i]) return i;
      size_t at = static_cast<size_t>(hashes[i].value * multiplier_ >> 20) & mask;
      for (; seen_[at].round == round_; at = (at + 1) & mask)
        if (hashes[seen_[at].hash] == hashes[i]) return i;
      seen_[at] = {.round = round_, .hash = static_cast<uint32_t>(i)};
    }
    return hashes.size();
  }

 private:
  struct Seen {
    uint32_t round = 0;
    uint32_t hash = 0;  // of the event
  };
  const uint64_t multiplier_ = RandomInstanceId() | 1;  // so that no sender can make hashes collide
  std::vector<Seen> seen_;                              // open addressing
  uint32_t round_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DUPLICATES_H_
