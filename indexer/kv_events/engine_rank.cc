// Events of one rank: which are accepted, where their blocks go, and which blocks leave. The rest
// of the class is in `engine_rank_blocks.cc` (names, blocks and the hand-over to the writer),
// `engine_rank_groups.cc` (side classes), `engine_rank_chunks.cc` (chunks of connectors),
// `engine_rank_age.cc` (tiers without removals) and `engine_rank_state.cc` (clears, losses, ticks,
// restore).
//
// `ApplyStored` and `ApplyRemoved` describe the two paths through these files step by step.

#include "indexer/kv_events/engine_rank.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/kv_events/engine_tier.h"

namespace kvatlas {
namespace {

// Look-ups wait for memory, not for the processor: names are prefetched in lots, so that their
// cache misses overlap. An event with few names is prefetched with other events of the batch
// (`Prefetch`), a longer one by the function that walks it.
constexpr size_t kAhead = 32;    // names that are loaded together
constexpr size_t kFewNames = 8;  // of an event, are loaded with those of other events

// The beginning of a text of an event, for messages about it.
std::string Text(std::string_view text) { return std::string(text.substr(0, 64)); }

}  // namespace

EngineRank::EngineRank(const EngineWorkerOptions& options, uint32_t rank,
                       std::shared_ptr<HoldingsWriter> writer, EngineWorkerStats* counters,
                       EngineScratch* scratch)
    : options_(options),
      rank_(rank),
      writer_(std::move(writer)),
      counters_(counters),
      spaces_(options.contract, options.lora_name, options.additional_salt,
              options.namespace_bytes_max, options.memory),
      parked_(options.orphan_blocks_max, options.orphan_bytes_max, options.orphan_ttl,
              options.memory),
      told_chunk_blocks_(options.block_size == 0
                             ? 1
                             : std::max(1u, options.offload_chunk_tokens / options.block_size)),
      silent_(options.silent_tiers),
      scratch_(scratch),
      pages_(options.page_names, options.is_sglang) {
  chunk_blocks_ = told_chunk_blocks_;
  if (told_chunk_blocks_ > 1) named_blocks_ = told_chunk_blocks_;
}

// Called by the worker for the next events of a batch. It looks in group 0 alone, the only group of
// an engine without side classes.
void EngineRank::Prefetch(std::span<const EngineEvent> events) const {
  if (groups_.empty()) return;
  std::array<EngineBlockHash, kAhead> names;
  size_t count = 0;
  const auto add = [&](const EngineBlockHash& name) {
    if (count < names.size()) names[count++] = name;
  };
  for (const EngineEvent& event : events) {
    if (event.hashes.size() >= kFewNames) continue;
    for (const EngineBlockHash& name : event.hashes) add(name);
    if (event.parent.has_value()) add(*event.parent);
  }
  // A single name waits for memory as long either way.
  if (count > 1) PrefetchNames(0, std::span(names).first(count));
}

void EngineRank::PrefetchNames(size_t group, std::span<const EngineBlockHash> names) const {
  if (names.empty()) return;
  if (const AliasTable* const table = Table(group, names[0].bytes.size())) table->Prefetch(names);
}

void EngineRank::Apply(const EngineEvent& event, Time now) {
  now_ = now;
  switch (event.kind) {
    case EngineEvent::Kind::kStored:
      counters_->blocks_stored += event.hashes.size();
      return ApplyStored(event, now);
    case EngineEvent::Kind::kRemoved:
      counters_->blocks_removed += event.hashes.size();
      return ApplyRemoved(event);
    case EngineEvent::Kind::kCleared:
      return ApplyCleared(event);
    case EngineEvent::Kind::kIgnored:
      return Refuse(Refusal::kIgnoredEvent, 1);
  }
}

// ---- What is not for us ----

// The block lies in a store that several workers share: another owner or another machine. Only a
// worker that is registered with such a store (`shares_store`) takes it, as external tier.
bool EngineRank::IsOfStore(const EngineEvent& event) const {
  return options_.shares_store && (!event.ownership.empty() || event.locality == "REMOTE");
}

// The tier of a stored or removed event; nothing if the event is refused, which is counted once.
// The medium of a shared store is not looked at: it names the owner's tier.
std::optional<Tier> EngineRank::Admit(const EngineEvent& event) {
  if (IsOfStore(event))
    return RoleOf(event).has_value() ? std::optional(Tier::kExternal) : std::nullopt;
  if (const auto refusal = OwnershipRefusal(event.ownership)) {
    Refuse(*refusal, 1, Text(event.ownership));
    return std::nullopt;
  }
  if (const auto refusal = LocalityRefusal(event.locality)) {
    Refuse(*refusal, 1, Text(event.locality));
    return std::nullopt;
  }
  const std::optional<Tier> tier = TierOfMedium(event.medium);
  if (!tier.has_value()) {
    Refuse(Refusal::kUnknownMedium, 1, Text(event.medium));
    return std::nullopt;
  }
  return RoleOf(event).has_value() ? tier : std::nullopt;
}

// Which class the event's attention group belongs to; nothing if the event is refused.
//
// 1. A removal of a group that has names here takes the group's role, whatever kind the removal
//    says: what was stored must be removable.
// 2. An event that names its kind (`spec_kind`): main attention, a side class (`SideClassOf`), or
//    another kind, which is refused. A store teaches the kind (`Learn`), so that later events of
//    the group need not name it.
// 3. An event without a kind: the group's learned kind. No group, or group 0 of unknown kind, is
//    main attention: engines with full attention alone name neither. Any other group of unknown
//    kind is refused, and a store of it degrades the rank, since a side class is missing.
std::optional<EngineRank::Role> EngineRank::RoleOf(const EngineEvent& event) {
  const bool stores = event.kind == EngineEvent::Kind::kStored;
  if (!stores && event.group.has_value()) {
    if (const auto group = GroupOf(event.group, /*make=*/false))
      return groups_[*group].main ? Role::kMain : Role::kSide;
  }
  if (!event.spec_kind.empty()) {
    Kind kind{.role = Role::kMain, .side = {}};
    if (!IsMainAttention(event.spec_kind)) {
      const std::optional<CacheClass> side = SideClassOf(event.spec_kind, event.sliding_window,
                                                         event.block_size, options_.chunk_tokens);
      kind = {.role = side.has_value() ? Role::kSide : Role::kOther,
              .side = side.value_or(CacheClass{})};
      // Without a number removals could not name it.
      if (!event.group.has_value()) kind.role = Role::kOther;
      if (event.spec_kind == "unknown" && !side_unknown_) {
        side_unknown_ = true;
        UpdateTrust();
      }
    }
    const auto known = stores && event.group.has_value() ? kinds_.find(*event.group) : kinds_.end();
    // A size of 0 is none: vLLM's connectors name a block of a side group without saying more than
    // its kind (0.33, offloading/events.py, `_placeholder_stored`).
    if (stores && event.block_size == 0 && kind.role == Role::kSide) {
      if (known != kinds_.end() && known->second.role == Role::kSide) return Role::kSide;
      Refuse(Refusal::kUnlearnedGroup, 1, absl::StrCat("group ", *event.group, " without a size"));
      if (!std::exchange(side_unknown_, true)) UpdateTrust();
      return std::nullopt;
    }
    // A name of a part of a block (fine-grained hits) has the class's kind and a smaller size.
    if (known != kinds_.end() && known->second.role == Role::kSide && kind.role == Role::kSide &&
        event.block_size < known->second.side.block_size) {
      if (known->second.side.kind == CacheKind::kState && kind.side.kind == CacheKind::kState)
        return Role::kSide;
      Refuse(Refusal::kPartBlock, 1);
      return std::nullopt;
    }
    if (stores && event.group.has_value() && !Learn(*event.group, kind)) {
      Refuse(Refusal::kUnlearnedGroup, 1,
             absl::StrCat("group ", *event.group, " beyond ", kKindsMax));
      return std::nullopt;
    }
    if (kind.role == Role::kOther) {
      Refuse(Refusal::kNotMainAttention, 1, Text(event.spec_kind));
      return std::nullopt;
    }
    return kind.role;
  }
  if (!event.group.has_value()) return Role::kMain;
  const auto kind = kinds_.find(*event.group);
  if (kind == kinds_.end()) {
    if (*event.group == 0) return Role::kMain;
    Refuse(Refusal::kUnlearnedGroup, 1, absl::StrCat("group ", *event.group));
    if (stores && !side_unknown_) {
      side_unknown_ = true;
      UpdateTrust();
    }
    return std::nullopt;
  }
  if (kind->second.role != Role::kOther) return kind->second.role;
  Refuse(Refusal::kNotMainAttention, 1, absl::StrCat("group ", *event.group));
  return std::nullopt;
}

// Notes the kind of group `id`. A group whose kind turns out to be another one loses all its names
// (`DropGroup`): they were placed by the rules of the wrong class. False: `kKindsMax` kinds are
// known already; the store has to be refused, because a removal, which names no kind, would not be
// understood. For a kind whose events are refused anyway the answer is true: it needs no record.
bool EngineRank::Learn(uint32_t id, const Kind& kind) {
  const auto known = kinds_.find(id);
  if (known != kinds_.end() && known->second.role == kind.role &&
      (kind.role != Role::kSide || known->second.side == kind.side))
    return true;
  if (known == kinds_.end() && kinds_.size() == kKindsMax) return kind.role == Role::kOther;
  const bool was_known = known != kinds_.end();
  kinds_[id] = kind;
  const std::optional<size_t> group = GroupOf(id, /*make=*/false);
  if (group.has_value() && (was_known || kind.role != Role::kMain)) {
    DropGroup(*group);
    if (kind.role == Role::kSide) MakeSide(*group, kind.side);
  }
  return true;
}

// Index into `groups_` of the group that an event names. An event without a group means the only
// group there is, else group 0. `make`: a new group is added, at most `kGroupsMax`, since masks of
// groups have 32 bits; it is a side group where its kind is known to be one, else a main group, and
// the first main group takes over from side groups that stood for it (`DemoteSides`).
std::optional<size_t> EngineRank::GroupOf(const std::optional<uint32_t>& given, bool make) {
  if (!given.has_value() && groups_.size() == 1) return 0;
  const uint32_t id = given.value_or(0);
  for (size_t i = 0; i < groups_.size(); ++i)
    if (groups_[i].id == id) return i;
  if (!make) return std::nullopt;
  if (groups_.size() == kGroupsMax) {
    Refuse(Refusal::kUnlearnedGroup, 1, absl::StrCat("group ", id, " beyond ", kGroupsMax));
    return std::nullopt;
  }
  groups_.push_back({.id = id, .main = true, .side = 0, .tables = {}});
  const size_t group = groups_.size() - 1;
  const auto kind = kinds_.find(id);
  if (kind != kinds_.end() && kind->second.role == Role::kSide) {
    groups_[group].main = false;
    MakeSide(group, kind->second.side);
  } else {
    DemoteSides();
    UpdateLayout();
  }
  return group;
}

// The first store of a main group in a tier: from now on a block counts in that tier only if this
// group has it too (`HeldByOthers`). Blocks that were passed on before lack this group, so that the
// writer's tier is cleared; each comes back when the new group announces it. The clear takes side
// blocks of the tier as well: they are sent again.
void EngineRank::Require(size_t group, Tier tier) {
  uint32_t& groups = required_[static_cast<int>(tier)];
  if (groups >> group & 1) return;
  if (groups != 0) {
    // No block that was passed on has this group.
    Flush();
    SendCleared(tier);
    held_[static_cast<int>(tier)] = 0;
    names_[static_cast<int>(tier)].clear();
    ResendSides(tier);
  }
  groups |= 1u << group;
}

void EngineRank::DropGroup(size_t group) {
  Flush();
  for (const std::unique_ptr<AliasTable>& table : groups_[group].tables)
    table->ForEach([&](const EngineBlockHash& name, size_t slot) {
      const BlockPlace place = table->place(slot);
      for (int tier = 0; tier < kTiers && groups_[group].side != 0; ++tier)
        if (table->tiers(slot).Has(static_cast<Tier>(tier)))
          SideUnheld(group, name, place, static_cast<Tier>(tier));
      NoteErased(group, name, place);
    });
  groups_[group].tables.clear();
  if (groups_[group].side != 0) {
    sides_[groups_[group].side - 1].groups &= ~(1u << group);
    groups_[group].side = 0;
    groups_[group].main = true;
    UpdateLayout();
  }
  parked_.DropGroup(group);
  // The cursor of `Heal` points into tables that are gone: its round begins again.
  healing_ = {.shed = shed_};
  Unrequire(group);
}

// Reverses `Require`. Blocks that only this group lacked are held now, and which ones is not kept
// anywhere: for each tier concerned the writer is cleared and the blocks that all other required
// groups have are passed on again. Walking one of these groups is enough. O(names of that group).
void EngineRank::Unrequire(size_t group) {
  Flush();
  for (int t = 0; t < kTiers; ++t) {
    if ((required_[t] >> group & 1) == 0) continue;
    const Tier tier = static_cast<Tier>(t);
    required_[t] &= ~(1u << group);
    SendCleared(tier);
    held_[t] = 0;
    names_[t].clear();
    ResendSides(tier);
    if (required_[t] == 0) continue;
    // Pass on the blocks that the other groups have by themselves.
    const size_t first = static_cast<size_t>(std::countr_zero(required_[t]));
    const auto hold_all = [&] {
      for (const std::unique_ptr<AliasTable>& table : groups_[first].tables)
        table->ForEach([&](const EngineBlockHash& name, size_t slot) {
          if (table->tiers(slot).Has(tier))
            Held(first, name, table->place(slot), kNoParent, std::nullopt, tier);
        });
      FlushMain();
    };
    const bool counted = counts_names_;
    hold_all();
    if (counts_names_ == counted) continue;
    // A block with two names showed on the way; `CountNames` then counted the names still to come
    // as well: begin again.
    held_[t] = 0;
    names_[t].clear();
    hold_all();
  }
  Flush();
}

// Checks an event with tokens and cuts `*blocks` to the leading blocks that its tokens cover whole.
// False: nothing of the event can be placed, and the refusal is counted.
//
// A block size on the device that is not the domain's degrades the rank while nothing ever had the
// right one (`refused_size_`): the registration is wrong, and answers would be empty for ever. More
// tokens than hashes is refused as a whole: some block between has no hash, and which one is not
// known.
bool EngineRank::SpansBlocks(const EngineEvent& event, Tier tier, size_t* blocks) {
  const size_t hashes = event.hashes.size();
  if (event.tokens_opaque) {
    Refuse(Refusal::kOpaqueTokens, hashes, "tokens");
    return false;
  }
  // A single smaller name of an engine that names kinds may be of a side group that is not known
  // yet.
  const bool may_be_part = !sides_.empty() || (hashes == 1 && !event.spec_kind.empty());
  if (may_be_part && event.block_size < options_.block_size) {
    Refuse(Refusal::kPartBlock, hashes);
    return false;
  }
  // A connector chooses its own block size: it is no reason to doubt the engine's.
  if (event.block_size != options_.block_size && tier != Tier::kDevice) {
    Refuse(Refusal::kNotDense, hashes,
           absl::StrCat("a connector's block size is ", event.block_size, ", the domain's ",
                        options_.block_size));
    return false;
  }
  if (event.block_size != options_.block_size) {
    Refuse(Refusal::kBlockSize, hashes,
           absl::StrCat("an event's block size is ", event.block_size, ", the domain's ",
                        options_.block_size));
    if (!fits_) refused_size_ = event.block_size;
    UpdateTrust();
    return false;
  }
  if (!fits_) {
    fits_ = true;
    refused_size_ = 0;
    UpdateTrust();
  }
  const size_t full =
      FullBlocks(event.tokens.size(), {.block_size = event.block_size, .eagle = event.look_ahead});
  if (full != hashes)
    Refuse(Refusal::kNotDense, full > hashes ? hashes : hashes - full,
           absl::StrCat(event.tokens.size(), " tokens for ", hashes, " blocks"));
  // Some block between has no hash; which one is not known.
  if (full > hashes) return false;
  *blocks = std::min(*blocks, full);
  return *blocks != 0;
}

// ---- Stored ----

// The path of a stored block, from the event to the index:
//
// 1. `EngineWorker::Apply` (engine_worker.cc) takes the worker's lock, finds the rank of the event
//    and calls `Apply` here.
// 2. `Admit` and `RoleOf` refuse what is not this worker's, and say tier and class.
// 3. Events of other forms leave here: components to `ApplyComponents`, side groups to
//    `ApplySideStored` (engine_rank_groups.cc), blocks larger than the domain's to `ApplyLarge`
//    (engine_rank_chunks.cc).
// 4. `SpansBlocks` and `Repeats::Leading` (duplicates.h) leave the leading blocks that can be
//    placed.
// 5. With tokens: `ReadContent` (engine_content.cc) reads adapter, salt and objects; `StartOf`
//    finds the parent's place; `PlaceTokens` hashes block by block. Without tokens: `PlaceNames`
//    looks up names. A block whose parent, or whose own name, is unknown goes to `ParkBlock`
//    (orphans.cc) and waits.
// 6. `Place` (engine_rank_blocks.cc) counts the copy under the name (`AliasTable::Store`). The
//    first copy in a tier goes on: `Came`, `Held`, `PassStored`, into `pending_`
//    (pending_events.h).
// 7. `LinkAll` places parked blocks that waited for a name of this event, and their children in
//    turn.
// 8. At the end of the batch `EndBatch` calls `FlushMain` and `FlushSides`: one call of the writer
//    each where nothing is refused; for a leaf this is `HolderHandle::Apply`
//    (registry/holder_handle.cc), which updates the index.
void EngineRank::ApplyStored(const EngineEvent& event, Time now) {
  const std::optional<Tier> tier = Admit(event);
  if (!tier.has_value()) return;
  size_t blocks = event.hashes.size();
  if (event.component_form != ComponentForm::kNone) {
    if (!ApplyComponents(event, *tier)) return;
  } else if ((options_.window_tokens != 0 || options_.hybrid) && event.spec_kind.empty() &&
             !side_unknown_) {
    // The engine announces nothing of its windows or states, as SGLang 0.5.23: holdings are an
    // upper bound.
    side_unknown_ = true;
    UpdateTrust();
  }
  if (options_.hybrid && !anything_stored_) {
    anything_stored_ = true;
    UpdateTrust();
  }
  if (event.group.has_value()) {
    const auto kind = kinds_.find(*event.group);
    if (kind != kinds_.end() && kind->second.role == Role::kSide) {
      const std::optional<size_t> side = GroupOf(event.group, /*make=*/true);
      if (!side.has_value() || groups_[*side].side == 0) return;
      // Its tokens do not place it: it waits for a main group.
      const bool dense = event.tokens.size() == event.hashes.size() * event.block_size;
      if (groups_[*side].main && !dense) {
        DemoteSides();
        side_unknown_ = true;
        UpdateTrust();
      }
      if (!groups_[*side].main)
        return ApplySideStored(event, *side, *tier,
                               scratch_->repeats.Leading(event.hashes, event.parent));
    }
  }
  const bool by_name = event.tokens.empty() && !event.tokens_opaque;
  if (*tier != Tier::kDevice) {
    NoteOffload(event, *tier);
    if (!by_name && IsLarge(event)) return ApplyLarge(event, *tier, now);
  }
  if (!by_name && !SpansBlocks(event, *tier, &blocks)) return;
  const size_t different = scratch_->repeats.Leading(event.hashes.first(blocks), event.parent);
  if (different < blocks) Refuse(Refusal::kSelfReference, blocks - different);
  blocks = different;
  const std::optional<size_t> group = GroupOf(event.group, /*make=*/true);
  if (!group.has_value()) return;
  Store store{.event = event,
              .tier = *tier,
              .group = *group,
              .blocks = blocks,
              .now = now,
              .copies = CopiesOf(event, *tier)};
  if (by_name) {
    PlaceNames(&store);
  } else {
    const bool at_root = IsRoot(event, *tier);
    StoredContent& content = scratch_->content;
    ReadContent(event, blocks, at_root, &content);
    if (content.blocks < blocks)
      Refuse(Refusal::kOpaqueTokens, blocks - content.blocks, "extra keys");
    store.blocks = content.blocks;
    extras_seen_ = extras_seen_ || content.has_extras;
    const size_t longest =
        std::max({content.lora_name.size(), content.cache_salt.value_or("").size(),
                  event.additional_salt.size()});
    if (longest > kEngineTextBytesMax)
      return Refuse(Refusal::kTooLarge, blocks,
                    absl::StrCat("an adapter's name or a salt of ", longest, " bytes; at most ",
                                 kEngineTextBytesMax));
    // A connector stores what the device had before, and may leave salt and objects out: where its
    // name is known, the name says more than its tokens.
    store.by_name = *tier != Tier::kDevice && !content.has_extras;
    if (event.look_ahead != 0) look_aheads_ |= 1u << event.look_ahead;
    const Chain chain = StartOf(store);
    if (chain.state == Chain::State::kKnown) {
      const Namespaces::Pin pin(&spaces_, chain.space);
      PlaceTokens(&store, chain);
    } else if (chain.state == Chain::State::kUnknown) {
      PlaceTokens(&store, chain);
    }
  }
  LinkAll();
  counters_->stores += store.taken;
}

// How a store counts in its tier. An envelope announces the first and the last copy of its medium
// alone, and SGLang has a page once beside the device. In a tier that ages nothing says when a
// block leaves: a second store means that it left and came back, so that there is one copy.
AliasTable::Copies EngineRank::CopiesOf(const EngineEvent& event, Tier tier) const {
  if (Restates(event)) return AliasTable::Copies::kOne;
  const bool counts = options_.counts_copies && !Ages(tier) &&
                      (tier == Tier::kDevice ||
                       (!event.envelope && !options_.is_sglang && CountsCopies(event.medium)));
  return counts ? AliasTable::Copies::kOneMore : AliasTable::Copies::kSome;
}

// A snapshot of components says what is there now, and is sent again when one of them changes: it
// replaces the copies that were counted and adds none.
bool EngineRank::Restates(const EngineEvent& event) {
  return event.component_form == ComponentForm::kSnapshot;
}

// Whether the event's first block starts a sequence. A parent of 0 is how llm-d's simulator says
// "none": it is the root as long as nothing is or was named 0. A connector with parent 0 has
// forgotten the parent: LMCache 0.5.6 stores so all that a request stores after its first time
// (v1/cache_engine.py).
bool EngineRank::IsRoot(const EngineEvent& event, Tier tier) const {
  if (event.base_block.value_or(0) != 0) return false;
  if (!event.parent.has_value()) return true;
  return tier == Tier::kDevice && *event.parent == EngineBlockHash() && !zero_named_;
}

// Where the event's first block goes. kKnown: at the root, or behind a parent that has a place.
// kUnknown: the parent was never announced; the blocks are parked. kRefused: the namespace is
// contradictory, or there is no room for it; the refusal is counted.
EngineRank::Chain EngineRank::StartOf(const Store& store) {
  const EngineEvent& event = store.event;
  if (IsRoot(event, store.tier)) {
    const std::optional<uint32_t> space = SpaceAtRoot(store);
    if (!space.has_value()) return {.state = Chain::State::kRefused};
    return {.state = Chain::State::kKnown, .parent = kNoParent, .position = 0, .space = *space};
  }
  if (!event.parent.has_value()) return {};  // in mid-sequence, after an unknown block
  if (!ambiguous_.empty() && ambiguous_.contains(ParkedName(store.group, *event.parent))) {
    Refuse(Refusal::kAmbiguousNamespace, store.blocks);
    return {.state = Chain::State::kRefused};
  }
  const std::optional<BlockPlace> parent = FindPlace(store.group, *event.parent);
  if (!parent.has_value()) return {};
  const StoredContent& content = scratch_->content;
  const std::optional<uint32_t> space =
      SpaceAfter(parent->space, content.lora_name, content.cache_salt.value_or(""),
                 event.look_ahead, store.blocks);
  if (!space.has_value()) return {.state = Chain::State::kRefused};
  return {.state = Chain::State::kKnown,
          .parent = parent->block,
          .position = parent->position + 1,
          .space = *space};
}

// The number of a namespace. Where there is no room the blocks are missing, and the engine need not
// announce them again: the rank is degraded until a clear.
std::optional<uint32_t> EngineRank::SpaceOf(std::string_view lora_name, std::string_view salt,
                                            uint32_t eagle, size_t blocks) {
  const std::optional<uint32_t> space = spaces_.Intern(lora_name, salt, eagle);
  if (space.has_value()) return space;
  Refuse(Refusal::kShed, blocks, "no room for another adapter or salt");
  given_up_ = true;
  UpdateTrust();
  return std::nullopt;
}

// The namespace of a sequence's first block. The most specific salt wins: that of the block's
// content, then that of the event, then that of the registration. Likewise the adapter.
std::optional<uint32_t> EngineRank::SpaceAtRoot(const Store& store) {
  const EngineEvent& event = store.event;
  const StoredContent& content = scratch_->content;
  std::string_view salt = options_.additional_salt;
  if (!event.additional_salt.empty()) salt = event.additional_salt;
  if (content.cache_salt.has_value() && !content.cache_salt->empty()) salt = *content.cache_salt;
  return SpaceOf(content.lora_name.empty() ? options_.lora_name : content.lora_name, salt,
                 event.look_ahead, store.blocks);
}

// The namespace of a block behind `parent`. Events of later blocks carry no salt: they inherit
// their parent's. An event that names another adapter or salt than its parent's contradicts the
// chain and is refused. Another look-ahead makes another namespace with the same texts, since its
// hashes cover other tokens.
std::optional<uint32_t> EngineRank::SpaceAfter(uint32_t parent, std::string_view lora_name,
                                               std::string_view salt, uint32_t eagle,
                                               size_t blocks) {
  const Space& space = spaces_.at(parent);
  if ((!lora_name.empty() && lora_name != space.lora_name) ||
      (!salt.empty() && salt != space.cache_salt)) {
    Refuse(Refusal::kAmbiguousNamespace, blocks);
    return std::nullopt;
  }
  if (eagle == space.eagle) return parent;
  return SpaceOf(space.lora_name, space.cache_salt, eagle, blocks);
}

// Places the event's blocks from `chain` on. For each block:
//
// 1. If the chain is unknown, or a connector's name is to be trusted (`by_name`): a name that has a
//    place is joined, and the chain is known behind it.
// 2. Else if the chain is unknown, or the connector hides the namespace: the block is parked, and
//    the blocks behind it start unknown again.
// 3. Else the block's hash follows from its tokens and its parent's hash, and `Place` counts it.
//
// In state kKnown the caller keeps the chain's namespace pinned; names that are joined keep their
// own alive.
void EngineRank::PlaceTokens(Store* store, Chain chain) {
  const EngineEvent& event = store->event;
  const StoredContent& content = scratch_->content;
  const size_t window = options_.block_size + event.look_ahead;
  // vLLM's offloading connector leaves salts and objects out of its events. Where they are in use,
  // or may have been lost with a batch, its tokens alone do not say in which namespace a block is.
  const bool hides = store->by_name && HidesNamespace(event);
  AliasTable* const table = TableFor(store->group, event.hashes[0]);
  if (table == nullptr)
    return Refuse(Refusal::kTooLarge, store->blocks, "names of too many lengths");
  for (size_t i = 0; i < store->blocks; ++i) {
    const EngineBlockHash& name = event.hashes[i];
    if (i % kAhead == 0 && store->blocks >= kFewNames)
      table->Prefetch(event.hashes.subspan(i, std::min(kAhead, store->blocks - i)));
    const bool known = chain.state == Chain::State::kKnown;
    if (!known || store->by_name) {
      const std::optional<BlockPlace> place = FindPlace(store->group, name);
      if (place.has_value() && JoinKnown(*store, name, *place, known ? chain.parent : kNoParent)) {
        store->taken = true;
        chain = {Chain::State::kKnown, place->block, place->position + 1, place->space};
        continue;
      }
    }
    if (!known || hides) {
      ParkBlock(*store, i, /*with_tokens=*/!hides);
      chain.state = Chain::State::kUnknown;
      continue;
    }
    const LocalHash local = ContentHash(event.tokens.subspan(i * options_.block_size, window),
                                        content.multimodal(i), chain.space, event.look_ahead);
    const SequenceHash block = chain.position == 0
                                   ? SequenceHash{Raw(local)}
                                   : NextSequenceHash(chain.parent, local, options_.contract);
    const BlockPlace place{block, chain.position, chain.space};
    Place(store->group, name, place, chain.parent, local, store->tier, 1, store->copies);
    if (pages_.on())
      NamePage(name, place, chain.parent, event.tokens.subspan(i * options_.block_size, window),
               content.multimodal(i), event.look_ahead);
    store->taken = true;
    chain.parent = block;
    ++chain.position;
  }
}

// The hash of one block's content, seeded by its namespace. Images stand in their tokens' places
// (`PadImages`) where the model's image token is known. With look-ahead objects are hashed instead:
// the token behind the block may belong to an image that the block's event does not name.
LocalHash EngineRank::ContentHash(std::span<const TokenId> tokens,
                                  std::span<const uint64_t> objects, uint32_t space,
                                  uint32_t look_ahead) const {
  const uint64_t seed = spaces_.at(space).seed;
  std::vector<TokenId>* const padded = &scratch_->padded;
  if (options_.image_token.has_value() && look_ahead == 0 &&
      PadImages(tokens, objects, *options_.image_token, padded))
    return LocalHashOf(*padded, {}, seed);
  return LocalHashOf(tokens, objects, seed);
}

// Counts a copy of a block that is known by its name. `parent`: `kNoParent` where it is unknown.
// False: the event names another adapter than the block's namespace has. A name that may stand for
// a chunk brings the chunk's other blocks with it (`PlaceMembers`, `NoteEnd`).
bool EngineRank::JoinKnown(const Store& store, const EngineBlockHash& name, const BlockPlace& place,
                           SequenceHash parent) {
  const std::string_view lora_name = store.event.lora_name;
  if (!lora_name.empty() && lora_name != spaces_.at(place.space).lora_name) return false;
  if (told_chunk_blocks_ > 1 && store.tier != Tier::kDevice && store.event.tokens.empty())
    PlaceMembers(store.group, name, place, store.tier, 1, store.copies);
  Place(store.group, name, place, parent, std::nullopt, store.tier, 1, store.copies);
  if (store.tier != Tier::kDevice && MayEndChunk(store.event))
    NoteEnd(store.group, name, place, store.tier);
  return true;
}

// An event without tokens: each block by its name. The order of names is no chain: the parent of a
// block is passed on only where the name before stands for the position before.
void EngineRank::PlaceNames(Store* store) {
  std::optional<BlockPlace> last;
  for (size_t i = 0; i < store->blocks; ++i) {
    const EngineBlockHash& name = store->event.hashes[i];
    const std::optional<BlockPlace> place = FindPlace(store->group, name);
    if (!place.has_value()) {
      ParkBlock(*store, i, /*with_tokens=*/false);
      continue;
    }
    const bool follows = last.has_value() && last->position + 1 == place->position;
    if (JoinKnown(*store, name, *place, follows ? last->block : kNoParent)) store->taken = true;
    last = place;
  }
}

// Parks block `i` of the event, within the pool's bounds (`Orphans`). With tokens it waits for its
// parent's name, without for its own. Without a parent in mid-sequence it can wait for its own name
// alone, so that its tokens are not kept.
void EngineRank::ParkBlock(const Store& store, size_t i, bool with_tokens) {
  const EngineEvent& event = store.event;
  const StoredContent& content = scratch_->content;
  const std::optional<EngineBlockHash> parent =
      i == 0 ? event.parent : std::optional<EngineBlockHash>(event.hashes[i - 1]);
  // No block will ever have that parent's name.
  if (with_tokens && store.tier != Tier::kDevice && parent == EngineBlockHash() && !zero_named_)
    return Refuse(Refusal::kNoContent, 1, "a parent of 0");
  ParkedBlock block;
  std::string_view lora_name, salt;
  if (with_tokens && parent.has_value()) {
    const std::span<const TokenId> tokens =
        event.tokens.subspan(i * options_.block_size, options_.block_size + event.look_ahead);
    const std::span<const uint64_t> objects = content.multimodal(i);
    block.has_tokens = true;
    block.parent = ParkedName(store.group, *parent);
    block.tokens.assign(tokens.begin(), tokens.end());
    block.multimodal.assign(objects.begin(), objects.end());
    lora_name = content.lora_name;
    salt = content.cache_salt.value_or("");
    block.eagle = event.look_ahead;
  } else {
    block.may_end_chunk = MayEndChunk(event);
    Refuse(Refusal::kNoContent, 1);
  }
  const EngineBlockHash& name = event.hashes[i];
  if (name.value == 0 && name.bytes.empty()) zero_named_ = true;
  while (Restates(event) && parked_.Remove(ParkedName(store.group, name), store.tier)) {
  }
  if (!parked_.Park(ParkedName(store.group, name), std::move(block), lora_name, salt, store.tier,
                    store.copies, store.now))
    Refuse(Refusal::kOrphanDropped, 1, "too many are parked, or memory is full");
}

// ---- Removed and cleared ----

// The path of a removed block:
//
// 1. `EngineWorker::Apply` and `Admit`, as for a store. `GroupOf` makes no group here.
// 2. `RemoveOne` per name. A removal that names no group is tried in every group until one has the
//    name.
// 3. `RemoveName` takes one copy of the name in the tier (`AliasTable::Remove`); then the age of
//    the name and the other blocks of its chunk go (`ForgetAge`, `RemoveMembers`). A name that has
//    no copy there may be parked: `Orphans::Remove` (orphans.cc).
// 4. The last copy in the tier goes on: `Left`, `Unheld` (engine_rank_blocks.cc) or `SideUnheld`
//    (engine_rank_groups.cc), `PassRemoved`, into `pending_`. A name that is in no tier any more is
//    erased (`EraseName`).
// 5. `PendingEvents::Remove` puts the removal before the stores of the batch where none of them may
//    be of the same block. `FlushMain` hands over at the batch's end, as for a store.
//
// A removal of an unknown name is counted as `kUnknownRemoved` and has no effect: engines evict
// blocks whose stores were sent before this process listened.
void EngineRank::ApplyRemoved(const EngineEvent& event) {
  const std::optional<Tier> tier = Admit(event);
  if (!tier.has_value()) return;
  if (event.component_form != ComponentForm::kNone && !ApplyComponents(event, *tier)) return;
  if (silent_.Has(*tier)) NoteRemoval(event, *tier);
  const std::optional<size_t> group = GroupOf(event.group, /*make=*/false);
  bool removed = false;
  const size_t count = event.hashes.size();
  for (size_t i = 0; i < count; ++i) {
    const EngineBlockHash& name = event.hashes[i];
    if (group.has_value() && i % kAhead == 0 && count >= kFewNames)
      PrefetchNames(*group, event.hashes.subspan(i, std::min(kAhead, count - i)));
    bool found = group.has_value() && RemoveOne(*group, name, *tier);
    for (size_t other = 0; !found && !event.group.has_value() && other < groups_.size(); ++other)
      found = other != group && RemoveOne(other, name, *tier);
    if (!found) Refuse(Refusal::kUnknownRemoved, 1);
    removed = removed || found;
  }
  counters_->removes += removed;
}

bool EngineRank::RemoveOne(size_t group, const EngineBlockHash& name, Tier tier) {
  const bool is_removed = RemoveName(group, name, tier, /*is_member=*/false);
  if (is_removed && Ages(tier)) ForgetAge(group, name, tier);
  if (is_removed && tier != Tier::kDevice && chunk_blocks_ > 1)
    RemoveMembers(group, name, tier, /*all=*/false);
  return is_removed || (!parked_.empty() && parked_.Remove(ParkedName(group, name), tier));
}

bool EngineRank::RemoveName(size_t group, const EngineBlockHash& name, Tier tier, bool is_member) {
  AliasTable* const table = Table(group, name.bytes.size());
  const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(name);
  if (slot == AliasTable::kNone) return false;
  const AliasTable::Gone gone = table->Remove(slot, tier);
  if (gone == AliasTable::Gone::kLast) {
    Left(group, name, table->place(slot), tier);
    if (table->tiers(slot).empty()) EraseName(group, table, slot, is_member);
  }
  return gone != AliasTable::Gone::kNotHeld;
}

// Engines clear everything. Only Mooncake's envelope names a medium: then that tier alone is
// cleared. Another owner's clear is refused, since its blocks are not this worker's.
void EngineRank::ApplyCleared(const EngineEvent& event) {
  if (const auto refusal = OwnershipRefusal(event.ownership))
    return Refuse(*refusal, 1, Text(event.ownership));
  ++counters_->clears;
  if (!event.envelope || event.medium.empty()) return ClearAll();
  const std::optional<Tier> tier = TierOfMedium(event.medium);
  if (!tier.has_value()) return Refuse(Refusal::kUnknownMedium, 1, Text(event.medium));
  ClearTier(*tier);
}

}  // namespace kvatlas
