// How a copy under a name becomes a block of the holder:
//
//   Place ─▶ first copy of the name in that tier ─▶ Held: every other required group has it, and no other name does
//         ─▶ PassStored: the pending run grows, or another begins
//         ─▶ FlushMain: all that is pending goes to the writer in one call
//
// A removal takes the same way back: Left, Unheld, PassRemoved.
//
// Three counts decide, each with its own owner: copies of a name in a tier (`AliasTable`), groups
// that have the name (`HeldByOthers`), names of a block (`names_`, once some block has two).
// `held_` counts blocks by tier as they were passed on, pending ones included.

#include <algorithm>
#include <utility>

#include "indexer/kv_events/engine_rank.h"

namespace kvatlas {

// ---- Names ----

// The group's table for names of this length, null if there is none. At most `kLengthsMax` tables:
// a linear search.
AliasTable* EngineRank::Table(size_t group, size_t name_bytes) const {
  for (const std::unique_ptr<AliasTable>& table : groups_[group].tables)
    if (table->name_bytes() == name_bytes) return table.get();
  return nullptr;
}

AliasTable* EngineRank::TableFor(size_t group, const EngineBlockHash& name) {
  AliasTable* const table = Table(group, name.bytes.size());
  if (table != nullptr) return table;
  auto& tables = groups_[group].tables;
  if (tables.size() == kLengthsMax) return nullptr;
  // A random seed per table: a sender cannot choose names that fall into one bucket.
  tables.push_back(std::make_unique<AliasTable>(name.bytes.size(), RandomInstanceId()));
  return tables.back().get();
}

// The place of a name: in its own group, else in any main one, since groups of one engine give the
// same content the same name. A side group's own names are not looked at, as their places are those
// of side blocks.
std::optional<BlockPlace> EngineRank::FindPlace(size_t group, const EngineBlockHash& name) const {
  for (size_t i = 0; i <= groups_.size(); ++i) {
    if (i != 0 && i - 1 == group) continue;
    if (!groups_[i == 0 ? group : i - 1].main) continue;
    const AliasTable* const table = Table(i == 0 ? group : i - 1, name.bytes.size());
    const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
    if (slot != AliasTable::kNone) return table->place(slot);
  }
  return std::nullopt;
}

// Step 6 of a store (`ApplyStored`): `count` copies of the block at `place`, under `name`.
//
// 1. The group becomes a required one of the tier (`Require`), before the name counts.
// 2. A name that stood for another block loses that first (`Rename`).
// 3. A new name counts on its namespace, is queued for parked blocks that wait for it (`linked_`),
//    and joins side blocks of the same name (`JoinSides`).
// 4. The copies are counted. Only the first one in the tier goes on to `Came`.
//
// REQUIRES: the namespace `place.space` is pinned, or another name keeps it: else `Rename` could
// free it.
void EngineRank::Place(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                       SequenceHash parent, std::optional<LocalHash> local, Tier tier,
                       uint32_t count, AliasTable::Copies copies) {
  if (count == 0) return;
  AliasTable* const table = TableFor(group, name);
  if (table == nullptr) return Refuse(Refusal::kTooLarge, 1, "names of too many lengths");
  Require(group, tier);
  bool inserted;
  size_t slot = table->FindOrInsert(name, place, &inserted);
  if (!inserted && table->block(slot) != place.block) {
    Rename(table, slot, group, name, place.space);
    slot = table->FindOrInsert(name, place, &inserted);
  }
  if (inserted) {
    spaces_.Count(place.space);
    if (name.value == 0 && name.bytes.empty()) zero_named_ = true;
    if (!parked_.empty()) linked_.push_back(ParkedName(group, name));
    if (groups_[group].side == 0 && (unjoined_ != 0 || !links_.empty())) JoinSides(name, place);
  }
  // While names stand for chunks, the block before each block is kept: `PlaceMembers` walks back
  // over these.
  if (named_blocks_ > 1 && !places_members_ && place.position != 0 && parent != kNoParent)
    before_.try_emplace(place.block, parent);
  const bool first = table->Store(slot, tier, copies);
  for (uint32_t i = 1; i < count; ++i) table->Store(slot, tier, copies);
  if (copies != AliasTable::Copies::kOne) counters_->copies += count - first;
  if (!places_members_ && Ages(tier)) NoteAge(group, name, tier);
  if (first) Came(group, name, place, parent, local, tier);
}

void EngineRank::Came(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                      SequenceHash parent, std::optional<LocalHash> local, Tier tier) {
  if (groups_[group].main) Held(group, name, place, parent, local, tier);
  if (groups_[group].side != 0) SideHeld(group, name, place, tier);
}

void EngineRank::Left(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                      Tier tier) {
  if (groups_[group].main) Unheld(group, name, place.block, tier);
  if (groups_[group].side != 0) SideUnheld(group, name, place, tier);
}

// The name stands for other content now. All its copies go, since nothing says which of them are of
// the old content, and so do its side names and chunk members. Where the two contents are of
// different namespaces, the name is ambiguous until a clear: which one a child means is unknown,
// and children are refused (`StartOf`, `LinkAll`).
void EngineRank::Rename(AliasTable* table, size_t slot, size_t group, const EngineBlockHash& name,
                        uint32_t new_space) {
  const BlockPlace old = table->place(slot);
  const Space& before = spaces_.at(old.space);
  const Space& after = spaces_.at(new_space);
  if ((before.lora_name != after.lora_name || before.cache_salt != after.cache_salt) &&
      ambiguous_.size() < kAmbiguousMax)
    ambiguous_.insert(ParkedName(group, name));
  const TierMask tiers = table->tiers(slot);
  EraseName(group, table, slot);
  for (int tier = 0; tier < kTiers; ++tier)
    if (tiers.Has(static_cast<Tier>(tier))) Left(group, name, old, static_cast<Tier>(tier));
  if (!sides_.empty()) DropSideNames(name);
  for (int tier = 0; tier < kTiers && chunk_blocks_ > 1; ++tier)
    if (static_cast<Tier>(tier) != Tier::kDevice && tiers.Has(static_cast<Tier>(tier)))
      RemoveMembers(group, name, static_cast<Tier>(tier), /*all=*/true);
}

void EngineRank::EraseName(size_t group, AliasTable* table, size_t slot, bool is_member) {
  std::string memory;
  const EngineBlockHash name =
      links_.empty() && more_names_.empty() ? EngineBlockHash{} : table->NameAt(slot, &memory);
  const BlockPlace place = table->place(slot);
  table->Erase(slot);
  // The name of a chunk's member goes, while the engine's own name for the block may stay: then
  // `before_` has to know the block still, and `NoteErased` has dropped it.
  SequenceHash before{0};
  const auto kept = is_member ? before_.find(place.block) : before_.end();
  const bool is_kept = kept != before_.end();
  if (is_kept) before = kept->second;
  NoteErased(group, name, place);
  if (is_kept) before_.emplace(place.block, before);
}

// ---- Blocks ----

// Whether all other groups that the tier requires have the name. O(required groups), and free for
// an engine with one group.
bool EngineRank::HeldByOthers(size_t group, const EngineBlockHash& name, Tier tier) const {
  uint32_t others = required_[static_cast<int>(tier)] & ~(1u << group);
  for (size_t other = 0; others != 0; ++other, others >>= 1) {
    if ((others & 1) == 0) continue;
    const AliasTable* const table = Table(other, name.bytes.size());
    const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
    if (slot == AliasTable::kNone || !table->tiers(slot).Has(tier)) return false;
  }
  return true;
}

// A group has the first copy of a name in a tier. The block is passed on if that completes its
// groups, and if it is the block's first name.
void EngineRank::Held(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                      SequenceHash parent, std::optional<LocalHash> local, Tier tier) {
  if (!HeldByOthers(group, name, tier)) return;
  if (counts_names_ && ++names_[static_cast<int>(tier)][place.block] != 1) return;
  PassStored(place, parent, local, tier);
}

// The reverse of `Held`: the last copy in this group has just gone. While another required group
// lacks the name, the block was not passed on, and nothing happens.
void EngineRank::Unheld(size_t group, const EngineBlockHash& name, SequenceHash block, Tier tier) {
  if (!HeldByOthers(group, name, tier)) return;
  if (counts_names_) {
    auto& names = names_[static_cast<int>(tier)];
    const auto it = names.find(block);
    if (it != names.end() && --it->second != 0) return;
    if (it != names.end()) names.erase(it);
  }
  PassRemoved(block, tier);
}

// Some block has two names: from now on names are counted per block and tier. Most engines give a
// block one name, and `names_` costs a hash table entry a block: it is built from the tables when
// the first such block shows, and kept until a clear.
void EngineRank::CountNames() {
  counts_names_ = true;
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (!groups_[group].main) continue;
    for (const std::unique_ptr<AliasTable>& table : groups_[group].tables) {
      table->ForEach([&](const EngineBlockHash& name, size_t slot) {
        const TierMask tiers = table->tiers(slot);
        for (int tier = 0; tier < kTiers; ++tier) {
          if (!tiers.Has(static_cast<Tier>(tier))) continue;
          // Count a name once for all groups: in the lowest required one.
          const uint32_t lower = required_[tier] & ((1u << group) - 1);
          if (lower == 0 && HeldByOthers(group, name, static_cast<Tier>(tier)))
            ++names_[tier][table->block(slot)];
        }
      });
    }
  }
}

// ---- What is pending ----
//
// `pending_` and `side_pending_` hold what the writer was not told yet. A batch is handed over at
// its end, or when `kBatchBlocksMax` blocks wait. Code that reads the writer's state, or tells it
// something out of band (`SendCleared`, `SetLayout`, `ForEachHeld`), flushes first, or runs between
// batches, where nothing is pending.

void EngineRank::PassStored(const BlockPlace& place, SequenceHash parent,
                            std::optional<LocalHash> local, Tier tier) {
  if (!options_.keep_local_hashes) local.reset();
  pending_.Store(tier, {place.block, place.position, parent, local});
  ++held_[static_cast<int>(tier)];
  if (pending_.blocks() >= kBatchBlocksMax) FlushMain();
}

void EngineRank::PassRemoved(SequenceHash block, Tier tier) {
  pending_.Remove(tier, /*side=*/0, block);
  --held_[static_cast<int>(tier)];
  // `Rename` may be between the removals of one name, which follow one another. A flush with stores
  // before them could show that a block has two names, and `CountNames` would count tables that are
  // half changed: it waits for the next store or the batch's end.
  if (pending_.blocks() >= kBatchBlocksMax && !pending_.has_stores()) FlushMain();
}

void EngineRank::Flush() {
  FlushMain();
  FlushSides();
}

// Hands all that is pending to the writer. It takes events up to the first one that is refused, and
// up to the first store that found a block in its tier already.
//
// 1. Refused: a store is counted as shed, and the rank is degraded until `Heal` found room for
//    everything. Events behind it are handed over in the next round.
// 2. A store that changed fewer blocks than it names: the names of this rank are first copies, so
//    that the block has another name here. Names are counted from now on (`CountNames`), `held_`
//    loses what was counted twice, and the events that are left are rewritten as if names had been
//    counted before (`CountPending`).
// 3. Else all was taken.
void EngineRank::FlushMain() {
  for (std::span<const Event> left = pending_.events(); !left.empty();) {
    const Applied applied = writer_->Apply(left);
    const Event& last = left[applied.events - 1];
    left = left.subspan(applied.events);
    const Stored* const stored = std::get_if<Stored>(&last);
    if (!applied.status.ok()) {
      Refuse(Refusal::kShed, BlockCount(last), std::string(applied.status.message()));
      if (stored == nullptr) continue;
      shed_ = healing_.shed = true;
      UpdateTrust();
      continue;
    }
    if (counts_names_ || GoesOn(last, applied)) continue;
    // Every block of the store was a first copy of its name: a block that the writer had already
    // has another name.
    held_[static_cast<int>(stored->tier)] -= stored->blocks.size() - applied.changed;
    CountNames();
    CountPending(left);
    left = pending_.events();
  }
  pending_.Clear();
}

// Clears main and side blocks of these tiers at the writer. An error means that the writer keeps
// nothing any more. REQUIRES: nothing is pending for them.
void EngineRank::SendCleared(TierMask tiers) {
  writer_->Apply(Cleared{.tiers = tiers}).IgnoreError();
}

// Rewrites the events that the writer was not told yet, once names are counted. `CountNames` has
// counted the tables, which have the effect of `left` already.
//
// 1. Undo the effect of `left` on the counts: they are as before it. A count may pass below zero
//    meanwhile, and the second step brings it back.
// 2. Do it again event by event, and keep what changes a block: its first name comes, or its last
//    one goes.
void EngineRank::CountPending(std::span<const Event> left) {
  for (const Event& event : left) {
    if (const Stored* const stored = std::get_if<Stored>(&event)) {
      for (SequenceHash block : stored->blocks) --names_[static_cast<int>(stored->tier)][block];
    } else {
      const Removed& removed = std::get<Removed>(event);
      for (SequenceHash block : removed.blocks) ++names_[static_cast<int>(removed.tier)][block];
    }
  }
  PendingEvents rest;
  for (const Event& event : left) {
    if (const Stored* const stored = std::get_if<Stored>(&event)) {
      const int tier = static_cast<int>(stored->tier);
      for (size_t i = 0; i < stored->blocks.size(); ++i) {
        if (++names_[tier][stored->blocks[i]] != 1) {
          --held_[tier];
          continue;
        }
        std::optional<LocalHash> local;
        if (!stored->local_hashes.empty()) local = stored->local_hashes[i];
        rest.Store(stored->tier, {stored->blocks[i], stored->position + static_cast<Position>(i),
                                  i == 0 ? stored->parent : stored->blocks[i - 1], local});
      }
    } else {
      const Removed& removed = std::get<Removed>(event);
      const int tier = static_cast<int>(removed.tier);
      for (SequenceHash block : removed.blocks) {
        const auto names = names_[tier].find(block);
        if (--names->second != 0) {
          ++held_[tier];
          continue;
        }
        names_[tier].erase(names);
        rest.Remove(removed.tier, /*side=*/0, block);
      }
    }
  }
  pending_ = std::move(rest);
}

// ---- Parked blocks whose name or parent came ----

// Places a parked block with all its copies. Copies that were in doubt when it was parked stay so:
// `Place` counts each as certain, and the certain ones are set afterwards.
void EngineRank::PlaceParked(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                             SequenceHash parent, std::optional<LocalHash> local,
                             const ParkedBlock& parked) {
  TierCopies certain = parked.certain;
  if (AliasTable* const table = Table(group, name.bytes.size()); table != nullptr) {
    const size_t slot = table->Find(name);
    if (slot != AliasTable::kNone && table->block(slot) == place.block)
      for (int tier = 0; tier < kTiers; ++tier) certain[tier] += table->certain(slot)[tier];
  }
  for (int t = 0; t < kTiers; ++t) {
    const Tier tier = static_cast<Tier>(t);
    const auto copies =
        parked.sets.Has(tier) ? AliasTable::Copies::kSome : AliasTable::Copies::kOneMore;
    if (told_chunk_blocks_ > 1 && tier != Tier::kDevice && !parked.has_tokens)
      PlaceMembers(group, name, place, tier, parked.copies[t], copies);
    Place(group, name, place, parent, local, tier, parked.copies[t], copies);
    if (parked.may_end_chunk && parked.copies[t] != 0 && tier != Tier::kDevice)
      NoteEnd(group, name, place, tier);
  }
  if (parked.certain == parked.copies) return;
  AliasTable* const table = Table(group, name.bytes.size());
  const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
  if (slot == AliasTable::kNone) return;  // it was refused
  const TierCopies copies = table->copies(slot);
  for (int tier = 0; tier < kTiers; ++tier) certain[tier] = std::min(certain[tier], copies[tier]);
  table->Restore(slot, copies, certain);
}

// Step 7 of a store: for every name that came, the block that is parked under this name, and the
// blocks whose parent it is. Each of them that is placed is a name that came: `linked_` is the
// stack of names still to be looked at, so that a long chain of parked blocks needs no recursion.
// The stack is empty between events.
void EngineRank::LinkAll() {
  while (!linked_.empty()) {
    const std::string key = std::move(linked_.back());
    linked_.pop_back();
    if (parked_.empty()) continue;
    const size_t group = GroupOfKey(key);
    const EngineBlockHash name = NameOfKey(key);
    const std::optional<BlockPlace> place = FindPlace(group, name);
    if (!place.has_value()) continue;
    const Namespaces::Pin pin(&spaces_, place->space);
    if (const std::optional<ParkedBlock> own = parked_.Take(key)) {
      ++counters_->linked;
      PlaceParked(group, name, *place, kNoParent, std::nullopt, *own);
    }
    if (ambiguous_.empty() || !ambiguous_.contains(key)) LinkChildren(key, *place);
  }
}

// Places the parked children of a name that has a place now. A child whose event contradicts its
// parent's namespace is refused and dropped. The children of a child follow through `linked_`.
void EngineRank::LinkChildren(const std::string& parent, const BlockPlace& place) {
  const size_t group = GroupOfKey(parent);
  for (const std::string& key : parked_.ChildrenOf(parent)) {
    const ParkedBlock& waiting = *parked_.Find(key);
    const Space& said = parked_.Said(waiting);
    const std::optional<uint32_t> space =
        SpaceAfter(place.space, said.lora_name, said.cache_salt, waiting.eagle, 1);
    const std::optional<ParkedBlock> child = parked_.Take(key);
    if (!space.has_value()) continue;
    const Namespaces::Pin pin(&spaces_, *space);
    ++counters_->linked;
    const LocalHash local = ContentHash(child->tokens, child->multimodal, *space, child->eagle);
    const BlockPlace at{NextSequenceHash(place.block, local, options_.contract), place.position + 1,
                        *space};
    PlaceParked(group, NameOfKey(key), at, place.block, local, *child);
    if (pages_.on())
      NamePage(NameOfKey(key), at, place.block, child->tokens, child->multimodal, child->eagle);
  }
}

// ---- What SGLang's router calls them ----

bool EngineRank::IsPlain(uint32_t space) const {
  return spaces_.at(space).lora_name.empty() && spaces_.at(space).cache_salt.empty();
}

// Tells the table of SGLang's names about a block whose tokens are known (`sglang_block_hash.h`).
void EngineRank::NamePage(const EngineBlockHash& name, const BlockPlace& place, SequenceHash parent,
                          std::span<const TokenId> tokens, std::span<const uint64_t> objects,
                          uint32_t look_ahead) {
  if (look_ahead > 1) return;  // SGLang's pages cover one token more at most
  pages_.Placed({.name = name,
                 .block = place.block,
                 .parent = place.position == 0 ? kNoParent : parent,
                 .tokens = tokens,
                 .bigrams = look_ahead != 0,
                 .plain = objects.empty() && IsPlain(place.space)});
}

}  // namespace kvatlas
