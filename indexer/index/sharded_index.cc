// Holder h is in shard h mod N under number h / N, so both directions are arithmetic and no map is
// kept. Every call goes to one shard but for questions, upkeep and figures, which go to all in
// turn.

#include "indexer/index/sharded_index.h"

#include <algorithm>
#include <bit>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

// The least that an index can live in (`IndexOptions::address_bytes_max`).
constexpr uint64_t kAddressBytesMin = uint64_t{16} << 20;

class ShardedIndex : public Index {
 public:
  ShardedIndex(uint32_t holders_max, std::vector<std::unique_ptr<Index>> shards)
      : holders_max_(holders_max), shards_(std::move(shards)) {}

  std::string_view Name() const override { return shards_[0]->Name(); }

  // The smallest free number is the smallest free one of its shard, too: a smaller free one there
  // would be a smaller one here.
  absl::StatusOr<HolderIndex> AddHolder() override {
    MutexLock lock(&mutex_);
    const uint32_t number = free_.empty() ? next_ : *free_.begin();
    if (number >= holders_max_) return absl::ResourceExhaustedError("holders_max reached");
    const absl::StatusOr<HolderIndex> inside = shards_[number % count()]->AddHolder();
    if (!inside.ok()) return inside.status();
    if (free_.empty()) {
      ++next_;
    } else {
      free_.erase(free_.begin());
    }
    return HolderIndex{number};
  }

  // The mutex orders numbers only; calls that name a holder do not take it.
  void RemoveHolder(HolderIndex holder) override {
    MutexLock lock(&mutex_);
    if (Raw(holder) >= next_ || free_.contains(Raw(holder))) return;
    ShardOf(holder)->RemoveHolder(Inside(holder));
    free_.insert(Raw(holder));
  }

  void SetMasked(HolderIndex holder, bool masked) override {
    ShardOf(holder)->SetMasked(Inside(holder), masked);
  }
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override {
    return ShardOf(holder)->Apply(Inside(holder), event, changes);
  }
  Applied ApplyAll(HolderIndex holder, std::span<const Event> events, ChangeLog* changes) override {
    return ShardOf(holder)->ApplyAll(Inside(holder), events, changes);
  }
  bool Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) override {
    return ShardOf(holder)->Sweep(Inside(holder), blocks_max, changes);
  }
  // The steps are shared, so that a tick costs as much as in one index.
  void Maintain(size_t steps) override {
    for (const auto& shard : shards_) shard->Maintain(std::max<size_t>(steps / count(), 1));
  }

  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override {
    Find(query, overlaps, [](const Index& shard, const OverlapQuery& inside, auto* found) {
      shard.FindOverlaps(inside, found);
    });
  }
  void FindTierOverlaps(const OverlapQuery& query,
                        std::vector<TierOverlap>* overlaps) const override {
    Find(query, overlaps, [](const Index& shard, const OverlapQuery& inside, auto* found) {
      shard.FindTierOverlaps(inside, found);
    });
  }

  bool MayHold(SequenceHash block) const override {
    return std::any_of(shards_.begin(), shards_.end(),
                       [&](const auto& shard) { return shard->MayHold(block); });
  }
  std::vector<Holding> HoldingsOf(HolderIndex holder) const override {
    return ShardOf(holder)->HoldingsOf(Inside(holder));
  }
  Digest DigestOf(HolderIndex holder) const override {
    return ShardOf(holder)->DigestOf(Inside(holder));
  }

  // A block in several shards counts in each. Shards of one kind have the same figures of shape, in
  // the same order.
  IndexStats Stats() const override {
    IndexStats sum = shards_[0]->Stats();
    for (size_t i = 1; i < shards_.size(); ++i) {
      const IndexStats one = shards_[i]->Stats();
      sum.holders += one.holders;
      sum.blocks += one.blocks;
      sum.holdings += one.holdings;
      sum.bytes += one.bytes;
      sum.refused_blocks += one.refused_blocks;
      for (size_t k = 0; k < one.shape.size(); ++k) sum.shape[k].second += one.shape[k].second;
    }
    return sum;
  }
  absl::Status Check() const override {
    for (const auto& shard : shards_) {
      absl::Status status = shard->Check();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  uint32_t count() const { return static_cast<uint32_t>(shards_.size()); }
  Index* ShardOf(HolderIndex holder) const { return shards_[Raw(holder) % count()].get(); }
  HolderIndex Inside(HolderIndex holder) const { return HolderIndex{Raw(holder) / count()}; }

  // Asks each shard by find(shard, query of it, found), and renames the holders that it found.
  template <typename Found, typename Ask>
  void Find(const OverlapQuery& query, std::vector<Found>* found, Ask ask) const {
    std::vector<uint64_t> only;
    for (uint32_t s = 0; s < count(); ++s) {
      OverlapQuery inside = query;
      if (!query.only.empty()) {
        only = OnlyIn(query.only, s);
        inside.only = only;
      }
      const size_t first = found->size();
      ask(*shards_[s], inside, found);
      for (size_t i = first; i < found->size(); ++i)
        (*found)[i].holder = HolderIndex{Raw((*found)[i].holder) * count() + s};
    }
  }

  // The members of a set of holders that are in shard `s`, by their numbers there. At least a word,
  // since an empty set means all.
  std::vector<uint64_t> OnlyIn(std::span<const uint64_t> only, uint32_t s) const {
    std::vector<uint64_t> inside(only.size() / count() + 1);
    for (uint32_t word = 0; word < only.size(); ++word) {
      for (uint64_t bits = only[word]; bits != 0; bits &= bits - 1) {
        const uint32_t holder = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
        if (holder % count() != s) continue;
        const uint32_t number = holder / count();
        inside[number / 64] |= uint64_t{1} << (number % 64);
      }
    }
    return inside;
  }

  const uint32_t holders_max_;
  const std::vector<std::unique_ptr<Index>> shards_;

  Mutex mutex_;
  std::set<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Index> MakeShardedIndex(
    uint32_t count, const IndexOptions& options,
    const std::function<std::unique_ptr<Index>(const IndexOptions&)>& make) {
  const auto part = [&](uint64_t bound) {
    return bound == 0 ? 0 : std::max<uint64_t>(bound / count, 1);
  };
  IndexOptions of_shard = options;
  // Rounded up: the total is checked in `AddHolder`. Bounds of at least 1, since 0 means no limit.
  of_shard.holders_max = (options.holders_max + count - 1) / count;
  of_shard.blocks_max = part(options.blocks_max);
  of_shard.bytes_max = part(options.bytes_max);
  of_shard.retained_bytes = options.retained_bytes / count;
  if (options.address_bytes_max != 0)
    of_shard.address_bytes_max = std::max(options.address_bytes_max / count, kAddressBytesMin);
  std::vector<std::unique_ptr<Index>> shards;
  for (uint32_t i = 0; i < count; ++i) {
    shards.push_back(make(of_shard));
    if (shards.back() == nullptr) return nullptr;
  }
  return std::make_unique<ShardedIndex>(options.holders_max, std::move(shards));
}

}  // namespace kvatlas
