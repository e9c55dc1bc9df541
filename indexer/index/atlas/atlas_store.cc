// Stored events.
//
//   1. `Store` finds where its next block is: behind the previous one, or by name (`Locate`), or
//      behind its parent.
//   2. Where the run goes on with these blocks, the holder joins it (`Join`).
//   3. At the end of a run that only this holder has all of, the run grows (`Append`).
//   4. Else the blocks that no holder has become a run of their own (`StoreNew`), up to the first
//     that some holder has.

#include <algorithm>

#include "indexer/base/memory_budget.h"
#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas::atlas {
namespace {

// A run that outgrows its room gets so much more: engines say block by block what they decode.
constexpr uint32_t kMoreBlocksMin = 4;

}  // namespace

// One step of a stored event. `at` is the place of the next block: known while the run goes on,
// else looked for by name, else behind the parent (only before the first block is placed), else
// there is none and `StoreNew` makes it. A call that placed nothing forgets the place, so that the
// next turn looks for it by name. The names of the first block and its parent are fetched together
// at the beginning.
absl::Status AtlasIndex::Store(HolderState* holder, const Write& write, const Incoming& stored) {
  const std::span<const SequenceHash> blocks = stored.blocks;
  table_->Prefetch(blocks[0]);
  const bool has_parent = stored.position != 0;
  if (has_parent) table_->Prefetch(stored.parent);
  Place at;
  size_t done = 0;
  bool look_at_parent = has_parent;
  absl::Status status;
  while (done < blocks.size() && status.ok()) {
    if (at.run == nullptr && !Locate(blocks[done], &at)) {
      if (look_at_parent && Locate(stored.parent, &at)) {
        ++at.offset;
      } else {
        status = StoreNew(holder, write, stored, &at, &done);
        if (at.run == nullptr || at.offset == at.run->len.load(std::memory_order_relaxed)) continue;
      }
    }
    look_at_parent = false;
    const size_t before = done;
    status = StoreAt(holder, write, stored, &at, &done);
    if (done == before) at = {};
  }
  if (!status.ok()) Count(&refused_, blocks.size() - done);
  MaybeTidy(holder);
  return status;
}

// True if the word at the offset is the block's: alive, or dead and complemented.
bool AtlasIndex::Names(const Run& run, uint32_t offset, SequenceHash block) const {
  const uint64_t word = HashAt(run, offset);
  return word == Raw(block) || (word == ~Raw(block) && run.holes);
}

// In the run: join. Just behind it: append, where that is allowed. Neither: nothing is done, and
// the caller looks for the block by name.
absl::Status AtlasIndex::StoreAt(HolderState* holder, const Write& write, const Incoming& stored,
                                 Place* at, size_t* done) {
  const uint32_t len = at->run->len.load(std::memory_order_relaxed);
  if (at->offset < len && Names(*at->run, at->offset, stored.blocks[*done]))
    return Join(holder, write, stored, at, done);
  if (at->offset == len && MayAppend(holder, write, at->run))
    return Append(holder, write, stored, at, done);
  return absl::OkStatus();
}

// ---- Blocks that some holder has, or had ----

// The holder gets blocks that the run has.
// 1. As many of the event's blocks as follow one another in the run, [from, to).
// 2. Dead ones among them get an entry again (`Revive`), where the others of the run do not gain by
//    it.
// 3. The run is put into the holder's list before its bits: a list may name too much, never too
//    little.
// 4. The holder has all now (W4 if it had part before), or part.
// 5. Counts, digest and log. Without memory revived blocks die again: nothing of them counts.
// 6. Local hashes are written, and a run with a new partial holder may be split.
absl::Status AtlasIndex::Join(HolderState* holder, const Write& write, const Incoming& stored,
                              Place* at, size_t* done) {
  Run* const run = at->run;
  const uint32_t number = holder->number;
  const uint32_t len = run->len.load(std::memory_order_relaxed);
  const uint32_t from = at->offset;
  const uint32_t most =
      static_cast<uint32_t>(std::min<size_t>(len - from, stored.blocks.size() - *done));
  uint32_t to = from + 1;
  while (to - from < most && Names(*run, to, stored.blocks[*done + (to - from)])) ++to;

  Members members = MembersOf(run, write.tier);
  const bool had_all = members.HasAll(number);
  const Offsets before = members.Of(number, run->Live());
  bool no_memory = false;
  Offsets revived;
  if (run->holes) to = Revive(holder, write, *at, to, &revived, &no_memory);
  const Offsets added = Offsets::Range(from, to) - before;
  bool new_part = false;
  if (added.Any()) {
    const Offsets after = before | added;
    bool stored_all = had_all || HasAnything(run, number) || holder->runs.Add(at->ref);
    if (!stored_all || had_all) {
      // A holder of all has the revived blocks without any change.
    } else if (after == run->Live()) {
      // W4: a reader that looks for holders of all and then for partial ones may meet this one in
      // neither place.
      if (before.Any()) BeginShrink(run);
      stored_all = members.AddAll(number);
      if (stored_all && before.Any()) members.RemovePart(number);
      if (before.Any()) EndShrink(run);
    } else {
      stored_all = members.SetPart(number, after);
      new_part = !before.Any();
    }
    if (!stored_all) {
      Count(&blocks_, revived.Count());
      Kill(run, revived);
      EraseBlocks(*at, revived);
      return absl::ResourceExhaustedError("no memory for another holder");
    }
    Count(&blocks_, revived.Count());
    Account(holder, write, run, added, /*added=*/true);
  }
  if (options_.keep_local_hashes && !stored.local_hashes.empty()) {
    for (uint32_t i = from; i < to; ++i)
      run->locals()[i].store(Raw(stored.local_hashes[*done + (i - from)]),
                             std::memory_order_relaxed);
  }
  *done += to - from;
  at->offset = to;
  if (no_memory) return absl::ResourceExhaustedError("no memory for blocks");
  if (new_part) MaybeSplit(at, write.tier);
  return absl::OkStatus();
}

// Dead blocks of [at.offset, to) get their entry and, once `SetDead` is written, their place back.
// Returns where that ends: before the first block that lives elsewhere by now, or for which there
// is no room (`*no_memory`).
uint32_t AtlasIndex::Revive(HolderState* holder, const Write& write, const Place& at, uint32_t to,
                            Offsets* revived, bool* no_memory) {
  Run* const run = at.run;
  const Offsets dead = run->Dead();
  const Offsets wanted = dead & Offsets::Range(at.offset, to);
  if (!wanted.Any()) return to;
  if (!DemoteOthers(holder, write, run)) {
    *no_memory = true;
    return wanted.First();
  }
  uint32_t end = to;
  wanted.ForEach([&](uint32_t offset) {
    if (offset >= end) return;
    const BlockTable::Inserted inserted = ReviveBlock(at, offset, revived->Count());
    if (inserted.what == BlockTable::Inserted::kInserted) {
      revived->Add(offset);
    } else {
      end = offset;
      *no_memory = inserted.what == BlockTable::Inserted::kNoMemory;
    }
  });
  run->SetDead(dead - *revived);
  return end;
}

// Before a dead block comes back, holders of all of the run become holders of what lives now, since
// they did not store the block (W3, W4). Only a sole holder that is the storing one stays. False
// without memory: some may be partial holders already, of the same blocks, which changes no answer.
bool AtlasIndex::DemoteOthers(HolderState* holder, const Write& write, Run* run) {
  const Holders sole = Members::Sole(*run);
  if (sole == InlineHolder(write.tier, holder->number)) return true;
  const Offsets live = run->Live();
  const TierMask tiers = Members::TiersOf(heap_.get(), *run);
  std::vector<uint32_t> others;
  bool done = true;
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (!tiers.Has(tier)) continue;
    Members members = MembersOf(run, tier);
    others.clear();
    members.ForEachAll([&](uint32_t other) {
      if (other != holder->number || tier != write.tier) others.push_back(other);
    });
    if (others.empty()) continue;
    BeginShrink(run);
    for (uint32_t other : others) {
      done = done && members.SetPart(other, live);
      if (done) members.RemoveAll(other);
    }
    EndShrink(run);
  }
  return done;
}

// `revived` blocks of this event are not in `blocks_` yet: `Admit` is asked for one more than
// these. The table writes the hash back into the word (`Place`), which brings the block to life for
// readers.
BlockTable::Inserted AtlasIndex::ReviveBlock(const Place& at, uint32_t offset, uint32_t revived) {
  const SequenceHash block{~HashAt(*at.run, offset)};
  const absl::StatusOr<uint32_t> admitted = Admit(at.run->start + offset, revived + 1);
  if (!admitted.ok() || *admitted <= revived) {
    // The block may be elsewhere: then it needs no room.
    const Ref elsewhere = table_->Find(block);
    return {
        .what = elsewhere != 0 ? BlockTable::Inserted::kExists : BlockTable::Inserted::kNoMemory,
        .existing = elsewhere};
  }
  return table_->Insert(block, WordOf(at.ref, offset));
}

// ---- Blocks that no holder has ----

// How many of `blocks` new blocks from `position` on may be added, at most a run's;
// RESOURCE_EXHAUSTED for none. Near a bound of memory only heads of sequences are admitted
// (`IndexOptions::bytes_max`), and as many blocks as belong to the head.
absl::StatusOr<uint32_t> AtlasIndex::Admit(Position position, size_t blocks) {
  uint64_t admitted = std::min<size_t>(blocks, kRunBlocksMax);
  if (options_.blocks_max != 0) {
    const uint64_t used = blocks_.load(std::memory_order_relaxed);
    admitted = std::min(admitted, options_.blocks_max - std::min(options_.blocks_max, used));
    if (admitted == 0) return absl::ResourceExhaustedError("blocks_max reached");
  }
  bool only_heads = false;
  if (options_.bytes_max != 0) {
    const uint64_t used = heap_->bytes();
    if (used >= options_.bytes_max) return absl::ResourceExhaustedError("bytes_max reached");
    only_heads = used >= options_.bytes_max / 16 * 15;
    if (only_heads && position >= kHeadBlocks)
      return absl::ResourceExhaustedError("bytes_max is near: only heads of sequences");
  }
  if (options_.memory != nullptr && options_.memory->level() >= MemoryLevel::kTight) {
    const bool tail = position >= kHeadBlocks;
    absl::Status refused =
        options_.memory->Check(tail ? MemoryLevel::kTight : MemoryLevel::kFull,
                               tail ? "blocks but heads of sequences" : "new blocks");
    if (!refused.ok()) return refused;
    only_heads = true;
  }
  if (only_heads) admitted = std::min<uint64_t>(admitted, kHeadBlocks - position);
  return static_cast<uint32_t>(admitted);
}

// Writes hashes behind the end of a run. The words may have been other blocks' before; until `len`
// includes them readers take them for no more than a hint.
void AtlasIndex::WriteWords(Run* run, uint32_t offset, const Incoming& stored, size_t from,
                            uint32_t count) {
  std::atomic<uint64_t>* const words = run->words() + offset;
  // Partner: `BlockTable::FindIn`.
  for (uint32_t i = 0; i < count; ++i)
    words[i].store(Raw(stored.blocks[from + i]), std::memory_order_release);
  if (!options_.keep_local_hashes) return;
  const bool known = !stored.local_hashes.empty();
  for (uint32_t i = 0; i < count; ++i)
    run->locals()[offset + i].store(known ? Raw(stored.local_hashes[from + i]) : 0,
                                    std::memory_order_relaxed);
}

// True if the run may grow in place for this holder: it must be the only holder of all, in this
// tier alone, since every holder of all gets the new blocks (W3). Partial holders do not matter:
// they get nothing.
bool AtlasIndex::MayAppend(HolderState* holder, const Write& write, Run* run) const {
  if (Members::Sole(*run) == InlineHolder(write.tier, holder->number)) return true;
  uint32_t holders = 0;
  const TierMask tiers = Members::TiersOf(heap_.get(), *run);
  for (int tier = 0; tier < kTiers && holders < 2; ++tier) {
    if (tiers.Has(static_cast<Tier>(tier)))
      holders += MembersOf(run, static_cast<Tier>(tier)).CountAll(2);
  }
  return holders == 1 && MembersOf(run, write.tier).HasAll(holder->number);
}

// 1. `Admit` says how many; a refusal stands only if the block is new.
// 2. A run without room moves to a larger one (`Regrow`), half as long again, unless the next block
//    is known.
// 3. Hashes, table entries, then `len` (W2): readers see the blocks when everything is there.
// 4. The table stops at a block that it knows: the caller goes on there by name.
absl::Status AtlasIndex::Append(HolderState* holder, const Write& write, const Incoming& stored,
                                Place* at, size_t* done) {
  const uint32_t len = at->offset;
  const size_t wanted = std::min<size_t>(stored.blocks.size() - *done, kRunBlocksMax - len);
  if (wanted == 0) return absl::OkStatus();
  const absl::StatusOr<uint32_t> admitted =
      Admit(stored.position + static_cast<Position>(*done), wanted);
  if (!admitted.ok()) {
    // It may be known: the caller finds it by name.
    return Known(stored.blocks[*done]) ? absl::OkStatus() : admitted.status();
  }
  uint32_t count = *admitted;
  if (len + count > at->run->capacity) {
    // The next block may be known: then there is nothing to make room for.
    if (Known(stored.blocks[*done])) return absl::OkStatus();
    const uint32_t more = std::max({count, len / 2, kMoreBlocksMin});
    const uint32_t room = std::min(kRunBlocksMax, len + more);
    if (!Regrow(at, room)) count = std::min(count, at->run->capacity - len);
    // The copy may have turned a partial holder with all bits into a holder of all: asked again.
    if (count == 0 || !MayAppend(holder, write, at->run)) return absl::OkStatus();
  }
  Run* const run = at->run;
  WriteWords(run, len, stored, *done, count);
  BlockTable::Inserted stopped;
  const uint32_t inserted = static_cast<uint32_t>(
      table_->InsertMany(stored.blocks.subspan(*done, count), WordOf(at->ref, len), &stopped));
  if (inserted == 0 && stopped.what == BlockTable::Inserted::kNoMemory)
    return absl::ResourceExhaustedError("no memory for blocks");
  Pause();
  // Partner: the acquire load of R2.
  run->len.store(static_cast<uint16_t>(len + inserted), std::memory_order_release);
  Count(&blocks_, inserted);
  Account(holder, write, run, Offsets::Range(len, len + inserted), /*added=*/true);
  *done += inserted;
  at->offset = len + inserted;
  return absl::OkStatus();
}

// True if the `count` blocks before the one at `word` are those of the event, from `from` on, and
// dead: they have a place there, and need no run of their own.
bool AtlasIndex::LeadsBack(Ref word, const Incoming& stored, size_t from, uint32_t count) const {
  const Ref ref = heap_->RunOf(word);
  const Run& run = *RunAt(ref);
  const uint32_t offset = OffsetOf(ref, word);
  if (offset < count || !run.holes) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (HashAt(run, offset - count + i) != ~Raw(stored.blocks[from + i])) return false;
  }
  return true;
}

// 1. `Admit` says how many; a run of that size is made, with this holder in it and in its list.
// 2. Hashes and table entries, up to the first block that some holder has.
// 3. If nothing was new, or the known block shows that these are dead blocks of its run
//    (`LeadsBack`), the run is dropped again, and the blocks are joined there.
// 4. Else `len` makes the blocks the holder's.
// The entries come before `len`: a reader in between finds a word beyond the run's end, and asks
// the table again (R2).
absl::Status AtlasIndex::StoreNew(HolderState* holder, const Write& write, const Incoming& stored,
                                  Place* at, size_t* done) {
  const Position start = stored.position + static_cast<Position>(*done);
  const absl::StatusOr<uint32_t> admitted = Admit(start, stored.blocks.size() - *done);
  if (!admitted.ok()) return admitted.status();
  const uint32_t count = *admitted;
  const Ref ref = NewRun(count, start, Raw(*done == 0 ? stored.parent : stored.blocks[*done - 1]));
  if (ref == 0) return absl::ResourceExhaustedError("no memory for a run");
  Run* const run = RunAt(ref);
  if (!MembersOf(run, write.tier).AddAll(holder->number) || !holder->runs.Add(ref)) {
    DropRun(ref, /*seen=*/false);
    return absl::ResourceExhaustedError("no memory for a run");
  }
  WriteWords(run, 0, stored, *done, count);
  BlockTable::Inserted stopped;
  const uint32_t inserted = static_cast<uint32_t>(
      table_->InsertMany(stored.blocks.subspan(*done, count), WordOf(ref, 0), &stopped));
  const bool back = inserted > 0 && stopped.what == BlockTable::Inserted::kExists &&
                    LeadsBack(stopped.existing, stored, *done, inserted);
  if (back) {
    for (uint32_t i = 0; i < inserted; ++i) table_->Erase(stored.blocks[*done + i], WordOf(ref, i));
  }
  if (inserted == 0 || back) {
    // The blocks have a place, or there is no memory.
    DropRun(ref, /*seen=*/inserted != 0);
    if (stopped.what == BlockTable::Inserted::kNoMemory)
      return absl::ResourceExhaustedError("no memory for blocks");
    if (back && Locate(stored.blocks[*done + inserted], at)) {
      at->offset -= std::min(at->offset, inserted);
      if (!Names(*at->run, at->offset, stored.blocks[*done])) *at = {};
    }
    return absl::OkStatus();
  }
  Pause();
  run->len.store(static_cast<uint16_t>(inserted), std::memory_order_release);
  Pause();
  Count(&blocks_, inserted);
  Account(holder, write, run, Offsets::Range(0, inserted), /*added=*/true);
  *done += inserted;
  *at = {.ref = ref, .run = run, .offset = inserted};
  return absl::OkStatus();
}

}  // namespace kvatlas::atlas
