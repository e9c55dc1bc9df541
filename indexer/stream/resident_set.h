// The sender's own memory of what its holder holds now: the source of snapshots and digests.
//
// *Truth*: a set of (tier, block) with each block's position and parent, or with its side class.
// Copies are not counted here.
// *Threads*: none; the caller serialises, `AsRuns` included.
// *Cost*: constant per block; about 32 bytes a distinct block. `AsRuns` takes 24 bytes more for
// each while it works.

#ifndef KVATLAS_INDEXER_STREAM_RESIDENT_SET_H_
#define KVATLAS_INDEXER_STREAM_RESIDENT_SET_H_

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {

class ResidentSet {
 public:
  // Applies an event and returns what it really changes: the event less what has no effect, empty
  // if nothing changes. A stored run is cut where blocks in it are already held.
  std::vector<Event> Apply(const Event& event);

  // Tiers the block is in; empty when it is not held.
  TierMask TiersOf(SequenceHash block) const;

  // Everything held, as runs as long as can be, each of at most `kBatchBlocksMax` blocks, parents
  // before children. The same contents give the same runs.
  std::vector<Stored> AsRuns() const;

  // The holder's cache classes: part of a snapshot. False: they were so already.
  bool SetLayout(const CacheLayout& layout);
  const CacheLayout& layout() const { return layout_; }

  const Digest& digest() const { return digest_; }
  // Distinct blocks.
  size_t size() const { return blocks_.size(); }

 private:
  struct Entry {
    SequenceHash parent;
    Position position;
    TierMask tiers;
    SideClass side = 0;
    mutable bool taken = false;  // `AppendRunsOf`: some run has it
  };
  static_assert(sizeof(Entry) == 16);
  struct Tail;

  std::vector<Event> Store(const Stored& stored);
  std::vector<Event> Remove(const Removed& removed);
  std::vector<Event> Clear(const Cleared& cleared);
  std::vector<Tail> TailsOf(Tier tier) const;
  void AppendRunsOf(Tier tier, std::vector<Stored>* runs) const;
  void AppendSides(std::vector<Stored>* runs) const;

  CacheLayout layout_;
  bool any_side_ = false;  // ever, since it was empty
  absl::flat_hash_map<SequenceHash, Entry> blocks_;
  Digest digest_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_RESIDENT_SET_H_
