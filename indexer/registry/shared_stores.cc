#include "indexer/registry/shared_stores.h"

#include <algorithm>
#include <map>
#include <string>

#include "indexer/base/for_each_bit.h"
#include "indexer/base/tier.h"

namespace kvatlas {
namespace {

void Set(uint32_t number, std::vector<uint64_t>* words) {
  if (words->size() <= number / 64) words->resize(number / 64 + 1);
  (*words)[number / 64] |= uint64_t{1} << (number % 64);
}

// Empty: it has no such label.
std::string_view Label(const HolderInfo& info, std::string_view name) {
  for (const auto& [label, value] : info.labels)
    if (label == name) return value;
  return {};
}

// How many blocks from `at` on the store has, all its holders together. A question gives the
// deepest run of one holder; where that ends another holder may go on, so the next question begins
// there.
uint32_t StoreRun(const Index& index, const SharedStores::Store& store, const OverlapQuery& query,
                  uint32_t at) {
  static thread_local std::vector<Overlap> overlaps;
  uint32_t run = 0;
  for (uint32_t more = 1; more != 0 && at + run < query.blocks.size(); run += more) {
    overlaps.clear();
    index.FindOverlaps({.blocks = query.blocks.subspan(at + run), .only = store.holders},
                       &overlaps);
    more = 0;
    for (const Overlap& overlap : overlaps) more = std::max(more, overlap.blocks);
  }
  return run;
}

}  // namespace

bool IsStore(const HolderInfo& info) { return !Label(info, kHoldsStoreLabel).empty(); }

// A label of both kinds makes the holder a store: it must not load from itself. A store without a
// holder has no blocks and is left out.
SharedStores StoresOf(const Table& table) {
  std::map<std::string_view, SharedStores::Store> by_name;
  SharedStores stores;
  for (uint32_t number = 0; number < table.size(); ++number) {
    if (table[number].info == nullptr) continue;
    const HolderInfo& info = *table[number].info;
    const std::string_view holds = Label(info, kHoldsStoreLabel);
    const std::string_view reaches = Label(info, kStoreLabel);
    if (!holds.empty()) {
      Set(number, &stores.all);
      Set(number, &by_name[holds].holders);
    } else if (!reaches.empty()) {
      by_name[reaches].workers.push_back(number);
    }
  }
  for (auto& [name, store] : by_name)
    if (!store.holders.empty()) stores.stores.push_back(std::move(store));
  return stores;
}

// 1. Workers stand where their own blocks end (`standing`: depth to the set of workers there).
// 2. The store takes all that stand at the least depth as far as it has the blocks; one question
//    serves all of them.
// 3. Each goes on from there with its own blocks beside the device, and stands anew where these
//    end (2). A worker is done where the store has nothing at 2, or itself nothing at 3.
// Each turn takes away the least depth and adds only deeper ones, so it ends; `kStoreTurnsMax`
// bounds it for long prompts.
void ReachThrough(const SharedStores::Store& store, const Index& index, const OverlapQuery& query,
                  std::vector<uint32_t>* depths) {
  static thread_local std::vector<Overlap> overlaps;
  const TierMask own = query.tiers & ~TierMask(Tier::kDevice);
  std::map<uint32_t, std::vector<uint64_t>> standing;
  for (const uint32_t worker : store.workers) Set(worker, &standing[(*depths)[worker]]);
  for (uint32_t turn = 0; turn < kStoreTurnsMax && !standing.empty(); ++turn) {
    const auto [depth, workers] = *standing.begin();
    standing.erase(standing.begin());
    const uint32_t run = StoreRun(index, store, query, depth);
    if (run == 0) continue;
    ForEachBit(workers, [&, from = depth](uint32_t worker) { (*depths)[worker] = from + run; });
    overlaps.clear();
    if (!own.empty())
      index.FindOverlaps(
          {.blocks = query.blocks.subspan(depth + run), .tiers = own, .only = workers}, &overlaps);
    for (const Overlap& overlap : overlaps) {
      if (overlap.blocks == 0) continue;
      const uint32_t worker = Raw(overlap.holder);
      (*depths)[worker] += overlap.blocks;
      Set(worker, &standing[(*depths)[worker]]);
    }
  }
}

}  // namespace kvatlas
