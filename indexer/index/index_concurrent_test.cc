// Threads write and ask at once: no answer is above the largest overlap that was true at some instant
// of the query, and holders that nobody writes are exact.
//
// KVATLAS_ROUNDS=N sets the length (`index_concurrent_long_test`).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "indexer/index/index.h"

namespace kvatlas {
namespace {

using Blocks = std::vector<SequenceHash>;

constexpr size_t kDepth = 16;

int Rounds() {
  const char* const rounds = std::getenv("KVATLAS_ROUNDS");
  return rounds == nullptr ? 3'000 : std::atoi(rounds);
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

class IndexConcurrentTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  using Answer = std::vector<Overlap>;

  IndexConcurrentTest() : index_(*MakeIndex(GetParam(), {})), prompt_(Prompt()) {}
  ~IndexConcurrentTest() override { EXPECT_TRUE(index_->Check().ok()) << index_->Check(); }

  HolderIndex Add(const Blocks& blocks = {}) {
    const HolderIndex holder = *index_->AddHolder();
    Store(holder, blocks);
    return holder;
  }
  void Store(HolderIndex holder, const Blocks& blocks, Tier tier = Tier::kDevice) {
    index_
        ->Apply(holder, Stored{.tier = tier, .position = 0, .parent = kNoParent, .blocks = blocks},
                nullptr)
        .IgnoreError();
  }
  void Remove(HolderIndex holder, const Blocks& blocks, Tier tier = Tier::kDevice) {
    index_->Apply(holder, Removed{.tier = tier, .blocks = blocks}, nullptr).IgnoreError();
  }
  void Clear(HolderIndex holder) { index_->Apply(holder, Cleared{}, nullptr).IgnoreError(); }
  Blocks Head(size_t blocks) const { return Blocks(prompt_.begin(), prompt_.begin() + blocks); }

  // Writers run `Rounds()` rounds each; two readers ask until all of them are done.
  void Run(const std::vector<std::function<void(int round)>>& writers,
           const std::function<void(const Answer&)>& check) {
    std::atomic<size_t> running{writers.size()};
    std::vector<std::thread> threads;
    for (const auto& writer : writers) {
      threads.emplace_back([&] {
        for (int round = 0; round < Rounds(); ++round) writer(round);
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

INSTANTIATE_TEST_SUITE_P(Structures, IndexConcurrentTest, ::testing::ValuesIn(WholeIndexNames()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(IndexConcurrentTest, ABlockLostBeforeTheNextIsStoredIsNotAddedToIt) {
  const HolderIndex holder = Add(), still = Add(prompt_);
  Run({[&](int) {
        Store(holder, {prompt_[0]});
        Remove(holder, {prompt_[0]});
        Store(holder, {prompt_[1]});
        Remove(holder, {prompt_[1]});
      }},
      AtMost(1, {{still, kDepth}}));
}

TEST_P(IndexConcurrentTest, EvenOrOddBlocksAreNeverARun) {
  const HolderIndex a = Add(), b = Add(), still = Add(Head(5));
  const Blocks even = EverySecond(prompt_, 0), odd = EverySecond(prompt_, 1);
  const auto alternate = [&](HolderIndex holder) {
    Store(holder, even);
    Remove(holder, even);
    Store(holder, odd);
    Clear(holder);
  };
  Run({[&](int) { alternate(a); }, [&](int) { alternate(b); }}, AtMost(1, {{still, 5}}));
}

TEST_P(IndexConcurrentTest, ASlidingWindowIsNeverDeeperThanItIsWide) {
  const HolderIndex holder = Add();
  Run({[&](int) {
        Store(holder, Head(3));
        for (size_t i = 3; i < kDepth; ++i) {
          Remove(holder, {prompt_[i - 3]});
          Store(holder, {prompt_[i]});
        }
        Clear(holder);
      }},
      AtMost(3));
}

TEST_P(IndexConcurrentTest, TiersOfABlockMoveWithoutAHole) {
  const HolderIndex holder = Add(Head(4));
  Run({[&](int) {
        Store(holder, Head(4), Tier::kHost);
        Remove(holder, Head(4), Tier::kDevice);
        Store(holder, Head(4), Tier::kDevice);
        Remove(holder, Head(4), Tier::kHost);
      }},
      AtMost(4, {{holder, 4}}));
}

TEST_P(IndexConcurrentTest, AReusedNumberDoesNotInheritBlocks) {
  const HolderIndex still = Add(Head(7));
  const Blocks tail(prompt_.begin() + 3, prompt_.end());
  Run({[&](int round) {
        const HolderIndex holder = Add(round % 2 == 0 ? Head(3) : tail);
        index_->RemoveHolder(holder);
      }},
      AtMost(3, {{still, 7}}));
}

TEST_P(IndexConcurrentTest, SetsOfManyHoldersChangeTheirFormUnderReaders) {
  std::vector<HolderIndex> holders;
  for (int i = 0; i < 140; ++i) holders.push_back(Add());
  const HolderIndex still = Add(Head(9));
  const auto wave = [&](size_t first) {
    for (size_t i = first; i < holders.size(); i += 2) Store(holders[i], Head(i % 4));
    for (size_t i = first; i < holders.size(); i += 2) Clear(holders[i]);
  };
  const auto sparsely = [](const std::function<void()>& body) {
    return [body](int round) {
      if (round % 64 == 0) body();
    };
  };
  Run({sparsely([&] { wave(0); }), sparsely([&] { wave(1); })}, AtMost(3, {{still, 9}}));
}

TEST_P(IndexConcurrentTest, CutsAndDigestsAreBetweenEvents) {
  const HolderIndex holder = Add();
  Digest full;
  for (SequenceHash block : prompt_) full.Add(Tier::kDevice, block);
  Run({[&](int) {
        Store(holder, prompt_);
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

// ---- Random writers, checked against what each one knows was true, and when ----

// One event of one holder: from `begin` to `end` on a clock that all threads share, the overlap went
// from `before` to `after` and, since an event only adds or only removes, was never above both.
struct Step {
  uint64_t begin;
  uint64_t end;
  uint32_t before;
  uint32_t after;
};

struct Seen {
  uint64_t begin;
  uint64_t end;
  Overlap overlap;
};

// The largest overlap that was true between `begin` and `end`.
uint32_t LargestTrue(const std::vector<Step>& steps, uint64_t begin, uint64_t end) {
  uint32_t largest = 0;
  const auto is_over = [&](const Step& step) { return step.end < begin; };
  auto step = std::partition_point(steps.begin(), steps.end(), is_over);
  if (step != steps.begin()) largest = std::prev(step)->after;
  for (; step != steps.end() && step->begin < end; ++step) {
    largest = std::max({largest, step->before, step->after});
  }
  return largest;
}

class RandomWriter {
 public:
  RandomWriter(Index* index, const Blocks& prompt, std::atomic<uint64_t>* clock, uint32_t seed)
      : holder(*index->AddHolder()), index_(index), prompt_(prompt), clock_(clock), random_(seed) {}

  void Write() {
    const uint32_t before = Overlap();
    const Event event = Next();
    const uint32_t after = Overlap();
    const uint64_t begin = clock_->fetch_add(1);
    index_->Apply(holder, event, nullptr).IgnoreError();
    steps.push_back(
        {.begin = begin, .end = clock_->fetch_add(1), .before = before, .after = after});
  }

  const HolderIndex holder;
  std::vector<Step> steps;

 private:
  uint32_t Overlap() const {
    uint32_t depth = 0;
    while (depth < prompt_.size() && held_.count(depth) != 0) ++depth;
    return depth;
  }

  // An event, already applied to `held_`.
  Event Next() {
    if (random_() % 12 == 0) {
      held_.clear();
      return Cleared{};
    }
    const bool add = random_() % 2 == 0;
    Blocks blocks;
    for (uint64_t left = 1 + random_() % 5; left > 0; --left) {
      // The first blocks most often: what happens there decides the overlap.
      const size_t at = random_() % (1 + random_() % prompt_.size());
      blocks.push_back(prompt_[at]);
      if (add) held_.insert(at);
      if (!add) held_.erase(at);
    }
    if (add) return Stored{.blocks = blocks};
    return Removed{.blocks = blocks};
  }

  Index* const index_;
  const Blocks& prompt_;
  std::atomic<uint64_t>* const clock_;
  std::mt19937_64 random_;
  std::set<size_t> held_;
};

TEST_P(IndexConcurrentTest, RandomWritersAreNeverOverCounted) {
  std::atomic<uint64_t> clock{0};
  std::vector<std::unique_ptr<RandomWriter>> writers;
  std::vector<std::function<void(int)>> rounds;
  for (uint32_t i = 0; i < 4; ++i) {
    writers.push_back(std::make_unique<RandomWriter>(index_.get(), prompt_, &clock, i + 1));
    rounds.push_back([writer = writers.back().get()](int) { writer->Write(); });
  }
  // `Run`'s readers keep the writers company; two more keep what they saw.
  std::atomic<bool> done{false};
  std::vector<Seen> seen[2];
  std::vector<std::thread> readers;
  for (std::vector<Seen>& mine : seen) {
    readers.emplace_back([&] {
      Answer answer;
      do {
        answer.clear();
        const uint64_t begin = clock.fetch_add(1);
        index_->FindOverlaps({.blocks = prompt_}, &answer);
        const uint64_t end = clock.fetch_add(1);
        for (const Overlap& overlap : answer) mine.push_back({begin, end, overlap});
      } while (!done.load(std::memory_order_relaxed));
    });
  }
  Run(rounds, AtMost(kDepth));
  done.store(true, std::memory_order_relaxed);
  for (std::thread& reader : readers) reader.join();
  for (const std::vector<Seen>& each : seen) {
    for (const Seen& one : each) {
      const std::vector<Step>& steps = writers[Raw(one.overlap.holder)]->steps;
      ASSERT_LE(one.overlap.blocks, LargestTrue(steps, one.begin, one.end))
          << "holder " << Raw(one.overlap.holder) << " at " << one.begin << ".." << one.end;
    }
  }
  // At rest the answer is exact.
  Answer answer;
  index_->FindOverlaps({.blocks = prompt_}, &answer);
  for (const auto& writer : writers) {
    const uint32_t last = writer->steps.back().after;
    const bool is_there =
        std::count(answer.begin(), answer.end(), Overlap{writer->holder, last}) == 1;
    EXPECT_EQ(is_there, last > 0);
  }
}

}  // namespace
}  // namespace kvatlas
