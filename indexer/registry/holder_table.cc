#include "indexer/registry/holder_table.h"

#include <utility>

#include "indexer/base/ids.h"

namespace kvatlas {

// Written into its place in the vector at once and taken back if the holder is not live. `asked` is
// the time at which the index was asked: what is known later does not count (`Holder::Describe`).
void AddAnswer(const Table& table, const Overlap& overlap, Time asked, OverlapAnswer* answer,
               std::span<const TierReach> reaches, const HybridOverlap* hybrid) {
  const uint32_t number = Raw(overlap.holder);
  if (number >= table.size() || table[number].holder == nullptr)
    return;  // came after the table was taken
  const TableEntry& entry = table[number];
  // In its place at once, since what was just written is slow to copy; and `emplace_back()` writes
  // zeros slowly.
  static const HolderOverlap kEmpty;
  HolderOverlap& described = *answer->holders.insert(answer->holders.end(), kEmpty);
  if (!entry.holder->Describe(asked, &described)) return answer->holders.pop_back();
  // The holder said hello since the table was taken, so its info is newer than the one that the
  // table keeps alive: the answer keeps this one as well.
  if (described.holder != entry.info.get()) {
    std::shared_ptr<const HolderInfo> info = entry.holder->info();
    described.holder = info.get();
    answer->keeps.push_back(std::move(info));
  }
  described.number = overlap.holder;
  described.blocks = described.held = described.loadable = overlap.blocks;
  if (hybrid != nullptr) {
    described.held = hybrid->held;
    if (hybrid->written && described.trust == Trust::kExact) described.trust = Trust::kDegraded;
  }
  described.loadable_trust = described.trust;
  if (number < reaches.size() && reaches[number].device < overlap.blocks)
    described.reach = reaches[number];
}

// Hybrids are the last of `overlaps`. With `all_holders` the overlaps are put in their places by
// number first, and every other holder of the table is added with 0 blocks.
OverlapAnswer AnswerOf(const std::shared_ptr<const Table>& of, uint32_t block_size,
                       std::span<const Overlap> overlaps, std::span<const HybridOverlap> hybrids,
                       bool all_holders, std::span<const TierReach> reaches, Time now) {
  const Table& table = *of;
  OverlapAnswer answer;
  answer.block_size = block_size;
  answer.keeps.push_back(of);
  answer.holders.reserve(all_holders ? table.size() : overlaps.size());
  const size_t plain = overlaps.size() - hybrids.size();
  const auto add = [&](size_t i) {
    AddAnswer(table, overlaps[i], now, &answer, reaches, i < plain ? nullptr : &hybrids[i - plain]);
  };
  if (!all_holders) {
    for (size_t i = 0; i < overlaps.size(); ++i) add(i);
    return answer;
  }
  std::vector<uint32_t> place(table.size(), UINT32_MAX);
  for (uint32_t i = 0; i < overlaps.size(); ++i)
    if (Raw(overlaps[i].holder) < place.size()) place[Raw(overlaps[i].holder)] = i;
  for (size_t number = 0; number < place.size(); ++number) {
    if (place[number] != UINT32_MAX) {
      add(place[number]);
    } else {
      AddAnswer(table, {HolderIndex(number), 0}, now, &answer, reaches);
    }
  }
  return answer;
}

}  // namespace kvatlas
