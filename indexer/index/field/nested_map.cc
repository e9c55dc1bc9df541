// Does a worker have a block with these tokens, and how many of the prompt's in a row? The field's
// first index: a dictionary of dictionaries.
//
//   holder → { local hash → sequence hashes }          sequence hash → { position, parent, local hash, holders }
//
// *From*: "Flash Indexer" §1 and §2, where it is Python, then Rust behind an actor (`actor.cc`).
// The second table is ours: the interface asks for positions, and for a count of distinct blocks.
// *Truth* of `nested_map`: over-counts. It asks whether the holder has some block of this content,
// not which one, so content that diverged and met again, or a prompt that repeats itself, counts as
// deep as its words are known:
//
//   holder has [a b] and [x y]; asked for [a y]        the answer is 2, the truth is 1
//   holder has [a];             asked for [a a a]      the answer is 3, the truth is 1
//
// It is right when every block's content is unique, as it is without local hashes. *Truth* of
// `nested_map_exact`: as `index.h`. The prompt's sequence hash must be among those under the local
// hash. So content alone is not enough to ask: the caller hashes the chain.
// *Threads*: one mutex (`serial_index.h`).
// *Cost*: a query walks the prompt once per holder, D·W probes. `nested_map` removes as its source
// does: one pass over all that the holder has, for every event; `nested_map_exact` finds the local
// hash in the second table.

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "indexer/index/field/field.h"
#include "indexer/index/field/serial_index.h"

namespace kvatlas {
namespace {

class NestedMapIndex : public SerialIndex {
 public:
  NestedMapIndex(const IndexOptions& options, bool exact)
      : SerialIndex(options, exact ? Asked::kBySequence : Asked::kByContent), exact_(exact) {}

  std::string_view Name() const override { return exact_ ? "nested_map_exact" : "nested_map"; }

 private:
  struct Held {
    SequenceHash block{0};
    TierMask tiers;
  };
  // Almost always one: the same content after two different heads is rare.
  using Sequences = absl::InlinedVector<Held, 1>;
  using Blocks = absl::flat_hash_map<LocalHash, Sequences>;

  // What the first writer of a block said of it; forgotten with the last holder.
  struct Place {
    SequenceHash parent = kNoParent;
    LocalHash key{0};
    LocalHash local{0};
    Position position = 0;
    uint32_t holders = 0;
  };

  absl::Status Store(HolderIndex holder, const Stored& stored, ChangeLog* changes) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(HolderIndex holder, std::span<const SequenceHash> blocks, TierMask tiers,
              ChangeLog* changes) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Find(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<SequenceHash> SomeBlocks(HolderIndex holder, size_t blocks_max) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Holding> Holdings(HolderIndex holder) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Describe(IndexStats* stats) const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTables() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void StoreBlock(HolderIndex holder, SequenceHash block, Tier tier, Place* place,
                  ChangeLog* changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveByScan(HolderIndex holder, std::span<const SequenceHash> blocks, TierMask tiers,
                    ChangeLog* changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOut(HolderIndex holder, Sequences* sequences, size_t at, TierMask tiers,
               ChangeLog* changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<LocalHash> KeysOf(const OverlapQuery& query) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Counts(const Blocks& blocks, LocalHash key, size_t i, const OverlapQuery& query) const;

  const bool exact_;
  std::vector<Blocks> held_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SequenceHash, Place> places_ ABSL_GUARDED_BY(mutex_);
};

// ---- Events ----

absl::Status NestedMapIndex::Store(HolderIndex holder, const Stored& stored, ChangeLog* changes) {
  if (held_.size() < holder_numbers()) held_.resize(holder_numbers());
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const SequenceHash block = stored.blocks[i];
    auto place = places_.find(block);
    if (place == places_.end()) {
      const absl::Status room = RoomFor(places_.size());
      if (!room.ok()) {
        Refuse(stored, i);
        return room;
      }
      place = places_.emplace(block, Place()).first;
      place->second.parent = ParentAt(stored, i);
      place->second.key = KeyAt(stored, i);
      place->second.position = stored.position + static_cast<Position>(i);
    }
    if (options_.keep_local_hashes && HasLocals(stored))
      place->second.local = stored.local_hashes[i];
    StoreBlock(holder, block, stored.tier, &place->second, changes);
  }
  return absl::OkStatus();
}

void NestedMapIndex::StoreBlock(HolderIndex holder, SequenceHash block, Tier tier, Place* place,
                                ChangeLog* changes) {
  Sequences& sequences = held_[Raw(holder)][place->key];
  auto held = std::find_if(sequences.begin(), sequences.end(),
                           [block](const Held& each) { return each.block == block; });
  if (held == sequences.end()) {
    sequences.push_back({.block = block, .tiers = TierMask()});
    held = sequences.end() - 1;
    ++place->holders;
  }
  const TierMask before = held->tiers;
  held->tiers = before | tier;
  Change(holder, block, place->position, before, held->tiers, changes);
}

void NestedMapIndex::Remove(HolderIndex holder, std::span<const SequenceHash> blocks,
                            TierMask tiers, ChangeLog* changes) {
  if (Raw(holder) >= held_.size() || blocks.empty()) return;
  if (exact_) {
    for (SequenceHash block : blocks) {
      const auto place = places_.find(block);
      if (place == places_.end()) continue;
      const auto held = held_[Raw(holder)].find(place->second.key);
      if (held == held_[Raw(holder)].end()) continue;
      for (size_t at = held->second.size(); at-- > 0;) {
        if (held->second[at].block == block) TakeOut(holder, &held->second, at, tiers, changes);
      }
      if (held->second.empty()) held_[Raw(holder)].erase(held);
    }
  } else {
    RemoveByScan(holder, blocks, tiers, changes);
  }
  ShrinkTable(&held_[Raw(holder)]);
  ShrinkTable(&places_);
}

// As the source does: a sequence hash does not say under which local hash it stands, so all are
// asked.
void NestedMapIndex::RemoveByScan(HolderIndex holder, std::span<const SequenceHash> blocks,
                                  TierMask tiers, ChangeLog* changes) {
  const absl::flat_hash_set<SequenceHash> gone(blocks.begin(), blocks.end());
  Blocks& held = held_[Raw(holder)];
  for (auto each = held.begin(); each != held.end();) {
    Sequences& sequences = each->second;
    for (size_t at = sequences.size(); at-- > 0;) {
      if (gone.contains(sequences[at].block)) TakeOut(holder, &sequences, at, tiers, changes);
    }
    if (sequences.empty()) {
      held.erase(each++);
    } else {
      ++each;
    }
  }
}

void NestedMapIndex::TakeOut(HolderIndex holder, Sequences* sequences, size_t at, TierMask tiers,
                             ChangeLog* changes) {
  Held& held = (*sequences)[at];
  const SequenceHash block = held.block;
  const TierMask before = held.tiers;
  const TierMask after = before & ~tiers;
  const auto place = places_.find(block);
  const Position position = place->second.position;
  held.tiers = after;
  if (after.empty()) {
    sequences->erase(sequences->begin() + at);
    if (--place->second.holders == 0) places_.erase(place);
  }
  Change(holder, block, position, before, after, changes);
}

// ---- Questions ----

void NestedMapIndex::Find(const OverlapQuery& query, std::vector<Overlap>* overlaps) const {
  const std::vector<LocalHash> keys = KeysOf(query);
  for (uint32_t number = 0; number < held_.size(); ++number) {
    const HolderIndex holder{number};
    if (held_[number].empty() || !Answers(holder, query)) continue;
    uint32_t depth = 0;
    while (depth < keys.size() && Counts(held_[number], keys[depth], depth, query)) ++depth;
    if (depth > 0) overlaps->push_back({.holder = holder, .blocks = depth});
  }
}

// Local hashes of the prompt: as far as they are known, where they have to be looked up.
std::vector<LocalHash> NestedMapIndex::KeysOf(const OverlapQuery& query) const {
  std::vector<LocalHash> keys;
  for (size_t i = 0; i < query.blocks.size(); ++i) {
    if (!exact_) {
      keys.push_back(KeyAt(query, i));
      continue;
    }
    const auto place = places_.find(query.blocks[i]);
    if (place == places_.end()) break;
    keys.push_back(place->second.key);
  }
  return keys;
}

bool NestedMapIndex::Counts(const Blocks& blocks, LocalHash key, size_t i,
                            const OverlapQuery& query) const {
  const auto found = blocks.find(key);
  if (found == blocks.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [&](const Held& held) {
    return held.tiers.Intersects(query.tiers) && (!exact_ || held.block == query.blocks[i]);
  });
}

// ---- Contents ----

std::vector<SequenceHash> NestedMapIndex::SomeBlocks(HolderIndex holder, size_t blocks_max) const {
  std::vector<SequenceHash> blocks;
  if (Raw(holder) >= held_.size()) return blocks;
  for (const auto& [key, sequences] : held_[Raw(holder)]) {
    for (const Held& held : sequences) {
      if (blocks.size() >= blocks_max) return blocks;
      blocks.push_back(held.block);
    }
  }
  return blocks;
}

std::vector<Holding> NestedMapIndex::Holdings(HolderIndex holder) const {
  std::vector<Holding> holdings;
  if (Raw(holder) >= held_.size()) return holdings;
  for (const auto& [key, sequences] : held_[Raw(holder)]) {
    for (const Held& held : sequences) {
      const Place& place = places_.find(held.block)->second;
      holdings.push_back({.block = held.block,
                          .position = place.position,
                          .parent = place.parent,
                          .tiers = held.tiers,
                          .local = place.local});
    }
  }
  return holdings;
}

void NestedMapIndex::Describe(IndexStats* stats) const {
  stats->blocks = places_.size();
  stats->bytes += TableBytes(places_);
  uint64_t local_hashes = 0;
  for (const Blocks& blocks : held_) {
    local_hashes += blocks.size();
    stats->bytes += TableBytes(blocks);
    for (const auto& [key, sequences] : blocks) {
      if (sequences.capacity() > 1) stats->bytes += sequences.capacity() * sizeof(Held);
    }
  }
  stats->shape.emplace_back("local_hashes", local_hashes);
}

absl::Status NestedMapIndex::CheckTables() const {
  absl::flat_hash_map<SequenceHash, uint32_t> holders;
  for (const Blocks& blocks : held_) {
    for (const auto& [key, sequences] : blocks) {
      if (sequences.empty()) return absl::InternalError("a local hash without a block");
      for (const Held& held : sequences) {
        const auto place = places_.find(held.block);
        if (place == places_.end() || place->second.key != key)
          return absl::InternalError("a block under a wrong local hash");
        ++holders[held.block];
      }
    }
  }
  if (holders.size() != places_.size()) return absl::InternalError("a block without holders");
  for (const auto& [block, place] : places_) {
    if (holders[block] != place.holders) return absl::InternalError("wrong number of holders");
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Index> MakeNestedMapIndex(const IndexOptions& options) {
  return std::make_unique<NestedMapIndex>(options, /*exact=*/false);
}

std::unique_ptr<Index> MakeExactNestedMapIndex(const IndexOptions& options) {
  return std::make_unique<NestedMapIndex>(options, /*exact=*/true);
}

}  // namespace kvatlas
