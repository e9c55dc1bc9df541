// Events of connectors and caches beside the device: copies, chunks, namespaces that are not named,
// tiers that blocks leave without an event.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/engine_worker_test_util.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

// As vLLM 0.33 writes them.
OwnedEvent Of(OwnedEvent event, std::string_view kind = "full_attention", uint32_t group = 0) {
  event.event.group = group;
  event.event.spec_kind = kind;
  return event;
}
OwnedEvent OnDevice(std::vector<uint64_t> names, std::vector<TokenId> tokens,
                    std::optional<uint64_t> parent = std::nullopt) {
  return Of(StoreEvent(std::move(names), std::move(tokens), parent));
}
// OffloadingConnector, self-describing.
OwnedEvent Described(std::vector<uint64_t> names, std::vector<TokenId> tokens,
                     std::optional<uint64_t> parent = std::nullopt) {
  return Of(StoreEvent(std::move(names), std::move(tokens), parent, "CPU"));
}
// The same, by default.
OwnedEvent Placeholder(uint64_t name, uint32_t group = 0) {
  OwnedEvent event = Of(StoreEvent({name}, {}, std::nullopt, "CPU"), "", group);
  event.event.block_size = 0;
  return event;
}
OwnedEvent Gone(std::vector<uint64_t> names, std::string_view medium = "GPU") {
  OwnedEvent event = RemoveEvent(std::move(names), medium);
  event.event.group = 0;
  return event;
}
// LMCache.
OwnedEvent Large(uint64_t name, std::vector<TokenId> tokens, uint32_t block_size,
                 std::optional<uint64_t> parent = std::nullopt) {
  OwnedEvent event = StoreEvent({name}, std::move(tokens), parent, "cpu");
  event.event.block_size = block_size;
  return event;
}
std::vector<TokenId> Joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// ---- Names without a size ----

TEST(EngineOffloadTest, ABlockSizeOfZeroIsNoPartOfABlock) {
  TestWorker worker;
  OwnedEvent window = Of(StoreEvent({1, 2, 3}, Tokens(12)), "sliding_window", 1);
  window.event.sliding_window = 8;
  worker.Apply({OnDevice({1, 2, 3}, Tokens(12)), window});
  for (uint64_t name = 1; name <= 3; ++name) {
    OwnedEvent placeholder = Placeholder(name, 1);
    placeholder.event.spec_kind = "sliding_window";
    placeholder.event.sliding_window = 8;
    worker.Apply({Placeholder(name), placeholder});
  }
  for (uint32_t group : {0u, 1u}) {
    OwnedEvent gone = Gone({1, 2, 3});
    gone.event.group = group;
    worker.Apply({gone});
  }
  EXPECT_EQ(worker.Reach(Tokens(12)), 3u);
  EXPECT_EQ(worker.Refused(Refusal::kPartBlock), 0u);
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

TEST(EngineOffloadTest, AGroupIsNotLearnedFromANameWithoutASize) {
  TestWorker worker;
  OwnedEvent placeholder = Placeholder(1, 1);
  placeholder.event.spec_kind = "sliding_window";
  placeholder.event.sliding_window = 8;
  worker.Apply({OnDevice({1, 2}, Tokens(8)), placeholder});
  EXPECT_TRUE(worker.layout().plain());
  EXPECT_EQ(worker.Refused(Refusal::kUnlearnedGroup), 1u);
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
}

// ---- Look-ahead ----

TEST(EngineOffloadTest, AHashCoversAllTokensOfItsLookAhead) {
  TestWorker worker;
  OwnedEvent event = OnDevice({1, 2}, Tokens(10));
  event.event.look_ahead = 2;
  worker.Apply({event});
  EXPECT_EQ(worker->look_aheads(), 1u << 2);
  EXPECT_EQ(worker.Reach(Tokens(10), {.eagle = 2}), 2u);
  EXPECT_EQ(worker.Reach(Tokens(9), {.eagle = 2}), 1u);
  EXPECT_EQ(worker.Reach(Joined(Tokens(9), {77}), {.eagle = 2}), 1u);
  EXPECT_EQ(worker.Reach(Tokens(10), {.eagle = 1}), 0u);
}

// ---- Copies ----

TEST(EngineOffloadTest, TwoConnectorsHaveACopyEach) {
  TestWorker worker;
  worker.Apply({OnDevice({1, 2}, Tokens(8)), Placeholder(1), Placeholder(2), Placeholder(2),
                Placeholder(1), Gone({1, 2})});
  worker.Apply({Gone({1}, "CPU"), Gone({2}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({Gone({2}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1u);
  worker.Apply({Gone({1}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
}

TEST(EngineOffloadTest, ParkedCopiesAreCountedToo) {
  TestWorker worker;
  worker.Apply({Placeholder(1), Placeholder(1), OnDevice({1}, Tokens(4)), Gone({1})});
  worker.Apply({Gone({1}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1u);
  worker.Apply({Gone({1}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(4)), 0u);
}

// A pool that has a page once, and an envelope that tells of the first and the last copy alone, may
// say so again.
TEST(EngineOffloadTest, WhatIsSaidAgainWithoutACopyIsNoCopy) {
  TestWorker worker;
  for (const std::string_view medium : {"CPU_PINNED", "DISK", "cpu"}) {
    OwnedEvent event = StoreEvent({1}, Tokens(4), std::nullopt, medium);
    event.event.envelope = medium == "cpu";
    worker.Apply({event, event});
    worker.Apply({RemoveEvent({1}, medium)});
    EXPECT_EQ(worker.Reach(Tokens(4)), 0u) << medium;
  }
}

// ---- Chunks ----

TEST(EngineOffloadTest, DescribedChunksAreLoadedWhole) {
  TestWorker worker;
  worker.Apply({OnDevice({1, 2, 3, 4, 5, 6, 7, 8}, Tokens(32)),
                Described({5, 6, 7, 8}, Tokens(16, 16), 4), Described({1, 2, 3, 4}, Tokens(16))});
  EXPECT_EQ(worker.Reach(Tokens(28)), 7u);  // on the device
  worker.Apply({Gone({8, 7, 6, 5, 4})});
  EXPECT_EQ(worker.Reach(Tokens(32)), 8u);
  EXPECT_EQ(worker.Reach(Tokens(28)), 3u);  // less than a chunk is not loaded
  EXPECT_EQ(worker.Reach(Tokens(12)), 3u);  // on the device
  worker.Apply({Gone({3, 2, 1})});
  EXPECT_EQ(worker.Reach(Tokens(32)), 8u);
  EXPECT_EQ(worker.Reach(Tokens(28)), 4u);
  EXPECT_EQ(worker.Reach(Tokens(12)), 0u);
  EXPECT_EQ(worker.Reach(Joined(Tokens(8), Tokens(24, 500))), 0u);
  EXPECT_EQ(worker.Reach(Tokens(28), {.tiers = TierMask(Tier::kHost)}), 4u);
  EXPECT_EQ(worker.Held(Tokens(28)), 7u);
}

TEST(EngineOffloadTest, ABlockOfTwoChunksStaysUntilBothAreGone) {
  TestWorker worker;
  const std::vector<TokenId> other = Joined(Tokens(8), Tokens(8, 500));
  worker.Apply({OnDevice({1, 2, 3, 4}, Tokens(16)), Described({1, 2, 3, 4}, Tokens(16)),
                OnDevice({5, 6}, Tokens(8, 500), 2), Described({1, 2, 5, 6}, other)});
  worker.Apply({Gone({6, 5, 4, 3, 2, 1})});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4u);
  EXPECT_EQ(worker.Reach(other), 4u);
  worker.Apply({Gone({1, 2, 3, 4}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(16)), 0u);
  EXPECT_EQ(worker.Reach(other), 4u);
  worker.Apply({Gone({1, 2, 5, 6}, "CPU")});
  EXPECT_EQ(worker.Reach(other), 0u);
  EXPECT_TRUE(worker.Holdings().empty());
}

TEST(EngineOffloadTest, ANameStandsForItsChunkWhereChunksAreTold) {
  TestWorker worker({.offload_chunk_tokens = 16});
  const std::vector<TokenId> other = Joined(Tokens(8), Tokens(8, 500));
  // Block by block, as a request grows.
  worker.Apply({OnDevice({1, 2, 3}, Tokens(12)), OnDevice({4}, Tokens(4, 12), 3)});
  worker.Apply({Placeholder(4), OnDevice({5, 6}, Tokens(8, 500), 2), Placeholder(6),
                Gone({6, 5, 4, 3, 2, 1})});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4u);
  EXPECT_EQ(worker.Reach(Tokens(12)), 0u);
  EXPECT_EQ(worker.Reach(other), 4u);
  worker.Apply({Gone({4}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(16)), 0u);
  EXPECT_EQ(worker.Reach(other), 4u);
  worker.Apply({Gone({6}, "CPU")});
  EXPECT_TRUE(worker.Holdings().empty());
  EXPECT_EQ(worker.RankStats().aliases, 0u);
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

TEST(EngineOffloadTest, WhereChunksEndTellsHowManyBlocksANameStandsFor) {
  TestWorker worker;
  worker.Apply({OnDevice({1, 2, 3, 4, 5, 6, 7, 8, 9}, Tokens(36)), Placeholder(8), Placeholder(4)});
  worker.Apply({Gone({9, 8, 7, 6, 5, 4, 3, 2, 1})});
  EXPECT_EQ(worker.Reach(Tokens(36)), 8u);
  EXPECT_EQ(worker.Reach(Tokens(28)), 4u);
  EXPECT_EQ(worker.Reach(Tokens(12)), 0u);
  worker.Apply({Gone({8}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(36)), 4u);
  worker.Apply({Gone({4}, "CPU")});
  EXPECT_TRUE(worker.Holdings().empty());
  EXPECT_EQ(worker.RankStats().aliases, 0u);
}

// Behind a device that has a part of the chunk vLLM loads it only if another one follows.
TEST(EngineOffloadTest, LessThanAChunkIsNotLoaded) {
  TestWorker worker({.offload_chunk_tokens = 8});
  worker.Apply({OnDevice({1, 2, 3, 4}, Tokens(16)), Placeholder(2), Placeholder(4)});
  worker.Apply({Gone({4, 3, 2})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1u);
  EXPECT_EQ(worker.Reach(Tokens(12)), 1u);
  EXPECT_EQ(worker.Reach(Tokens(16)), 4u);
  worker.Apply({Gone({1})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
}

// One chunk alone looks like one of all its request's blocks.
TEST(EngineOffloadTest, ChunksThatTurnOutToBeSmallerLoseWhatTheyHadTooMuch) {
  TestWorker worker;
  worker.Apply({OnDevice({1, 2, 3, 4}, Tokens(16)), Placeholder(4)});
  worker.Apply({Gone({4, 3, 2, 1})});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4u);
  worker.Apply({OnDevice({11, 12}, Tokens(8, 500)), Placeholder(12)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 0u);
  EXPECT_EQ(worker.Holdings().size(), 4u);  // two of the first, two of the second
  worker.Apply({Gone({12, 11})});
  EXPECT_EQ(worker.Reach(Tokens(8, 500)), 2u);
  worker.Apply({OnDevice({21}, Tokens(4, 900)), Placeholder(21)});
  EXPECT_EQ(worker.Reach(Tokens(8, 500)), 0u);
  EXPECT_TRUE(worker.layout().plain());
  worker.Apply({Gone({21}), Gone({4, 12, 21}, "CPU")});
  EXPECT_TRUE(worker.Holdings().empty());
  EXPECT_EQ(worker.RankStats().aliases, 0u);
}

TEST(EngineOffloadTest, AChunkThatIsNamedBeforeItsBlocksWaitsForThem) {
  TestWorker worker({.offload_chunk_tokens = 8});
  worker.Apply({Placeholder(2), Placeholder(2), OnDevice({1, 2}, Tokens(8)), Gone({2, 1})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({Gone({2}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({Gone({2}, "CPU")});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
}

TEST(EngineOffloadTest, LargerBlocksOfAConnectorAreCut) {
  TestWorker worker;
  // With the first token of what follows, as LMCache.
  worker.Apply({Large(70, Tokens(17), 16), Large(71, Tokens(16, 16), 16, 70)});
  EXPECT_EQ(worker.Reach(Tokens(32)), 8u);
  EXPECT_EQ(worker.Reach(Tokens(28)), 4u);
  EXPECT_EQ(worker.Reach(Tokens(12)), 0u);
  EXPECT_EQ(worker.Refused(Refusal::kBlockSize), 0u);
  worker.Apply({RemoveEvent({71}, "cpu")});
  EXPECT_EQ(worker.Reach(Tokens(32)), 4u);
  worker.Apply({RemoveEvent({70}, "cpu")});
  EXPECT_TRUE(worker.Holdings().empty());
  EXPECT_EQ(worker.RankStats().aliases, 0u);
}

TEST(EngineOffloadTest, ALargerBlockThatIsRenamedTakesItsBlocksAlong) {
  TestWorker worker;
  worker.Apply({Large(70, Tokens(16), 16), Large(70, Tokens(16, 500), 16)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 0u);
  EXPECT_EQ(worker.Reach(Tokens(16, 500)), 4u);
  EXPECT_EQ(worker.Holdings().size(), 4u);
  worker.Apply({RemoveEvent({70}, "cpu")});
  EXPECT_TRUE(worker.Holdings().empty());
}

TEST(EngineOffloadTest, AConnectorsBlockSizeSaysNothingOfTheEngines) {
  TestWorker worker;
  worker.Apply({Large(70, Tokens(6), 6)});
  EXPECT_EQ(worker.Refused(Refusal::kBlockSize), 0u);
  EXPECT_TRUE(worker.RankStats().refused.empty());
}

TEST(EngineOffloadTest, ALosssDropsChunksThatAreNotConfirmed) {
  TestWorker worker({.offload_chunk_tokens = 8});
  worker.Apply({OnDevice({1, 2}, Tokens(8)), Placeholder(2), Gone({2, 1})});
  worker->Lost(0, worker.now());
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Advance(seconds(31));
  EXPECT_TRUE(worker.Holdings().empty());
  EXPECT_EQ(worker.RankStats().aliases, 0u);
}

TEST(EngineOffloadTest, ChunksArePutDownAndTakenUpAgain) {
  TestWorker worker;
  worker.Apply({Large(70, Tokens(16), 16), OnDevice({1}, Tokens(4))});
  TestWorker copy;
  worker->ForEachRank(
      [&](const EngineRankMark& mark) { ASSERT_TRUE(copy->RestoreRank(mark).ok()); });
  worker->ForEachAlias([&](const EngineAlias& alias) { ASSERT_TRUE(copy->Restore(alias).ok()); });
  EXPECT_EQ(copy.Holdings(), worker.Holdings());
  EXPECT_EQ(copy.Reach(Tokens(12)), 1u);
  EXPECT_EQ(copy.trust(), Trust::kDegraded);
  copy.Apply({RemoveEvent({70}, "cpu")});
  EXPECT_EQ(copy.Reach(Tokens(16)), 1u);
  EXPECT_EQ(copy.Holdings().size(), 1u);
}

// ---- Parents and namespaces that are not said ----

TEST(EngineOffloadTest, AParentOfZeroIsNoRootInAConnectorsStore) {
  TestWorker worker;
  worker.Apply({StoreEvent({70}, Tokens(5), std::nullopt, "cpu"),
                StoreEvent({71}, Tokens(4, 500), 0, "cpu"), Large(72, Tokens(16, 700), 16, 0)});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1u);
  EXPECT_EQ(worker.Reach(Tokens(4, 500)), 0u);
  EXPECT_EQ(worker.Reach(Tokens(16, 700)), 0u);
  EXPECT_EQ(worker.RankStats().parked, 0u);
  // On the device it is how a simulator says "none".
  worker.Apply({StoreEvent({73}, Tokens(4, 900), 0)});
  EXPECT_EQ(worker.Reach(Tokens(4, 900)), 1u);
}

TEST(EngineOffloadTest, AfterALossAConnectorsTokensAloneProveNothing) {
  TestWorker worker;
  worker->Lost(0, worker.now());
  worker.Apply({Described({1}, Tokens(4)), Described({2}, Tokens(4, 4), 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
  // Its own event says the salt.
  OwnedEvent event = OnDevice({1, 2}, Tokens(8));
  event.event.cache_salt = "salt";
  worker.Apply({event, Gone({2, 1})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
  EXPECT_EQ(worker.Reach(Tokens(8), {.cache_salt = "salt"}), 2u);
}

TEST(EngineOffloadTest, WhatIsRepairedWasHeard) {
  TestWorker worker;
  worker->Lost(0, worker.now());
  worker->Repaired(0);
  worker.Apply({Described({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1u);
}

// ---- Tiers that blocks leave without a word ----

TEST(EngineOffloadTest, AConnectorThatNeverRemovesIsNeverExact) {
  TestWorker worker;
  worker.Apply({OnDevice({1, 2}, Tokens(8))});
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Apply(
      {Of(StoreEvent({1}, Tokens(4), std::nullopt, "cpu"), "")});  // MooncakeStoreConnector
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker.Apply({ClearEvent()});
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Apply({StoreEvent({70}, Tokens(4), std::nullopt, "cpu")});  // LMCache
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker.Apply({RemoveEvent({70}, "cpu")});
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Apply({StoreEvent({71}, Tokens(4, 4), std::nullopt, "cpu")});
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

TEST(EngineOffloadTest, ATierMayBeSaidToBeSilent) {
  TestWorker worker({.silent_tiers = TierMask(Tier::kDisk)});
  worker.Apply({OnDevice({1}, Tokens(4)), RemoveEvent({9}, "STORAGE")});
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
}

// Blocks beyond the number or time that it keeps go in the order of their stores; a block that is
// stored again is young again.
TEST(EngineOffloadTest, BlocksOfASilentTierGoByAge) {
  TestWorker worker({.silent_blocks = 2});
  const auto store = [&](uint64_t name, uint32_t first) {
    worker.Apply({StoreEvent({name}, Tokens(4, first), std::nullopt, "cpu")});
  };
  const auto holds = [&](uint32_t first) { return worker.Reach(Tokens(4, first)) == 1; };
  store(1, 0);
  store(2, 100);
  EXPECT_TRUE(holds(0) && holds(100));
  store(3, 200);
  EXPECT_FALSE(holds(0));
  EXPECT_TRUE(holds(100) && holds(200));
  store(2, 100);  // it had left, and came back: no copy more
  store(1, 0);
  EXPECT_FALSE(holds(200));
  EXPECT_TRUE(holds(0) && holds(100));
  worker.Apply({OnDevice({9}, Tokens(4, 300))});
  EXPECT_TRUE(holds(300) && holds(0)) << "of the device nothing goes";
  EXPECT_EQ(worker.trust(), Trust::kDegraded) << "and what is read is not told";
}

TEST(EngineOffloadTest, LargerBlocksOfASilentTierGoByAge) {
  TestWorker worker({.silent_blocks = 8});
  worker.Apply({Large(70, Tokens(16), 16), Large(71, Tokens(16, 500), 16)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4u);
  worker.Apply({Large(72, Tokens(16, 900), 16)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 0u);
  EXPECT_EQ(worker.Reach(Tokens(16, 500)), 4u);
  EXPECT_EQ(worker.Reach(Tokens(16, 900)), 4u);
  EXPECT_EQ(worker.Holdings().size(), 8u);
}

// What was dropped has no age any more: a later block of the same name is not taken for it.
TEST(EngineOffloadTest, ABlockThatWaitsDoesNotGoByTheAgeOfALostOne) {
  TestWorker worker({.silent_time = seconds(100)});
  worker.Apply({StoreEvent({1}, Tokens(4), std::nullopt, "cpu")});
  worker->Lost(0, worker.now());
  worker.Advance(seconds(31));
  EXPECT_EQ(worker.Reach(Tokens(4)), 0u);
  worker.Advance(seconds(30));
  worker.Apply({StoreEvent({1}, Tokens(4, 4), 99, "cpu")});
  worker.Advance(seconds(45));
  worker.Apply({StoreEvent({99}, Tokens(4), std::nullopt, "cpu")});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
}

TEST(EngineOffloadTest, BlocksOfASilentTierGoAfterAWhile) {
  TestWorker worker({.silent_time = seconds(10)});
  worker.Apply({StoreEvent({1}, Tokens(4), std::nullopt, "cpu")});
  worker.Advance(seconds(5));
  worker.Apply({StoreEvent({2}, Tokens(4, 100), std::nullopt, "cpu")});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1u);
  worker.Advance(seconds(6));
  EXPECT_EQ(worker.Reach(Tokens(4)), 0u);
  EXPECT_EQ(worker.Reach(Tokens(4, 100)), 1u);
}

TEST(EngineOffloadTest, RestoredBlocksOfASilentTierAreAsOldAsTheProcess) {
  TestWorker worker({.silent_time = seconds(10)});
  worker.Apply({StoreEvent({1}, Tokens(4), std::nullopt, "cpu")});
  TestWorker copy({.silent_time = seconds(10)});
  worker->ForEachRank(
      [&](const EngineRankMark& mark) { ASSERT_TRUE(copy->RestoreRank(mark).ok()); });
  worker->ForEachAlias([&](const EngineAlias& alias) { ASSERT_TRUE(copy->Restore(alias).ok()); });
  copy.Advance(seconds(100));
  EXPECT_EQ(copy.Reach(Tokens(4)), 1u);
  copy.Advance(seconds(10));
  EXPECT_EQ(copy.Reach(Tokens(4)), 0u);
}

TEST(EngineOffloadTest, ASilentTierWithoutASizeKeepsAll) {
  TestWorker worker;
  for (uint64_t i = 0; i < 100; ++i)
    worker.Apply(
        {StoreEvent({i + 1}, Tokens(4, static_cast<uint32_t>(100 * i)), std::nullopt, "cpu")});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1u);
}

// ---- Stores that others share ----

TEST(EngineOffloadTest, BlocksOfOtherOwnersAndPlacesAreThoseOfASharedStore) {
  OwnedEvent of_owner = Described({1}, Tokens(4));
  of_owner.event.ownership = "kvcr";
  OwnedEvent remote = Of(StoreEvent({2}, Tokens(4, 4), 1, "STORAGE"));
  remote.event.locality = "REMOTE";
  TestWorker worker({.shares_store = true}), alone;
  for (TestWorker* of : {&worker, &alone}) of->Apply({of_owner, remote});
  EXPECT_EQ(alone.Reach(Tokens(8)), 0u);
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  EXPECT_EQ(worker.Reach(Tokens(8), {.tiers = Tier::kExternal}), 2u);
  OwnedEvent gone = Gone({2}, "STORAGE");
  gone.event.locality = "REMOTE";
  worker.Apply({gone});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1u);
}

// Blocks that leave the store without an event are in doubt there.
TEST(EngineOffloadTest, ASilentTierThatIsTheStoresDoesNotDegradeTheWorker) {
  TestWorker worker({.shares_store = true, .store_tiers = TierMask(Tier::kHost)});
  worker.Apply({StoreEvent({70}, Tokens(4), std::nullopt, "cpu")});
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

// ---- The block size ----

class LearnsBlockSize : public testing::Test {
 protected:
  // The block size that the worker found by this batch, if any.
  std::optional<uint32_t> Tell(const std::vector<OwnedEvent>& events) {
    std::vector<OwnedEvent::Memory> memory(events.size());
    EngineBatch batch;
    for (size_t i = 0; i < events.size(); ++i) batch.events.push_back(events[i].View(&memory[i]));
    worker_.Learn(batch, Time(1));
    return std::exchange(found_, std::nullopt);
  }
  static OwnedEvent Sized(OwnedEvent event, uint32_t block_size) {
    event.event.block_size = block_size;
    return event;
  }

 private:
  std::optional<uint32_t> found_;
  EngineWorker worker_{{.block_size = 0,
                        .learn_block_size =
                            [this](uint32_t found) {
                              found_ = found;
                              return found;
                            }},
                       [](uint32_t) -> absl::StatusOr<std::shared_ptr<HoldingsWriter>> {
                         return absl::ResourceExhaustedError("none");
                       }};
};

TEST_F(LearnsBlockSize, FromWholeBlocksOnTheDeviceAlone) {
  EXPECT_EQ(Tell({Large(70, Tokens(257), 256)}), std::nullopt);
  EXPECT_EQ(Tell({Described({1, 2}, Tokens(16))}), std::nullopt);
  EXPECT_EQ(Tell({Placeholder(1)}), std::nullopt);
  EXPECT_EQ(Tell({Sized(OnDevice({1, 2}, Tokens(4)), 4)}), std::nullopt);
  EXPECT_EQ(Tell({Sized(OnDevice({1}, Tokens(4), 9), 4)}), std::nullopt);
  EXPECT_EQ(Tell({Large(70, Tokens(257), 256), Sized(OnDevice({1}, Tokens(8)), 8)}), 8u);
}

TEST_F(LearnsBlockSize, NotFromTheTailOfAPrompt) {
  const OwnedEvent tail = Sized(OnDevice({1}, Tokens(16)), 16);
  OwnedEvent state = Of(tail, "mamba", 1);
  EXPECT_EQ(Tell({tail, state}), std::nullopt);
  EXPECT_EQ(Tell({Of(Sized(OnDevice({1, 2}, Tokens(128)), 64), "full_attention"),
                  Of(Sized(OnDevice({2}, Tokens(128)), 64), "mamba", 1)}),
            64u);
}

TEST_F(LearnsBlockSize, OfTheFinestClassWhereThereIsNoMainOne) {
  EXPECT_EQ(Tell({Of(Sized(OnDevice({1, 2}, Tokens(16)), 8), "sliding_window", 0),
                  Of(Sized(OnDevice({1, 2, 3, 4}, Tokens(16)), 4), "sliding_window", 1)}),
            4u);
}

}  // namespace
}  // namespace kvatlas
