// Does each fault fire its alert? A small cluster, a real Prometheus that scrapes it, the rules
// that we ship with shorter times, and faults one after the other: each fires, and what stays in
// good order stays silent.
//
// `alerts_test` has four of the faults; `long_alerts_test` all, in some minutes.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/stream/messages.h"
#include "tests/hostile/attacker.h"
#include "tests/hostile/siege.h"
#include "tests/watched_cluster.h"

namespace kvatlas {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLong(90);

// These say the truth on a machine that is busy with other tests.
bool JudgesSpeed(const std::string& alert) {
  return alert == "KvatlasRoutesSlow" || alert == "KvatlasFindOverlapsSlow" ||
         alert == "KvatlasFindCellsSlow";
}

bool All() { return std::getenv("ALERTS_TEST_ALL_FAULTS") != nullptr; }

// One cluster for all tests.
class AlertsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (world_ != nullptr) return;
    absl::StatusOr<std::unique_ptr<WatchedCluster>> world = WatchedCluster::Start({.all = All()});
    ASSERT_TRUE(world.ok()) << world.status();
    world_ = world->release();
  }
  void SetUp() override { ASSERT_NE(world_, nullptr); }

  // Waits for the alert, with that label if one is given.
  static void ExpectFires(const std::string& alert, const std::string& label = "",
                          const std::string& value = "") {
    EXPECT_TRUE(Await([&] { return world_->prometheus().Fires(alert, label, value); }, kLong))
        << alert << " {" << label << "=" << value
        << "} never fires; these do: " << world_->prometheus().Firing();
  }
  static void ExpectEnds(const std::string& alert, const std::string& instance) {
    EXPECT_TRUE(
        Await([&] { return !world_->prometheus().Fires(alert, "instance", instance); }, kLong))
        << alert << " never ends at " << instance;
  }
  static bool FiresNow(const std::string& alert) { return world_->prometheus().Fires(alert); }
  static std::string Instance(const std::string& process) { return world_->Instance(process); }
  static void Kill(const std::string& process) {
    ASSERT_TRUE(world_->cluster().Kill(process).ok());
  }
  static void Restart(const std::string& process) {
    absl::Status status = world_->cluster().Restart(process);
    if (status.ok() && process == "leaf-1") status = world_->RegisterEngine();
    ASSERT_TRUE(status.ok()) << status;
  }

  static WatchedCluster* world_;
};
WatchedCluster* AlertsTest::world_ = nullptr;

// ---- In every run ----

TEST_F(AlertsTest, AHealthyClusterIsSilent) {
  // Judged with traffic, for longer than anything that counts here.
  ASSERT_TRUE(Await(
      [] {
        return world_->Has("increase(kvatlas_frontend_routes_total{fallback=\"none\"}[15s]) > 100");
      },
      kLong));
  for (const char* instance : {"leaf-0", "leaf-1", "hierarchy", "frontend"})
    for (PrometheusAlert& alert : world_->prometheus().Alerts())
      EXPECT_FALSE(alert.firing && !JudgesSpeed(alert.labels["alertname"]) &&
                   alert.labels["instance"] == Instance(instance))
          << instance << ": " << alert.labels["alertname"] << ": " << alert.annotations["summary"];
}

TEST_F(AlertsTest, ALeafKilled) {
  Kill("leaf-1");
  ExpectFires("KvatlasProcessDown", "instance", Instance("leaf-1"));
  ExpectFires("KvatlasCellsMissing", "instance", Instance("hierarchy"));
  for (PrometheusAlert& alert : world_->prometheus().Alerts())
    EXPECT_EQ(alert.annotations["summary"].find("no value"), std::string::npos)
        << alert.annotations["summary"];
  Restart("leaf-1");
  ExpectEnds("KvatlasProcessDown", Instance("leaf-1"));
}

TEST_F(AlertsTest, MessagesOfAnEngineLostAndLate) {
  ZmqTestEngine& engine = world_->engine();
  engine.WaitForSubscribers();
  uint64_t block = 1;
  engine.Publish(StoredBlockPayload(block, WallSeconds()));
  ASSERT_TRUE(Await([] { return world_->Has("kvatlas_engine_messages_total > 0"); }, kLong));
  // Four gaps, each with a message behind it.
  for (int i = 0; i < 4; ++i) {
    engine.Drop(StoredBlockPayload(++block, WallSeconds()));
    engine.Publish(StoredBlockPayload(++block, WallSeconds()));
  }
  ExpectFires("KvatlasGapsRepeating", "worker", "7");
  ExpectFires("KvatlasEngineMessagesLost", "worker", "7");
  EXPECT_FALSE(FiresNow("KvatlasEngineLagHigh"));
  engine.Publish(StoredBlockPayload(++block, WallSeconds() - 30));
  ExpectFires("KvatlasEngineLagHigh", "worker", "7");
  engine.Publish(StoredBlockPayload(++block, WallSeconds()));
  ExpectEnds("KvatlasEngineLagHigh", Instance("leaf-1"));
}

TEST_F(AlertsTest, AFullDisk) {
  if (world_->disk().empty()) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_FALSE(FiresNow("KvatlasCheckpointDiskFull"));
  const std::string filler = world_->disk() + "/filler";
  {
    std::ofstream file(filler);
    const std::string megabyte(size_t{1} << 20, 'x');
    while (file.write(megabyte.data(), static_cast<std::streamsize>(megabyte.size()))) {
    }
  }
  ExpectFires("KvatlasCheckpointDiskFull", "instance", Instance("leaf-0"));
  ExpectFires("KvatlasCheckpointFailing", "instance", Instance("leaf-0"));
  ExpectFires("KvatlasCheckpointOld", "instance", Instance("leaf-0"));
  fs::remove(filler);
  ExpectEnds("KvatlasCheckpointDiskFull", Instance("leaf-0"));
  ExpectEnds("KvatlasCheckpointOld", Instance("leaf-0"));
}

// ---- With ALERTS_TEST_ALL_FAULTS ----

class LongAlertsTest : public AlertsTest {
 protected:
  void SetUp() override {
    AlertsTest::SetUp();
    if (!All()) GTEST_SKIP() << "of long_alerts_test";
  }
};

TEST_F(LongAlertsTest, ALeafStopped) {
  const pid_t leaf = world_->PidOf("leaf-0");
  ASSERT_EQ(kill(leaf, SIGSTOP), 0);
  ExpectFires("KvatlasProcessDown", "instance", Instance("leaf-0"));
  ExpectFires("KvatlasCellsMissing", "domain", "mock");
  ASSERT_EQ(kill(leaf, SIGCONT), 0);
  ExpectEnds("KvatlasProcessDown", Instance("leaf-0"));
}

TEST_F(LongAlertsTest, TheHierarchyKilled) {
  Kill("hierarchy");
  ExpectFires("KvatlasProcessDown", "instance", Instance("hierarchy"));
  ExpectFires("KvatlasParentUnreachable", "instance", Instance("leaf-0"));
  ExpectFires("KvatlasFallbacksHigh", "instance", Instance("frontend"));
  Restart("hierarchy");
  ExpectEnds("KvatlasParentUnreachable", Instance("leaf-0"));
  ExpectEnds("KvatlasFallbacksHigh", Instance("frontend"));
}

TEST_F(LongAlertsTest, AllLeavesKilled) {
  for (const char* leaf : {"leaf-0", "leaf-1"}) Kill(leaf);
  ExpectFires("KvatlasRoutesByLoadAlone", "instance", Instance("frontend"));
  for (const char* leaf : {"leaf-0", "leaf-1"}) Restart(leaf);
  ExpectEnds("KvatlasRoutesByLoadAlone", Instance("frontend"));
}

TEST_F(LongAlertsTest, EnginesKilled) {
  const std::string one = world_->cluster().WorkerName(0), other = world_->cluster().WorkerName(1);
  Kill(one);
  ExpectFires("KvatlasWorkerMasked", "instance", Instance("leaf-0"));
  EXPECT_FALSE(FiresNow("KvatlasLeafStale"));
  Kill(other);
  ExpectFires("KvatlasLeafStale", "instance", Instance("leaf-0"));
  Restart(one);
  Restart(other);
  ExpectEnds("KvatlasLeafStale", Instance("leaf-0"));
  ExpectEnds("KvatlasWorkerMasked", Instance("leaf-0"));
}

TEST_F(LongAlertsTest, AnEngineThatCannotBeReached) {
  world_->engine().Stop();
  ExpectFires("KvatlasEngineUnreachable", "worker", "7");
  world_->engine().Start();
  ExpectEnds("KvatlasEngineUnreachable", Instance("leaf-1"));
}

TEST_F(LongAlertsTest, AnEngineOfAnotherBlockSizeAndOneThatCannotBeRead) {
  world_->engine().WaitForSubscribers();
  world_->engine().Publish(StoredBlockPayload(1000, WallSeconds(), 32));
  ExpectFires("KvatlasEngineEventsRefused", "worker", "7");
  world_->engine().Publish("no msgpack at all");
  ExpectFires("KvatlasEngineEventsUnreadable", "worker", "7");
}

TEST_F(LongAlertsTest, ASenderThatHoldsSomethingElseThanItSaid) {
  Attacker sender(MakeChannel(world_->cluster().leaf(0)), HelloOf(kLeaf, "drifts", "drifting"));
  ASSERT_TRUE(sender.welcomed()) << sender.refusal().error_message();
  ASSERT_TRUE(
      Await([] { return world_->Has("kvatlas_leaf_holders{domain=\"drifting\"}"); }, kLong));
  Digest digest;
  digest.Add(Tier::kDevice, SequenceHash{999});
  const Stored stored{
      .tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = {SequenceHash{1}}};
  ASSERT_TRUE(sender.Say(Batch{.number = 1, .events = {stored}, .load = {}, .digest = digest}));
  ExpectFires("KvatlasDigestDrift", "domain", "drifting");
}

TEST_F(LongAlertsTest, TwoWorkersOfOneName) {
  const Hello younger = HelloOf(kLeaf, "w", "twice");
  Hello older = younger;
  older.epoch -= 1;
  older.instance_id += 1;
  Attacker first(MakeChannel(world_->cluster().leaf(0)), younger);
  ASSERT_TRUE(first.welcomed()) << first.refusal().error_message();
  ASSERT_TRUE(
      Await([] { return world_->Has("kvatlas_leaf_names_claimed_twice_total{domain=\"twice\"}"); },
            kLong));
  Attacker second(MakeChannel(world_->cluster().leaf(0)), older);
  EXPECT_FALSE(second.welcomed());
  ExpectFires("KvatlasNameClaimedTwice", "domain", "twice");
  ExpectFires("KvatlasStreamsRefused", "instance", Instance("leaf-0"));
}

TEST_F(LongAlertsTest, RedisGone) {
  EXPECT_FALSE(FiresNow("KvatlasRedisUnreachable"));
  world_->redis().Kill();
  ExpectFires("KvatlasRedisUnreachable");
  world_->redis().Start();
  EXPECT_TRUE(Await([] { return !FiresNow("KvatlasRedisUnreachable"); }, kLong));
}

TEST_F(LongAlertsTest, DescriptorsRunShort) {
  rlimit before;
  const pid_t leaf = world_->PidOf("leaf-0");
  ASSERT_EQ(prlimit(leaf, RLIMIT_NOFILE, nullptr, &before), 0);
  const auto open = static_cast<rlim_t>(std::distance(
      fs::directory_iterator(absl::StrCat("/proc/", leaf, "/fd")), fs::directory_iterator()));
  const rlimit tight = {.rlim_cur = open + open / 10 + 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(prlimit(leaf, RLIMIT_NOFILE, &tight, nullptr), 0);
  ExpectFires("KvatlasDescriptorsHigh", "instance", Instance("leaf-0"));
  ASSERT_EQ(prlimit(leaf, RLIMIT_NOFILE, &before, nullptr), 0);
  ExpectEnds("KvatlasDescriptorsHigh", Instance("leaf-0"));
}

// The last one with the frontend: it goes on.
TEST_F(LongAlertsTest, PredictionsThatDoNotHold) {
  EXPECT_FALSE(FiresNow("KvatlasFinding"));
  world_->Lie();
  ExpectFires("KvatlasPredictionsWrong", "instance", Instance("frontend"));
  ExpectFires("KvatlasFinding", "instance", Instance("frontend"));
}

TEST_F(LongAlertsTest, MemoryBeyondItsBudget) { ExpectFires("KvatlasMemoryCritical"); }

TEST_F(LongAlertsTest, AProcessThatIsExposed) { ExpectFires("KvatlasInsecure"); }

TEST_F(LongAlertsTest, ACertificateThatEndsAndAReplacementThatIsNone) {
  ExpectFires("KvatlasCertificateExpired");
  std::ofstream(world_->certificate()) << "no certificate\n";
  ExpectFires("KvatlasPolicyReloadFailed");
}

}  // namespace
}  // namespace kvatlas
