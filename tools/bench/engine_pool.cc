#include "tools/bench/engine_pool.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "tools/testing/mock_engine/block_pool.h"

namespace kvatlas {
namespace {

class LruEnginePool : public EnginePool {
 public:
  explicit LruEnginePool(uint64_t capacity) : pool_(capacity) {}

  uint32_t CachedPrefix(std::span<const SequenceHash> sequence) const override {
    return pool_.CachedPrefix(sequence);
  }

  bool Serve(std::span<const SequenceHash> sequence, std::vector<SequenceHash>* evicted) override {
    if (!pool_.Fits(sequence)) return false;
    pool_.Take(sequence, evicted);
    pool_.Free(sequence);
    return true;
  }

 private:
  BlockPool pool_;
};

class RandomEnginePool : public EnginePool {
 public:
  RandomEnginePool(uint64_t capacity, std::mt19937_64* random)
      : capacity_(capacity), random_(random) {}

  uint32_t CachedPrefix(std::span<const SequenceHash> sequence) const override {
    uint32_t cached = 0;
    while (cached < sequence.size() && places_.contains(sequence[cached])) ++cached;
    return cached;
  }

  bool Serve(std::span<const SequenceHash> sequence, std::vector<SequenceHash>* evicted) override {
    const absl::flat_hash_set<SequenceHash> wanted(sequence.begin(), sequence.end());
    if (wanted.size() > capacity_) return false;
    const size_t missing = std::count_if(wanted.begin(), wanted.end(),
                                         [&](SequenceHash b) { return !places_.contains(b); });
    // Enough of what is not wanted is always there: missing + wanted and cached <= capacity.
    while (blocks_.size() + missing > capacity_) {
      const size_t place = (*random_)() % blocks_.size();
      if (wanted.contains(blocks_[place])) continue;
      evicted->push_back(blocks_[place]);
      Erase(place);
    }
    for (SequenceHash block : sequence) {
      if (places_.try_emplace(block, blocks_.size()).second) blocks_.push_back(block);
    }
    return true;
  }

 private:
  void Erase(size_t place) {
    places_.erase(blocks_[place]);
    if (place + 1 < blocks_.size()) {
      blocks_[place] = blocks_.back();
      places_[blocks_[place]] = place;
    }
    blocks_.pop_back();
  }

  const uint64_t capacity_;
  std::mt19937_64* const random_;
  std::vector<SequenceHash> blocks_;
  absl::flat_hash_map<SequenceHash, size_t> places_;  // of each block in `blocks_`
};

}  // namespace

std::unique_ptr<EnginePool> MakeLruEnginePool(uint64_t capacity) {
  return std::make_unique<LruEnginePool>(capacity);
}

std::unique_ptr<EnginePool> MakeRandomEnginePool(uint64_t capacity, std::mt19937_64* random) {
  return std::make_unique<RandomEnginePool>(capacity, random);
}

}  // namespace kvatlas
