// The engine's contents by the contract's hashes: turns an engine's calls (its own hashes, token
// ids, copies that come and go) into changes of a set of (tier, block).
//
// *Truth*: physical copies are counted per (tier, engine hash) with a floor of zero; the first
// store and the last removal of a block change the set. What contradicts what was said before is
// counted and changes as little as can be.
// *Threads*: none; the caller serialises.
// *Cost*: per stored block a hash of its tokens, a step of the chain and two table accesses; about
// 100 bytes a held block.

#ifndef KVATLAS_PUBLISHER_RESIDENT_BLOCKS_H_
#define KVATLAS_PUBLISHER_RESIDENT_BLOCKS_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/stream/resident_set.h"
#include "publisher/record_buffer.h"

namespace kvatlas {

// Counts of the engine's calls; blocks as `PublisherStats` has them.
struct ContentsStats {
  uint64_t blocks_stored = 0;
  uint64_t blocks_removed = 0;
  uint64_t clears = 0;
  uint64_t blocks_stored_passed = 0;
  uint64_t blocks_removed_passed = 0;
  uint64_t unknown_parents = 0;
  uint64_t unknown_removed = 0;
  uint64_t renamed = 0;  // an engine hash that now means other tokens
};

class Contents {
 public:
  Contents(uint32_t block_size, const HashContract& contract);

  // Appends to `changes` what the call changes of the set. NOT_FOUND: a parent or a block that it
  // builds on is not held; that part of the call is dropped. Loads and engines' own batches are
  // none of its business.
  absl::Status Apply(const Record& record, std::vector<Event>* changes);

  // The classes of what is held, from now on.
  void SetLayout(const CacheLayout& layout) {
    layout_changed_ = resident_.SetLayout(layout) || layout_changed_;
  }
  // Whether they changed since this was asked last.
  bool TakeLayoutChange() { return std::exchange(layout_changed_, false); }

  // A change of the set that the caller worked out and counted copies for (`engine_batches.h`);
  // returns how many blocks it changed. REQUIRES: none of its blocks came by `Apply`.
  uint64_t Take(const Event& event, std::vector<Event>* changes) { return Change(event, changes); }

  // The engine's own names of what it holds in a tier, each as often as it has copies of it. In no
  // order.
  std::vector<uint64_t> NamesIn(Tier tier) const;

  const ResidentSet& resident() const { return resident_; }
  const ContentsStats& stats() const { return stats_; }

 private:
  // The block that an engine hash stands for.
  struct Alias {
    SequenceHash parent = kNoParent;
    SequenceHash block{0};
    Position position = 0;
    std::array<uint32_t, kTiers> copies = {};

    bool held() const { return copies != std::array<uint32_t, kTiers>{}; }
  };

  absl::Status Store(const Record& record, std::vector<Event>* changes);
  absl::Status StoreKnown(const Record& record, std::vector<Event>* changes);
  void Remove(const Record& record, std::vector<Event>* changes);
  void StoreHashed(const Record& record, std::vector<Event>* changes);
  void RemoveHashed(const Record& record, std::vector<Event>* changes);
  // The names of a record's side blocks.
  std::vector<SequenceHash> SideNames(const Record& record) const;
  void StoreSide(const Record& record, std::vector<Event>* changes);
  void RemoveSide(const Record& record, std::vector<Event>* changes);
  // One copy less of every block.
  void DropCopies(Removed blocks, std::vector<Event>* changes);
  void Clear(TierMask tiers, std::vector<Event>* changes);

  uint64_t SeedOf(const Record& record);
  // One copy more of the engine's block.
  void AddAlias(Tier tier, uint64_t engine_hash, SequenceHash parent, SequenceHash block,
                Position position, std::vector<Event>* changes);
  // One copy more of every block of the run.
  void AddCopies(Stored run, std::vector<Event>* changes);
  // One copy less; true when it was the last one and the block is to be removed.
  bool DropCopy(Tier tier, SequenceHash block);
  // Returns how many blocks were stored or removed by it; none are counted of a clear.
  uint64_t Change(const Event& event, std::vector<Event>* changes);

  const uint32_t block_size_;
  const HashContract contract_;
  ResidentSet resident_;
  bool layout_changed_ = false;
  absl::flat_hash_map<uint64_t, Alias> aliases_;
  // Copies beyond the first, of blocks that have such; most have none.
  absl::flat_hash_map<SequenceHash, std::array<uint32_t, kTiers>> extra_copies_;
  ContentsStats stats_;
  // The last namespace's seed.
  std::string seed_lora_;
  std::string seed_salt_;
  uint64_t seed_;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_RESIDENT_BLOCKS_H_
