// Events that are applied together have the effect of the same events one by one: random events of
// two holders, in groups and alone.

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/event.h"
#include "indexer/base/holdings_writer.h"
#include "indexer/base/ids.h"
#include "indexer/base/test_seed.h"
#include "indexer/base/tier.h"
#include "indexer/index/change_log.h"
#include "indexer/index/index.h"

namespace kvatlas {
namespace {

constexpr uint64_t kChain = 3000;  // blocks of a sequence: longer than a step of an index

class Events {
 public:
  explicit Events(uint64_t seed) : random_(seed) {}

  std::vector<Event> Some() {
    std::vector<Event> events(1 + random_() % 12);
    for (Event& event : events) event = One();
    return events;
  }

 private:
  Event One() {
    const Tier tier = random_() % 4 == 0 ? Tier::kHost : Tier::kDevice;
    const uint64_t dice = random_() % 20;
    if (dice == 0) return Cleared{.tiers = random_() % 2 == 0 ? TierMask(tier) : TierMask::All()};
    const uint64_t chain = random_() % 3;
    // A draw a statement: the order within one is the compiler's.
    const uint64_t first_end = random_() % 4 == 0 ? kChain : 40;
    const uint64_t first = random_() % first_end;
    const uint64_t count_max = random_() % 10 == 0 ? 1500 : 12;
    const uint64_t count = std::min(kChain - first, 1 + random_() % count_max);
    const auto block = [&](uint64_t at) { return SequenceHash{1 + chain * kChain + at}; };
    std::vector<SequenceHash> blocks;
    for (uint64_t at = first; at < first + count; ++at) blocks.push_back(block(at));
    if (dice % 2 == 0) {
      std::reverse(blocks.begin(), blocks.end());
      return Removed{.tier = tier, .blocks = std::move(blocks)};
    }
    return Stored{.tier = tier,
                  .position = static_cast<Position>(first),
                  .parent = first == 0 ? kNoParent : block(first - 1),
                  .blocks = std::move(blocks)};
  }

  std::mt19937_64 random_;
};

using Change = std::tuple<uint64_t, Position, uint8_t, uint8_t>;

// By block, those of one block in their order: in which order the blocks of a clear come, a
// structure is free to choose (the atlas' depends on where its memory lies).
std::vector<Change> ChangesOf(const ChangeLog::Part& part) {
  std::vector<Change> changes;
  part.ForEachBlock([&](SequenceHash block, Position position, TierMask before, TierMask after) {
    changes.emplace_back(Raw(block), position, before.bits(), after.bits());
  });
  std::ranges::stable_sort(changes, {}, [](const Change& change) { return std::get<0>(change); });
  return changes;
}

std::vector<std::tuple<uint64_t, Position, uint8_t>> HoldingsOf(const Index& index,
                                                                HolderIndex holder) {
  std::vector<std::tuple<uint64_t, Position, uint8_t>> holdings;
  for (const Holding& holding : index.HoldingsOf(holder))
    holdings.emplace_back(Raw(holding.block), holding.position, holding.tiers.bits());
  std::sort(holdings.begin(), holdings.end());
  return holdings;
}

// One by one, up to where `ApplyAll` has to end.
Applied ApplyAlone(Index* index, HolderIndex holder, std::span<const Event> events,
                   std::vector<std::vector<Change>>* changes) {
  return ApplyInOrder(events, [&](const Event& event, uint64_t* changed) {
    ChangeLog log;
    const absl::Status status = index->Apply(holder, event, &log);
    *changed = log.blocks();
    changes->push_back(ChangesOf(log));
    return status;
  });
}

class ApplyAllTest : public testing::TestWithParam<std::tuple<std::string, uint64_t>> {};

TEST_P(ApplyAllTest, EventsTogetherAreWhatTheyAreOneByOne) {
  const auto& [name, blocks_max] = GetParam();
  for (const uint64_t seed : {TestSeed(), uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
    const IndexOptions options = {.holders_max = 8, .blocks_max = blocks_max};
    const std::unique_ptr<Index> together = *MakeIndex(name, options);
    const std::unique_ptr<Index> alone = *MakeIndex(name, options);
    Events random(seed);
    for (int i = 0; i < 2; ++i) {
      *together->AddHolder();
      *alone->AddHolder();
    }
    for (int step = 0; step < 300; ++step) {
      SCOPED_TRACE(testing::Message() << SeedText(seed) << " step " << step);
      const HolderIndex holder{static_cast<uint32_t>(step % 2)};
      const std::vector<Event> events = random.Some();
      ChangeLog log;
      for (std::span<const Event> left = events; !left.empty();) {
        log.Clear();
        std::vector<std::vector<Change>> expected_changes;
        const Applied applied = together->ApplyAll(holder, left, &log);
        const Applied expected = ApplyAlone(alone.get(), holder, left, &expected_changes);
        ASSERT_EQ(applied.events, expected.events);
        ASSERT_EQ(applied.changed, expected.changed);
        ASSERT_EQ(applied.status, expected.status);
        for (size_t event = 0; event < applied.events; ++event)
          ASSERT_EQ(ChangesOf(log.OfEvent(event)), expected_changes[event]);
        left = left.subspan(applied.events);
      }
      if (step % 10 == 9) {
        ASSERT_EQ(HoldingsOf(*together, holder), HoldingsOf(*alone, holder));
      }
    }
    EXPECT_TRUE(together->Check().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Structures, ApplyAllTest,
                         testing::Combine(testing::Values("atlas", "atlas*4", "reference"),
                                          testing::Values(uint64_t{0}, uint64_t{4000})));

TEST(ApplyAllOfNoneTest, AHolderThatIsNoneIsNotFound) {
  const std::unique_ptr<Index> index = *MakeIndex("atlas", {});
  ChangeLog changes;
  const Event event = Stored{.blocks = {SequenceHash{1}}};
  const Applied applied = index->ApplyAll(HolderIndex{3}, {&event, 1}, &changes);
  EXPECT_EQ(applied.events, 1);
  EXPECT_TRUE(absl::IsNotFound(applied.status));
}

}  // namespace
}  // namespace kvatlas
