#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/test_seed.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

const Domain kDomain{"m", ""};

std::vector<SequenceHash> Prompt(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> prompt;
  for (uint64_t i = 0; i < blocks; ++i) prompt.push_back(SequenceHash{first + i});
  return prompt;
}

class SharedStoresTest : public testing::Test {
 protected:
  SharedStoresTest() {
    HolderRegistryOptions options;
    options.contract_id = "xxh3-chain-1:1337";
    options.clock = &clock_;
    registry_ = std::make_unique<HolderRegistry>(options);
  }

  std::unique_ptr<HolderHandle> Add(const std::string& name, const std::string& label,
                                    const std::string& store) {
    HolderInfo info{.id = {name, 0, ""}, .address = "", .labels = {}};
    if (!label.empty()) info.labels.emplace_back(label, store);
    return *registry_->AddLocal(kDomain, 16, info);
  }
  std::unique_ptr<HolderHandle> AddWorker(const std::string& name, const std::string& store = "s") {
    return Add(name, "store", store);
  }
  std::unique_ptr<HolderHandle> AddStore(const std::string& name, const std::string& store = "s") {
    return Add(name, "holds_store", store);
  }

  static void Store(HolderHandle* holder, const std::vector<SequenceHash>& prompt,
                    const std::vector<size_t>& blocks, Tier tier = Tier::kDevice) {
    for (const size_t i : blocks) {
      ASSERT_TRUE(holder
                      ->Apply(Stored{.tier = tier,
                                     .position = static_cast<Position>(i),
                                     .parent = i == 0 ? kNoParent : prompt[i - 1],
                                     .blocks = {prompt[i]}})
                      .ok());
    }
  }

  OverlapAnswer Ask(const std::vector<SequenceHash>& prompt, bool all = false) {
    return *registry_->FindOverlaps(kDomain, {.blocks = prompt}, all);
  }
  // By name: own blocks, and with the store's.
  std::map<std::string, std::pair<uint32_t, uint32_t>> Found(const OverlapAnswer& answer) {
    std::map<std::string, std::pair<uint32_t, uint32_t>> found;
    for (const HolderOverlap& overlap : answer.holders)
      found[overlap.holder->id.name] = {overlap.blocks, overlap.loadable};
    return found;
  }

  ManualClock clock_;
  std::unique_ptr<HolderRegistry> registry_;
};

using testing::ElementsAre;
using testing::Pair;

TEST_F(SharedStoresTest, AWorkerLoadsWhatItsStoreHasBehindItsOwn) {
  const auto prompt = Prompt(100, 8);
  const auto a = AddWorker("a"), b = AddWorker("b"), other = AddWorker("c", "t");
  const auto none = Add("d", "", "");
  const auto store = AddStore("store:s");
  Store(a.get(), prompt, {0, 1});
  Store(none.get(), prompt, {0});
  Store(other.get(), prompt, {0});
  Store(store.get(), prompt, {0, 1, 2, 3, 4}, Tier::kExternal);
  EXPECT_THAT(Found(Ask(prompt)), ElementsAre(Pair("a", Pair(2, 5)), Pair("b", Pair(0, 5)),
                                              Pair("c", Pair(1, 1)), Pair("d", Pair(1, 1))))
      << "the store is no worker, and b is told of though it holds nothing";
}

// No prefix is assumed of a store.
TEST_F(SharedStoresTest, AStoreMayHaveBlocksThreeAndFiveAlone) {
  const auto prompt = Prompt(100, 8);
  const auto a = AddWorker("a"), b = AddWorker("b"), c = AddWorker("c");
  const auto store = AddStore("store:s");
  Store(store.get(), prompt, {3, 5}, Tier::kExternal);
  Store(a.get(), prompt, {0, 1, 2});
  Store(b.get(), prompt, {0, 1, 2, 4}, Tier::kHost);
  Store(c.get(), prompt, {0, 1, 2, 4});
  EXPECT_THAT(Found(Ask(prompt)),
              ElementsAre(Pair("a", Pair(3, 4)), Pair("b", Pair(3, 6)), Pair("c", Pair(3, 4))))
      << "what is on the device behind a hole is not reused";
}

TEST_F(SharedStoresTest, NothingIsSurerThanTheStore) {
  const auto prompt = Prompt(100, 4);
  const auto a = AddWorker("a");
  const auto store = AddStore("store:s");
  Store(a.get(), prompt, {0});
  Store(store.get(), prompt, {0, 1}, Tier::kExternal);
  store->SetTrust(Trust::kDegraded);
  const OverlapAnswer answer = Ask(prompt);
  ASSERT_EQ(answer.holders.size(), 1u);
  EXPECT_EQ(answer.holders[0].trust, Trust::kExact) << "of its own blocks";
  EXPECT_EQ(answer.holders[0].loadable_trust, Trust::kDegraded);
  store->SetTrust(Trust::kStale);
  EXPECT_THAT(Found(Ask(prompt)), ElementsAre(Pair("a", Pair(1, 1))));
}

TEST_F(SharedStoresTest, WhatTiersAreAskedForDecides) {
  const auto prompt = Prompt(100, 4);
  const auto a = AddWorker("a");
  const auto store = AddStore("store:s");
  Store(a.get(), prompt, {0});
  Store(store.get(), prompt, {1}, Tier::kExternal);
  const auto found = [&](TierMask tiers) {
    return Found(*registry_->FindOverlaps(kDomain, {.blocks = prompt, .tiers = tiers}));
  };
  EXPECT_THAT(found(Tier::kDevice), ElementsAre(Pair("a", Pair(1, 1))));
  EXPECT_THAT(found(TierMask(Tier::kDevice) | Tier::kExternal), ElementsAre(Pair("a", Pair(1, 2))));
}

TEST_F(SharedStoresTest, AStoreThatIsGoneIsInNoAnswer) {
  const auto prompt = Prompt(100, 4);
  const auto a = AddWorker("a");
  auto store = AddStore("store:s");
  Store(store.get(), prompt, {0, 1}, Tier::kExternal);
  EXPECT_THAT(Found(Ask(prompt)), ElementsAre(Pair("a", Pair(0, 2))));
  store->SetMasked(true);
  EXPECT_TRUE(Ask(prompt).holders.empty());
  store->SetMasked(false);
  store.reset();
  EXPECT_TRUE(Ask(prompt).holders.empty());
}

// Behind what is on the device chunks are loaded whole, from wherever their blocks are.
TEST_F(SharedStoresTest, ChunksAreRoundedBehindTheStore) {
  const auto prompt = Prompt(100, 12);
  const auto a = AddWorker("a");
  a->SetLayout({.main = {.block_size = 16, .window_tokens = 64}, .sides = {}});
  const auto store = AddStore("store:s");
  Store(store.get(), prompt, {0, 1, 2, 3, 4, 5, 6}, Tier::kExternal);
  EXPECT_THAT(Found(Ask(prompt)), ElementsAre(Pair("a", Pair(0, 4))));
  Store(a.get(), prompt, {0, 1, 2, 3, 4, 5});
  EXPECT_THAT(Found(Ask(prompt)), ElementsAre(Pair("a", Pair(6, 6))));
  Store(store.get(), prompt, {7}, Tier::kExternal);
  EXPECT_THAT(Found(Ask(prompt)), ElementsAre(Pair("a", Pair(6, 6)))) << "less than a chunk";
  Store(store.get(), prompt, {8, 9, 10, 11}, Tier::kExternal);
  EXPECT_THAT(Found(Ask(prompt)), ElementsAre(Pair("a", Pair(6, 12))));
}

TEST_F(SharedStoresTest, WindowsAreNotLookedForInAStore) {
  const auto prompt = Prompt(100, 4);
  const auto a = AddWorker("a");
  a->SetLayout({.main = {.block_size = 16},
                .sides = {{.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 15}}});
  const auto store = AddStore("store:s");
  Store(store.get(), prompt, {0, 1}, Tier::kExternal);
  EXPECT_TRUE(Ask(prompt).holders.empty());
}

// Beside a twin that looks at each block by itself.
TEST_F(SharedStoresTest, RandomOperationsEqualTheTwin) {
  struct Twin {
    std::unique_ptr<HolderHandle> holder;
    int store = 0;  // 0: none
    bool is_store = false;
    std::map<SequenceHash, std::set<Tier>> blocks = {};
  };
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t below) { return random() % below; };
  std::vector<std::vector<SequenceHash>> prompts;
  for (uint64_t i = 0; i < 4; ++i) {
    // Two that share a beginning.
    std::vector<SequenceHash> prompt = i % 2 == 0 ? Prompt(1000 * (i + 1), 40) : prompts.back();
    for (size_t b = 17; i % 2 == 1 && b < prompt.size(); ++b)
      prompt[b] = SequenceHash{1000 * (i + 1) + b};
    prompts.push_back(std::move(prompt));
  }
  std::map<std::string, Twin> twins;
  for (int i = 0; i < 9; ++i) {
    const int store = i % 3;
    const std::string name = "w" + std::to_string(i);
    twins[name].holder =
        store == 0 ? Add(name, "", "") : AddWorker(name, "s" + std::to_string(store));
    twins[name].store = store;
  }
  for (int i = 0; i < 3; ++i) {  // the second store is two holders
    const int store = i == 0 ? 1 : 2;
    const std::string name = "store" + std::to_string(i);
    twins[name].holder = AddStore(name, "s" + std::to_string(store));
    twins[name].store = store;
    twins[name].is_store = true;
  }
  for (int round = 0; round < 1500; ++round) {
    auto twin = std::next(twins.begin(), static_cast<ptrdiff_t>(draw(twins.size())));
    const std::vector<SequenceHash>& prompt = prompts[draw(prompts.size())];
    const auto tier = static_cast<Tier>(draw(kTiers));
    const size_t at = draw(prompt.size());
    const size_t count = 1 + draw(std::min<size_t>(prompt.size() - at, draw(8) == 0 ? 40 : 4));
    const std::vector<SequenceHash> blocks(prompt.begin() + static_cast<ptrdiff_t>(at),
                                           prompt.begin() + static_cast<ptrdiff_t>(at + count));
    if (draw(3) != 0) {
      ASSERT_TRUE(twin->second.holder
                      ->Apply(Stored{.tier = tier,
                                     .position = static_cast<Position>(at),
                                     .parent = at == 0 ? kNoParent : prompt[at - 1],
                                     .blocks = blocks})
                      .ok());
      for (const SequenceHash block : blocks) twin->second.blocks[block].insert(tier);
    } else {
      ASSERT_TRUE(twin->second.holder->Apply(Removed{.tier = tier, .blocks = blocks}).ok());
      for (const SequenceHash block : blocks) twin->second.blocks[block].erase(tier);
    }
    const std::vector<SequenceHash>& asked = prompts[draw(prompts.size())];
    std::map<std::string, std::pair<uint32_t, uint32_t>> expected;
    for (const auto& [name, of] : twins) {
      if (of.is_store) continue;
      const auto holds = [&of = of](SequenceHash block, bool beside_device) {
        const auto found = of.blocks.find(block);
        return found != of.blocks.end() &&
               found->second.size() > (beside_device ? found->second.count(Tier::kDevice) : 0);
      };
      const auto in_store = [&, store = of.store](SequenceHash block) {
        return std::any_of(twins.begin(), twins.end(), [&](const auto& other) {
          const auto found = other.second.blocks.find(block);
          return other.second.is_store && other.second.store == store &&
                 found != other.second.blocks.end() && !found->second.empty();
        });
      };
      uint32_t own = 0;
      while (own < asked.size() && holds(asked[own], false)) ++own;
      uint32_t loadable = own;
      while (loadable < asked.size() &&
             (in_store(asked[loadable]) ||
              (loadable > own && holds(asked[loadable], /*beside_device=*/true))))
        ++loadable;
      if (loadable > 0) expected[name] = {own, loadable};
    }
    ASSERT_EQ(Found(Ask(asked)), expected) << "round " << round;
    const auto all = Found(Ask(asked, /*all=*/true));
    EXPECT_EQ(all.size(), 9u);
  }
}

}  // namespace
}  // namespace kvatlas
