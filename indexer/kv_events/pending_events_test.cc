#include "indexer/kv_events/pending_events.h"

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/test_seed.h"

namespace kvatlas {
namespace {

using Held = std::set<std::pair<Tier, uint64_t>>;

void Apply(std::span<const Event> events, Held* held) {
  for (const Event& event : events) {
    if (const Stored* const stored = std::get_if<Stored>(&event)) {
      for (SequenceHash block : stored->blocks) held->emplace(stored->tier, Raw(block));
    } else {
      const Removed& removed = std::get<Removed>(event);
      for (SequenceHash block : removed.blocks) held->erase({removed.tier, Raw(block)});
    }
  }
}

TEST(PendingEventsTest, EvictionsBetweenStoresGoFirstAndTheStoresAreOneRun) {
  PendingEvents pending;
  pending.Store(Tier::kDevice, {SequenceHash{1}, 0, kNoParent, std::nullopt});
  pending.Remove(Tier::kDevice, 0, SequenceHash{70});
  pending.Store(Tier::kDevice, {SequenceHash{2}, 1, SequenceHash{1}, std::nullopt});
  pending.Remove(Tier::kDevice, 0, SequenceHash{71});
  ASSERT_EQ(pending.events().size(), 2);
  EXPECT_EQ(pending.events()[0], Event(Removed{.blocks = {SequenceHash{70}, SequenceHash{71}}}));
  EXPECT_EQ(pending.events()[1], Event(Stored{.blocks = {SequenceHash{1}, SequenceHash{2}}}));
  EXPECT_EQ(pending.blocks(), 4);
  pending.Clear();
  EXPECT_TRUE(pending.empty());
}

TEST(PendingEventsTest, WhatWasStoredMeanwhileIsRemovedBehindItsStore) {
  PendingEvents pending;
  pending.Store(Tier::kDevice, {SequenceHash{1}, 0, kNoParent, std::nullopt});
  pending.Remove(Tier::kDevice, 0, SequenceHash{1});
  pending.Store(Tier::kDevice, {SequenceHash{1}, 0, kNoParent, std::nullopt});
  EXPECT_EQ(pending.events().size(), 3);
  Held held;
  Apply(pending.events(), &held);
  EXPECT_EQ(held, (Held{{Tier::kDevice, 1}}));
}

TEST(PendingEventsTest, LeadsToTheSameAsOneByOne) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::mt19937_64 random(seed);
  Held expected, held;
  PendingEvents pending;
  for (int batch = 0; batch < 3000; ++batch) {
    const size_t changes = 1 + random() % 40;
    for (size_t i = 0; i < changes; ++i) {
      const Tier tier = random() % 5 == 0 ? Tier::kHost : Tier::kDevice;
      // Not all of them in a bit of their own.
      const uint64_t block = 1 + random() % 60 * 977;
      if (random() % 2 == 0) {
        pending.Store(tier, {SequenceHash{block}, 5, SequenceHash{block + 1}, std::nullopt});
        expected.emplace(tier, block);
      } else {
        pending.Remove(tier, 0, SequenceHash{block});
        expected.erase({tier, block});
      }
    }
    EXPECT_EQ(pending.blocks(), changes);
    Apply(pending.events(), &held);
    pending.Clear();
    ASSERT_EQ(held, expected) << "batch " << batch;
  }
}

}  // namespace
}  // namespace kvatlas
