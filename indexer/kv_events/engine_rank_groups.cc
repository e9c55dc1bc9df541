// Blocks of side classes (windows, states, chunks):
//
//   1. `Learn` (engine_rank.cc) notes of which class a group is as its stores come; `LearnMain`
//      looks ahead in the batch for the main group, so that no side group stands for it meanwhile.
//   2. `ApplySideStored` counts copies under the engine's name. The name is that of the main block
//      that ends at the same token, so a main block of that name gives it its side name (`Join`):
//      now, or when it comes (`JoinSides`).
//   3. A side block that ends inside a main block has no such twin. Its name is linked to the one
//      behind it in the event (`Link`), and gets a side name by counting back from the next one
//      that has a twin (`JoinInner`).
//   4. When every group of the class has the name, the block is passed on (`SideHeld`).
//   5. A removal takes the copies of the name; the last one ends in `SideUnheld`.
//
// A name keeps its side name when the main block goes: if that comes back, the side block counts
// again.
//
// *Limits* (too little, never too much): a block inside a main block that several chains share
// counts, after its eviction, for the chains that announce it again; where EAGLE drops blocks and
// events are not dense, blocks inside main blocks are unknown.
//
// Without any main group the side groups stand for the main class (`Group::main` too): their tokens
// place them.

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/kv_events/engine_rank.h"
#include "indexer/kv_events/engine_tier.h"

namespace kvatlas {
namespace {

// Group numbers for SGLang's components: no engine uses such numbers.
constexpr uint32_t kWindowComponent = 0xfffffff0;
constexpr uint32_t kStateComponent = 0xfffffff1;

constexpr size_t kAhead = 32;  // names that are loaded together

}  // namespace

// ---- Which class a group is of ----

bool EngineRank::AnyMainGroup() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return group.main && group.side == 0; });
}

// An engine that names no groups has full attention alone.
bool EngineRank::HasMain() const {
  return AnyMainGroup() || std::none_of(groups_.begin(), groups_.end(),
                                        [](const Group& group) { return group.side != 0; });
}

// Called for every event of a batch before the first one applies, while no main group is known
// (`NeedsMain`). Events that `Admit` would refuse teach nothing.
void EngineRank::LearnMain(const EngineEvent& event) {
  if (event.kind != EngineEvent::Kind::kStored || !event.group.has_value() ||
      !IsMainAttention(event.spec_kind) || AnyMainGroup())
    return;
  const bool ours = !OwnershipRefusal(event.ownership) && !LocalityRefusal(event.locality) &&
                    TierOfMedium(event.medium).has_value();
  if (ours && Learn(*event.group, Kind{})) GroupOf(event.group, /*make=*/true);
}

// Makes a group a side group of class `of`, which may have other groups already. REQUIRES: the
// group has no names.
//
// A block of the class needs every group of it. The new group has none: all that the class holds is
// removed from the index first, while `HeldByClass` still ignores the new group. Beyond
// `kSideClassesMax` classes the group is of no class: its events have no effect, and the rank is
// degraded.
void EngineRank::MakeSide(size_t group, const CacheClass& of) {
  size_t side = 0;
  while (side < sides_.size() && !(sides_[side].of == of)) ++side;
  if (side == sides_.size()) {
    if (side == kSideClassesMax) {
      side_unknown_ = true;
      groups_[group].main = false;
      return UpdateTrust();
    }
    sides_.push_back({.of = of, .tag = SideTag(of), .groups = 0});
  }
  // Blocks that the class holds lack this group.
  FlushSides();
  for (size_t other = 0; other < groups_.size(); ++other) {
    if (groups_[other].side != side + 1) continue;
    for (const std::unique_ptr<AliasTable>& table : groups_[other].tables)
      table->ForEach([&](const EngineBlockHash& name, size_t slot) {
        for (int tier = 0; tier < kTiers; ++tier)
          if (table->tiers(slot).Has(static_cast<Tier>(tier)))
            SideUnheld(other, name, table->place(slot), static_cast<Tier>(tier));
      });
  }
  groups_[group].main = false;
  const bool has_main = AnyMainGroup();
  sides_[side].groups |= 1u << group;
  groups_[group].side = side + 1;
  // Its tokens can place it only where its blocks are the domain's.
  groups_[group].main = !has_main && of.block_size == options_.block_size;
  if (of.window_tokens == kWholePrefix) side_unknown_ = true;
  UpdateLayout();
  UpdateTrust();
}

// A main group is known now, or a side group's tokens do not place its blocks: side groups that
// stood for the main class stop doing so. Their places change from those of main blocks to side
// names; copies stay. Parked blocks of the group go: they wait for parents by the rules of main
// blocks. `Unrequire` clears the tiers and passes side blocks on again.
void EngineRank::DemoteSides() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (group.side == 0 || !group.main) continue;
    for (const std::unique_ptr<AliasTable>& table : group.tables) {
      table->ForEach([&](const EngineBlockHash&, size_t slot) {
        BlockPlace place = table->place(slot);
        place.block = SideName(sides_[group.side - 1].tag, place.block);
        table->SetPlace(slot, place);
      });
    }
    group.main = false;
    parked_.DropGroup(g);
    Unrequire(g);
  }
}

// Tells the writer which classes the rank's cache has. The writer has to know a class before the
// first event that names a block of it, and all that is pending was made under the old layout:
// hence the flush before the change.
void EngineRank::UpdateLayout() {
  CacheLayout layout;
  layout.has_main = HasMain();
  const auto drops = [&](uint32_t groups) {
    if (!options_.drops_last.has_value()) return false;
    if (options_.drops_last->empty()) return true;
    for (uint32_t id : *options_.drops_last)
      for (size_t g = 0; g < groups_.size(); ++g)
        if ((groups >> g & 1) != 0 && groups_[g].id == id) return true;
    return false;
  };
  uint32_t main_groups = 0;
  for (size_t g = 0; g < groups_.size(); ++g)
    if (groups_[g].main && groups_[g].side == 0) main_groups |= 1u << g;
  if (layout.has_main)
    layout.main = {.kind = CacheKind::kFull,
                   .block_size = options_.block_size,
                   .window_tokens = chunk_blocks_ > 1 ? chunk_blocks_ * options_.block_size : 0,
                   .drops_last = drops(main_groups)};
  for (const Side& side : sides_) {
    if (side.groups == 0) continue;
    layout.sides.push_back(side.of);
    layout.sides.back().drops_last = drops(side.groups);
  }
  if (layout.plain()) layout = {};
  if (layout == layout_) return;
  Flush();
  layout_ = layout;
  writer_->SetLayout(layout_);
}

// ---- Stored ----

// Step 2 of the list above. `blocks` leading names are all different. Events of side groups need no
// tokens: names place blocks, and tokens only tell that names follow one another without a gap.
void EngineRank::ApplySideStored(const EngineEvent& event, size_t group, Tier tier, size_t blocks) {
  // An engine that reports hits announces whole prefixes, whose window blocks it need not have; it
  // does so from the start.
  if (!options_.counts_copies && !event.parent.has_value()) {
    side_unknown_ = true;
    UpdateTrust();
    return Refuse(Refusal::kNotDense, blocks, "a side group's prefix may be a report of hits");
  }
  const Side& side = sides_[groups_[group].side - 1];
  const uint64_t common = std::lcm(uint64_t{side.of.block_size}, uint64_t{options_.block_size});
  // Blocks of the class end inside main blocks where its size is no multiple of the domain's.
  // States do not count there: only one that ends with a main block can be reused.
  const bool has_inner =
      common != side.of.block_size && side.of.kind != CacheKind::kState && HasMain();
  const bool dense = event.tokens.size() == event.hashes.size() * side.of.block_size;
  const bool offsets = event.block_offsets.size() == event.hashes.size();
  // Runs that an engine keeps of a window end where its classes' boundaries do, so that the names
  // before a twin are the blocks before it. A class that drops its last block keeps runs that end
  // one block behind.
  const bool ends_on_twins = !options_.drops_last.has_value();
  const AliasTable::Copies copies = CopiesOf(event, tier);
  bool taken = false;
  for (size_t i = 0; i < blocks; ++i) {
    const EngineBlockHash& name = event.hashes[i];
    if (i % kAhead == 0) {
      const auto names = event.hashes.subspan(i, std::min(kAhead, blocks - i));
      PrefetchNames(group, names);
      PrefetchNames(0, names);  // of the main blocks
    }
    if (has_inner) {
      const bool follows =
          i > 0 && (dense || (offsets ? event.block_offsets[i] == event.block_offsets[i - 1] + 1
                                      : ends_on_twins));
      if (follows) Link(group, event.hashes[i - 1], name);
      if (i == 0 && event.parent.has_value() && (dense || (offsets && event.block_offsets[0] == 0)))
        Link(group, *event.parent, name);
      if (i > 0 && !follows && !side_unknown_) {
        side_unknown_ = true;
        UpdateTrust();
      }
    }
    taken = StoreSide(group, name, tier, copies) || taken;
  }
  // Links of this event exist now: twins that were placed before can name the blocks before them.
  if (has_inner && !links_.empty()) {
    for (size_t i = 0; i < blocks; ++i)
      if (const auto main = FindPlace(0, event.hashes[i])) JoinInner(group, event.hashes[i], *main);
  }
  counters_->stores += taken;
}

// Counts a copy of a side block. A new name joins its main block if that is known, else it waits
// unjoined (block 0), at most `orphan_blocks_max` such names a rank. False: refused.
bool EngineRank::StoreSide(size_t group, const EngineBlockHash& name, Tier tier,
                           AliasTable::Copies copies) {
  AliasTable* const table = TableFor(group, name);
  if (table == nullptr) {
    Refuse(Refusal::kTooLarge, 1, "names of too many lengths");
    return false;
  }
  size_t slot = table->Find(name);
  if (slot == AliasTable::kNone) {
    std::optional<BlockPlace> place = JoinedPlace(group, name);
    if (!place.has_value()) {
      if (unjoined_ >= options_.orphan_blocks_max) {
        side_unknown_ = true;
        UpdateTrust();
        Refuse(Refusal::kOrphanDropped, 1, "too many side blocks wait for their main block");
        return false;
      }
      ++unjoined_;
      place = BlockPlace{.block = SequenceHash{0}, .position = 0, .space = 0};
    }
    bool inserted;
    slot = table->FindOrInsert(name, *place, &inserted);
    spaces_.Count(place->space);
  }
  const bool first = table->Store(slot, tier, copies);
  counters_->copies += !first;
  if (first) SideHeld(group, name, table->place(slot), tier);
  return true;
}

// Inserts a side name as another process had it, joined or not; its copies follow with `StoreSide`.
void EngineRank::RestoreSide(size_t group, const EngineBlockHash& name, const BlockPlace& place) {
  AliasTable* const table = TableFor(group, name);
  if (table == nullptr || table->Find(name) != AliasTable::kNone) return;
  bool inserted;
  table->FindOrInsert(name, place, &inserted);
  spaces_.Count(place.space);
  if (Raw(place.block) == 0) ++unjoined_;
}

// SGLang's components of the blocks of an event (`EngineEvent::components`). Window and state get a
// group of their own, made at the first event that names them. A snapshot says everything that is
// resident of each block: a component that it does not name is gone, whatever its copies. False:
// the event says nothing of the main class, and is done.
bool EngineRank::ApplyComponents(const EngineEvent& event, Tier tier) {
  const bool whole = event.component_form == ComponentForm::kSnapshot;
  if (!GroupOf(event.group, /*make=*/true).has_value()) return false;  // the main one, first
  for (const auto& [bit, id] :
       {std::pair(kComponentSwa, kWindowComponent), std::pair(kComponentMamba, kStateComponent)}) {
    const bool has = (event.components & bit) != 0;
    if (!has && !whole) continue;
    const bool known = GroupOf(id, /*make=*/false).has_value();
    if (!has && !known) continue;
    CacheClass of{.kind = bit == kComponentSwa ? CacheKind::kWindow : CacheKind::kState,
                  .block_size = options_.block_size};
    if (bit == kComponentSwa)
      of.window_tokens = options_.window_tokens == 0 ? kWholePrefix : options_.window_tokens;
    if (!known && !Learn(id, {.role = Role::kSide, .side = of})) continue;
    const std::optional<size_t> group = GroupOf(id, /*make=*/true);
    if (!group.has_value()) continue;
    const bool stores = event.kind == EngineEvent::Kind::kStored && has;
    for (const EngineBlockHash& name : event.hashes) {
      AliasTable* const table = TableFor(*group, name);
      const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
      const bool held = slot != AliasTable::kNone && table->tiers(slot).Has(tier);
      if (stores && !held) StoreSide(*group, name, tier, AliasTable::Copies::kSome);
      // A snapshot that does not name the component, or a removal: all copies go.
      while (!stores && RemoveOne(*group, name, tier)) {
      }
    }
  }
  return (event.components & kComponentFull) != 0 ||
         (whole && (event.components == 0 || event.kind == EngineEvent::Kind::kRemoved));
}

// ---- Names ----

// The place of a side name: its twin's end, counted in blocks of the class. Nothing: no main block
// has the name, or the twin's end is no end of a block of the class.
std::optional<BlockPlace> EngineRank::JoinedPlace(size_t group, const EngineBlockHash& name) const {
  const std::optional<BlockPlace> main = FindPlace(0, name);
  const Side& side = sides_[groups_[group].side - 1];
  if (!main.has_value()) {
    // The main block is gone. Another group of the class has the name joined, and equal classes
    // give equal side names.
    uint32_t others = side.groups & ~(1u << group);
    for (size_t other = 0; others != 0; ++other, others >>= 1) {
      if ((others & 1) == 0 || groups_[other].main) continue;
      const AliasTable* const table = Table(other, name.bytes.size());
      const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
      if (slot != AliasTable::kNone && Raw(table->block(slot)) != 0) return table->place(slot);
    }
    return std::nullopt;
  }
  const uint64_t end = (uint64_t{main->position} + 1) * options_.block_size;
  // A state may end inside a block of its class (fine-grained hits); `EndsEvery` says where such
  // states count.
  if (side.of.kind != CacheKind::kState && end % side.of.block_size != 0) return std::nullopt;
  return BlockPlace{.block = SideName(side.tag, main->block),
                    .position = static_cast<Position>((end - 1) / side.of.block_size),
                    .space = main->space};
}

// A main block has this name now: each side group that has the name waiting joins it, and blocks
// inside the main block are named from there.
void EngineRank::JoinSides(const EngineBlockHash& name, const BlockPlace& main) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].side == 0 || groups_[group].main) continue;
    const AliasTable* const table = Table(group, name.bytes.size());
    const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
    if (slot == AliasTable::kNone) continue;
    if (Raw(table->block(slot)) == 0)
      if (const auto place = JoinedPlace(group, name)) Join(group, name, *place);
    if (!links_.empty()) JoinInner(group, name, main);
  }
}

void EngineRank::Join(size_t group, const EngineBlockHash& name, const BlockPlace& place) {
  AliasTable* const table = Table(group, name.bytes.size());
  const size_t slot = table->Find(name);
  const uint32_t old_space = table->place(slot).space;
  table->SetPlace(slot, place);
  spaces_.Count(place.space);
  spaces_.Discount(old_space);
  --unjoined_;
  const TierMask tiers = table->tiers(slot);
  for (int tier = 0; tier < kTiers; ++tier)
    if (tiers.Has(static_cast<Tier>(tier))) SideHeld(group, name, place, static_cast<Tier>(tier));
}

// Notes that `before` is the side block before `name`. One link a name, the last one counts; at
// most `orphan_blocks_max`, beyond which blocks are missing and the rank is degraded.
void EngineRank::Link(size_t group, const EngineBlockHash& before, const EngineBlockHash& name) {
  if (links_.size() >= options_.orphan_blocks_max) {
    side_unknown_ = true;
    return UpdateTrust();
  }
  links_[ParkedName(group, name)] = ParkedName(group, before);
}

// Walks back from a name that has a twin over names that have none, and gives each its side name:
// the twin and the tokens between its end and theirs. It stops at the next common end of the two
// block sizes, where a name has a twin of its own. Links that were walked are done and erased.
//
// Two chains can share an inner block and continue differently behind it: then it has a name from
// each twin. The first is its place, others are kept in `more_names_`, at most `kNamesPerBlockMax`,
// and passed on and removed together with it.
void EngineRank::JoinInner(size_t group, const EngineBlockHash& name, const BlockPlace& main) {
  const Side& side = sides_[groups_[group].side - 1];
  const uint64_t end = (uint64_t{main.position} + 1) * options_.block_size;
  if (end % side.of.block_size != 0) return;
  const uint64_t common = std::lcm(uint64_t{side.of.block_size}, uint64_t{options_.block_size});
  std::string key = ParkedName(group, name);
  for (uint64_t back = side.of.block_size; back < common && back < end;
       back += side.of.block_size) {
    const auto link = links_.find(key);
    if (link == links_.end()) return;
    std::string before = std::move(link->second);
    links_.erase(link);
    const EngineBlockHash inner = NameOfKey(before);
    const AliasTable* const table = Table(group, inner.bytes.size());
    const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(inner);
    if (slot == AliasTable::kNone) return;
    const BlockPlace place{.block = SideName(side.tag, main.block, static_cast<uint32_t>(back)),
                           .position = static_cast<Position>((end - back) / side.of.block_size - 1),
                           .space = main.space};
    const BlockPlace old = table->place(slot);
    if (Raw(old.block) == 0) {
      Join(group, inner, place);
    } else if (old.block != place.block) {
      // Another chain shares the block: its tiers are passed on under the second name, too.
      std::vector<SequenceHash>& others = more_names_[before];
      if (others.size() < kNamesPerBlockMax &&
          std::find(others.begin(), others.end(), place.block) == others.end()) {
        others.push_back(place.block);
        const TierMask tiers = table->tiers(slot);
        for (int tier = 0; tier < kTiers; ++tier)
          if (tiers.Has(static_cast<Tier>(tier)) &&
              HeldByClass(group, inner, static_cast<Tier>(tier)))
            PassSide(true, groups_[group].side, static_cast<Tier>(tier), place.block);
      }
    }
    key = std::move(before);
  }
  // The name before has a twin of its own.
  links_.erase(key);
}

// `name` means another main block now, so that side names made from the old one are wrong. Names
// that were not joined stay: they wait for whatever main block has the name.
void EngineRank::DropSideNames(const EngineBlockHash& name) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].side == 0 || groups_[group].main) continue;
    AliasTable* const table = Table(group, name.bytes.size());
    const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
    if (slot == AliasTable::kNone || Raw(table->block(slot)) == 0) continue;
    const BlockPlace place = table->place(slot);
    const TierMask tiers = table->tiers(slot);
    for (int tier = 0; tier < kTiers; ++tier)
      if (tiers.Has(static_cast<Tier>(tier)))
        SideUnheld(group, name, place, static_cast<Tier>(tier));
    EraseName(group, table, table->Find(name));
  }
}

// Bookkeeping for a name that has just left its table: its namespace, the block before it, its
// links and second names. Called once per erased name, with the place it had.
void EngineRank::NoteErased(size_t group, const EngineBlockHash& name, const BlockPlace& place) {
  spaces_.Discount(place.space);
  if (!before_.empty()) before_.erase(place.block);
  if (groups_[group].side == 0 || groups_[group].main) return;
  if (Raw(place.block) == 0) --unjoined_;
  if (links_.empty() && more_names_.empty()) return;
  const std::string key = ParkedName(group, name);
  links_.erase(key);
  more_names_.erase(key);
}

// ---- What is held ----

// The name by which the index knows the side block. A group that stands for the main class has
// places of main blocks, of which the side name is made here.
SequenceHash EngineRank::SideNameOf(size_t group, const BlockPlace& place) const {
  const Group& of = groups_[group];
  return of.main ? SideName(sides_[of.side - 1].tag, place.block) : place.block;
}

// As `HeldByOthers`, for the other groups of the group's side class.
bool EngineRank::HeldByClass(size_t group, const EngineBlockHash& name, Tier tier) const {
  uint32_t others = sides_[groups_[group].side - 1].groups & ~(1u << group);
  for (size_t other = 0; others != 0; ++other, others >>= 1) {
    if ((others & 1) == 0) continue;
    const AliasTable* const table = Table(other, name.bytes.size());
    const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
    if (slot == AliasTable::kNone || !table->tiers(slot).Has(tier)) return false;
  }
  return true;
}

// The first copy of a joined name in a tier: passed on if every group of the class has it, under
// all its names.
void EngineRank::SideHeld(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                          Tier tier) {
  if (Raw(place.block) == 0 || !HeldByClass(group, name, tier)) return;
  PassSide(true, groups_[group].side, tier, SideNameOf(group, place));
  if (more_names_.empty()) return;
  if (const auto more = more_names_.find(ParkedName(group, name)); more != more_names_.end())
    for (SequenceHash other : more->second) PassSide(true, groups_[group].side, tier, other);
}

void EngineRank::SideUnheld(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                            Tier tier) {
  if (Raw(place.block) == 0 || !HeldByClass(group, name, tier)) return;
  PassSide(false, groups_[group].side, tier, SideNameOf(group, place));
  if (more_names_.empty()) return;
  if (const auto more = more_names_.find(ParkedName(group, name)); more != more_names_.end())
    for (SequenceHash other : more->second) PassSide(false, groups_[group].side, tier, other);
}

// Side blocks wait apart from main ones: the writer takes them without saying what changed, so that
// they need none of `FlushMain`'s counting.
void EngineRank::PassSide(bool stored, size_t side, Tier tier, SequenceHash name) {
  const SideClass number = static_cast<SideClass>(side);
  stored ? side_pending_.StoreSide(tier, number, name) : side_pending_.Remove(tier, number, name);
  if (side_pending_.blocks() >= kBatchBlocksMax) FlushSides();
}

// As `FlushMain`. Only a refused store matters: it is shed, and offered again by `Heal`.
void EngineRank::FlushSides() {
  for (std::span<const Event> left = side_pending_.events(); !left.empty();) {
    const Applied applied = writer_->Apply(left);
    const Event& last = left[applied.events - 1];
    left = left.subspan(applied.events);
    if (applied.status.ok() || !std::holds_alternative<Stored>(last)) continue;
    Refuse(Refusal::kShed, BlockCount(last), std::string(applied.status.message()));
    shed_ = healing_.shed = true;
    UpdateTrust();
  }
  side_pending_.Clear();
}

// `SendCleared` has emptied a tier for the main class's sake, side blocks included: they are passed
// on again. O(names of side groups).
void EngineRank::ResendSides(Tier tier) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].side == 0) continue;
    for (const std::unique_ptr<AliasTable>& table : groups_[group].tables)
      table->ForEach([&](const EngineBlockHash& name, size_t slot) {
        if (table->tiers(slot).Has(tier)) SideHeld(group, name, table->place(slot), tier);
      });
  }
}

}  // namespace kvatlas
