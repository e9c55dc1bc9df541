// How does atlas work? Runs of blocks, one table from names to places, and a protocol that lets everybody read
// while some write.
//
//     query q[0] q[1] …                     events of holder h
//        │                                     │
//        ▼                                     ▼
//   BlockTable: name → word ───────────▶ Heap: pages of runs; a word leads to where its run begins
//                                          │
//                                          ▼
//                                        Run: hashes of blocks ─▶ who has all, who has part, a tier each
//
// A query looks q[0] up, compares the run with the prompt as far as they agree, intersects the holders, says who drops
// out, and looks the next block up.
//
// ---- How atlas is written ----
//
//  W1  One event of a holder at a time: `HolderState::mutex`.
//  W2  Whoever takes locks is inside `WriterGate`; where "locks" is said below, a writer who is alone there has all of them.
//      A run is changed under its lock. A thread holds one run's lock at a time (`Merge` tries a second, and gives
//      up when it is taken), then locks of buckets, of lists and of the heap, which wait for nothing.
//  W3  A block has one entry in the table if somebody holds it, else none: inserted before its holder's
//      bit or the run's `len` says so, erased after the last holder's bit is gone, both under the run's lock.
//      `Insert` decides races: who loses finds the winner's place and waits for that run's lock.
//  W4  Growth is done in place: a holder's bit, a longer `len` where the only holder of all of the run extends it, a dead
//      block that comes back once nobody has all of the run but those who store it.
//  W5  What takes something away, or brings a holder from "all" to "part" or back, makes `version` odd first and even
//      again afterwards. In between blocks only die, and nobody gets one.
//  W6  What brings blocks to other words (a run that outgrows its words, a split's second part, a merge) makes new runs,
//      locked; lets the table lead to them; makes the old one's `version` odd for ever; unlocks it as not alive, so
//      that who waited for it looks again; and retires it (`epoch.h`).
//
// ---- How atlas is read ----
//
//  R1  Everything under an `EpochGuard`, so that nothing that was found is reused meanwhile.
//  R2  Of a run: `version` (even, else R5), `len`, the hashes, then the holders. Holders that are older than the hashes
//      would claim too much: who has all has what is not dead, and what is dead comes back only after W4.
//      A word that is not the block's, or not in the run any more, is no answer: the table is asked again, and only where
//      it says the same place, or none, has nobody the block. Else it moved meanwhile, and its old words are used again.
//  R3  At the end every version is looked at again. If all are as they were, then at that moment everything found
//      was still true at once: only growth happened between.
//  R4  Else again, a few times.
//  R5  Then by holder: `removals_` of every holder is read before and after. Of a holder whose number is even and the same
//      nothing was taken away, so what was true of it in a run once is true at the end; the others, who are being
//      written, are left out of the answer. What is found of one run is of one moment if its version is the same
//      before and after: else the walk begins again, for some writer has finished. If it is odd and stays odd, one writer
//      is half way, and stays so: by W5 what is dead now was not to be counted, so the hashes are compared once
//      more, and a holder that changes places is found if all, part and all are looked at in this order. So a reader
//      never waits, not even for a writer that was put to sleep, and what it says of a holder that nobody writes is
//      exact: W6 never hides a block that stays.
//  R6  What begins again ends. After `kLooksByHolder` looks the prompt is cut before the run that changed during the last
//      one, at every further look again, so that at most as many looks follow as there are runs. What holders have of a
//      shorter prompt is never too much; those that reach the cut are answered as if they ended there.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_ATLAS_INDEX_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_ATLAS_INDEX_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "indexer/base/mutex.h"
#include "indexer/index/atlas/block_table.h"
#include "indexer/index/atlas/epoch.h"
#include "indexer/index/atlas/heap.h"
#include "indexer/index/atlas/holder.h"
#include "indexer/index/atlas/members.h"
#include "indexer/index/atlas/run.h"
#include "indexer/index/atlas/writer_gate.h"
#include "indexer/index/index.h"

namespace kvatlas::atlas {

class AtlasIndex : public Index {
 public:
  static std::unique_ptr<AtlasIndex> Create(const IndexOptions& options);
  ~AtlasIndex() override;

  std::string_view Name() const override { return "atlas"; }
  absl::StatusOr<HolderIndex> AddHolder() override;
  void RemoveHolder(HolderIndex holder) override;
  void SetMasked(HolderIndex holder, bool masked) override;
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeSink* changes) override;
  bool Sweep(HolderIndex holder, size_t blocks_max, ChangeSink* changes) override;
  void Tend(size_t steps) override;
  bool MayHold(SequenceHash block) const override;
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override;
  void FindTierOverlaps(const OverlapQuery& query,
                        std::vector<TierOverlap>* overlaps) const override;
  void FindSteps(const OverlapQuery& query, OverlapSteps* steps) const override;
  std::vector<Holding> HoldingsOf(HolderIndex holder) const override;
  Digest DigestOf(HolderIndex holder) const override;
  IndexStats Stats() const override;
  absl::Status Check() const override;

 private:
  // A locked run, and a block in it.
  struct Place {
    Ref ref = 0;
    Run* run = nullptr;
    uint32_t offset = 0;
  };

  // Events of more blocks are written beside others, however alone one is.
  static constexpr size_t kBriefBlocks = 1024;

  // One event that is being applied.
  struct Write {
    Tier tier;
    ChangeSink* changes;
  };

  // A stay inside `WriterGate` and an `EpochGuard`, whose fence both need. The holder's mutex comes before it; what is taken
  // inside waits for nothing that waits for a stay.
  class Inside {
   public:
    Inside(const AtlasIndex* index, bool brief)
        : gate_(index->table_->gate()), who_(EpochThreadNumber()), brief_(brief) {
      const bool nested = t_epoch.depth != 0;
      gate_->Announce(who_);
      guard_.emplace();
      if (nested) std::atomic_thread_fence(std::memory_order_seq_cst);
      gate_->Enter(who_, brief_);
    }
    ~Inside() { gate_->Leave(who_, brief_); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    WriterGate* const gate_;
    const uint32_t who_;
    const bool brief_;
    std::optional<EpochGuard> guard_;
  };

  // Blocks [from, to) of a run that is replaced, and the run that they are in from then on. The last is not dead.
  struct Piece {
    uint32_t from = 0;
    uint32_t to = 0;
    uint32_t room = 0;  // blocks that it is to have room for, at least its own
    Ref ref = 0;
  };

  // An array of zeros whose pages cost nothing until they are used.
  struct FreeArray {
    void operator()(void* array) const { std::free(array); }
  };
  template <typename T>
  using Zeroed = std::unique_ptr<T[], FreeArray>;
  template <typename T>
  static Zeroed<T> MakeZeroed(size_t size) {
    return Zeroed<T>(static_cast<T*>(std::calloc(size, sizeof(T))));
  }

  AtlasIndex(const IndexOptions& options, std::unique_ptr<Heap> heap,
             std::unique_ptr<BlockTable> table);

  // ---- atlas_index.cc: holders, places, accounts ----
  HolderState* StateOf(HolderIndex holder) const;
  uint32_t holders_end() const { return holders_end_.load(std::memory_order_acquire); }
  Run* RunAt(Ref ref) const { return heap_->At<Run>(ref); }
  Members MembersOf(Run* run, Tier tier) const {
    return Members(heap_.get(), run, tier, holders_end());
  }
  static uint64_t HashAt(const Run& run, uint32_t offset) {
    return run.words()[offset].load(std::memory_order_relaxed);
  }
  // The place of a block's hash, as the table knows it.
  Ref WordOf(Ref run, uint32_t offset) const { return run + RunAt(run)->first() + offset; }
  uint32_t OffsetOf(Ref run, Ref word) const { return word - run - RunAt(run)->first(); }
  size_t RunBytes(uint32_t capacity) const {
    return sizeof(Run) +
           size_t{8} * (capacity * (options_.keep_local_hashes ? 2 : 1) + Run::DeadWords(capacity));
  }
  void LockRun(Run* run) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!table_->gate()->alone()) run->lock.Lock();
  }
  bool TryLockRun(Run* run) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return table_->gate()->alone() || run->lock.TryLock();
  }
  void UnlockRun(Run* run) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!table_->gate()->alone()) run->lock.Unlock();
  }
  void Release(Place* place) const;
  // Inside; `by` may be the complement of what is less.
  void Count(std::atomic<uint64_t>* counter, uint64_t by) const {
    if (table_->gate()->alone()) {
      counter->store(counter->load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    } else {
      counter->fetch_add(by, std::memory_order_relaxed);
    }
  }
  bool LockBlock(SequenceHash block, Place* place, BlockTable::Home* fetched = nullptr) const;
  bool LockListed(Ref ref, Place* place) const;
  bool AddToList(HolderState* holder, Ref ref);
  bool HasAnything(Run* run, uint32_t holder) const;
  bool MayHaveAnything(Run* run, uint32_t holder) const;
  uint32_t HoldersIn(Run* run, uint32_t at_most) const;
  void Account(HolderState* holder, const Write& write, Run* run, const Offsets& changed,
               bool added) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  static void BeginTaking(Run* run);
  static void EndTaking(Run* run);
  void BeginTaking(uint32_t holder);
  void EndTaking(uint32_t holder);

  // ---- atlas_store.cc ----
  absl::Status Store(HolderState* holder, const Write& write, const Stored& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::Status StoreAt(HolderState* holder, const Write& write, const Stored& stored, Place* at,
                       size_t* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::Status Join(HolderState* holder, const Write& write, const Stored& stored, Place* at,
                    size_t* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::Status Append(HolderState* holder, const Write& write, const Stored& stored, Place* at,
                      size_t* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::Status StoreNew(HolderState* holder, const Write& write, const Stored& stored, Place* at,
                        size_t* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::StatusOr<uint32_t> Admit(Position position, size_t blocks);
  bool MayAppend(HolderState* holder, const Write& write, Run* run) const;
  bool LeadsBack(Ref word, const Stored& stored, size_t from, uint32_t count) const;
  bool Names(const Run& run, uint32_t offset, SequenceHash block) const;
  BlockTable::Inserted ReviveBlock(const Place& at, uint32_t offset, uint32_t revived);
  uint32_t Revive(HolderState* holder, const Write& write, const Place& at, uint32_t to,
                  Offsets* revived, bool* no_memory);
  bool DemoteOthers(HolderState* holder, const Write& write, Run* run);
  void WriteWords(Run* run, uint32_t offset, const Stored& stored, size_t from, uint32_t count);

  // ---- atlas_remove.cc ----
  void Remove(HolderState* holder, const Write& write, std::span<const SequenceHash> blocks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  void Clear(HolderState* holder, TierMask tiers, ChangeSink* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  uint32_t ClearRun(HolderState* holder, Ref ref, TierMask tiers, ChangeSink* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  void FetchRuns(std::span<const SequenceHash> blocks, BlockTable::Home* homes) const;
  void WithdrawAt(HolderState* holder, const Write& write, Place* at, const Offsets& offsets,
                  BlockTable::Home* fetched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  uint32_t Withdraw(HolderState* holder, const Write& write, Place* at, const Offsets& offsets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  bool WithdrawOne(HolderState* holder, const Write& write, Place* at, BlockTable::Home* fetched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  bool Take(HolderState* holder, const Write& write, Run* run, const Offsets& left,
            const Offsets& dead);
  void EraseBlocks(const Place& at, const Offsets& dead);
  static void Kill(Run* run, const Offsets& dead);
  static void KillOne(Run* run, uint32_t offset);
  void Promote(Run* run, Tier tier, const Offsets& live);
  void FreeRun(Place* at, const Offsets& dead);

  // ---- atlas_shape.cc ----
  // So many blocks more have to die before a run is looked at again.
  static constexpr uint32_t kDeadToLook = 8;
  Ref NewRun(uint32_t blocks, Position start, uint64_t parent);
  void DiscardRun(Ref ref);
  uint32_t CapacityFor(uint32_t blocks) const;
  void Abandon(Ref ref);
  bool Build(Run* old, Piece* piece);
  bool List(Ref ref);
  void Redirect(Ref old, const Piece& piece);
  bool Prepare(const Place& at, std::span<Piece> pieces);
  bool Replace(Place* at, std::span<Piece> pieces);
  bool Regrow(Place* at, uint32_t capacity);
  void MaybeFit(Place* at);
  bool CutBehind(Place* at, uint32_t cut);
  void MaybeSplit(Place* at, Tier tier);
  uint32_t ChooseCut(Run* run, Tier tier) const;
  bool MaybeMerge(Ref word);
  Ref MergeOnce(Ref word);
  bool MaybeCut(Ref word);
  bool MaybeMove(Ref word);
  bool TendRuns(std::span<const Ref> words);
  bool SameHolders(Run* a, Run* b) const;
  void CopyBlocks(Run* from, uint32_t first, uint32_t count, Run* to, uint32_t offset) const;
  Ref Merge(Place* first, Place* second);
  void MaybeTidy(HolderState* holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);

  // ---- atlas_check.cc ----
  void AppendHoldings(Run* run, uint32_t holder, std::vector<Holding>* holdings) const;
  absl::Status CheckRun(Run* run, const Offsets& in_table) const;
  absl::Status CheckHolders(const std::unordered_map<Ref, Offsets>& runs) const;

  // ---- atlas_find.cc ----
  template <typename Emit>
  class Walker;
  template <typename Emit>
  void Find(const OverlapQuery& query, std::span<const TierMask> masks, Emit* emit) const;

  const IndexOptions options_;
  const std::unique_ptr<Heap> heap_;
  const std::unique_ptr<BlockTable> table_;

  // A word of bits for 64 holders: those in answers.
  const Zeroed<std::atomic<uint64_t>> alive_;
  // By holder: odd while something is being taken from it.
  const Zeroed<std::atomic<uint32_t>> removals_;
  const Zeroed<std::atomic<HolderState*>> holders_;
  std::atomic<uint32_t> holders_end_{0};

  Mutex admin_mutex_;
  std::set<uint32_t> free_numbers_ ABSL_GUARDED_BY(admin_mutex_);
  uint32_t holder_count_ ABSL_GUARDED_BY(admin_mutex_) = 0;
  uint32_t tend_cursor_ ABSL_GUARDED_BY(admin_mutex_) = 0;

  std::atomic<uint64_t> blocks_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> runs_{0};
  std::atomic<uint64_t> splits_{0};
  std::atomic<uint64_t> merges_{0};
  std::atomic<uint64_t> rewrites_{0};
  std::atomic<uint64_t> cuts_{0};
};

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_ATLAS_INDEX_H_
