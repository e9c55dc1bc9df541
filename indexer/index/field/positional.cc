// A table keyed by place and content: the field's "positional" or "Flash" indexer (Flash Indexer
// §6, Dynamo's PositionalIndexer).
//
//   (position, local hash) ──▶ one (sequence hash, holders), or several of them      in 256 shards
//   holder ──▶ { sequence hash → (position, local hash) }
//
// A query takes the holders of its first block and then *jumps*: it looks `kPositionalJump` blocks
// ahead, counts who has the block there, and goes on if as many have it as are in play. Only where
// fewer do are the blocks in between looked at: one after the other (`positional`), or by bisection
// for each holder that was lost (`positional_binary`).
//
// *Truth*: right for holders whose blocks have no holes. With holes `positional` and
// `positional_binary` over-count, as the original does: a block ahead says what the prefix was, not
// that the holder still has it. And because holders are counted there and not compared, one that
// has no first block can stand in for one that was lost. `positional_verified` looks at every
// position and intersects: exact, and never above what was true at some instant; a holder that
// loses blocks while it is asked for may count the first block only. Two things of the original are
// left out: its article takes a place's only sequence for the prompt's without comparing (sequences
// that part and meet again would match), and its table never frees empty places.
// *Names*: keyed by local hash when stores have local hashes, and queries then need them too; by
// sequence hash when they have none. One index sees one kind of store.
// *Threads*: any. A holder's mutex is held for the length of its events, a shard's lock for one
// place; the order is holder, then shard.
// *Cost*: D blocks, jumps of J: D / J shared locks and counts when no holder drops out; each drop
// adds a scan of up to J places, or log2(J) places a holder; `positional_verified` takes D locks
// and intersections. A stored or removed block is two table accesses. About 90 bytes a distinct
// block and 50 a holding. `Stats` walks the table.
// *Bounds*: `IndexOptions` but `bytes_max`, which is not counted.

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/index/field/candidates.h"
#include "indexer/index/field/field.h"
#include "indexer/index/field/holder_table.h"
#include "indexer/index/holder_set.h"

namespace kvatlas {
namespace {

enum class Search { kLinear, kBinary, kVerified };

std::string_view NameOf(Search search) {
  switch (search) {
    case Search::kLinear:
      return "positional";
    case Search::kBinary:
      return "positional_binary";
    case Search::kVerified:
      return "positional_verified";
  }
  return "";
}

struct Place {
  Position position = 0;
  // Local hash; sequence hash without local hashes.
  uint64_t content = 0;

  friend bool operator==(const Place&, const Place&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Place& place) {
    return H::combine(std::move(h), place.position, place.content);
  }
};

struct Block {
  SequenceHash sequence{0};
  SequenceHash parent = kNoParent;
  HolderSet holders;
};

// The blocks of one place: one nearly always; more where different prefixes have equal content at
// equal depth.
struct Entry {
  Block first;
  // Others, or null. Not empty.
  std::unique_ptr<absl::flat_hash_map<SequenceHash, Block>> others;

  const Block* Find(SequenceHash sequence) const;
  Block* Find(SequenceHash sequence) {
    return const_cast<Block*>(std::as_const(*this).Find(sequence));
  }
  // A block that is not there yet.
  Block* Add(SequenceHash sequence);
  // REQUIRES: it is there, and not the only one.
  void Erase(SequenceHash sequence);
  template <typename Visit>
  void ForEach(Visit visit) const;
};

const Block* Entry::Find(SequenceHash sequence) const {
  if (first.sequence == sequence) return &first;
  if (others == nullptr) return nullptr;
  const auto found = others->find(sequence);
  return found == others->end() ? nullptr : &found->second;
}

Block* Entry::Add(SequenceHash sequence) {
  if (others == nullptr) others = std::make_unique<absl::flat_hash_map<SequenceHash, Block>>();
  return &others->try_emplace(sequence).first->second;
}

void Entry::Erase(SequenceHash sequence) {
  if (first.sequence == sequence) {
    first = std::move(others->begin()->second);
    sequence = first.sequence;
  }
  others->erase(sequence);
  if (others->empty()) others.reset();
}

template <typename Visit>
void Entry::ForEach(Visit visit) const {
  visit(first);
  if (others == nullptr) return;
  for (const auto& [sequence, block] : *others) visit(block);
}

struct alignas(64) Shard {
  mutable SharedMutex mutex;
  absl::flat_hash_map<Place, Entry> entries ABSL_GUARDED_BY(mutex);
};

struct PositionalHolder {
  // Serialises the holder's events, and cuts of it with them. Taken before any shard's.
  mutable Mutex mutex;
  absl::flat_hash_map<SequenceHash, Place> held ABSL_GUARDED_BY(mutex);
  Digest digest ABSL_GUARDED_BY(mutex);
};

// The prompt of a query: what is at each position, and which sequence that ends.
class Prompt {
 public:
  // `locals` may be empty: names take the place of contents.
  Prompt(std::span<const SequenceHash> names, std::span<const LocalHash> locals)
      : names_(names), locals_(locals) {}

  uint32_t size() const {
    return static_cast<uint32_t>(locals_.empty() ? names_.size()
                                                 : std::min(names_.size(), locals_.size()));
  }
  Place PlaceOf(Position position) const {
    return {.position = position,
            .content = locals_.empty() ? Raw(names_[position]) : Raw(locals_[position])};
  }
  SequenceHash NameOf(Position position) const { return names_[position]; }

 private:
  const std::span<const SequenceHash> names_;
  const std::span<const LocalHash> locals_;
};

class PositionalIndex : public Index {
 public:
  PositionalIndex(const IndexOptions& options, Search search)
      : options_(options),
        search_(search),
        holders_(options.holders_max),
        shards_(kShards),
        blocks_(options.blocks_max) {}

  std::string_view Name() const override { return NameOf(search_); }
  absl::StatusOr<HolderIndex> AddHolder() override { return holders_.Add(); }
  void RemoveHolder(HolderIndex holder) override;
  void SetMasked(HolderIndex holder, bool masked) override { holders_.SetMasked(holder, masked); }
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override;
  bool Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) override;
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override;
  std::vector<Holding> HoldingsOf(HolderIndex holder) const override;
  Digest DigestOf(HolderIndex holder) const override;
  IndexStats Stats() const override;
  absl::Status Check() const override;

 private:
  static constexpr size_t kShards = 256;

  // A write in progress: whose, and where it is told.
  struct Writer {
    HolderIndex holder;
    PositionalHolder& state;
    ChangeLog* changes;
  };

  Shard& ShardOf(const Place& place) const {
    return shards_[absl::HashOf(place) >> (8 * sizeof(size_t) - 8)];
  }

  absl::Status Store(const Writer& writer, const Stored& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  absl::Status StoreBlock(const Writer& writer, Tier tier, const Place& place,
                          SequenceHash sequence, SequenceHash parent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  void Remove(const Writer& writer, const Removed& removed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  bool SweepSome(const Writer& writer, TierMask tiers, size_t blocks_max)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  bool Leave(const Writer& writer, TierMask tiers, SequenceHash sequence, const Place& place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  void Notify(const Writer& writer, SequenceHash sequence, Position position, TierMask before,
              TierMask after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);

  // Calls `use` with the holders of the prompt's block, empty when it has none, under the shard's
  // lock.
  template <typename Use>
  void WithHolders(const Prompt& prompt, Position position, Use use) const;
  void Find(const Prompt& prompt, const OverlapQuery& query, std::vector<Overlap>* overlaps) const;
  void ScanJump(const Prompt& prompt, Position from, Position to, Candidates* candidates) const;
  void BisectJump(const Prompt& prompt, Position from, Position to, TierMask tiers,
                  Candidates* candidates) const;

  const IndexOptions options_;
  const Search search_;
  HolderTable<PositionalHolder> holders_;
  mutable std::vector<Shard> shards_;
  // Set by the first store with local hashes, before anything of it is in the table.
  std::atomic<bool> is_keyed_by_content_{false};
  BlockQuota blocks_;
  std::atomic<uint64_t> refused_blocks_{0};
};

// ---- Events ----

absl::Status PositionalIndex::Apply(HolderIndex holder, const Event& event, ChangeLog* changes) {
  if (!holders_.Exists(holder)) return absl::NotFoundError("no such holder");
  const Writer writer{holder, *holders_.Find(holder), changes};
  MutexLock lock(&writer.state.mutex);
  if (const Stored* stored = std::get_if<Stored>(&event)) return Store(writer, *stored);
  if (const Removed* removed = std::get_if<Removed>(&event)) {
    Remove(writer, *removed);
  } else {
    SweepSome(writer, std::get<Cleared>(event).tiers, writer.state.held.size());
  }
  return absl::OkStatus();
}

void PositionalIndex::RemoveHolder(HolderIndex holder) {
  if (!holders_.Hide(holder)) return;
  {
    const Writer writer{holder, *holders_.Find(holder), nullptr};
    MutexLock lock(&writer.state.mutex);
    SweepSome(writer, TierMask::All(), writer.state.held.size());
  }
  holders_.Release(holder);
}

bool PositionalIndex::Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) {
  if (!holders_.Exists(holder)) return false;
  const Writer writer{holder, *holders_.Find(holder), changes};
  MutexLock lock(&writer.state.mutex);
  return SweepSome(writer, TierMask::All(), std::max<size_t>(blocks_max, 1));
}

absl::Status PositionalIndex::Store(const Writer& writer, const Stored& stored) {
  const bool has_locals = HasLocals(stored);
  if (has_locals) is_keyed_by_content_.store(true, std::memory_order_release);
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const SequenceHash sequence = stored.blocks[i];
    const Place place{.position = stored.position + static_cast<Position>(i),
                      .content = has_locals ? Raw(stored.local_hashes[i]) : Raw(sequence)};
    const absl::Status status = StoreBlock(writer, stored.tier, place, sequence,
                                           i == 0 ? stored.parent : stored.blocks[i - 1]);
    if (status.ok()) continue;
    refused_blocks_.fetch_add(stored.blocks.size() - i, std::memory_order_relaxed);
    return status;
  }
  return absl::OkStatus();
}

absl::Status PositionalIndex::StoreBlock(const Writer& writer, Tier tier, const Place& said,
                                         SequenceHash sequence, SequenceHash parent) {
  // A block that is held stays where it is.
  const auto held = writer.state.held.find(sequence);
  const Place place = held == writer.state.held.end() ? said : held->second;
  TierMask before;
  {
    Shard& shard = ShardOf(place);
    WriterLock lock(&shard.mutex);
    const auto entry = shard.entries.find(place);
    Block* block = entry == shard.entries.end() ? nullptr : entry->second.Find(sequence);
    if (block == nullptr) {
      if (!blocks_.Take()) return absl::ResourceExhaustedError("blocks_max reached");
      block =
          entry == shard.entries.end() ? &shard.entries[place].first : entry->second.Add(sequence);
      block->sequence = sequence;
      block->parent = parent;
    }
    before = block->holders.Get(writer.holder);
    if (before.Has(tier)) return absl::OkStatus();
    block->holders.Set(writer.holder, before | tier);
  }
  if (before.empty()) writer.state.held.try_emplace(sequence, place);
  Notify(writer, sequence, place.position, before, before | tier);
  return absl::OkStatus();
}

void PositionalIndex::Notify(const Writer& writer, SequenceHash sequence, Position position,
                             TierMask before, TierMask after) {
  ChangeDigest(sequence, before, after, &writer.state.digest);
  if (writer.changes != nullptr) writer.changes->Add(sequence, position, before, after);
}

void PositionalIndex::Remove(const Writer& writer, const Removed& removed) {
  const HolderTableBase::Removing removing(holders_, writer.holder);
  for (SequenceHash sequence : removed.blocks) {
    const auto held = writer.state.held.find(sequence);
    if (held == writer.state.held.end()) continue;
    if (Leave(writer, removed.tier, sequence, held->second)) writer.state.held.erase(held);
  }
  ShrinkTable(&writer.state.held);
}

// Takes `tiers` of up to `blocks_max` blocks away; false when nothing is left.
bool PositionalIndex::SweepSome(const Writer& writer, TierMask tiers, size_t blocks_max) {
  const HolderTableBase::Removing removing(holders_, writer.holder);
  auto& held = writer.state.held;
  for (auto next = held.begin(); next != held.end() && blocks_max > 0; --blocks_max) {
    const auto each = next++;
    if (Leave(writer, tiers, each->first, each->second)) held.erase(each);
  }
  ShrinkTable(&held);
  return !held.empty();
}

// The holder no longer has the block in `tiers`; true when it has it in no tier. Places that no
// holder is left at are given back.
bool PositionalIndex::Leave(const Writer& writer, TierMask tiers, SequenceHash sequence,
                            const Place& place) {
  TierMask before;
  {
    Shard& shard = ShardOf(place);
    WriterLock lock(&shard.mutex);
    const auto entry = shard.entries.find(place);
    Block* const block = entry->second.Find(sequence);
    before = block->holders.Get(writer.holder);
    if (!before.Intersects(tiers)) return false;
    block->holders.Set(writer.holder, before & ~tiers);
    if (block->holders.empty()) {
      blocks_.Release();
      if (entry->second.others == nullptr) {
        shard.entries.erase(entry);
        ShrinkTable(&shard.entries);
      } else {
        entry->second.Erase(sequence);
      }
    }
  }
  Notify(writer, sequence, place.position, before, before & ~tiers);
  return (before & ~tiers).empty();
}

// ---- Questions ----

void PositionalIndex::FindOverlaps(const OverlapQuery& query,
                                   std::vector<Overlap>* overlaps) const {
  if (query.blocks.empty()) return;
  const bool by_content =
      !query.local_hashes.empty() && is_keyed_by_content_.load(std::memory_order_acquire);
  Find(Prompt(query.blocks, by_content ? query.local_hashes : std::span<const LocalHash>()), query,
       overlaps);
}

template <typename Use>
void PositionalIndex::WithHolders(const Prompt& prompt, Position position, Use use) const {
  const HolderSet none{};
  const Place place = prompt.PlaceOf(position);
  Shard& shard = ShardOf(place);
  ReaderLock lock(&shard.mutex);
  const auto entry = shard.entries.find(place);
  const Block* const block =
      entry == shard.entries.end() ? nullptr : entry->second.Find(prompt.NameOf(position));
  use(block == nullptr ? none : block->holders);
}

// The jump search: everybody in play has the block at `at`, and by assumption all before it.
void PositionalIndex::Find(const Prompt& prompt, const OverlapQuery& query,
                           std::vector<Overlap>* overlaps) const {
  const uint32_t depth_max = prompt.size();
  if (depth_max == 0) return;
  const Position last = depth_max - 1;
  Candidates candidates(holders_, query, overlaps);
  WithHolders(prompt, 0, [&](const HolderSet& holders) { candidates.Start(holders); });
  Position at = 0;
  if (search_ == Search::kVerified) {
    ScanJump(prompt, 1, last, &candidates);
    at = last;
  }
  while (at < last && !candidates.empty()) {
    const Position next = std::min(at + kPositionalJump, last);
    uint32_t ahead = 0;
    WithHolders(prompt, next, [&](const HolderSet& holders) {
      holders.ForEachWord(query.tiers, [&](uint32_t, uint64_t bits) {
        ahead += static_cast<uint32_t>(std::popcount(bits));
      });
    });
    if (ahead != candidates.size()) {
      if (search_ == Search::kBinary) {
        BisectJump(prompt, at + 1, next, query.tiers, &candidates);
      } else {
        ScanJump(prompt, at + 1, next, &candidates);
      }
    }
    at = next;
  }
  candidates.DropAll(depth_max);
}

// Looks at each position `from` … `to`.
void PositionalIndex::ScanJump(const Prompt& prompt, Position from, Position to,
                               Candidates* candidates) const {
  for (Position at = from; at <= to && !candidates->empty(); ++at) {
    WithHolders(prompt, at, [&](const HolderSet& holders) { candidates->Keep(holders, at); });
  }
}

// Who is not at `to` is looked for by halves: it has the block before `low`, and not the one at
// `high`.
void PositionalIndex::BisectJump(const Prompt& prompt, Position from, Position to, TierMask tiers,
                                 Candidates* candidates) const {
  std::vector<HolderIndex> lost;
  WithHolders(prompt, to, [&](const HolderSet& holders) { lost = candidates->TakeOut(holders); });
  for (HolderIndex holder : lost) {
    Position low = from, high = to;
    while (low < high) {
      const Position middle = low + (high - low) / 2;
      bool has = false;
      WithHolders(prompt, middle,
                  [&](const HolderSet& holders) { has = holders.Get(holder).Intersects(tiers); });
      if (has) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    candidates->Drop(holder, low);
  }
}

// ---- Contents ----

std::vector<Holding> PositionalIndex::HoldingsOf(HolderIndex holder) const {
  std::vector<Holding> holdings;
  if (!holders_.Exists(holder)) return holdings;
  const bool with_local =
      options_.keep_local_hashes && is_keyed_by_content_.load(std::memory_order_acquire);
  const PositionalHolder& state = *holders_.Find(holder);
  MutexLock lock(&state.mutex);
  for (const auto& [sequence, place] : state.held) {
    Shard& shard = ShardOf(place);
    ReaderLock shard_lock(&shard.mutex);
    const Block& block = *shard.entries.find(place)->second.Find(sequence);
    holdings.push_back({.block = sequence,
                        .position = place.position,
                        .parent = block.parent,
                        .tiers = block.holders.Get(holder),
                        .local = LocalHash{with_local ? place.content : 0}});
  }
  return holdings;
}

Digest PositionalIndex::DigestOf(HolderIndex holder) const {
  if (!holders_.Exists(holder)) return {};
  const PositionalHolder& state = *holders_.Find(holder);
  MutexLock lock(&state.mutex);
  return state.digest;
}

IndexStats PositionalIndex::Stats() const {
  IndexStats stats;
  stats.holders = holders_.Count();
  stats.blocks = blocks_.value();
  stats.refused_blocks = refused_blocks_.load(std::memory_order_relaxed);
  stats.bytes = sizeof(*this) + shards_.size() * sizeof(Shard) + holders_.Bytes();
  uint64_t places = 0, shared_places = 0;
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mutex);
    places += shard.entries.size();
    stats.bytes += TableBytes(shard.entries);
    for (const auto& [place, entry] : shard.entries) {
      entry.ForEach([&](const Block& block) { stats.bytes += block.holders.HeapBytes(); });
      if (entry.others == nullptr) continue;
      ++shared_places;
      stats.bytes += sizeof(*entry.others) + TableBytes(*entry.others);
    }
  }
  holders_.ForEach([&](HolderIndex, const PositionalHolder& state) {
    MutexLock lock(&state.mutex);
    stats.holdings += state.held.size();
    stats.bytes += TableBytes(state.held);
  });
  stats.shape = {{"places", places}, {"places_of_several_sequences", shared_places}};
  return stats;
}

absl::Status PositionalIndex::Check() const {
  absl::Status status;
  const auto fail = [&](std::string_view what) {
    status = absl::InternalError(std::string(NameOf(search_)) + ": " + std::string(what));
  };
  uint64_t in_table = 0, held = 0, blocks = 0;
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mutex);
    for (const auto& [place, entry] : shard.entries) {
      entry.ForEach([&](const Block& block) {
        ++blocks;
        in_table += block.holders.size();
        if (block.holders.empty()) fail("a block without holders");
        if (const absl::Status set = block.holders.Check(); !set.ok()) status = set;
      });
      if (entry.others != nullptr && entry.others->empty()) fail("an empty table of others");
    }
  }
  holders_.ForEach([&](HolderIndex holder, const PositionalHolder& state) {
    MutexLock lock(&state.mutex);
    Digest digest;
    for (const auto& [sequence, place] : state.held) {
      ++held;
      Shard& shard = ShardOf(place);
      ReaderLock shard_lock(&shard.mutex);
      const auto entry = shard.entries.find(place);
      const Block* const block =
          entry == shard.entries.end() ? nullptr : entry->second.Find(sequence);
      const TierMask tiers = block == nullptr ? TierMask() : block->holders.Get(holder);
      if (tiers.empty()) fail("a holding that is not in the table");
      ChangeDigest(sequence, TierMask(), tiers, &digest);
    }
    if (digest != state.digest) fail("a wrong digest");
  });
  if (in_table != held) fail("a block with a holder that does not know it");
  if (blocks != blocks_.value()) fail("a wrong number of blocks");
  return status;
}

}  // namespace

std::unique_ptr<Index> MakePositionalIndex(const IndexOptions& options) {
  return std::make_unique<PositionalIndex>(options, Search::kLinear);
}

std::unique_ptr<Index> MakePositionalBinaryIndex(const IndexOptions& options) {
  return std::make_unique<PositionalIndex>(options, Search::kBinary);
}

std::unique_ptr<Index> MakePositionalVerifiedIndex(const IndexOptions& options) {
  return std::make_unique<PositionalIndex>(options, Search::kVerified);
}

}  // namespace kvatlas
