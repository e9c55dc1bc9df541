// What does an event do?
//
//   1. `Admit` refuses what is not this worker's: owner, locality, medium, attention group.
//   2. A stored event with tokens: `StartOf` finds its parent, `PlaceTokens` hashes block by block.
//      A block whose parent is unknown is taken by its own name if that is known, else parked.
//   3. One without tokens: `PlaceNames` takes each block by its name, or parks it.
//   4. A removed event takes one copy of each block away, parked ones too.

#include "indexer/kv_events/engine_rank.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/kv_events/engine_tier.h"

namespace kvatlas {
namespace {

constexpr size_t kAhead = 32;    // names that are loaded together
constexpr size_t kFewNames = 8;  // of an event, are loaded with those of other events

// The beginning of what an event says, for words about it.
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
  // One alone waits as long either way.
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

bool EngineRank::IsOfStore(const EngineEvent& event) const {
  return options_.shares_store && (!event.ownership.empty() || event.locality == "REMOTE");
}

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

// What the event's attention group is for. Stores teach it. A removal is counted where its group
// has something to be removed, whatever it says of its kind.
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
      // Without a number it cannot be told apart in removals.
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
    // What a part of a block is named by (fine-grained hits) has the class's kind and another size.
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

// False: there are too many, and removals of this one would not be understood.
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

// The event's group by our numbering. Who names none means the only one, else group 0.
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

// From now on blocks need this group in this tier.
void EngineRank::Require(size_t group, Tier tier) {
  uint32_t& groups = required_[static_cast<int>(tier)];
  if (groups >> group & 1) return;
  if (groups != 0) {
    // None of those passed on has it.
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
  healing_ = {.shed = shed_};
  Unrequire(group);
}

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
    // Whatever the others have by themselves.
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
    // A block with two names showed on the way, when those to come were counted already: again from
    // the start.
    held_[t] = 0;
    names_[t].clear();
    hold_all();
  }
  Flush();
}

// The leading blocks that the tokens cover whole; false: refused.
bool EngineRank::SpansBlocks(const EngineEvent& event, Tier tier, size_t* blocks) {
  const size_t hashes = event.hashes.size();
  if (event.tokens_opaque) {
    Refuse(Refusal::kOpaqueTokens, hashes, "tokens");
    return false;
  }
  // Of an engine that names kinds one smaller name alone may be the first that is told of any
  // group.
  const bool may_be_part = !sides_.empty() || (hashes == 1 && !event.spec_kind.empty());
  if (may_be_part && event.block_size < options_.block_size) {
    Refuse(Refusal::kPartBlock, hashes);
    return false;
  }
  // A connector's blocks say nothing of the engine's.
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
  // Blocks are missing in between; which ones is not known.
  if (full > hashes) return false;
  *blocks = std::min(*blocks, full);
  return *blocks != 0;
}

// ---- Stored ----

void EngineRank::ApplyStored(const EngineEvent& event, Time now) {
  const std::optional<Tier> tier = Admit(event);
  if (!tier.has_value()) return;
  size_t blocks = event.hashes.size();
  if (event.component_form != ComponentForm::kNone) {
    if (!ApplyComponents(event, *tier)) return;
  } else if ((options_.window_tokens != 0 || options_.hybrid) && event.spec_kind.empty() &&
             !side_unknown_) {
    // Windows or states that the engine says nothing of, as SGLang 0.5.23: what is held is an upper
    // bound.
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

// What a store says of the copies in its tier. An envelope tells of the first and the last copy of
// its medium alone, and SGLang has a page once beside the device. What leaves a tier by age has
// been stored again since it left.
AliasTable::Copies EngineRank::CopiesOf(const EngineEvent& event, Tier tier) const {
  if (Restates(event)) return AliasTable::Copies::kOne;
  const bool counts = options_.counts_copies && !Ages(tier) &&
                      (tier == Tier::kDevice ||
                       (!event.envelope && !options_.is_sglang && CountsCopies(event.medium)));
  return counts ? AliasTable::Copies::kOneMore : AliasTable::Copies::kSome;
}

// A snapshot of components says what is there now, once more when one of them changes: no copy
// more.
bool EngineRank::Restates(const EngineEvent& event) {
  return event.component_form == ComponentForm::kSnapshot;
}

// A parent of 0 is how llm-d's simulator says "none": it is the root as long as nothing is or was
// named 0. A connector that says it has forgotten the parent: LMCache 0.5.6, of all that a request
// stores but the first time (v1/cache_engine.py).
bool EngineRank::IsRoot(const EngineEvent& event, Tier tier) const {
  if (event.base_block.value_or(0) != 0) return false;
  if (!event.parent.has_value()) return true;
  return tier == Tier::kDevice && *event.parent == EngineBlockHash() && !zero_named_;
}

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

// Without room for it the blocks are missing until the engine says them again, which it need not.
std::optional<uint32_t> EngineRank::SpaceOf(std::string_view lora_name, std::string_view salt,
                                            uint32_t eagle, size_t blocks) {
  const std::optional<uint32_t> space = spaces_.Intern(lora_name, salt, eagle);
  if (space.has_value()) return space;
  Refuse(Refusal::kShed, blocks, "no room for another adapter or salt");
  given_up_ = true;
  UpdateTrust();
  return std::nullopt;
}

std::optional<uint32_t> EngineRank::SpaceAtRoot(const Store& store) {
  const EngineEvent& event = store.event;
  const StoredContent& content = scratch_->content;
  std::string_view salt = options_.additional_salt;
  if (!event.additional_salt.empty()) salt = event.additional_salt;
  if (content.cache_salt.has_value() && !content.cache_salt->empty()) salt = *content.cache_salt;
  return SpaceOf(content.lora_name.empty() ? options_.lora_name : content.lora_name, salt,
                 event.look_ahead, store.blocks);
}

// Children carry no salt, they have their parent's. What an event says of its own must not
// contradict that.
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

void EngineRank::PlaceTokens(Store* store, Chain chain) {
  const EngineEvent& event = store->event;
  const StoredContent& content = scratch_->content;
  const size_t window = options_.block_size + event.look_ahead;
  // Where salts and objects are in use, or may have been missed, vLLM's offloading connector leaves
  // them out.
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

// Of a block in a namespace. A window's look-ahead token may belong to an image that the block's
// event does not name: there objects are hashed.
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

// A copy more of a block by its name alone. False: its event contradicts its namespace.
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

void EngineRank::ParkBlock(const Store& store, size_t i, bool with_tokens) {
  const EngineEvent& event = store.event;
  const StoredContent& content = scratch_->content;
  const std::optional<EngineBlockHash> parent =
      i == 0 ? event.parent : std::optional<EngineBlockHash>(event.hashes[i - 1]);
  // Nothing will ever have that parent's name.
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
