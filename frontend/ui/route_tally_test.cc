#include "frontend/ui/route_tally.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvatlas {
namespace {

class Counting : public RouteObserver {
 public:
  void OnDecided(const Decided&) override { ++decided; }
  void OnReported(uint64_t id, const RouteReport&, Time) override { reported = id; }
  int decided = 0;
  uint64_t reported = 0;
};

void Decide(uint32_t blocks, uint32_t chosen, uint32_t best, uint64_t us, RouteTally* tally) {
  RouteResult result;
  result.overlap_blocks = chosen;
  result.receipt.blocks = blocks;
  result.receipt.total_us = us;
  result.receipt.candidates.resize(2);
  result.receipt.candidates[1].overlap_blocks = best;
  const RouteInput input;
  tally->OnDecided(
      {.input = input, .result = result, .prompt = nullptr, .contract = HashContract()});
}

TEST(RouteTallyTest, SharesAreOfBlocksAndTheBestIsAnyCandidates) {
  RouteTally tally(nullptr);
  EXPECT_TRUE(std::isnan(tally.Take().hit_chosen));
  Decide(100, 40, 60, 1000, &tally);
  Decide(300, 200, 100, 1000, &tally);  // the chosen one is the best
  const RouteTally::Figures figures = tally.Take();
  EXPECT_DOUBLE_EQ(figures.hit_chosen, 0.6);
  EXPECT_DOUBLE_EQ(figures.hit_best, 0.65);
  EXPECT_NEAR(figures.p50_ms, 1, 0.1);
}

TEST(RouteTallyTest, WhatIsOlderThanTheWindowIsForgotten) {
  RouteTally tally(nullptr);
  Decide(100, 100, 100, 50000, &tally);
  for (size_t i = 0; i < kTallyWindow; ++i) EXPECT_DOUBLE_EQ(tally.Take().hit_chosen, 1) << i;
  Decide(100, 0, 0, 1000, &tally);
  const RouteTally::Figures figures = tally.Take();
  EXPECT_DOUBLE_EQ(figures.hit_chosen, 0);
  EXPECT_NEAR(figures.p99_ms, 1, 0.1);
}

TEST(RouteTallyTest, TheNextObserverHearsEverything) {
  Counting next;
  RouteTally tally(&next);
  Decide(1, 0, 0, 1, &tally);
  tally.OnReported(7, {}, Time(0));
  EXPECT_EQ(next.decided, 1);
  EXPECT_EQ(next.reported, 7u);
}

}  // namespace
}  // namespace kvatlas
