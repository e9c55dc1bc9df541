#include "indexer/registry/block_presence_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "indexer/base/cache_class_text.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/registry/explain_json.h"
#include "indexer/registry/holder_handle.h"

namespace kvatlas {
namespace {

const Domain kDomain{"m", ""};
constexpr uint32_t kBlockSize = 4;

const CacheClass kMain = {.block_size = 4};
const CacheClass kWindow = {.kind = CacheKind::kWindow, .block_size = 4, .window_tokens = 7};
const CacheClass kState = {.kind = CacheKind::kState, .block_size = 8};

std::vector<SequenceHash> Prompt(size_t blocks) {
  std::vector<SequenceHash> prompt;
  for (uint64_t i = 1; i <= blocks; ++i) prompt.push_back(SequenceHash{i});
  return prompt;
}

// A holder, and what an explanation says of it.
class CacheStripsTest : public testing::Test {
 protected:
  // All main blocks of the prompt up to `held`.
  void Hold(const CacheLayout& layout, size_t held) {
    layout_ = layout;
    holder_ =
        *registry_.AddLocal(kDomain, kBlockSize, {.id = {"w", 0, ""}, .address = "", .labels = {}});
    holder_->SetLayout(layout);
    if (held > 0) {
      ASSERT_TRUE(holder_->Apply(Stored{.blocks = Prompt(held)}).ok());
    }
  }
  // Blocks of a side class that end `back` tokens before these main blocks, counted from 1, do.
  void HoldSides(size_t side, const std::vector<uint64_t>& twins, uint32_t back = 0) {
    Stored stored{.blocks = {}, .side = static_cast<SideClass>(side + 1)};
    for (const uint64_t twin : twins)
      stored.blocks.push_back(SideName(SideTag(layout_.sides[side]), SequenceHash{twin}, back));
    ASSERT_TRUE(holder_->Apply(stored).ok());
  }
  Explanation::Rank Explained(size_t blocks) {
    Explanation explanation;
    explanation.blocks = Prompt(blocks);
    explanation.locals.resize(blocks);
    explanation.Read(registry_, kDomain, kBlockSize, 1);
    json_.clear();
    explanation.Append({.model = "m",
                        .group = "",
                        .block_size = kBlockSize,
                        .lora_name = "",
                        .cache_salt = "",
                        .contract = "",
                        .blocks_max = 100},
                       &json_);
    return explanation.ranks.empty() ? Explanation::Rank() : explanation.ranks[0];
  }
  std::string EndedByOf(size_t blocks) {
    const Explanation::Rank rank = Explained(blocks);
    return rank.classes.EndedBy(rank.detail.any);
  }
  bool JsonHas(const std::string& text) const { return json_.find(text) != std::string::npos; }

  HolderRegistry registry_{HolderRegistryOptions()};
  CacheLayout layout_;
  std::unique_ptr<HolderHandle> holder_;
  std::string json_;
};

TEST_F(CacheStripsTest, TheClassThatEndedThePrefixIsNamed) {
  Hold({.main = kMain, .sides = {kWindow, kState}}, 9);
  HoldSides(0, {3, 4, 5, 6});
  HoldSides(1, {4});
  EXPECT_EQ(Explained(10).detail.any, 4u);
  EXPECT_EQ(EndedByOf(10), "state") << "the window goes up to 6";
  EXPECT_TRUE(JsonHas(R"("ended_by":"state","classes":[)"
                      R"({"class":"main","block_size":4,"held":"#########.","accepts":9},)"
                      R"({"class":"window:7","block_size":4,"held":"..####....","accepts":6},)"
                      R"({"class":"state","block_size":8,"held":"-.-#-.-.-.","accepts":4}])"))
      << json_;
  HoldSides(1, {6});
  EXPECT_EQ(Explained(10).detail.any, 6u);
  EXPECT_EQ(EndedByOf(10), "window:7") << "neither state nor window goes on, the window cuts first";
  HoldSides(1, {8});
  EXPECT_EQ(EndedByOf(10), "window:7");
  HoldSides(0, {7, 8});
  EXPECT_EQ(Explained(10).detail.any, 8u);
  EXPECT_EQ(EndedByOf(10), "alignment") << "9 are held, and states end behind every second";
  EXPECT_EQ(EndedByOf(8), "");
  EXPECT_TRUE(JsonHas("\"ended_by\":null"));
}

TEST_F(CacheStripsTest, WhereOnlyMainBlocksAreMissingTheMainClassEndsIt) {
  Hold({.main = kMain, .sides = {kWindow}}, 3);
  HoldSides(0, {1, 2, 3, 4, 5});
  EXPECT_EQ(Explained(5).detail.any, 3u);
  EXPECT_EQ(EndedByOf(5), "main");
}

TEST_F(CacheStripsTest, OfFullAttentionAloneNothingIsAdded) {
  Hold({}, 3);
  EXPECT_EQ(EndedByOf(5), "");
  EXPECT_TRUE(Explained(5).classes.strips().empty());
  EXPECT_FALSE(JsonHas("classes"));
  EXPECT_FALSE(JsonHas("ended_by"));
}

TEST_F(CacheStripsTest, WhatLookAheadTakesBackIsNoClassesFault) {
  CacheLayout layout{.main = kMain, .sides = {kWindow}};
  layout.main.drops_last = true;
  Hold(layout, 4);
  HoldSides(0, {1, 2, 3, 4});
  EXPECT_EQ(Explained(4).detail.any, 3u);
  EXPECT_EQ(EndedByOf(4), "look_ahead");
}

TEST_F(CacheStripsTest, WithoutFullAttentionThereIsNoMainStrip) {
  CacheLayout layout{.main = {}, .has_main = false, .sides = {kWindow}};
  Hold(layout, 0);
  HoldSides(0, {2, 3});
  const Explanation::Rank rank = Explained(5);
  EXPECT_EQ(rank.detail.any, 3u);
  ASSERT_EQ(rank.classes.strips().size(), 1u);
  EXPECT_EQ(rank.classes.strips()[0].held, ".##..");
  EXPECT_EQ(EndedByOf(5), "window:7");
}

TEST_F(CacheStripsTest, SmallBlocksOfWhichSomeAreHeldAreAPlus) {
  Hold(
      {.main = kMain, .sides = {{.kind = CacheKind::kWindow, .block_size = 2, .window_tokens = 4}}},
      4);
  HoldSides(0, {1, 2, 3});
  HoldSides(0, {2}, /*back=*/2);
  const Explanation::Rank rank = Explained(4);
  EXPECT_EQ(rank.detail.any, 2u);
  ASSERT_EQ(rank.classes.strips().size(), 2u);
  EXPECT_EQ(rank.classes.strips()[1].held, "+#+.");
}

// "diverges_at" is what can be reused; the path goes on as far as full attention does.
TEST_F(CacheStripsTest, ThePathShowsWhatIsHeldBehindTheReusable) {
  Hold({.main = kMain, .sides = {kState}}, 6);
  HoldSides(0, {2});
  Explained(8);
  EXPECT_TRUE(JsonHas("\"diverges_at\":2,"));
  EXPECT_TRUE(JsonHas("\"position\":6,"));
  EXPECT_FALSE(JsonHas("\"position\":7,"));
}

TEST_F(CacheStripsTest, WhatEndedItIsToldWhereverAnythingEnded) {
  const std::vector<CacheClass> sides = {
      kWindow, kState, {.kind = CacheKind::kChunk, .block_size = 4, .window_tokens = 16}};
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    CacheLayout layout{.main = kMain, .sides = {}};
    for (const CacheClass& side : sides)
      if (random() % 2 == 0) layout.sides.push_back(side);
    if (layout.sides.empty()) layout.sides.push_back(kWindow);
    Hold(layout, random() % 12);
    for (size_t side = 0; side < layout.sides.size(); ++side)
      for (uint64_t twin = 1; twin <= 12; ++twin)
        if (random() % 4 != 0 && twin * kBlockSize % layout.sides[side].block_size == 0)
          HoldSides(side, {twin});
    const Explanation::Rank rank = Explained(12);
    holder_.reset();
    registry_.Tick();
    if (rank.instance.empty()) continue;  // nothing is held
    const std::string ended = rank.classes.EndedBy(rank.detail.any);
    EXPECT_EQ(ended.empty(), rank.detail.any == 12);
    if (ended.empty()) continue;
    bool known = ended == "alignment";
    uint32_t shortest = 12;
    for (const BlockPresenceMap::Strip& strip : rank.classes.strips()) {
      shortest = std::min(shortest, strip.accepts);
      if (ToString(strip.of) != ended) continue;
      known = true;
      EXPECT_LT(strip.held.find_first_not_of('#'), 12u) << "it has everything";
    }
    EXPECT_TRUE(known) << ended;
    EXPECT_LE(rank.detail.any, shortest);
  }
}

}  // namespace
}  // namespace kvatlas
