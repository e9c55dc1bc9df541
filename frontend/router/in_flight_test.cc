#include "frontend/router/in_flight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

HolderId Id(const std::string& name) { return {.name = name, .rank = 0, .replica = ""}; }

std::vector<SequenceHash> Prompt(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> prompt;
  for (size_t i = 0; i < blocks; ++i) prompt.push_back(SequenceHash(first + i));
  return prompt;
}

NewChoice To(const std::string& worker, uint64_t blocks, std::optional<Load> load = {}) {
  return {.cell = "a", .worker = Id(worker), .blocks = blocks, .load = load};
}

TEST(InFlightTest, ChoicesCountUntilReleasedOrTooOld) {
  InFlightChoices choices(100, seconds(30));
  choices.Choose(1, To("w0", 10), seconds(0));
  choices.Choose(2, To("w0", 5), seconds(10));
  EXPECT_EQ(choices.To("a", Id("w0")), (InFlight{15, 2}));
  EXPECT_EQ(choices.To("a"), (InFlight{15, 2}));
  EXPECT_TRUE(choices.Release(2));
  EXPECT_FALSE(choices.Release(2));
  EXPECT_FALSE(choices.Release(99));
  EXPECT_EQ(choices.To("a", Id("w0")), (InFlight{10, 1}));
  EXPECT_EQ(choices.Expire(seconds(29)), 0u);
  EXPECT_EQ(choices.Expire(seconds(45)), 1u);
  EXPECT_EQ(choices.To("a", Id("w0")), InFlight());
  EXPECT_EQ(choices.size(), 0u);
}

TEST(InFlightTest, BeyondTheBoundTheOldestIsNoLongerCounted) {
  InFlightChoices choices(2, seconds(30));
  for (uint64_t id = 1; id <= 3; ++id) choices.Choose(id, To("w0", id), seconds(1));
  EXPECT_EQ(choices.To("a"), (InFlight{5, 2}));
  EXPECT_FALSE(choices.Release(1));
}

TEST(InFlightTest, RequestsThatRunOnCountInNoBound) {
  InFlightChoices choices(2, seconds(30));
  NewChoice runs_on = To("w0", 1);
  runs_on.end_follows = true;
  for (uint64_t id = 1; id <= 3; ++id) {
    choices.Choose(id, runs_on, seconds(1));
    choices.ReleasePrefill(id);
  }
  for (uint64_t id = 4; id <= 5; ++id) choices.Choose(id, To("w0", 10), seconds(2));
  EXPECT_EQ(choices.To("a"), (InFlight{20, 5}));
  EXPECT_TRUE(choices.Release(1)) << "its caller ends it";
}

TEST(InFlightTest, AWorkerThatNowHoldsABlockOfThePromptHasTheRequest) {
  InFlightChoices choices(100, seconds(30));
  const std::vector<SequenceHash> prompt = Prompt(100, 8);
  NewChoice choice = To("w0", 5);
  choice.missing_position = 3;
  choice.missing_block = prompt[3];
  choices.Choose(1, choice, seconds(0));
  const auto saw = [&](uint32_t blocks, const std::vector<SequenceHash>& asked) {
    return choices.Saw("a", {.worker = Id("w0"), .blocks = blocks}, asked, seconds(1));
  };
  EXPECT_EQ(saw(3, prompt), 0u) << "as many as it had";
  EXPECT_EQ(saw(8, Prompt(500, 8)), 0u) << "of another prompt";
  EXPECT_EQ(saw(8, {prompt.begin(), prompt.begin() + 3}), 0u) << "of a prompt that ends before";
  EXPECT_EQ(choices.Saw("b", {.worker = Id("w0"), .blocks = 8}, prompt, seconds(1)), 0u);
  EXPECT_EQ(saw(4, prompt), 1u);
  EXPECT_EQ(choices.size(), 0u);
}

TEST(InFlightTest, ARiseOfLoadReleasesAsManyOldestFirst) {
  InFlightChoices choices(100, seconds(30));
  for (uint64_t id = 1; id <= 3; ++id)
    choices.Choose(id, To("w0", id, Load{.running_requests = 4}), seconds(1));
  const auto saw = [&](uint32_t running, uint32_t waiting, Time now, uint32_t age_ms = 0) {
    return choices.Saw("a",
                       {.worker = Id("w0"),
                        .age_ms = age_ms,
                        .load = Load{.running_requests = running, .waiting_requests = waiting}},
                       {}, now);
  };
  EXPECT_EQ(saw(4, 0, seconds(2)), 0u);
  EXPECT_EQ(saw(5, 0, seconds(3), /*age_ms=*/2000), 0u) << "heard before they were made";
  EXPECT_EQ(saw(5, 1, seconds(4)), 1u);
  EXPECT_EQ(choices.To("a"), (InFlight{5, 2}));
  EXPECT_EQ(saw(2, 0, seconds(5)), 0u) << "others ended";
  EXPECT_EQ(saw(3, 3, seconds(6)), 2u);
  EXPECT_EQ(choices.size(), 0u);
}

TEST(InFlightTest, WhatWasReportedIsNotReleasedAgainByTheLoadThatCountsIt) {
  InFlightChoices choices(100, seconds(30));
  const Load idle;
  choices.Choose(1, To("w0", 1, idle), seconds(1));
  choices.Choose(2, To("w0", 2, idle), seconds(1));
  EXPECT_TRUE(choices.ReleasePrefill(1));
  const WorkerFound found = {.worker = Id("w0"), .load = Load{.running_requests = 1}};
  EXPECT_EQ(choices.Saw("a", found, {}, seconds(2)), 0u);
  EXPECT_EQ(choices.To("a"), (InFlight{2, 1}));
}

TEST(InFlightTest, WhoDecodesIsCountedUntilTheRequestIsOver) {
  InFlightChoices choices(100, seconds(30));
  NewChoice choice = To("p", 7);
  choice.decode = {"b", Id("d")};
  choices.Choose(1, choice, seconds(0));
  EXPECT_EQ(choices.To("a", Id("p")), (InFlight{7, 1}));
  EXPECT_EQ(choices.To("b", Id("d")), (InFlight{0, 1}));
  EXPECT_TRUE(choices.ReleasePrefill(1));
  EXPECT_FALSE(choices.ReleasePrefill(1));
  EXPECT_EQ(choices.To("a"), InFlight());
  EXPECT_EQ(choices.To("b"), (InFlight{0, 1}));
  EXPECT_EQ(choices.size(), 1u);
  EXPECT_TRUE(choices.Release(1));
  EXPECT_EQ(choices.To("b"), InFlight());
}

NewChoice WithEnd(const std::string& worker, uint64_t blocks, uint32_t running = 0) {
  NewChoice choice = To(worker, blocks, Load{.running_requests = running});
  choice.end_follows = true;
  return choice;
}

size_t SawLoad(InFlightChoices* choices, const std::string& worker, uint32_t running, Time now) {
  return choices->Saw("a", {.worker = Id(worker), .load = Load{.running_requests = running}}, {},
                      now);
}

TEST(InFlightTest, ARequestWhoseEndFollowsCountsUntilALaterLoadShowsIt) {
  InFlightChoices choices(100, seconds(30));
  for (uint64_t id = 1; id <= 3; ++id) {
    choices.Choose(id, WithEnd("w0", 5), seconds(1));
    EXPECT_TRUE(choices.ReleasePrefill(id));
  }
  EXPECT_EQ(choices.To("a", Id("w0")), (InFlight{0, 3}));
  EXPECT_EQ(choices.To("a"), (InFlight{0, 3}));
  EXPECT_EQ(choices.size(), 0u);
  SawLoad(&choices, "w0", 0, seconds(2));
  EXPECT_EQ(choices.To("a", Id("w0")), (InFlight{0, 3})) << "the same load: it may be of before";
  choices.Expire(seconds(100));
  EXPECT_EQ(choices.To("a", Id("w0")), (InFlight{0, 3})) << "its end will be told";
  EXPECT_TRUE(choices.Release(1));
  EXPECT_EQ(choices.To("a", Id("w0")), (InFlight{0, 2}));
  SawLoad(&choices, "w0", 2, seconds(3));
  EXPECT_EQ(choices.To("a", Id("w0")), InFlight());
  EXPECT_TRUE(choices.Release(2));
  EXPECT_EQ(choices.To("a", Id("w0")), (InFlight{0, 0, 1})) << "that load still counts it";
  EXPECT_EQ(LoadNow(Load{.running_requests = 2}, choices.To("a", Id("w0")))->running_requests, 1u);
  SawLoad(&choices, "w0", 1, seconds(4));
  EXPECT_EQ(choices.To("a", Id("w0")), InFlight());
  EXPECT_TRUE(choices.Release(3));
  EXPECT_FALSE(choices.Release(3));
  EXPECT_EQ(choices.To("a"), InFlight());
}

TEST(InFlightTest, ARequestThatIsTooLongUnansweredCountsWithoutItsBlocksUntilItsEnd) {
  InFlightChoices choices(100, seconds(30));
  choices.Choose(1, WithEnd("w0", 5), seconds(0));
  EXPECT_EQ(choices.Expire(seconds(31)), 1u);
  EXPECT_EQ(choices.To("a", Id("w0")), (InFlight{0, 1}));
  EXPECT_FALSE(choices.ReleasePrefill(1));
  EXPECT_TRUE(choices.Release(1));
  EXPECT_EQ(choices.To("a", Id("w0")), InFlight());
}

TEST(InFlightTest, RequestsWhoseEndFollowsEqualALedgerUnderRandomOperations) {
  constexpr uint32_t kRunning = 1'000'000;
  struct Row {
    std::string worker;
    uint64_t blocks;
    bool prefilling;
    bool in_load;
  };
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    InFlightChoices choices(100'000, seconds(1'000));
    std::map<uint64_t, Row> ledger;
    std::map<std::string, uint32_t> ended;
    uint32_t load = kRunning;
    uint64_t next = 1;
    for (int step = 0; step < 3000; ++step) {
      const Time now = milliseconds(step);
      const uint64_t some = 1 + random() % next;
      const auto at = ledger.find(some);
      const std::string worker = "w" + std::to_string(random() % 3);
      switch (random() % 5) {
        case 0:
        case 1: {
          const uint64_t blocks = random() % 9;
          choices.Choose(next, WithEnd(worker, blocks, kRunning), now);
          ledger[next++] = {worker, blocks, true, false};
          break;
        }
        case 2:
          ASSERT_EQ(choices.Release(some), at != ledger.end());
          if (at == ledger.end()) break;
          if (at->second.in_load) ++ended[at->second.worker];
          ledger.erase(at);
          break;
        case 3:
          ASSERT_EQ(choices.ReleasePrefill(some), at != ledger.end() && at->second.prefilling);
          if (at != ledger.end()) at->second.prefilling = false;
          break;
        default:
          // Never more than before, so that no prefill is taken as shown by it.
          SawLoad(&choices, worker, --load, now);
          ended[worker] = 0;
          for (auto& [id, row] : ledger)
            if (row.worker == worker && !row.prefilling) row.in_load = true;
      }
      for (const std::string of : {"w0", "w1", "w2"}) {
        InFlight want{.ended = ended[of]};
        for (const auto& [id, row] : ledger) {
          if (row.worker != of || row.in_load) continue;
          ++want.requests;
          want.blocks += row.prefilling ? row.blocks : 0;
        }
        if (ledger.empty()) ended.clear(), want = {};
        ASSERT_EQ(choices.To("a", Id(of)), want)
            << "seed " << seed << ", step " << step << ", " << of;
      }
    }
  }
}

// The twin: a list of what was chosen and not released, summed each time.
struct Kept {
  uint64_t id;
  std::string worker;
  uint64_t blocks;
  std::optional<std::string> decode;
  bool prefilling;
  Time made;
};

TEST(InFlightTest, SumsEqualThoseOfAListUnderRandomOperations) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    InFlightChoices choices(40, seconds(5));
    std::vector<Kept> twin;
    uint64_t next = 1;
    for (int step = 0; step < 2000; ++step) {
      const Time now = milliseconds(step * 20);
      const uint64_t some = 1 + random() % next;
      const auto at =
          std::find_if(twin.begin(), twin.end(), [&](const Kept& k) { return k.id == some; });
      switch (random() % 4) {
        case 0:
        case 1: {
          Kept kept{next, "w" + std::to_string(random() % 3), random() % 9, {}, true, now};
          NewChoice choice = To(kept.worker, kept.blocks);
          if (random() % 3 == 0) {
            kept.decode = "d" + std::to_string(random() % 2);
            choice.decode = {"a", Id(*kept.decode)};
          }
          if (twin.size() == 40) twin.erase(twin.begin());
          choices.Choose(next++, choice, now);
          twin.push_back(kept);
          break;
        }
        case 2:
          ASSERT_EQ(choices.Release(some), at != twin.end()) << "seed " << seed << ", " << step;
          if (at != twin.end()) twin.erase(at);
          break;
        default:
          ASSERT_EQ(choices.ReleasePrefill(some), at != twin.end() && at->prefilling)
              << "seed " << seed << ", " << step;
          if (at == twin.end()) break;
          at->prefilling = false;
          if (!at->decode.has_value()) twin.erase(at);
      }
      const size_t before = twin.size();
      std::erase_if(twin, [&](const Kept& k) { return k.made + seconds(5) <= now; });
      ASSERT_EQ(choices.Expire(now), before - twin.size()) << "seed " << seed << ", " << step;
      std::map<std::string, InFlight> sums;
      InFlight all;
      for (const Kept& kept : twin) {
        if (kept.prefilling) {
          sums[kept.worker].blocks += kept.blocks;
          all.blocks += kept.blocks;
          ++sums[kept.worker].requests, ++all.requests;
        }
        if (kept.decode.has_value()) ++sums[*kept.decode].requests, ++all.requests;
      }
      for (const std::string worker : {"w0", "w1", "w2", "d0", "d1"})
        ASSERT_EQ(choices.To("a", Id(worker)), sums[worker]) << "seed " << seed << ", " << step;
      ASSERT_EQ(choices.To("a"), all) << "seed " << seed << ", " << step;
      ASSERT_EQ(choices.size(), twin.size());
    }
  }
}

}  // namespace
}  // namespace kvatlas
