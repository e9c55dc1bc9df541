// Orders one holder's blocks for a checkpoint: linear in their number but for the sorting of heads,
// and without pointers: blocks are 32-bit places in the vector of holdings.

#include "indexer/checkpoint/checkpoint_runs.h"

#include <algorithm>
#include <bit>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// From a block's hash to its place: open addressing with linear probing. The table is a power of
// two and at most half full, so a probe always meets an empty slot. The multiplication spreads the
// hash's bits: `shift_` takes the highest.
class Places {
 public:
  explicit Places(const std::vector<Holding>& holdings)
      : holdings_(holdings),
        shift_(64 - std::bit_width(std::max<size_t>(2 * holdings.size(), 16) - 1)),
        slots_(uint64_t{1} << (64 - shift_), kNone) {
    for (uint32_t i = 0; i < holdings.size(); ++i) {
      uint64_t slot = SlotOf(holdings[i].block);
      while (slots_[slot] != kNone) slot = Next(slot);
      slots_[slot] = i;
    }
  }

  uint32_t Find(SequenceHash block) const {
    for (uint64_t slot = SlotOf(block); slots_[slot] != kNone; slot = Next(slot))
      if (holdings_[slots_[slot]].block == block) return slots_[slot];
    return kNone;
  }

 private:
  uint64_t SlotOf(SequenceHash block) const {
    return (Raw(block) * 0x9e3779b97f4a7c15ull) >> shift_;
  }
  uint64_t Next(uint64_t slot) const { return (slot + 1) & (slots_.size() - 1); }

  const std::vector<Holding>& holdings_;
  const int shift_;
  std::vector<uint32_t> slots_;
};

}  // namespace

// 1. Each block looks its parent up and becomes the parent's successor. The first of several
//    children wins; the others start chains of their own. A parent counts only one position
//    before its child.
// 2. Blocks that succeed none are heads: roots, blocks behind a hole, further children. A parent's
//    position is smaller than its child's, so heads in the order of position come parents first.
// 3. Each chain is walked from its head and cut where the tiers change or a run is full. A cut
//    chain stays in order, so its later runs come behind the run of their parent.
// A block in the order of step 3 is visited once: each has at most one predecessor, and positions
// grow along a chain, so there is no cycle.
absl::Status VisitRuns(const std::vector<Holding>& holdings,
                       const std::function<absl::Status(std::span<const uint32_t>)>& visit) {
  std::vector<uint32_t> next(holdings.size(), kNone), heads;
  {
    const Places places(holdings);
    for (uint32_t i = 0; i < holdings.size(); ++i) {
      const Holding& holding = holdings[i];
      const uint32_t parent = holding.position == 0 || holding.parent == kNoParent
                                  ? kNone
                                  : places.Find(holding.parent);
      const bool follows = parent != kNone && next[parent] == kNone &&
                           holdings[parent].position == holding.position - 1;
      if (follows) {
        next[parent] = i;
      } else {
        heads.push_back(i);
      }
    }
  }
  std::stable_sort(heads.begin(), heads.end(), [&](uint32_t a, uint32_t b) {
    return holdings[a].position < holdings[b].position;
  });
  std::vector<uint32_t> run;
  run.reserve(kBatchBlocksMax);
  for (const uint32_t head : heads) {
    for (uint32_t i = head; i != kNone; i = next[i]) {
      run.push_back(i);
      const bool ends = next[i] == kNone || run.size() == kBatchBlocksMax ||
                        !(holdings[next[i]].tiers == holdings[i].tiers);
      if (!ends) continue;
      if (absl::Status status = visit(run); !status.ok()) return status;
      run.clear();
    }
  }
  return absl::OkStatus();
}

}  // namespace kvatlas
