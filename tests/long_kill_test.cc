#include "tests/long_kill.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

KillOptions TwiceEach() {
  absl::StatusOr<std::vector<TraceRequest>> trace =
      ReadTrace("tests/data/conversation_excerpt.jsonl");
  KillOptions options;
  options.kills = 2;
  if (trace.ok()) options.trace = *std::move(trace);
  options.cluster.cells = 2;
  options.cluster.workers = 2;
  options.cluster.capacity = 400;
  options.cluster.block_size = kTokensPerHashId / options.split;
  return options;
}

void ExpectClean(const KillOptions& options, uint64_t kills) {
  const absl::StatusOr<KillReport> report = RunKills(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->kills, kills);
  for (const std::string& violation : report->violations) ADD_FAILURE() << violation;
}

TEST(LongKillTest, EveryKindOfProcessComesBackTwice) { ExpectClean(TwiceEach(), 8); }

TEST(LongKillTest, RedisServerComesBackTwice) {
  KillOptions options = TwiceEach();
  options.cluster.redis = true;
  ExpectClean(options, 10);
}

}  // namespace
}  // namespace kvatlas
