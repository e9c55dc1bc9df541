// The events of a stream of holdings, and their bounds: what can happen to a holder's blocks.
//
// *Truth*: events act on a set of (holder, tier, block), side blocks of hybrid models
// (`cache_class.h`) among them. Storing what is held and removing what is not have no effect.

#ifndef KVATLAS_INDEXER_BASE_EVENT_H_
#define KVATLAS_INDEXER_BASE_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {

// A run of consecutive blocks of one sequence is now in `tier`. The first stands at `position` and
// follows `parent` (`kNoParent` at position 0).
struct Stored {
  Tier tier = Tier::kDevice;
  Position position = 0;
  SequenceHash parent = kNoParent;
  std::vector<SequenceHash> blocks;
  // Local hashes of the same blocks, or empty: for indexes that keep them
  // (`IndexOptions::keep_local_hashes`) and for structures keyed by content.
  std::vector<LocalHash> local_hashes = {};
  // Not 0: blocks of a side class by their names (`SideName`), in any order and of any sequences;
  // `position` is 0, `parent` is `kNoParent`, and there are no local hashes.
  SideClass side = 0;

  friend bool operator==(const Stored&, const Stored&) = default;
};

// These blocks, in any order and of any sequences, are no longer in `tier`.
struct Removed {
  Tier tier = Tier::kDevice;
  std::vector<SequenceHash> blocks;
  SideClass side = 0;  // as in `Stored`

  friend bool operator==(const Removed&, const Removed&) = default;
};

// Nothing of the holder is left in these tiers, of any class.
struct Cleared {
  TierMask tiers = TierMask::All();

  friend bool operator==(const Cleared&, const Cleared&) = default;
};

using Event = std::variant<Stored, Removed, Cleared>;

// Blocks named in the event; a clear names none.
size_t BlockCount(const Event& event);

// How busy a holder is. For a cell: sums over its workers.
struct Load {
  uint32_t running_requests = 0;
  uint32_t waiting_requests = 0;
  uint64_t used_blocks = 0;
  uint64_t free_blocks = 0;
  // Prompt blocks that admitted and waiting requests have yet to prefill.
  uint64_t waiting_prefill_blocks = 0;
  double tokens_per_s = 0;
  // Workers behind this figure: 1 for a worker.
  uint32_t workers = 1;

  // The load of no worker: the start of a sum.
  static Load None() {
    Load none;
    none.workers = 0;
    return none;
  }
  Load& operator+=(const Load& other);  // of the workers behind both

  friend bool operator==(const Load&, const Load&) = default;
};

// A summary of what a holder holds: per tier the number of distinct blocks and the sum mod 2^64 of
// `DigestTerm(sequence hash)` (`hash.h`). Two ends whose digests are equal after the same batch
// hold the same. Order-free and updated in constant time per block.
struct Digest {
  struct OfTier {
    uint64_t blocks = 0;
    uint64_t sum = 0;
    friend bool operator==(const OfTier&, const OfTier&) = default;
  };
  OfTier tiers[kTiers];

  void Add(Tier tier, SequenceHash block);
  void Subtract(Tier tier, SequenceHash block);

  friend bool operator==(const Digest&, const Digest&) = default;
};

// One numbered step of a stream. Events apply in order; `load`, `digest` and `degraded` hold after
// them.
struct Batch {
  BatchNumber number = 0;
  std::vector<Event> events;
  std::optional<Load> load;
  std::optional<Digest> digest;
  // The sender itself is not sure of what it says the holder holds: it reads an engine's events and
  // missed some.
  bool degraded = false;
  // The holder's cache classes, in the batch whose events are the first to need them; they hold
  // from then on.
  std::optional<CacheLayout> layout = {};

  friend bool operator==(const Batch&, const Batch&) = default;
};

inline constexpr size_t kBatchBlocksMax = 4096;
inline constexpr size_t kBatchBytesMax = 1 << 20;
// An event's own fields, beside 8 bytes a block, stay below this on the wire.
inline constexpr size_t kEventOverheadBytesMax = 64;
inline constexpr size_t kBatchEventsMax = 4096;
static_assert(kBatchBlocksMax * 8 + kBatchEventsMax * kEventOverheadBytesMax <= kBatchBytesMax);

// Blocks named in all events of the batch.
size_t BlockCount(const Batch& batch);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_EVENT_H_
