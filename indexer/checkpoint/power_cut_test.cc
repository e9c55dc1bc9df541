// Is the index ever wrong after the power was cut while a checkpoint was being written? All cut
// points, in all the ways in which a disk may forget what was not synced.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/checkpoint/checkpoint_test_util.h"
#include "indexer/checkpoint/checkpointer.h"
#include "indexer/checkpoint/fault_files.h"

namespace kvatlas {
namespace {

const Domain kLlama{"llama-70b", ""};
const Domain kQwen{"qwen-8b", "tenant-a"};
constexpr char kDirectory[] = "/checkpoints";
constexpr int kCheckpoints = 4;
constexpr int kTornDisks = 20;  // for each cut

// A leaf that writes checkpoints while its publishers go on, the same for each call.
struct History {
  std::map<uint64_t, AllContents> written;  // as it was at each one
  uint64_t acknowledged = 0;                // the last whose writing was OK
  uint64_t tried = 0;
};

History RunHistory(FaultFiles* files) {
  ManualClock clock;
  clock.Advance(std::chrono::hours(1));
  std::mt19937_64 random(7);
  CheckpointedLeaf leaf(&clock, files, kDirectory, /*keep=*/2);
  std::vector<std::unique_ptr<TestPublisher>> publishers;
  for (const Domain& domain : {kLlama, kQwen})
    for (const char* name : {"w1", "w2"})
      publishers.push_back(
          std::make_unique<TestPublisher>(domain, name, 1000, SenderOptions(), &clock));
  History history;
  for (int i = 0; i < kCheckpoints; ++i) {
    for (const auto& publisher : publishers) {
      if (!publisher->connected()) publisher->Connect(&leaf.registry());
      for (int change = 0; change < 30; ++change) publisher->ChangeSomething(&random);
      while (publisher->Exchange(100)) {
      }
    }
    history.written[++history.tried] = leaf.Contents();
    const absl::StatusOr<CheckpointReport> report = leaf.checkpointer().WriteNow();
    if (!report.ok()) break;
    EXPECT_EQ(report->number, history.tried);
    history.acknowledged = history.tried;
  }
  return history;
}

// Compares what a leaf restores from that disk with what was written to it.
void Expect(const History& history, FaultFiles* disk) {
  ManualClock clock;
  clock.Advance(std::chrono::hours(2));
  CheckpointedLeaf leaf(&clock, disk, kDirectory, /*keep=*/2);
  const absl::StatusOr<CheckpointReport> report = leaf.checkpointer().Restore();
  if (!report.ok()) {
    EXPECT_EQ(history.acknowledged, 0) << "what was written is lost: " << report.status();
    EXPECT_TRUE(leaf.Contents().empty());
    return;
  }
  EXPECT_GE(report->number, history.acknowledged) << "an older one was restored";
  ASSERT_TRUE(history.written.contains(report->number));
  EXPECT_EQ(leaf.Contents(), history.written.at(report->number));
  // No checkpoint was refused: a file with a checkpoint's name is whole.
  EXPECT_EQ(leaf.checkpointer().Stats().refused, 0);
  // The next checkpoint can be written.
  const absl::StatusOr<CheckpointReport> next = leaf.checkpointer().WriteNow();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GT(next->number, report->number);
  for (const std::string& path : disk->Paths())
    EXPECT_EQ(path.find(".tmp"), std::string::npos) << "what was half written is still there";
}

TEST(PowerCutTest, NoCutAtAnyOperationYieldsAWrongIndex) {
  uint64_t operations = 0;
  {
    FaultFiles files;
    const History history = RunHistory(&files);
    ASSERT_EQ(history.acknowledged, kCheckpoints);
    operations = files.operations();
  }
  // A create, some writes, a sync, a rename and the directory's sync each, and removals.
  ASSERT_GT(operations, uint64_t{5 * kCheckpoints});
  for (uint64_t cut = 0; cut <= operations; ++cut) {
    FaultFiles files;
    files.CutAt(cut);
    const History history = RunHistory(&files);
    std::mt19937_64 random(cut);
    for (const auto choice : {FaultFiles::Unsynced::kGone, FaultFiles::Unsynced::kThere}) {
      SCOPED_TRACE(
          "cut at operation " + std::to_string(cut) +
          (choice == FaultFiles::Unsynced::kGone ? ", unsynced gone" : ", unsynced there"));
      Expect(history, files.AfterCut(choice, &random).get());
    }
    for (int disk = 0; disk < kTornDisks; ++disk) {
      SCOPED_TRACE("cut at operation " + std::to_string(cut) + ", torn disk " +
                   std::to_string(disk));
      Expect(history, files.AfterCut(FaultFiles::Unsynced::kTorn, &random).get());
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvatlas
