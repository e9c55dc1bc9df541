#include "indexer/index/index.h"

#include <algorithm>

namespace kvatlas {

// Defaults of the interface, built on `Apply` and `FindOverlaps`: right for every structure, fast
// for none.

Applied Index::ApplyAll(HolderIndex holder, std::span<const Event> events, ChangeLog* changes) {
  return ApplyInOrder(events, [&](const Event& event, uint64_t* changed) {
    const size_t before = changes->blocks();
    const absl::Status status = Apply(holder, event, changes);
    *changed = changes->blocks() - before;
    changes->EndEvent();
    return status;
  });
}

// All at once, so nothing is ever left.
bool Index::Sweep(HolderIndex holder, size_t, ChangeLog* changes) {
  Apply(holder, Cleared{}, changes).IgnoreError();
  return false;
}

void Index::Maintain(size_t) {}

bool Index::MayHold(SequenceHash) const { return true; }

// One question for all tiers together, which decides which holders are in the answer, then one for
// each tier.
void Index::FindTierOverlaps(const OverlapQuery& query, std::vector<TierOverlap>* overlaps) const {
  std::vector<Overlap> found;
  FindOverlaps(query, &found);
  const size_t first = overlaps->size();
  for (const Overlap& each : found)
    overlaps->push_back({.holder = each.holder, .blocks = each.blocks});
  std::sort(overlaps->begin() + first, overlaps->end(),
            [](const TierOverlap& a, const TierOverlap& b) { return a.holder < b.holder; });
  for (int tier = 0; tier < kTiers; ++tier) {
    OverlapQuery of_tier = query;
    of_tier.tiers = static_cast<Tier>(tier);
    found.clear();
    FindOverlaps(of_tier, &found);
    for (const Overlap& each : found) {
      const auto at = std::lower_bound(
          overlaps->begin() + first, overlaps->end(), each.holder,
          [](const TierOverlap& a, HolderIndex holder) { return a.holder < holder; });
      // Every tier is asked, also those beyond `query.tiers`, but only for holders that are in the
      // answer.
      if (at != overlaps->end() && at->holder == each.holder) at->by_tier[tier] = each.blocks;
    }
  }
}

// Sorted by depth: each new depth begins a step.
OverlapSteps StepsOf(std::vector<Overlap> overlaps) {
  std::sort(overlaps.begin(), overlaps.end(), [](const Overlap& a, const Overlap& b) {
    return a.blocks != b.blocks ? a.blocks < b.blocks : a.holder < b.holder;
  });
  OverlapSteps steps;
  for (const Overlap& each : overlaps)
    steps.words_per_step = std::max(steps.words_per_step, Raw(each.holder) / 64 + 1);
  for (const Overlap& each : overlaps) {
    if (steps.depths.empty() || steps.depths.back() != each.blocks) {
      steps.depths.push_back(each.blocks);
      steps.words.resize(steps.words.size() + steps.words_per_step);
    }
    const size_t base = steps.words.size() - steps.words_per_step;
    steps.words[base + Raw(each.holder) / 64] |= uint64_t{1} << (Raw(each.holder) % 64);
  }
  return steps;
}

void Index::FindSteps(const OverlapQuery& query, OverlapSteps* steps) const {
  std::vector<Overlap> found;
  FindOverlaps(query, &found);
  *steps = StepsOf(std::move(found));
}

}  // namespace kvatlas
