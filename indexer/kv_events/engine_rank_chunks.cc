// Blocks that a tier beside the device stores and loads only together (chunks):
//
//   a store there                            its blocks                                    names in that tier
//   one event a chunk, all its blocks        as any                                        the engine's own
//   one name for several blocks, with tokens cut into blocks of the domain (`ApplyLarge`)  the chunk's; `MemberName` for all but the last
//   one name without tokens                  those before the block of that name           likewise
//                                            (`before_`, `PlaceMembers`), as told or as
//                                            `FindChunks` finds out
//
// Each name counts its copies and its chunk's removal takes one of each, so that a block that two
// chunks share stays until both are gone. How far a prompt can be loaded is decided where it is
// asked: the layout says how many tokens are loaded together (`LoadableBlocks`).
//
// *Limits* (too little, never too much): of a chunk that is named by its last block only those
// blocks are known whose own stores were heard and whose names the engine had when the chunk was
// stored; blocks of side classes are not expanded.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/base/big_endian.h"
#include "indexer/kv_events/engine_rank.h"
#include "indexer/kv_events/engine_tier.h"

namespace kvatlas {

// Called for each store beside the device, before it applies: a connector shows by its events how
// it works.
void EngineRank::NoteOffload(const EngineEvent& event, Tier tier) {
  // Connectors that never say that a block left spell the medium so and know no kinds: LMCache
  // 0.5.6 (v1/cache_engine.py) and vLLM 0.33's MooncakeStoreConnector (mooncake/store/worker.py),
  // whose store evicts by itself.
  if (event.medium == "cpu" && event.spec_kind.empty() && !event.envelope && !removes_.Has(tier) &&
      !silent_.Has(tier) && !options_.store_tiers.Has(tier)) {
    silent_ = silent_ | TierMask(tier);
    UpdateTrust();
  }
  // vLLM's OffloadingConnector describes a chunk an event (0.33, offloading/events.py,
  // `_build_event_metadata`).
  if (event.group.has_value() && IsMainAttention(event.spec_kind) &&
      event.block_size == options_.block_size && !event.tokens.empty() &&
      (event.medium == "CPU" || event.medium == "STORAGE"))
    NoteChunk(event.hashes.size());
}

// A removal shows that the connector is not silent, whatever its stores look like: `removes_` keeps
// `NoteOffload` from taking the tier for silent again, until the engine restarts.
void EngineRank::NoteRemoval(const EngineEvent& event, Tier tier) {
  if (event.medium != "cpu" || options_.silent_tiers.Has(tier)) return;
  removes_ = removes_ | TierMask(tier);
  silent_ = silent_ & ~TierMask(tier);
  UpdateTrust();
}

// Chunks of this size were seen. The largest one counts for all: too little is promised of smaller
// ones.
void EngineRank::NoteChunk(size_t blocks) {
  if (blocks <= described_blocks_ || blocks > UINT32_MAX / std::max(1u, options_.block_size))
    return;
  described_blocks_ = static_cast<uint32_t>(blocks);
  UpdateChunks();
}

void EngineRank::UpdateChunks() {
  const uint32_t blocks = std::max(described_blocks_, named_blocks_);
  if (std::exchange(chunk_blocks_, std::max(1u, blocks)) != chunk_blocks_) UpdateLayout();
}

// Collects where named chunks of this batch end. Every end is a multiple of the chunk's size, so
// that the greatest common divisor of all ends approaches it from above. A divisor of 1 is final: a
// name stands for its own block alone.
void EngineRank::NoteEnd(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                         Tier tier) {
  if (told_chunk_blocks_ > 1 || named_blocks_ == 1) return;
  next_named_blocks_ =
      std::gcd(ends_.empty() ? named_blocks_ : next_named_blocks_, place.position + 1);
  ends_.emplace_back(ParkedName(group, name), tier);
}

// Runs at the end of a batch that had chunk ends.
//
// 1. Takes the new divisor. If it is smaller than before, the chunks were taken for too large:
//    members beyond the new size go, for every name beside the device.
// 2. The first time that names stand for several blocks, `before_` is filled from the writer; from
//    then on `Place` keeps it.
// 3. Each end of this batch whose members are fewer copies than the name's own gets them
//    (`PlaceMembers`).
//
// A connector stores all chunks of a request, from its first block on, and says so together: hence
// the batch as the unit.
void EngineRank::FindChunks() {
  const uint32_t before = std::exchange(named_blocks_, next_named_blocks_);
  if (before > named_blocks_) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      std::vector<std::pair<std::string, TierMask>> names;
      for (const std::unique_ptr<AliasTable>& table : groups_[group].tables)
        table->ForEach([&](const EngineBlockHash& name, size_t slot) {
          const TierMask tiers = table->tiers(slot) & ~TierMask(Tier::kDevice);
          if (!tiers.empty()) names.emplace_back(ParkedName(group, name), tiers);
        });
      for (const auto& [key, tiers] : names)
        for (int t = 0; t < kTiers; ++t)
          if (tiers.Has(static_cast<Tier>(t)))
            RemoveMembers(group, NameOfKey(key), static_cast<Tier>(t), /*all=*/true, named_blocks_);
    }
  }
  UpdateChunks();
  if (named_blocks_ <= 1) {
    before_ = {};
    ends_.clear();
    return;
  }
  if (before_.empty()) {
    FlushMain();
    writer_->ForEachHeld([&](SequenceHash block, SequenceHash parent, LocalHash) {
      if (parent != kNoParent) before_.try_emplace(block, parent);
    });
  }
  for (const auto& [key, tier] : std::exchange(ends_, {})) {
    const size_t group = GroupOfKey(key);
    const EngineBlockHash name = NameOfKey(key);
    // The name may have gone since, or have its members already.
    const auto copies_of = [&](const EngineBlockHash& of) -> uint32_t {
      const AliasTable* const table = Table(group, of.bytes.size());
      const size_t slot = table == nullptr ? AliasTable::kNone : table->Find(of);
      return slot == AliasTable::kNone ? 0 : table->copies(slot)[static_cast<int>(tier)];
    };
    const uint32_t copies = copies_of(name);
    const uint32_t of_members = copies_of(MemberName(name, 1));
    const std::optional<BlockPlace> place = FindPlace(group, name);
    if (copies <= of_members || !place.has_value()) continue;
    const Namespaces::Pin pin(&spaces_, place->space);
    PlaceMembers(group, name, *place, tier, copies - of_members, AliasTable::Copies::kOneMore);
  }
}

// A name of our own for the block that is `back` blocks before a chunk's last one. It has the
// length of the engine's names, so that it lies in the same table, and follows from the chunk's
// name, so that a removal finds it. It equals another name only if the hash collides.
EngineBlockHash EngineRank::MemberName(const EngineBlockHash& chunk, uint32_t back) {
  const auto hash = [](std::string_view bytes, uint64_t seed) {
    return Xxh3(bytes, seed * 0x9e3779b97f4a7c15);
  };
  if (chunk.bytes.empty()) {
    char value[sizeof(chunk.value)];
    std::memcpy(value, &chunk.value, sizeof(value));
    return {.value = hash({value, sizeof(value)}, back), .bytes = {}};
  }
  std::string& name = scratch_->member;
  name.resize(chunk.bytes.size());
  for (size_t at = 0; at < name.size(); at += sizeof(uint64_t)) {
    const uint64_t word = hash(chunk.bytes, uint64_t{back} << 32 | at);
    std::memcpy(name.data() + at, &word, std::min(sizeof(word), name.size() - at));
  }
  const std::string_view bytes = name;
  return {.value = FromBigEndian(bytes), .bytes = bytes};
}

// A store whose blocks are a multiple of the domain's: each is cut into blocks of the domain.
//
// 1. Refuse what cannot be cut: extra keys, which do not say in which part an object is, and a
//    chain whose start is not known. Nothing is parked: only blocks of the domain's size are.
// 2. Per chunk, hash its blocks one behind the other and place them: the last under the chunk's
//    name, others under `MemberName`.
// 3. The look-up of parked blocks (`LinkAll`) follows as for any store.
void EngineRank::ApplyLarge(const EngineEvent& event, Tier tier, Time now) {
  const size_t blocks = event.block_size / options_.block_size;
  const size_t whole = std::min(event.hashes.size(), event.tokens.size() / event.block_size);
  Refuse(Refusal::kNotDense, event.hashes.size() - whole, "tokens of larger blocks");
  const size_t chunks = scratch_->repeats.Leading(event.hashes.first(whole), event.parent);
  Refuse(Refusal::kSelfReference, whole - chunks);
  const std::optional<size_t> group = GroupOf(event.group, /*make=*/true);
  if (!group.has_value() || chunks == 0) return;
  StoredContent& content = scratch_->content;
  ReadContent(event, chunks, IsRoot(event, tier), &content);
  extras_seen_ = extras_seen_ || content.has_extras;
  // Extra keys do not say which of the blocks an object is in.
  if (content.has_extras || content.blocks < chunks)
    return Refuse(Refusal::kOpaqueTokens, chunks, "extra keys of larger blocks");
  if (std::max(content.lora_name.size(), event.additional_salt.size()) > kEngineTextBytesMax)
    return Refuse(Refusal::kTooLarge, chunks, "an adapter's name or a salt");
  const Store store{.event = event,
                    .tier = tier,
                    .group = *group,
                    .blocks = chunks,
                    .now = now,
                    .copies = CopiesOf(event, tier)};
  Chain chain;
  if (!HidesNamespace(event)) chain = StartOf(store);
  if (chain.state == Chain::State::kUnknown)
    Refuse(Refusal::kNoContent, chunks, "what is before a larger block is not known");
  if (chain.state != Chain::State::kKnown) return;
  const Namespaces::Pin pin(&spaces_, chain.space);
  NoteChunk(blocks);
  std::vector<SequenceHash>& members = scratch_->members;
  for (size_t i = 0; i < chunks; ++i) {
    std::span<const TokenId> tokens = event.tokens.subspan(i * event.block_size, event.block_size);
    const SequenceHash before = chain.parent;
    members.clear();
    for (; !tokens.empty(); tokens = tokens.subspan(options_.block_size)) {
      const LocalHash local =
          ContentHash(tokens.first(options_.block_size), {}, chain.space, /*look_ahead=*/0);
      const bool first = chain.position == 0 && members.empty();
      chain.parent = first ? SequenceHash{Raw(local)}
                           : NextSequenceHash(chain.parent, local, options_.contract);
      members.push_back(chain.parent);
    }
    const auto place_at = [&](size_t at) {
      const uint32_t back = static_cast<uint32_t>(blocks - 1 - at);
      const BlockPlace place{members[at], chain.position + static_cast<Position>(at), chain.space};
      Place(*group, back == 0 ? event.hashes[i] : MemberName(event.hashes[i], back), place,
            at == 0 ? before : members[at - 1], std::nullopt, tier, 1, store.copies);
    };
    // If the name stood for another chunk, it takes that chunk's members with it: place it before
    // the new members get the same names.
    const std::optional<BlockPlace> known = FindPlace(*group, event.hashes[i]);
    const bool is_renamed = known.has_value() && known->block != members.back();
    if (is_renamed) place_at(blocks - 1);
    for (size_t at = 0; at + is_renamed < blocks; ++at) {
      places_members_ = at + 1 < blocks;  // the last one has the name that the engine gave it
      place_at(at);
    }
    places_members_ = false;
    chain.position += static_cast<Position>(blocks);
  }
  LinkAll();
  ++counters_->stores;
}

// Counts `count` copies of the other blocks of the chunk that `name` ends. Nothing happens where
// the chunk is not complete: its end is no multiple of the size, or a block before it is not in
// `before_`.
void EngineRank::PlaceMembers(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                              Tier tier, uint32_t count, AliasTable::Copies copies) {
  const uint32_t others = named_blocks_ - 1;
  if (count == 0 || (place.position + 1) % named_blocks_ != 0) return;
  // From the last block back.
  std::vector<SequenceHash>& members = scratch_->members;
  members.assign(1, place.block);
  while (members.size() <= others + 1) {
    const auto found = before_.find(members.back());
    if (found == before_.end()) break;
    members.push_back(found->second);
  }
  if (members.size() <= others) return;
  places_members_ = true;
  for (uint32_t back = others; back > 0; --back) {
    const BlockPlace at{members[back], place.position - back, place.space};
    Place(group, MemberName(name, back), at,
          back + 1 < members.size() ? members[back + 1] : kNoParent, std::nullopt, tier, count,
          copies);
  }
  places_members_ = false;
}

// Takes a copy of each member of a chunk, or with `all` every copy, from the one that is `from`
// blocks before the last on. Members are placed together, so that the first one that is missing
// ends the loop.
void EngineRank::RemoveMembers(size_t group, const EngineBlockHash& name, Tier tier, bool all,
                               uint32_t from) {
  for (uint32_t back = from; back < chunk_blocks_; ++back) {
    if (!RemoveName(group, MemberName(name, back), tier, /*is_member=*/true)) return;
    while (all && RemoveName(group, MemberName(name, back), tier, /*is_member=*/true)) {
    }
  }
}

}  // namespace kvatlas
