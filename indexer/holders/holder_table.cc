#include "indexer/holders/holder_table.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/ids.h"

namespace kvatlas {

void AddAnswer(const Table& table, const Overlap& overlap, Time asked, OverlapAnswer* answer,
               std::span<const TierReach> reaches) {
  const uint32_t number = Raw(overlap.holder);
  if (number >= table.size() || table[number].holder == nullptr)
    return;  // came after the table was taken
  const TableEntry& entry = table[number];
  // In its place at once, since what was just written is slow to copy; and `emplace_back()` writes zeros slowly.
  static const HolderOverlap nobody;
  HolderOverlap& described = *answer->holders.insert(answer->holders.end(), nobody);
  if (!entry.holder->Describe(asked, &described)) return answer->holders.pop_back();
  // Said hello since the table was taken, or is about to be in the next one as such.
  if (described.holder != entry.info.get()) {
    std::shared_ptr<const HolderInfo> info = entry.holder->info();
    described.holder = info.get();
    answer->keeps.push_back(std::move(info));
  }
  described.blocks = described.held = overlap.blocks;
  if (number < reaches.size() && reaches[number].device < overlap.blocks)
    described.reach = reaches[number];
}

OverlapAnswer AnswerOf(const std::shared_ptr<const Table>& of, uint32_t block_size,
                       std::span<const Overlap> overlaps, bool all_holders,
                       std::span<const TierReach> reaches, Time now) {
  const Table& table = *of;
  OverlapAnswer answer;
  answer.block_size = block_size;
  answer.keeps.push_back(of);
  answer.holders.reserve(all_holders ? table.size() : overlaps.size());
  if (!all_holders) {
    for (const Overlap& overlap : overlaps) AddAnswer(table, overlap, now, &answer, reaches);
    return answer;
  }
  std::vector<uint32_t> blocks(table.size(), 0);
  for (const Overlap& overlap : overlaps) {
    if (Raw(overlap.holder) < blocks.size()) blocks[Raw(overlap.holder)] = overlap.blocks;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    AddAnswer(table, {HolderIndex(i), blocks[i]}, now, &answer, reaches);
  }
  return answer;
}

void NoteHeld(const Table& table, std::span<const HybridOverlap> hybrids, OverlapAnswer* answer) {
  absl::flat_hash_map<const HolderInfo*, const HybridOverlap*> by_info;
  for (const HybridOverlap& hybrid : hybrids)
    if (hybrid.number < table.size() && table[hybrid.number].holder != nullptr)
      by_info[table[hybrid.number].info.get()] = &hybrid;
  for (HolderOverlap& overlap : answer->holders) {
    const auto found = by_info.find(overlap.holder);
    if (found == by_info.end()) continue;
    overlap.held = found->second->held;
    if (found->second->written && overlap.trust == Trust::kExact) overlap.trust = Trust::kDegraded;
  }
}

}  // namespace kvatlas
