// Who holds how much of this prompt? One index of one domain: a set of (holder, tier, block) that is
// written by events and asked for overlaps.
//
// *Place*: a leaf keeps one per domain with worker ranks as holders, a hierarchy node one per domain with
// cells as holders. Pure: no I/O, no threads of its own, no wall clock.
// *Truth*: for a query q[0..D) and a holder h, overlap(h) is the largest d such that h holds q[0] … q[d-1],
// each in at least one tier asked for. It is never above the largest value that was true at some instant
// during the query, and exact for holders that nobody writes meanwhile. Events are idempotent: storing
// what is held and removing what is not change nothing. Storing a missing block again makes the deeper
// ones count again.
// *Threads*: unless a structure's header says otherwise, any number of threads may call everything at once.
// Events of one holder apply in the order of the calls; the caller orders them.
// *Bounds*: `IndexOptions`.
//
// Example:
//   std::unique_ptr<Index> index = *MakeIndex("flat", {});
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
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"

namespace kvatlas {

struct IndexOptions {
  // Holders that may exist at once; `AddHolder` is RESOURCE_EXHAUSTED beyond.
  uint32_t holders_max = 1 << 16;
  // Distinct blocks; a store that would go beyond is RESOURCE_EXHAUSTED and changes nothing of the block
  // at fault and those after it. 0: no limit.
  uint64_t blocks_max = 0;
};

// Told of every real change of membership while an event applies, before `Apply` returns and in the order
// of changes of that holder. Coverage and digests live on it. Called with the structure's locks of that
// holder held: it must be quick and must not call the index.
class ChangeSink {
 public:
  virtual ~ChangeSink() = default;
  // `holder` had the block in tiers `before` and has it in `after`; they differ.
  virtual void Changed(HolderIndex holder, SequenceHash block, Position position, TierMask before,
                       TierMask after) = 0;
};

struct OverlapQuery {
  // Sequence hashes from the root.
  std::span<const SequenceHash> blocks;
  // A block counts when it is in one of these.
  TierMask tiers = TierMask::All();
};

// One block of one holder.
struct Holding {
  SequenceHash block{0};
  Position position = 0;
  SequenceHash parent = kNoParent;
  TierMask tiers;

  friend bool operator==(const Holding&, const Holding&) = default;
};

struct IndexStats {
  uint64_t holders = 0;
  uint64_t blocks = 0;          // distinct blocks with at least one holder
  uint64_t holdings = 0;        // (holder, block) pairs
  uint64_t bytes = 0;           // estimate of the memory used
  uint64_t refused_blocks = 0;  // dropped by `blocks_max`, the rest of the event included
};

class Index {
 public:
  virtual ~Index() = default;

  // The name that `MakeIndex` knows.
  virtual std::string_view Name() const = 0;

  // A new, empty holder; its number is the smallest free one.
  virtual absl::StatusOr<HolderIndex> AddHolder() = 0;

  // Clears the holder and frees its number. REQUIRES: no other call names the holder meanwhile.
  virtual void RemoveHolder(HolderIndex holder) = 0;

  // Applies one event of `holder`. `changes` may be null.
  // NOT_FOUND: no such holder. RESOURCE_EXHAUSTED: a bound was reached, the rest of the event is dropped.
  virtual absl::Status Apply(HolderIndex holder, const Event& event, ChangeSink* changes) = 0;

  // A masked holder is left out of every answer; its holdings stay. O(1).
  virtual void SetMasked(HolderIndex holder, bool masked) = 0;

  // Appends one entry for every unmasked holder with an overlap of at least 1, in no particular order.
  virtual void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const = 0;

  // All holdings of a holder, in no particular order: a consistent cut of that holder (its writers wait).
  virtual std::vector<Holding> HoldingsOf(HolderIndex holder) const = 0;

  // Digest of a holder (`event.h`); as after its last finished `Apply`.
  virtual Digest DigestOf(HolderIndex holder) const = 0;

  virtual IndexStats Stats() const = 0;

  // OK, or INTERNAL with what is wrong inside. Slow; REQUIRES: nobody writes.
  virtual absl::Status Check() const = 0;
};

// A structure by its name: "reference" or "flat". INVALID_ARGUMENT names those that exist.
absl::StatusOr<std::unique_ptr<Index>> MakeIndex(std::string_view name,
                                                 const IndexOptions& options);

// What `MakeIndex` can make, the default first.
std::span<const std::string_view> IndexNames();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_INDEX_H_
