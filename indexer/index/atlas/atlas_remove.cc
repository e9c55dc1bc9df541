// Removed and cleared events.
//
//   1. `Remove` gathers the blocks that lie in one run: engines evict tails first, so the next name
//      is looked for to the left of the last one, then to its right, before the table is asked.
//   2. `Withdraw` takes them from the holder. Blocks that no other holder has die (`Kill`): out of
//      the table, and a bit for each, or a shorter run. Blocks that others have cost a bit each:
//      this holder has part of the run from now on (`Take`). A run of which no holder has anything
//      is freed. `WithdrawOne` does the same for the usual hole.
//   3. A run that has become much too large for its blocks is replaced by a smaller one
//      (`MaybeFit`).

#include <algorithm>

#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/digest_term.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas::atlas {

// The holder's removal number is odd for the whole step (R5). Blocks that lie beside the one just
// found, to the left or right and in the order of the event, are gathered without asking the table.
// After a block without neighbours the next ones are taken for scattered and fetched `kAhead` at a
// time (`FetchRuns`); their lookups stay valid, since removals do not make the table grow, and
// entries that a replaced run moved are found again by name (`FindEntry`).
void AtlasIndex::Remove(HolderState* holder, const Write& write,
                        std::span<const SequenceHash> blocks) {
  BeginRemovals(holder->number);
  Place at;
  Offsets offsets;
  bool scattered = false;  // the last block was not beside the one before it
  // Blocks [fetched_from, fetched_to) were fetched.
  BlockTable::Lookup lookups[BlockTable::kAhead];
  size_t fetched_from = 0;
  size_t fetched_to = 0;
  for (size_t i = 0; i < blocks.size();) {
    if (scattered && i >= fetched_to) {
      FetchRuns(blocks.subspan(i), lookups);
      fetched_from = i;
      fetched_to = i + BlockTable::kAhead;
    }
    BlockTable::Lookup unfetched;
    BlockTable::Lookup* lookup = &unfetched;
    if (i < fetched_to) {
      lookup = &lookups[i - fetched_from];
    } else {
      table_->StartLookup(blocks[i], lookup);
    }
    const BlockTable::Found found = table_->FindEntry(blocks[i], *lookup);
    const SequenceHash* const next = i + 1 < blocks.size() ? &blocks[i + 1] : nullptr;
    ++i;
    if (found.word == 0) continue;
    at = PlaceOf(found.word);
    // Blocks beside it that the event names next.
    const uint32_t len = at.run->len.load(std::memory_order_relaxed);
    uint32_t offset = at.offset;
    offsets = {};
    offsets.Add(offset);
    size_t more = 0;
    for (const SequenceHash* block = next; block != nullptr && i + more < blocks.size(); ++block) {
      if (offset > 0 && HashAt(*at.run, offset - 1) == Raw(*block)) {
        --offset;
      } else if (offset + 1 < len && HashAt(*at.run, offset + 1) == Raw(*block)) {
        ++offset;
      } else {
        break;
      }
      offsets.Add(offset);
      ++more;
    }
    i += more;
    scattered = more == 0;
    if (more == 0 && WithdrawOne(holder, write, &at, *lookup, found)) continue;
    Withdraw(holder, write, &at, offsets);
    MaybeFit(&at);
  }
  EndRemovals(holder->number);
  MaybeTidy(holder);
}

// Fetches everything that the removal of these blocks looks at, one level for all of them before
// the next: entries, runs, sections, partials. So each level waits once for memory.
void AtlasIndex::FetchRuns(std::span<const SequenceHash> blocks,
                           BlockTable::Lookup* lookups) const {
  table_->FetchScattered(blocks, lookups, [&](std::span<const Ref> words) {
    // Nothing here depends on what is there: a mispredicted branch would wait for all of it. Ref 0
    // is never used, and may be looked at.
    const auto fetch = [&](Ref ref) {
      __builtin_prefetch(heap_->At<char>(ref), 1);
      return ref;
    };
    Ref sections[BlockTable::kAhead];
    for (size_t i = 0; i < words.size(); ++i) {
      const Holders first =
          RunAt(heap_->RunOf(words[i]))->holders[0].load(std::memory_order_acquire);
      sections[i] = fetch(SectionOf(first));
    }
    for (size_t i = 0; i < words.size(); ++i) {
      const Ref partials =
          heap_->At<Section>(sections[i])->partials.load(std::memory_order_acquire);
      __builtin_prefetch(heap_->At<char>(fetch(partials)) + kLineBytes, 1);
    }
  });
}

// Enters and leaves the writer once a step.
void AtlasIndex::Clear(HolderState* holder, TierMask tiers, ChangeLog* changes) {
  if (tiers == TierMask::All()) {
    for (bool more = true; more; writer_.Yield()) ClearSome(holder, kStepBlocks, changes, &more);
    return;
  }
  // Runs are split meanwhile, here and between the steps: what is added to the list behind the copy
  // is looked at next.
  std::vector<Ref> runs;
  for (size_t next = 0;; writer_.Yield()) {
    WriterLock lock(&writer_);
    if (next == runs.size()) {
      runs.resize(holder->runs.size());
      holder->runs.CopyTo(runs.data());
      if (next >= runs.size()) break;
    }
    BeginRemovals(holder->number);
    for (size_t taken = 0; next < runs.size() && taken < kStepBlocks; ++next)
      taken += 1 + ClearRun(holder, runs[next], tiers, changes);
    EndRemovals(holder->number);
    heap_->MaybeReclaim();
  }
}

// One step of a clear of all tiers: takes runs off the end of the holder's list until about
// `blocks_max` blocks are taken. `*more`: the list had another run.
size_t AtlasIndex::ClearSome(HolderState* holder, size_t blocks_max, ChangeLog* changes,
                             bool* more) {
  WriterLock lock(&writer_);
  BeginRemovals(holder->number);
  size_t taken = 0;
  *more = true;
  while (*more && taken < blocks_max) {
    Ref run;
    *more = holder->runs.TakeLast(&run);
    if (*more) taken += ClearRun(holder, run, TierMask::All(), changes);
  }
  EndRemovals(holder->number);
  heap_->MaybeReclaim();
  return taken;
}

// Takes what the holder has of a run in its list; returns how many blocks.
uint32_t AtlasIndex::ClearRun(HolderState* holder, Ref ref, TierMask tiers, ChangeLog* changes) {
  uint32_t taken = 0;
  // A block goes from all tiers at once, and is logged once.
  Place at;
  if (!LocateListed(ref, &at)) return 0;
  std::vector<Holding> before;
  if (changes != nullptr) AppendHoldings(at.run, holder->number, &before);
  for (int i = 0; i < kTiers && at.run != nullptr; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (tiers.Has(tier))
      taken += Withdraw(holder, {.tier = tier, .changes = nullptr}, &at,
                        Offsets::Range(0, kRunBlocksMax));
  }
  MaybeFit(&at);
  for (const Holding& holding : before) {
    if (holding.tiers.Intersects(tiers))
      changes->Add(holding.block, holding.position, holding.tiers, holding.tiers & ~tiers);
  }
  return taken;
}

// `Clear` with a bound: the same steps, at least one block, and true while the list has more.
bool AtlasIndex::Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) {
  HolderState* const state = StateOf(holder);
  if (state == nullptr) return false;
  MutexLock order(&state->mutex);
  bool more = true;
  for (size_t taken = 0; more && taken < std::max<size_t>(blocks_max, 1); writer_.Yield())
    taken += ClearSome(state, std::min(blocks_max - taken, kStepBlocks), changes, &more);
  return more;
}

// `Withdraw` for a single block, where it makes a hole or a shorter run and nothing else: one tier,
// a sole holder or a partial one that keeps other blocks. The entry found for the block is used to
// erase it. False: it is another case, and nothing was done. True: done, or the holder did not have
// the block.
bool AtlasIndex::WithdrawOne(HolderState* holder, const Write& write, Place* at,
                             const BlockTable::Lookup& lookup, const BlockTable::Found& found) {
  Run* const run = at->run;
  const uint32_t offset = at->offset;
  const uint32_t len = run->len.load(std::memory_order_relaxed);
  const bool is_last = offset + 1 == len;
  Members::One one;
  if ((run->holders[0].load(std::memory_order_relaxed) & kSectionBit) != 0) {
    if (is_last) return false;
    one = Members::LookAt(heap_.get(), run, write.tier, holder->number, offset);
    if (!one.usual) return false;
    if (!one.has) return true;
  } else {
    const Holders sole = Members::Sole(*run);
    if (sole == kFree) return false;
    if (sole != InlineHolder(write.tier, holder->number)) return true;
    if (is_last && (len == 1 || run->holes)) return false;
  }
  const uint64_t hash = HashAt(*run, offset);
  const Position position = run->start + offset;
  BeginShrink(run);
  if (is_last) {
    run->len.store(static_cast<uint16_t>(len - 1), std::memory_order_release);
    run->died += run->died < kDeadToLook ? 1 : 0;
  } else if (!one.shared) {
    KillOne(run, offset);
  }
  if (one.has) Members::Take(one, offset);
  EndShrink(run);
  if (!one.shared) {
    table_->Erase(lookup, found);
    Count(&blocks_, -uint64_t{1});
  }
  if (run->died >= kDeadToLook) MaybeFit(at);
  Digest::OfTier& digest = holder->digest.tiers[static_cast<int>(write.tier)];
  --digest.blocks;
  digest.sum -= DigestTermOf(hash);
  --holder->holdings;
  Count(&holdings_, -uint64_t{1});
  if (write.changes != nullptr)
    write.changes->Add(SequenceHash{hash}, position, TierMask(write.tier), TierMask());
  return true;
}

// Takes `offsets` from the holder in one tier and returns how many it had of them; `*at` is empty
// afterwards if the run was freed.
// 1. `taken`: what it has of them. `others`: what is held by others, or by it in other tiers.
//    `dead`: what remains of `taken` without the latter.
// 2. The account is changed while the hashes are still in the run.
// 3. Nothing would live: the run is freed (`FreeRun`).
// 4. Else the run changes under an odd version (`Take`), then the entries go (`EraseBlocks`).
uint32_t AtlasIndex::Withdraw(HolderState* holder, const Write& write, Place* at,
                              const Offsets& offsets) {
  Run* const run = at->run;
  const uint32_t number = holder->number;
  const Offsets live = run->Live();
  const Offsets had = MembersOf(run, write.tier).Of(number, live);
  const Offsets taken = had & offsets;
  if (!taken.Any()) return 0;
  Offsets left = had - taken;
  Offsets others;
  if (Members::Sole(*run) == kFree) {
    const TierMask tiers = Members::TiersOf(heap_.get(), *run);
    for (int i = 0; i < kTiers; ++i) {
      const Tier tier = static_cast<Tier>(i);
      if (tiers.Has(tier))
        others = others | MembersOf(run, tier).Union(tier == write.tier ? number : kNoHolder, live);
    }
  }
  Offsets dead = taken - others;
  Account(holder, write, run, taken, /*added=*/false);
  if (!(live - dead).Any()) {
    FreeRun(at, dead);
    return taken.Count();
  }
  const bool taken_in_place = Take(holder, write, run, left, dead);
  EraseBlocks(*at, dead);
  if (!taken_in_place) {
    // Without memory for a bit a block the holder keeps nothing of this run: less than the truth,
    // never more.
    Account(holder, write, run, left, /*added=*/false);
    dead = left - others;
    if (!others.Any()) {
      FreeRun(at, dead);
      return had.Count();
    }
    Take(holder, write, run, {}, dead);
    EraseBlocks(*at, dead);
  }
  return taken.Count();
}

// W4: the holder has `left` of the run from now on, and no holder has `dead`. False when there is
// no memory: the holder has what it had of the others.
bool AtlasIndex::Take(HolderState* holder, const Write& write, Run* run, const Offsets& left,
                      const Offsets& dead) {
  Members members = MembersOf(run, write.tier);
  const uint32_t number = holder->number;
  const bool had_all = members.HasAll(number);
  BeginShrink(run);
  if (dead.Any()) Kill(run, dead);
  const Offsets live = run->Live();
  bool done = true;
  if (!left.Any()) {
    if (had_all) {
      members.RemoveAll(number);
    } else {
      members.RemovePart(number);
    }
  } else if (!(had_all && left == live)) {
    done = members.SetPart(number, left);
    if (done && had_all) members.RemoveAll(number);
  }
  if (dead.Any() && Members::Sole(*run) == kFree) {
    const TierMask tiers = Members::TiersOf(heap_.get(), *run);
    for (int i = 0; i < kTiers; ++i) {
      if (tiers.Has(static_cast<Tier>(i))) Promote(run, static_cast<Tier>(i), live);
    }
  }
  EndShrink(run);
  return done;
}

// Partial holders whose blocks are all that still lives become holders of all. REQUIRES: an odd
// version.
void AtlasIndex::Promote(Run* run, Tier tier, const Offsets& live) {
  Members members = MembersOf(run, tier);
  members.ForEachPart([&](uint32_t holder, const Offsets& offsets) {
    if (offsets == live && members.AddAll(holder)) members.RemovePart(holder);
  });
}

// Dead blocks leave the table after they have left the run (W2): until then a reader that finds an
// entry sees that the word is not the block's.
void AtlasIndex::EraseBlocks(const Place& at, const Offsets& dead) {
  if (!dead.Any()) return;
  const uint32_t len = at.run->len.load(std::memory_order_relaxed);
  SequenceHash blocks[kRunBlocksMax];
  Ref words[kRunBlocksMax];
  size_t count = 0;
  dead.ForEach([&](uint32_t offset) {
    const uint64_t word = HashAt(*at.run, offset);
    blocks[count] = SequenceHash{offset < len ? ~word : word};
    words[count++] = WordOf(at.ref, offset);
  });
  table_->EraseMany(std::span(blocks, count), std::span(words, count));
  Count(&blocks_, -uint64_t{count});
}

// Complements the hashes of blocks that die. Dead blocks at the end are cut off instead, by `len`,
// and keep their hashes: the last block of a run is never dead. REQUIRES: an odd version.
void AtlasIndex::Kill(Run* run, const Offsets& dead) {
  const Offsets live = run->Live() - dead;
  const uint32_t end = live.End();
  dead.ForEach([&](uint32_t offset) {
    if (offset >= end) return;
    std::atomic<uint64_t>& word = run->words()[offset];
    word.store(~word.load(std::memory_order_relaxed), std::memory_order_release);
  });
  Pause();
  run->SetDead(Offsets::Range(0, end) - live);
  run->died = static_cast<uint8_t>(std::min(run->died + dead.Count(), kDeadToLook));
  run->len.store(static_cast<uint16_t>(end), std::memory_order_release);
}

// The same for one that is not the last.
void AtlasIndex::KillOne(Run* run, uint32_t offset) {
  std::atomic<uint64_t>& word = run->words()[offset];
  word.store(~word.load(std::memory_order_relaxed), std::memory_order_release);
  run->AddDead(offset);
  run->died += run->died < kDeadToLook ? 1 : 0;
}

// Frees a run of which nothing is held any more; `dead` are its last blocks. Its version stays odd,
// its length is 0, and only then do entries and memory go.
void AtlasIndex::FreeRun(Place* at, const Offsets& dead) {
  BeginShrink(at->run);
  Pause();
  at->run->len.store(0, std::memory_order_release);
  Pause();
  EraseBlocks(*at, dead);
  DropRun(at->ref, /*seen=*/true);
  *at = {};
}

}  // namespace kvatlas::atlas
