// The holders of a domain by their numbers, and answers made of them. A part of `HolderRegistry`.

#ifndef KVATLAS_INDEXER_REGISTRY_HOLDER_TABLE_H_
#define KVATLAS_INDEXER_REGISTRY_HOLDER_TABLE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/overlap.h"
#include "indexer/registry/holder.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/registry/hybrid_overlaps.h"
#include "indexer/registry/tier_reach.h"

namespace kvatlas {

using HolderPtr = std::shared_ptr<Holder>;
// By the holder's number in the index; null where there is none. `info` is the holder's, at hand.
struct TableEntry {
  HolderPtr holder;
  std::shared_ptr<const HolderInfo> info;
};
using Table = std::vector<TableEntry>;

// Appends what the index said of a holder, unless it is not live, or came after the table was
// taken.
void AddAnswer(const Table& table, const Overlap& overlap, Time asked, OverlapAnswer* answer,
               std::span<const TierReach> reaches = {}, const HybridOverlap* hybrid = nullptr);

// `hybrids`: of the last of `overlaps`, in their order.
OverlapAnswer AnswerOf(const std::shared_ptr<const Table>& of, uint32_t block_size,
                       std::span<const Overlap> overlaps, std::span<const HybridOverlap> hybrids,
                       bool all_holders, std::span<const TierReach> reaches, Time now);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_HOLDER_TABLE_H_
