// Shared by the tests of all structures: sequences as small numbers, one structure with its
// holders, and what each kind claims.
//
// *Contents* are small numbers that stand for local hashes: {1, 2, 3} is a prompt of three blocks,
// its sequence hashes are the real chain. A structure that works on an executor gets none here, so
// it is done when `Apply` returns.

#ifndef KVATLAS_INDEXER_INDEX_INDEX_TEST_UTIL_H_
#define KVATLAS_INDEXER_INDEX_INDEX_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/index.h"

namespace kvatlas {

inline void PrintTo(const IndexKind& kind, std::ostream* out) { *out << kind.name; }
inline void PrintTo(const Overlap& overlap, std::ostream* out) {
  *out << "holder " << Raw(overlap.holder) << ": " << overlap.blocks;
}

// ---- What a kind claims ----

enum Claim : unsigned {
  kHoles = 1,    // right behind a block that the holder lost
  kOrphans = 2,  // keeps blocks whose parent is not held, and counts them once it is
  kPlaces = 4,   // tells equal content at another place from the one asked for
  kWhole = 8,    // `IndexKind::whole`
};

inline unsigned ClaimsOf(const IndexKind& kind) {
  static const auto* const kOfInexact =
      new std::map<std::string_view, unsigned>{{"nested_map", kHoles | kOrphans},
                                               {"inverted", kHoles | kOrphans},
                                               {"radix", kPlaces},
                                               {"actor", kPlaces},
                                               {"positional", kPlaces},
                                               {"positional_binary", kPlaces},
                                               {"host_bitmap", kPlaces},
                                               {"concurrent_radix", kHoles | kPlaces}};
  return (kind.exact ? kHoles | kOrphans | kPlaces : kOfInexact->at(kind.name)) |
         (kind.whole ? unsigned{kWhole} : 0u);
}

// Kinds that claim all of `claims`, the default first.
inline std::vector<IndexKind> KindsThatClaim(unsigned claims) {
  std::vector<IndexKind> kinds = {IndexKinds().begin(), IndexKinds().end()};
  std::erase_if(kinds, [&](const IndexKind& kind) { return (claims & ~ClaimsOf(kind)) != 0; });
  return kinds;
}
inline constexpr unsigned kExactAndWhole = kHoles | kOrphans | kPlaces | kWhole;

inline std::string KindName(const ::testing::TestParamInfo<IndexKind>& info) {
  return std::string(info.param.name);
}

// ---- Sequences ----

using Contents = std::vector<uint64_t>;
// Overlaps by holder number.
using Scores = std::map<uint32_t, uint32_t>;
// A change of membership: holder, block, position, tiers before, after.
using Change = std::tuple<uint32_t, uint64_t, Position, int, int>;

inline std::vector<LocalHash> Locals(const Contents& contents) {
  std::vector<LocalHash> locals;
  for (uint64_t content : contents) locals.push_back(LocalHash{content});
  return locals;
}

inline std::vector<SequenceHash> Chain(const Contents& contents) {
  return SequenceHashes(Locals(contents));
}

// from, from + 1, …
inline Contents Count(uint64_t from, size_t blocks) {
  Contents contents;
  for (size_t i = 0; i < blocks; ++i) contents.push_back(from + i);
  return contents;
}

inline Contents operator+(Contents head, const Contents& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

inline Contents Head(const Contents& contents, size_t blocks) {
  return Contents(contents.begin(), contents.begin() + blocks);
}

// Blocks [from, to) of a sequence, with their local hashes.
inline Stored StoredOf(const Contents& contents, size_t from = 0, size_t to = SIZE_MAX,
                       Tier tier = Tier::kDevice) {
  const std::vector<SequenceHash> chain = Chain(contents);
  const std::vector<LocalHash> locals = Locals(contents);
  to = std::min(to, contents.size());
  return {.tier = tier,
          .position = static_cast<Position>(from),
          .parent = from == 0 ? kNoParent : chain[from - 1],
          .blocks = {chain.begin() + from, chain.begin() + to},
          .local_hashes = {locals.begin() + from, locals.begin() + to}};
}

// The blocks at these positions, in this order.
inline Removed RemovedOf(const Contents& contents, const std::vector<size_t>& positions,
                         Tier tier = Tier::kDevice) {
  const std::vector<SequenceHash> chain = Chain(contents);
  Removed removed = {.tier = tier, .blocks = {}};
  for (size_t position : positions) removed.blocks.push_back(chain[position]);
  return removed;
}

inline std::vector<size_t> Positions(size_t from, size_t to) {
  std::vector<size_t> positions;
  for (size_t i = from; i < to; ++i) positions.push_back(i);
  return positions;
}

inline Scores ToScores(const std::vector<Overlap>& overlaps) {
  Scores scores;
  for (const Overlap& overlap : overlaps) {
    EXPECT_TRUE(scores.emplace(Raw(overlap.holder), overlap.blocks).second) << "twice";
  }
  return scores;
}

inline Digest DigestOf(const std::vector<Holding>& holdings) {
  Digest digest;
  for (const Holding& holding : holdings) {
    for (int tier = 0; tier < kTiers; ++tier) {
      if (holding.tiers.Has(static_cast<Tier>(tier)))
        digest.Add(static_cast<Tier>(tier), holding.block);
    }
  }
  return digest;
}

// ---- One structure ----

// The logged changes of all holders.
struct Recorder {
  // Calls write(&log), and records what it logs as the holder's.
  template <typename Write>
  auto Record(HolderIndex holder, Write write) {
    ChangeLog log;
    auto result = write(&log);
    log.ForEachBlock([&](SequenceHash block, Position position, TierMask before, TierMask after) {
      changes.emplace_back(Raw(holder), Raw(block), position, before.bits(), after.bits());
    });
    return result;
  }
  std::vector<Change> changes;
};

class Tested {
 public:
  explicit Tested(std::string_view name, const IndexOptions& options = {}, uint32_t holders = 0)
      : name_(name), index_(*MakeIndex(name, options)) {
    while (holders-- > 0) Add();
  }
  virtual ~Tested() { EXPECT_TRUE(index_->Check().ok()) << name_ << ": " << index_->Check(); }

  // Begins again with other bounds.
  void Limit(const IndexOptions& options) { index_ = *MakeIndex(name_, options); }

  HolderIndex Add() { return *index_->AddHolder(); }

  absl::Status Apply(HolderIndex holder, const Event& event) {
    return sink_.Record(holder,
                        [&](ChangeLog* changes) { return index_->Apply(holder, event, changes); });
  }
  bool Sweep(HolderIndex holder, size_t blocks_max) {
    return sink_.Record(
        holder, [&](ChangeLog* changes) { return index_->Sweep(holder, blocks_max, changes); });
  }
  void Do(HolderIndex holder, const Event& event) {
    const absl::Status status = Apply(holder, event);
    EXPECT_TRUE(status.ok()) << status;
  }
  void Store(HolderIndex holder, const Contents& contents, size_t from = 0, size_t to = SIZE_MAX,
             Tier tier = Tier::kDevice) {
    Do(holder, StoredOf(contents, from, to, tier));
  }
  void Remove(HolderIndex holder, const Contents& contents, const std::vector<size_t>& positions) {
    Do(holder, RemovedOf(contents, positions));
  }
  void Clear(HolderIndex holder, TierMask tiers = TierMask::All()) {
    Do(holder, Cleared{.tiers = tiers});
  }

  Scores Find(const Contents& contents, TierMask tiers = TierMask::All()) const {
    const std::vector<SequenceHash> chain = Chain(contents);
    const std::vector<LocalHash> locals = Locals(contents);
    std::vector<Overlap> overlaps;
    index_->FindOverlaps({.blocks = chain, .tiers = tiers, .local_hashes = locals}, &overlaps);
    return ToScores(overlaps);
  }
  uint32_t Depth(HolderIndex holder, const Contents& contents) const {
    return Find(contents)[Raw(holder)];
  }
  uint64_t Holdings(HolderIndex holder) const { return index_->HoldingsOf(holder).size(); }

  // A figure of `IndexStats::shape`.
  uint64_t Shape(std::string_view name) const {
    for (const auto& [each, value] : index_->Stats().shape) {
      if (each == name) return value;
    }
    ADD_FAILURE() << "no figure " << name;
    return 0;
  }

  Index* operator->() { return index_.get(); }
  const std::vector<Change>& changes() const { return sink_.changes; }

 protected:
  const std::string name_;
  std::unique_ptr<Index> index_;
  Recorder sink_;
};

// A test that runs over kinds.
class KindTest : public ::testing::TestWithParam<IndexKind>, protected Tested {
 protected:
  KindTest() : Tested(GetParam().name) {}
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_INDEX_TEST_UTIL_H_
