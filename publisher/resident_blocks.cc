// Three tables: `aliases_` (the engine's names, with copies per tier), `extra_copies_` (copies of a
// block beyond its first, over all names) and `resident_` (the set itself). A block is in a tier of
// the set as long as it has a copy there. Two names may stand for one block, hence the second
// table.

#include "publisher/resident_blocks.h"

#include <utility>
#include <variant>

namespace kvatlas {

Contents::Contents(uint32_t block_size, const HashContract& contract)
    : block_size_(block_size), contract_(contract), seed_(BlockSeed({}, contract)) {}

absl::Status Contents::Apply(const Record& record, std::vector<Event>* changes) {
  switch (record.kind) {
    case Record::kStored:
      return record.tokens.empty() ? StoreKnown(record, changes) : Store(record, changes);
    case Record::kRemoved:
      Remove(record, changes);
      break;
    case Record::kStoredHashed:
      StoreHashed(record, changes);
      break;
    case Record::kRemovedHashed:
      RemoveHashed(record, changes);
      break;
    case Record::kStoredSide:
      StoreSide(record, changes);
      break;
    case Record::kRemovedSide:
      RemoveSide(record, changes);
      break;
    case Record::kCleared:
      Clear(record.tiers, changes);
      break;
    case Record::kLayout:  // `SetLayout`
    case Record::kLoad:
    case Record::kEngineBatch:  // `EngineBatches`
      break;
  }
  return absl::OkStatus();
}

// A run of new blocks: hashes its tokens, chains the hashes behind the parent, and gives each block
// its name. Without the parent's hash nothing of the run can be hashed, and all of it is dropped.
absl::Status Contents::Store(const Record& record, std::vector<Event>* changes) {
  Stored run{.tier = record.tier, .blocks = {}};
  if (record.has_parent) {
    const auto parent = aliases_.find(record.parent);
    if (parent == aliases_.end()) {
      stats_.unknown_parents += record.hashes.size();
      return absl::NotFoundError("stored after a parent that is not held: engine hash " +
                                 std::to_string(record.parent));
    }
    run.parent = parent->second.block;
    run.position = parent->second.position + 1;
  }
  const std::vector<LocalHash> locals =
      LocalHashes(record.tokens, {.block_size = block_size_}, SeedOf(record));
  run.blocks = SequenceHashesAfter(run.parent, locals, contract_);
  for (size_t i = 0; i < run.blocks.size(); ++i) {
    AddAlias(record.tier, record.hashes[i], i == 0 ? run.parent : run.blocks[i - 1], run.blocks[i],
             run.position + static_cast<Position>(i), changes);
  }
  AddCopies(std::move(run), changes);
  return absl::OkStatus();
}

// Blocks stored without tokens: their names are known from another tier. Consecutive blocks of a
// chain go out as one run, as far as each follows the one before it. An unknown name is dropped,
// the others count.
absl::Status Contents::StoreKnown(const Record& record, std::vector<Event>* changes) {
  absl::Status status;
  Stored run{.tier = record.tier, .blocks = {}};
  for (const uint64_t engine_hash : record.hashes) {
    const auto found = aliases_.find(engine_hash);
    if (found == aliases_.end()) {
      ++stats_.unknown_parents;
      status = absl::NotFoundError("stored without tokens, and not held: engine hash " +
                                   std::to_string(engine_hash));
      continue;
    }
    ++found->second.copies[static_cast<int>(record.tier)];
    const Alias& alias = found->second;
    if (run.blocks.empty() || run.blocks.back() != alias.parent) {
      AddCopies(std::exchange(run, {.tier = record.tier,
                                    .position = alias.position,
                                    .parent = alias.parent,
                                    .blocks = {}}),
                changes);
    }
    run.blocks.push_back(alias.block);
  }
  AddCopies(std::move(run), changes);
  return status;
}

// One copy less of each name in the tier. A name without copies in any tier is forgotten; the block
// leaves the set with the last copy of all its names.
void Contents::Remove(const Record& record, std::vector<Event>* changes) {
  Removed last{.tier = record.tier, .blocks = {}};
  stats_.blocks_removed += record.hashes.size();
  for (const uint64_t engine_hash : record.hashes) {
    const auto found = aliases_.find(engine_hash);
    if (found == aliases_.end() || found->second.copies[static_cast<int>(record.tier)] == 0) {
      ++stats_.unknown_removed;
      continue;
    }
    --found->second.copies[static_cast<int>(record.tier)];
    const SequenceHash block = found->second.block;
    if (!found->second.held()) aliases_.erase(found);
    if (DropCopy(record.tier, block)) last.blocks.push_back(block);
  }
  if (!last.blocks.empty()) Change(last, changes);
}

// Blocks by the contract's hashes have no names; their copies are counted in `extra_copies_` alone.
void Contents::StoreHashed(const Record& record, std::vector<Event>* changes) {
  Stored run{.tier = record.tier,
             .position = record.position,
             .parent = SequenceHash{record.parent},
             .blocks = {}};
  run.blocks.reserve(record.hashes.size());
  for (const uint64_t hash : record.hashes) run.blocks.push_back(SequenceHash{hash});
  AddCopies(std::move(run), changes);
}

void Contents::RemoveHashed(const Record& record, std::vector<Event>* changes) {
  Removed blocks{.tier = record.tier, .blocks = {}};
  blocks.blocks.reserve(record.hashes.size());
  for (const uint64_t hash : record.hashes) blocks.blocks.push_back(SequenceHash{hash});
  DropCopies(std::move(blocks), changes);
}

// A side block is kept under a name made of its class and its main block's hash, so that it cannot
// meet the main block itself. Empty: no such class, which calls have checked before.
std::vector<SequenceHash> Contents::SideNames(const Record& record) const {
  std::vector<SequenceHash> names;
  const std::vector<CacheClass>& sides = resident_.layout().sides;
  if (record.side == 0 || record.side > sides.size()) return names;
  const uint64_t tag = SideTag(sides[record.side - 1]);
  names.reserve(record.hashes.size());
  for (const uint64_t hash : record.hashes) names.push_back(SideName(tag, SequenceHash{hash}));
  return names;
}

void Contents::StoreSide(const Record& record, std::vector<Event>* changes) {
  AddCopies({.tier = record.tier, .blocks = SideNames(record), .side = record.side}, changes);
}

void Contents::RemoveSide(const Record& record, std::vector<Event>* changes) {
  DropCopies({.tier = record.tier, .blocks = SideNames(record), .side = record.side}, changes);
}

// Compacts `blocks` to those whose last copy goes.
void Contents::DropCopies(Removed blocks, std::vector<Event>* changes) {
  stats_.blocks_removed += blocks.blocks.size();
  size_t last = 0;
  for (const SequenceHash block : blocks.blocks) {
    if (!resident_.TiersOf(block).Has(blocks.tier)) {
      ++stats_.unknown_removed;
    } else if (DropCopy(blocks.tier, block)) {
      blocks.blocks[last++] = block;
    }
  }
  blocks.blocks.resize(last);
  if (!blocks.blocks.empty()) Change(blocks, changes);
}

// Two passes over tables that may be large, for a rare event. `absl::flat_hash_map` allows erasing
// behind the iterator.
void Contents::Clear(TierMask tiers, std::vector<Event>* changes) {
  ++stats_.clears;
  for (auto it = aliases_.begin(); it != aliases_.end();) {
    for (int tier = 0; tier < kTiers; ++tier) {
      if (tiers.Has(static_cast<Tier>(tier))) it->second.copies[tier] = 0;
    }
    const auto at = it++;
    if (!at->second.held()) aliases_.erase(at);
  }
  for (auto it = extra_copies_.begin(); it != extra_copies_.end();) {
    for (int tier = 0; tier < kTiers; ++tier) {
      if (tiers.Has(static_cast<Tier>(tier))) it->second[tier] = 0;
    }
    const auto at = it++;
    if (at->second == std::array<uint32_t, kTiers>{}) extra_copies_.erase(at);
  }
  Change(Cleared{tiers}, changes);
}

// A full pass: for clears of one tier told over ZeroMQ.
std::vector<uint64_t> Contents::NamesIn(Tier tier) const {
  std::vector<uint64_t> names;
  for (const auto& [name, alias] : aliases_) {
    names.insert(names.end(), alias.copies[static_cast<int>(tier)], name);
  }
  return names;
}

// The seed of a namespace costs a hash; engines send runs of one namespace, so the last one is
// kept.
uint64_t Contents::SeedOf(const Record& record) {
  if (record.lora_name != seed_lora_ || record.cache_salt != seed_salt_) {
    seed_lora_ = record.lora_name;
    seed_salt_ = record.cache_salt;
    seed_ = BlockSeed({seed_lora_, seed_salt_}, contract_);
  }
  return seed_;
}

// One copy more of a name, which may be new. Changes go out block by block in the rare case below.
void Contents::AddAlias(Tier tier, uint64_t engine_hash, SequenceHash parent, SequenceHash block,
                        Position position, std::vector<Event>* changes) {
  Alias& alias = aliases_[engine_hash];
  if (alias.held() && alias.block != block) {
    // The engine gave a name that is in use to other tokens. The block that it meant before loses
    // all copies of this name.
    ++stats_.renamed;
    for (int t = 0; t < kTiers; ++t) {
      for (; alias.copies[t] > 0; --alias.copies[t]) {
        if (DropCopy(static_cast<Tier>(t), alias.block)) {
          Change(Removed{.tier = static_cast<Tier>(t), .blocks = {alias.block}}, changes);
        }
      }
    }
  }
  alias.parent = parent;
  alias.block = block;
  alias.position = position;
  ++alias.copies[static_cast<int>(tier)];
}

// A block that is in the tier already gets one copy more; `Change` adds the others. REQUIRES: no
// block is twice in the run.
void Contents::AddCopies(Stored run, std::vector<Event>* changes) {
  if (run.blocks.empty()) return;
  stats_.blocks_stored += run.blocks.size();
  for (const SequenceHash block : run.blocks) {
    if (resident_.TiersOf(block).Has(run.tier)) {
      ++extra_copies_[block][static_cast<int>(run.tier)];
    }
  }
  Change(run, changes);
}

// REQUIRES: the block is in the tier. Extra copies go first.
bool Contents::DropCopy(Tier tier, SequenceHash block) {
  const auto found = extra_copies_.find(block);
  if (found == extra_copies_.end() || found->second[static_cast<int>(tier)] == 0) return true;
  --found->second[static_cast<int>(tier)];
  if (found->second == std::array<uint32_t, kTiers>{}) extra_copies_.erase(found);
  return false;
}

// `resident_` returns the part of the event that changes the set: only that goes to the leaves.
uint64_t Contents::Change(const Event& event, std::vector<Event>* changes) {
  uint64_t blocks = 0;
  for (Event& change : resident_.Apply(event)) {
    const uint64_t count = BlockCount(change);
    blocks += count;
    if (std::holds_alternative<Stored>(change)) stats_.blocks_stored_passed += count;
    if (std::holds_alternative<Removed>(change)) stats_.blocks_removed_passed += count;
    changes->push_back(std::move(change));
  }
  return blocks;
}

}  // namespace kvatlas
