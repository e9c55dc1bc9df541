#include "indexer/stream/resident_set.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"

namespace kvatlas {
namespace {

constexpr Tier kAllTiers[kTiers] = {Tier::kDevice, Tier::kHost, Tier::kDisk, Tier::kExternal};

// Where a chain of blocks ends, deepest first so that the first chain of a branch is its longest.
struct Tail {
  Position position;
  SequenceHash block;

  friend bool operator<(const Tail& a, const Tail& b) {
    return a.position != b.position ? a.position > b.position : Raw(a.block) < Raw(b.block);
  }
};

// Appends `chain` (its parent being `parent`) as runs of at most `kBatchBlocksMax` blocks.
void AppendRuns(Tier tier, Position position, SequenceHash parent,
                const std::vector<SequenceHash>& chain, std::vector<Stored>* runs) {
  for (size_t from = 0; from < chain.size(); from += kBatchBlocksMax) {
    const size_t to = std::min(chain.size(), from + kBatchBlocksMax);
    runs->push_back(Stored{.tier = tier,
                           .position = position + static_cast<Position>(from),
                           .parent = from == 0 ? parent : chain[from - 1],
                           .blocks = {chain.begin() + from, chain.begin() + to}});
  }
}

}  // namespace

std::vector<Event> ResidentSet::Apply(const Event& event) {
  if (const Stored* stored = std::get_if<Stored>(&event)) return Store(*stored);
  if (const Removed* removed = std::get_if<Removed>(&event)) return Remove(*removed);
  return Clear(std::get<Cleared>(event));
}

std::vector<Event> ResidentSet::Store(const Stored& stored) {
  std::vector<Event> changes;
  Stored* run = nullptr;  // the run being extended; null after a block that was held already
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const SequenceHash block = stored.blocks[i];
    const SequenceHash parent = i == 0 ? stored.parent : stored.blocks[i - 1];
    const Position position = stored.position + static_cast<Position>(i);
    Entry& entry = blocks_.try_emplace(block, Entry{parent, position, TierMask()}).first->second;
    if (entry.tiers.Has(stored.tier)) {
      run = nullptr;
      continue;
    }
    entry.tiers = entry.tiers | stored.tier;
    digest_.Add(stored.tier, block);
    if (run == nullptr) {
      changes.push_back(
          Stored{.tier = stored.tier, .position = position, .parent = parent, .blocks = {}});
      run = &std::get<Stored>(changes.back());
    }
    run->blocks.push_back(block);
  }
  return changes;
}

std::vector<Event> ResidentSet::Remove(const Removed& removed) {
  Removed change{.tier = removed.tier, .blocks = {}};
  for (const SequenceHash block : removed.blocks) {
    const auto found = blocks_.find(block);
    if (found == blocks_.end() || !found->second.tiers.Has(removed.tier)) continue;
    found->second.tiers = found->second.tiers & ~TierMask(removed.tier);
    if (found->second.tiers.empty()) blocks_.erase(found);
    digest_.Subtract(removed.tier, block);
    change.blocks.push_back(block);
  }
  if (change.blocks.empty()) return {};
  return {std::move(change)};
}

std::vector<Event> ResidentSet::Clear(const Cleared& cleared) {
  TierMask held;
  for (const Tier tier : kAllTiers) {
    if (digest_.tiers[static_cast<int>(tier)].blocks != 0) held = held | tier;
  }
  const TierMask gone = held & cleared.tiers;
  if (gone.empty()) return {};
  for (const Tier tier : kAllTiers) {
    if (gone.Has(tier)) digest_.tiers[static_cast<int>(tier)] = {};
  }
  if (gone == held) {
    blocks_ = {};  // gives the memory back, which clear() would not
  } else {
    for (auto it = blocks_.begin(); it != blocks_.end();) {
      it->second.tiers = it->second.tiers & ~gone;
      if (it->second.tiers.empty()) {
        blocks_.erase(it++);
      } else {
        ++it;
      }
    }
  }
  return {Cleared{gone}};
}

TierMask ResidentSet::TiersOf(SequenceHash block) const {
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? TierMask() : found->second.tiers;
}

std::vector<Stored> ResidentSet::AsRuns() const {
  std::vector<Stored> runs;
  for (const Tier tier : kAllTiers) AppendRunsOf(tier, &runs);
  return runs;
}

// From the deepest block that no run has yet, up through its parents while they are held in the tier and free: so
// a run that branches off comes after the one it branches off from.
void ResidentSet::AppendRunsOf(Tier tier, std::vector<Stored>* runs) const {
  const size_t count = digest_.tiers[static_cast<int>(tier)].blocks;
  if (count == 0) return;
  std::vector<Tail> tails;
  tails.reserve(count);
  for (const auto& [block, entry] : blocks_) {
    if (entry.tiers.Has(tier)) tails.push_back({entry.position, block});
  }
  std::sort(tails.begin(), tails.end());
  absl::flat_hash_set<SequenceHash> taken;
  taken.reserve(count);
  std::vector<SequenceHash> chain;
  for (const Tail& tail : tails) {
    if (!taken.insert(tail.block).second) continue;
    chain.assign(1, tail.block);
    const Entry* head = &blocks_.find(tail.block)->second;
    while (head->position > 0) {
      const auto above = blocks_.find(head->parent);
      if (above == blocks_.end() || !above->second.tiers.Has(tier) ||
          above->second.position + 1 != head->position || !taken.insert(above->first).second) {
        break;
      }
      chain.push_back(above->first);
      head = &above->second;
    }
    std::reverse(chain.begin(), chain.end());
    AppendRuns(tier, head->position, head->parent, chain, runs);
  }
}

}  // namespace kvatlas
