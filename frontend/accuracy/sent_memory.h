// Remembers the leading blocks of the prompts that each worker has finished, so that what it should
// have cached is known without any index.
//
// *Truth*: up to 64 blocks deep. Blocks that the engine has evicted since are still here.
// *Threads*: none; the owner serialises.
// *Bounds*: `blocks_max` blocks and workers together, about 32 bytes each; the oldest goes first.

#ifndef KVATLAS_FRONTEND_ACCURACY_SENT_MEMORY_H_
#define KVATLAS_FRONTEND_ACCURACY_SENT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"

namespace kvatlas {

class SentMemory {
 public:
  explicit SentMemory(size_t blocks_max) : blocks_max_(blocks_max) {}

  void Sent(std::string_view cell, const HolderId& worker, std::span<const SequenceHash> leading,
            Time now);
  struct Reach {
    uint32_t blocks = 0;
    Time at{0};  // when the deepest of them was sent last
  };
  Reach Find(std::string_view cell, const HolderId& worker,
             std::span<const SequenceHash> leading) const;
  // When a prompt with this block was finished there last; 0: never.
  Time At(std::string_view cell, const HolderId& worker, SequenceHash block) const;

  size_t size() const { return sent_.size(); }

 private:
  static uint64_t Key(std::string_view cell, const HolderId& worker, SequenceHash block);

  const size_t blocks_max_;
  absl::flat_hash_map<uint64_t, Time> sent_;
  std::deque<uint64_t> by_age_;  // of `sent_`, by their first time
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_SENT_MEMORY_H_
