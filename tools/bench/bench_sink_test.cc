#include "tools/bench/bench_sink.h"

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include "indexer/base/waypoints.h"
#include "tools/bench/bench_input.h"
#include "tools/bench/contender.h"
#include "tools/bench/ops_test_util.h"

namespace kvatlas {
namespace {

constexpr uint32_t kWorkers = 3;

// Prompts of up to 48 blocks at engines that evict at random: waypoints at positions 7, 15 and 47
// come and go, and come back.
OpsFile Prompts() {
  OpsOptions options;
  options.workers = kWorkers;
  options.split = 4;
  options.capacity = 400;
  options.eviction = OpsEviction::kRandom;
  std::vector<TraceRequest> trace;
  for (uint64_t i = 0; i < 1500; ++i) {
    TraceRequest request;
    request.timestamp_ms = static_cast<double>(i);
    for (uint64_t k = 0; k < 1 + i % 12; ++k) request.hash_ids.push_back(i * 7 % 40 * 100 + k);
    trace.push_back(request);
  }
  return OpsFileOf(options, trace, "prompts.ops", 2'000'000'000);
}

std::unique_ptr<Index> Made(const std::string& name) {
  const Contender contender = (*ContendersByName({name}))[0];
  return *MakeWithHolders(contender, WarmOptions(kWorkers), kWorkers);
}

// What is held at waypoints, with their ordinals.
std::map<SequenceHash, uint32_t> WaypointsOf(const Index& index) {
  const WaypointSchedule& schedule = WaypointSchedule::Standard();
  std::map<SequenceHash, uint32_t> waypoints;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    for (const Holding& holding : index.HoldingsOf(HolderIndex{worker})) {
      if (schedule.IsWaypoint(holding.position))
        waypoints[holding.block] = schedule.WaypointsIn(holding.position);
    }
  }
  return waypoints;
}

// Applies what a parent is told.
void Tell(const std::vector<Event>& due, std::map<SequenceHash, uint32_t>* announced,
          uint64_t* withdrawn) {
  for (const Event& event : due) {
    if (const Stored* stored = std::get_if<Stored>(&event)) {
      for (size_t i = 0; i < stored->blocks.size(); ++i) {
        EXPECT_TRUE(
            announced->emplace(stored->blocks[i], stored->position + static_cast<uint32_t>(i))
                .second);
      }
    } else if (const Removed* removed = std::get_if<Removed>(&event)) {
      for (const SequenceHash block : removed->blocks) EXPECT_EQ(announced->erase(block), 1u);
      *withdrawn += removed->blocks.size();
    }
  }
}

TEST(BenchSinkTest, CoverageAnnouncesExactlyTheWaypointsThatAPlainTwinHolds) {
  const OpsFile file = Prompts();
  const BenchInput input(file, 0);
  for (const char* const name : {"atlas", "reference", "radix"}) {
    const std::unique_ptr<Index> index = Made(name), twin = Made("reference");
    ManualClock clock;
    std::map<SequenceHash, uint32_t> announced;
    uint64_t withdrawn = 0;
    BenchSink sink(SinkKind::kCoverage, index.get(), &clock,
                   [&](const std::vector<Event>& due) { Tell(due, &announced, &withdrawn); });
    size_t applied = 0;
    for (const BenchInput::Step& step : input.steps()) {
      if (step.kind == OpKind::kQuery) continue;
      const HolderIndex holder{step.worker};
      ASSERT_TRUE(sink.Apply(holder, input.event(step)).ok());
      ASSERT_TRUE(twin->Apply(holder, input.event(step), nullptr).ok());
      clock.Advance(std::chrono::milliseconds(1));
      if (++applied % 100 == 0) sink.Take();
    }
    clock.Advance(std::chrono::seconds(1));
    while (!sink.coverage()->AtRest()) sink.Take();
    const std::map<SequenceHash, uint32_t> held = WaypointsOf(*twin);
    EXPECT_GT(held.size(), 10u);
    EXPECT_GT(withdrawn, 10u);
    EXPECT_EQ(announced.size(), held.size()) << name;
    for (const auto& [block, waypoints] : held) {
      ASSERT_TRUE(announced.contains(block)) << name;
      EXPECT_EQ(announced.at(block), waypoints) << name;
    }
    EXPECT_EQ(sink.held_blocks(), twin->Stats().holdings) << name;
  }
}

TEST(BenchSinkTest, WhatIsDueIsTakenEverySoManyBlocks) {
  const std::unique_ptr<Index> index = Made("reference");
  ManualClock clock;
  uint64_t taken = 0;
  BenchSink sink(SinkKind::kCoverage, index.get(), &clock,
                 [&](const std::vector<Event>& due) { taken += due.size(); });
  Stored stored;
  for (uint64_t i = 0; i < 1024; ++i) stored.blocks.push_back(SequenceHash{i + 1});
  const uint64_t events = BenchSink::kBlocksPerTake / stored.blocks.size();
  for (uint64_t i = 0; i + 1 < events; ++i) {
    ASSERT_TRUE(sink.Apply(HolderIndex{0}, stored).ok());
  }
  EXPECT_EQ(taken, 0u);
  ASSERT_TRUE(sink.Apply(HolderIndex{0}, stored).ok());
  EXPECT_GT(taken, 0u);
}

TEST(BenchSinkTest, TheDigestIsThatOfTheHolderAfterItsLastEvent) {
  const OpsFile file = Prompts();
  const BenchInput input(file, 0);
  const std::unique_ptr<Index> index = Made("atlas"), twin = Made("reference");
  BenchSink sink(SinkKind::kDigest, index.get(), &Clock::Real());
  for (const BenchInput::Step& step : input.steps()) {
    if (step.kind == OpKind::kQuery) continue;
    const HolderIndex holder{step.worker};
    ASSERT_TRUE(sink.Apply(holder, input.event(step)).ok());
    ASSERT_TRUE(twin->Apply(holder, input.event(step), nullptr).ok());
    ASSERT_EQ(sink.digest(), twin->DigestOf(holder));
  }
  EXPECT_EQ(sink.held_blocks(), twin->Stats().holdings);
  EXPECT_EQ(sink.coverage(), nullptr);
}

TEST(BenchSinkTest, NoneAsksForNoChanges) {
  const std::unique_ptr<Index> index = Made("reference");
  BenchSink sink(SinkKind::kNone, index.get(), &Clock::Real());
  ASSERT_TRUE(sink.Apply(HolderIndex{0}, Stored{.blocks = {SequenceHash{1}}}).ok());
  EXPECT_EQ(sink.changed_blocks(), 0u);
  EXPECT_EQ(index->Stats().holdings, 1u);
}

}  // namespace
}  // namespace kvatlas
