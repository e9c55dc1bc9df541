// A rank as a whole: trust, clears, restarts, losses, time, statistics, and its names written to a
// checkpoint or another replica and restored.
//
// A loss goes through these states (`loss_`):
//
//   kNone ──Lose──▶ kWaiting ──`repair_timeout` over──▶ kDropping ──all tables walked──▶ kNone, degraded
//                      │ Repair: every gap was replayed
//                      │ SettleIfCertain: nothing is in doubt any more
//                      ╰──▶ kNone
//
// While it waits, each store makes its copy certain again (`AliasTable::certain`), and answers
// count what is uncertain, as degraded.

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/kv_events/engine_rank.h"
#include "indexer/kv_events/engine_tier.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// Slots a tick, so that a tick of a large rank does not hold the worker's lock for long. `Heal`
// calls the writer per block: it gets fewer.
constexpr size_t kDropSlotsPerTick = 1 << 17;
constexpr size_t kHealSlotsPerTick = 1 << 14;
// A mark has that many names at most, so that it fits a message.
constexpr size_t kNamesPerMark = 256;

// Refusals that a healthy engine causes: they are logged for debugging alone.
bool IsUsual(Refusal refusal) {
  return refusal == Refusal::kUnknownRemoved || refusal == Refusal::kNotMainAttention ||
         refusal == Refusal::kPartBlock || refusal == Refusal::kIgnoredEvent ||
         refusal == Refusal::kRemoteLocality;
}

}  // namespace

// Counts what was refused. `detail` is for words about it, and may hold text from the engine:
// callers cut it (`Text`).
void EngineRank::Refuse(Refusal refusal, uint64_t count, const std::string& detail) {
  if (count == 0) return;
  uint64_t& refused = counters_->refused[static_cast<size_t>(refusal)];
  const uint64_t before = std::exchange(refused, refused + count);
  // Words and a log line only when the count reaches the next power of two: a bad engine refuses
  // every event.
  if (std::bit_width(before) == std::bit_width(refused)) return;
  counters_->last_refusal = absl::StrCat("rank ", rank_, ": ", std::string(RefusalName(refusal)),
                                         detail.empty() ? "" : ": ", detail);
  Log(IsUsual(refusal) ? LogLevel::kDebug : LogLevel::kWarning, "engine event refused",
      {{"worker", options_.name},
       {"rank", rank_},
       {"reason", RefusalName(refusal)},
       {"refused", refused},
       {"detail", detail}});
}

// Tells the writer whether what this rank holds is exact. To be called after every change of what
// it reads. Reasons to be degraded: an unsettled loss, something lost for good (`given_up_`, until
// a clear), blocks that the index shed, side classes that are not fully known, a block size that is
// not the domain's, tiers that blocks leave without an event.
void EngineRank::UpdateTrust() {
  // A hybrid model's first events may be of its main class alone: until a side class is known,
  // holdings are an upper bound.
  const bool untold =
      anything_stored_ && options_.hybrid &&
      std::none_of(sides_.begin(), sides_.end(), [](const Side& side) { return side.groups != 0; });
  const bool degraded = loss_ != Loss::kNone || given_up_ || shed_ || side_unknown_ || untold ||
                        refused_size_ != 0 || !silent_.empty();
  if (degraded == degraded_) return;
  degraded_ = degraded;
  writer_->SetTrust(degraded ? Trust::kDegraded : Trust::kExact);
}

// ---- Clears ----

// Nothing is held from now on, in any tier. All that was in doubt, lost or shed is settled by that.
// Kinds of groups, required groups and chunk sizes stay: the engine is the same. Pending events are
// handed over first, so that the writer sees the clear last.
void EngineRank::ClearAll() {
  Flush();
  for (Group& group : groups_)
    for (const std::unique_ptr<AliasTable>& table : group.tables) table->Clear();
  parked_.Clear();
  spaces_.Clear();
  ambiguous_.clear();
  linked_.clear();
  zero_named_ = false;
  counts_names_ = false;
  for (auto& names : names_) names = {};
  held_ = {};
  loss_ = Loss::kNone;
  deadline_.reset();
  gaps_ = 0;
  final_ = lasting_ = given_up_ = false;
  shed_ = false;
  healing_ = {};
  unjoined_ = 0;
  links_ = {};
  more_names_ = {};
  // Side blocks that were not known are gone with the rest; a window of unknown size stays unknown.
  side_unknown_ = std::any_of(sides_.begin(), sides_.end(), [](const Side& side) {
    return side.groups != 0 && side.of.window_tokens == kWholePrefix;
  });
  anything_stored_ = false;
  missed_ = false;
  before_ = {};
  ends_.clear();
  ages_.clear();
  youngest_.clear();
  silent_ = options_.silent_tiers;
  SendCleared(TierMask::All());
  UpdateTrust();
}

// Nothing is held in this tier from now on, copies and parked ones. Names are collected first,
// since erasing moves slots.
void EngineRank::ClearTier(Tier tier) {
  const int t = static_cast<int>(tier);
  Flush();
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (const std::unique_ptr<AliasTable>& table : groups_[group].tables) {
      std::vector<std::string> keys;
      table->ForEach([&](const EngineBlockHash& name, size_t slot) {
        if (table->tiers(slot).Has(tier)) keys.push_back(ParkedName(group, name));
      });
      for (const std::string& key : keys) {
        const size_t slot = table->Find(NameOfKey(key));
        while (table->Remove(slot, tier) == AliasTable::Gone::kCopy) {
        }
        if (table->tiers(slot).empty()) EraseName(group, table.get(), slot);
      }
    }
  }
  parked_.ClearTier(tier);
  held_[t] = 0;
  names_[t] = {};
  absl::erase_if(youngest_, [t](const auto& entry) { return entry.first.back() == t; });
  SendCleared(tier);
}

// Another incarnation of the engine: as `ClearAll`, and everything that was learned of how it works
// goes too. The next store may call other groups by the same numbers. Options and the writer stay.
void EngineRank::Restart() {
  ClearAll();
  groups_.clear();
  kinds_.clear();
  required_ = {};
  extras_seen_ = false;
  described_blocks_ = 1;
  named_blocks_ = told_chunk_blocks_ > 1 ? told_chunk_blocks_ : 0;
  next_named_blocks_ = 0;
  chunk_blocks_ = told_chunk_blocks_;
  removes_ = {};
  sides_.clear();
  side_unknown_ = false;
  refused_size_ = 0;
  fits_ = false;
  UpdateLayout();
  UpdateTrust();
  pages_.Restarted();
}

// ---- Losses ----

// Something is missing, and all that is held may be gone: every copy is uncertain from now on. A
// drop that is under way ends first, all of it at once: its cursor and the certain copies that it
// goes by are about to be overwritten.
void EngineRank::Lose(LossKind kind, Time now) {
  Flush();
  if (loss_ == Loss::kDropping) {
    while (!DropUnconfirmed(kDropSlotsPerTick)) {
    }
    Flush();
  }
  for (Group& group : groups_)
    for (const std::unique_ptr<AliasTable>& table : group.tables) table->Lose();
  parked_.Lose();
  gaps_ += kind == LossKind::kGap;
  final_ = final_ || kind == LossKind::kUnreadable;
  lasting_ = lasting_ || kind == LossKind::kUnknown;
  // Salts and objects may have been in what is missing (`HidesNamespace`).
  missed_ = true;
  // A loss during another does not extend the deadline of the first.
  if (kind != LossKind::kUnknown && !deadline_.has_value())
    deadline_ = now + options_.repair_timeout;
  settle_at_ = now + options_.repair_timeout;
  loss_ = Loss::kWaiting;
  UpdateTrust();
}

// The latest gap was replayed in full. Only when no other gap and no loss of another kind stands is
// everything certain again. After the drop has begun nothing is repaired: its blocks are gone.
// `missed_` stays where something was given up earlier.
void EngineRank::Repair() {
  if (loss_ != Loss::kWaiting || gaps_ == 0) return;
  --gaps_;
  if (gaps_ > 0 || final_) return;  // an earlier one stands
  deadline_.reset();
  if (lasting_) return;
  missed_ = given_up_;
  for (Group& group : groups_)
    for (const std::unique_ptr<AliasTable>& table : group.tables) table->Confirm();
  parked_.Confirm();
  loss_ = Loss::kNone;
  UpdateTrust();
}

bool EngineRank::AnyUnconfirmed() const {
  for (const Group& group : groups_)
    for (const std::unique_ptr<AliasTable>& table : group.tables)
      if (table->AnyUnconfirmed()) return true;
  return parked_.AnyUnconfirmed();
}

// Ends a loss that no deadline drops (kUnknown): its uncertain blocks are removed or stored again
// one after the other, and once none is left nothing is in doubt. Looks once per `repair_timeout`,
// since a look is O(kinds of states + records + parked blocks).
void EngineRank::SettleIfCertain(Time now) {
  if (now < settle_at_) return;
  settle_at_ = now + options_.repair_timeout;
  if (AnyUnconfirmed()) return;
  lasting_ = false;
  loss_ = Loss::kNone;
  UpdateTrust();
}

// Drops what is not certain, about `slots` slots of each table a call, and continues where it
// stopped (`AliasTable::DropUnconfirmed`). Dropped names leave as with a removal (`Left`). True:
// all tables are through, and the loss has ended; `given_up_` keeps the rank degraded.
bool EngineRank::DropUnconfirmed(size_t slots) {
  std::string memory;
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (const std::unique_ptr<AliasTable>& table : groups_[group].tables) {
      const bool through =
          table->DropUnconfirmed(slots, [&](size_t slot, TierMask dropped, bool erased) {
            const EngineBlockHash name = table->NameAt(slot, &memory);
            const BlockPlace place = table->place(slot);
            for (int t = 0; t < kTiers; ++t) {
              const auto tier = static_cast<Tier>(t);
              if (!dropped.Has(tier)) continue;
              Left(group, name, place, tier);
              // Else a block of this name that waits for its parent would go by that age.
              if (Ages(tier)) ForgetAge(group, name, tier);
            }
            if (erased) NoteErased(group, name, place);
          });
      if (!through) return false;
    }
  }
  loss_ = Loss::kNone;
  deadline_.reset();
  gaps_ = 0;
  final_ = lasting_ = false;
  UpdateTrust();
  return true;
}

// Every second or so, from `EngineWorker::Tick`. Order: what is restored or stored before is handed
// over, blocks go by age, parked ones expire, a loss whose deadline is over is dropped in steps,
// and what the index shed is offered again.
void EngineRank::Tick(Time now) {
  now_ = now;
  Flush();  // names that were restored
  DropOld();
  const size_t expired = parked_.DropExpired(now);
  Refuse(Refusal::kOrphanDropped, expired, "waited too long");
  if (loss_ == Loss::kWaiting) {
    // A restored loss has no deadline: `Restore` knows no time.
    if (!deadline_.has_value() && (gaps_ > 0 || final_)) deadline_ = now + options_.repair_timeout;
    if (!deadline_.has_value()) SettleIfCertain(now);
    if (deadline_.has_value() && now >= *deadline_) {
      loss_ = Loss::kDropping;
      given_up_ = true;
      Refuse(Refusal::kOrphanDropped, parked_.DropUnconfirmed(),
             "lost batches may have removed them");
    }
  }
  if (loss_ == Loss::kDropping) DropUnconfirmed(kDropSlotsPerTick);
  Flush();
  if (shed_) Heal();
}

// Offers every name's block to the writer again, `kHealSlotsPerTick` slots a tick. It stops where
// there is still no room, and goes on from there. A round that goes through without a block being
// shed meanwhile shows that nothing is missing: then the rank is exact again. Blocks that the
// writer has already change nothing.
void EngineRank::Heal() {
  size_t slots = kHealSlotsPerTick;
  Event offered = Stored();
  Stored& one = std::get<Stored>(offered);
  for (; healing_.group < groups_.size(); ++healing_.group, healing_.table = 0) {
    const Group& group = groups_[healing_.group];
    for (; healing_.table < group.tables.size(); ++healing_.table, healing_.cursor = 0) {
      const AliasTable& table = *group.tables[healing_.table];
      bool room = true;
      const bool through = table.ForEachFrom(
          &healing_.cursor, &slots, [&](const EngineBlockHash& name, size_t slot) {
            const BlockPlace place = table.place(slot);
            for (int t = 0; t < kTiers && room; ++t) {
              const Tier tier = static_cast<Tier>(t);
              if (!table.tiers(slot).Has(tier)) continue;
              one.tier = tier;
              // No name says what its block's parent is: the block stands by itself in the index.
              one.parent = kNoParent;
              if (group.main && HeldByOthers(healing_.group, name, tier)) {
                one.side = 0;
                one.position = place.position;
                one.blocks = {place.block};
                room = writer_->Apply({&offered, 1}).status.ok();
              }
              if (room && group.side != 0 && Raw(place.block) != 0 &&
                  HeldByClass(healing_.group, name, tier)) {
                one.side = static_cast<SideClass>(group.side);
                one.position = 0;
                one.blocks = {SideNameOf(healing_.group, place)};
                room = writer_->Apply({&offered, 1}).status.ok();
              }
            }
            return room;
          });
      if (!through) return;
    }
  }
  shed_ = std::exchange(healing_, {}).shed;
  UpdateTrust();
}

// ---- What it knows ----

// Answers another worker that asks for a name (`EngineWorkerOptions::resolve`). A number is also
// compared with the last 8 bytes of digests: an engine and a store may spell one hash in two ways.
std::optional<KnownBlock> EngineRank::Find(const EngineBlockHash& hash) const {
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (!groups_[group].main) continue;
    for (const std::unique_ptr<AliasTable>& table : groups_[group].tables) {
      size_t slot = AliasTable::kNone;
      if (table->name_bytes() == hash.bytes.size()) {
        slot = table->Find(hash);
      } else if (hash.bytes.empty()) {
        slot = table->FindValue(hash.value);
      }
      if (slot == AliasTable::kNone) continue;
      const BlockPlace place = table->place(slot);
      const Space& space = spaces_.at(place.space);
      return KnownBlock{.block = place.block,
                        .position = place.position,
                        .lora_name = space.lora_name,
                        .cache_salt = space.cache_salt,
                        .eagle = space.eagle};
    }
  }
  return std::nullopt;
}

// Another worker knows a name that waits here without tokens: the block is placed with what that
// worker says of it. It may have been removed or placed since the question was asked without the
// lock: then nothing happens.
void EngineRank::Resolve(const std::string& name, const KnownBlock& known) {
  const ParkedBlock* const parked = parked_.Find(name);
  if (parked == nullptr || parked->has_tokens) return;
  const size_t group = GroupOfKey(name);
  const std::optional<uint32_t> space = SpaceOf(known.lora_name, known.cache_salt, known.eagle, 1);
  if (!space.has_value()) return;
  const Namespaces::Pin pin(&spaces_, *space);
  const std::optional<ParkedBlock> block = parked_.Take(name);
  const BlockPlace place{known.block, known.position, *space};
  ++counters_->linked;
  PlaceParked(group, NameOfKey(name), place, kNoParent, std::nullopt, *block);
  LinkAll();
  Flush();
}

// O(names' kinds of states), not O(names). Pending events are not flushed: `held_` counts them
// already.
EngineRankStats EngineRank::Stats() const {
  EngineRankStats stats{.rank = rank_,
                        .trust = degraded_ ? Trust::kDegraded : Trust::kExact,
                        .blocks = held_,
                        .unjoined = unjoined_,
                        .layout = layout_,
                        .parked = parked_.size(),
                        .alias_bytes = parked_.bytes() + spaces_.bytes(),
                        .eagle = look_aheads_ != 0,
                        .refused = {}};
  if (refused_size_ != 0) {
    stats.refused =
        absl::StrCat("its blocks have ", refused_size_, " tokens, and the domain's ",
                     options_.block_size, ": register it with the block size that it has");
  }
  for (const Group& group : groups_) {
    for (const std::unique_ptr<AliasTable>& table : group.tables) {
      stats.aliases += table->size();
      if (group.side != 0) stats.side_names += table->size();
      stats.suspects += table->Unconfirmed();
      stats.alias_bytes += table->bytes();
    }
  }
  stats.settling = stats.suspects > 0 && (loss_ == Loss::kDropping || gaps_ > 0 || final_);
  return stats;
}

// ---- Names written and restored ----
//
// Order of a restore: `RestoreMark` for each mark of the rank, before any name, then `Restore` for
// each name and tier in any order. Names and marks come over a network or from a disk:
// contradictions are refused with INVALID_ARGUMENT, and bounds hold as for stores.

// Visits every name with the parent and local hash that the writer keeps for its block. The
// writer's blocks are copied and sorted once: O(B log B) for B blocks, and 24 bytes each while it
// runs. Blocks that are pending have no parent here: to be called between batches.
void EngineRank::ForEachAlias(const std::function<void(const EngineAlias&)>& visit) const {
  struct Held {
    SequenceHash block, parent;
    LocalHash local;
  };
  std::vector<Held> blocks;  // in order
  writer_->ForEachHeld([&](SequenceHash block, SequenceHash parent, LocalHash local) {
    blocks.push_back({block, parent, local});
  });
  const auto before = [](const Held& a, const Held& b) { return Raw(a.block) < Raw(b.block); };
  std::sort(blocks.begin(), blocks.end(), before);
  for (const Group& group : groups_) {
    for (const std::unique_ptr<AliasTable>& table : group.tables) {
      table->ForEach([&](const EngineBlockHash& name, size_t slot) {
        const BlockPlace place = table->place(slot);
        const Space& space = spaces_.at(place.space);
        EngineAlias alias{.rank = rank_,
                          .group = group.id,
                          .hash = name,
                          .block = place.block,
                          .position = place.position,
                          .eagle = space.eagle,
                          .lora_name = space.lora_name,
                          .cache_salt = space.cache_salt};
        alias.side = !group.main;
        const auto found =
            alias.side ? blocks.end()
                       : std::lower_bound(blocks.begin(), blocks.end(),
                                          Held{place.block, kNoParent, LocalHash{0}}, before);
        if (found != blocks.end() && found->block == place.block) {
          alias.parent = found->parent;
          alias.local = found->local;
        }
        const TierCopies copies = table->copies(slot);
        const TierCopies certain = table->certain(slot);
        for (int tier = 0; tier < kTiers; ++tier) {
          alias.copies[tier] = copies[tier];
          if (loss_ != Loss::kNone && copies[tier] != certain[tier]) alias.suspect = true;
        }
        alias.lasting = alias.suspect && gaps_ == 0 && !final_ && loss_ == Loss::kWaiting;
        visit(alias);
      });
    }
  }
}

// The rank's state beside its names. The first mark has everything but long lists; each further one
// repeats it with the next names of a list, so that the reader merges marks in any order.
void EngineRank::Mark(const std::function<void(EngineRankMark)>& visit) const {
  EngineRankMark mark;
  mark.extras_seen = extras_seen_ || missed_;
  mark.chunk_blocks = chunk_blocks_ > 1 ? chunk_blocks_ : 0;
  mark.silent = silent_;
  mark.zero_named = zero_named_;
  mark.given_up = given_up_ || final_;
  mark.has_main = HasMain();
  mark.side_unknown = side_unknown_;
  for (size_t side = 1; side <= sides_.size(); ++side)
    for (const Group& group : groups_)
      if (group.side == side) mark.sides.emplace_back(group.id, sides_[side - 1].of);
  for (int tier = 0; tier < kTiers; ++tier)
    for (size_t group = 0; group < groups_.size(); ++group)
      if (required_[tier] >> group & 1) mark.required[tier].push_back(groups_[group].id);
  // Long lists are split over several marks of bounded size.
  const auto flush_if_full = [&](size_t names) {
    if (names < kNamesPerMark) return;
    visit(mark);
    mark.ambiguous.clear();
    mark.side_links.clear();
    mark.shared_sides.clear();
  };
  for (const std::string& key : ambiguous_) {
    mark.ambiguous.emplace_back(groups_[GroupOfKey(key)].id, NameOfKey(key));
    flush_if_full(mark.ambiguous.size());
  }
  for (const auto& [key, before] : links_) {
    mark.side_links.push_back({.group = groups_[GroupOfKey(key)].id,
                               .name = NameOfKey(key),
                               .before = NameOfKey(before)});
    flush_if_full(mark.side_links.size());
  }
  for (const auto& [key, others] : more_names_) {
    for (const SequenceHash other : others)
      mark.shared_sides.push_back(
          {.group = groups_[GroupOfKey(key)].id, .name = NameOfKey(key), .side_name = other});
    flush_if_full(mark.shared_sides.size());
  }
  visit(std::move(mark));
}

// Merges a mark into the rank: flags are or-ed, so that several marks and their order do not
// matter. Without any mark the rank assumes that it saw salts and objects (`marked_`, `Restore`).
absl::Status EngineRank::RestoreMark(const EngineRankMark& mark) {
  if (!std::exchange(marked_, true)) extras_seen_ = false;
  extras_seen_ = extras_seen_ || mark.extras_seen;
  zero_named_ = zero_named_ || mark.zero_named;
  given_up_ = given_up_ || mark.given_up;
  side_unknown_ = side_unknown_ || mark.side_unknown;
  silent_ = silent_ | mark.silent;
  UpdateTrust();
  NoteChunk(mark.chunk_blocks);
  for (const auto& [id, side] : mark.sides) {
    if (side.kind == CacheKind::kFull || side.block_size == 0)
      return absl::InvalidArgumentError("a side group that is none");
    if (!Learn(id, {.role = Role::kSide, .side = side}))
      return absl::InvalidArgumentError("too many groups");
    const std::optional<size_t> group = GroupOf(id, /*make=*/true);
    if (!group.has_value()) return absl::InvalidArgumentError("too many groups");
    if (mark.has_main) {
      groups_[*group].main = false;
      UpdateLayout();
    }
  }
  for (int tier = 0; tier < kTiers; ++tier) {
    for (uint32_t id : mark.required[tier]) {
      const std::optional<size_t> group = GroupOf(id, /*make=*/true);
      if (!group.has_value()) return absl::InvalidArgumentError("too many groups");
      if (kinds_.size() < kKindsMax) kinds_.try_emplace(id, Kind{});
      Require(*group, static_cast<Tier>(tier));
    }
  }
  for (const auto& [id, name] : mark.ambiguous) {
    const std::optional<size_t> group = GroupOf(id, /*make=*/true);
    if (!group.has_value()) return absl::InvalidArgumentError("too many groups");
    if (name.bytes.size() > kEngineHashBytesMax)
      return absl::InvalidArgumentError("a name is too long");
    if (ambiguous_.size() < kAmbiguousMax) ambiguous_.insert(ParkedName(*group, name));
  }
  return RestoreInner(mark);
}

// The part of a mark about side blocks inside main blocks. REQUIRES: no names yet, so that nothing
// is joined before it is all there.
absl::Status EngineRank::RestoreInner(const EngineRankMark& mark) {
  const auto side_group = [&](uint32_t id, const EngineBlockHash& name) -> std::optional<size_t> {
    const std::optional<size_t> group = GroupOf(id, /*make=*/false);
    if (!group.has_value() || groups_[*group].side == 0 || groups_[*group].main ||
        name.bytes.size() > kEngineHashBytesMax)
      return std::nullopt;
    return group;
  };
  for (const EngineRankMark::SideLink& link : mark.side_links) {
    const std::optional<size_t> group = side_group(link.group, link.name);
    if (!group.has_value() || link.before.bytes.size() > kEngineHashBytesMax)
      return absl::InvalidArgumentError("a block inside a main block of no side class");
    Link(*group, link.before, link.name);
  }
  for (const EngineRankMark::SharedSide& shared : mark.shared_sides) {
    const std::optional<size_t> group = side_group(shared.group, shared.name);
    if (!group.has_value())
      return absl::InvalidArgumentError("a block inside a main block of no side class");
    const std::string key = ParkedName(*group, shared.name);
    if (more_names_.size() >= options_.orphan_blocks_max && !more_names_.contains(key)) {
      side_unknown_ = true;
      UpdateTrust();
      continue;
    }
    std::vector<SequenceHash>& others = more_names_[key];
    if (others.size() < kNamesPerBlockMax) others.push_back(shared.side_name);
  }
  return absl::OkStatus();
}

// Puts back one name with its copies.
//
// 1. Check it. No block of a refused entry is kept.
// 2. A name that was restored for other tiers keeps these: only tiers that are new count.
// 3. Its namespace is interned and pinned. Without room the name is shed, which is no error.
// 4. `Place` or `StoreSide` counts the copies as a store does, so that the writer hears of them.
// 5. The certain copies of a suspect name are set back to what they were before this entry.
absl::Status EngineRank::Restore(const EngineAlias& alias, bool more) {
  TierCopies copies = {};
  for (int tier = 0; tier < kTiers; ++tier)
    copies[tier] = static_cast<uint16_t>(std::min<uint32_t>(alias.copies[tier], 0xffff));
  if (copies == TierCopies{}) return absl::InvalidArgumentError("a name without copies");
  if (alias.position == 0 && alias.parent != kNoParent)
    return absl::InvalidArgumentError("a first block with a parent");
  if (alias.hash.bytes.size() > kEngineHashBytesMax)
    return absl::InvalidArgumentError("a name is too long");
  if (alias.eagle > kLookAheadMax) return absl::InvalidArgumentError("looks ahead too far");
  if (std::max(alias.lora_name.size(), alias.cache_salt.size()) > kEngineTextBytesMax)
    return absl::InvalidArgumentError("an adapter's name or a salt is too long");
  const std::optional<size_t> group = GroupOf(alias.group, /*make=*/true);
  if (!group.has_value()) return absl::InvalidArgumentError("too many groups");
  // Removals do not say of what kind their group is; side groups were named before.
  if (kinds_.size() < kKindsMax) kinds_.try_emplace(alias.group, Kind{});
  if (alias.side != !groups_[*group].main)
    return absl::InvalidArgumentError("a name of another class than its group");
  AliasTable* const table = TableFor(*group, alias.hash);
  if (table == nullptr) return absl::InvalidArgumentError("names of too many lengths");
  TierCopies certain = {};
  if (const size_t slot = table->Find(alias.hash); slot != AliasTable::kNone) {
    if (table->block(slot) != alias.block)
      return absl::InvalidArgumentError("a name for two blocks");
    for (int tier = 0; tier < kTiers; ++tier)
      if (table->tiers(slot).Has(static_cast<Tier>(tier))) copies[tier] = 0;
    if (copies == TierCopies{}) return absl::InvalidArgumentError("a name for the second time");
    certain = table->certain(slot);
  }
  const std::optional<uint32_t> space = SpaceOf(alias.lora_name, alias.cache_salt, alias.eagle, 1);
  if (!space.has_value()) return absl::OkStatus();  // shed, as if it were stored
  const Namespaces::Pin pin(&spaces_, *space);
  const BlockPlace place{alias.block, alias.position, *space};
  if (alias.side) RestoreSide(*group, alias.hash, place);
  if (alias.eagle != 0) look_aheads_ |= 1u << alias.eagle;
  // A name does not tell whether objects were in use: a source that gave no mark may have had some.
  if (!alias.cache_salt.empty() || !marked_) extras_seen_ = true;
  if (alias
          .suspect) {  // it alone: what came before stays as certain as it was; time counts from the next tick
    if (loss_ == Loss::kNone) loss_ = Loss::kWaiting;
    (alias.lasting ? lasting_ : final_) = true;
    given_up_ = given_up_ || alias.lasting;
    UpdateTrust();
  }
  std::optional<LocalHash> local;
  if (Raw(alias.local) != 0) local = alias.local;
  // Copies that are restored are no stores of this process: the counter stays.
  const uint64_t copies_before = counters_->copies;
  for (int tier = 0; tier < kTiers; ++tier) {
    if (copies[tier] == 0) continue;
    const Tier of = static_cast<Tier>(tier);
    const auto as = options_.counts_copies && !Ages(of) ? AliasTable::Copies::kOneMore
                                                        : AliasTable::Copies::kSome;
    if (!alias.side) Place(*group, alias.hash, place, alias.parent, local, of, copies[tier], as);
    for (uint32_t i = 0; alias.side && i < copies[tier]; ++i) StoreSide(*group, alias.hash, of, as);
  }
  counters_->copies = copies_before;
  if (pages_.on() && !alias.side) pages_.Restored(alias.hash, alias.block, IsPlain(*space));
  if (alias.suspect) {
    const size_t slot = table->Find(alias.hash);
    table->Restore(slot, table->copies(slot), certain);
  }
  LinkAll();
  if (!more) Flush();
  return absl::OkStatus();
}

}  // namespace kvatlas
