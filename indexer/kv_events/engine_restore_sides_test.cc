// A worker of a hybrid model that is put down and taken up again, beside its slow twin that never
// was: the same events go to both, and what their sinks hold, their layouts and their trust must be
// the same from then on.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/engine_worker_test_util.h"

namespace kvatlas {
namespace {

constexpr uint64_t kSeeds = 25;
constexpr int kSteps = 100;  // before, and after

struct TestGroup {
  uint32_t id = 0;
  const char* kind = "full_attention";
  uint32_t window = 0;
  uint32_t block_size = 4;
};

// Random events of an engine with these groups, as vLLM would send them: parents are held.
class HybridEngine {
 public:
  HybridEngine(uint64_t seed, std::vector<TestGroup> groups)
      : random_(seed), groups_(std::move(groups)), held_(groups_.size()) {}

  OwnedEvent Next() {
    const uint64_t kind = Below(100);
    const size_t group = Below(groups_.size());
    if (kind == 0) {
      for (auto& held : held_) held.clear();
      return ClearEvent();
    }
    std::map<uint64_t, int>& held = held_[group];
    if (kind < 35 && !held.empty()) {
      const auto it = std::next(held.begin(), static_cast<ptrdiff_t>(Below(held.size())));
      OwnedEvent removed = RemoveEvent({it->first});
      removed.event.group = groups_[group].id;
      if (--it->second == 0) held.erase(it);
      return removed;
    }
    return group == 0 ? StoreMain() : StoreSide(group);
  }

 private:
  struct Block {
    uint64_t parent = 0;  // name
    uint32_t end = 0;     // tokens before its end
    std::vector<TokenId> tokens;
  };
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  OwnedEvent Describe(OwnedEvent event, const TestGroup& group) const {
    event.event.group = group.id;
    event.event.spec_kind = group.kind;
    event.event.block_size = group.block_size;
    if (group.window != 0) event.event.sliding_window = group.window;
    return event;
  }

  // New blocks behind one that is held or from the start, or a held one again.
  OwnedEvent StoreMain() {
    std::map<uint64_t, int>& held = held_[0];
    uint64_t parent = 0;
    std::vector<uint64_t> names;
    std::vector<TokenId> tokens;
    const auto add = [&](uint64_t name) {
      names.push_back(name);
      const Block& block = blocks_.at(name);
      tokens.insert(tokens.end(), block.tokens.begin(), block.tokens.end());
      ++held[name];
    };
    const auto some = [&] {
      return std::next(held.begin(), static_cast<ptrdiff_t>(Below(held.size())))->first;
    };
    if (!held.empty() && Below(6) == 0) {
      const uint64_t again = some();
      parent = blocks_.at(again).parent;
      // Its parent may be gone: then by its own name.
      add(again);
    } else {
      if (!held.empty() && Below(4) != 0) parent = some();
      uint64_t last = parent;
      for (uint64_t left = 1 + Below(4); left > 0; --left) {
        const uint64_t name = random_() | 1;
        Block& block = blocks_[name];
        block.parent = last;
        block.end = (last == 0 ? 0 : blocks_.at(last).end) + 4;
        for (int i = 0; i < 4; ++i) block.tokens.push_back(static_cast<TokenId>(Below(50000)));
        names_.push_back(name);
        add(name);
        last = name;
      }
    }
    return Describe(StoreEvent(names, tokens, parent == 0 ? std::nullopt : std::optional(parent)),
                    groups_[0]);
  }

  // Blocks of a side group: of main blocks that are held, that were, or that were never announced.
  OwnedEvent StoreSide(size_t group) {
    const TestGroup& of = groups_[group];
    std::vector<uint64_t> names;
    for (uint64_t tries = 1 + Below(5); tries > 0; --tries) {
      uint64_t name = random_() | 1;
      if (!names_.empty() && Below(8) != 0) name = names_[Below(names_.size())];
      const auto block = blocks_.find(name);
      if (block != blocks_.end() && block->second.end % of.block_size != 0) continue;
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      names.push_back(name);
      ++held_[group][name];
    }
    // Here vLLM's events of blocks between those that it keeps have no tokens.
    const uint64_t parent = random_() | 1;
    return Describe(StoreEvent(names, {}, parent), of);
  }

  std::mt19937_64 random_;
  const std::vector<TestGroup> groups_;
  std::vector<std::map<uint64_t, int>> held_;  // names to copies, by group
  std::map<uint64_t, Block> blocks_;           // every one that ever was
  std::vector<uint64_t> names_;
};

// The state that another process would restore.
std::unique_ptr<TestWorker> TakenUp(TestWorker& from) {
  auto to = std::make_unique<TestWorker>();
  from->ForEachRank(
      [&](const EngineRankMark& mark) { EXPECT_TRUE((*to)->RestoreRank(mark).ok()); });
  from->ForEachAlias([&](const EngineAlias& alias) {
    EngineAlias of_stream = alias;
    of_stream.stream_rank = 0;
    const absl::Status status = (*to)->Restore(of_stream, /*more=*/true);
    EXPECT_TRUE(status.ok()) << status << " group " << alias.group;
  });
  to->Advance(Duration(0));
  return to;
}

void ExpectSame(TestWorker& restored, TestWorker& twin) {
  EXPECT_EQ(restored.Holdings(), twin.Holdings());
  EXPECT_EQ(restored.SideHoldings(), twin.SideHoldings());
  const EngineRankStats a = restored.RankStats(), b = twin.RankStats();
  EXPECT_EQ(a.layout, b.layout);
  EXPECT_EQ(a.trust, b.trust);
  EXPECT_EQ(a.aliases, b.aliases);
  EXPECT_EQ(a.side_names, b.side_names);
  EXPECT_EQ(a.unjoined, b.unjoined);
  EXPECT_EQ(a.parked, b.parked);
}

void RunSeed(uint64_t seed, const std::vector<TestGroup>& groups) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  HybridEngine engine(seed, groups);
  TestWorker twin;
  for (int step = 0; step < kSteps; ++step) twin.Apply({engine.Next()});
  const std::unique_ptr<TestWorker> restored = TakenUp(twin);
  ExpectSame(*restored, twin);
  for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const OwnedEvent event = engine.Next();
    twin.Apply({event});
    restored->Apply({event});
    ExpectSame(*restored, twin);
  }
}

TEST(RestoreSidesTest, AHybridRankGoesOnAsIfNothingHadHappened) {
  for (uint64_t seed = 1; seed <= kSeeds && !testing::Test::HasFailure(); ++seed)
    RunSeed(seed, {{.id = 0},
                   {.id = 1, .kind = "sliding_window", .window = 9},
                   {.id = 2, .kind = "mamba", .block_size = 8}});
}

TEST(RestoreSidesTest, SoDoesOneWhoseClassHasTwoGroups) {
  for (uint64_t seed = 1; seed <= kSeeds && !testing::Test::HasFailure(); ++seed)
    RunSeed(seed, {{.id = 2},
                   {.id = 0, .kind = "sliding_window", .window = 9},
                   {.id = 1, .kind = "sliding_window", .window = 9}});
}

TEST(RestoreSidesTest, SoDoesOneWithoutFullAttention) {
  for (uint64_t seed = 1; seed <= kSeeds && !testing::Test::HasFailure(); ++seed)
    RunSeed(seed, {{.id = 0, .kind = "sliding_window", .window = 9}});
}

// Blocks of 2 tokens of a window, names in order from the start.
OwnedEvent SmallWindow(const std::vector<uint64_t>& names) {
  OwnedEvent window = StoreEvent(names, Tokens(2 * names.size()));
  window.event.group = 1;
  window.event.block_size = 2;
  window.event.spec_kind = "sliding_window";
  window.event.sliding_window = 3;
  return window;
}
OwnedEvent Main(const std::vector<uint64_t>& names, const std::vector<TokenId>& tokens,
                std::optional<uint64_t> parent = std::nullopt) {
  OwnedEvent main = StoreEvent(names, tokens, parent);
  main.event.group = 0;
  main.event.spec_kind = "full_attention";
  return main;
}

// Side blocks that end inside a main block are named through the names behind them. Some still wait
// for those.
TEST(RestoreSidesTest, NamesThatWaitInsideMainBlocksAreTakenUp) {
  TestWorker from;
  from.Apply({Main({2}, Tokens(4)), SmallWindow({11, 2, 13, 4})});
  ASSERT_EQ(from.RankStats().trust, Trust::kExact);
  const std::unique_ptr<TestWorker> to = TakenUp(from);
  ExpectSame(*to, from);
  EXPECT_EQ(from.RankStats().unjoined, 2u);
  for (TestWorker* worker : {&from, to.get()}) worker->Apply({Main({4}, Tokens(4, 4), 2)});
  ExpectSame(*to, from);
  EXPECT_EQ(to->SideHoldings().size(), 4u);
  EXPECT_EQ(to->RankStats().unjoined, 0u);
  EXPECT_EQ(to->Reach(Tokens(8)), 2u);
}

TEST(RestoreSidesTest, BlocksInsideMainBlocksKeepTheNamesOfAllTheirChains) {
  TestWorker from;
  std::vector<TokenId> other = Tokens(4);
  other[3] = 7777;
  from.Apply({Main({2}, Tokens(4)), Main({5}, other), SmallWindow({11, 2}), SmallWindow({11, 5})});
  ASSERT_EQ(from.RankStats().trust, Trust::kExact);
  ASSERT_EQ(from.SideHoldings().size(), 4u);
  const std::unique_ptr<TestWorker> to = TakenUp(from);
  ExpectSame(*to, from);
  for (TestWorker* worker : {&from, to.get()}) {
    OwnedEvent removed = RemoveEvent({11});
    removed.event.group = 1;
    worker->Apply({removed, removed});
  }
  ExpectSame(*to, from);
  EXPECT_EQ(to->SideHoldings().size(), 2u);
}

}  // namespace
}  // namespace kvatlas
