// A query ends while a writer changes what it looks at, at every step of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas::atlas {
namespace {

constexpr uint32_t kDepth = 600;    // more than two runs
constexpr uint32_t kHole = 400;     // what the writer never has
constexpr uint32_t kToggled = 500;  // what it removes and stores all the time
// A query that is this often written to does not end by itself.
constexpr int kWritesMax = 200'000;

class WalkerTest : public testing::Test {
 protected:
  WalkerTest() {
    for (uint64_t i = 0; i < kDepth; ++i)
      prompt_.push_back(SequenceHash{(i + 1) * 0x9E3779B97F4A7C15u});
    quiet_ = *index_->AddHolder();
    writer_ = *index_->AddHolder();
    for (const HolderIndex holder : {quiet_, writer_}) Store(holder, 0, kDepth);
    Remove(kHole);
  }
  ~WalkerTest() override { EXPECT_TRUE(index_->Check().ok()) << index_->Check(); }

  void Store(HolderIndex holder, uint32_t from, uint32_t to) {
    const Stored stored = {.position = from,
                           .parent = from == 0 ? kNoParent : prompt_[from - 1],
                           .blocks = {prompt_.begin() + from, prompt_.begin() + to}};
    ASSERT_TRUE(index_->Apply(holder, stored, nullptr).ok());
  }
  void Remove(uint32_t block) {
    ASSERT_TRUE(index_->Apply(writer_, Removed{.blocks = {prompt_[block]}}, nullptr).ok());
  }

  // Runs a query with a write at each of its steps; the writes.
  template <typename Query>
  int WrittenDuring(Query query) {
    int writes = 0;
    t_at_pause = [&] {
      if (writes == kWritesMax) return;
      ++writes;
      Remove(kToggled);
      Store(writer_, kToggled, kToggled + 1);
    };
    query();
    t_at_pause = nullptr;
    return writes;
  }

  // Neither more than is held, nor less than what no writer touches: the first run.
  void Expect(HolderIndex holder, uint32_t blocks) const {
    const bool is_quiet = holder == quiet_;
    EXPECT_TRUE(is_quiet || holder == writer_);
    EXPECT_LE(blocks, is_quiet ? kDepth : kHole);
    EXPECT_GE(blocks, kRunBlocksMax) << Raw(holder);
  }

  const std::unique_ptr<AtlasIndex> index_ = AtlasIndex::Create({});
  std::vector<SequenceHash> prompt_;
  HolderIndex quiet_{0}, writer_{0};
};

TEST_F(WalkerTest, AQueryEndsWhileAWriterNeverStops) {
  std::vector<Overlap> overlaps;
  const int writes = WrittenDuring([&] { index_->FindOverlaps({.blocks = prompt_}, &overlaps); });
  EXPECT_LT(writes, kWritesMax) << "it ended because the writer stopped";
  EXPECT_EQ(std::count_if(overlaps.begin(), overlaps.end(),
                          [&](const Overlap& each) { return each.holder == quiet_; }),
            1);
  for (const Overlap& overlap : overlaps) Expect(overlap.holder, overlap.blocks);
}

TEST_F(WalkerTest, SoDoesOneOfAllTiers) {
  std::vector<TierOverlap> overlaps;
  const int writes =
      WrittenDuring([&] { index_->FindTierOverlaps({.blocks = prompt_}, &overlaps); });
  EXPECT_LT(writes, kWritesMax);
  EXPECT_FALSE(overlaps.empty());
  for (const TierOverlap& overlap : overlaps) {
    if (overlap.blocks != 0) Expect(overlap.holder, overlap.blocks);
  }
}

TEST_F(WalkerTest, OnceTheWriterHasStoppedTheAnswerIsExact) {
  std::vector<Overlap> overlaps;
  WrittenDuring([&] { index_->FindOverlaps({.blocks = prompt_}, &overlaps); });
  overlaps.clear();
  index_->FindOverlaps({.blocks = prompt_}, &overlaps);
  std::sort(overlaps.begin(), overlaps.end(),
            [](const Overlap& a, const Overlap& b) { return a.blocks < b.blocks; });
  EXPECT_EQ(overlaps, (std::vector<Overlap>{{writer_, kHole}, {quiet_, kDepth}}));
}

}  // namespace
}  // namespace kvatlas::atlas
