// The blocks that a receiver was given, in the device tier only: for tests.

#ifndef KVATLAS_INDEXER_STREAM_HELD_BLOCKS_TEST_UTIL_H_
#define KVATLAS_INDEXER_STREAM_HELD_BLOCKS_TEST_UTIL_H_

#include <functional>
#include <optional>
#include <set>
#include <variant>

#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/stream/receiver.h"

namespace kvatlas {

class Holdings : public HoldingsSink {
 public:
  absl::Status Apply(const Event& event) override {
    if (full) return absl::ResourceExhaustedError("full");
    if (const Stored* stored = std::get_if<Stored>(&event)) {
      held.insert(stored->blocks.begin(), stored->blocks.end());
    } else if (const Removed* removed = std::get_if<Removed>(&event)) {
      for (const SequenceHash block : removed->blocks) held.erase(block);
    } else {
      held.clear();
    }
    return absl::OkStatus();
  }
  void SetLoad(const Load& load_in) override { load = load_in; }
  void SetLayout(const CacheLayout& layout_in) override { layout = layout_in; }
  void ForEachHeld(const std::function<void(SequenceHash, TierMask, SideClass)>& visit) override {
    for (const SequenceHash block : held) visit(block, Tier::kDevice, 0);
  }
  Digest CurrentDigest() override {
    Digest digest;
    for (const SequenceHash block : held) digest.Add(Tier::kDevice, block);
    return digest;
  }

  bool full = false;
  std::set<SequenceHash> held;
  std::optional<Load> load;
  CacheLayout layout;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_HELD_BLOCKS_TEST_UTIL_H_
