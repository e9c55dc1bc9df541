#include "indexer/holders/hybrid_overlaps.h"

#include <algorithm>

#include "indexer/base/ids.h"
#include "indexer/index/reusable.h"

namespace kvatlas {
namespace {

constexpr size_t kLayoutsMax = 255;
// At a query while holders with side classes are written.
constexpr int kTriesMax = 4;

}  // namespace

std::shared_ptr<const HybridOverlaps::Hybrids> HybridOverlaps::At(uint64_t version) const {
  if (version == 0) return nullptr;
  {
    MutexLock lock(&mutex_);
    if (hybrids_version_ == version) return hybrids_;
  }
  auto hybrids = std::make_shared<Hybrids>();
  for (const auto& [number, layout] : layouts_()) {
    size_t known = 0;
    while (known < hybrids->layouts.size() && *hybrids->layouts[known] != *layout) ++known;
    // Beyond so many kinds of caches in one domain holders are answered by the rules of the last one, which asks of side
    // classes that they do not have.
    if (known == hybrids->layouts.size() && known < kLayoutsMax) hybrids->layouts.push_back(layout);
    hybrids->layout_of.resize(number + 1, 0);
    hybrids->layout_of[number] = static_cast<uint8_t>(std::min(known + 1, kLayoutsMax));
    hybrids->numbers.push_back(number);
  }
  MutexLock lock(&mutex_);
  hybrids_ = hybrids->numbers.empty() ? nullptr : std::move(hybrids);
  hybrids_version_ = version;
  return hybrids_;
}

void HybridOverlaps::Find(const OverlapQuery& query, bool held_only, std::vector<Overlap>* overlaps,
                          std::vector<HybridOverlap>* hybrid_overlaps) const {
  static thread_local std::vector<uint32_t> versions;
  for (int tries = 1;; ++tries) {
    const uint64_t layouts = version_->load();
    const std::shared_ptr<const Hybrids> hybrids = held_only ? nullptr : At(layouts);
    if (hybrids != nullptr) {
      versions.clear();
      for (uint32_t number : hybrids->numbers)
        versions.push_back(sides_->VersionOf(HolderIndex{number}));
    }
    overlaps->clear();
    index_->FindOverlaps(query, overlaps);
    if (hybrids != nullptr) Reduce(*hybrids, query, overlaps, hybrid_overlaps);
    const bool last = tries == kTriesMax;
    if (!held_only && !last && version_->load() != layouts) continue;
    if (hybrids == nullptr) return;
    bool written = false;
    static thread_local std::vector<bool> written_of;
    written_of.assign(hybrids->layout_of.size(), false);
    for (size_t i = 0; i < hybrids->numbers.size(); ++i) {
      const uint32_t number = hybrids->numbers[i];
      if (versions[i] % 2 == 0 && sides_->VersionOf(HolderIndex{number}) == versions[i]) continue;
      written = written_of[number] = true;
    }
    if (written && !last) continue;
    for (HybridOverlap& overlap : *hybrid_overlaps) overlap.written = written_of[overlap.number];
    return;
  }
}

void HybridOverlaps::Reduce(const Hybrids& hybrids, const OverlapQuery& query,
                            std::vector<Overlap>* overlaps,
                            std::vector<HybridOverlap>* held) const {
  static thread_local Reusable reusable;
  static thread_local std::vector<Overlap> of_layout;
  static thread_local std::vector<uint32_t> held_of;
  held->clear();
  held_of.assign(hybrids.layout_of.size(), 0);
  for (const Overlap& overlap : *overlaps)
    if (hybrids.LayoutOf(Raw(overlap.holder)) != 0) held_of[Raw(overlap.holder)] = overlap.blocks;
  std::erase_if(*overlaps,
                [&](const Overlap& overlap) { return hybrids.LayoutOf(Raw(overlap.holder)) != 0; });
  SideIndex::Reader reader(*sides_);
  for (size_t i = 0; i < hybrids.layouts.size(); ++i) {
    const CacheLayout& layout = *hybrids.layouts[i];
    of_layout.clear();
    for (uint32_t number : hybrids.numbers) {
      if (hybrids.layout_of[number] != i + 1) continue;
      if (layout.has_main && held_of[number] == 0) continue;
      of_layout.push_back({HolderIndex{number}, held_of[number]});
    }
    reusable.Find(layout, query.blocks, block_size_, query.tiers, reader, of_layout);
    for (const Overlap& overlap : of_layout) {
      const uint32_t number = Raw(overlap.holder);
      if (overlap.blocks == 0 && held_of[number] == 0) continue;
      overlaps->push_back(overlap);
      held->push_back({.number = number, .held = held_of[number]});
    }
  }
}

}  // namespace kvatlas
