#include "indexer/checkpoint/checkpoint_runs.h"

#include <algorithm>
#include <bit>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Places of blocks, found by their hashes: open addressing, at most half full.
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

// 1. Every block learns which one follows it; of several children the first to ask. 2. Those that
// follow none are heads; a parent's position is smaller, so in order of position parents come
// first. 3. Each chain from its head, cut where tiers change.
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
