#include "publisher/engine_batches.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "publisher/side_events.h"
#include "publisher/zmq_events.h"

namespace kvatlas {
namespace {

constexpr uint32_t kBlockSize = 4;

class EngineBatchesTest : public testing::Test {
 protected:
  // A block of tokens that are all its name.
  void Store(uint64_t name, Tier tier = Tier::kDevice) {
    const std::vector<uint64_t> names = {name};
    const std::vector<TokenId> tokens(kBlockSize, static_cast<TokenId>(name));
    encoder_.Stored({.tier = tier, .hashes = names, .tokens = tokens});
  }
  void Remove(uint64_t name) {
    const std::vector<uint64_t> names = {name};
    encoder_.Removed(Tier::kDevice, names);
  }
  absl::Status Publish() { return batches_.Apply(encoder_.Finish(1), now_, &changes_); }
  size_t Held() const { return contents_.resident().size(); }

  Contents contents_{kBlockSize, HashContract()};
  EngineBatches batches_{{.name = "w", .block_size = kBlockSize}, &contents_};
  ZmqEventEncoder encoder_{ZmqEventForm::kMap, kBlockSize, /*rank=*/3};
  std::vector<Event> changes_;
  Time now_{1};
};

TEST_F(EngineBatchesTest, AHybridWhoseBatchesTellOfFullAttentionAloneIsDegraded) {
  Contents contents(kBlockSize, HashContract());
  EngineBatches batches({.name = "w", .block_size = kBlockSize, .hybrid = true}, &contents);
  EXPECT_FALSE(batches.degraded());
  Store(1);
  ASSERT_TRUE(batches.Apply(encoder_.Finish(1), now_, &changes_).ok());
  EXPECT_TRUE(batches.degraded());
  batches.Clear(now_, &changes_);
  EXPECT_FALSE(batches.degraded());
}

TEST_F(EngineBatchesTest, ChangesAreThoseOfTheSet) {
  Store(1);
  Store(1);
  Store(2);
  ASSERT_TRUE(Publish().ok());
  EXPECT_EQ(Held(), 2u);
  changes_.clear();
  Remove(1);
  ASSERT_TRUE(Publish().ok());
  EXPECT_TRUE(changes_.empty()) << "a copy is left";
  Remove(1);
  ASSERT_TRUE(Publish().ok());
  ASSERT_EQ(changes_.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Removed>(changes_[0]));
  EXPECT_EQ(Held(), 1u);
  EXPECT_EQ(batches_.Stats().batches, 3u);
  EXPECT_EQ(batches_.Stats().blocks_removed, 2u);
}

TEST_F(EngineBatchesTest, WhatIsHeldWhenABatchCannotBeReadIsDroppedUnlessItIsStoredAnew) {
  Store(1);
  Store(2);
  ASSERT_TRUE(Publish().ok());
  EXPECT_EQ(batches_.Apply("\xc1", now_, &changes_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Held(), 2u);
  EXPECT_TRUE(batches_.degraded());
  Store(2);
  ASSERT_TRUE(Publish().ok());
  for (int i = 0; i < 8; ++i) {
    now_ += std::chrono::seconds(30);
    batches_.Tick(now_, &changes_);
  }
  EXPECT_EQ(Held(), 1u);
  EXPECT_TRUE(batches_.degraded()) << "what the batch stored is not known";
  EXPECT_EQ(batches_.Stats().unreadable, 1u);
  batches_.Clear(now_, &changes_);
  EXPECT_FALSE(batches_.degraded());
}

// EAGLE's bigrams: exact under look-ahead hashes, and said, since a leaf that is told hashes cannot
// know.
TEST_F(EngineBatchesTest, HashesThatLookAheadAreThoseOfThePairsAndAreSaid) {
  const std::vector<uint64_t> names = {1, 2};
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  encoder_.Stored({.tier = Tier::kDevice, .hashes = names, .tokens = {tokens.data(), 8}});
  std::string payload(encoder_.Finish(1));
  // [1,2,…,8] becomes [[1,2],[2,3],…,[8,9]].
  constexpr std::string_view kField = "token_ids";
  std::string pairs = "\x98";
  for (char token = 1; token <= 8; ++token) {
    pairs += '\x92';
    pairs += token;
    pairs += static_cast<char>(token + 1);
  }
  payload.replace(payload.find(kField) + kField.size(), 9, pairs);
  EXPECT_FALSE(batches_.Stats().look_ahead);
  ASSERT_TRUE(batches_.Apply(payload, now_, &changes_).ok());
  EXPECT_TRUE(batches_.Stats().look_ahead);
  EXPECT_EQ(batches_.Stats().refused, 0u);
  Digest expected;
  for (const SequenceHash block : SequenceHashes(
           LocalHashes(tokens, {.block_size = kBlockSize, .eagle = true}, BlockSeed({})))) {
    expected.Add(Tier::kDevice, block);
  }
  EXPECT_EQ(Held(), 2u);
  EXPECT_EQ(contents_.resident().digest(), expected);
}

// vLLM with a group of a sliding window beside one of full attention.
TEST_F(EngineBatchesTest, WindowsAreSideBlocksUnderTheirMainBlocksNamesAndTheLayoutSaysSo) {
  constexpr uint32_t kWindow = 8;
  const auto publish = [&](bool stored, const std::vector<uint64_t>& names) {
    EXPECT_TRUE(
        batches_.Apply(WindowBatch(stored, names, kBlockSize, kWindow, 3), now_, &changes_).ok());
  };
  Store(1);
  ASSERT_TRUE(Publish().ok());
  EXPECT_FALSE(contents_.TakeLayoutChange());
  publish(true, {1, 2});
  EXPECT_TRUE(contents_.TakeLayoutChange());
  EXPECT_FALSE(contents_.TakeLayoutChange());
  const CacheLayout layout = WindowLayout(kBlockSize, kWindow);
  EXPECT_EQ(contents_.resident().layout(), layout);
  const std::vector<TokenId> tokens(kBlockSize, 1);
  const SequenceHash main =
      SequenceHashes(LocalHashes(tokens, {.block_size = kBlockSize}, BlockSeed({})))[0];
  const SequenceHash side = SideName(SideTag(layout.sides[0]), main);
  EXPECT_EQ(contents_.resident().TiersOf(side), TierMask(Tier::kDevice));
  EXPECT_EQ(Held(), 2u) << "the other one has no main block yet";
  Store(2);
  ASSERT_TRUE(Publish().ok());
  EXPECT_EQ(Held(), 4u);
  EXPECT_FALSE(batches_.degraded());
  changes_.clear();
  publish(false, {1});
  EXPECT_EQ(changes_,
            (std::vector<Event>{Removed{.tier = Tier::kDevice, .blocks = {side}, .side = 1}}));
  EXPECT_EQ(contents_.resident().TiersOf(main), TierMask(Tier::kDevice));
  batches_.Clear(now_, &changes_);
  EXPECT_EQ(Held(), 0u);
}

TEST(EngineBatchesOptionsTest, WhatNoEventSaysComesFromOptions) {
  Contents contents(kBlockSize, HashContract());
  EngineBatches batches({.name = "w", .block_size = kBlockSize, .drops_last = {{kWindowGroup}}},
                        &contents);
  std::vector<Event> changes;
  ZmqEventEncoder encoder(ZmqEventForm::kMap, kBlockSize, 0);
  const std::vector<uint64_t> names = {1};
  const std::vector<TokenId> tokens(kBlockSize, 1);
  encoder.Stored({.hashes = names, .tokens = tokens});
  ASSERT_TRUE(batches.Apply(encoder.Finish(1), Time(1), &changes).ok());
  ASSERT_TRUE(batches.Apply(WindowBatch(true, names, kBlockSize, 8), Time(1), &changes).ok());
  const CacheLayout& layout = contents.resident().layout();
  ASSERT_EQ(layout.sides.size(), 1u);
  EXPECT_TRUE(layout.sides[0].drops_last);
  EXPECT_FALSE(layout.main.drops_last);
}

TEST_F(EngineBatchesTest, AClearLeavesNothingAndForgetsTheNames) {
  Store(1);
  Store(2, Tier::kHost);
  ASSERT_TRUE(Publish().ok());
  changes_.clear();
  batches_.Clear(now_, &changes_);
  EXPECT_EQ(Held(), 0u);
  EXPECT_FALSE(changes_.empty());
  Remove(1);
  Store(1);
  ASSERT_TRUE(Publish().ok());
  EXPECT_EQ(Held(), 1u);
}

}  // namespace
}  // namespace kvatlas
