// How does a copy under a name become a block of the holder?
//
//   Place ─▶ first copy of the name in that tier ─▶ Held: every other required group has it, and no other name does
//         ─▶ PassStored: the pending run grows, or another begins
//         ─▶ FlushMain: all that is pending goes to the writer in one call
//
// and the same way back (Left, Unheld, PassRemoved).

#include <algorithm>
#include <utility>

#include "indexer/kv_events/engine_rank.h"

namespace kvatlas {

// ---- Names ----

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
  tables.push_back(std::make_unique<AliasTable>(name.bytes.size(), RandomInstanceId()));
  return tables.back().get();
}

// In its own group, else in any main one: groups of one engine call the same content the same.
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

// The name stands for other content now. Which of its copies is which cannot be told: the old ones
// are gone.
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
  // A chunk's own name for it leaves the engine's.
  SequenceHash before{0};
  const auto kept = is_member ? before_.find(place.block) : before_.end();
  const bool is_kept = kept != before_.end();
  if (is_kept) before = kept->second;
  NoteErased(group, name, place);
  if (is_kept) before_.emplace(place.block, before);
}

// ---- Blocks ----

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

void EngineRank::Held(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                      SequenceHash parent, std::optional<LocalHash> local, Tier tier) {
  if (!HeldByOthers(group, name, tier)) return;
  if (counts_names_ && ++names_[static_cast<int>(tier)][place.block] != 1) return;
  PassStored(place, parent, local, tier);
}

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

// Some block has two names: from now on they are counted.
void EngineRank::CountNames() {
  counts_names_ = true;
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (!groups_[group].main) continue;
    for (const std::unique_ptr<AliasTable>& table : groups_[group].tables) {
      table->ForEach([&](const EngineBlockHash& name, size_t slot) {
        const TierMask tiers = table->tiers(slot);
        for (int tier = 0; tier < kTiers; ++tier) {
          if (!tiers.Has(static_cast<Tier>(tier))) continue;
          // Once for all groups together.
          const uint32_t lower = required_[tier] & ((1u << group) - 1);
          if (lower == 0 && HeldByOthers(group, name, static_cast<Tier>(tier)))
            ++names_[tier][table->block(slot)];
        }
      });
    }
  }
}

// ---- What is pending ----

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
  // Of a name that is being changed some removals may still be to come: with stores before them it
  // is too early.
  if (pending_.blocks() >= kBatchBlocksMax && !pending_.has_stores()) FlushMain();
}

void EngineRank::Flush() {
  FlushMain();
  FlushSides();
}

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
    // All were first copies of their names: what was held already has another name.
    held_[static_cast<int>(stored->tier)] -= stored->blocks.size() - applied.changed;
    CountNames();
    CountPending(left);
    left = pending_.events();
  }
  pending_.Clear();
}

void EngineRank::SendCleared(TierMask tiers) {
  writer_->Apply(Cleared{.tiers = tiers}).IgnoreError();
}

// The names were counted as they are; `left` is not handed over yet. From how many there were
// before it follows what of it is a first or a last name.
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
