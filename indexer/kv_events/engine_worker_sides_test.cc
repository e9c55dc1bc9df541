// Engines' events for hybrid models: windows, states, chunks, components.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/base/overlap.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/engine_worker_test_util.h"

namespace kvatlas {
namespace {

OwnedEvent Of(OwnedEvent event, uint32_t group, std::string_view kind,
              std::optional<uint32_t> window = std::nullopt, uint32_t block_size = 4) {
  event.event.group = group;
  event.event.spec_kind = kind;
  event.event.sliding_window = window;
  event.event.block_size = block_size;
  return event;
}
OwnedEvent Full(OwnedEvent event, uint32_t group = 0) {
  return Of(std::move(event), group, "full_attention");
}
OwnedEvent Window(OwnedEvent event, uint32_t group = 1, uint32_t tokens = 8) {
  return Of(std::move(event), group, "sliding_window", tokens);
}
OwnedEvent State(std::vector<uint64_t> names, uint32_t group = 1) {
  // As vLLM tells of a state: one name, the tokens of a whole range, no parent.
  return Of(StoreEvent(std::move(names), Tokens(400, 9000)), group, "mamba");
}
OwnedEvent Gone(std::vector<uint64_t> names, uint32_t group) {
  OwnedEvent event = RemoveEvent(std::move(names));
  event.event.group = group;
  return event;
}

TEST(EngineWorkerSidesTest, AWindowThatWasEvictedEndsThePrefix) {
  TestWorker worker;
  worker.Apply(
      {Full(StoreEvent({1, 2, 3, 4}, Tokens(16))), Window(StoreEvent({1, 2, 3, 4}, Tokens(16)))});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4u);
  worker.Apply({Gone({4}, 1)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 3u);
  EXPECT_EQ(worker.Held(Tokens(16)), 4u);
  worker.Apply({Gone({2}, 1)});  // a window of 8 needs the two blocks before the boundary
  EXPECT_EQ(worker.Reach(Tokens(16)), 1u);
  worker.Apply({Gone({1}, 1)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 0u);
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

TEST(EngineWorkerSidesTest, ASideGroupMayComeBeforeTheMainOneItIsNamedAfter) {
  TestWorker worker;
  worker.Apply({State({2}, 0), Full(StoreEvent({1, 2, 3}, Tokens(12)), 1)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 2u);
  EXPECT_TRUE(worker.layout().has_main);
  TestWorker apart;
  apart.Apply({State({2}, 0)});
  apart.Apply({Full(StoreEvent({1, 2, 3}, Tokens(12)), 1)});
  EXPECT_EQ(apart.Reach(Tokens(12)), 2u);
  EXPECT_EQ(apart.RankStats().unjoined, 0u);
}

TEST(EngineWorkerSidesTest, ASideBlockOutlivesItsMainBlockAndCountsAgainWithIt) {
  TestWorker worker;
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8))), State({2})});
  worker.Apply({Gone({2}, 0)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
  worker.Apply({Full(StoreEvent({2}, Tokens(4, 4), 1))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
}

TEST(EngineWorkerSidesTest, ACopyOfOneGroupCountsThoughTheMainBlockHasGone) {
  TestWorker worker;
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8))), Window(StoreEvent({1, 2}, Tokens(8)), 1),
                Window(StoreEvent({1, 2}, Tokens(8)), 2)});
  worker.Apply({Gone({2}, 0)});
  const auto all = worker.SideHoldings();
  EXPECT_EQ(all.size(), 2u);
  worker.Apply({Gone({2}, 2)});
  EXPECT_EQ(worker.SideHoldings().size(), 1u);
  worker.Apply({Window(StoreEvent({2}, Tokens(4, 4), 1), 2)});
  EXPECT_EQ(worker.SideHoldings(), all);
  EXPECT_EQ(worker.RankStats().unjoined, 0u);
  worker.Apply({Full(StoreEvent({2}, Tokens(4, 4), 1))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
}

TEST(EngineWorkerSidesTest, TwoSideStoresNeedTwoRemovals) {
  TestWorker worker;
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8))), State({2}), State({2})});
  worker.Apply({Gone({2}, 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({Gone({2}, 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
}

TEST(EngineWorkerSidesTest, GroupsOfOneClassHoldABlockTogether) {
  TestWorker worker;
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8))), Window(StoreEvent({1, 2}, Tokens(8)), 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({Window(StoreEvent({1}, Tokens(4)), 2)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1u);
  worker.Apply({Window(StoreEvent({2}, Tokens(4, 4), 1), 2)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  EXPECT_EQ(worker.layout().sides.size(), 1u);
}

TEST(EngineWorkerSidesTest, ChunksNeedTheirSizeAndWithoutItAWholePrefix) {
  const auto events = [] {
    return std::vector<OwnedEvent>{
        Full(StoreEvent({1, 2, 3}, Tokens(12))),
        Of(StoreEvent({3}, Tokens(4, 8), 2), 1, "chunked_local_attention")};
  };
  TestWorker unknown;
  unknown.Apply(events());
  EXPECT_EQ(unknown.Reach(Tokens(12)), 0u);
  EXPECT_EQ(unknown.trust(), Trust::kDegraded);
  TestWorker known({.chunk_tokens = 8});
  known.Apply(events());
  EXPECT_EQ(known.Reach(Tokens(12)), 3u);
  EXPECT_EQ(known.trust(), Trust::kExact);
}

TEST(EngineWorkerSidesTest, DroppedBlocksAreThoseOfTheGroupsThatAreRegistered) {
  TestWorker all({.drops_last = std::vector<uint32_t>{}});
  all.Apply({Full(StoreEvent({1, 2, 3}, Tokens(12)))});
  EXPECT_EQ(all.Reach(Tokens(12)), 2u);
  TestWorker other({.drops_last = std::vector<uint32_t>{7}});
  other.Apply({Full(StoreEvent({1, 2, 3}, Tokens(12)))});
  EXPECT_EQ(other.Reach(Tokens(12)), 3u);
}

TEST(EngineWorkerSidesTest, AWindowAloneIsPlacedByItsTokens) {
  TestWorker worker;
  worker.Apply({Window(StoreEvent({1, 2, 3, 4}, Tokens(16)), 0)});
  EXPECT_FALSE(worker.layout().has_main);
  worker.Apply({Gone({1}, 0), Gone({2}, 0)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4u);
  EXPECT_EQ(worker.Held(Tokens(16)), 0u);
  worker.Apply({Gone({3}, 0)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 0u);
}

TEST(EngineWorkerSidesTest, AMainGroupThatComesLateTakesItsPlace) {
  TestWorker worker;
  worker.Apply({Window(StoreEvent({1, 2}, Tokens(8)), 0)});
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8)), 1)});
  EXPECT_TRUE(worker.layout().has_main);
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({Gone({2}, 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1u);
  worker.Apply({Gone({1}, 0)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
}

TEST(EngineWorkerSidesTest, ReportsOfHitsNeverClaimWindowBlocks) {
  TestWorker worker({.counts_copies = false});
  worker.Apply(
      {Full(StoreEvent({1, 2, 3}, Tokens(12))), Window(StoreEvent({1, 2, 3}, Tokens(12)))});
  EXPECT_EQ(worker.Reach(Tokens(12)), 0u);
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
}

TEST(EngineWorkerSidesTest, PartsOfBlocksAreNoMistakeOfHybrids) {
  TestWorker worker;
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8))),
                Of(StoreEvent({11, 1}, Tokens(4)), 1, "sliding_window", 8, 2),
                Of(StoreEvent({12}, Tokens(2, 8), 2), 0, "full_attention", std::nullopt, 2)});
  EXPECT_EQ(worker.Refused(Refusal::kPartBlock), 1u);
  EXPECT_EQ(worker.Refused(Refusal::kBlockSize), 0u);
}

// vLLM's fine-grained hits: full attention in blocks of 4 tokens, states in blocks of 8.
TEST(EngineWorkerSidesTest, AStateInsideABlockOfItsClassCountsBesideFullAttentionAlone) {
  const auto state = [](std::vector<uint64_t> names, std::vector<TokenId> tokens,
                        std::optional<uint64_t> parent, uint32_t block_size) {
    return Of(StoreEvent(std::move(names), std::move(tokens), parent), 1, "mamba", std::nullopt,
              block_size);
  };
  TestWorker worker;
  worker.Apply({Full(StoreEvent({1, 2, 3}, Tokens(12))), state({2}, Tokens(8), std::nullopt, 8)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 2u);
  worker.Apply({state({3}, Tokens(4, 8), 2, 4)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 3u);
  EXPECT_EQ(worker.Refused(Refusal::kPartBlock), 0u);
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Apply({Gone({3}, 1)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 2u);
  // Its main block comes later.
  worker.Apply({state({4}, Tokens(4, 12), 2, 8), state({5}, Tokens(4, 16), 4, 4),
                Full(StoreEvent({4, 5}, Tokens(8, 12), 3))});
  EXPECT_EQ(worker.Reach(Tokens(20)), 5u);
  EXPECT_EQ(worker.Reach(Tokens(16)), 4u);
  // Beside a window vLLM reuses no such state, unless everything has blocks of one size.
  TestWorker window;
  window.Apply({Full(StoreEvent({1, 2, 3}, Tokens(12))), state({2}, Tokens(8), std::nullopt, 8),
                state({3}, Tokens(4, 8), 2, 4),
                Of(StoreEvent({1, 2, 3}, Tokens(12)), 2, "sliding_window", 4, 4)});
  EXPECT_EQ(window.Reach(Tokens(12)), 2u);
}

TEST(EngineWorkerSidesTest, ARestartForgetsTheClasses) {
  TestWorker worker;
  worker.Apply({Full(StoreEvent({1}, Tokens(4))), Window(StoreEvent({1}, Tokens(4)))});
  worker->Restarted(0, worker.now());
  EXPECT_TRUE(worker.layout().plain());
  worker.Apply({Full(StoreEvent({1}, Tokens(4)))});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1u);
}

TEST(EngineWorkerSidesTest, AClearTakesEveryClass) {
  TestWorker worker;
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8))), Window(StoreEvent({1, 2}, Tokens(8)))});
  worker.Apply({ClearEvent()});
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8)))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
  worker.Apply({Window(StoreEvent({1, 2}, Tokens(8)))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
}

TEST(EngineWorkerSidesTest, WhatALossMayHaveTakenGoesWithItsTime) {
  TestWorker worker({.repair_timeout = std::chrono::seconds(30)});
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8))), Window(StoreEvent({1, 2}, Tokens(8)))});
  worker->Lost(0, worker.now());
  worker.Apply({Full(StoreEvent({1, 2}, Tokens(8)))});
  worker.Advance(std::chrono::seconds(31));
  worker.Advance(std::chrono::seconds(1));
  EXPECT_EQ(worker.Held(Tokens(8)), 2u);
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
}

// ---- SGLang's components ----

OwnedEvent Components(OwnedEvent event, ComponentForm form, uint8_t components) {
  event.event.component_form = form;
  event.event.components = components;
  return event;
}

TEST(EngineWorkerSidesTest, ASnapshotOfComponentsReplacesTheOneBefore) {
  TestWorker worker({.window_tokens = 8});
  const auto stored = [](uint8_t components) {
    return Components(StoreEvent({1, 2}, Tokens(8)), ComponentForm::kSnapshot, components);
  };
  worker.Apply({stored(kComponentFull | kComponentSwa)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({stored(kComponentFull)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
  EXPECT_EQ(worker.Held(Tokens(8)), 2u);
}

TEST(EngineWorkerSidesTest, ASnapshotOfComponentsIsNoSecondCopy) {
  TestWorker worker;
  const auto stored = [](uint8_t components) {
    return Components(StoreEvent({1, 2}, Tokens(8)), ComponentForm::kSnapshot, components);
  };
  worker.Apply({stored(kComponentFull | kComponentMamba), stored(kComponentFull),
                stored(kComponentFull | kComponentMamba)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Held(Tokens(8)), 1u) << "one removal is of all";
  EXPECT_EQ(worker.Reach(Tokens(8)), 1u);
}

TEST(EngineWorkerSidesTest, ASnapshotOfComponentsThatIsParkedIsNoSecondCopy) {
  TestWorker worker;
  const auto second = [] {
    return Components(StoreEvent({2}, Tokens(4, 4), 1), ComponentForm::kSnapshot, kComponentFull);
  };
  worker.Apply({second(), second()});
  worker.Apply({Components(StoreEvent({1}, Tokens(4)), ComponentForm::kSnapshot, kComponentFull)});
  EXPECT_EQ(worker.Held(Tokens(8)), 2u);
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Held(Tokens(8)), 1u);
}

TEST(EngineWorkerSidesTest, AComponentByItselfNeverTouchesTheMainClass) {
  TestWorker worker;
  worker.Apply({Components(StoreEvent({1, 2}, Tokens(8)), ComponentForm::kOne, kComponentFull),
                // The page of a state, under the same name, with a root's parent.
                Components(StoreEvent({2}, Tokens(4, 4)), ComponentForm::kOne, kComponentMamba)});
  EXPECT_EQ(worker.Held(Tokens(8)), 2u);
  EXPECT_EQ(worker.Held(Tokens(4, 4)), 0u);
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u);
  worker.Apply({Components(RemoveEvent({2}), ComponentForm::kOne, kComponentMamba)});
  EXPECT_EQ(worker.Held(Tokens(8)), 2u);
  EXPECT_EQ(worker.Reach(Tokens(8)), 0u);
}

TEST(EngineWorkerSidesTest, AnEngineThatSaysNothingOfItsWindowIsNotExact) {
  TestWorker worker({.window_tokens = 8});
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u) << "at most";
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker.Apply({ClearEvent()});
  EXPECT_EQ(worker.trust(), Trust::kExact) << "nothing is held";
  worker.Apply({Components(StoreEvent({1, 2}, Tokens(8)), ComponentForm::kSnapshot,
                           kComponentFull | kComponentSwa)});
  EXPECT_EQ(worker.trust(), Trust::kExact);
  TestWorker vllm({.window_tokens = 8});
  vllm.Apply({Of(StoreEvent({1, 2}, Tokens(8)), 0, "full_attention", std::nullopt, 4)});
  EXPECT_EQ(vllm.trust(), Trust::kExact) << "its groups say it";
}

TEST(EngineWorkerSidesTest, AHybridWhoseEventsTellOfFullAttentionAloneIsNotExact) {
  TestWorker worker({.hybrid = true});
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2u) << "at most";
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker.Apply({ClearEvent()});
  EXPECT_EQ(worker.trust(), Trust::kExact) << "nothing is held";
  worker.Apply({StoreEvent({3}, Tokens(4))});
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
}

TEST(EngineWorkerSidesTest, AHybridIsExactOnceItsEventsTellOfAClass) {
  TestWorker states({.hybrid = true});
  states.Apply({Components(StoreEvent({1, 2}, Tokens(8)), ComponentForm::kOne, kComponentFull)});
  EXPECT_EQ(states.Reach(Tokens(8)), 2u);
  EXPECT_EQ(states.trust(), Trust::kDegraded) << "a state may be missing";
  states.Apply({Components(StoreEvent({2}, Tokens(4, 4)), ComponentForm::kOne, kComponentMamba)});
  EXPECT_EQ(states.Reach(Tokens(8)), 2u);
  EXPECT_EQ(states.trust(), Trust::kExact);
  TestWorker groups({.hybrid = true});
  groups.Apply({Of(StoreEvent({1, 2}, Tokens(8)), 0, "full_attention", std::nullopt, 4)});
  EXPECT_EQ(groups.trust(), Trust::kDegraded);
  groups.Apply({Of(StoreEvent({2}, Tokens(8)), 1, "mamba", std::nullopt, 4)});
  EXPECT_EQ(groups.trust(), Trust::kExact);
  EXPECT_EQ(groups.Reach(Tokens(8)), 2u);
}

// ---- The slow twin: an engine that remembers what every group holds ----

struct TestGroup {
  std::string kind;
  uint32_t block_size = 4;
  uint32_t window = 0;  // tokens, the next one included
};

class TestEngine {
 public:
  explicit TestEngine(std::vector<TestGroup> groups) : groups_(std::move(groups)) {
    held_.resize(groups_.size());
  }

  // The name of the block that ends after so many tokens of a prompt.
  static uint64_t NameAt(const std::vector<TokenId>& prompt, size_t end) {
    uint64_t name = 1469598103934665603;
    for (size_t i = 0; i < end; ++i) name = (name ^ (prompt[i] + 1)) * 1099511628211;
    return name ^ end << 48;
  }

  // Blocks of tokens [from, to) are computed; both are multiples of every block size.
  std::vector<OwnedEvent> Compute(const std::vector<TokenId>& prompt, size_t from, size_t to) {
    std::vector<OwnedEvent> events;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const TestGroup& group = groups_[g];
      std::vector<uint64_t> names;
      for (size_t end = from + group.block_size; end <= to; end += group.block_size) {
        names.push_back(NameAt(prompt, end));
        ++held_[g][names.back()];
      }
      std::optional<uint64_t> parent;
      if (from > 0) parent = NameAt(prompt, from);
      OwnedEvent event = StoreEvent(names,
                                    {prompt.begin() + static_cast<std::ptrdiff_t>(from),
                                     prompt.begin() + static_cast<std::ptrdiff_t>(to)},
                                    parent);
      events.push_back(Of(std::move(event), static_cast<uint32_t>(g), group.kind,
                          group.window == 0 ? std::nullopt : std::optional(group.window),
                          group.block_size));
    }
    return events;
  }

  // Something is evicted.
  std::vector<OwnedEvent> Evict(std::mt19937_64* random) {
    const size_t g = (*random)() % groups_.size();
    if (held_[g].empty()) return {};
    auto it = held_[g].lower_bound((*random)());
    if (it == held_[g].end()) it = held_[g].begin();
    const uint64_t name = it->first;
    if (--it->second == 0) held_[g].erase(it);
    return {Gone({name}, static_cast<uint32_t>(g))};
  }

  // Some side blocks end inside main ones.
  bool HasInnerEnds() const {
    return std::any_of(groups_.begin(), groups_.end(), [](const TestGroup& group) {
      return group.kind == "sliding_window" && group.block_size % 4 != 0;
    });
  }

  uint32_t Reusable(const std::vector<TokenId>& prompt) const {
    uint32_t best = 0;
    for (size_t length = 4; length <= prompt.size(); length += 4)
      if (Accepts(prompt, length)) best = static_cast<uint32_t>(length / 4);
    return best;
  }

 private:
  bool Accepts(const std::vector<TokenId>& prompt, size_t length) const {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const TestGroup& group = groups_[g];
      if (length % group.block_size != 0) return false;
      size_t from = 0;
      if (group.kind == "mamba") from = length - group.block_size;
      if (group.kind == "sliding_window") {
        const size_t blocks =
            std::max<size_t>(1, (group.window - 1 + group.block_size - 1) / group.block_size);
        from = length - std::min(length, blocks * group.block_size);
      }
      for (size_t end = from + group.block_size; end <= length; end += group.block_size)
        if (!held_[g].contains(NameAt(prompt, end))) return false;
    }
    return true;
  }

  const std::vector<TestGroup> groups_;
  std::vector<std::map<uint64_t, uint32_t>> held_;  // copies
};

class RandomSidesTest : public testing::TestWithParam<std::vector<TestGroup>> {};

TEST_P(RandomSidesTest, EqualsAnEngineThatRemembersEveryGroup) {
  uint64_t asked = 0, under = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random(seed);
    TestEngine engine(GetParam());
    TestWorker worker;
    std::vector<std::vector<TokenId>> prompts;
    for (int step = 0; step < 120; ++step) {
      if (random() % 3 != 0) {
        for (uint64_t i = random() % 6; i > 0; --i) worker.Apply(engine.Evict(&random));
      } else {
        // Prompts branch off from others, and are computed in chunks of 48 tokens.
        std::vector<TokenId> prompt;
        if (!prompts.empty() && random() % 4 != 0) {
          prompt = prompts[random() % prompts.size()];
          prompt.resize(random() % (prompt.size() + 1));
        }
        const size_t size = 48 * (1 + random() % 4);
        while (prompt.size() < size) prompt.push_back(static_cast<TokenId>(random() % 5));
        prompt.resize(size);
        const size_t cached = engine.Reusable(prompt) * 4 / 48 * 48;
        for (size_t from = cached; from < size; from += 48) {
          std::vector<OwnedEvent> events = engine.Compute(prompt, from, from + 48);
          if (random() % 2 == 0) std::reverse(events.begin(), events.end());
          worker.Apply(events);
        }
        prompts.push_back(std::move(prompt));
      }
      if (step % 4 != 0) continue;
      for (const std::vector<TokenId>& prompt : prompts) {
        const size_t reach = worker.Reach(prompt);
        const uint32_t reusable = engine.Reusable(prompt);
        ASSERT_LE(reach, reusable) << "seed " << seed << " step " << step;
        // A block inside a main block that chains share and one of them stored again.
        if (engine.HasInnerEnds()) {
          ++asked;
          under += reach < reusable;
        } else {
          ASSERT_EQ(reach, reusable) << "seed " << seed << " step " << step;
        }
      }
    }
  }
  EXPECT_LE(under * 50, asked);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RandomSidesTest,
    testing::Values(
        std::vector<TestGroup>{{"full_attention"}, {"sliding_window", 4, 12}},
        std::vector<TestGroup>{{"mamba"}, {"full_attention"}},
        std::vector<TestGroup>{{"full_attention"}, {"mamba"}, {"sliding_window", 4, 30}},
        std::vector<TestGroup>{
            {"full_attention"}, {"sliding_window", 4, 12}, {"sliding_window", 4, 12}},
        std::vector<TestGroup>{{"full_attention"}, {"full_attention"}, {"sliding_window", 4, 7}},
        std::vector<TestGroup>{{"sliding_window", 8, 20}, {"full_attention"}},
        std::vector<TestGroup>{{"full_attention"}, {"mamba", 16}},
        std::vector<TestGroup>{{"full_attention"}, {"sliding_window", 2, 7}},
        std::vector<TestGroup>{{"sliding_window", 6, 20}, {"full_attention"}},
        std::vector<TestGroup>{{"sliding_window", 4, 12}}));

}  // namespace
}  // namespace kvatlas
