// Two maps under one mutex: blocks by hash, and for each holder the tiers of each block that it
// has. Nothing here is clever, since the other structures are compared with it: each method is the
// definition in `index.h` written down. It counts `blocks_max` and knows no bound of bytes.

#include "indexer/index/reference.h"

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

class ReferenceIndex : public Index {
 public:
  explicit ReferenceIndex(const IndexOptions& options) : options_(options) {}

  std::string_view Name() const override { return "reference"; }
  absl::StatusOr<HolderIndex> AddHolder() override;
  void RemoveHolder(HolderIndex holder) override;
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override;
  void SetMasked(HolderIndex holder, bool masked) override;
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override;
  std::vector<Holding> HoldingsOf(HolderIndex holder) const override;
  Digest DigestOf(HolderIndex holder) const override;
  IndexStats Stats() const override;
  absl::Status Check() const override;

 private:
  struct Holder {
    bool masked = false;
    std::map<SequenceHash, TierMask> held;
  };
  // A block that some holder has; erased with its last holder. Position and parent are those of the
  // first store.
  struct Block {
    Position position = 0;
    SequenceHash parent = kNoParent;
    LocalHash local{0};
    uint32_t holders = 0;
  };

  absl::Status Store(HolderIndex holder, const Stored& stored, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(HolderIndex holder, TierMask tiers, SequenceHash block, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Clear(HolderIndex holder, TierMask tiers, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsAskedFor(HolderIndex holder, std::span<const uint64_t> only);
  static uint32_t OverlapOf(const Holder& holder, const OverlapQuery& query);

  const IndexOptions options_;
  mutable Mutex mutex_;
  std::map<HolderIndex, Holder> holders_ ABSL_GUARDED_BY(mutex_);
  std::map<SequenceHash, Block> blocks_ ABSL_GUARDED_BY(mutex_);
  uint64_t refused_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The smallest free number: numbers are in order, so it is where the count first differs.
absl::StatusOr<HolderIndex> ReferenceIndex::AddHolder() {
  MutexLock lock(&mutex_);
  if (holders_.size() >= options_.holders_max)
    return absl::ResourceExhaustedError("holders_max reached");
  uint32_t free = 0;
  for (const auto& [number, holder] : holders_) {
    if (Raw(number) != free) break;
    ++free;
  }
  holders_[HolderIndex{free}];
  return HolderIndex{free};
}

void ReferenceIndex::RemoveHolder(HolderIndex holder) {
  MutexLock lock(&mutex_);
  if (holders_.count(holder) == 0) return;
  Clear(holder, TierMask::All(), nullptr);
  holders_.erase(holder);
}

absl::Status ReferenceIndex::Apply(HolderIndex holder, const Event& event, ChangeLog* changes) {
  MutexLock lock(&mutex_);
  if (holders_.count(holder) == 0) return absl::NotFoundError("no such holder");
  if (const Stored* stored = std::get_if<Stored>(&event)) return Store(holder, *stored, changes);
  if (const Removed* removed = std::get_if<Removed>(&event)) {
    for (SequenceHash block : removed->blocks) Remove(holder, removed->tier, block, changes);
  } else {
    Clear(holder, std::get<Cleared>(event).tiers, changes);
  }
  return absl::OkStatus();
}

// Block by block, up to the first that a bound refuses. A known block is stored even at the bound.
absl::Status ReferenceIndex::Store(HolderIndex holder, const Stored& stored, ChangeLog* changes) {
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const SequenceHash hash = stored.blocks[i];
    if (blocks_.count(hash) == 0) {
      if (options_.blocks_max != 0 && blocks_.size() >= options_.blocks_max) {
        refused_blocks_ += stored.blocks.size() - i;
        return absl::ResourceExhaustedError("blocks_max reached");
      }
      blocks_[hash] = Block{.position = stored.position + static_cast<Position>(i),
                            .parent = i == 0 ? stored.parent : stored.blocks[i - 1]};
    }
    Block& block = blocks_[hash];
    if (options_.keep_local_hashes && i < stored.local_hashes.size())
      block.local = stored.local_hashes[i];
    TierMask& tiers = holders_[holder].held[hash];
    const TierMask before = tiers;
    tiers = before | stored.tier;
    if (before.empty()) ++block.holders;
    if (changes != nullptr && before != tiers) changes->Add(hash, block.position, before, tiers);
  }
  return absl::OkStatus();
}

// Takes the block out of some tiers, and logs it once for all of them.
void ReferenceIndex::Remove(HolderIndex holder, TierMask tiers, SequenceHash hash,
                            ChangeLog* changes) {
  std::map<SequenceHash, TierMask>& held = holders_[holder].held;
  const auto holding = held.find(hash);
  if (holding == held.end() || !holding->second.Intersects(tiers)) return;
  const TierMask before = holding->second;
  const TierMask after = before & ~tiers;
  const Position position = blocks_[hash].position;
  holding->second = after;
  if (after.empty()) {
    held.erase(holding);
    if (--blocks_[hash].holders == 0) blocks_.erase(hash);
  }
  if (changes != nullptr) changes->Add(hash, position, before, after);
}

// Over a copy, since `Remove` erases from the map.
void ReferenceIndex::Clear(HolderIndex holder, TierMask tiers, ChangeLog* changes) {
  const std::map<SequenceHash, TierMask> held = holders_[holder].held;
  for (const auto& [hash, unused] : held) Remove(holder, tiers, hash, changes);
}

void ReferenceIndex::SetMasked(HolderIndex holder, bool masked) {
  MutexLock lock(&mutex_);
  const auto found = holders_.find(holder);
  if (found != holders_.end()) found->second.masked = masked;
}

// The definition of an overlap.
uint32_t ReferenceIndex::OverlapOf(const Holder& holder, const OverlapQuery& query) {
  uint32_t depth = 0;
  for (SequenceHash hash : query.blocks) {
    const auto holding = holder.held.find(hash);
    if (holding == holder.held.end() || !holding->second.Intersects(query.tiers)) break;
    ++depth;
  }
  return depth;
}

bool ReferenceIndex::IsAskedFor(HolderIndex holder, std::span<const uint64_t> only) {
  if (only.empty()) return true;
  const uint32_t word = Raw(holder) / 64;
  return word < only.size() && (only[word] >> (Raw(holder) % 64) & 1) != 0;
}

void ReferenceIndex::FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const {
  MutexLock lock(&mutex_);
  for (const auto& [number, holder] : holders_) {
    if (holder.masked || !IsAskedFor(number, query.only)) continue;
    const uint32_t depth = OverlapOf(holder, query);
    if (depth > 0) overlaps->push_back({.holder = number, .blocks = depth});
  }
}

std::vector<Holding> ReferenceIndex::HoldingsOf(HolderIndex holder) const {
  MutexLock lock(&mutex_);
  std::vector<Holding> holdings;
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return holdings;
  for (const auto& [hash, tiers] : found->second.held) {
    const Block& block = blocks_.at(hash);
    holdings.push_back({.block = hash,
                        .position = block.position,
                        .parent = block.parent,
                        .tiers = tiers,
                        .local = block.local});
  }
  return holdings;
}

Digest ReferenceIndex::DigestOf(HolderIndex holder) const {
  MutexLock lock(&mutex_);
  Digest digest;
  const auto found = holders_.find(holder);
  if (found == holders_.end()) return digest;
  for (const auto& [hash, tiers] : found->second.held) {
    for (int tier = 0; tier < kTiers; ++tier) {
      if (tiers.Has(static_cast<Tier>(tier))) digest.Add(static_cast<Tier>(tier), hash);
    }
  }
  return digest;
}

// A node of a std::map is its value and four words.
template <typename Map>
uint64_t MapBytes(const Map& map) {
  return map.size() * (sizeof(typename Map::value_type) + 4 * sizeof(void*));
}

IndexStats ReferenceIndex::Stats() const {
  MutexLock lock(&mutex_);
  IndexStats stats;
  stats.holders = holders_.size();
  stats.blocks = blocks_.size();
  stats.refused_blocks = refused_blocks_;
  stats.bytes = MapBytes(blocks_) + MapBytes(holders_);
  for (const auto& [number, holder] : holders_) {
    stats.holdings += holder.held.size();
    stats.bytes += MapBytes(holder.held);
  }
  return stats;
}

absl::Status ReferenceIndex::Check() const {
  MutexLock lock(&mutex_);
  std::map<SequenceHash, uint32_t> counted;
  for (const auto& [number, holder] : holders_) {
    for (const auto& [hash, tiers] : holder.held) {
      if (tiers.empty()) return absl::InternalError("reference: a holding in no tier");
      ++counted[hash];
    }
  }
  if (counted.size() != blocks_.size())
    return absl::InternalError("reference: blocks without holders");
  for (const auto& [hash, block] : blocks_) {
    if (counted[hash] != block.holders)
      return absl::InternalError("reference: wrong number of holders");
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Index> MakeReferenceIndex(const IndexOptions& options) {
  return std::make_unique<ReferenceIndex>(options);
}

}  // namespace kvatlas
