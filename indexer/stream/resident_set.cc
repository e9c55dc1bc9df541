// Two directions: events into the set, less what has no effect (`Store`, `Remove`, `Clear`), and
// the set back into runs for a snapshot (`AsRuns`). The set stores parents alone, so runs are found
// from their ends: `TailsOf` sorts all blocks of a tier by depth, `AppendRunsOf` walks up from
// each.

#include "indexer/stream/resident_set.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <variant>

#include "indexer/base/assert.h"

namespace kvatlas {
namespace {

constexpr Tier kAllTiers[kTiers] = {Tier::kDevice, Tier::kHost, Tier::kDisk, Tier::kExternal};

// A large set's blocks are looked at in an order of their own, each a cache miss unless it is
// fetched so far ahead.
constexpr size_t kAhead = 16;

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

// A block at which a run may end. Sorted with the deepest first, so that the first run found
// through a block is the longest; equal depths by hash, so that equal sets give equal runs.
struct ResidentSet::Tail {
  SequenceHash block;
  const Entry* entry;
  Position position;

  friend bool operator<(const Tail& a, const Tail& b) {
    return a.position != b.position ? a.position > b.position : Raw(a.block) < Raw(b.block);
  }
};

std::vector<Event> ResidentSet::Apply(const Event& event) {
  if (const Stored* stored = std::get_if<Stored>(&event)) return Store(*stored);
  if (const Removed* removed = std::get_if<Removed>(&event)) return Remove(*removed);
  return Clear(std::get<Cleared>(event));
}

// A block that is held in the tier already ends the run, as the event must not name it: what
// follows begins a new run behind it. Side blocks have no order, so theirs go on in one event. The
// first store of a block fixes its parent, position and class; later ones only add tiers.
std::vector<Event> ResidentSet::Store(const Stored& stored) {
  std::vector<Event> changes;
  any_side_ = any_side_ || stored.side != 0;
  Stored* run = nullptr;  // the run being extended; null after a block that was held already
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const SequenceHash block = stored.blocks[i];
    const SequenceHash parent = i == 0 ? stored.parent : stored.blocks[i - 1];
    const Position position = stored.position + static_cast<Position>(i);
    const Entry fresh = stored.side == 0 ? Entry{parent, position, TierMask()}
                                         : Entry{kNoParent, 0, TierMask(), stored.side};
    Entry& entry = blocks_.try_emplace(block, fresh).first->second;
    if (entry.tiers.Has(stored.tier)) {
      if (stored.side == 0) run = nullptr;
      continue;
    }
    entry.tiers = entry.tiers | stored.tier;
    digest_.Add(stored.tier, block);
    if (run == nullptr) {
      changes.push_back(
          stored.side == 0
              ? Stored{.tier = stored.tier, .position = position, .parent = parent, .blocks = {}}
              : Stored{.tier = stored.tier, .blocks = {}, .side = stored.side});
      run = &std::get<Stored>(changes.back());
    }
    run->blocks.push_back(block);
  }
  return changes;
}

std::vector<Event> ResidentSet::Remove(const Removed& removed) {
  Removed change{.tier = removed.tier, .blocks = {}, .side = removed.side};
  for (const SequenceHash block : removed.blocks) {
    const auto found = blocks_.find(block);
    if (found == blocks_.end() || !found->second.tiers.Has(removed.tier)) continue;
    found->second.tiers = found->second.tiers & ~TierMask(removed.tier);
    if (found->second.tiers.empty()) blocks_.erase(found);
    KVATLAS_ASSERT(digest_.tiers[static_cast<int>(removed.tier)].blocks != 0);
    digest_.Subtract(removed.tier, block);
    change.blocks.push_back(block);
  }
  if (change.blocks.empty()) return {};
  return {std::move(change)};
}

// Tiers that are empty already are left out of the event. A clear of everything is one step; of
// some tiers it walks all blocks.
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
    KVATLAS_ASSERT(digest_ == Digest{});
    any_side_ = false;
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
  if (any_side_) AppendSides(&runs);
  return runs;
}

bool ResidentSet::SetLayout(const CacheLayout& layout) {
  if (layout == layout_) return false;
  layout_ = layout;
  return true;
}

// Side blocks by class and tier, in the order of their names: a `std::map` and a sort, so that
// equal sets give equal runs here as well.
void ResidentSet::AppendSides(std::vector<Stored>* runs) const {
  std::map<std::pair<SideClass, Tier>, std::vector<SequenceHash>> sides;
  for (const auto& [block, entry] : blocks_) {
    if (entry.side == 0) continue;
    for (const Tier tier : kAllTiers)
      if (entry.tiers.Has(tier)) sides[{entry.side, tier}].push_back(block);
  }
  for (auto& [of, names] : sides) {
    std::sort(names.begin(), names.end());
    for (size_t from = 0; from < names.size(); from += kBatchBlocksMax) {
      const size_t to = std::min(names.size(), from + kBatchBlocksMax);
      runs->push_back(Stored{.tier = of.second,
                             .blocks = {names.begin() + from, names.begin() + to},
                             .side = of.first});
    }
  }
}

// All blocks of the tier with their entries, `taken` reset; side blocks count as taken from the
// start. First a counting sort by depth into ranges of `width` positions, which compares nothing,
// then each range is sorted by itself: millions of blocks are sorted in small parts. REQUIRES: no
// change of the set before the result is used, since it points into it.
std::vector<ResidentSet::Tail> ResidentSet::TailsOf(Tier tier) const {
  const size_t count = digest_.tiers[static_cast<int>(tier)].blocks;
  Position deepest = 0;
  for (const auto& [block, entry] : blocks_) {
    entry.taken = entry.side != 0;
    if (entry.tiers.Has(tier)) deepest = std::max(deepest, entry.position);
  }
  // `at[i + 1]` counts range i, and is summed to where it begins. As many ranges as blocks at most:
  // a few blocks at huge positions must not need a table of all positions.
  const uint64_t width = deepest / std::max<uint64_t>(count, 1) + 1;
  std::vector<size_t> at(deepest / width + 2);
  for (const auto& [block, entry] : blocks_)
    if (entry.tiers.Has(tier)) ++at[(deepest - entry.position) / width + 1];
  std::partial_sum(at.begin(), at.end(), at.begin());
  std::vector<Tail> tails(at.back());
  for (const auto& [block, entry] : blocks_)
    if (entry.tiers.Has(tier))
      tails[at[(deepest - entry.position) / width]++] = {block, &entry, entry.position};
  // `at` has the ends now.
  for (size_t i = 0; i + 1 < at.size(); ++i)
    std::sort(tails.begin() + static_cast<std::ptrdiff_t>(i == 0 ? 0 : at[i - 1]),
              tails.begin() + static_cast<std::ptrdiff_t>(at[i]));
  return tails;
}

// From the deepest block that no run has yet, up through its parents while they are held in the
// tier and free. A run that branches off ends at the branch and comes after the run that has it, as
// a receiver needs parents first. Each block is taken once, so the walk is O(blocks). The position
// is compared as well as the parent: a sender's events may lie about parents, and a circle would
// not end.
void ResidentSet::AppendRunsOf(Tier tier, std::vector<Stored>* runs) const {
  const size_t count = digest_.tiers[static_cast<int>(tier)].blocks;
  if (count == 0) return;
  const std::vector<Tail> tails = TailsOf(tier);
  std::vector<SequenceHash> chain;
  for (size_t i = 0; i < tails.size(); ++i) {
    if (i + kAhead < tails.size()) __builtin_prefetch(tails[i + kAhead].entry, 1);
    const Entry* head = tails[i].entry;
    if (head->taken) continue;
    head->taken = true;
    chain.assign(1, tails[i].block);
    while (head->position > 0) {
      const auto above = blocks_.find(head->parent);
      if (above == blocks_.end()) break;
      const Entry& entry = above->second;
      if (!entry.tiers.Has(tier) || entry.position + 1 != head->position || entry.taken) break;
      entry.taken = true;
      chain.push_back(above->first);
      head = &entry;
    }
    std::reverse(chain.begin(), chain.end());
    AppendRuns(tier, head->position, head->parent, chain, runs);
  }
}

}  // namespace kvatlas
