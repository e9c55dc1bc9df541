// One entry per worker and block, under a hash of both. Two of them colliding makes a wrong
// estimate, nothing worse.

#include "frontend/accuracy/sent_memory.h"

#include <tuple>

#include "absl/hash/hash.h"

namespace kvatlas {

uint64_t SentMemory::Key(std::string_view cell, const HolderId& worker, SequenceHash block) {
  return absl::HashOf(cell, worker.name, worker.rank, Raw(block));
}

// The time is renewed, the place in `by_age_` is not: a block sent often is forgotten as early as
// one sent once. So the two containers always have the same keys.
void SentMemory::Sent(std::string_view cell, const HolderId& worker,
                      std::span<const SequenceHash> leading, Time now) {
  for (SequenceHash block : leading) {
    const uint64_t key = Key(cell, worker, block);
    const auto [at, is_new] = sent_.try_emplace(key, now);
    at->second = now;
    if (is_new) by_age_.push_back(key);
  }
  while (sent_.size() > blocks_max_) {
    sent_.erase(by_age_.front());
    by_age_.pop_front();
  }
}

// Stops at the first unknown block: what lies behind a gap is of no use to a prefix cache.
SentMemory::Reach SentMemory::Find(std::string_view cell, const HolderId& worker,
                                   std::span<const SequenceHash> leading) const {
  Reach reach;
  for (SequenceHash block : leading) {
    const auto found = sent_.find(Key(cell, worker, block));
    if (found == sent_.end()) break;
    ++reach.blocks;
    reach.at = found->second;
  }
  return reach;
}

Time SentMemory::At(std::string_view cell, const HolderId& worker, SequenceHash block) const {
  const auto found = sent_.find(Key(cell, worker, block));
  return found == sent_.end() ? Time(0) : found->second;
}

}  // namespace kvatlas
