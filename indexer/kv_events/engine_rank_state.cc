// What happens to a rank as a whole: clears, restarts, losses, time, and its names put down and
// taken up again.

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

constexpr size_t kDropSlotsPerTick = 1 << 17;
constexpr size_t kHealSlotsPerTick = 1 << 14;
constexpr size_t kNamesPerMark = 256;

// Of a healthy engine.
bool IsUsual(Refusal refusal) {
  return refusal == Refusal::kUnknownRemoved || refusal == Refusal::kNotMainAttention ||
         refusal == Refusal::kPartBlock || refusal == Refusal::kIgnoredEvent ||
         refusal == Refusal::kRemoteLocality;
}

}  // namespace

void EngineRank::Refuse(Refusal refusal, uint64_t count, const std::string& detail) {
  if (count == 0) return;
  uint64_t& refused = counters_->refused[static_cast<size_t>(refusal)];
  const uint64_t before = std::exchange(refused, refused + count);
  // Words and log lines ever more rarely.
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

void EngineRank::UpdateTrust() {
  // A hybrid model's first events may be of its main class alone: so far what that holds is an
  // upper bound.
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
  // What was not known is gone with the rest; a window whose size is not known stays so.
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
  SendCleared(tier);
}

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
  missed_ = true;
  // A loss during another does not give the first one more time.
  if (kind != LossKind::kUnknown && !deadline_.has_value())
    deadline_ = now + options_.repair_timeout;
  settle_at_ = now + options_.repair_timeout;
  loss_ = Loss::kWaiting;
  UpdateTrust();
}

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

// What no time drops goes by and by, or is said again: then nothing is in doubt any more.
void EngineRank::SettleIfCertain(Time now) {
  if (now < settle_at_) return;
  settle_at_ = now + options_.repair_timeout;
  if (AnyUnconfirmed()) return;
  lasting_ = false;
  loss_ = Loss::kNone;
  UpdateTrust();
}

// True: through.
bool EngineRank::DropUnconfirmed(size_t slots) {
  std::string memory;
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (const std::unique_ptr<AliasTable>& table : groups_[group].tables) {
      const bool through =
          table->DropUnconfirmed(slots, [&](size_t slot, TierMask dropped, bool erased) {
            const EngineBlockHash name = table->NameAt(slot, &memory);
            const BlockPlace place = table->place(slot);
            for (int tier = 0; tier < kTiers; ++tier)
              if (dropped.Has(static_cast<Tier>(tier)))
                Left(group, name, place, static_cast<Tier>(tier));
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

void EngineRank::Tick(Time now) {
  now_ = now;
  Flush();  // names that were restored
  DropOld();
  const size_t expired = parked_.DropExpired(now);
  Refuse(Refusal::kOrphanDropped, expired, "waited too long");
  if (loss_ == Loss::kWaiting) {
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

// A round that goes through shows that nothing is missing. It stops where there is still no room.
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

// ---- Names put down and taken up again ----

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
  // In several marks, so that each is of bounded size.
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

// REQUIRES: no names yet, so that nothing is joined before it is all there.
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
  // Objects cannot be told from a name: who did not say that there were none may have had some.
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
