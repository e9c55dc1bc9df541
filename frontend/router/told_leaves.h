// The leaves that heard of a choice, so that they can hear of its end.
//
// *Threads*: none; the owner serialises. *Bounds*: `kToldMax`, and `kRoutedTtl`: a leaf expects no
// longer itself.

#ifndef KVATLAS_FRONTEND_ROUTER_TOLD_LEAVES_H_
#define KVATLAS_FRONTEND_ROUTER_TOLD_LEAVES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/routed.h"

namespace kvatlas {

struct ToldLeaf {
  Domain domain;
  std::shared_ptr<const std::vector<std::string>> addresses;  // of the cell's replicas
};

class ToldLeaves {
 public:
  static constexpr size_t kToldMax = 65536;

  void Add(uint64_t decision, ToldLeaf leaf, Time now) {
    while (!by_age_.empty() &&
           (by_age_.front().first + kRoutedTtl <= now || told_.size() >= kToldMax ||
            !told_.contains(by_age_.front().second))) {
      told_.erase(by_age_.front().second);
      by_age_.pop_front();
    }
    told_[decision] = std::move(leaf);
    by_age_.emplace_back(now, decision);
  }

  // Nothing: none was, or it is too long ago.
  std::optional<ToldLeaf> Take(uint64_t decision) {
    const auto found = told_.find(decision);
    if (found == told_.end()) return std::nullopt;
    ToldLeaf leaf = std::move(found->second);
    told_.erase(found);
    return leaf;
  }

 private:
  absl::flat_hash_map<uint64_t, ToldLeaf> told_;
  std::deque<std::pair<Time, uint64_t>>
      by_age_;  // those that were taken are skipped at the old end
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_TOLD_LEAVES_H_
