// Tellings about holders of a registry, and how the holders' own events end them.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/routed.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

const Domain kLlama{"llama-70b", ""};
const HolderId kWorker{"w", 0, ""};
constexpr uint64_t kFrontend = 5, kAsker = 6;

std::vector<SequenceHash> Sequence(size_t blocks) {
  std::vector<SequenceHash> sequence;
  for (uint64_t i = 1; i <= blocks; ++i) sequence.push_back(SequenceHash{1000 + i});
  return sequence;
}

class HolderPendingTest : public testing::TestWithParam<std::string> {
 protected:
  HolderPendingTest() {
    HolderRegistryOptions options;
    options.contract_id = "xxh3-chain-1:1337";
    options.clock = &clock_;
    options.index_name = GetParam();
    registry_ = std::make_unique<HolderRegistry>(options);
    other_ = Add("other");
    worker_ = Add("w");
  }

  std::unique_ptr<HolderHandle> Add(const std::string& name) {
    return *registry_->AddLocal(kLlama, 16, {.id = {name, 0, ""}, .address = "", .labels = {}});
  }

  absl::Status Tell(uint64_t decision, size_t first, size_t blocks) {
    const auto sequence = Sequence(blocks);
    return registry_->Tell(kLlama, kFrontend,
                           {.decision = decision,
                            .worker = kWorker,
                            .first = static_cast<Position>(first),
                            .blocks = std::span(sequence).subspan(first)});
  }

  HolderOverlap At(size_t blocks) {
    const auto sequence = Sequence(blocks);
    OverlapAnswer answer = *registry_->FindOverlaps(kLlama, {.blocks = sequence}, true);
    registry_->AddPending(kLlama, sequence, kAsker, /*session=*/0, &answer);
    HolderOverlap found;
    for (const HolderOverlap& holder : answer.holders)
      if (holder.holder->id == kWorker) found = holder;
    found.holder = nullptr;
    return found;
  }

  ManualClock clock_;
  std::unique_ptr<HolderRegistry> registry_;
  std::unique_ptr<HolderHandle> other_, worker_;
};

TEST_P(HolderPendingTest, WhatOfASessionIsWhere) {
  const auto sequence = Sequence(80);
  ASSERT_TRUE(registry_
                  ->Tell(kLlama, kFrontend,
                         {.decision = 1, .worker = kWorker, .blocks = sequence, .session = 5})
                  .ok());
  ASSERT_EQ(registry_->Sessions(5, 10).size(), 1u);
  EXPECT_TRUE(registry_->Sessions(5, 10)[0].at.empty()) << "nothing is announced yet";
  ASSERT_TRUE(worker_->Apply(Stored{.blocks = Sequence(80)}).ok());
  ASSERT_TRUE(other_->Apply(Stored{.blocks = Sequence(45)}).ok());
  const SessionAnswer found = registry_->Sessions(5, 10)[0];
  EXPECT_EQ(found.worker, kWorker);
  EXPECT_EQ(found.blocks, 80u);
  ASSERT_EQ(found.at.size(), 2u);
  EXPECT_EQ(found.at[0].worker, kWorker);
  EXPECT_EQ(found.at[0].blocks, 80u);
  EXPECT_EQ(found.at[1].worker.name, "other");
  EXPECT_EQ(found.at[1].blocks, 40u) << "at least";
  EXPECT_TRUE(registry_->Sessions(6, 10).empty());
}

TEST_P(HolderPendingTest, WhatIsWhereIsOfThatSessionAlone) {
  const auto tell = [&](uint64_t session, std::span<const SequenceHash> blocks) {
    ASSERT_TRUE(
        registry_
            ->Tell(kLlama, kFrontend,
                   {.decision = session, .worker = kWorker, .blocks = blocks, .session = session})
            .ok());
  };
  std::vector<SequenceHash> elsewhere;
  for (uint64_t i = 1; i <= 80; ++i) elsewhere.push_back(SequenceHash{5000 + i});
  tell(5, Sequence(80));
  tell(6, elsewhere);
  ASSERT_TRUE(worker_->Apply(Stored{.blocks = Sequence(80)}).ok());
  ASSERT_TRUE(other_->Apply(Stored{.blocks = elsewhere}).ok());
  const std::vector<SessionAnswer> found = registry_->Sessions(/*session=*/0, 10);
  ASSERT_EQ(found.size(), 2u);
  for (const SessionAnswer& answer : found) {
    ASSERT_EQ(answer.at.size(), 1u) << answer.session;
    EXPECT_EQ(answer.at[0].worker.name, answer.session == 5 ? "w" : "other");
  }
}

TEST_P(HolderPendingTest, APromptOnItsWayIsBesideWhatIsHeldAndNeverInIt) {
  ASSERT_TRUE(worker_->Apply(Stored{.blocks = Sequence(10)}).ok());
  ASSERT_TRUE(Tell(1, 10, 50).ok());
  const HolderOverlap found = At(40);
  EXPECT_EQ(found.blocks, 10u);
  EXPECT_EQ(found.pending, (Pending{.depth = 40, .blocks = 40, .requests = 1}));
  const auto whole = Sequence(50);
  ASSERT_TRUE(
      worker_
          ->Apply(Stored{
              .position = 10, .parent = whole[9], .blocks = {whole.begin() + 10, whole.end()}})
          .ok());
  EXPECT_EQ(At(40).blocks, 40u);
  EXPECT_EQ(At(40).pending, Pending());
  EXPECT_EQ(registry_->StatsOf(kLlama)->pending.counts.confirmed, 1u);
}

TEST_P(HolderPendingTest, ATellingThatComesAfterTheEventsIsConfirmedAtOnce) {
  ASSERT_TRUE(worker_->Apply(Stored{.blocks = Sequence(50)}).ok());
  ASSERT_TRUE(Tell(1, 10, 50).ok());
  EXPECT_EQ(At(50).pending, Pending());
  EXPECT_EQ(registry_->StatsOf(kLlama)->pending.counts.confirmed, 1u);
}

TEST_P(HolderPendingTest, WhatAnotherHolderHasConfirmsNothing) {
  ASSERT_TRUE(other_->Apply(Stored{.blocks = Sequence(50)}).ok());
  ASSERT_TRUE(Tell(1, 0, 50).ok());
  EXPECT_EQ(At(50).pending.depth, 50u);
}

TEST_P(HolderPendingTest, TimePassesAndItIsOver) {
  ASSERT_TRUE(Tell(1, 0, 50).ok());
  clock_.Advance(kRoutedTtl);
  registry_->Tick();
  EXPECT_EQ(At(50).pending, Pending());
}

TEST_P(HolderPendingTest, AHolderThatGoesTakesItAlong) {
  ASSERT_TRUE(Tell(1, 0, 50).ok());
  worker_ = nullptr;
  registry_->Tick();
  worker_ = Add("w");  // may have the number of the one before
  EXPECT_EQ(At(50).pending, Pending());
  EXPECT_EQ(registry_->StatsOf(kLlama)->pending.requests, 0u);
}

TEST_P(HolderPendingTest, UnknownOnesAreSaid) {
  EXPECT_TRUE(absl::IsNotFound(
      registry_->Tell({"none", ""}, kFrontend, {.decision = 1, .worker = kWorker})));
  EXPECT_TRUE(absl::IsNotFound(
      registry_->Tell(kLlama, kFrontend, {.decision = 1, .worker = {"none", 0, ""}})));
}

INSTANTIATE_TEST_SUITE_P(Indexes, HolderPendingTest, testing::Values("atlas", "atlas*4"));

}  // namespace
}  // namespace kvatlas
