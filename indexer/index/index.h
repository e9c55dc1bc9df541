// Who holds how much of this prompt? One index of one domain: a set of (holder, tier, block) that
// is written by events and asked for overlaps.
//
// *Place*: a leaf keeps one per domain with worker ranks as holders, a hierarchy node one per
// domain with cells as holders. Pure: no I/O, no threads of its own, no wall clock.
// *Truth*: for a query q[0..D) and a holder h, overlap(h) is the largest d such that h holds q[0] …
// q[d-1], each in at least one tier asked for. It is never above the largest value that was true at
// some instant during the query, and exact for holders that are not written meanwhile. Events are
// idempotent: storing what is held and removing what is not change nothing. Storing a missing block
// again makes the deeper ones count again. Structures of which that is not true say so:
// `IndexKind::exact`.
// *Names*: a sequence hash names one prefix (`hash.h`), so a block has one position and one parent,
// and equal hashes at a place mean equal hashes before it. A sender that breaks this gets answers
// about its own holdings that may be wrong, never a crash and never a wrong answer about another
// holder.
// *Threads*: unless a structure's header says otherwise, any number of threads may call everything
// at once. Events of one holder apply in the order of the calls; the caller orders them.
// *Bounds*: `IndexOptions`.
//
// Example:
//   std::unique_ptr<Index> index = *MakeIndex("atlas", {});
//   HolderIndex worker = *index->AddHolder();
//   index->Apply(worker, Stored{.blocks = sequence}, nullptr).IgnoreError();
//   std::vector<Overlap> overlaps;
//   index->FindOverlaps({.blocks = sequence}, &overlaps);   // {{worker, sequence.size()}}

#ifndef KVATLAS_INDEXER_INDEX_INDEX_H_
#define KVATLAS_INDEXER_INDEX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/event.h"
#include "indexer/base/holdings_writer.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/change_log.h"

namespace kvatlas {

class MemoryBudget;

// Runs what a structure does not do on its caller's thread; structures start no threads.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` later. Tasks with equal `lane` run in the order of the calls, one at a time; others
  // may run at once.
  virtual void Schedule(uint32_t lane, std::function<void()> task) = 0;
};

struct IndexOptions {
  // Holders that may exist at once; `AddHolder` is RESOURCE_EXHAUSTED beyond.
  uint32_t holders_max = 1 << 16;
  // Distinct blocks; a store that would go beyond is RESOURCE_EXHAUSTED and changes nothing of the
  // block at fault and those after it. 0: no limit.
  uint64_t blocks_max = 0;
  // Memory in bytes (`IndexStats::bytes`); beyond it new blocks are refused in the same way.
  // Removals and stores of known blocks go on. When 15/16 are used, only blocks before
  // `kHeadBlocks` are accepted: heads of sequences are worth more than tails. 0: no limit.
  // Structures that do not count say so.
  uint64_t bytes_max = 0;
  // Of the process, which outlives the index; null: none. New blocks are refused as at `bytes_max`:
  // tails of sequences when it is tight, all when it is full. Structures other than `atlas` do not
  // look at it.
  const MemoryBudget* memory = nullptr;
  // Keeps every block's local hash beside its sequence hash, from `Stored::local_hashes`: 8 bytes
  // more per distinct block.
  bool keep_local_hashes = false;
  // Free memory that is kept for reuse before it is given back to the system.
  uint64_t retained_bytes = 1 << 20;
  // Address space that a structure may reserve, of which it uses as much as it holds (`atlas`). 0:
  // no limit.
  uint64_t address_bytes_max = 0;
  // For `actor` and `concurrent_radix`; they work on the caller's thread when it is null. It must
  // outlive the index, and run what was scheduled.
  Executor* executor = nullptr;
};

// Positions below this are heads (`IndexOptions::bytes_max`).
inline constexpr Position kHeadBlocks = 64;

struct OverlapQuery {
  // Sequence hashes from the root.
  std::span<const SequenceHash> blocks;
  // A block counts when it is in one of these.
  TierMask tiers = TierMask::All();
  // Only these holders: holder h is bit h % 64 of word h / 64. Empty: all.
  std::span<const uint64_t> only = {};
  // Local hashes of the same blocks, or empty. Only structures that are keyed by content look at
  // them.
  std::span<const LocalHash> local_hashes = {};
};

// How deep a holder reaches in every tier by itself, and in the tiers asked for together.
struct TierOverlap {
  HolderIndex holder{0};
  uint32_t blocks = 0;
  uint32_t by_tier[kTiers] = {};

  friend bool operator==(const TierOverlap&, const TierOverlap&) = default;
};

// The compact answer: at which depths do holders drop out, and who? Sets are not expanded, so it
// costs a word for 64 holders instead of an entry each.
//
// *Format*: `steps` have growing depths, each `words_per_step` words of `words`: holder h is bit h
// % 64 of word h / 64. A holder is in one step at most; its overlap is that step's depth.
struct OverlapSteps {
  uint32_t words_per_step = 0;
  std::vector<uint32_t> depths;
  std::vector<uint64_t> words;

  std::span<const uint64_t> holders(size_t step) const {
    return std::span<const uint64_t>(words).subspan(step * words_per_step, words_per_step);
  }
};

// The same answer of single overlaps, by sorting them.
OverlapSteps StepsOf(std::vector<Overlap> overlaps);

// One block of one holder.
struct Holding {
  SequenceHash block{0};
  Position position = 0;
  SequenceHash parent = kNoParent;
  TierMask tiers;
  // 0 when `keep_local_hashes` is off, or when it was not given.
  LocalHash local{0};

  friend bool operator==(const Holding&, const Holding&) = default;
};

struct IndexStats {
  uint64_t holders = 0;
  uint64_t blocks = 0;    // distinct blocks with at least one holder
  uint64_t holdings = 0;  // (holder, block) pairs
  uint64_t bytes = 0;     // memory used; an estimate, unless the structure's header says otherwise
  uint64_t refused_blocks = 0;  // dropped by a bound, the rest of the event included
  // Figures that explain a structure's shape, each with a name of its own.
  std::vector<std::pair<std::string_view, uint64_t>> shape;
};

class Index {
 public:
  virtual ~Index() = default;

  // The name that `MakeIndex` knows.
  virtual std::string_view Name() const = 0;

  // ---- Holders ----

  // A new, empty holder; its number is the smallest free one.
  virtual absl::StatusOr<HolderIndex> AddHolder() = 0;

  // Clears the holder and frees its number. REQUIRES: no other call names the holder meanwhile.
  virtual void RemoveHolder(HolderIndex holder) = 0;

  // A masked holder is left out of every answer; its holdings stay. O(1).
  virtual void SetMasked(HolderIndex holder, bool masked) = 0;

  // ---- Events ----

  // Applies one event of `holder`, and appends to `changes`, which may be null, what of it is a
  // real change: all of that when it returns, also where a part of the event was refused.
  // NOT_FOUND: no such holder. RESOURCE_EXHAUSTED: a bound was reached, the rest of the event is
  // dropped.
  virtual absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) = 0;

  // Several events of a holder in order, as if `Apply` were called for each, up to where `GoesOn`
  // ends them. `changes` is told where each one's changes end. A structure with a lock takes it
  // once for many. REQUIRES: at least one event; `changes` is not null.
  virtual Applied ApplyAll(HolderIndex holder, std::span<const Event> events, ChangeLog* changes);

  // Takes some blocks out of a holder, at least one and about `blocks_max`, so that a big holder
  // can be cleared in bounded steps; false when nothing was left. This class's own takes them all
  // at once.
  virtual bool Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes);

  // A bounded piece of upkeep, about `steps` small steps: heals fragmentation, gives memory back.
  // Call it now and then where events are rare. This class's own does nothing.
  virtual void Maintain(size_t steps);

  // ---- Questions ----
  //
  // All append to the caller's memory, in no particular order, and leave out masked holders and
  // those with an overlap of 0. What this class implements itself is built on `FindOverlaps`.

  virtual void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const = 0;

  // Every tier by itself and `query.tiers` together, of one and the same instant where
  // `FindOverlaps` is.
  virtual void FindTierOverlaps(const OverlapQuery& query,
                                std::vector<TierOverlap>* overlaps) const;

  // The compact answer; `steps` is overwritten, its memory reused.
  virtual void FindSteps(const OverlapQuery& query, OverlapSteps* steps) const;

  // ---- Contents ----

  // False only if no holder, masked or not, has that block in any tier. This class's own cannot
  // tell and is true.
  virtual bool MayHold(SequenceHash block) const;

  // All holdings of a holder, in no particular order: a consistent cut of that holder (its writers
  // wait).
  virtual std::vector<Holding> HoldingsOf(HolderIndex holder) const = 0;

  // Digest of a holder (`event.h`); as after its last finished `Apply`.
  virtual Digest DigestOf(HolderIndex holder) const = 0;

  virtual IndexStats Stats() const = 0;

  // OK, or INTERNAL with what is wrong inside. Slow; REQUIRES: no writer.
  virtual absl::Status Check() const = 0;
};

// What a structure by a name is like.
struct IndexKind {
  std::string_view name;
  // Implements the whole interface: tiers, digests, holdings, any number of holders. Only such a
  // one serves a leaf.
  bool whole = false;
  // Answers equal the reference's at rest, holes included.
  bool exact = false;
  // Holders that it can have; 0: as many as `IndexOptions::holders_max`.
  uint32_t holders_max = 0;
  // One line: where it is from, what it gets wrong, what of the interface it lacks.
  std::string_view about;
};

struct IndexMaker {
  IndexKind kind;
  std::unique_ptr<Index> (*make)(const IndexOptions&);
};

// Adds structures behind those that are known: `atlas` and `reference`, and those of
// `field/field.h` in benchmarks and tests, which link it. For static initialization: REQUIRES that
// no other thread runs and that no span of `IndexKinds` is kept. Returns true.
bool AddIndexMakers(std::span<const IndexMaker> makers);

// A structure by its name; NAME*N: N of them, each with a part of the holders (`sharded_index.h`).
// INVALID_ARGUMENT names those that exist; RESOURCE_EXHAUSTED: there is no memory for it.
absl::StatusOr<std::unique_ptr<Index>> MakeIndex(std::string_view name,
                                                 const IndexOptions& options);

inline constexpr uint32_t kIndexShardsMax = 64;

// The name of so many of a kind: "atlas*4"; of 1 the kind's.
std::string WithShards(std::string_view name, uint32_t shards);

// What `MakeIndex` can make, the default first.
std::span<const IndexKind> IndexKinds();

// Null when there is none of that name.
const IndexKind* FindIndexKind(std::string_view name);

// The names of those that serve a leaf, the default first.
std::vector<std::string_view> WholeIndexNames();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_INDEX_H_
