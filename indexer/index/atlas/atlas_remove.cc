// What do removed and cleared events do?
//
//   1. `Remove` gathers the blocks that lie in one run: engines evict tails first, so the next name is looked for to
//      the left of the last one, then to its right, before the table is asked.
//   2. `Withdraw` takes them from the holder. Where somebody else has them, or they are not the run's end, that is a
//      bit for each (`WithdrawInPlace`); where the run gets shorter, a shorter one takes its place; where
//      nobody has anything of it any more, it is freed.

#include <algorithm>

#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/digest_term.h"
#include "indexer/index/atlas/epoch.h"

namespace kvatlas::atlas {

void AtlasIndex::Remove(HolderState* holder, const Write& write,
                        std::span<const SequenceHash> blocks) {
  BeginTaking(holder->number);
  Place at;
  Offsets offsets;
  int jumps = 0;       // blocks in a row that were not beside the last one
  size_t fetched = 0;  // blocks before this were fetched
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (at.run != nullptr) {
      const uint32_t len = at.run->len.load(std::memory_order_relaxed);
      if (at.offset > 0 && HashAt(*at.run, at.offset - 1) == Raw(blocks[i])) {
        offsets.Add(--at.offset);
        jumps = 0;
        continue;
      }
      if (at.offset + 1 < len && HashAt(*at.run, at.offset + 1) == Raw(blocks[i])) {
        offsets.Add(++at.offset);
        jumps = 0;
        continue;
      }
      if (!WithdrawOne(holder, write, &at, offsets)) Withdraw(holder, write, &at, offsets);
      Release(&at);
    }
    offsets = {};
    if (++jumps > 1 && i >= fetched) {
      FetchRuns(blocks.subspan(i), write.tier);
      fetched = i + BlockTable::kAhead;
    }
    if (LockBlock(blocks[i], &at)) offsets.Add(at.offset);
  }
  if (at.run != nullptr) Withdraw(holder, write, &at, offsets);
  Release(&at);
  EndTaking(holder->number);
  MaybeTidy(holder);
}

// Whatever will be looked at when these blocks are removed, step by step for all of them.
void AtlasIndex::FetchRuns(std::span<const SequenceHash> blocks, Tier tier) const {
  table_->FetchScattered(blocks, [&](std::span<const Ref> words) {
    Ref runs[BlockTable::kAhead];
    for (size_t i = 0; i < words.size(); ++i) {
      runs[i] = heap_->run_of(words[i]).load(std::memory_order_acquire);
      __builtin_prefetch(RunAt(runs[i]), 1);
    }
    Ref sections[BlockTable::kAhead];
    for (size_t i = 0; i < words.size(); ++i) {
      sections[i] =
          runs[i] == 0
              ? 0
              : RunAt(runs[i])->tiers[static_cast<int>(tier)].load(std::memory_order_acquire);
      __builtin_prefetch(heap_->At<Section>(sections[i]), 1);
    }
    for (size_t i = 0; i < words.size(); ++i) {
      if (sections[i] == 0) continue;
      const Ref partials =
          heap_->At<Section>(sections[i])->partials.load(std::memory_order_acquire);
      __builtin_prefetch(heap_->At<Partials>(partials), 1);
      __builtin_prefetch(heap_->At<char>(partials) + kLineBytes, 1);
    }
  });
}

void AtlasIndex::Clear(HolderState* holder, TierMask tiers, ChangeSink* changes) {
  BeginTaking(holder->number);
  if (tiers == TierMask::All()) {
    for (;;) {
      uint32_t line;
      {
        SpinLockHolder lock(&holder->runs_lock);
        if (!holder->runs.TakeLast(&line)) break;
      }
      ClearLine(holder, line, tiers, changes);
    }
  } else {
    // Runs may be split meanwhile: what is added to the list behind the copy is looked at next.
    uint32_t seen = 0;
    for (;;) {
      std::vector<uint32_t> lines;
      {
        SpinLockHolder lock(&holder->runs_lock);
        lines.resize(holder->runs.size());
        holder->runs.CopyTo(lines.data());
      }
      if (lines.size() <= seen) break;
      for (size_t i = seen; i < lines.size(); ++i) ClearLine(holder, lines[i], tiers, changes);
      seen = static_cast<uint32_t>(lines.size());
    }
  }
  EndTaking(holder->number);
}

// Takes what the holder has of the run at a line; returns how many blocks.
uint32_t AtlasIndex::ClearLine(HolderState* holder, uint32_t line, TierMask tiers,
                               ChangeSink* changes) {
  uint32_t taken = 0;
  // A block goes from all tiers at once: the sink hears of it once.
  Place at;
  if (!LockLine(line, &at)) return 0;
  std::vector<Holding> before;
  if (changes != nullptr) AppendHoldings(at.run, holder->number, &before);
  for (int i = 0; i < kTiers && at.run != nullptr; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (tiers.Has(tier))
      taken += Withdraw(holder, {.tier = tier, .changes = nullptr}, &at,
                        Offsets::Range(0, kRunBlocksMax));
  }
  Release(&at);
  for (const Holding& holding : before) {
    if (holding.tiers.Intersects(tiers))
      changes->Changed(HolderIndex{holder->number}, holding.block, holding.position, holding.tiers,
                       holding.tiers & ~tiers);
  }
  return taken;
}

bool AtlasIndex::Sweep(HolderIndex holder, size_t blocks_max, ChangeSink* changes) {
  HolderState* const state = StateOf(holder);
  if (state == nullptr) return false;
  EpochGuard guard;
  MutexLock lock(&state->mutex);
  BeginTaking(state->number);
  size_t taken = 0;
  bool more = true;
  while (more && taken < std::max<size_t>(blocks_max, 1)) {
    uint32_t line;
    {
      SpinLockHolder list_lock(&state->runs_lock);
      more = state->runs.TakeLast(&line);
    }
    if (more) taken += ClearLine(state, line, TierMask::All(), changes);
  }
  EndTaking(state->number);
  return more;
}

// The same for a single block, where that makes a hole and no more: no other tier, no end of the run, nobody to tell.
// False: it is another case, and nothing was done.
bool AtlasIndex::WithdrawOne(HolderState* holder, const Write& write, Place* at,
                             const Offsets& offsets) {
  Run* const run = at->run;
  const uint32_t offset = at->offset;
  const int own = static_cast<int>(write.tier);
  if (write.changes != nullptr || offset + 1 == run->len.load(std::memory_order_relaxed))
    return false;
  for (int tier = 0; tier < kTiers; ++tier) {
    if (tier != own && run->tiers[tier].load(std::memory_order_relaxed) != 0) return false;
  }
  if (!(offsets == Offsets::Range(offset, offset + 1))) return false;
  Members members = MembersOf(run, write.tier);
  const Members::One one = members.LookAt(holder->number, offset);
  if (!one.usual) return false;
  if (!one.has) return true;
  const uint64_t hash = HashAt(*run, offset);
  if (!one.shared) {
    run->holes.store(true, std::memory_order_release);
    table_->Erase(SequenceHash{hash}, run->base + offset);
    heap_->word(run->base + offset).store(~hash, std::memory_order_release);
    blocks_.fetch_sub(1, std::memory_order_relaxed);
  }
  BeginTaking(run);
  members.Take(one, offset);
  EndTaking(run);
  --holder->digest.tiers[own].blocks;
  holder->digest.tiers[own].sum -= DigestTermOf(hash);
  --holder->holdings;
  return true;
}

// Takes `offsets` from the holder and returns how many it had of them. The run stays locked; another may have taken its
// place, or none.
uint32_t AtlasIndex::Withdraw(HolderState* holder, const Write& write, Place* at,
                              const Offsets& offsets) {
  Run* const run = at->run;
  const uint32_t number = holder->number;
  const uint32_t len = run->len.load(std::memory_order_relaxed);
  const Offsets had = MembersOf(run, write.tier).Of(number, len);
  const Offsets taken = had & offsets;
  if (!taken.Any()) return 0;
  Offsets left = had - taken;
  Offsets others = MembersOf(run, write.tier).Union(number, len);
  for (int tier = 0; tier < kTiers; ++tier) {
    if (tier != static_cast<int>(write.tier) &&
        run->tiers[tier].load(std::memory_order_relaxed) != 0)
      others = others | MembersOf(run, static_cast<Tier>(tier)).Union(kNobody, len);
  }
  const Offsets dead = taken - others;
  const Offsets alive = others | left;
  Account(holder, write, run, taken, /*added=*/false);
  if (dead.Any()) {
    EraseBlocks(run, dead);
    blocks_.fetch_sub(dead.Count(), std::memory_order_relaxed);
  }
  if (!alive.Any()) {
    FreeRun(at);
    return taken.Count();
  }
  // A head that nobody has goes when it is most of the run: unlike a tail it may well come back.
  const uint32_t end = alive.End();
  const uint32_t first = alive.First() * 2 > end ? alive.First() : 0;
  if (end < len || first > 0) {
    const Instead instead{.holder = number, .tier = write.tier, .offsets = left};
    Piece piece{.from = first, .to = end, .capacity = run->capacity};
    if ((end - first) * 2 <= run->capacity) piece.capacity = CapacityFor(end - first);
    if (Replace(at, std::span(&piece, 1), &instead)) return taken.Count();
  }
  if (!WithdrawInPlace(holder, write, run, left)) {
    // Without memory for a bit a block the holder keeps nothing of this run: less than the truth, never more.
    Account(holder, write, run, left, /*added=*/false);
    const Offsets lost = left - others;
    EraseBlocks(run, lost);
    blocks_.fetch_sub(lost.Count(), std::memory_order_relaxed);
    if (!others.Any()) {
      FreeRun(at);
      return had.Count();
    }
    WithdrawInPlace(holder, write, run, {});
  }
  return taken.Count();
}

// W5. False when there is no memory: nothing changed.
bool AtlasIndex::WithdrawInPlace(HolderState* holder, const Write& write, Run* run,
                                 const Offsets& left) {
  Members members = MembersOf(run, write.tier);
  const uint32_t number = holder->number;
  const bool had_all = members.HasAll(number);
  BeginTaking(run);
  bool done = true;
  if (!left.Any()) {
    if (had_all) {
      members.RemoveAll(number);
    } else {
      members.RemovePart(number);
    }
  } else {
    done = members.SetPart(number, left);
    if (done && had_all) members.RemoveAll(number);
  }
  EndTaking(run);
  return done;
}

// Nobody holds these any more.
void AtlasIndex::EraseBlocks(Run* run, const Offsets& offsets) {
  if (!offsets.Any()) return;
  run->holes.store(true, std::memory_order_release);
  if (offsets.Count() == 1) {
    std::atomic<uint64_t>& word = heap_->word(run->base + offsets.First());
    const uint64_t hash = word.load(std::memory_order_relaxed);
    table_->Erase(SequenceHash{hash}, run->base + offsets.First());
    word.store(~hash, std::memory_order_release);
    return;
  }
  Ref words[kRunBlocksMax];
  size_t count = 0;
  offsets.ForEach([&](uint32_t offset) { words[count++] = run->base + offset; });
  table_->EraseMany(std::span(words, count), [&](Ref at) {
    std::atomic<uint64_t>& word = heap_->word(at);
    word.store(~word.load(std::memory_order_relaxed), std::memory_order_release);
  });
}

// Nobody has anything of the run; its blocks are out of the table.
void AtlasIndex::FreeRun(Place* at) {
  BeginTaking(at->run);
  Abandon(at->ref, /*words=*/true);
  *at = {};
}

}  // namespace kvatlas::atlas
