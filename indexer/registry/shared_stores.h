// Blocks of a prompt that workers could load from stores that several of them share, beside their
// own.
//
//   a store     a holder with the label `holds_store`: its name. It is no worker: in no answer, only in what workers can load
//   its workers holders with the label `store`: the same name
//
// *Truth*: a worker's own prefix, and from its end on each block that a store of its has, or that
// it has itself beside the device (engines reuse of the device the leading blocks alone: vLLM 0.33,
// `get_computed_blocks`, then the connector's `get_num_new_matched_tokens`). A store need not have
// the blocks before: it may have blocks 3 and 5 alone. Several holders of one store are one. Trust
// is the least of the worker's and the store's. Workers with side classes (windows, states) are not
// extended: what a store has of these is not known.
// *Threads*: pure functions; what they ask of the index is of several instants, so a block that
// moves from worker to store meanwhile may be missed or counted.
// *Cost*: nothing where no holder is a store. Else about one question of the index for each place
// where the store or a worker ends.
// *Bounds*: `kStoreTurnsMax` changes between a store and its workers; behind them nothing more is
// promised.

#ifndef KVATLAS_INDEXER_REGISTRY_SHARED_STORES_H_
#define KVATLAS_INDEXER_REGISTRY_SHARED_STORES_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "indexer/base/overlap.h"
#include "indexer/index/index.h"
#include "indexer/registry/holder_table.h"

namespace kvatlas {

inline constexpr std::string_view kStoreLabel = "store";
inline constexpr std::string_view kHoldsStoreLabel = "holds_store";
inline constexpr uint32_t kStoreTurnsMax = 256;

// Sets of holders: h is bit h % 64 of word h / 64.
struct SharedStores {
  struct Store {
    std::vector<uint64_t> holders;
    std::vector<uint32_t> workers;
  };
  std::vector<Store> stores;
  std::vector<uint64_t> all;  // holders that are stores

  bool IsStore(uint32_t number) const {
    return number / 64 < all.size() && (all[number / 64] >> (number % 64) & 1) != 0;
  }
};

bool IsStore(const HolderInfo& info);
SharedStores StoresOf(const Table& table);

// By holder number: how far the store's workers reach. `depths` has what they reach by themselves,
// for all holders of the table.
void ReachThrough(const SharedStores::Store& store, const Index& index, const OverlapQuery& query,
                  std::vector<uint32_t>* depths);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_SHARED_STORES_H_
