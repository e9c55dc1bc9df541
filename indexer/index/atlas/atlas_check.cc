// Contents and figures of an atlas, and the check of everything that the other files rely on.

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "indexer/base/hash.h"
#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/epoch.h"

namespace kvatlas::atlas {

// Step by step, with the holder's own events kept out. Runs are split and merged between the steps:
// what comes into the list behind the copy is looked at next, and what was seen twice counts once.
std::vector<Holding> AtlasIndex::HoldingsOf(HolderIndex holder) const {
  std::vector<Holding> holdings;
  HolderState* const state = StateOf(holder);
  if (state == nullptr) return holdings;
  MutexLock order(&state->mutex);
  std::vector<Ref> runs;
  for (size_t next = 0;; writer_.Yield()) {
    WriterLock lock(&writer_);
    if (next == runs.size()) {
      runs.resize(state->runs.size());
      state->runs.CopyTo(runs.data());
      if (next >= runs.size()) break;
    }
    for (const size_t enough = holdings.size() + kStepBlocks;
         next < runs.size() && holdings.size() < enough; ++next) {
      Place at;
      if (LocateListed(runs[next], &at)) AppendHoldings(at.run, state->number, &holdings);
    }
  }
  std::sort(holdings.begin(), holdings.end(),
            [](const Holding& a, const Holding& b) { return a.block < b.block; });
  holdings.erase(std::unique(holdings.begin(), holdings.end(),
                             [](const Holding& a, const Holding& b) { return a.block == b.block; }),
                 holdings.end());
  return holdings;
}

// Tiers of a block are joined here: one holding for each block. The parent of a block behind a dead
// one is the dead one's name, restored from its complement.
void AtlasIndex::AppendHoldings(Run* run, uint32_t holder, std::vector<Holding>* holdings) const {
  const uint32_t len = run->len.load(std::memory_order_relaxed);
  const Offsets live = run->Live();
  Offsets of_tier[kTiers];
  for (int tier = 0; tier < kTiers; ++tier)
    of_tier[tier] = MembersOf(run, static_cast<Tier>(tier)).Of(holder, live);
  for (uint32_t offset = 0; offset < len; ++offset) {
    TierMask tiers;
    for (int tier = 0; tier < kTiers; ++tier) {
      if (of_tier[tier].Has(offset)) tiers = tiers | static_cast<Tier>(tier);
    }
    if (tiers.empty()) continue;
    uint64_t parent = run->parent;
    if (offset != 0)
      parent = live.Has(offset - 1) ? HashAt(*run, offset - 1) : ~HashAt(*run, offset - 1);
    holdings->push_back(
        {.block = SequenceHash{HashAt(*run, offset)},
         .position = run->start + offset,
         .parent = SequenceHash{parent},
         .tiers = tiers,
         .local = LocalHash{options_.keep_local_hashes
                                ? run->locals()[offset].load(std::memory_order_relaxed)
                                : 0}});
  }
}

Digest AtlasIndex::DigestOf(HolderIndex holder) const {
  HolderState* const state = StateOf(holder);
  if (state == nullptr) return {};
  MutexLock lock(&state->mutex);
  return state->digest;
}

// Takes no lock, so that it waits for no writer.
IndexStats AtlasIndex::Stats() const {
  IndexStats stats;
  EpochGuard guard;
  stats.holders = holder_count_.load(std::memory_order_relaxed);
  stats.holdings = holdings_.load(std::memory_order_relaxed);
  stats.blocks = blocks_.load(std::memory_order_relaxed);
  stats.bytes = heap_->bytes();
  stats.refused_blocks = refused_.load(std::memory_order_relaxed);
  const BlockTable::Shape table = table_->CountShape();
  stats.shape = {
      {"runs", runs_.load(std::memory_order_relaxed)},
      {"splits", splits_.load(std::memory_order_relaxed)},
      {"merges", merges_.load(std::memory_order_relaxed)},
      {"rewrites", rewrites_.load(std::memory_order_relaxed)},
      {"cuts", cuts_.load(std::memory_order_relaxed)},
      {"table_slots", table.slots},
      {"table_segments", table.segments},
      {"table_displaced", table.displaced},
  };
  return stats;
}

// ---- The check ----

namespace {

absl::Status Wrong(const std::string& what) { return absl::InternalError("atlas: " + what); }

}  // namespace

// 1. Every entry of the table leads to a block of a live run, every name has one entry, and `Find`
//    agrees.
// 2. The counts of blocks and runs are those of the entries: a run without an entry would be lost
//    memory.
// 3. Runs (`CheckRun`): living, named and held blocks are the same.
// 4. Holders (`CheckHolders`): digest, count and list fit their runs.
// REQUIRES: no writer, as the fields are read without its lock.
absl::Status AtlasIndex::Check() const {
  EpochGuard guard;
  // By run, the offsets that entries lead to; and all names seen.
  std::unordered_map<Ref, Offsets> entries;  // by run
  std::unordered_set<uint64_t> names;
  absl::Status status;
  uint64_t count = 0;
  table_->ForEach([&](Ref word) {
    ++count;
    const Ref ref = heap_->RunOf(word);
    if (!heap_->IsRun(ref)) {
      status = Wrong("an entry leads to no run");
      return;
    }
    Run* const run = RunAt(ref);
    const uint32_t offset = OffsetOf(ref, word);
    if (!run->alive || offset >= run->len.load(std::memory_order_relaxed)) {
      status = Wrong("an entry leads out of its run");
      return;
    }
    if (table_->Find(SequenceHash{HashAt(*run, offset)}) != word)
      status = Wrong("a name leads elsewhere");
    if (!names.insert(HashAt(*run, offset)).second) status = Wrong("a name has two places");
    entries[ref].Add(offset);
  });
  if (!status.ok()) return status;
  if (count != blocks_.load(std::memory_order_relaxed)) return Wrong("wrong number of blocks");
  if (entries.size() != runs_.load(std::memory_order_relaxed)) return Wrong("a run is lost");
  for (const auto& [ref, offsets] : entries) {
    status = CheckRun(RunAt(ref), offsets);
    if (!status.ok()) return status;
  }
  return CheckHolders(entries);
}

// A block is in the table if and only if some holder has it.
absl::Status AtlasIndex::CheckRun(Run* run, const Offsets& in_table) const {
  const uint32_t len = run->len.load(std::memory_order_relaxed);
  if (len == 0 || len > run->capacity) return Wrong("a run of impossible length");
  const Offsets live = run->Live();
  if (!(live == in_table)) return Wrong("blocks that live and blocks named differ");
  if (!live.Has(len - 1)) return Wrong("a run with a dead end");
  Offsets held;
  for (int tier = 0; tier < kTiers; ++tier)
    held = held | MembersOf(run, static_cast<Tier>(tier)).Union(kNoHolder, live);
  if (!(held == live)) return Wrong("blocks that live and blocks held differ");
  if (run->version.load(std::memory_order_relaxed) % 2 != 0) return Wrong("an odd version");
  absl::Status status;
  for (int tier = 0; tier < kTiers; ++tier) {
    const Members members = MembersOf(run, static_cast<Tier>(tier));
    std::unordered_set<uint32_t> seen;
    members.ForEach(live, [&](uint32_t holder, const Offsets& offsets) {
      if (!seen.insert(holder).second) status = Wrong("a holder has all and part of a run");
      if (!offsets.Any()) status = Wrong("a holder of nothing");
      if ((offsets - live).Any()) status = Wrong("a holder of what is dead");
      if (StateOf(HolderIndex{holder}) == nullptr) status = Wrong("a holder that is not there");
    });
  }
  return status;
}

// Every holder's account is what its runs say, and its list names them all.
absl::Status AtlasIndex::CheckHolders(const std::unordered_map<Ref, Offsets>& runs) const {
  struct Count {
    Digest digest;
    uint64_t holdings = 0;
  };
  std::map<uint32_t, Count> counts;
  for (const auto& [ref, unused] : runs) {
    Run* const run = RunAt(ref);
    std::map<uint32_t, Offsets> any;
    for (int tier = 0; tier < kTiers; ++tier) {
      MembersOf(run, static_cast<Tier>(tier))
          .ForEach(run->Live(), [&](uint32_t holder, const Offsets& offsets) {
            any[holder] = any[holder] | offsets;
            offsets.ForEach([&](uint32_t offset) {
              counts[holder].digest.Add(static_cast<Tier>(tier),
                                        SequenceHash{HashAt(*run, offset)});
            });
          });
    }
    for (const auto& [holder, offsets] : any) counts[holder].holdings += offsets.Count();
  }
  for (uint32_t i = 0; i < holders_end(); ++i) {
    HolderState* const state = StateOf(HolderIndex{i});
    if (state == nullptr) continue;
    const uint64_t listed = HoldingsOf(HolderIndex{i}).size();
    MutexLock lock(&state->mutex);
    if (!(state->digest == counts[i].digest)) return Wrong("a digest is wrong");
    if (state->holdings != counts[i].holdings) return Wrong("holdings are miscounted");
    if (listed != counts[i].holdings) return Wrong("a list does not lead to all holdings");
  }
  return absl::OkStatus();
}

}  // namespace kvatlas::atlas
