// Threads write and ask at once: no answer is above the largest overlap that was true at some
// instant of the query, and holders that are not written are exact. Here are the patterns that must
// never add up;
// index_history_test.cc has random ones.
//
// KVATLAS_ROUNDS=N sets the length (`index_concurrent_long_test`).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/index/index_test_util.h"

namespace kvatlas {
namespace {

using Blocks = std::vector<SequenceHash>;

constexpr size_t kDepth = 16;

// The default runs at full length, the others at a part of it.
int Rounds(const IndexKind& kind) {
  const char* const rounds = std::getenv("KVATLAS_ROUNDS");
  return rounds != nullptr ? std::atoi(rounds) : kind.name == "atlas" ? 3'000 : 1'000;
}

Blocks Prompt() {
  Blocks prompt;
  for (uint64_t i = 0; i < kDepth; ++i)
    prompt.push_back(SequenceHash{(i + 1) * 0x9E3779B97F4A7C15u});
  return prompt;
}

Blocks EverySecond(const Blocks& prompt, size_t from) {
  Blocks some;
  for (size_t i = from; i < prompt.size(); i += 2) some.push_back(prompt[i]);
  return some;
}

// Kinds that are right beside writers, with holes or without.
std::vector<IndexKind> ConcurrentKinds() { return KindsThatClaim(kHoles | kPlaces); }

class IndexConcurrentTest : public ::testing::TestWithParam<IndexKind> {
 protected:
  using Answer = std::vector<Overlap>;

  IndexConcurrentTest() : index_(*MakeIndex(GetParam().name, {})), prompt_(Prompt()) {}
  ~IndexConcurrentTest() override { EXPECT_TRUE(index_->Check().ok()) << index_->Check(); }

  // A holder of the prompt's first blocks.
  HolderIndex Add(size_t depth = 0) {
    const HolderIndex holder = *index_->AddHolder();
    Store(holder, 0, depth);
    return holder;
  }
  // Blocks [from, to) of the prompt, in one event.
  void Store(HolderIndex holder, size_t from, size_t to, Tier tier = Tier::kDevice) {
    const Stored stored = {.tier = tier,
                           .position = static_cast<Position>(from),
                           .parent = from == 0 ? kNoParent : prompt_[from - 1],
                           .blocks = {prompt_.begin() + from, prompt_.begin() + to}};
    index_->Apply(holder, stored, nullptr).IgnoreError();
  }
  void StoreEverySecond(HolderIndex holder, size_t from) {
    for (size_t at = from; at < kDepth; at += 2) Store(holder, at, at + 1);
  }
  void Remove(HolderIndex holder, const Blocks& blocks, Tier tier = Tier::kDevice) {
    index_->Apply(holder, Removed{.tier = tier, .blocks = blocks}, nullptr).IgnoreError();
  }
  void Clear(HolderIndex holder) { index_->Apply(holder, Cleared{}, nullptr).IgnoreError(); }
  Blocks Head(size_t blocks) const { return Blocks(prompt_.begin(), prompt_.begin() + blocks); }

  // Writers run `Rounds` rounds each; two readers ask until all of them are done.
  void Run(const std::vector<std::function<void(int round)>>& writers,
           const std::function<void(const Answer&)>& check) {
    std::atomic<size_t> running{writers.size()};
    std::vector<std::thread> threads;
    for (const auto& writer : writers) {
      threads.emplace_back([&] {
        for (int round = 0; round < Rounds(GetParam()); ++round) writer(round);
        running.fetch_sub(1, std::memory_order_relaxed);
      });
    }
    for (int reader = 0; reader < 2; ++reader) {
      threads.emplace_back([&] {
        Answer answer;
        do {
          answer.clear();
          index_->FindOverlaps({.blocks = prompt_}, &answer);
          check(answer);
        } while (running.load(std::memory_order_relaxed) != 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // No holder above `limit`; those in `still` exactly as deep as that.
  std::function<void(const Answer&)> AtMost(uint32_t limit, Answer still = {}) const {
    return [limit, still = std::move(still)](const Answer& answer) {
      for (const Overlap& overlap : answer) {
        const auto is_same = [&](const Overlap& each) { return each.holder == overlap.holder; };
        if (std::find_if(still.begin(), still.end(), is_same) != still.end()) continue;
        ASSERT_LE(overlap.blocks, limit) << "holder " << Raw(overlap.holder);
        ASSERT_GE(overlap.blocks, 1u);
      }
      for (const Overlap& each : still) {
        ASSERT_EQ(std::count(answer.begin(), answer.end(), each), 1) << Raw(each.holder);
      }
    };
  }

  std::unique_ptr<Index> index_;
  const Blocks prompt_;
};

INSTANTIATE_TEST_SUITE_P(Structures, IndexConcurrentTest, ::testing::ValuesIn(ConcurrentKinds()),
                         KindName);

TEST_P(IndexConcurrentTest, ABlockLostBeforeTheNextIsStoredIsNotAddedToIt) {
  const HolderIndex holder = Add(), still = Add(kDepth);
  Run({[&](int) {
        Store(holder, 0, 1);
        Remove(holder, {prompt_[0]});
        Store(holder, 1, 2);
        Remove(holder, {prompt_[1]});
      }},
      AtMost(1, {{still, kDepth}}));
}

TEST_P(IndexConcurrentTest, EvenOrOddBlocksAreNeverARun) {
  const HolderIndex a = Add(), b = Add(), still = Add(5);
  const Blocks even = EverySecond(prompt_, 0);
  const auto alternate = [&](HolderIndex holder) {
    StoreEverySecond(holder, 0);
    Remove(holder, even);
    StoreEverySecond(holder, 1);
    Clear(holder);
  };
  Run({[&](int) { alternate(a); }, [&](int) { alternate(b); }}, AtMost(1, {{still, 5}}));
}

TEST_P(IndexConcurrentTest, ASlidingWindowIsNeverDeeperThanItIsWide) {
  const HolderIndex holder = Add();
  Run({[&](int) {
        Store(holder, 0, 3);
        for (size_t i = 3; i < kDepth; ++i) {
          Remove(holder, {prompt_[i - 3]});
          Store(holder, i, i + 1);
        }
        Clear(holder);
      }},
      AtMost(3));
}

// The one that moves may be found shallower meanwhile, never deeper.
TEST_P(IndexConcurrentTest, BlocksThatMoveBetweenTiersAreNoMoreThanTheyAre) {
  const HolderIndex holder = Add(4), still = Add(6);
  Run({[&](int) {
        Store(holder, 0, 4, Tier::kHost);
        Remove(holder, Head(4), Tier::kDevice);
        Store(holder, 0, 4, Tier::kDevice);
        Remove(holder, Head(4), Tier::kHost);
      }},
      AtMost(4, {{still, 6}}));
  Answer answer;
  index_->FindOverlaps({.blocks = prompt_}, &answer);
  EXPECT_EQ(std::count(answer.begin(), answer.end(), Overlap{holder, 4}), 1);
}

TEST_P(IndexConcurrentTest, AReusedNumberDoesNotInheritBlocks) {
  const HolderIndex still = Add(7);
  Run({[&](int round) {
        const HolderIndex holder = Add(round % 2 == 0 ? 3 : 0);
        if (round % 2 != 0) Store(holder, 3, kDepth);
        index_->RemoveHolder(holder);
      }},
      AtMost(3, {{still, 7}}));
}

// A scrape of figures that meets the end of a holder.
TEST_P(IndexConcurrentTest, FiguresMayBeAskedWhileHoldersComeAndGo) {
  Add(7);
  const auto come_and_go = [&](int) { index_->RemoveHolder(Add(3)); };
  Run({come_and_go, come_and_go}, [&](const Answer&) {
    const IndexStats stats = index_->Stats();
    ASSERT_GE(stats.holders, 1u);
    ASSERT_LE(stats.holders, 3u);
    ASSERT_GE(stats.holdings, 7u);
    ASSERT_LE(stats.holdings, 7u + 2 * 3);
  });
  EXPECT_EQ(index_->Stats().holders, 1u);
}

TEST_P(IndexConcurrentTest, SetsOfManyHoldersChangeTheirFormUnderReaders) {
  std::vector<HolderIndex> holders;
  for (int i = 0; i < 140; ++i) holders.push_back(Add());
  const HolderIndex still = Add(9);
  const auto wave = [&](size_t first) {
    for (size_t i = first; i < holders.size(); i += 2) Store(holders[i], 0, i % 4);
    for (size_t i = first; i < holders.size(); i += 2) Clear(holders[i]);
  };
  const auto sparsely = [](const std::function<void()>& body) {
    return [body](int round) {
      if (round % 64 == 0) body();
    };
  };
  Run({sparsely([&] { wave(0); }), sparsely([&] { wave(1); })}, AtMost(3, {{still, 9}}));
}

// Two holders of one leaf go on at once: equal tails stay one sequence, unequal ones fork.
TEST_P(IndexConcurrentTest, TwoHoldersExtendOneRunAtOnce) {
  const HolderIndex a = Add(4), b = Add(4), still = Add(12);
  const auto extend = [&](HolderIndex holder) {
    for (size_t at = 4; at < 12; at += 2) Store(holder, at, at + 2);
    Remove(holder, Blocks(prompt_.begin() + 4, prompt_.begin() + 12));
  };
  Run({[&](int) { extend(a); }, [&](int) { extend(b); }}, AtMost(12, {{still, 12}}));
  EXPECT_EQ(index_->HoldingsOf(a).size(), 4u);
  EXPECT_EQ(index_->HoldingsOf(b).size(), 4u);
}

TEST_P(IndexConcurrentTest, AClearThatMeetsASplitLeavesNothingBehind) {
  const HolderIndex clears = Add(), splits = Add(), still = Add(kDepth);
  Run({[&](int) {
         Store(clears, 0, 10);
         Clear(clears);
       },
       [&](int round) {
         const size_t at = 1 + static_cast<size_t>(round) % 9;
         Store(splits, 0, at);
         Remove(splits, Head(at));
       }},
      AtMost(10, {{still, kDepth}}));
  EXPECT_TRUE(index_->HoldingsOf(clears).empty());
  EXPECT_EQ(index_->DigestOf(clears), Digest());
  EXPECT_EQ(index_->Stats().holdings, kDepth);
}

// A holder masked before a query is in no answer to it.
TEST_P(IndexConcurrentTest, AMaskedHolderIsInNoAnswerWhateverItStores) {
  const HolderIndex holder = Add(3), still = Add(6);
  index_->SetMasked(holder, true);
  Run({[&](int) {
        Store(holder, 0, kDepth);
        Remove(holder, Head(2));
        Clear(holder);
      }},
      [&](const Answer& answer) {
        ASSERT_EQ(answer.size(), 1u);
        ASSERT_EQ(answer[0], (Overlap{still, 6}));
      });
}

TEST_P(IndexConcurrentTest, CutsAndDigestsAreBetweenEvents) {
  const HolderIndex holder = Add();
  Digest full;
  for (SequenceHash block : prompt_) full.Add(Tier::kDevice, block);
  Run({[&](int) {
        Store(holder, 0, kDepth);
        Remove(holder, prompt_);
      }},
      [&](const Answer&) {
        const size_t held = index_->HoldingsOf(holder).size();
        ASSERT_TRUE(held == 0 || held == kDepth) << held;
        const Digest digest = index_->DigestOf(holder);
        ASSERT_TRUE(digest == Digest() || digest == full);
        index_->Stats();
      });
}

// Right beside writers even where holes are not: prefixes that grow and shrink have none.
class PrefixesTest : public IndexConcurrentTest {};

// None where the baselines are not linked: the build with pauses tests atlas alone.
std::vector<IndexKind> KindsForPrefixes() {
  const IndexKind* const bitmap = FindIndexKind("host_bitmap");
  return bitmap == nullptr ? std::vector<IndexKind>{} : std::vector<IndexKind>{*bitmap};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PrefixesTest);
INSTANTIATE_TEST_SUITE_P(Structures, PrefixesTest, ::testing::ValuesIn(KindsForPrefixes()),
                         KindName);

TEST_P(PrefixesTest, PrefixesThatGrowAndShrinkAreNeverDeeperThanTheyWere) {
  const HolderIndex a = Add(), b = Add(), still = Add(kDepth);
  const auto grow_and_shrink = [&](HolderIndex holder) {
    Store(holder, 0, 10);
    for (size_t i = 10; i-- > 0;) Remove(holder, {prompt_[i]});
  };
  Run({[&](int) { grow_and_shrink(a); }, [&](int) { grow_and_shrink(b); }},
      AtMost(10, {{still, kDepth}}));
}

}  // namespace
}  // namespace kvatlas
