// What do the conformance tests share? One structure under test, written and asked in contents: small numbers
// that stand for blocks' local hashes, so {1, 2, 3} is a prompt, and its sequence hashes are the real chain.
//
// *Place*: tests take a kind as their parameter. Those of the whole interface run over `WholeIndexKinds()`; in
// the others, what a kind does not claim is skipped with `NEEDS_EXACT` or `NEEDS_WHOLE`. A structure that works on an executor gets none, so it is done when `Apply` returns.

#ifndef KVATLAS_INDEXER_INDEX_CONFORMANCE_TEST_UTIL_H_
#define KVATLAS_INDEXER_INDEX_CONFORMANCE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/index/index.h"

namespace kvatlas {

inline void PrintTo(const IndexKind& kind, std::ostream* out) { *out << kind.name; }

// Contents of consecutive blocks from the root.
using Contents = std::vector<uint64_t>;
// Overlaps by holder number.
using Scores = std::map<uint32_t, uint32_t>;
// A change as a sink heard it: holder, block, position, before, after.
using Change = std::tuple<uint32_t, uint64_t, Position, int, int>;

inline std::vector<LocalHash> Locals(const Contents& contents) {
  std::vector<LocalHash> locals;
  for (uint64_t content : contents) locals.push_back(LocalHash{content});
  return locals;
}

inline std::vector<SequenceHash> Chain(const Contents& contents) {
  return SequenceHashes(Locals(contents));
}

// from, from + 1, … of a sequence nobody else has.
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

class ConformanceTest : public ::testing::TestWithParam<IndexKind> {
 protected:
  struct Recorder : ChangeSink {
    void Changed(HolderIndex holder, SequenceHash block, Position position, TierMask before,
                 TierMask after) override {
      changes.emplace_back(Raw(holder), Raw(block), position, before.bits(), after.bits());
    }
    std::vector<Change> changes;
  };

  ConformanceTest() { Limit({}); }
  ~ConformanceTest() override { EXPECT_TRUE(index_->Check().ok()) << index_->Check(); }

  // Begins again with other bounds.
  void Limit(const IndexOptions& options) { index_ = *MakeIndex(GetParam().name, options); }

  HolderIndex Add() { return *index_->AddHolder(); }

  // Blocks [from, to) of a sequence; all of it where nothing is said.
  absl::Status TryStore(HolderIndex holder, const Contents& contents, size_t from = 0,
                        size_t to = SIZE_MAX, Tier tier = Tier::kDevice) {
    const std::vector<SequenceHash> chain = Chain(contents);
    const std::vector<LocalHash> locals = Locals(contents);
    to = std::min(to, contents.size());
    const Stored stored = {.tier = tier,
                           .position = static_cast<Position>(from),
                           .parent = from == 0 ? kNoParent : chain[from - 1],
                           .blocks = {chain.begin() + from, chain.begin() + to},
                           .local_hashes = {locals.begin() + from, locals.begin() + to}};
    return index_->Apply(holder, stored, &sink_);
  }
  void Store(HolderIndex holder, const Contents& contents, size_t from = 0, size_t to = SIZE_MAX,
             Tier tier = Tier::kDevice) {
    const absl::Status status = TryStore(holder, contents, from, to, tier);
    ASSERT_TRUE(status.ok()) << status;
  }
  void StoreAll(HolderIndex holder, const Contents& contents, Tier tier) {
    Store(holder, contents, 0, SIZE_MAX, tier);
  }
  // `tail` behind `head`, as an engine that goes on with a sequence says it.
  void StoreAfter(HolderIndex holder, const Contents& head, const Contents& tail) {
    Store(holder, head + tail, head.size());
  }

  void Remove(HolderIndex holder, const Contents& contents, size_t from = 0, size_t to = SIZE_MAX,
              Tier tier = Tier::kDevice) {
    const std::vector<SequenceHash> chain = Chain(contents);
    to = std::min(to, contents.size());
    RemoveHashes(holder, {chain.begin() + from, chain.begin() + to}, tier);
  }
  // The blocks at these positions, in this order, in one event.
  void RemoveAt(HolderIndex holder, const Contents& contents, const std::vector<size_t>& positions,
                Tier tier = Tier::kDevice) {
    const std::vector<SequenceHash> chain = Chain(contents);
    std::vector<SequenceHash> blocks;
    for (size_t position : positions) blocks.push_back(chain[position]);
    RemoveHashes(holder, blocks, tier);
  }
  void RemoveHashes(HolderIndex holder, const std::vector<SequenceHash>& blocks,
                    Tier tier = Tier::kDevice) {
    const absl::Status status =
        index_->Apply(holder, Removed{.tier = tier, .blocks = blocks}, &sink_);
    ASSERT_TRUE(status.ok()) << status;
  }
  void Clear(HolderIndex holder, TierMask tiers = TierMask::All()) {
    const absl::Status status = index_->Apply(holder, Cleared{.tiers = tiers}, &sink_);
    ASSERT_TRUE(status.ok()) << status;
  }

  Scores Find(const Contents& contents, TierMask tiers = TierMask::All()) const {
    const std::vector<SequenceHash> chain = Chain(contents);
    const std::vector<LocalHash> locals = Locals(contents);
    std::vector<Overlap> overlaps;
    index_->FindOverlaps({.blocks = chain, .tiers = tiers, .local_hashes = locals}, &overlaps);
    Scores scores;
    for (const Overlap& overlap : overlaps) {
      EXPECT_TRUE(scores.emplace(Raw(overlap.holder), overlap.blocks).second) << "twice";
    }
    return scores;
  }

  uint64_t Holdings(HolderIndex holder) const { return index_->HoldingsOf(holder).size(); }

  // What a structure that says it is whole tells about itself.
  std::map<uint64_t, Holding> HoldingsByBlock(HolderIndex holder) const {
    std::map<uint64_t, Holding> by_block;
    for (const Holding& holding : index_->HoldingsOf(holder)) {
      EXPECT_TRUE(by_block.emplace(Raw(holding.block), holding).second) << "twice";
    }
    return by_block;
  }

  std::unique_ptr<Index> index_;
  Recorder sink_;
};

inline std::vector<IndexKind> AllIndexKinds() { return {IndexKinds().begin(), IndexKinds().end()}; }

inline std::vector<IndexKind> WholeIndexKinds() {
  std::vector<IndexKind> kinds = AllIndexKinds();
  std::erase_if(kinds, [](const IndexKind& kind) { return !kind.whole; });
  return kinds;
}

inline std::string KindName(const ::testing::TestParamInfo<IndexKind>& info) {
  return std::string(info.param.name);
}

}  // namespace kvatlas

#define NEEDS_EXACT      \
  if (!GetParam().exact) \
  GTEST_SKIP() << GetParam().name << " does not claim exactness: " << GetParam().about

#define NEEDS_WHOLE      \
  if (!GetParam().whole) \
  GTEST_SKIP() << GetParam().name << " does not claim the whole interface: " << GetParam().about

#endif  // KVATLAS_INDEXER_INDEX_CONFORMANCE_TEST_UTIL_H_
