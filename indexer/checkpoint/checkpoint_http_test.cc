#include "indexer/checkpoint/checkpoint_http.h"

#include <gtest/gtest.h>
#include <stdio.h>

#include <string>

#include "indexer/base/clock.h"
#include "indexer/checkpoint/checkpoint_test_util.h"
#include "indexer/checkpoint/fault_files.h"
#include "indexer/process/admin_http.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {
namespace {

// The status of a POST by curl.
std::string Posted(const std::string& url) {
  FILE* const pipe =
      popen(("curl -s -m 120 -o /dev/null -w '%{http_code}' -X POST " + url).c_str(), "r");
  char status[8] = {};
  EXPECT_EQ(fread(status, 1, 3, pipe), 3u);
  pclose(pipe);
  return status;
}

TEST(CheckpointHttpTest, AFullDiskIsAFaultOfTheServerAndNotOfWhoAsks) {
  ManualClock clock;
  FaultFiles files;
  CheckpointedLeaf leaf(&clock, &files, "/checkpoints", 3);
  Metrics metrics;
  AdminHttp http({.listen = {"127.0.0.1", 0}, .program = "test"}, &metrics);
  AddCheckpointHttp(&leaf.checkpointer(), &http);
  ASSERT_TRUE(http.Start().ok());
  const std::string url = "http://" + http.address().ToString() + "/checkpoint";
  files.SetRoom(1);
  EXPECT_EQ(Posted(url), "507");
  files.SetRoom(std::nullopt);
  EXPECT_EQ(Posted(url), "200");
}

}  // namespace
}  // namespace kvatlas
