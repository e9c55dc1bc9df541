#include "indexer/base/event.h"

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

struct CountBlocks {
  size_t operator()(const Stored& stored) const { return stored.blocks.size(); }
  size_t operator()(const Removed& removed) const { return removed.blocks.size(); }
  size_t operator()(const Cleared&) const { return 0; }
};

}  // namespace

size_t BlockCount(const Event& event) { return std::visit(CountBlocks{}, event); }

// Linear in the events, not in their blocks.
size_t BlockCount(const Batch& batch) {
  size_t count = 0;
  for (const Event& event : batch.events) count += BlockCount(event);
  return count;
}

// Integer sums may wrap only beyond 2^32 requests, which no fleet has.
Load& Load::operator+=(const Load& other) {
  running_requests += other.running_requests;
  waiting_requests += other.waiting_requests;
  used_blocks += other.used_blocks;
  free_blocks += other.free_blocks;
  waiting_prefill_blocks += other.waiting_prefill_blocks;
  tokens_per_s += other.tokens_per_s;
  workers += other.workers;
  return *this;
}

void Digest::Add(Tier tier, SequenceHash block) {
  OfTier& of_tier = tiers[static_cast<int>(tier)];
  of_tier.blocks += 1;
  of_tier.sum += DigestTerm(block);
}

// Sums are mod 2^64, so the order of adding and subtracting does not matter.
void Digest::Subtract(Tier tier, SequenceHash block) {
  OfTier& of_tier = tiers[static_cast<int>(tier)];
  of_tier.blocks -= 1;
  of_tier.sum -= DigestTerm(block);
}

}  // namespace kvatlas
