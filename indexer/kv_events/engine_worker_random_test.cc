// The worker beside its twin under random events: what a real index holds afterwards must be what
// the twin says.

#include <array>
#include <chrono>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/kv_events/engine_twin.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/engine_worker_test_util.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

struct Mix {
  uint32_t groups = 1;
  bool salts = false;
  bool tokenless = false;
  bool losses = false;
  bool second_names = false;  // content has two names
  bool renames = false;       // names change their content
  bool chunks = false;        // beside the device names without tokens stand for two blocks
  bool batches = false;       // events come several at once
};

// Engines' contents are a tree: block b has parent b / 3, its tokens are b's own.
class Random {
 public:
  Random(const Mix& mix, uint64_t seed)
      : mix_(mix),
        random_(seed),
        worker_({.offload_chunk_tokens = mix.chunks ? 8u : 0u, .orphan_ttl = seconds(1000000)}),
        twin_(4, mix.chunks ? 2 : 1) {}

  void Step() {
    const uint64_t dice = random_() % 1000;
    if (dice < 600) {
      Store();
    } else if (dice < 985) {
      Remove();
    } else if (dice < 988) {
      Apply(ClearEvent());
      twin_.Clear();
      lost_ = false;
    } else if (dice < 989) {
      ApplyAll();
      worker_->Restarted(0, worker_.now());
      twin_.Restart();
      learned_.clear();
      lost_ = false;
    } else if (mix_.losses) {
      Lose();
    }
  }

  void Compare() {
    ApplyAll();
    EXPECT_EQ(worker_.Holdings(), twin_.Holdings());
    EXPECT_EQ(worker_.RankStats().parked, twin_.parked());
    std::array<uint64_t, kTiers> blocks = {};
    for (const auto& [block, tiers] : worker_.Holdings())
      for (int tier = 0; tier < kTiers; ++tier) blocks[tier] += tiers.Has(static_cast<Tier>(tier));
    EXPECT_EQ(worker_.RankStats().blocks, blocks);
  }

 private:
  static constexpr uint64_t kBlocks = 400;

  void Apply(OwnedEvent event) {
    batch_.push_back(std::move(event));
    if (!mix_.batches || random_() % 12 == 0) ApplyAll();
  }
  void ApplyAll() {
    if (!batch_.empty()) worker_.Apply(std::exchange(batch_, {}));
  }

  uint64_t NameOf(uint64_t block, uint64_t variant) const { return 1000 * variant + block; }
  std::vector<TokenId> TokensOf(uint64_t block) const {
    return Tokens(4, static_cast<TokenId>(100 * block + 1));
  }
  Tier RandomTier() {
    return random_() % 4 == 0 ? static_cast<Tier>(1 + random_() % 3) : Tier::kDevice;
  }
  static std::string_view MediumOf(Tier tier) {
    constexpr std::string_view kNames[] = {"GPU", "cpu", "DISK", "EXTERNAL"};
    return kNames[static_cast<int>(tier)];
  }

  // A path down the tree from a random block, as one event.
  void Store() {
    const uint64_t variant = mix_.second_names ? 1 + random_() % 2 : 1;
    const uint64_t shift = mix_.renames && random_() % 8 == 0 ? 50000 : 0;
    const Tier tier = RandomTier();
    const uint32_t group = static_cast<uint32_t>(random_() % mix_.groups);
    uint64_t block = random_() % 3 == 0 ? random_() % 3 : random_() % kBlocks;
    OwnedEvent event = StoreEvent({}, {}, std::nullopt, MediumOf(tier));
    if (mix_.groups > 1) {
      event.event.group = group;
      event.event.spec_kind = "full_attention";
    }
    if (block >= 3) event.parent = NameOf(block / 3, variant);
    // Salts belong to trees: block 0's tree has none. Renames may move a root to another.
    std::optional<std::string> salt;
    if (mix_.salts && block < 3 && block > 0)
      salt = "salt-" + std::to_string(mix_.renames ? random_() % 2 : block);
    if (salt.has_value()) event.event.cache_salt = *salt;
    // Names alone, as a connector's.
    const bool of_chunk = mix_.chunks && tier != Tier::kDevice && random_() % 2 == 0;
    const bool tokenless = of_chunk || (mix_.tokenless && random_() % 5 == 0);
    std::vector<EngineTwin::StoreBlock> blocks;
    const uint64_t length = of_chunk ? 1 : 1 + random_() % 6;
    std::optional<uint64_t> parent = event.parent;
    for (uint64_t i = 0; i < length && block < kBlocks; ++i) {
      const uint64_t name = NameOf(block, variant);
      std::vector<TokenId> tokens = TokensOf(block + shift);
      event.hashes.push_back(name);
      if (!tokenless) event.tokens.insert(event.tokens.end(), tokens.begin(), tokens.end());
      if (tokenless) tokens.clear();
      blocks.push_back({.group = group,
                        .name = name,
                        .parent = parent,
                        .salt = salt,
                        .tokens = tokens,
                        .tier = tier,
                        .says_kind = mix_.groups > 1});
      parent = name;
      if (block == 0) break;  // it would be its own child
      block = block * 3 + random_() % 3;
    }
    Apply(std::move(event));
    twin_.Store(blocks);
    learned_.insert(group);
  }

  void Remove() {
    const uint64_t variant = mix_.second_names ? 1 + random_() % 2 : 1;
    const Tier tier = RandomTier();
    const uint32_t group = static_cast<uint32_t>(random_() % mix_.groups);
    OwnedEvent event = RemoveEvent({}, MediumOf(tier));
    if (mix_.groups > 1) event.event.group = group;
    const bool learned = mix_.groups == 1 || group == 0 || learned_.contains(group);
    for (uint64_t i = 0; i < 1 + random_() % 8; ++i) {
      event.hashes.push_back(NameOf(random_() % kBlocks, variant));
      if (learned) twin_.Remove(group, event.hashes.back(), tier);
    }
    Apply(std::move(event));
  }

  void Lose() {
    ApplyAll();
    if (!lost_ || random_() % 3 == 0) {
      worker_->Lost(0, worker_.now());
      twin_.Lose();
      lost_ = true;
    } else if (random_() % 2 == 0) {
      worker_->Repaired(0);
      twin_.Repair();
      lost_ = false;
    } else {
      worker_.Advance(seconds(30));
      twin_.GiveUp();
      lost_ = false;
    }
  }

  const Mix mix_;
  std::mt19937_64 random_;
  // Nothing that is parked expires.
  TestWorker worker_;
  EngineTwin twin_;
  std::vector<OwnedEvent> batch_;
  std::set<uint32_t> learned_;  // groups
  bool lost_ = false;
};

class EngineWorkerRandomTest : public testing::TestWithParam<Mix> {};

TEST_P(EngineWorkerRandomTest, HoldsWhatItsTwinSays) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(GetParam(), seed);
    for (int step = 0; step < 1500; ++step) {
      random.Step();
      if (step % 16 == 15) random.Compare();
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << step;
    }
  }
}

// The first second name shows when the events behind it wait already: from nothing, many times.
TEST(SecondNamesTest, ShowInTheMiddleOfABatch) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random({.second_names = true, .batches = true}, seed);
    for (int step = 0; step < 60; ++step) random.Step();
    random.Compare();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, EngineWorkerRandomTest,
                         testing::Values(Mix{}, Mix{.chunks = true},
                                         Mix{.salts = true, .chunks = true}, Mix{.salts = true},
                                         Mix{.tokenless = true}, Mix{.losses = true},
                                         Mix{.second_names = true}, Mix{.groups = 2},
                                         Mix{.groups = 3, .losses = true}, Mix{.renames = true},
                                         Mix{.salts = true, .tokenless = true, .losses = true},
                                         Mix{.batches = true}, Mix{.groups = 2, .batches = true},
                                         Mix{.renames = true, .batches = true},
                                         Mix{.losses = true, .second_names = true, .batches = true},
                                         Mix{.salts = true, .losses = true, .second_names = true}));

}  // namespace
}  // namespace kvatlas
