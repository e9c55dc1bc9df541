// What every structure that serves a leaf owes its callers, one test a sentence, for each of `WholeIndexNames()`.
// The field's own behaviours: conformance_*_test.cc.

#include "indexer/index/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "indexer/base/hash.h"

namespace kvatlas {

void PrintTo(const Overlap& overlap, std::ostream* out) {
  *out << "holder " << Raw(overlap.holder) << ": " << overlap.blocks;
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Blocks = std::vector<SequenceHash>;

Blocks Sequence(uint64_t name, size_t length) {
  std::vector<LocalHash> locals;
  for (size_t i = 0; i < length; ++i) locals.push_back(LocalHash{name * 1000003 + i});
  return SequenceHashes(locals);
}

Blocks Slice(const Blocks& blocks, size_t from, size_t to) {
  return Blocks(blocks.begin() + from, blocks.begin() + to);
}

// A change as the sink heard it: holder, block, position, before, after.
using Change = std::tuple<uint32_t, uint64_t, Position, int, int>;

class Recorder : public ChangeSink {
 public:
  void Changed(HolderIndex holder, SequenceHash block, Position position, TierMask before,
               TierMask after) override {
    changes.emplace_back(Raw(holder), Raw(block), position, before.bits(), after.bits());
  }
  std::vector<Change> changes;
};

class IndexTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  IndexTest() : index_(*MakeIndex(GetParam(), {})) {}
  ~IndexTest() override { EXPECT_TRUE(index_->Check().ok()) << index_->Check(); }

  void Limit(const IndexOptions& options) { index_ = *MakeIndex(GetParam(), options); }

  HolderIndex Add() { return *index_->AddHolder(); }

  void Store(HolderIndex holder, const Blocks& blocks, Tier tier = Tier::kDevice,
             Position position = 0, SequenceHash parent = kNoParent) {
    const absl::Status status =
        index_->Apply(holder, StoredEvent(blocks, tier, position, parent), &sink_);
    ASSERT_TRUE(status.ok()) << status;
  }
  void Remove(HolderIndex holder, const Blocks& blocks, Tier tier = Tier::kDevice) {
    ASSERT_TRUE(index_->Apply(holder, Removed{.tier = tier, .blocks = blocks}, &sink_).ok());
  }
  void Clear(HolderIndex holder, TierMask tiers = TierMask::All()) {
    ASSERT_TRUE(index_->Apply(holder, Cleared{.tiers = tiers}, &sink_).ok());
  }

  static Stored StoredEvent(const Blocks& blocks, Tier tier = Tier::kDevice, Position position = 0,
                            SequenceHash parent = kNoParent) {
    return {.tier = tier, .position = position, .parent = parent, .blocks = blocks};
  }

  std::vector<Overlap> Find(const Blocks& blocks, TierMask tiers = TierMask::All()) const {
    std::vector<Overlap> overlaps;
    index_->FindOverlaps({.blocks = blocks, .tiers = tiers}, &overlaps);
    return overlaps;
  }
  uint32_t Depth(HolderIndex holder, const Blocks& blocks, TierMask tiers = TierMask::All()) const {
    uint32_t depth = 0;
    for (const Overlap& overlap : Find(blocks, tiers)) {
      if (overlap.holder == holder) depth = overlap.blocks;
    }
    return depth;
  }

  std::unique_ptr<Index> index_;
  Recorder sink_;
};

INSTANTIATE_TEST_SUITE_P(Structures, IndexTest, ::testing::ValuesIn(WholeIndexNames()),
                         [](const auto& info) { return std::string(info.param); });

// ---- Overlaps ----

TEST_P(IndexTest, KnowsItsName) { EXPECT_EQ(index_->Name(), GetParam()); }

TEST_P(IndexTest, NothingIsHeldAtFirst) {
  Add();
  EXPECT_THAT(Find(Sequence(1, 4)), IsEmpty());
}

TEST_P(IndexTest, OverlapIsTheNumberOfLeadingBlocks) {
  const Blocks prompt = Sequence(1, 8);
  const HolderIndex all = Add(), half = Add(), other = Add(), tail = Add();
  Store(all, prompt);
  Store(half, Slice(prompt, 0, 4));
  Store(other, Sequence(2, 8));
  Store(tail, Slice(prompt, 1, 8), Tier::kDevice, 1, prompt[0]);
  EXPECT_THAT(Find(prompt), UnorderedElementsAre(Overlap{all, 8}, Overlap{half, 4}));
  EXPECT_THAT(Find(Slice(prompt, 0, 3)), UnorderedElementsAre(Overlap{all, 3}, Overlap{half, 3}));
}

TEST_P(IndexTest, AnswersAreAppended) {
  const HolderIndex holder = Add();
  Store(holder, Sequence(1, 2));
  const Blocks prompt = Sequence(1, 2);
  std::vector<Overlap> overlaps = {{.holder = HolderIndex{7}, .blocks = 9}};
  index_->FindOverlaps({.blocks = prompt}, &overlaps);
  EXPECT_THAT(overlaps, ElementsAre(Overlap{HolderIndex{7}, 9}, Overlap{holder, 2}));
}

TEST_P(IndexTest, AnEmptyQueryFindsNobody) {
  Store(Add(), Sequence(1, 2));
  EXPECT_THAT(Find({}), IsEmpty());
}

TEST_P(IndexTest, AQueryForNoTierFindsNobody) {
  Store(Add(), Sequence(1, 2));
  EXPECT_THAT(Find(Sequence(1, 2), TierMask()), IsEmpty());
}

// No prompt does: a sequence hash names one prefix.
TEST_P(IndexTest, AQueryThatNamesABlockTwiceEnds) {
  const HolderIndex holder = Add();
  const Blocks prompt = Sequence(1, 2);
  Store(holder, prompt);
  const uint32_t depth = Depth(holder, {prompt[0], prompt[0], prompt[1], prompt[0]});
  EXPECT_GE(depth, 1u);
  EXPECT_LE(depth, 4u);
}

TEST_P(IndexTest, AHoleEndsTheOverlap) {
  const HolderIndex holder = Add();
  const Blocks prompt = Sequence(1, 8);
  Store(holder, prompt);
  Remove(holder, {prompt[3]});
  EXPECT_EQ(Depth(holder, prompt), 3u);
  Remove(holder, {prompt[0]});
  EXPECT_EQ(Depth(holder, prompt), 0u);
}

TEST_P(IndexTest, StoringTheMissingBlockMakesTheDeeperOnesCountAgain) {
  const HolderIndex holder = Add();
  const Blocks prompt = Sequence(1, 8);
  Store(holder, prompt);
  Remove(holder, {prompt[3], prompt[0]});
  Store(holder, {prompt[0]});
  EXPECT_EQ(Depth(holder, prompt), 3u);
  Store(holder, {prompt[3]}, Tier::kDevice, 3, prompt[2]);
  EXPECT_EQ(Depth(holder, prompt), 8u);
}

TEST_P(IndexTest, TheTailMayComeBeforeTheHead) {
  const HolderIndex holder = Add();
  const Blocks prompt = Sequence(1, 8);
  Store(holder, Slice(prompt, 4, 8), Tier::kDevice, 4, prompt[3]);
  EXPECT_EQ(Depth(holder, prompt), 0u);
  Store(holder, Slice(prompt, 0, 4));
  EXPECT_EQ(Depth(holder, prompt), 8u);
}

TEST_P(IndexTest, SequencesThatShareAHeadShareItsBlocks) {
  const HolderIndex a = Add(), b = Add();
  Blocks left = Sequence(1, 4), right = Sequence(1, 4);
  for (SequenceHash hash : Sequence(2, 3)) left.push_back(hash);
  for (SequenceHash hash : Sequence(3, 3)) right.push_back(hash);
  Store(a, left);
  Store(b, right);
  EXPECT_THAT(Find(left), UnorderedElementsAre(Overlap{a, 7}, Overlap{b, 4}));
  EXPECT_EQ(index_->Stats().blocks, 10u);
  EXPECT_EQ(index_->Stats().holdings, 14u);
}

// ---- Sets, not counts ----

TEST_P(IndexTest, StoringTwiceAndRemovingOnceLeavesNothing) {
  const HolderIndex holder = Add();
  const Blocks prompt = Sequence(1, 3);
  Store(holder, prompt);
  Store(holder, prompt);
  Remove(holder, prompt);
  EXPECT_THAT(Find(prompt), IsEmpty());
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

TEST_P(IndexTest, RemovingWhatIsNotHeldChangesNothing) {
  const HolderIndex a = Add(), b = Add();
  const Blocks prompt = Sequence(1, 3);
  Store(a, prompt);
  sink_.changes.clear();
  Remove(b, prompt);
  Remove(a, prompt, Tier::kHost);
  Remove(a, Sequence(2, 3));
  EXPECT_THAT(sink_.changes, IsEmpty());
  EXPECT_EQ(Depth(a, prompt), 3u);
}

TEST_P(IndexTest, ABlockTwiceInOneRemovalGoesOnce) {
  const HolderIndex holder = Add();
  const Blocks prompt = Sequence(1, 1);
  Store(holder, prompt);
  EXPECT_EQ(index_->DigestOf(holder).tiers[0].blocks, 1u);
  Remove(holder, {prompt[0], prompt[0]});
  EXPECT_EQ(index_->DigestOf(holder), Digest());
  EXPECT_EQ(sink_.changes.size(), 2u);
}

TEST_P(IndexTest, EmptyEventsAreFine) {
  const HolderIndex holder = Add();
  Store(holder, {});
  Remove(holder, {});
  Clear(holder, TierMask());
  Clear(holder);
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

// ---- Tiers ----

TEST_P(IndexTest, TiersAreUnitedBlockByBlock) {
  const HolderIndex holder = Add();
  const Blocks prompt = Sequence(1, 6);
  Store(holder, {prompt[0], prompt[1]}, Tier::kDevice);
  Store(holder, {prompt[2], prompt[3]}, Tier::kHost, 2, prompt[1]);
  Store(holder, {prompt[4]}, Tier::kDisk, 4, prompt[3]);
  EXPECT_EQ(Depth(holder, prompt), 5u);
  EXPECT_EQ(Depth(holder, prompt, TierMask::Routed()), 4u);
  EXPECT_EQ(Depth(holder, prompt, Tier::kDevice), 2u);
  EXPECT_EQ(Depth(holder, prompt, Tier::kHost), 0u);
}

TEST_P(IndexTest, TiersEvictIndependently) {
  const HolderIndex holder = Add();
  const Blocks prompt = Sequence(1, 2);
  Store(holder, prompt, Tier::kDevice);
  Store(holder, prompt, Tier::kExternal);
  Remove(holder, prompt, Tier::kDevice);
  EXPECT_EQ(Depth(holder, prompt), 2u);
  EXPECT_EQ(Depth(holder, prompt, Tier::kDevice), 0u);
  Remove(holder, {prompt[1]}, Tier::kExternal);
  EXPECT_EQ(Depth(holder, prompt), 1u);
}

TEST_P(IndexTest, ClearTakesOnlyTheTiersNamed) {
  const HolderIndex a = Add(), b = Add();
  const Blocks prompt = Sequence(1, 3);
  for (Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) Store(a, prompt, tier);
  Store(b, prompt);
  Clear(a, TierMask(Tier::kDevice) | Tier::kHost);
  EXPECT_EQ(Depth(a, prompt, TierMask::Routed()), 0u);
  EXPECT_EQ(Depth(a, prompt), 3u);
  EXPECT_EQ(Depth(b, prompt), 3u);
  Clear(a);
  EXPECT_THAT(Find(prompt), ElementsAre(Overlap{b, 3}));
}

// ---- Holders ----

TEST_P(IndexTest, NumbersAreTheSmallestFree) {
  for (uint32_t i = 0; i < 200; ++i) EXPECT_EQ(Add(), HolderIndex{i});
  index_->RemoveHolder(HolderIndex{70});
  index_->RemoveHolder(HolderIndex{3});
  EXPECT_EQ(index_->Stats().holders, 198u);
  EXPECT_EQ(Add(), HolderIndex{3});
  EXPECT_EQ(Add(), HolderIndex{70});
  EXPECT_EQ(Add(), HolderIndex{200});
}

TEST_P(IndexTest, AReusedNumberStartsEmptyAndUnmasked) {
  const HolderIndex stays = Add(), goes = Add();
  const Blocks prompt = Sequence(1, 3);
  Store(stays, prompt);
  Store(goes, prompt);
  index_->SetMasked(goes, true);
  index_->RemoveHolder(goes);
  EXPECT_THAT(Find(prompt), ElementsAre(Overlap{stays, 3}));
  ASSERT_EQ(Add(), goes);
  EXPECT_THAT(index_->HoldingsOf(goes), IsEmpty());
  EXPECT_EQ(index_->DigestOf(goes), Digest());
  Store(goes, Slice(prompt, 0, 2));
  EXPECT_EQ(Depth(goes, prompt), 2u);
}

TEST_P(IndexTest, AnUnknownHolderIsNotFound) {
  const HolderIndex gone = Add();
  index_->RemoveHolder(gone);
  for (HolderIndex unknown : {gone, HolderIndex{12345}, HolderIndex{~0u}}) {
    const absl::Status status = index_->Apply(unknown, StoredEvent(Sequence(1, 2)), nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    index_->RemoveHolder(unknown);
    index_->SetMasked(unknown, true);
    EXPECT_THAT(index_->HoldingsOf(unknown), IsEmpty());
    EXPECT_EQ(index_->DigestOf(unknown), Digest());
  }
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

TEST_P(IndexTest, HoldersAreBounded) {
  Limit({.holders_max = 3});
  for (int i = 0; i < 3; ++i) Add();
  EXPECT_EQ(index_->AddHolder().status().code(), absl::StatusCode::kResourceExhausted);
  index_->RemoveHolder(HolderIndex{1});
  EXPECT_EQ(Add(), HolderIndex{1});
}

TEST_P(IndexTest, AMaskedHolderIsLeftOutAndKeepsItsBlocks) {
  const HolderIndex a = Add(), b = Add();
  const Blocks prompt = Sequence(1, 3);
  Store(a, prompt);
  Store(b, prompt);
  index_->SetMasked(a, true);
  EXPECT_THAT(Find(prompt), ElementsAre(Overlap{b, 3}));
  EXPECT_EQ(index_->HoldingsOf(a).size(), 3u);
  Remove(a, {prompt[2]});
  index_->SetMasked(a, false);
  EXPECT_THAT(Find(prompt), UnorderedElementsAre(Overlap{a, 2}, Overlap{b, 3}));
}

TEST_P(IndexTest, ABlockOfAMaskedHolderMayBeHeldAndOneThatIsGoneNeedNot) {
  const HolderIndex a = Add(), b = Add();
  const Blocks prompt = Sequence(1, 3);
  Store(a, prompt);
  Store(b, Slice(prompt, 0, 2));
  index_->SetMasked(a, true);
  for (SequenceHash block : prompt) EXPECT_TRUE(index_->MayHold(block));
  Remove(a, {prompt[1], prompt[2]});
  EXPECT_TRUE(index_->MayHold(prompt[0]));
  EXPECT_TRUE(index_->MayHold(prompt[1]));
  if (GetParam() != "atlas") return;  // others cannot tell
  EXPECT_FALSE(index_->MayHold(prompt[2]));
  index_->RemoveHolder(a);
  index_->RemoveHolder(b);
  for (SequenceHash block : prompt) EXPECT_FALSE(index_->MayHold(block));
  EXPECT_FALSE(index_->MayHold(Sequence(2, 1)[0]));
}

TEST_P(IndexTest, TenThousandHolders) {
  constexpr uint32_t kHolders = 10'000;
  const Blocks prompt = Sequence(1, 6);
  for (uint32_t i = 0; i < kHolders; ++i) Store(Add(), Slice(prompt, 0, i % 7));
  std::map<uint32_t, uint32_t> found;
  for (const Overlap& overlap : Find(prompt)) found[Raw(overlap.holder)] = overlap.blocks;
  for (uint32_t i = 0; i < kHolders; ++i) ASSERT_EQ(found[i], i % 7) << i;
  for (uint32_t i = 0; i < kHolders; ++i) {
    if (i % 100 != 6) index_->RemoveHolder(HolderIndex{i});
  }
  EXPECT_EQ(Find(prompt).size(), 100u - 100 / 7);
  EXPECT_EQ(index_->Stats().holders, 100u);
}

// ---- Hashes nobody would choose ----

TEST_P(IndexTest, HashZeroIsAHash) {
  const HolderIndex holder = Add();
  Store(holder, {SequenceHash{0}, SequenceHash{~0ull}});
  EXPECT_EQ(Depth(holder, {SequenceHash{0}, SequenceHash{~0ull}}), 2u);
  Remove(holder, {SequenceHash{0}});
  EXPECT_EQ(Depth(holder, {SequenceHash{0}}), 0u);
  EXPECT_EQ(index_->HoldingsOf(holder).size(), 1u);
}

TEST_P(IndexTest, HashesThatDifferInFewBits) {
  const HolderIndex holder = Add();
  std::set<SequenceHash> distinct;
  for (int shift = 0; shift < 64; shift += 7) {
    for (uint64_t i = 0; i < 500; ++i) distinct.insert(SequenceHash{i << shift});
  }
  const Blocks blocks(distinct.begin(), distinct.end());
  Store(holder, blocks);
  EXPECT_EQ(Depth(holder, blocks), blocks.size());
  EXPECT_EQ(index_->Stats().blocks, blocks.size());
}

// ---- Bounds and memory ----

TEST_P(IndexTest, BlocksAreBounded) {
  Limit({.blocks_max = 4});
  const HolderIndex a = Add(), b = Add();
  const Blocks prompt = Sequence(1, 6);
  const absl::Status full = index_->Apply(a, StoredEvent(prompt), &sink_);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Depth(a, prompt), 4u);
  EXPECT_EQ(index_->Stats().refused_blocks, 2u);
  EXPECT_EQ(sink_.changes.size(), 4u);
  Store(b, Slice(prompt, 0, 4));  // known blocks are no new ones
  EXPECT_EQ(Depth(b, prompt), 4u);
  Remove(a, {prompt[0]});
  const Stored last = StoredEvent({prompt[5]}, Tier::kDevice, 5, prompt[4]);
  EXPECT_FALSE(index_->Apply(a, last, &sink_).ok());
  Remove(b, {prompt[0]});
  EXPECT_TRUE(index_->Apply(a, last, &sink_).ok());
  EXPECT_EQ(index_->Stats().blocks, 4u);
}

// A twentieth may stay: tables that shrink in steps, pages that are not quite empty.
TEST_P(IndexTest, MemoryGoesBack) {
  Limit({.retained_bytes = 0});
  const HolderIndex a = Add(), b = Add();
  const uint64_t empty = index_->Stats().bytes;
  for (uint64_t i = 0; i < 200; ++i) {
    Store(a, Sequence(i, 1000));
    Store(b, Sequence(i, 500));
  }
  const uint64_t full = index_->Stats().bytes;
  EXPECT_GT(full, empty + 200'000 * 8);
  Clear(a);
  index_->Tend(1'000'000);
  EXPECT_LT(index_->Stats().bytes, empty + (full - empty) * 9 / 10);
  index_->RemoveHolder(b);
  index_->Tend(1'000'000);
  EXPECT_LE(index_->Stats().bytes, empty + (full - empty) / 20);
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

TEST_P(IndexTest, MemoryGoesBackBlockByBlock) {
  Limit({.retained_bytes = 0});
  const HolderIndex holder = Add();
  const uint64_t empty = index_->Stats().bytes;
  for (uint64_t i = 0; i < 200; ++i) Store(holder, Sequence(i, 1000));
  const uint64_t full = index_->Stats().bytes;
  for (uint64_t i = 0; i < 190; ++i) Remove(holder, Sequence(i, 1000));
  index_->Tend(1'000'000);
  EXPECT_LT(index_->Stats().bytes - empty, (full - empty) / 4);
  for (uint64_t i = 190; i < 200; ++i) Remove(holder, Sequence(i, 1000));
  index_->Tend(1'000'000);
  EXPECT_LE(index_->Stats().bytes, empty + (full - empty) / 20);
}

// ---- Cuts, digests, changes ----

TEST_P(IndexTest, HoldingsSayTheirPlace) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {SequenceHash{5}, SequenceHash{6}}, Tier::kDevice, 3, SequenceHash{4});
  Store(b, {SequenceHash{6}}, Tier::kHost, 4, SequenceHash{5});
  EXPECT_THAT(index_->HoldingsOf(a), UnorderedElementsAre(Holding{.block = SequenceHash{5},
                                                                  .position = 3,
                                                                  .parent = SequenceHash{4},
                                                                  .tiers = Tier::kDevice},
                                                          Holding{.block = SequenceHash{6},
                                                                  .position = 4,
                                                                  .parent = SequenceHash{5},
                                                                  .tiers = Tier::kDevice}));
  EXPECT_THAT(index_->HoldingsOf(b), ElementsAre(Holding{.block = SequenceHash{6},
                                                         .position = 4,
                                                         .parent = SequenceHash{5},
                                                         .tiers = Tier::kHost}));
}

// A hash that everybody lost may come back anywhere.
TEST_P(IndexTest, APlaceIsForgottenWithTheLastHolder) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {SequenceHash{5}, SequenceHash{6}}, Tier::kDevice, 3, SequenceHash{4});
  Store(b, {SequenceHash{6}}, Tier::kHost, 4, SequenceHash{5});
  Remove(a, {SequenceHash{6}});
  Remove(b, {SequenceHash{6}}, Tier::kHost);
  Store(b, {SequenceHash{6}}, Tier::kHost, 9, SequenceHash{8});
  EXPECT_THAT(index_->HoldingsOf(b), ElementsAre(Holding{.block = SequenceHash{6},
                                                         .position = 9,
                                                         .parent = SequenceHash{8},
                                                         .tiers = Tier::kHost}));
}

TEST_P(IndexTest, TheDigestIsThatOfTheHoldings) {
  const HolderIndex holder = Add();
  Store(holder, Sequence(1, 20));
  Store(holder, Sequence(2, 20), Tier::kHost);
  Store(holder, Sequence(1, 10), Tier::kHost);
  Remove(holder, Slice(Sequence(1, 20), 5, 9));
  Clear(holder, Tier::kDisk);
  Digest expected;
  for (const Holding& holding : index_->HoldingsOf(holder)) {
    for (int tier = 0; tier < kTiers; ++tier) {
      if (holding.tiers.Has(static_cast<Tier>(tier))) {
        expected.Add(static_cast<Tier>(tier), holding.block);
      }
    }
  }
  EXPECT_EQ(index_->DigestOf(holder), expected);
  EXPECT_EQ(expected.tiers[0].blocks, 16u);
  EXPECT_EQ(expected.tiers[1].blocks, 30u);
  Clear(holder);
  EXPECT_EQ(index_->DigestOf(holder), Digest());
}

TEST_P(IndexTest, TheSinkHearsExactlyTheRealChanges) {
  const HolderIndex holder = Add();
  Store(holder, {SequenceHash{5}, SequenceHash{6}}, Tier::kDevice, 2, SequenceHash{4});
  Store(holder, {SequenceHash{6}, SequenceHash{7}}, Tier::kHost, 3, SequenceHash{5});
  Store(holder, {SequenceHash{5}}, Tier::kDevice, 2, SequenceHash{4});
  EXPECT_THAT(sink_.changes, ElementsAre(Change{0, 5, 2, 0, 1}, Change{0, 6, 3, 0, 1},
                                         Change{0, 6, 3, 1, 3}, Change{0, 7, 4, 0, 2}));
  sink_.changes.clear();
  Remove(holder, {SequenceHash{7}, SequenceHash{5}}, Tier::kDevice);
  EXPECT_THAT(sink_.changes, ElementsAre(Change{0, 5, 2, 1, 0}));
  sink_.changes.clear();
  Clear(holder, Tier::kHost);
  EXPECT_THAT(sink_.changes, UnorderedElementsAre(Change{0, 6, 3, 3, 1}, Change{0, 7, 4, 2, 0}));
  sink_.changes.clear();
  Clear(holder);
  EXPECT_THAT(sink_.changes, ElementsAre(Change{0, 6, 3, 1, 0}));
}

TEST(MakeIndexTest, AnUnknownNameIsInvalidAndNamesTheKnown) {
  const absl::Status status = MakeIndex("tree", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const IndexKind& kind : IndexKinds())
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::string(kind.name)));
}

TEST(MakeIndexTest, EveryKindHasItsNameAndALine) {
  for (const IndexKind& kind : IndexKinds()) {
    EXPECT_FALSE(kind.about.empty()) << kind.name;
    EXPECT_EQ(FindIndexKind(kind.name), &kind);
    EXPECT_EQ((*MakeIndex(kind.name, {}))->Name(), kind.name);
  }
  EXPECT_EQ(FindIndexKind("tree"), nullptr);
}

TEST(MakeIndexTest, TheDefaultIsWholeAndExact) {
  EXPECT_TRUE(IndexKinds().front().whole);
  EXPECT_TRUE(IndexKinds().front().exact);
  EXPECT_EQ(WholeIndexNames().front(), IndexKinds().front().name);
}

}  // namespace
}  // namespace kvatlas
