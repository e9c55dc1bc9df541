// Announced blocks that cannot be placed yet: blocks with an unknown parent, kept with their
// tokens, and blocks that came without tokens under a name that was never announced.
//
// *Truth*: a block is parked once, under its name, with its copies by tier; a removal unparks it
// like any other. It waits for its own name if it has no tokens, else for its parent's.
// *Threads*: none; the caller serialises.
// *Bounds*: `blocks_max`, `bytes_max` and the process's memory budget; beyond any of them nothing
// new is parked. Blocks that waited for `ttl` are dropped (`DropExpired`).
// *Cost*: about 300 bytes and two hash table entries a block of 16 tokens; rare by nature.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ORPHANS_H_
#define KVATLAS_INDEXER_KV_EVENTS_ORPHANS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/tier.h"
#include "indexer/kv_events/alias_table.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/namespaces.h"

namespace kvatlas {

// A name as a key: the attention group, whether it is a digest, its bytes.
std::string ParkedName(size_t group, const EngineBlockHash& name);
// And back; the view is into `key`.
EngineBlockHash NameOfKey(const std::string& key);
size_t GroupOfKey(const std::string& key);

struct ParkedBlock {
  bool has_tokens = false;
  std::string parent;  // with tokens
  std::vector<TokenId> tokens;
  std::vector<uint64_t> multimodal;
  uint32_t said = 0;  // its event's adapter and salt: of `Orphans::Said`
  uint32_t eagle = 0;
  TierCopies copies = {};
  TierCopies certain = {};     // of those; others' removals may have been lost
  TierMask sets;               // tiers whose stores are no copies more
  bool may_end_chunk = false;  // its name may stand for the blocks before it, too
  Time since{0};
  uint64_t ticket = 0;
};

class Orphans {
 public:
  // `memory` outlives this; null: no budget.
  Orphans(size_t blocks_max, size_t bytes_max, Duration ttl, const MemoryBudget* memory)
      : blocks_max_(blocks_max),
        bytes_max_(bytes_max),
        ttl_(ttl),
        memory_(memory),
        said_({}, "", "", bytes_max, memory) {}

  bool empty() const { return blocks_.empty(); }
  size_t size() const { return blocks_.size(); }
  size_t bytes() const { return bytes_ + said_.bytes(); }

  // A store in `tier` (`AliasTable::Copies`) of a block that may be parked already; its tokens, and
  // the adapter and salt that its event said (empty: none), are kept when it had none. False: full.
  bool Park(const std::string& name, ParkedBlock block, std::string_view lora_name,
            std::string_view cache_salt, Tier tier, AliasTable::Copies copies, Time now);
  // One copy less; false: it was not parked there.
  bool Remove(const std::string& name, Tier tier);

  const ParkedBlock* Find(const std::string& name) const;
  // The adapter and salt that a parked block's event named; equal ones are kept once.
  const Space& Said(const ParkedBlock& block) const { return said_.at(block.said); }
  std::optional<ParkedBlock> Take(const std::string& name);
  // Names of those that wait for this parent, in no particular order.
  std::vector<std::string> ChildrenOf(const std::string& parent) const;

  // Number of blocks that waited too long.
  size_t DropExpired(Time now);
  // Names without tokens, at most `most`, a different lot with every call.
  std::vector<std::string> WithoutTokens(size_t most);
  // As `AliasTable`'s; `DropUnconfirmed` all at once: the number of blocks that went.
  void Lose();
  void Confirm();
  size_t DropUnconfirmed();
  bool AnyUnconfirmed() const;
  // Drops the blocks of one attention group.
  void DropGroup(size_t group);
  // Nothing is in that tier any more.
  void ClearTier(Tier tier);
  void Clear();

 private:
  static size_t BytesOf(const std::string& name, const ParkedBlock& block);
  // Takes up what its event said; false: there is no room for the block.
  bool Admit(ParkedBlock* block, std::string_view lora_name, std::string_view cache_salt);
  void Unlink(const std::string& name, const ParkedBlock& block);
  void TrimQueue();
  // Drops blocks without copies; returns how many.
  size_t TakeEmpty();

  const size_t blocks_max_;
  const size_t bytes_max_;
  const Duration ttl_;
  const MemoryBudget* const memory_;
  Namespaces said_;
  absl::flat_hash_map<std::string, ParkedBlock> blocks_;
  absl::flat_hash_map<std::string, absl::flat_hash_set<std::string>> children_;  // by parent
  std::deque<std::pair<uint64_t, std::string>>
      queue_;  // by age; tickets that are gone stay for a while
  uint64_t next_ticket_ = 1;
  size_t bytes_ = 0;
  size_t without_tokens_ = 0;
  size_t asked_ = 0;  // where `WithoutTokens` goes on in the queue
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ORPHANS_H_
