#include "indexer/registry/pending_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "indexer/base/test_seed.h"
#include "indexer/base/tier.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr HolderIndex kA{0}, kB{1};
constexpr uint64_t kFrontend = 7, kOther = 8;

// A prompt of `blocks` blocks that is prompt 0 up to `common`, and its own from there.
std::vector<SequenceHash> Prompt(size_t blocks, uint64_t own = 0, size_t common = 0) {
  std::vector<SequenceHash> sequence;
  for (size_t i = 0; i < blocks; ++i)
    sequence.push_back(
        SequenceHash{(i < common || own == 0 ? 0 : (own * 100 + common) * 1'000'000) + i + 1});
  return sequence;
}

class PendingBlocksTest : public ::testing::Test {
 protected:
  void Tell(HolderIndex holder, uint64_t decision, const std::vector<SequenceHash>& prompt,
            Position first = 0, uint64_t frontend = kFrontend) {
    pending_.Tell(
        holder, frontend,
        {.decision = decision, .first = first, .blocks = std::span(prompt).subspan(first)}, now_);
  }

  Pending At(HolderIndex holder, const std::vector<SequenceHash>& prompt, uint32_t has = 0,
             uint64_t asker = kOther) const {
    Pending found;
    const std::vector<std::pair<HolderIndex, uint32_t>> holders = {{holder, has}};
    pending_.Find(prompt, holders, asker, /*session=*/0,
                  [&](size_t, const Pending& pending) { found = pending; });
    return found;
  }

  void Store(HolderIndex holder, const std::vector<SequenceHash>& prompt, Position from,
             Position to) {
    ChangeLog changes;
    SequenceHash* run = changes.AddRun(to - from, from, TierMask(), TierMask(Tier::kDevice));
    std::copy(prompt.begin() + from, prompt.begin() + to, run);
    pending_.OnChanged(holder, changes);
  }

  Time now_{seconds(100)};
  PendingBlocks pending_{PendingOptions{}};
};

TEST_F(PendingBlocksTest, AnotherFrontendSeesWhatIsOnItsWay) {
  const auto prompt = Prompt(100);
  Tell(kA, 1, prompt);
  EXPECT_EQ(At(kA, Prompt(120, 2, 90)), (Pending{.depth = 90, .blocks = 100, .requests = 1}));
  EXPECT_EQ(At(kB, prompt), Pending());
  // The teller knows its own load.
  EXPECT_EQ(At(kA, prompt, 0, kFrontend), (Pending{.depth = 100}));
}

// A telling and its blocks at once, of which each side looks for the other's change behind its own:
// one of the two finds it, or the telling would stay until its time is over. Which of them comes
// first is chance, so there are many rounds.
TEST_F(PendingBlocksTest, ATellingAndItsBlocksAtOnceDoNotMissEachOther) {
  constexpr uint64_t kRounds = 20'000;
  const auto prompt = Prompt(1);
  ChangeLog changes;
  *changes.AddRun(1, 0, TierMask(), TierMask(Tier::kDevice)) = prompt[0];
  // The round; the one in which the index got the block; the last one that the worker is through.
  alignas(64) std::atomic<uint64_t> round{0};
  alignas(64) std::atomic<uint64_t> stored{0};
  alignas(64) std::atomic<uint64_t> through{0};
  const auto wait_for = [](const std::atomic<uint64_t>& what, uint64_t number) {
    for (int spins = 0; what.load(std::memory_order_acquire) < number; ++spins)
      if (spins > 2000) std::this_thread::yield();
  };
  std::thread worker([&] {
    for (uint64_t i = 1; i <= kRounds; ++i) {
      wait_for(round, i);
      for (std::atomic<uint64_t> left = i % 300; left > 0;)
        left.store(left.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
      stored.store(i, std::memory_order_relaxed);
      pending_.OnChanged(kA, changes);
      through.store(i, std::memory_order_release);
    }
  });
  uint64_t missed = 0;
  for (uint64_t i = 1; i <= kRounds; ++i) {
    round.store(i, std::memory_order_release);
    Tell(kA, i, prompt);
    if (stored.load(std::memory_order_relaxed) == i) pending_.Confirm(kFrontend, i);
    wait_for(through, i);
    missed += pending_.any();
    pending_.End(kFrontend, {.decision = i, .failed = true}, now_);
  }
  worker.join();
  EXPECT_EQ(missed, 0u) << "of " << kRounds;
}

TEST_F(PendingBlocksTest, AFewBlocksAreFoundBehindWhatTheWorkerHas) {
  const auto prompt = Prompt(12);
  Tell(kA, 1, prompt, 9);
  EXPECT_EQ(At(kA, Prompt(14, 2, 11), 9).depth, 11u);
  EXPECT_EQ(At(kA, prompt, 9).depth, 12u);
}

TEST_F(PendingBlocksTest, EventsConfirm) {
  const auto prompt = Prompt(100);
  Tell(kA, 1, prompt, 20);
  Store(kB, prompt, 0, 100);
  EXPECT_EQ(At(kA, prompt).blocks, 80u);
  Store(kA, prompt, 20, 50);
  EXPECT_EQ(At(kA, prompt, 50), (Pending{.depth = 100, .blocks = 50}));
  Store(kA, prompt, 50, 100);
  EXPECT_FALSE(pending_.any());
  EXPECT_EQ(pending_.StatsOf(kA).counts.confirmed, 1u);
}

TEST_F(PendingBlocksTest, ARunThatReachesBeyondThePromptConfirms) {
  const auto longer = Prompt(64);
  const std::vector<SequenceHash> prompt(longer.begin(), longer.begin() + 21);
  Tell(kA, 1, prompt, 17);
  Store(kA, longer, 8, 64);
  EXPECT_FALSE(pending_.any());
}

TEST_F(PendingBlocksTest, OtherContentsConfirmNothing) {
  Tell(kA, 1, Prompt(40));
  Store(kA, Prompt(40, 3), 0, 40);
  EXPECT_EQ(At(kA, Prompt(40)).blocks, 40u);
  pending_.End(kFrontend, {.decision = 1}, now_);
  pending_.Tick(now_ += PendingBlocks::kAnnouncedWithin);
  EXPECT_FALSE(pending_.any());
  EXPECT_EQ(pending_.StatsOf(kA).counts.contradicted, 1u);
}

TEST_F(PendingBlocksTest, AFailedRequestIsNotWaitedFor) {
  Tell(kA, 1, Prompt(40));
  pending_.End(kOther, {.decision = 1, .failed = true}, now_);  // another's decision of that number
  EXPECT_TRUE(pending_.any());
  pending_.End(kFrontend, {.decision = 1, .failed = true}, now_);
  EXPECT_EQ(At(kA, Prompt(40)), Pending());
  EXPECT_EQ(pending_.Stats().counts.failed, 1u);
}

TEST_F(PendingBlocksTest, WhatAFrontendSentThatLeftIsNotWaitedFor) {
  Tell(kA, 1, Prompt(40));
  Tell(kB, 2, Prompt(20, 3));
  pending_.Leave(kOther);
  EXPECT_EQ(At(kA, Prompt(40)).blocks, 40u);
  pending_.Leave(kFrontend);
  EXPECT_FALSE(pending_.any());
  EXPECT_EQ(At(kA, Prompt(40)), Pending());
  EXPECT_EQ(pending_.Stats().counts.failed, 2u);
  EXPECT_EQ(pending_.Stats().bytes, 0u);
}

TEST_F(PendingBlocksTest, ASessionsLastPromptIsKnownBySomeOfItsBlocks) {
  const auto tell = [&](uint64_t decision, uint64_t session, const auto& prompt, size_t first) {
    pending_.Tell(kA, kFrontend,
                  {.decision = decision,
                   .first = static_cast<Position>(first),
                   .blocks = std::span(prompt).subspan(first),
                   .session = session},
                  now_);
  };
  const auto whole = Prompt(100);
  const std::vector<SequenceHash> turn(whole.begin(), whole.begin() + 40);
  tell(1, 7, turn, 0);
  tell(2, 8, Prompt(3, 9), 0);
  now_ += milliseconds(5);
  tell(3, 7, whole, 40);
  const std::vector<SessionSeen> all = pending_.Sessions(0, 10);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].session, 7u) << "the latest first";
  EXPECT_EQ(all[0].prompts, 2u);
  EXPECT_EQ(all[0].blocks, 100u);
  EXPECT_LE(all[0].samples.size(), PendingBlocks::kSessionSamples);
  EXPECT_EQ(all[0].samples.back(), std::pair(Position{100}, whole.back()));
  Position before = 0;
  for (const auto& [end, block] : all[0].samples) {
    EXPECT_GT(end, before);
    EXPECT_EQ(block, whole[end - 1]);
    before = end;
  }
  EXPECT_LE(all[0].samples.front().first, 40u) << "also of what the turn before had sent";
  EXPECT_EQ(pending_.Sessions(0, 1).size(), 1u);
  ASSERT_EQ(pending_.Sessions(8, 10).size(), 1u);
  EXPECT_EQ(pending_.Sessions(8, 10)[0].samples.size(), 3u);
  EXPECT_TRUE(pending_.Sessions(9, 10).empty());
  // Another prompt of the session: what it does not go on with is forgotten.
  tell(4, 7, Prompt(50, 3, 20), 20);
  const SessionSeen seen = pending_.Sessions(7, 1).at(0);
  for (const auto& [end, block] : seen.samples)
    EXPECT_TRUE(end <= 20 || block == Prompt(50, 3, 20)[end - 1]);
}

TEST_F(PendingBlocksTest, ItsTimeIsOver) {
  Tell(kA, 1, Prompt(40));
  pending_.Tick(now_ + kRoutedTtl - milliseconds(1));
  EXPECT_TRUE(pending_.any());
  pending_.Tick(now_ + kRoutedTtl);
  EXPECT_FALSE(pending_.any());
  EXPECT_EQ(pending_.StatsOf(kA).counts.timed_out, 1u);
}

TEST_F(PendingBlocksTest, APromptWithoutNewBlocksIsARequestForAMoment) {
  Tell(kA, 1, Prompt(40), 40);
  EXPECT_EQ(At(kA, Prompt(40), 40), (Pending{.requests = 1}));
  pending_.Tick(now_ + PendingBlocks::kOnlyRequest);
  EXPECT_FALSE(pending_.any());
  EXPECT_EQ(pending_.Stats().counts.timed_out, 0u);
}

TEST_F(PendingBlocksTest, ToldTwiceCountsOnce) {
  Tell(kA, 1, Prompt(40));
  Tell(kA, 1, Prompt(40));
  EXPECT_EQ(At(kA, Prompt(40)).requests, 1u);
}

TEST_F(PendingBlocksTest, WhoIsGoneHasNothingPending) {
  Tell(kA, 1, Prompt(40));
  pending_.Forget(kA);
  EXPECT_EQ(At(kA, Prompt(40)), Pending());
  EXPECT_EQ(pending_.StatsOf(kA).counts.told, 0u);
  EXPECT_EQ(pending_.Stats().counts.told, 1u);
}

TEST(PendingBlocksBoundsTest, TheOldestOfTheFrontendThatHasTooManyGoes) {
  PendingBlocks pending({.bytes_max = 1 << 20, .frontend_bytes_max = 8 << 10});
  const Time now{seconds(1)};
  const auto tell = [&](uint64_t frontend, uint64_t decision) {
    const auto prompt = Prompt(100, frontend * 1000 + decision);
    pending.Tell(kA, frontend, {.decision = decision, .blocks = prompt}, now);
  };
  tell(kOther, 1);
  for (uint64_t decision = 1; decision <= 50; ++decision) tell(kFrontend, decision);
  const auto depth = [&](uint64_t frontend, uint64_t decision) {
    uint32_t found = 0;
    const std::vector<std::pair<HolderIndex, uint32_t>> holders = {{kA, 0}};
    pending.Find(Prompt(100, frontend * 1000 + decision), holders, 0, /*session=*/0,
                 [&](size_t, const Pending& p) { found = p.depth; });
    return found;
  };
  EXPECT_EQ(depth(kOther, 1), 100u);
  EXPECT_EQ(depth(kFrontend, 1), 0u);
  EXPECT_EQ(depth(kFrontend, 50), 100u);
  EXPECT_GT(pending.Stats().counts.dropped, 30u);
  EXPECT_LE(pending.Stats().bytes, (8u << 10) + 2048);
}

TEST(PendingBlocksBoundsTest, MemoryIsBoundedWhateverNamesFrontendsGiveThemselves) {
  PendingBlocks pending({.bytes_max = 16 << 10, .frontend_bytes_max = 8 << 10});
  const auto prompt = Prompt(100);
  for (uint64_t frontend = 1; frontend <= 500; ++frontend) {
    pending.Tell(kA, frontend, {.decision = 1, .blocks = prompt}, Time(0));
    ASSERT_LE(pending.Stats().bytes, 16u << 10);
  }
  // A telling that is larger than all room is not remembered, and costs the others nothing.
  const uint64_t before = pending.Stats().bytes;
  const auto huge = Prompt(10'000);
  pending.Tell(kA, 1, {.decision = 2, .blocks = huge}, Time(0));
  EXPECT_EQ(pending.Stats().bytes, before);
}

TEST_F(PendingBlocksTest, ASessionIsWhereItsLastRequestWent) {
  const auto at = [&](HolderIndex holder, uint64_t session) {
    bool found = false;
    const std::vector<std::pair<HolderIndex, uint32_t>> holders = {{holder, 0}};
    pending_.Find(Prompt(3), holders, kOther, session,
                  [&](size_t, const Pending& pending) { found = pending.session; });
    return found;
  };
  const auto tell = [&](HolderIndex holder, uint64_t decision, uint64_t session) {
    const auto prompt = Prompt(20);
    pending_.Tell(holder, kFrontend, {.decision = decision, .blocks = prompt, .session = session},
                  now_);
    pending_.End(kFrontend, {.decision = decision}, now_);
  };
  tell(kA, 1, 77);
  EXPECT_TRUE(at(kA, 77));
  EXPECT_FALSE(at(kB, 77));
  EXPECT_FALSE(at(kA, 78));
  tell(kB, 2, 77);
  EXPECT_FALSE(at(kA, 77));
  EXPECT_TRUE(at(kB, 77));
  now_ += PendingOptions().session_ttl;
  pending_.Tick(now_);
  EXPECT_FALSE(pending_.any());
  tell(kA, 3, 79);
  EXPECT_FALSE(at(kB, 77));
  pending_.Forget(kA);
  EXPECT_FALSE(at(kA, 79));
}

TEST(PendingBlocksWaypointsTest, WaypointsAreFoundByNameUnderAnotherSchedule) {
  PendingBlocks pending({.stride = 1});
  const auto told = Prompt(40);
  pending.Tell(kA, kFrontend, {.decision = 1, .first = 10, .blocks = std::span(told).subspan(10)},
               Time(0));
  std::vector<SequenceHash> asked;  // every third of them, and then others
  for (size_t i = 0; i < 30; i += 3) asked.push_back(told[i]);
  asked.push_back(SequenceHash{1});
  uint32_t depth = 0;
  const std::vector<std::pair<HolderIndex, uint32_t>> holders = {{kA, 2}};
  pending.Find(asked, holders, kOther, 0, [&](size_t, const Pending& p) { depth = p.depth; });
  EXPECT_EQ(depth, 10u);
}

TEST(PendingBlocksBoundsTest, SessionsAreBounded) {
  PendingBlocks pending({.sessions_max = 10});
  for (uint64_t session = 1; session <= 1000; ++session) {
    pending.Tell(kA, kFrontend, {.decision = session, .session = session}, Time(session));
    pending.Tell(kA, kFrontend, {.decision = 5000 + session, .session = 1}, Time(session));
  }
  int known = 0;
  const std::vector<std::pair<HolderIndex, uint32_t>> holders = {{kA, 0}};
  for (uint64_t session = 1; session <= 1000; ++session)
    pending.Find({}, holders, kFrontend, session,
                 [&](size_t, const Pending& found) { known += found.session; });
  EXPECT_EQ(known, 10);
}

// ---- A slow twin ----

struct SlowTelling {
  HolderIndex holder;
  uint64_t frontend, decision;
  Position first, shown = 0;
  std::vector<SequenceHash> prompt;  // whole
  Time until;
  bool finished = false;

  uint64_t missing() const { return prompt.size() - std::max(first, shown); }
};

class SlowPending {
 public:
  std::vector<SlowTelling> all;

  Pending At(HolderIndex holder, const std::vector<SequenceHash>& asked, uint32_t has,
             uint64_t asker) const {
    Pending pending;
    uint32_t depth = 0;
    bool any = false;
    for (const SlowTelling& t : all) {
      if (t.holder != holder) continue;
      any = true;
      if (t.frontend != asker) {
        pending.blocks += t.missing();
        pending.requests += t.shown <= t.first;
      }
    }
    for (const SlowTelling& t : all) {
      if (t.holder != holder || !any) continue;
      Position common = 0;
      while (common < t.prompt.size() && common < asked.size() && t.prompt[common] == asked[common])
        ++common;
      // It is found by one block that both the telling and the question look at.
      for (Position at = t.first; at < common; ++at) {
        const bool stride = at % 8 == 7;
        const bool told = stride || at == t.first || at + 1 == t.prompt.size();
        const bool looked_at = stride || at + 1 == asked.size() || at == has;
        if (told && looked_at) depth = std::max(depth, common);
      }
    }
    if (depth > has) pending.depth = depth;
    return pending;
  }
};

TEST(PendingBlocksRandomTest, IsAsASlowTwinSays) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t below) { return random() % below; };
  for (int round = 0; round < 60; ++round) {
    PendingBlocks pending(PendingOptions{});
    SlowPending slow;
    Time now{seconds(1)};
    uint64_t decisions = 0;
    for (int step = 0; step < 300; ++step) {
      const HolderIndex holder{static_cast<uint32_t>(draw(3))};
      const uint64_t frontend = 1 + draw(3);
      const auto prompt = Prompt(1 + draw(60), draw(4), draw(60));
      switch (draw(7)) {
        case 0:
        case 1: {
          const auto first = static_cast<Position>(draw(prompt.size()));
          const Duration ttl = milliseconds(1 + draw(3000));
          pending.Tell(holder, frontend,
                       {.decision = ++decisions,
                        .first = first,
                        .blocks = std::span(prompt).subspan(first),
                        .ttl = ttl},
                       now);
          slow.all.push_back({.holder = holder,
                              .frontend = frontend,
                              .decision = decisions,
                              .first = first,
                              .prompt = prompt,
                              .until = now + ttl});
          break;
        }
        case 2: {
          const auto from = static_cast<Position>(draw(prompt.size()));
          const Position to = from + 1 + static_cast<Position>(draw(prompt.size() - from));
          ChangeLog changes;
          SequenceHash* run = changes.AddRun(to - from, from, TierMask(), TierMask(Tier::kDevice));
          std::copy(prompt.begin() + from, prompt.begin() + to, run);
          pending.OnChanged(holder, changes);
          std::erase_if(slow.all, [&](SlowTelling& t) {
            if (t.holder != holder) return false;
            for (Position at = std::max(from, t.first); at < to && at < t.prompt.size(); ++at)
              if (t.prompt[at] == prompt[at]) t.shown = std::max(t.shown, at + 1);
            return t.shown == t.prompt.size();
          });
          break;
        }
        case 3: {
          if (decisions == 0) break;
          const uint64_t decision = 1 + draw(decisions);
          const bool failed = draw(2) == 0;
          pending.End(frontend, {.decision = decision, .failed = failed}, now);
          std::erase_if(slow.all, [&](SlowTelling& t) {
            if (t.frontend != frontend || t.decision != decision) return false;
            t.until = std::min(t.until, now + PendingBlocks::kAnnouncedWithin);
            return failed;
          });
          break;
        }
        case 4:
          now += milliseconds(draw(500));
          pending.Tick(now);
          std::erase_if(slow.all, [&](const SlowTelling& t) { return t.until <= now; });
          break;
        case 5:
          if (draw(4) != 0) break;
          pending.Leave(frontend);
          std::erase_if(slow.all, [&](const SlowTelling& t) { return t.frontend == frontend; });
          break;
        default:
          break;
      }
      const auto asked = Prompt(1 + draw(70), draw(4), draw(60));
      const auto has = static_cast<uint32_t>(draw(asked.size() + 1));
      for (uint32_t number = 0; number < 3; ++number) {
        Pending found;
        const std::vector<std::pair<HolderIndex, uint32_t>> holders = {{HolderIndex(number), has}};
        pending.Find(asked, holders, frontend, /*session=*/0,
                     [&](size_t, const Pending& p) { found = p; });
        ASSERT_EQ(found, slow.At(HolderIndex(number), asked, has, frontend))
            << "round " << round << " step " << step << " holder " << number << " has " << has;
      }
      ASSERT_EQ(pending.any(), !slow.all.empty());
    }
    pending.Tick(now + kRoutedTtlMax);
    const PendingStats rest = pending.Stats();
    EXPECT_EQ(rest.blocks + rest.requests + rest.bytes, 0u);
    const PendingCounts& counts = rest.counts;
    EXPECT_EQ(counts.told, decisions);
    EXPECT_EQ(counts.told, counts.confirmed + counts.failed + counts.contradicted +
                               counts.timed_out + counts.dropped);
  }
}

}  // namespace
}  // namespace kvatlas
