// The atlas index: runs of blocks, one table from names to places, and a protocol by which any
// number of threads read beside one that writes.
//
//     query q[0] q[1] …                     events of holder h
//        │                                     │
//        ▼                                     ▼
//   BlockTable: name → word ───────────▶ Heap: pages of runs; a word leads to where its run begins
//                                          │
//                                          ▼
//                                        Run: hashes of blocks ─▶ who has all, who has part, a tier each
//
// A query looks q[0] up, compares the run with the prompt as far as they agree, intersects the
// holders, says which drop out, and looks the next block up.
//
// ---- How atlas is written ----
//
//  W1  One writer at a time: all that changes anything holds `writer_`, for at most `kStepBlocks`
//  blocks of one event or
//      several; longer events go in steps. Before it comes the holder's own mutex, which keeps the
//      events of one holder in order and its account whole.
//  W2  A block has one entry in the table if some holder has it, else none: inserted before its
//  holder's bit or the run's
//      `len` says so, erased after the last holder's bit is gone.
//  W3  Growth is done in place: a holder's bit, a longer `len` where the only holder of all of the
//  run extends it, a dead
//      block that comes back once those that have all of the run are those that store it.
//  W4  What takes something away, or brings a holder from "all" to "part" or back, makes `version`
//  odd first and even
//      again afterwards. In between blocks only die, and no holder gets one.
//  W5  What brings blocks to other words (a run that outgrows its words, a split's second part, a
//  merge) makes new runs; lets
//      the table lead to them; makes the old one's `version` odd for ever; and retires it
//      (`epoch.h`).
//  W6  What was retired is freed between two writes, where the writer has no Ref in hand.
//
// ---- How atlas is read ----
//
//  R1  Everything under an `EpochGuard`, so that nothing that was found is reused meanwhile. No
//  lock, no waiting. R2  Of a run: `version` (even, else R5), `len`, the hashes, then the holders.
//  Holders that are older than the hashes
//      would claim too much: what has all of the run has what is not dead, and what is dead comes
//      back only after W3. A word that is not the block's, or not in the run any more, is no
//      answer: the table is asked again, and only where it says the same place, or none, has no
//      holder the block. Else it moved meanwhile, and its old words are used again.
//  R3  At the end every version is looked at again. If all are as they were, then at that moment
//  everything found
//      was still true at once: only growth happened between.
//  R4  Else again, a few times.
//  R5  Then by holder: `removals_` of every holder is read before and after. Of a holder whose
//  number is even and the same
//      nothing was taken away, so what was true of it in a run once is true at the end; the others,
//      which are being written, are left out of the answer. What is found of one run is of one
//      moment if its version is the same before and after: else the walk begins again, for the
//      writer has finished something. If it is odd and stays odd, the writer is half way, and stays
//      so: by W4 what is dead now was not to be counted, so the hashes are compared once more, and
//      a holder that changes places is found if all, part and all are looked at in this order. So a
//      reader never waits, not even for a writer that was put to sleep, and what it says of a
//      holder that is not written is exact: W5 never hides a block that stays.
//  R6  What begins again ends. After `kLooksByHolder` looks the prompt is cut before the run that
//  changed during the last
//      one, at every further look again, so that at most as many looks follow as there are runs.
//      What holders have of a shorter prompt is never too much; those that reach the cut are
//      answered as if they ended there.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_ATLAS_INDEX_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_ATLAS_INDEX_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "indexer/base/mutex.h"
#include "indexer/index/atlas/block_table.h"
#include "indexer/index/atlas/heap.h"
#include "indexer/index/atlas/holder.h"
#include "indexer/index/atlas/members.h"
#include "indexer/index/atlas/run.h"
#include "indexer/index/atlas/writer_mutex.h"
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
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override;
  Applied ApplyAll(HolderIndex holder, std::span<const Event> events, ChangeLog* changes) override;
  bool Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) override;
  void Maintain(size_t steps) override;
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
  // A run, and a block in it.
  struct Place {
    Ref ref = 0;
    Run* run = nullptr;
    uint32_t offset = 0;
  };

  // The writer is left after at most so many blocks.
  static constexpr size_t kStepBlocks = 1024;

  // One event that is being applied.
  struct Write {
    Tier tier;
    ChangeLog* changes;
  };

  // Blocks of a stored event, as many as one step may have.
  struct Incoming {
    Position position;
    SequenceHash parent;
    std::span<const SequenceHash> blocks;
    std::span<const LocalHash> local_hashes;
  };

  // Blocks [from, to) of a run that is replaced, and the run that they are in from then on. The
  // last is not dead.
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
  // The writer's.
  static void Count(std::atomic<uint64_t>* counter, uint64_t by) {
    counter->store(counter->load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  Place PlaceOf(Ref word) const;
  bool Locate(SequenceHash block, Place* place) const;
  bool Known(SequenceHash block) const { return table_->Find(block) != 0; }
  bool LocateListed(Ref ref, Place* place) const;
  bool HasAnything(Run* run, uint32_t holder) const;
  uint32_t HoldersIn(Run* run, uint32_t at_most) const;
  void Account(HolderState* holder, const Write& write, Run* run, const Offsets& changed,
               bool added) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  static void Log(const Run& run, const Offsets& changed, Tier tier, bool added,
                  ChangeLog* changes);
  static void BeginShrink(Run* run);
  static void EndShrink(Run* run);
  void BeginRemovals(uint32_t holder);
  void EndRemovals(uint32_t holder);

  // ---- atlas_store.cc ----
  absl::Status ApplyOne(HolderState* holder, const Event& event, ChangeLog* changes, size_t* room)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex, writer_);
  // Between two steps others have their turn. `*room`: blocks that the next one may have.
  void MakeRoom(size_t blocks, size_t* room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_);
  absl::Status Store(HolderState* holder, const Write& write, const Incoming& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::Status StoreAt(HolderState* holder, const Write& write, const Incoming& stored, Place* at,
                       size_t* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::Status Join(HolderState* holder, const Write& write, const Incoming& stored, Place* at,
                    size_t* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::Status Append(HolderState* holder, const Write& write, const Incoming& stored, Place* at,
                      size_t* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::Status StoreNew(HolderState* holder, const Write& write, const Incoming& stored, Place* at,
                        size_t* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  absl::StatusOr<uint32_t> Admit(Position position, size_t blocks);
  bool MayAppend(HolderState* holder, const Write& write, Run* run) const;
  bool LeadsBack(Ref word, const Incoming& stored, size_t from, uint32_t count) const;
  bool Names(const Run& run, uint32_t offset, SequenceHash block) const;
  BlockTable::Inserted ReviveBlock(const Place& at, uint32_t offset, uint32_t revived);
  uint32_t Revive(HolderState* holder, const Write& write, const Place& at, uint32_t to,
                  Offsets* revived, bool* no_memory);
  bool DemoteOthers(HolderState* holder, const Write& write, Run* run);
  void WriteWords(Run* run, uint32_t offset, const Incoming& stored, size_t from, uint32_t count);

  // ---- atlas_remove.cc ----
  void Remove(HolderState* holder, const Write& write, std::span<const SequenceHash> blocks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  void Clear(HolderState* holder, TierMask tiers, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  size_t ClearSome(HolderState* holder, size_t blocks_max, ChangeLog* changes, bool* more)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  uint32_t ClearRun(HolderState* holder, Ref ref, TierMask tiers, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  void FetchRuns(std::span<const SequenceHash> blocks, BlockTable::Lookup* lookups) const;
  uint32_t Withdraw(HolderState* holder, const Write& write, Place* at, const Offsets& offsets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder->mutex);
  bool WithdrawOne(HolderState* holder, const Write& write, Place* at,
                   const BlockTable::Lookup& lookup, const BlockTable::Found& found)
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
  uint32_t CapacityFor(uint32_t blocks) const;
  // Gives a run back: at once when no reader has seen it.
  void DropRun(Ref ref, bool seen);
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
  bool MaintainRuns(std::span<const Ref> words);
  bool SameHolders(Run* a, Run* b) const;
  void CopyBlocks(Run* from, uint32_t first, uint32_t count, Run* to, uint32_t offset) const;
  Ref Merge(const Place& first, const Place& second);
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

  mutable WriterMutex writer_;
  std::set<uint32_t> free_numbers_ ABSL_GUARDED_BY(writer_);
  uint32_t cursor_ ABSL_GUARDED_BY(writer_) = 0;  // of upkeep

  // The writer's counts, read at any time.
  std::atomic<uint64_t> holder_count_{0};
  std::atomic<uint64_t> holdings_{0};
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
