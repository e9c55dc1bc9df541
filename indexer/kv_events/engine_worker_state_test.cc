// Parked blocks, tokenless blocks, losses, restarts, and names written and restored.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/engine_worker_test_util.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

constexpr TierMask kHost = Tier::kHost;

OwnedEvent Tokenless(std::vector<uint64_t> hashes, std::string_view medium) {
  OwnedEvent event = StoreEvent(std::move(hashes), {}, std::nullopt, medium);
  event.event.block_size = 0;
  return event;
}

// ---- Parked blocks ----

TEST(ParkedTest, AChildBeforeItsParentIsLinkedWhenItComes) {
  TestWorker worker;
  worker.Apply({StoreEvent({3, 4}, Tokens(8, 8), 2)});
  EXPECT_EQ(worker.RankStats().parked, 2);
  EXPECT_EQ(worker.Reach(Tokens(16)), 0);
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4);
  EXPECT_EQ(worker.RankStats().parked, 0);
  EXPECT_EQ(worker->Stats().linked, 2);
}

TEST(ParkedTest, LinksGoThroughWhateverOrderPartsCameIn) {
  TestWorker worker;
  worker.Apply({StoreEvent({5}, Tokens(4, 16), 4), StoreEvent({3}, Tokens(4, 8), 2),
                StoreEvent({6}, Tokens(4, 20), 5), StoreEvent({2}, Tokens(4, 4), 1)});
  worker.Apply({StoreEvent({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(24)), 3);
  worker.Apply({StoreEvent({4}, Tokens(4, 12), 3)});
  EXPECT_EQ(worker.Reach(Tokens(24)), 6);
  EXPECT_EQ(worker.RankStats().parked, 0);
}

TEST(ParkedTest, ARemovalUnparks) {
  TestWorker worker;
  worker.Apply({StoreEvent({2, 3}, Tokens(8, 4), 1)});
  worker.Apply({RemoveEvent({3})});
  EXPECT_EQ(worker.Refused(Refusal::kUnknownRemoved), 0);
  worker.Apply({StoreEvent({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(12)), 2);
}

TEST(ParkedTest, ParkedCopiesAreCountedLikeOthers) {
  TestWorker worker;
  worker.Apply({StoreEvent({2}, Tokens(4, 4), 1), StoreEvent({2}, Tokens(4, 4), 1),
                StoreEvent({2}, Tokens(4, 4), 1, "CPU")});
  worker.Apply({StoreEvent({1}, Tokens(4))});
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Reach(Tokens(8), {.tiers = Tier::kDevice}), 1);
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
}

TEST(ParkedTest, WhereCopiesAreNotCountedOneRemovalUnparks) {
  TestWorker worker({.counts_copies = false});
  worker.Apply({StoreEvent({2}, Tokens(4, 4), 1), StoreEvent({2}, Tokens(4, 4), 1)});
  worker.Apply({RemoveEvent({2}), StoreEvent({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1);
}

TEST(ParkedTest, AParkedChainTakesItsParentsNamespace) {
  TestWorker worker;
  worker.Apply({StoreEvent({2}, Tokens(4, 4), 1)});
  OwnedEvent root = StoreEvent({1}, Tokens(4));
  root.event.cache_salt = "tenant";
  worker.Apply({root});
  EXPECT_EQ(worker.Reach(Tokens(8), {.cache_salt = "tenant"}), 2);
  EXPECT_EQ(worker.Reach(Tokens(8)), 0);
}

TEST(ParkedTest, WhoWaitsTooLongIsDroppedAndCounted) {
  TestWorker worker({.orphan_ttl = seconds(60)});
  worker.Apply({StoreEvent({2}, Tokens(4, 4), 1)});
  worker.Advance(seconds(30));
  worker.Apply({StoreEvent({12}, Tokens(4, 4), 11)});
  worker.Advance(seconds(31));
  EXPECT_EQ(worker.Refused(Refusal::kOrphanDropped), 1);
  worker.Apply({StoreEvent({1}, Tokens(4)), StoreEvent({11}, Tokens(4, 100))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1);
  EXPECT_EQ(worker.RankStats().parked, 0);
  EXPECT_EQ(worker->Stats().linked, 1);
}

TEST(ParkedTest, TooManyAreNotParked) {
  TestWorker worker({.orphan_blocks_max = 2});
  worker.Apply({StoreEvent({2, 3, 4}, Tokens(12, 4), 1)});
  EXPECT_EQ(worker.RankStats().parked, 2);
  EXPECT_EQ(worker.Refused(Refusal::kOrphanDropped), 1);
  worker.Apply({StoreEvent({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(16)), 3);
}

TEST(ParkedTest, ABlockWithoutItsParentIsTakenByItsOwnName) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2, 3}, Tokens(12))});
  worker.Apply({RemoveEvent({2})});
  // The engine made a second copy of the tail; its middle is gone.
  worker.Apply({StoreEvent({3}, Tokens(4, 8), 2)});
  EXPECT_EQ(worker.RankStats().parked, 0);
  worker.Apply({RemoveEvent({3}), StoreEvent({2}, Tokens(4, 4), 1)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
}

TEST(ParkedTest, BigramsAndObjectsAreParkedWithTheirBlock) {
  TestWorker worker;
  OwnedEvent child = StoreEvent({2}, Tokens(5, 4), 1);
  child.event.look_ahead = 1;
  child.multimodal = {{42}};
  OwnedEvent root = StoreEvent({1}, Tokens(5));
  root.event.look_ahead = 1;
  worker.Apply({child, root});
  EXPECT_EQ(worker.Reach(Tokens(9), {.eagle = true, .multimodal = {{}, {42}}}), 2);
}

// ---- Blocks without tokens ----

TEST(TokenlessTest, AnOffloadPlaceholderIsJoinedByName) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8)), Tokenless({1, 2}, "CPU")});
  worker.Apply({RemoveEvent({1, 2})});
  EXPECT_EQ(worker.Reach(Tokens(8), {.tiers = kHost}), 2);
  EXPECT_EQ(worker.Refused(Refusal::kNoContent), 0);
}

TEST(TokenlessTest, AnUnknownOneHarmsNothingAndJoinsWhenItsNameIsAnnounced) {
  TestWorker worker;
  worker.Apply({Tokenless({1, 2}, "STORAGE")});
  EXPECT_EQ(worker.Holdings().size(), 0);
  EXPECT_EQ(worker.Refused(Refusal::kNoContent), 2);
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  worker.Apply({RemoveEvent({1, 2})});
  EXPECT_EQ(worker.Reach(Tokens(8), {.tiers = Tier::kDisk}), 2);
}

TEST(TokenlessTest, ItsRemovalBeforeItJoinsIsRemembered) {
  TestWorker worker;
  worker.Apply({Tokenless({1}, "CPU"), RemoveEvent({1}, "CPU"), StoreEvent({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(4), {.tiers = kHost}), 0);
}

// vLLM's connector announces chunks with tokens but never with salts.
TEST(TokenlessTest, OffloadedChunksOfASaltedChainStayInItsNamespace) {
  TestWorker worker;
  OwnedEvent root = StoreEvent({1, 2}, Tokens(8));
  root.extra_keys = {{{ExtraKey::Kind::kText, "tenant"}}, {}};
  OwnedEvent chunk = StoreEvent({1, 2}, Tokens(8), std::nullopt, "CPU");
  chunk.event.group = 0;
  chunk.event.spec_kind = "full_attention";
  worker.Apply({root, chunk, RemoveEvent({1, 2})});
  EXPECT_EQ(worker.Reach(Tokens(8), {.cache_salt = "tenant"}), 2);
  EXPECT_EQ(worker.Reach(Tokens(8)), 0);
  // An unknown chunk might have a salt: it waits for its name.
  OwnedEvent unknown = StoreEvent({7, 8}, Tokens(8, 50), std::nullopt, "CPU");
  unknown.event.group = 0;
  worker.Apply({unknown});
  EXPECT_EQ(worker.Reach(Tokens(8, 50)), 0);
  worker.Apply({StoreEvent({7, 8}, Tokens(8, 50)), RemoveEvent({7, 8})});
  EXPECT_EQ(worker.Reach(Tokens(8, 50)), 2);
}

TEST(TokenlessTest, AnotherWorkerIsAsked) {
  TestWorker engine;
  OwnedEvent stored = StoreEvent({1, 2}, Tokens(8));
  stored.event.cache_salt = "tenant";
  engine.Apply({stored});
  const auto ask = [&engine](const EngineBlockHash& hash) { return engine->Find(hash); };
  TestWorker store({.resolve = ask});
  OwnedEvent envelope = Tokenless({1, 2, 3}, "cpu");
  envelope.event.envelope = true;
  store.Apply({envelope});
  EXPECT_EQ(store.Reach(Tokens(8), {.cache_salt = "tenant", .tiers = kHost}), 2);
  EXPECT_EQ(store.RankStats().parked, 1);
  // A worker that learns the name later is asked again.
  engine.Apply({StoreEvent({3}, Tokens(4, 8), 2)});
  store.Advance(seconds(1));
  EXPECT_EQ(store.Reach(Tokens(12), {.cache_salt = "tenant"}), 3);
  store.Apply({RemoveEvent({2}, "cpu")});
  EXPECT_EQ(store.Reach(Tokens(12), {.cache_salt = "tenant"}), 1);
}

TEST(TokenlessTest, AnIntegerFindsTheDigestThatEndsInIt) {
  TestWorker engine;
  OwnedEvent stored = StoreEvent({}, Tokens(4));
  const std::string digest = std::string(24, 'x') + std::string("\0\0\0\0\0\0\1\2", 8);
  stored.digests = {digest};
  engine.Apply({stored});
  ASSERT_TRUE(engine->Find(HashOf(0x0102)).has_value());
  EXPECT_EQ(engine->Find(HashOf(0x0102))->position, 0);
  EXPECT_TRUE(engine->Find(HashOf(digest)).has_value());
  EXPECT_FALSE(engine->Find(HashOf(0x0103)).has_value());
}

// ---- Losses ----

TEST(LossTest, WhatIsNotConfirmedInTimeGoesAndTheRestIsCertain) {
  TestWorker worker({.repair_timeout = seconds(30)});
  worker.Apply({StoreEvent({1, 2, 3}, Tokens(12)), StoreEvent({1}, Tokens(4))});
  worker->Lost(0, worker.now());
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
  EXPECT_EQ(worker.RankStats().suspects, 3);
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  EXPECT_EQ(worker.RankStats().suspects, 1);
  worker.Advance(seconds(29));
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
  worker.Advance(seconds(1));
  EXPECT_EQ(worker.Reach(Tokens(12)), 2);
  EXPECT_EQ(worker.RankStats().suspects, 0);
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  // One copy of each was seen since: the older ones do not count.
  worker.Apply({RemoveEvent({1})});
  EXPECT_EQ(worker.Reach(Tokens(12)), 0);
  EXPECT_EQ(worker.RankStats().blocks[0], 1);
}

TEST(LossTest, ARepairMakesAllAsIfNothingHadHappened) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8)), StoreEvent({2}, Tokens(4, 4), 1)});
  worker->Lost(0, worker.now());
  worker.Apply({StoreEvent({1}, Tokens(4)), RemoveEvent({2})});
  worker->Repaired(0);
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Advance(seconds(100));
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  worker.Apply({RemoveEvent({1})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2) << "two copies of 1";
  worker.Apply({RemoveEvent({1}), RemoveEvent({2})});
  EXPECT_EQ(worker.Holdings().size(), 0);
}

TEST(LossTest, ARemovalRemovesWhatIsUnconfirmed) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  worker->Lost(0, worker.now());
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1);
}

TEST(LossTest, ASecondLossNeitherForgivesTheFirstNorGivesItMoreTime) {
  TestWorker worker({.repair_timeout = seconds(30)});
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  worker->Lost(0, worker.now());
  worker.Apply({StoreEvent({1}, Tokens(4))});
  worker.Advance(seconds(20));
  worker->Lost(0, worker.now());
  EXPECT_EQ(worker.RankStats().suspects, 2);
  worker.Apply({StoreEvent({9}, Tokens(4, 90))});
  worker.Advance(seconds(10));
  EXPECT_EQ(worker.Reach(Tokens(8)), 0);
  EXPECT_EQ(worker.Reach(Tokens(4, 90)), 1);
}

TEST(LossTest, AClearMakesEverythingCertain) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4))});
  worker->Lost(0, worker.now());
  worker.Apply({ClearEvent(), StoreEvent({2}, Tokens(4, 4))});
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Advance(seconds(100));
  EXPECT_EQ(worker.Reach(Tokens(4, 4)), 1);
}

TEST(LossTest, ARepairAfterSomethingWasGivenUpStaysDegraded) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4))});
  worker->Lost(0, worker.now());
  worker.Advance(seconds(31));
  worker->Lost(0, worker.now());
  worker->Repaired(0);
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker->Restarted(0, worker.now());
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

TEST(LossTest, TiersAreConfirmedByThemselves) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4)), StoreEvent({1}, Tokens(4), std::nullopt, "CPU")});
  worker->Lost(0, worker.now());
  worker.Apply({StoreEvent({1}, Tokens(4), std::nullopt, "CPU")});
  worker.Advance(seconds(31));
  EXPECT_EQ(worker.Reach(Tokens(4), {.tiers = Tier::kDevice}), 0);
  EXPECT_EQ(worker.Reach(Tokens(4), {.tiers = kHost}), 1);
}

// Its removal may have been lost.
TEST(LossTest, WhatWasParkedBeforeALossIsNotCertainWhenItIsLinked) {
  TestWorker worker({.repair_timeout = seconds(30)});
  worker.Apply({StoreEvent({2}, Tokens(4, 4), 1), StoreEvent({12}, Tokens(4, 54), 11)});
  worker->Lost(0, worker.now());
  worker.Apply({StoreEvent({1}, Tokens(4)), StoreEvent({3}, Tokens(4, 8), 2)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
  worker.Advance(seconds(30));
  EXPECT_EQ(worker.Reach(Tokens(12)), 1);
  EXPECT_EQ(worker.Holdings().size(), 2u) << "3 came since";
  worker.Apply({StoreEvent({11}, Tokens(4, 50))});
  EXPECT_EQ(worker.Reach(Tokens(8, 50)), 1) << "nor later";
}

TEST(LossTest, WhatWasParkedBeforeARepairedLossIsCertain) {
  TestWorker worker({.repair_timeout = seconds(30)});
  worker.Apply({StoreEvent({2}, Tokens(4, 4), 1), StoreEvent({12}, Tokens(4, 54), 11)});
  worker->Lost(0, worker.now());
  worker.Apply({StoreEvent({1}, Tokens(4))});
  worker->Repaired(0);
  worker.Apply({StoreEvent({11}, Tokens(4, 50))});
  worker.Advance(seconds(31));
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  EXPECT_EQ(worker.Reach(Tokens(8, 50)), 2);
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

TEST(LossTest, OnlyTheRanksOfThatStreamAreConcerned) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4))}, 5, 0);
  worker.Apply({StoreEvent({1}, Tokens(4))}, std::nullopt, 1);
  worker->Lost(0, worker.now());
  EXPECT_EQ(worker.trust(5), Trust::kDegraded);
  EXPECT_EQ(worker.trust(1), Trust::kExact);
  worker->Restarted(0, worker.now());
  EXPECT_EQ(worker.Reach(Tokens(4), {.rank = 5}), 0);
  EXPECT_EQ(worker.Reach(Tokens(4), {.rank = 1}), 1);
}

TEST(LossTest, ManyAreDroppedInSteps) {
  TestWorker worker;
  constexpr uint64_t kBlocks = 200000;
  for (uint64_t from = 0; from < kBlocks; from += 1000) {
    std::vector<uint64_t> hashes;
    for (uint64_t i = 1; i <= 1000; ++i) hashes.push_back(from + i);
    worker.Apply({StoreEvent(hashes, Tokens(4000, static_cast<TokenId>(4 * from)),
                             from == 0 ? std::nullopt : std::optional<uint64_t>(from))});
  }
  worker->Lost(0, worker.now());
  worker.Apply({StoreEvent({1}, Tokens(4))});
  worker.Advance(seconds(30));
  const uint64_t left = worker.RankStats().blocks[0];
  EXPECT_GT(left, 1);
  EXPECT_LT(left, kBlocks);
  for (int i = 0; i < 10; ++i) worker.Advance(seconds(1));
  EXPECT_EQ(worker.RankStats().blocks[0], 1);
  EXPECT_EQ(worker.Holdings().size(), 1);
  EXPECT_LT(worker.RankStats().alias_bytes, 10000);
}

// ---- Ranks ----

TEST(RankTest, ABatchesRankGoesBeforeTheRegisteredOneAndAnEventsBeforeThat) {
  TestWorker worker;
  OwnedEvent event = StoreEvent({1}, Tokens(4));
  worker.Apply({event}, 3);
  EXPECT_EQ(worker.Reach(Tokens(4), {.rank = 3}), 1);
  event.event.rank = 4;
  worker.Apply({event, StoreEvent({2}, Tokens(4, 4))}, 3);
  EXPECT_EQ(worker.Reach(Tokens(4), {.rank = 4}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4, 4), {.rank = 3}), 1);
  worker.Apply({StoreEvent({1}, Tokens(4))}, -1);
  EXPECT_EQ(worker.Reach(Tokens(4), {.rank = 4294967295u}), 1);
  worker->RemoveRank(3);
  EXPECT_EQ(worker->Stats().ranks.size(), 2);
}

TEST(RankTest, EventsOfARankWithoutAHolderAreShed) {
  TestWorker worker;
  worker.SetRefusesRank(2);
  worker.Apply({StoreEvent({1}, Tokens(4)), StoreEvent({2}, Tokens(4))}, 2);
  EXPECT_EQ(worker.Refused(Refusal::kShed), 2);
  worker.SetRefusesRank(std::nullopt);
  worker.Advance(seconds(1));
  worker.Apply({StoreEvent({1}, Tokens(4))}, 2);
  EXPECT_EQ(worker.Reach(Tokens(4), {.rank = 2}), 1);
}

TEST(RankTest, WhatTheIndexHasNoRoomForIsShed) {
  TestWorker worker({}, /*blocks_max=*/2);
  worker.Apply({StoreEvent({1, 2, 3}, Tokens(12))});
  EXPECT_EQ(worker.Refused(Refusal::kShed), 3);
  EXPECT_LE(worker.Reach(Tokens(12)), 2);
  worker.Apply({RemoveEvent({1, 2, 3})});
  EXPECT_EQ(worker.Holdings().size(), 0);
}

TEST(RankTest, ARestartForgetsBlocksParkedOnesAndGroups) {
  TestWorker worker;
  OwnedEvent learned = StoreEvent({1}, Tokens(4));
  learned.event.group = 3;
  learned.event.spec_kind = "full_attention";
  worker.Apply({learned, StoreEvent({9}, Tokens(4, 4), 8)});
  worker->Restarted(0, worker.now());
  EXPECT_EQ(worker.Holdings().size(), 0);
  EXPECT_EQ(worker.RankStats().parked, 0);
  learned.event.spec_kind = "";
  worker.Apply({learned});
  EXPECT_EQ(worker.Refused(Refusal::kUnlearnedGroup), 1);
}

TEST(RankTest, RunsAreAsLongAsTheyCanBe) {
  TestWorker worker({.keep_local_hashes = true});
  worker.Apply({StoreEvent({1}, Tokens(4)), StoreEvent({2}, Tokens(4, 4), 1),
                StoreEvent({3, 4}, Tokens(8, 8), 2), RemoveEvent({4}), RemoveEvent({3})});
  ASSERT_EQ(worker.sent().size(), 2);
  const Stored& run = std::get<Stored>(worker.sent()[0]);
  EXPECT_EQ(run.blocks.size(), 4);
  EXPECT_EQ(run.local_hashes.size(), 4);
  EXPECT_EQ(std::get<Removed>(worker.sent()[1]).blocks.size(), 2);
  worker.ForgetSent();
  std::vector<uint64_t> hashes;
  for (uint64_t i = 0; i < 5000; ++i) hashes.push_back(100 + i);
  worker.Apply({StoreEvent(hashes, Tokens(20000, 1000))});
  ASSERT_EQ(worker.sent().size(), 2);
  EXPECT_EQ(std::get<Stored>(worker.sent()[0]).blocks.size(), kBatchBlocksMax);
}

// ---- Threads ----

// Two workers that ask each other, with everything going on at once.
TEST(ThreadsTest, AnyThreadMayCallAnythingAndWorkersMayAskEachOther) {
  EngineWorker* others[2] = {nullptr, nullptr};
  TestWorker first({.resolve = [&](const EngineBlockHash& hash) { return others[1]->Find(hash); }});
  TestWorker second(
      {.resolve = [&](const EngineBlockHash& hash) { return others[0]->Find(hash); }});
  TestWorker* const workers[2] = {&first, &second};
  others[0] = &*first;
  others[1] = &*second;
  std::vector<std::thread> threads;
  for (int w = 0; w < 2; ++w) {
    threads.emplace_back([worker = workers[w], w] {
      for (uint64_t i = 0; i < 500; ++i) {
        const uint64_t own = 1000 * static_cast<uint64_t>(w) + i;
        const uint64_t others_name = 1000 * static_cast<uint64_t>(1 - w) + i;
        worker->Apply({StoreEvent({own}, Tokens(4, static_cast<TokenId>(own))),
                       Tokenless({others_name}, "CPU"), RemoveEvent({own})});
      }
    });
    threads.emplace_back([worker = others[w], time = workers[w]->now()] {
      for (int i = 0; i < 200; ++i) {
        worker->Tick(time);
        worker->Stats();
        worker->Lost(0, time);
        worker->Repaired(0);
        worker->ForEachAlias([](const EngineAlias&) {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (TestWorker* worker : workers) {
    EXPECT_EQ(worker->RankStats().blocks[0], 0);
    EXPECT_EQ(worker->RankStats().suspects, 0);
    EXPECT_EQ(worker->RankStats().blocks[1], worker->Holdings().size());
  }
}

// ---- Names put down and taken up ----

TEST(RestoreTest, NamesComeBackAsTheyWere) {
  TestWorker from({.keep_local_hashes = true});
  OwnedEvent salted = StoreEvent({11, 12}, Tokens(8));
  salted.event.cache_salt = "tenant";
  salted.event.lora_name = "adapter";
  OwnedEvent eagle = StoreEvent({21}, Tokens(5));
  eagle.event.look_ahead = 1;
  OwnedEvent digest = StoreEvent({}, Tokens(4, 70));
  digest.digests = {std::string(32, 'd')};
  from.Apply({StoreEvent({1, 2, 3}, Tokens(12)), StoreEvent({1, 2}, Tokens(8)),
              StoreEvent({2}, Tokens(4, 4), 1, "CPU"), salted, eagle, digest});
  from.Apply({StoreEvent({1}, Tokens(4))}, 7);

  TestWorker to({.keep_local_hashes = true});
  from->ForEachAlias([&](const EngineAlias& alias) { ASSERT_TRUE(to->Restore(alias).ok()); });
  EXPECT_EQ(to.Holdings(), from.Holdings());
  EXPECT_EQ(to.Holdings(7), from.Holdings(7));
  EXPECT_TRUE(to->look_aheads());
  to.Apply({RemoveEvent({2}), StoreEvent({13}, Tokens(4, 8), 12)});
  EXPECT_EQ(to.Reach(Tokens(12)), 3) << "two copies came along";
  EXPECT_EQ(to.Reach(Tokens(12), {.lora_name = "adapter", .cache_salt = "tenant"}), 3);
  to.Apply({RemoveEvent({2})});
  EXPECT_EQ(to.Reach(Tokens(12), {.tiers = Tier::kDevice}), 1);

  std::map<uint64_t, std::pair<SequenceHash, LocalHash>> of_from;
  from->ForEachAlias([&](const EngineAlias& alias) {
    if (alias.rank == 0 && alias.hash.bytes.empty())
      of_from[alias.hash.value] = {alias.parent, alias.local};
  });
  EXPECT_EQ(of_from[2].first, SequenceHash{9143094415614847814u});
  EXPECT_EQ(of_from[2].second, LocalHash{12124091508212882195u});
}

TEST(RestoreTest, UnconfirmedNamesComeBackUnconfirmed) {
  TestWorker from;
  from.Apply({StoreEvent({1, 2}, Tokens(8))});
  from->Lost(0, from.now());
  from.Apply({StoreEvent({1}, Tokens(4))});
  TestWorker to;
  from->ForEachAlias([&](const EngineAlias& alias) { ASSERT_TRUE(to->Restore(alias).ok()); });
  EXPECT_EQ(to.trust(), Trust::kDegraded);
  EXPECT_EQ(to.Reach(Tokens(8)), 2);
  to.Advance(seconds(1));
  to.Advance(seconds(30));
  EXPECT_EQ(to.Reach(Tokens(8)), 0) << "no copy of 1 is certain beyond its first";
}

// Removals do not say what a group is.
TEST(RestoreTest, RemovalsOfLaterGroupsAreUnderstoodBeforeAnyStore) {
  TestWorker from;
  OwnedEvent stored = StoreEvent({1, 2}, Tokens(8));
  stored.event.group = 1;
  stored.event.spec_kind = "full_attention";
  from.Apply({stored});
  TestWorker to;
  from->ForEachAlias([&](const EngineAlias& alias) { ASSERT_TRUE(to->Restore(alias).ok()); });
  EXPECT_EQ(to.Reach(Tokens(8)), 2);
  OwnedEvent removed = RemoveEvent({1});
  removed.event.group = 1;
  to.Apply({removed});
  EXPECT_EQ(to.Reach(Tokens(8)), 0);
  EXPECT_EQ(to.Refused(Refusal::kUnlearnedGroup), 0);
}

TEST(RestoreTest, WhatContradictsItselfIsRefused) {
  TestWorker worker;
  EngineAlias alias{.rank = 0, .group = 0, .hash = HashOf(1), .block = SequenceHash{5}};
  EXPECT_FALSE(worker->Restore(alias).ok()) << "no copies";
  alias.copies[0] = 1;
  alias.parent = SequenceHash{4};
  EXPECT_FALSE(worker->Restore(alias).ok()) << "a first block with a parent";
  alias.parent = kNoParent;
  EXPECT_TRUE(worker->Restore(alias).ok());
  EXPECT_FALSE(worker->Restore(alias).ok()) << "twice";
}

}  // namespace
}  // namespace kvatlas
