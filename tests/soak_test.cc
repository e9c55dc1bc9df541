// The soak, short: what an hour of it watches, in half a minute.

#include "tests/soak.h"

#include <unistd.h>

#include <chrono>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

TEST(SoakTest, NothingGrowsUnderChurnAndKillsAndAnswersAreExactAtTheEnd) {
  SoakOptions options;
  const auto trace = ReadTrace("tests/data/conversation_excerpt.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  options.trace = *trace;
  options.split = 4;
  options.cluster.cells = 2;
  options.cluster.workers = 2;
  options.cluster.capacity = 400;
  options.cluster.block_size = kTokensPerHashId / options.split;
  // What is remembered for diagnoses reaches its bounds during the warm-up; with the defaults it
  // would fill for minutes.
  options.cluster.frontend_args = {"--decisions_max=200", "--sent_blocks_max=4096"};
  options.run_for = std::chrono::seconds(25);
  options.warm_up = std::chrono::seconds(12);
  options.requests_a_kill = 150;
  options.memory_slack_bytes = 8 << 20;  // an hour forgives less
  const absl::StatusOr<SoakReport> report = RunSoak(options);
  ASSERT_TRUE(report.ok()) << report.status();
  SCOPED_TRACE(ToTable(*report));
  EXPECT_THAT(report->violations, ::testing::IsEmpty());
  EXPECT_GT(report->replay.requests, trace->size());
  EXPECT_GE(report->level.size(), 8u);  // hierarchy, frontend, leaves, engines
}

TEST(SoakTest, LevelsAreThoseOfTheProcess) {
  const absl::StatusOr<ProcessLevel> level = LevelOf(getpid());
  ASSERT_TRUE(level.ok());
  EXPECT_GT(level->memory_bytes, 1u << 16);
  EXPECT_GE(level->threads, 1u);
  EXPECT_GE(level->descriptors, 3u);
  EXPECT_EQ(LevelOf(0).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvatlas
