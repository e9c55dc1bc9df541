#include "tests/long_kill.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

TEST(LongKillTest, EveryKindOfProcessComesBackTwice) {
  absl::StatusOr<std::vector<TraceRequest>> trace =
      ReadTrace("tests/data/conversation_excerpt.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  KillOptions options;
  options.kills = 2;
  options.trace = *std::move(trace);
  options.cluster.cells = 2;
  options.cluster.workers = 2;
  options.cluster.capacity = 400;
  options.cluster.block_size = kTokensPerHashId / options.split;
  const absl::StatusOr<KillReport> report = RunKills(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kills, 6u);
  for (const std::string& violation : report->violations) ADD_FAILURE() << violation;
}

}  // namespace
}  // namespace kvatlas
