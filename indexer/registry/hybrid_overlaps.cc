// `Find` is the retry loop around versions, `FindReusable` one try, `At` the sets of holders by
// layout that both use. Vectors are thread-local: a question allocates nothing once they have
// grown.

#include "indexer/registry/hybrid_overlaps.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/for_each_bit.h"
#include "indexer/base/ids.h"
#include "indexer/index/reusable.h"

namespace kvatlas {
namespace {

// Kinds of caches in one domain that are told apart.
constexpr size_t kLayoutsMax = 255;
// Tries of a query while holders with side classes are being written. After the last one those are
// marked `written` and the answer stands: a query never waits for a writer.
constexpr int kTriesMax = 4;

// Rounds overlaps down to what the engine loads: beside the device it loads whole chunks
// (`LoadableBlocks`). `on_device`: leading blocks that are on the device; a holder that is not in
// it has none.
void RoundToChunks(const CacheLayout& layout, uint32_t block_size,
                   const std::vector<Overlap>& on_device, std::span<Overlap> overlaps) {
  absl::flat_hash_map<uint32_t, uint32_t> device;
  for (const Overlap& overlap : on_device) device[Raw(overlap.holder)] = overlap.blocks;
  for (Overlap& overlap : overlaps)
    overlap.blocks =
        LoadableBlocks(layout, block_size, device[Raw(overlap.holder)], overlap.blocks);
}

}  // namespace

// Cached by version; made outside of the lock, since `layouts_` takes the domain's. Two questions
// may make it at once, and a slower one may put an older set back: its version is stored with it,
// so the next question makes it anew.
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
    // Beyond `kLayoutsMax` holders are answered by the rules of the last layout. It asks for side
    // classes that they do not have, so the answer is too low, never too high.
    if (known == hybrids->layouts.size() && known < kLayoutsMax) hybrids->layouts.push_back(layout);
    hybrids->numbers.push_back(number);
    hybrids->of_layout.resize(hybrids->layouts.size());
    hybrids->all.resize(number / 64 + 1);
    hybrids->all[number / 64] |= uint64_t{1} << (number % 64);
    std::vector<uint64_t>& alike = hybrids->of_layout[std::min(known, kLayoutsMax - 1)];
    alike.resize(number / 64 + 1);
    alike[number / 64] |= uint64_t{1} << (number % 64);
  }
  MutexLock lock(&mutex_);
  hybrids_ = hybrids->numbers.empty() ? nullptr : std::move(hybrids);
  hybrids_version_ = version;
  return hybrids_;
}

// 1. The version of the layouts, and the sets that belong to it (`At`); without hybrids the index
//    alone answers.
// 2. At the first try two counters tell whether anything is being written: equal means `quiet`.
//    Else, and at further tries, the version of each hybrid holder is read.
// 3. The index and the side index are asked (`FindReusable`).
// 4. If layouts changed meanwhile, again. If it was quiet and no write began, done. Else each
//    holder's version must be even and unchanged.
// 5. After `kTriesMax` tries the holders that were still being written are marked.
void HybridOverlaps::Find(const OverlapQuery& query, bool held_only, std::vector<Overlap>* overlaps,
                          std::vector<HybridOverlap>* hybrid_overlaps) const {
  static thread_local std::vector<uint32_t> versions;
  for (int tries = 1;; ++tries) {
    const uint64_t layouts = version_->load();
    const std::shared_ptr<const Hybrids> hybrids = held_only ? nullptr : At(layouts);
    // `WritesEnded` is read before `WritesBegun`: if they are equal, no write was under way in
    // between.
    uint64_t writes = 0;
    bool quiet = false;
    if (hybrids != nullptr && tries == 1) {
      writes = sides_->WritesEnded();
      quiet = sides_->WritesBegun() == writes;
    }
    if (hybrids != nullptr && !quiet) {
      versions.clear();
      for (uint32_t number : hybrids->numbers)
        versions.push_back(sides_->VersionOf(HolderIndex{number}));
    }
    overlaps->clear();
    hybrid_overlaps->clear();
    if (hybrids == nullptr) {
      index_->FindOverlaps(query, overlaps);
    } else {
      FindReusable(*hybrids, query, overlaps, hybrid_overlaps);
    }
    const bool last = tries == kTriesMax;
    if (!held_only && !last && version_->load() != layouts) continue;
    if (hybrids == nullptr) return;
    if (quiet) {
      if (sides_->WritesBegun() == writes) return;
      continue;
    }
    bool written = false;
    static thread_local std::vector<bool> written_of;
    if (last) written_of.assign(hybrids->all.size() * 64, false);
    for (size_t i = 0; i < hybrids->numbers.size(); ++i) {
      const uint32_t number = hybrids->numbers[i];
      if (versions[i] % 2 == 0 && sides_->VersionOf(HolderIndex{number}) == versions[i]) continue;
      written = true;
      if (!last) break;
      written_of[number] = true;
    }
    if (written && !last) continue;
    const size_t plain = overlaps->size() - hybrid_overlaps->size();
    for (size_t i = 0; written && i < hybrid_overlaps->size(); ++i)
      (*hybrid_overlaps)[i].written = written_of[Raw((*overlaps)[plain + i].holder)];
    return;
  }
}

// 1. The index's compact answer: depth by depth the holders of the main class. Plain holders go to
//    `overlaps` at once.
// 2. Layout by layout `Reusable` appends what its holders can reuse of that, under one shared lock
//    of the side index.
// 3. Layouts with chunks need the depth on the device as well, asked once for all of them, and are
//    rounded (`RoundToChunks`).
// 4. A layout without a main class has an entry for every holder: those with nothing are dropped.
// 5. `of_main` gets what the main class holds, in the order of the hybrids in `overlaps`.
void HybridOverlaps::FindReusable(const Hybrids& hybrids, const OverlapQuery& query,
                                  std::vector<Overlap>* overlaps,
                                  std::vector<HybridOverlap>* of_main) const {
  static thread_local Reusable reusable;
  static thread_local OverlapSteps steps;
  static thread_local std::vector<uint32_t> held_of;
  steps.depths.clear();
  index_->FindSteps(query, &steps);
  held_of.assign(hybrids.all.size() * 64, 0);
  overlaps->reserve(held_of.size());
  of_main->reserve(hybrids.numbers.size());
  for (size_t step = 0; step < steps.depths.size(); ++step) {
    const uint32_t depth = steps.depths[step];
    ForEachBit(steps.holders(step), [&](uint32_t number) {
      if (number < held_of.size()) held_of[number] = depth;
      if (!hybrids.Has(number)) overlaps->push_back({HolderIndex(number), depth});
    });
  }
  const size_t plain = overlaps->size();
  const TierMask on_device = query.tiers & TierMask(Tier::kDevice);
  static thread_local OverlapSteps device_steps;
  static thread_local std::vector<Overlap> on_device_of;
  bool knows_device = false;
  SideIndex::Reader reader(*sides_);
  for (size_t i = 0; i < hybrids.layouts.size(); ++i) {
    const auto first = static_cast<ptrdiff_t>(overlaps->size());
    reusable.Find(*hybrids.layouts[i], query.blocks, block_size_, query.tiers, reader, steps,
                  hybrids.of_layout[i], overlaps);
    if (hybrids.layouts[i]->main.window_tokens != 0 && on_device != query.tiers) {
      if (!std::exchange(knows_device, true)) {
        device_steps.depths.clear();
        if (!on_device.empty())
          index_->FindSteps({.blocks = query.blocks, .tiers = on_device}, &device_steps);
      }
      on_device_of.clear();
      reusable.Find(*hybrids.layouts[i], query.blocks, block_size_, on_device, reader, device_steps,
                    hybrids.of_layout[i], &on_device_of);
      RoundToChunks(*hybrids.layouts[i], block_size_, on_device_of,
                    std::span(*overlaps).subspan(static_cast<size_t>(first)));
    }
    if (hybrids.layouts[i]->has_main) continue;
    const auto nothing = [](const Overlap& overlap) { return overlap.blocks == 0; };
    overlaps->erase(std::remove_if(overlaps->begin() + first, overlaps->end(), nothing),
                    overlaps->end());
  }
  for (size_t i = plain; i < overlaps->size(); ++i)
    of_main->push_back({.held = held_of[Raw((*overlaps)[i].holder)]});
}

}  // namespace kvatlas
