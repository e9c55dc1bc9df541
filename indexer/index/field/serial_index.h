// What do the field's older structures have in common? One mutex, holders by number, digests, and
// the order in which an event's blocks are taken. A structure adds its tables and four verbs.
//
// *Truth*: each call is one instant, because it holds the mutex from its first step to its last.
// What an answer is worth each structure says itself.
// *Threads*: any; they wait for each other. A structure's verbs run with the mutex held.
// *Bounds*: `holders_max` and `blocks_max`. `bytes_max` and `retained_bytes` are not looked at:
// bytes are counted when they are asked for, by a walk over everything.
// *Content*: local hashes, of a store or of a query, count only when there is one for every block;
// else a block's sequence hash stands for its local hash. A structure that is keyed by content
// finds nothing of what was stored with local hashes when it is asked without them, and the other
// way round.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_SERIAL_INDEX_H_
#define KVATLAS_INDEXER_INDEX_FIELD_SERIAL_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "indexer/base/mutex.h"
#include "indexer/index/field/holder_table.h"
#include "indexer/index/index.h"

namespace kvatlas {

class SerialIndex : public Index {
 public:
  absl::StatusOr<HolderIndex> AddHolder() override;
  void RemoveHolder(HolderIndex holder) override;
  void SetMasked(HolderIndex holder, bool masked) override;
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override;
  bool Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) override;
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override;
  void FindTierOverlaps(const OverlapQuery& query,
                        std::vector<TierOverlap>* overlaps) const override;
  std::vector<Holding> HoldingsOf(HolderIndex holder) const override;
  Digest DigestOf(HolderIndex holder) const override;
  IndexStats Stats() const override;
  absl::Status Check() const override;

 protected:
  // By what a structure looks for a query's blocks. One that is asked by sequence never sees local
  // hashes.
  enum class Asked { kByContent, kBySequence };

  // Who has a block, and where.
  using Holders = absl::flat_hash_map<HolderIndex, TierMask>;

  // The holders that have all of a prompt so far, on their way down.
  class Descent {
   public:
    explicit Descent(std::vector<Overlap>* overlaps) : overlaps_(overlaps) {}

    // Those that have the first block, each once.
    void Begin(std::vector<HolderIndex> holders);

    // One block deeper, with those that have it; the others get their overlap.
    template <typename Has>
    void Step(Has has) {
      size_t kept = 0;
      for (HolderIndex holder : holders_) {
        if (has(holder)) {
          holders_[kept++] = holder;
        } else {
          overlaps_->push_back({.holder = holder, .blocks = depth_});
        }
      }
      holders_.resize(kept);
      ++depth_;
    }

    // Everybody left has the prompt as deep as it was walked.
    void End();

    bool empty() const { return holders_.empty(); }

   private:
    std::vector<Overlap>* const overlaps_;
    std::vector<HolderIndex> holders_;
    uint32_t depth_ = 0;
  };

  SerialIndex(const IndexOptions& options, Asked asked) : options_(options), asked_(asked) {}

  // ---- A structure's verbs ----

  virtual absl::Status Store(HolderIndex holder, const Stored& stored, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  // Takes the blocks out of `tiers`; `blocks` may name what the holder has not.
  virtual void Remove(HolderIndex holder, std::span<const SequenceHash> blocks, TierMask tiers,
                      ChangeLog* changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  // Asks `Answers` of every holder before it is in the answer.
  virtual void Find(const OverlapQuery& query, std::vector<Overlap>* overlaps) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  // Some of the holder's blocks: `blocks_max`, or all when they are fewer.
  virtual std::vector<SequenceHash> SomeBlocks(HolderIndex holder, size_t blocks_max) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  virtual std::vector<Holding> Holdings(HolderIndex holder) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  // Sets `blocks`, adds to `bytes` and `shape`.
  virtual void Describe(IndexStats* stats) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  virtual absl::Status CheckTables() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  // ---- What it needs for them ----

  // Keeps the books of one change and tells the sink. Nothing when nothing changed.
  void Change(HolderIndex holder, SequenceHash block, Position position, TierMask before,
              TierMask after, ChangeLog* changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Counts the blocks of `stored` from number `from` on as refused.
  void Refuse(const Stored& stored, size_t from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // OK, or the refusal of a new block, which would be number `blocks + 1`.
  absl::Status RoomFor(uint64_t blocks) const;

  // Not masked, and asked for.
  bool Answers(HolderIndex holder, const OverlapQuery& query) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The same for those of `holders` that have the block in a tier asked for.
  std::vector<HolderIndex> Answering(const Holders& holders, const OverlapQuery& query) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Numbers given out so far, those given back included.
  size_t holder_numbers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return holders_.size(); }

  static bool Has(const Holders& holders, HolderIndex holder, TierMask tiers);

  // The content key of block number i.
  static LocalHash KeyAt(const Stored& stored, size_t i) {
    return HasLocals(stored) ? stored.local_hashes[i] : LocalHash{Raw(stored.blocks[i])};
  }
  static LocalHash KeyAt(const OverlapQuery& query, size_t i) {
    return query.local_hashes.empty() ? LocalHash{Raw(query.blocks[i])} : query.local_hashes[i];
  }
  static SequenceHash ParentAt(const Stored& stored, size_t i) {
    return i == 0 ? stored.parent : stored.blocks[i - 1];
  }

  // Keys of the first entries.
  template <typename Table>
  static std::vector<SequenceHash> SomeKeys(const Table& table, size_t keys_max) {
    std::vector<SequenceHash> keys;
    for (auto each = table.begin(); each != table.end() && keys.size() < keys_max; ++each)
      keys.push_back(each->first);
    return keys;
  }

  const IndexOptions options_;
  mutable Mutex mutex_;

 private:
  struct Holder {
    bool exists = false;
    bool masked = false;
    uint64_t blocks = 0;
    Digest digest;
  };

  bool Exists(HolderIndex holder) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Clear(HolderIndex holder, TierMask tiers, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckHolder(HolderIndex holder) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OverlapQuery AsAsked(const OverlapQuery& query) const;

  const Asked asked_;
  std::vector<Holder> holders_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> free_numbers_ ABSL_GUARDED_BY(mutex_);
  uint64_t holdings_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t refused_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_SERIAL_INDEX_H_
