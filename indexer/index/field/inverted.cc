// Which workers have a block with these tokens? The dictionary of dictionaries turned inside out,
// so that a prompt is walked once instead of once per worker.
//
//   local hash → { sequence hash → { position, parent, holders × tiers } }
//   holder     → { sequence hash → local hash }
//
// *From*: "Flash Indexer" §3. The second table is the "reverse lookup" that it weighs: without one,
// every removal scans the whole index.
// *Truth* of `inverted`: over-counts. At each block it takes together the holders of all sequences
// under that content, so content that diverged and met again, or a prompt that repeats itself,
// counts too far:
//
//   holder 0 has [a b], holder 1 has [a x] and [y b]; asked for [a b]      1 gets 2, the truth is 1
//
// It is right when every block's content is unique, as it is without local hashes. *Truth* of
// `inverted_exact`: as `index.h`. It looks under the local hash for the prompt's own sequence hash;
// which local hash that is, a third table says, so that it may be asked by sequence hash alone.
// *Threads*: one mutex (`serial_index.h`).
// *Cost*: a query is D probes and a set intersection at each of them, D·W at most. The source's D +
// W counts a holder only where it drops out; that needs a guess from the sizes of the sets, which
// holes make wrong. A hash set per distinct block and one more per local hash: memory is not its
// strength.

#include <algorithm>

#include "indexer/index/field/field.h"
#include "indexer/index/field/serial_index.h"

namespace kvatlas {
namespace {

class InvertedIndex : public SerialIndex {
 public:
  InvertedIndex(const IndexOptions& options, bool exact)
      : SerialIndex(options, exact ? Asked::kBySequence : Asked::kByContent), exact_(exact) {}

  std::string_view Name() const override { return exact_ ? "inverted_exact" : "inverted"; }

 private:
  struct Block {
    Position position = 0;
    SequenceHash parent = kNoParent;
    LocalHash local{0};
    Holders holders;
  };
  using Sequences = absl::flat_hash_map<SequenceHash, Block>;
  using Keys = absl::flat_hash_map<SequenceHash, LocalHash>;

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

  // The block; with its first writer's place when it is new.
  Block& BlockAt(const Stored& stored, size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveBlock(HolderIndex holder, Keys::iterator held, TierMask tiers, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(SequenceHash block, LocalHash key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Who has block number i of the prompt: several sets where content decides, one where the
  // sequence does.
  std::vector<const Holders*> HoldersOf(const OverlapQuery& query, size_t i) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<HolderIndex> United(const std::vector<const Holders*>& sets,
                                  const OverlapQuery& query) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool exact_;
  absl::flat_hash_map<LocalHash, Sequences> index_ ABSL_GUARDED_BY(mutex_);
  // By the holder's number: where each of its blocks stands.
  std::vector<Keys> held_ ABSL_GUARDED_BY(mutex_);
  // Where every block stands.
  Keys keys_ ABSL_GUARDED_BY(mutex_);
};

// ---- Events ----

absl::Status InvertedIndex::Store(HolderIndex holder, const Stored& stored, ChangeLog* changes) {
  if (held_.size() < holder_numbers()) held_.resize(holder_numbers());
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const SequenceHash hash = stored.blocks[i];
    if (!keys_.contains(hash)) {
      const absl::Status room = RoomFor(keys_.size());
      if (!room.ok()) {
        Refuse(stored, i);
        return room;
      }
    }
    Block& block = BlockAt(stored, i);
    TierMask& tiers = block.holders[holder];
    if (tiers.empty()) held_[Raw(holder)][hash] = keys_[hash];
    const TierMask before = tiers;
    tiers = before | stored.tier;
    Change(holder, hash, block.position, before, tiers, changes);
  }
  return absl::OkStatus();
}

InvertedIndex::Block& InvertedIndex::BlockAt(const Stored& stored, size_t i) {
  const SequenceHash hash = stored.blocks[i];
  const auto [key, is_new] = keys_.try_emplace(hash, KeyAt(stored, i));
  Block& block = index_[key->second][hash];
  if (is_new) {
    block.position = stored.position + static_cast<Position>(i);
    block.parent = ParentAt(stored, i);
  }
  if (options_.keep_local_hashes && HasLocals(stored)) block.local = stored.local_hashes[i];
  return block;
}

void InvertedIndex::Remove(HolderIndex holder, std::span<const SequenceHash> blocks, TierMask tiers,
                           ChangeLog* changes) {
  if (Raw(holder) >= held_.size()) return;
  for (SequenceHash block : blocks) {
    const auto held = held_[Raw(holder)].find(block);
    if (held != held_[Raw(holder)].end()) RemoveBlock(holder, held, tiers, changes);
  }
  ShrinkTable(&held_[Raw(holder)]);
  ShrinkTable(&keys_);
  ShrinkTable(&index_);
}

void InvertedIndex::RemoveBlock(HolderIndex holder, Keys::iterator held, TierMask tiers,
                                ChangeLog* changes) {
  const auto [hash, key] = *held;
  Block& block = index_.find(key)->second.find(hash)->second;
  const auto holding = block.holders.find(holder);
  const TierMask before = holding->second;
  const TierMask after = before & ~tiers;
  const Position position = block.position;
  holding->second = after;
  if (after.empty()) {
    held_[Raw(holder)].erase(held);
    block.holders.erase(holding);
    ShrinkTable(&block.holders);
    if (block.holders.empty()) Forget(hash, key);
  }
  Change(holder, hash, position, before, after, changes);
}

void InvertedIndex::Forget(SequenceHash block, LocalHash key) {
  const auto sequences = index_.find(key);
  sequences->second.erase(block);
  ShrinkTable(&sequences->second);
  if (sequences->second.empty()) index_.erase(sequences);
  keys_.erase(block);
}

// ---- Questions ----

void InvertedIndex::Find(const OverlapQuery& query, std::vector<Overlap>* overlaps) const {
  Descent descent(overlaps);
  for (size_t i = 0; i < query.blocks.size(); ++i) {
    const std::vector<const Holders*> sets = HoldersOf(query, i);
    if (sets.empty()) break;
    if (i == 0) {
      descent.Begin(United(sets, query));
    } else {
      descent.Step([&](HolderIndex holder) {
        return std::any_of(sets.begin(), sets.end(), [&](const Holders* holders) {
          return Has(*holders, holder, query.tiers);
        });
      });
    }
    if (descent.empty()) break;
  }
  descent.End();
}

std::vector<const SerialIndex::Holders*> InvertedIndex::HoldersOf(const OverlapQuery& query,
                                                                  size_t i) const {
  std::vector<const Holders*> sets;
  LocalHash key{0};
  if (exact_) {
    const auto known = keys_.find(query.blocks[i]);
    if (known == keys_.end()) return sets;
    key = known->second;
  } else {
    key = KeyAt(query, i);
  }
  const auto sequences = index_.find(key);
  if (sequences == index_.end()) return sets;
  for (const auto& [hash, block] : sequences->second) {
    if (!exact_ || hash == query.blocks[i]) sets.push_back(&block.holders);
  }
  return sets;
}

std::vector<HolderIndex> InvertedIndex::United(const std::vector<const Holders*>& sets,
                                               const OverlapQuery& query) const {
  std::vector<HolderIndex> united;
  for (const Holders* holders : sets) {
    const std::vector<HolderIndex> some = Answering(*holders, query);
    united.insert(united.end(), some.begin(), some.end());
  }
  std::sort(united.begin(), united.end());
  united.erase(std::unique(united.begin(), united.end()), united.end());
  return united;
}

// ---- Contents ----

std::vector<SequenceHash> InvertedIndex::SomeBlocks(HolderIndex holder, size_t blocks_max) const {
  if (Raw(holder) >= held_.size()) return {};
  return SomeKeys(held_[Raw(holder)], blocks_max);
}

std::vector<Holding> InvertedIndex::Holdings(HolderIndex holder) const {
  std::vector<Holding> holdings;
  if (Raw(holder) >= held_.size()) return holdings;
  for (const auto& [hash, key] : held_[Raw(holder)]) {
    const Block& block = index_.find(key)->second.find(hash)->second;
    holdings.push_back({.block = hash,
                        .position = block.position,
                        .parent = block.parent,
                        .tiers = block.holders.find(holder)->second,
                        .local = block.local});
  }
  return holdings;
}

void InvertedIndex::Describe(IndexStats* stats) const {
  stats->blocks = keys_.size();
  stats->bytes += TableBytes(index_) + TableBytes(keys_);
  for (const Keys& keys : held_) stats->bytes += TableBytes(keys);
  for (const auto& [key, sequences] : index_) {
    stats->bytes += TableBytes(sequences);
    for (const auto& [hash, block] : sequences) stats->bytes += TableBytes(block.holders);
  }
  stats->shape.emplace_back("local_hashes", index_.size());
}

absl::Status InvertedIndex::CheckTables() const {
  size_t blocks = 0, holdings = 0, held = 0;
  for (const auto& [key, sequences] : index_) {
    blocks += sequences.size();
    if (sequences.empty()) return absl::InternalError("a local hash without a block");
    for (const auto& [hash, block] : sequences) {
      holdings += block.holders.size();
      if (block.holders.empty()) return absl::InternalError("a block without holders");
      const auto known = keys_.find(hash);
      if (known == keys_.end() || known->second != key)
        return absl::InternalError("a block under a wrong local hash");
      for (const auto& [holder, tiers] : block.holders) {
        if (!held_[Raw(holder)].contains(hash))
          return absl::InternalError("a holder that does not know its block");
      }
    }
  }
  for (const Keys& keys : held_) held += keys.size();
  if (blocks == keys_.size() && holdings == held) return absl::OkStatus();
  return absl::InternalError("the tables differ in what they have");
}

}  // namespace

std::unique_ptr<Index> MakeInvertedIndex(const IndexOptions& options) {
  return std::make_unique<InvertedIndex>(options, /*exact=*/false);
}

std::unique_ptr<Index> MakeExactInvertedIndex(const IndexOptions& options) {
  return std::make_unique<InvertedIndex>(options, /*exact=*/true);
}

}  // namespace kvatlas
