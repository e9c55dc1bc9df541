// Where the field's indexes break: each weakness that is known of a peer is a test here, at the
// size at which it shows. Counts, answers and bytes only; how long it takes is the benchmark's
// business.
//
// Run over the structures that are exact and whole; those that are not made for size run at a
// hundredth of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/index_test_util.h"
#include "indexer/index/random_trie.h"

namespace kvatlas {
namespace {

using Blocks = std::vector<SequenceHash>;

// A sequence of its own for every name.
Blocks Sequence(uint64_t name, size_t length) {
  Blocks blocks;
  blocks.reserve(length);
  for (size_t i = 0; i < length; ++i) blocks.push_back(SequenceHash{MixBits(name << 24 | (i + 1))});
  return blocks;
}

// The sequences of names 0, 1, ….
std::vector<Blocks> Sequences(size_t count, size_t length) {
  std::vector<Blocks> sequences;
  for (uint64_t name = 0; name < count; ++name) sequences.push_back(Sequence(name, length));
  return sequences;
}

Blocks operator+(Blocks head, const Blocks& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

Blocks Head(const Blocks& blocks, size_t size) {
  return Blocks(blocks.begin(), blocks.begin() + size);
}

class WeaknessesTest : public ::testing::TestWithParam<IndexKind> {
 protected:
  WeaknessesTest() { Limit({}); }
  ~WeaknessesTest() override { EXPECT_TRUE(index_->Check().ok()) << index_->Check(); }

  void Limit(const IndexOptions& options) { index_ = *MakeIndex(GetParam().name, options); }

  // The full size for structures that are made for it.
  static size_t Size(size_t full) {
    return GetParam().name == "atlas" ? full : std::max<size_t>(full / 100, 10);
  }

  HolderIndex Add() { return *index_->AddHolder(); }

  absl::Status TryStore(HolderIndex holder, const Blocks& blocks, size_t from = 0,
                        size_t to = SIZE_MAX, Tier tier = Tier::kDevice) {
    to = std::min(to, blocks.size());
    Stored stored = {.tier = tier,
                     .position = static_cast<Position>(from),
                     .parent = from == 0 ? kNoParent : blocks[from - 1],
                     .blocks = {blocks.begin() + from, blocks.begin() + to}};
    for (SequenceHash block : stored.blocks) stored.local_hashes.push_back(LocalHash{Raw(block)});
    return index_->Apply(holder, stored, nullptr);
  }
  void Store(HolderIndex holder, const Blocks& blocks, size_t from = 0, size_t to = SIZE_MAX) {
    const absl::Status status = TryStore(holder, blocks, from, to);
    // One refusal is reported, not a million.
    if (!status.ok() && !std::exchange(refused_, true)) ADD_FAILURE() << status;
  }
  // In events of a stream's size.
  void StoreInPieces(HolderIndex holder, const Blocks& blocks, size_t piece = 4096) {
    for (size_t from = 0; from < blocks.size(); from += piece)
      Store(holder, blocks, from, from + piece);
  }
  void Remove(HolderIndex holder, const Blocks& blocks) {
    ASSERT_TRUE(index_->Apply(holder, Removed{.blocks = blocks}, nullptr).ok());
  }
  void Clear(HolderIndex holder) { ASSERT_TRUE(index_->Apply(holder, Cleared{}, nullptr).ok()); }

  // Sorted by holder.
  std::vector<Overlap> Find(const Blocks& blocks) const {
    std::vector<LocalHash> locals;
    for (SequenceHash block : blocks) locals.push_back(LocalHash{Raw(block)});
    std::vector<Overlap> overlaps;
    index_->FindOverlaps({.blocks = blocks, .local_hashes = locals}, &overlaps);
    std::sort(overlaps.begin(), overlaps.end(),
              [](const Overlap& a, const Overlap& b) { return a.holder < b.holder; });
    return overlaps;
  }
  uint32_t Depth(HolderIndex holder, const Blocks& blocks) const {
    for (const Overlap& overlap : Find(blocks)) {
      if (overlap.holder == holder) return overlap.blocks;
    }
    return 0;
  }

  uint64_t Bytes() const { return index_->Stats().bytes; }
  // Upkeep, as a leaf does it where events are rare.
  void Rest() { index_->Maintain(10'000'000); }
  // At most a twentieth of what was in use, and a little, is left.
  void ExpectGivenBack(uint64_t empty, uint64_t full) {
    Rest();
    EXPECT_LE(Bytes(), empty + (full - empty) / 20 + (64 << 10)) << "of " << full;
  }

  std::unique_ptr<Index> index_;
  bool refused_ = false;
};

INSTANTIATE_TEST_SUITE_P(Structures, WeaknessesTest,
                         ::testing::ValuesIn(KindsThatClaim(kExactAndWhole)), KindName);

// ---- Shapes ----

// A peer's table of first blocks ends at 262,144: the next one panics, and readers spin for ever.
TEST_P(WeaknessesTest, AMillionDistinctFirstBlocks) {
  Limit({.retained_bytes = 0});
  const size_t roots = Size(1'000'000);
  const HolderIndex a = Add(), b = Add();
  const uint64_t empty = Bytes();
  for (uint64_t i = 0; i < roots; ++i) Store(i % 2 == 0 ? a : b, {SequenceHash{MixBits(i)}});
  const uint64_t full = Bytes();
  EXPECT_EQ(index_->Stats().blocks, roots);
  for (uint64_t i = 0; i < roots; i += 97) {
    ASSERT_EQ(Depth(i % 2 == 0 ? a : b, {SequenceHash{MixBits(i)}}), 1u);
    ASSERT_TRUE(Find({SequenceHash{MixBits(roots + i)}}).empty());
  }
  for (uint64_t i = 0; i < roots; i += 4) Remove(a, {SequenceHash{MixBits(i)}});
  EXPECT_EQ(index_->Stats().blocks, roots - (roots + 3) / 4);
  Clear(b);
  EXPECT_TRUE(Find({SequenceHash{MixBits(1)}}).empty());
  EXPECT_EQ(Depth(a, {SequenceHash{MixBits(2)}}), 1u);
  Clear(a);
  EXPECT_EQ(index_->Stats().blocks, 0u);
  ExpectGivenBack(empty, full);
}

TEST_P(WeaknessesTest, ThreeHundredThousandChildrenOfOneBlock) {
  Limit({.retained_bytes = 0});
  const size_t children = Size(300'000);
  const HolderIndex holder = Add(), other = Add();
  const uint64_t empty = Bytes();
  const Blocks trunk = Sequence(1, 8);
  Store(holder, trunk);
  Store(other, trunk);
  for (uint64_t i = 0; i < children; ++i) {
    const Blocks path = trunk + Blocks{SequenceHash{MixBits(~i)}};
    Store(i % 3 == 0 ? other : holder, path, 8);
  }
  for (uint64_t i = 0; i < children; i += 31) {
    const Blocks path = trunk + Blocks{SequenceHash{MixBits(~i)}};
    ASSERT_EQ(Depth(holder, path), i % 3 == 0 ? 8u : 9u);
    ASSERT_EQ(Depth(other, path), i % 3 == 0 ? 9u : 8u);
  }
  const uint64_t full = Bytes();
  for (uint64_t i = 0; i < children; ++i) {
    if (i % 3 != 0) Remove(holder, {SequenceHash{MixBits(~i)}});
  }
  EXPECT_EQ(index_->Stats().blocks, 8 + (children + 2) / 3);
  EXPECT_EQ(Find(trunk), (std::vector<Overlap>{{holder, 8}, {other, 8}}));
  Clear(other);
  EXPECT_EQ(index_->Stats().blocks, 8u);
  Clear(holder);
  ExpectGivenBack(empty, full);
}

TEST_P(WeaknessesTest, ASequenceOfAHundredThousandBlocks) {
  Limit({.retained_bytes = 0});
  const size_t depth = Size(100'000);
  const HolderIndex a = Add(), b = Add();
  const uint64_t empty = Bytes();
  const Blocks prompt = Sequence(1, depth);
  StoreInPieces(a, prompt);
  StoreInPieces(b, prompt, 64);
  const uint64_t full = Bytes();
  EXPECT_EQ(Find(prompt), (std::vector<Overlap>{{a, static_cast<uint32_t>(depth)},
                                                {b, static_cast<uint32_t>(depth)}}));
  const size_t hole = depth / 2 + 1;
  Remove(a, {prompt[hole]});
  EXPECT_EQ(Depth(a, prompt), hole);
  EXPECT_EQ(Depth(b, prompt), depth);
  Store(a, prompt, hole, hole + 1);
  EXPECT_EQ(Depth(a, prompt), depth);
  // A branch at every thousandth block.
  for (size_t at = 1000; at < depth; at += 1000)
    Store(a, Head(prompt, at) + Sequence(at, 3), at, at + 3);
  EXPECT_EQ(Depth(a, Head(prompt, depth / 1000 * 1000 / 2 * 2) + Sequence(7, 1)),
            depth / 1000 * 1000 / 2 * 2);
  // The tail goes, its end first.
  size_t left = depth;
  for (; left > depth / 10; left -= 64) {
    Blocks tail(prompt.begin() + (left - 64), prompt.begin() + left);
    std::reverse(tail.begin(), tail.end());
    Remove(b, tail);
  }
  EXPECT_EQ(Depth(b, prompt), left);
  EXPECT_EQ(Depth(a, prompt), depth);
  Clear(a);
  EXPECT_EQ(index_->Stats().blocks, left);
  Clear(b);
  ExpectGivenBack(empty, full);
}

// A peer stops at 256 workers, another at 1,024 whatever it is asked for.
TEST_P(WeaknessesTest, TenThousandHoldersUnderOneRoot) {
  Limit({.retained_bytes = 0});
  const size_t holders = Size(10'000);
  for (uint32_t i = 0; i < holders; ++i) ASSERT_EQ(Raw(Add()), i);
  const uint64_t empty = Bytes();
  const Blocks trunk = Sequence(1, 32);
  for (uint32_t i = 0; i < holders; ++i) {
    Store(HolderIndex{i}, Head(trunk, 1 + i % 32) + Sequence(1000 + i, 4));
  }
  std::vector<Overlap> found = Find(trunk);
  ASSERT_EQ(found.size(), holders);
  for (uint32_t i = 0; i < holders; ++i) ASSERT_EQ(found[i], (Overlap{HolderIndex{i}, 1 + i % 32}));
  // A third goes; new holders of the numbers inherit nothing.
  for (uint32_t i = 0; i < holders; i += 3) index_->RemoveHolder(HolderIndex{i});
  EXPECT_EQ(Find(trunk).size(), holders - (holders + 2) / 3);
  for (uint32_t i = 0; i < holders; i += 3) ASSERT_EQ(Add(), HolderIndex{i});
  found = Find(trunk);
  ASSERT_EQ(found.size(), holders - (holders + 2) / 3);
  for (const Overlap& overlap : found) ASSERT_NE(Raw(overlap.holder) % 3, 0u);
  for (uint32_t i = 0; i < holders; i += 3) Store(HolderIndex{i}, trunk, 4, 8);
  EXPECT_EQ(Find(trunk).size(), found.size());
  const uint64_t full = Bytes();
  for (uint32_t i = 0; i < holders; ++i) index_->RemoveHolder(HolderIndex{i});
  EXPECT_EQ(index_->Stats().blocks, 0u);
  EXPECT_EQ(index_->Stats().holders, 0u);
  ExpectGivenBack(empty, full);
}

// A peer keeps a linear list of the workers that have a run in part.
TEST_P(WeaknessesTest, AThousandHoldersThatPartAtEveryBlockOfARun) {
  const size_t holders = Size(1'000);
  const Blocks run = Sequence(1, holders);
  for (uint32_t i = 0; i < holders; ++i) Store(Add(), run, 0, i + 1);
  std::vector<Overlap> found = Find(run);
  ASSERT_EQ(found.size(), holders);
  for (uint32_t i = 0; i < holders; ++i) ASSERT_EQ(found[i].blocks, i + 1);
  for (uint32_t i = 0; i < holders; i += 2) Remove(HolderIndex{i}, {run[i / 2]});
  found = Find(run);
  size_t at = 0;
  for (uint32_t i = 0; i < holders; ++i) {
    const uint32_t expected = i % 2 == 0 ? i / 2 : i + 1;
    if (expected > 0) {
      ASSERT_EQ(found[at++], (Overlap{HolderIndex{i}, expected}));
    }
  }
  EXPECT_EQ(at, found.size());
}

// ---- Removing a holder ----

// A peer takes 16 seconds for a worker with 188,000 first blocks, since each unlinking scans its
// parent's table.
TEST_P(WeaknessesTest, RemovingAHolderWithManyFirstBlocksTakesOnlyItsOwn) {
  Limit({.retained_bytes = 0});
  const size_t roots = Size(188'000);
  const HolderIndex dead = Add(), alive = Add();
  for (uint64_t i = 0; i < roots; ++i) {
    Store(dead, Sequence(i, 2));
    if (i % 4 == 0) Store(alive, Sequence(i, 1));
  }
  index_->SetMasked(dead, true);
  EXPECT_EQ(Find(Sequence(4, 2)), (std::vector<Overlap>{{alive, 1}}));
  size_t steps = 0;
  for (bool more = true; more; ++steps) {
    more = index_->Sweep(dead, 1000, nullptr);
    if (steps % 50 == 0) {
      ASSERT_EQ(Find(Sequence(8, 2)), (std::vector<Overlap>{{alive, 1}}));
    }
  }
  EXPECT_TRUE(index_->HoldingsOf(dead).empty());
  index_->RemoveHolder(dead);
  EXPECT_EQ(index_->Stats().holdings, (roots + 3) / 4);
  EXPECT_EQ(Add(), dead);
  EXPECT_TRUE(index_->HoldingsOf(dead).empty());
  EXPECT_EQ(Find(Sequence(4, 2)), (std::vector<Overlap>{{alive, 1}}));
}

// A sweep that is said to go in steps does; what a structure cannot do in steps it does at once.
TEST_P(WeaknessesTest, ASweepsStepIsBounded) {
  const HolderIndex holder = Add();
  const size_t sequences = Size(2'000);
  for (uint64_t i = 0; i < sequences; ++i) Store(holder, Sequence(i, 50));
  ChangeLog first;
  if (!index_->Sweep(holder, 256, &first)) GTEST_SKIP() << "clears a holder at once";
  EXPECT_LE(first.blocks(), 256u + 4096u);
  for (bool more = true; more;) {
    ChangeLog step;
    more = index_->Sweep(holder, 256, &step);
    EXPECT_LE(step.blocks(), 256u + 4096u);
  }
  EXPECT_EQ(index_->Stats().holdings, 0u);
}

// ---- Holes, and what they leave ----

// A peer splits a 1,000-block run into 500 that never merge again, and every lookup pays for it.
TEST_P(WeaknessesTest, EveryOtherBlockEvictedAndStoredAgainLeavesNoTrace) {
  Limit({.retained_bytes = 0});
  const std::vector<Blocks> runs = Sequences(10, 1000);
  const HolderIndex churns = Add(), still = Add();
  for (const Blocks& run : runs) {
    Store(churns, run);
    Store(still, run);
  }
  Rest();
  const uint64_t before = Bytes();
  for (int round = 0; round < 20; ++round) {
    for (const Blocks& run : runs) {
      for (size_t i = round % 2; i < run.size(); i += 2) Remove(churns, {run[i]});
      ASSERT_EQ(Depth(churns, run), round % 2 == 0 ? 0u : 1u);
      ASSERT_EQ(Depth(still, run), 1000u);
    }
    for (const Blocks& run : runs) {
      for (size_t i = round % 2; i < run.size(); i += 2) Store(churns, run, i, i + 1);
      ASSERT_EQ(Depth(churns, run), 1000u);
    }
  }
  Rest();
  EXPECT_LE(Bytes(), before + before / 20);
}

// A peer pays 430 to 620 bytes a holding once there are holes: a split run each. Here a hole costs
// a bit of a set.
TEST_P(WeaknessesTest, HolesOfManyHoldersCostBitsNotSplits) {
  Limit({.retained_bytes = 0});
  const size_t holders = Size(200);
  constexpr size_t kSequences = 20;
  const std::vector<Blocks> runs = Sequences(kSequences, 1000);
  for (uint32_t i = 0; i < holders; ++i) {
    Add();
    for (const Blocks& run : runs) Store(HolderIndex{i}, run);
  }
  Rest();
  const uint64_t before = Bytes();
  for (uint32_t i = 0; i < holders; ++i) {
    for (const Blocks& run : runs) {
      Blocks lost;
      for (size_t at = 1 + i % 7; at < run.size(); at += 2) lost.push_back(run[at]);
      Remove(HolderIndex{i}, lost);
    }
  }
  for (const Blocks& run : runs) {
    const std::vector<Overlap> found = Find(run);
    ASSERT_EQ(found.size(), holders);
    for (uint32_t i = 0; i < holders; ++i) ASSERT_EQ(found[i].blocks, 1 + i % 7);
  }
  Rest();
  EXPECT_LE(Bytes(), before + index_->Stats().holdings * 8 + 4096);
}

// Fragmentation heals: after churn, what is stored whole costs what it costs in an index that saw
// no churn.
TEST_P(WeaknessesTest, WhatChurnSplitIsWholeAgainOnceItIsStoredWhole) {
  const size_t sequences = std::max<size_t>(Size(400), 20);
  std::vector<Blocks> all;
  for (uint64_t i = 0; i < sequences; ++i) all.push_back(Sequence(i, 100));
  uint64_t fresh = 0;
  for (bool churned : {false, true}) {
    Limit({.retained_bytes = 0});
    const HolderIndex a = Add(), b = Add();
    std::mt19937_64 random(5);
    for (size_t event = 0; churned && event < 20 * sequences; ++event) {
      for (HolderIndex holder : {a, b}) {
        const Blocks& run = all[random() % sequences];
        const size_t from = random() % 100;
        Store(holder, run, from, from + 1 + random() % 40);
        Blocks lost;
        for (int i = 0; i < 25; ++i) lost.push_back(all[random() % sequences][random() % 100]);
        Remove(holder, lost);
      }
    }
    for (const Blocks& run : all) {
      Store(a, run);
      Store(b, run);
    }
    Rest();
    for (const Blocks& run : all) {
      ASSERT_EQ(Find(run), (std::vector<Overlap>{{a, 100}, {b, 100}}));
    }
    if (!churned) fresh = Bytes();
  }
  EXPECT_LE(Bytes(), fresh + fresh / 2 + 65'536);
}

TEST_P(WeaknessesTest, MemoryGoesBackAfterHolesToo) {
  Limit({.retained_bytes = 0});
  const uint64_t empty = Bytes();
  const size_t sequences = Size(400);
  std::vector<HolderIndex> holders;
  for (int i = 0; i < 8; ++i) holders.push_back(Add());
  std::mt19937_64 random(7);
  for (uint64_t i = 0; i < sequences; ++i) {
    for (HolderIndex holder : holders) Store(holder, Sequence(i, 500));
  }
  const uint64_t full = Bytes();
  for (uint64_t i = 0; i < sequences; ++i) {
    for (HolderIndex holder : holders) {
      Blocks blocks = Sequence(i, 500);
      std::shuffle(blocks.begin(), blocks.end(), random);
      blocks.resize(300);
      Remove(holder, blocks);
    }
  }
  for (HolderIndex holder : holders) {
    index_->SetMasked(holder, true);
    while (index_->Sweep(holder, 1000, nullptr)) {
    }
  }
  EXPECT_EQ(index_->Stats().blocks, 0u);
  ExpectGivenBack(empty, full);
}

// Storage that is used again must not take over its former contents: a peer's map kept a worker's
// old name for storage that another chain got, and counted two where one was held.
TEST_P(WeaknessesTest, StorageThatIsUsedAgainBringsNothingWithIt) {
  const HolderIndex a = Add(), b = Add();
  Store(b, Sequence(999, 3));
  for (uint64_t round = 0; round < Size(2'000); ++round) {
    const Blocks old = Sequence(2 * round, 5), young = Sequence(2 * round + 1, 5);
    Store(a, old);
    Remove(a, {old[0], old[1], old[4]});
    Remove(a, {old[2], old[3]});
    Store(a, young, 0, 2);
    ASSERT_EQ(Depth(a, young), 2u);
    Store(a, old, 1, 4);
    ASSERT_EQ(Depth(a, old), 0u);
    Store(a, old, 0, 1);
    ASSERT_EQ(Depth(a, old), 4u);
    ASSERT_EQ(Depth(a, young), 2u);
    Remove(a, old);
    Remove(a, young);
  }
  EXPECT_EQ(index_->Stats().holdings, 3u);
}

// ---- Answers ----

// A peer intersects holders only where their number changes.
TEST_P(WeaknessesTest, AsManyHoldersButOthersAtEveryRun) {
  const Blocks trunk = Sequence(1, 64);
  std::vector<HolderIndex> holders;
  for (int i = 0; i < 16; ++i) holders.push_back(Add());
  // Always eight, but never the same eight: at each run one leaves and one comes.
  std::vector<uint32_t> expected(16, 0);
  for (size_t run = 0; run < 8; ++run) {
    for (uint32_t i = 0; i < 16; ++i) {
      const bool has = (i + run) % 16 < 8;
      if (!has) continue;
      Store(holders[i], trunk, run * 8, run * 8 + 8);
      if (expected[i] == run * 8) expected[i] += 8;
    }
  }
  std::vector<Overlap> all;
  for (uint32_t i = 0; i < 16; ++i) {
    if (expected[i] > 0) all.push_back({holders[i], expected[i]});
  }
  EXPECT_EQ(Find(trunk), all);
}

TEST_P(WeaknessesTest, HashesMadeToCollideCostMemoryNotAnswers) {
  for (Spread spread : {Spread::kSmall, Spread::kSameLowBits, Spread::kSameHighBits,
                        Spread::kFibonacci, Spread::kHighBits}) {
    Limit({});
    const size_t blocks = Size(spread == Spread::kHighBits ? 60'000 : 200'000);
    const RandomTrie trie({.seed = 1,
                           .blocks = static_cast<uint32_t>(blocks),
                           .shape = Shape::kChain,
                           .spread = spread});
    Blocks run;
    for (uint32_t i = 0; i < blocks; ++i) run.push_back(trie.hash(i));
    const HolderIndex a = Add(), b = Add();
    StoreInPieces(a, run);
    StoreInPieces(b, Head(run, blocks / 2), 64);
    EXPECT_EQ(Find(run), (std::vector<Overlap>{{a, static_cast<uint32_t>(blocks)},
                                               {b, static_cast<uint32_t>(blocks / 2)}}));
    Clear(a);
    EXPECT_EQ(index_->Stats().blocks, blocks / 2);
    EXPECT_EQ(Depth(b, run), blocks / 2);
    EXPECT_TRUE(index_->Check().ok());
  }
}

// ---- Churn ----

// Peers keep empty entries, stale lookups and split runs: memory grows with traffic, not with
// contents.
TEST_P(WeaknessesTest, AHundredfoldChurnAddsNothing) {
  Limit({.retained_bytes = 0});
  const size_t capacity = std::max<size_t>(Size(16'000), 400);
  constexpr int kHolders = 4;
  constexpr size_t kRun = 50;
  std::vector<std::deque<Blocks>> resident(kHolders);
  for (int i = 0; i < kHolders; ++i) Add();
  const uint64_t events = 100 * capacity / kRun + 1;
  uint64_t warm = 0;
  for (uint64_t event = 0; event < events; ++event) {
    for (uint32_t i = 0; i < kHolders; ++i) {
      // Sequences share one of eight heads, and holders share sequences.
      const Blocks sequence = Sequence(event % 8, 10) + Sequence(1000 + event * 2 + i / 2, 40);
      Store(HolderIndex{i}, sequence);
      resident[i].push_back({sequence.rbegin(), sequence.rbegin() + 40});
      if (resident[i].size() * kRun > capacity) {
        Remove(HolderIndex{i}, resident[i].front());
        resident[i].pop_front();
      }
    }
    if (event == events / 10) {
      Rest();
      warm = Bytes();
    }
  }
  Rest();
  EXPECT_LE(Bytes(), warm + warm / 5);
}

// The same with evictions in random order, which leave holes: once the contents are as broken as
// they get, which takes some 500 times what is resident, memory stays where it is.
TEST_P(WeaknessesTest, AHundredfoldChurnWithHolesAddsNothing) {
  Limit({.retained_bytes = 0});
  const size_t capacity = std::max<size_t>(Size(2'000), 400);
  constexpr size_t kRun = 50;
  std::mt19937_64 random(11);
  const HolderIndex a = Add(), b = Add();
  const std::vector<Blocks> sequences = Sequences(capacity / kRun * 2, kRun);
  uint64_t warm = 0;
  const uint64_t events = 900 * capacity / kRun;
  for (uint64_t event = 0; event < events; ++event) {
    for (HolderIndex holder : {a, b}) {
      const Blocks& sequence = sequences[random() % sequences.size()];
      Store(holder, sequence);
      Blocks lost;
      for (int i = 0; i < 40; ++i) {
        const Blocks& from = sequences[random() % sequences.size()];
        lost.push_back(from[random() % from.size()]);
      }
      Remove(holder, lost);
    }
    if (event == events / 2) {
      Rest();
      warm = Bytes();
    }
  }
  Rest();
  EXPECT_LE(Bytes(), warm + warm / 4 + 4096);
}

TEST_P(WeaknessesTest, TailsThatGoAndComeDoNotFragment) {
  Limit({.retained_bytes = 0});
  const std::vector<Blocks> runs = Sequences(10, 1000);
  std::vector<HolderIndex> holders;
  for (int i = 0; i < 16; ++i) {
    holders.push_back(Add());
    for (const Blocks& run : runs) Store(holders.back(), run);
  }
  Rest();
  const uint64_t before = Bytes();
  std::mt19937_64 random(3);
  for (int round = 0; round < static_cast<int>(Size(8'000)); ++round) {
    const HolderIndex holder = holders[random() % holders.size()];
    const Blocks& run = runs[random() % runs.size()];
    const size_t cut = 1 + random() % 999;
    Remove(holder, {run.begin() + cut, run.end()});
    ASSERT_EQ(Depth(holder, run), cut);
    Store(holder, run, cut);
    ASSERT_EQ(Depth(holder, run), 1000u);
  }
  Rest();
  EXPECT_LE(Bytes(), before + before / 10);
}

// ---- Bounds are statuses ----

TEST_P(WeaknessesTest, AFullTableOfHoldersIsAStatus) {
  const uint32_t holders = static_cast<uint32_t>(Size(1 << 16));
  Limit({.holders_max = holders});
  for (uint32_t i = 0; i < holders; ++i) ASSERT_TRUE(index_->AddHolder().ok());
  EXPECT_EQ(index_->AddHolder().status().code(), absl::StatusCode::kResourceExhausted);
  Store(HolderIndex{holders - 1}, Sequence(1, 3));
  EXPECT_EQ(Find(Sequence(1, 3)), (std::vector<Overlap>{{HolderIndex{holders - 1}, 3}}));
}

TEST_P(WeaknessesTest, AtTheLimitOfBytesNewBlocksAreRefusedAndAllElseGoesOn) {
  const uint64_t bytes_max = Size(4 << 20);
  Limit({.bytes_max = bytes_max, .retained_bytes = 0});
  const HolderIndex a = Add(), b = Add();
  uint64_t stored = 0;
  absl::Status status;
  // No structure needs less than four bytes a block.
  while (status.ok() && stored * 100 * 4 < bytes_max) status = TryStore(a, Sequence(stored++, 100));
  if (status.ok()) GTEST_SKIP() << "does not count its bytes";
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(stored, 100u);
  EXPECT_LE(Bytes(), bytes_max + bytes_max / 8);
  EXPECT_GT(index_->Stats().refused_blocks, 0u);
  // Known blocks, removals and questions go on.
  Store(b, Sequence(0, 100));
  EXPECT_EQ(Find(Sequence(0, 100)), (std::vector<Overlap>{{a, 100}, {b, 100}}));
  Remove(a, Sequence(1, 100));
  EXPECT_EQ(Depth(a, Sequence(1, 100)), 0u);
  Clear(a);
  Rest();
  Store(a, Sequence(7'777, 100));
  EXPECT_EQ(Depth(a, Sequence(7'777, 100)), 100u);
}

// When 15/16 are used, a tail is refused where a head is still taken.
TEST_P(WeaknessesTest, NearTheLimitOfBytesHeadsAreWorthMoreThanTails) {
  const uint64_t bytes_max = Size(8 << 20);
  Limit({.bytes_max = bytes_max, .retained_bytes = 0});
  const HolderIndex holder = Add();
  absl::Status status;
  uint64_t stored = 0;
  while (status.ok() && stored * 200 * 4 < bytes_max)
    status = TryStore(holder, Sequence(stored++, 200));
  if (status.ok()) GTEST_SKIP() << "does not count its bytes";
  EXPECT_GE(Depth(holder, Sequence(stored - 1, 200)), kHeadBlocks);
  EXPECT_TRUE(TryStore(holder, Sequence(30'000, 16)).ok());
  EXPECT_FALSE(TryStore(holder, Sequence(30'001, 200), kHeadBlocks + 10).ok());
}

}  // namespace
}  // namespace kvatlas
