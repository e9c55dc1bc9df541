// A trace through `kvatlas serve`, as a client asks: promises, engines' own counts and their
// contents agree.

#include "tools/testing/cluster/serve_replay.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

constexpr uint32_t kSplit = 4;

TEST(ServeReplayTest, PromisesAreWhatEnginesServedAndHaveAtRest) {
  absl::StatusOr<std::vector<TraceRequest>> trace =
      ReadTrace("tests/data/conversation_excerpt.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ClusterOptions options;
  options.cells = 1;
  options.workers = 3;
  options.capacity = 400;  // small enough that they evict
  options.block_size = kTokensPerHashId / kSplit;
  options.serve = true;
  const absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ReplayOptions replay;
  replay.split = kSplit;
  replay.at_rest_pairs = 200;
  const absl::StatusOr<ReplayReport> report = ReplayThroughServe(**cluster, *trace, replay);
  ASSERT_TRUE(report.ok()) << report.status();
  SCOPED_TRACE(ToTable(*report));
  EXPECT_EQ(report->requests, trace->size());
  EXPECT_EQ(report->errors, 0u);
  EXPECT_EQ(report->unacknowledged, 0u);
  EXPECT_EQ(report->mirror_differences, 0u);
  EXPECT_EQ(report->promised_over, 0u);
  EXPECT_EQ(report->promised_under, 0u);
  EXPECT_GT(report->cached_blocks.chosen, 0u);
  EXPECT_EQ(report->predicted_blocks, report->cached_blocks.chosen);
  EXPECT_GT(report->events_removed, 0u);
  ASSERT_TRUE(report->at_rest.has_value());
  EXPECT_GE(report->at_rest->checked, 100u);
  EXPECT_EQ(report->at_rest->over, 0u);
  EXPECT_EQ(report->at_rest->under, 0u);
}

}  // namespace
}  // namespace kvatlas
