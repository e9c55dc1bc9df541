// A bit for each of 256 hosts at every block: the field's "host bitmap" (Modular, "Why LLM
// inference needs a new kind of router", part 2).
//
//   sequence hash ──Fibonacci hashing──▶ shard (one of 256) ──▶ 256 bits: who has the block in any tier
//   host ──▶ for each tier, a map { sequence hash → position, parent }
//   alive mask: 256 bits
//
// *Place*: kept to compare with. The original caps a cell at 256 hosts, so that a set is four words
// in place; so does this.
// *Truth*: `host_bitmap` takes it that who has a block has all before it, and bisects over
// positions: with holes it over-counts, and says so of itself in `IndexKind`. For hosts without
// holes it is exact, also beside writers. `host_bitmap_exact` intersects at every position instead:
// exact with holes, and never above what was true at some instant; a host that loses blocks while
// it is asked for may count the first block only. Both find hosts by all tiers together and then,
// when fewer are asked for, walk the tier maps of each host found: such answers are exact in both.
// *Threads*: any. A host's mutex is held for the length of its events, a shard's lock for one
// block; the order is host, then shard.
// *Removal in two phases*: `SetMasked` takes the host out of every answer at once, by one bit of
// the alive mask; `Sweep` then clears its bits in bounded steps, a shard's lock for one block at a
// time, and gives back its maps and the blocks without another holder; `RemoveHolder` does both and
// frees the number.
// *Cost*: a query of D blocks is K · log2 D shared locks for K different depths (D of them for the
// exact one); asking for fewer than all tiers adds a look into the tier maps for each block of each
// host. A stored or removed block is two table accesses. About 70 bytes a distinct block and 45 a
// holding in a tier.
// *Bounds*: 256 hosts, `AddHolder` is RESOURCE_EXHAUSTED beyond; `IndexOptions` but `bytes_max`,
// which is not counted, and `keep_local_hashes`: local hashes are not kept.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "indexer/base/mutex.h"
#include "indexer/index/field/candidates.h"
#include "indexer/index/field/field.h"
#include "indexer/index/field/holder_table.h"

namespace kvatlas {
namespace {

class HostBitmap {
 public:
  bool empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  uint32_t size() const {
    uint32_t size = 0;
    for (uint64_t word : words_) size += static_cast<uint32_t>(std::popcount(word));
    return size;
  }
  bool Has(HolderIndex host) const { return (words_[Raw(host) / 64] >> Raw(host) % 64 & 1) != 0; }
  void Add(HolderIndex host) { words_[Raw(host) / 64] |= uint64_t{1} << Raw(host) % 64; }
  void Remove(HolderIndex host) { words_[Raw(host) / 64] &= ~(uint64_t{1} << Raw(host) % 64); }
  uint64_t& word(size_t i) { return words_[i]; }

  friend HostBitmap operator&(HostBitmap a, const HostBitmap& b) {
    for (size_t i = 0; i < kWords; ++i) a.words_[i] &= b.words_[i];
    return a;
  }
  // Those of `a` that are not in `b`.
  friend HostBitmap operator-(HostBitmap a, const HostBitmap& b) {
    for (size_t i = 0; i < kWords; ++i) a.words_[i] &= ~b.words_[i];
    return a;
  }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (uint32_t i = 0; i < kWords; ++i) {
      for (uint64_t bits = words_[i]; bits != 0; bits &= bits - 1) {
        visit(HolderIndex{i * 64 + static_cast<uint32_t>(std::countr_zero(bits))});
      }
    }
  }

  static constexpr size_t kWords = kHostBitmapHolders / 64;

 private:
  uint64_t words_[kWords] = {};
};

// On cache lines of its own, so that a write in one shard does not slow readers of the next.
struct alignas(64) Shard {
  mutable SharedMutex mutex;
  absl::flat_hash_map<SequenceHash, HostBitmap> blocks ABSL_GUARDED_BY(mutex);
};

struct Location {
  Position position = 0;
  SequenceHash parent = kNoParent;
};

struct Host {
  // Serialises the host's events, and looks into its tier maps with them. Taken before any shard's.
  mutable Mutex mutex;
  std::array<absl::flat_hash_map<SequenceHash, Location>, kTiers> tiers ABSL_GUARDED_BY(mutex);
  // Blocks in at least one tier.
  uint64_t holdings ABSL_GUARDED_BY(mutex) = 0;
  Digest digest ABSL_GUARDED_BY(mutex);

  TierMask TiersOf(SequenceHash block) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    TierMask mask;
    for (int i = 0; i < kTiers; ++i) {
      if (tiers[i].contains(block)) mask = mask | static_cast<Tier>(i);
    }
    return mask;
  }
};

class HostBitmapIndex : public Index {
 public:
  HostBitmapIndex(const IndexOptions& options, bool is_exact)
      : is_exact_(is_exact),
        hosts_(std::min(options.holders_max, kHostBitmapHolders)),
        shards_(kShards),
        blocks_(options.blocks_max) {}

  std::string_view Name() const override { return is_exact_ ? "host_bitmap_exact" : "host_bitmap"; }
  absl::StatusOr<HolderIndex> AddHolder() override { return hosts_.Add(); }
  void RemoveHolder(HolderIndex holder) override;
  void SetMasked(HolderIndex holder, bool masked) override { hosts_.SetMasked(holder, masked); }
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
    Host& host;
    ChangeLog* changes;
  };

  // A question in progress.
  struct Asked {
    const OverlapQuery& query;
    std::vector<Overlap>& overlaps;
    // Of each host when the question began (`HolderTableBase::Removals`); used by the exact one.
    std::array<uint64_t, kHostBitmapHolders> removals;
  };

  // Multiplying by 2^64 / φ scatters neighbours as far as can be; the upper bits are the best
  // mixed.
  Shard& ShardOf(SequenceHash block) const {
    return shards_[Raw(block) * 0x9E3779B97F4A7C15u >> 56];
  }
  HostBitmap HostsOf(SequenceHash block) const;

  absl::Status Store(const Writer& writer, const Stored& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.host.mutex);
  absl::Status StoreBlock(const Writer& writer, Tier tier, SequenceHash block,
                          const Location& location)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.host.mutex);
  void RemoveBlock(const Writer& writer, Tier tier, SequenceHash block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.host.mutex);
  bool SweepSome(const Writer& writer, TierMask tiers, size_t blocks_max)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.host.mutex);
  bool SetBit(HolderIndex host, SequenceHash block);
  void ClearBit(HolderIndex host, SequenceHash block);

  void Bisect(const HostBitmap& hosts, uint32_t low, uint32_t high, Asked* asked) const;
  void IntersectAll(HostBitmap hosts, Asked* asked) const;
  void Drop(const HostBitmap& hosts, uint32_t depth, Asked* asked) const;
  uint32_t DepthInTiers(HolderIndex host, const OverlapQuery& query, uint32_t depth) const;

  const bool is_exact_;
  HolderTable<Host> hosts_;
  mutable std::vector<Shard> shards_;
  BlockQuota blocks_;
  std::atomic<uint64_t> refused_blocks_{0};
};

// ---- Events ----

absl::Status HostBitmapIndex::Apply(HolderIndex holder, const Event& event, ChangeLog* changes) {
  if (!hosts_.Exists(holder)) return absl::NotFoundError("no such holder");
  const Writer writer{holder, *hosts_.Find(holder), changes};
  MutexLock lock(&writer.host.mutex);
  if (const Stored* stored = std::get_if<Stored>(&event)) return Store(writer, *stored);
  const HolderTableBase::Removing removing(hosts_, holder);
  if (const Removed* removed = std::get_if<Removed>(&event)) {
    for (SequenceHash block : removed->blocks) RemoveBlock(writer, removed->tier, block);
    ShrinkTable(&writer.host.tiers[static_cast<size_t>(removed->tier)]);
  } else {
    SweepSome(writer, std::get<Cleared>(event).tiers, ~size_t{0});
  }
  return absl::OkStatus();
}

void HostBitmapIndex::RemoveHolder(HolderIndex holder) {
  if (!hosts_.Hide(holder)) return;
  {
    const Writer writer{holder, *hosts_.Find(holder), nullptr};
    MutexLock lock(&writer.host.mutex);
    const HolderTableBase::Removing removing(hosts_, holder);
    SweepSome(writer, TierMask::All(), ~size_t{0});
  }
  hosts_.Release(holder);
}

bool HostBitmapIndex::Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) {
  if (!hosts_.Exists(holder)) return false;
  const Writer writer{holder, *hosts_.Find(holder), changes};
  MutexLock lock(&writer.host.mutex);
  const HolderTableBase::Removing removing(hosts_, holder);
  return SweepSome(writer, TierMask::All(), std::max<size_t>(blocks_max, 1));
}

absl::Status HostBitmapIndex::Store(const Writer& writer, const Stored& stored) {
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const Location location{.position = stored.position + static_cast<Position>(i),
                            .parent = i == 0 ? stored.parent : stored.blocks[i - 1]};
    const absl::Status status = StoreBlock(writer, stored.tier, stored.blocks[i], location);
    if (status.ok()) continue;
    refused_blocks_.fetch_add(stored.blocks.size() - i, std::memory_order_relaxed);
    return status;
  }
  return absl::OkStatus();
}

absl::Status HostBitmapIndex::StoreBlock(const Writer& writer, Tier tier, SequenceHash block,
                                         const Location& location) {
  const TierMask before = writer.host.TiersOf(block);
  if (before.Has(tier)) return absl::OkStatus();
  if (before.empty()) {
    if (!SetBit(writer.holder, block)) return absl::ResourceExhaustedError("blocks_max reached");
    ++writer.host.holdings;
  }
  writer.host.tiers[static_cast<size_t>(tier)].try_emplace(block, location);
  writer.host.digest.Add(tier, block);
  if (writer.changes != nullptr)
    writer.changes->Add(block, location.position, before, before | tier);
  return absl::OkStatus();
}

void HostBitmapIndex::RemoveBlock(const Writer& writer, Tier tier, SequenceHash block) {
  auto& of_tier = writer.host.tiers[static_cast<size_t>(tier)];
  const auto found = of_tier.find(block);
  if (found == of_tier.end()) return;
  const TierMask before = writer.host.TiersOf(block);
  const TierMask after = before & ~TierMask(tier);
  const Position position = found->second.position;
  of_tier.erase(found);
  writer.host.digest.Subtract(tier, block);
  if (after.empty()) {
    --writer.host.holdings;
    ClearBit(writer.holder, block);
  }
  if (writer.changes != nullptr) writer.changes->Add(block, position, before, after);
}

// Takes up to `blocks_max` blocks out of each of `tiers`; false when nothing is left.
bool HostBitmapIndex::SweepSome(const Writer& writer, TierMask tiers, size_t blocks_max) {
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (!tiers.Has(tier)) continue;
    auto& of_tier = writer.host.tiers[i];
    size_t left = blocks_max;
    for (auto next = of_tier.begin(); next != of_tier.end() && left > 0; --left) {
      const SequenceHash block = next->first;
      ++next;  // Before the block goes.
      RemoveBlock(writer, tier, block);
    }
    ShrinkTable(&of_tier);
  }
  return writer.host.holdings != 0;
}

// False when there are as many blocks as there may be.
bool HostBitmapIndex::SetBit(HolderIndex host, SequenceHash block) {
  Shard& shard = ShardOf(block);
  WriterLock lock(&shard.mutex);
  const auto found = shard.blocks.find(block);
  if (found != shard.blocks.end()) {
    found->second.Add(host);
    return true;
  }
  if (!blocks_.Take()) return false;
  shard.blocks[block].Add(host);
  return true;
}

void HostBitmapIndex::ClearBit(HolderIndex host, SequenceHash block) {
  Shard& shard = ShardOf(block);
  WriterLock lock(&shard.mutex);
  const auto found = shard.blocks.find(block);
  found->second.Remove(host);
  if (!found->second.empty()) return;
  shard.blocks.erase(found);
  ShrinkTable(&shard.blocks);
  blocks_.Release();
}

// ---- Questions ----

HostBitmap HostBitmapIndex::HostsOf(SequenceHash block) const {
  Shard& shard = ShardOf(block);
  ReaderLock lock(&shard.mutex);
  const auto found = shard.blocks.find(block);
  return found == shard.blocks.end() ? HostBitmap() : found->second;
}

void HostBitmapIndex::FindOverlaps(const OverlapQuery& query,
                                   std::vector<Overlap>* overlaps) const {
  if (query.blocks.empty()) return;
  Asked asked{.query = query, .overlaps = *overlaps, .removals = {}};
  HostBitmap hosts;
  {
    Shard& shard = ShardOf(query.blocks[0]);
    ReaderLock lock(&shard.mutex);
    const auto found = shard.blocks.find(query.blocks[0]);
    if (found == shard.blocks.end()) return;
    hosts = found->second;
    for (uint32_t i = 0; i < HostBitmap::kWords; ++i) {
      hosts.word(i) &= hosts_.Answering(i);
      if (query.only.empty()) continue;
      hosts.word(i) &= i < query.only.size() ? query.only[i] : 0;
    }
    if (is_exact_) {
      hosts.ForEach([&](HolderIndex host) { asked.removals[Raw(host)] = hosts_.Removals(host); });
    }
  }
  if (is_exact_) {
    IntersectAll(hosts, &asked);
  } else {
    Bisect(hosts, 1, static_cast<uint32_t>(query.blocks.size()), &asked);
  }
}

// All of `hosts` reach at least `low` and at most `high` blocks deep. One look in the middle parts
// them.
void HostBitmapIndex::Bisect(const HostBitmap& hosts, uint32_t low, uint32_t high,
                             Asked* asked) const {
  if (hosts.empty()) return;
  if (low == high) return Drop(hosts, low, asked);
  const uint32_t middle = low + (high - low) / 2;
  const HostBitmap deeper = hosts & HostsOf(asked->query.blocks[middle]);
  Bisect(deeper, middle + 1, high, asked);
  Bisect(hosts - deeper, low, middle, asked);
}

void HostBitmapIndex::IntersectAll(HostBitmap hosts, Asked* asked) const {
  const uint32_t depth_max = static_cast<uint32_t>(asked->query.blocks.size());
  for (uint32_t depth = 1; depth < depth_max && !hosts.empty(); ++depth) {
    const HostBitmap deeper = hosts & HostsOf(asked->query.blocks[depth]);
    Drop(hosts - deeper, depth, asked);
    hosts = deeper;
  }
  Drop(hosts, depth_max, asked);
}

// Writes `hosts` to the answer.
void HostBitmapIndex::Drop(const HostBitmap& hosts, uint32_t depth, Asked* asked) const {
  hosts.ForEach([&](HolderIndex host) {
    uint32_t blocks = depth;
    if (is_exact_) {
      const uint64_t before = asked->removals[Raw(host)];
      if (before % 2 != 0 || hosts_.Removals(host) != before) blocks = 1;
    }
    if (asked->query.tiers != TierMask::All()) blocks = DepthInTiers(host, asked->query, blocks);
    if (blocks > 0) asked->overlaps.push_back({.holder = host, .blocks = blocks});
  });
}

// How many of the first `depth` blocks the host has in the tiers asked for, up to the first that it
// has not. One instant: its events wait.
uint32_t HostBitmapIndex::DepthInTiers(HolderIndex holder, const OverlapQuery& query,
                                       uint32_t depth) const {
  const Host& host = *hosts_.Find(holder);
  MutexLock lock(&host.mutex);
  uint32_t blocks = 0;
  while (blocks < depth && host.TiersOf(query.blocks[blocks]).Intersects(query.tiers)) ++blocks;
  return blocks;
}

// ---- Contents ----

std::vector<Holding> HostBitmapIndex::HoldingsOf(HolderIndex holder) const {
  std::vector<Holding> holdings;
  if (!hosts_.Exists(holder)) return holdings;
  const Host& host = *hosts_.Find(holder);
  MutexLock lock(&host.mutex);
  for (int i = 0; i < kTiers; ++i) {
    for (const auto& [block, location] : host.tiers[i]) {
      const TierMask tiers = host.TiersOf(block);
      // Once, where it is found first.
      if (std::countr_zero(tiers.bits()) != i) continue;
      holdings.push_back({.block = block,
                          .position = location.position,
                          .parent = location.parent,
                          .tiers = tiers,
                          .local = LocalHash{0}});
    }
  }
  return holdings;
}

Digest HostBitmapIndex::DigestOf(HolderIndex holder) const {
  if (!hosts_.Exists(holder)) return {};
  const Host& host = *hosts_.Find(holder);
  MutexLock lock(&host.mutex);
  return host.digest;
}

IndexStats HostBitmapIndex::Stats() const {
  IndexStats stats;
  stats.holders = hosts_.Count();
  stats.blocks = blocks_.value();
  stats.refused_blocks = refused_blocks_.load(std::memory_order_relaxed);
  stats.bytes = sizeof(*this) + shards_.size() * sizeof(Shard) + hosts_.Bytes();
  uint64_t largest = 0;
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mutex);
    largest = std::max<uint64_t>(largest, shard.blocks.size());
    stats.bytes += TableBytes(shard.blocks);
  }
  uint64_t of_tiers = 0;
  hosts_.ForEach([&](HolderIndex, const Host& host) {
    MutexLock lock(&host.mutex);
    stats.holdings += host.holdings;
    for (const auto& of_tier : host.tiers) {
      of_tiers += of_tier.size();
      stats.bytes += TableBytes(of_tier);
    }
  });
  stats.shape = {{"blocks_in_largest_shard", largest}, {"tier_map_entries", of_tiers}};
  return stats;
}

absl::Status HostBitmapIndex::Check() const {
  absl::Status status;
  const auto fail = [&](std::string_view what) {
    status = absl::InternalError(std::string(Name()) + ": " + std::string(what));
  };
  uint64_t bits = 0, blocks = 0, holdings = 0;
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mutex);
    for (const auto& [block, hosts] : shard.blocks) {
      ++blocks;
      bits += hosts.size();
      if (hosts.empty()) fail("a block without holders");
      if (&ShardOf(block) != &shard) fail("a block in the wrong shard");
    }
  }
  hosts_.ForEach([&](HolderIndex holder, const Host& host) {
    MutexLock lock(&host.mutex);
    Digest digest;
    uint64_t held = 0;
    for (int i = 0; i < kTiers; ++i) {
      for (const auto& [block, location] : host.tiers[i]) {
        digest.Add(static_cast<Tier>(i), block);
        held += std::countr_zero(host.TiersOf(block).bits()) == i;
        if (!HostsOf(block).Has(holder)) fail("a block in a tier map without its bit");
      }
    }
    if (digest != host.digest) fail("a wrong digest");
    if (held != host.holdings) fail("a wrong number of holdings");
    holdings += held;
  });
  if (bits != holdings) fail("a bit without a block in a tier map");
  if (blocks != blocks_.value()) fail("a wrong number of blocks");
  return status;
}

}  // namespace

std::unique_ptr<Index> MakeHostBitmapIndex(const IndexOptions& options) {
  return std::make_unique<HostBitmapIndex>(options, false);
}

std::unique_ptr<Index> MakeHostBitmapExactIndex(const IndexOptions& options) {
  return std::make_unique<HostBitmapIndex>(options, true);
}

}  // namespace kvatlas
