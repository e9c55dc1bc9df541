#include "hierarchy/cells_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "indexer/base/ids.h"
#include "indexer/registry/holder_handle.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

const Domain kM = {"m", ""};
const Domain kN = {"n", "t"};

class CellsGateTest : public ::testing::Test {
 protected:
  CellsGateTest() { NewRegistry(); }
  ~CellsGateTest() override { std::remove(path_.c_str()); }

  void NewRegistry() {
    cells_.clear();
    HolderRegistryOptions options;
    options.clock = &clock_;
    registry_ = std::make_unique<HolderRegistry>(options);
  }
  CellsGate Gate(uint32_t expected, const std::string& file = "") {
    return CellsGate({.cells_expected = expected,
                      .file = file,
                      .ready_after = std::chrono::seconds(30),
                      .clock = &clock_});
  }
  HolderHandle& Add(const std::string& cell, const Domain& domain = kM,
                    const std::string& replica = "") {
    HolderInfo info;
    info.id = {.name = cell, .rank = 0, .replica = replica};
    auto holder = registry_->AddLocal(domain, 16, info);
    EXPECT_TRUE(holder.ok()) << holder.status();
    auto& at = cells_[cell + "@" + replica + "@" + ToString(domain)];
    at = *std::move(holder);
    return *at;
  }
  std::string Reason(CellsGate& gate) {
    gate.Look(*registry_);
    const Readiness readiness = gate.Get();
    return readiness.ready ? "ready" : readiness.reason;
  }
  std::string File() {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  ManualClock clock_;
  const std::string path_ = ::testing::TempDir() + "/cells." + std::to_string(getpid());
  std::unique_ptr<HolderRegistry> registry_;
  std::map<std::string, std::unique_ptr<HolderHandle>> cells_;
};

TEST_F(CellsGateTest, WithoutExpectationsItIsReadyAtOnce) {
  CellsGate gate = Gate(0);
  EXPECT_EQ(gate.Get().reason, "starting");
  EXPECT_EQ(Reason(gate), "ready");
}

TEST_F(CellsGateTest, AsManyCellsAsExpectedReportFirst) {
  CellsGate gate = Gate(2);
  EXPECT_EQ(Reason(gate), "0 of 2 cells have reported");
  Add("a");
  Add("a", kM, "other replica");
  EXPECT_EQ(Reason(gate), "1 of 2 cells have reported");
  Add("b").SetTrust(Trust::kDegraded);
  EXPECT_EQ(Reason(gate), "1 of 2 cells have reported, not b");
  cells_["b@@m"]->SetTrust(Trust::kExact);
  EXPECT_EQ(Reason(gate), "ready");
}

TEST_F(CellsGateTest, CellThatIsNotCaughtUpWithInOneDomainHasNotReported) {
  CellsGate gate = Gate(1);
  Add("a");
  HolderHandle& other = Add("a", kN);
  other.SetTrust(Trust::kDegraded);
  EXPECT_EQ(Reason(gate), "0 of 1 cells have reported, not a");
  other.SetTrust(Trust::kExact);
  EXPECT_EQ(Reason(gate), "ready");
}

TEST_F(CellsGateTest, ReadyItIsAfterSoLongAndReadyItStays) {
  CellsGate gate = Gate(2);
  Add("a");
  clock_.Advance(std::chrono::seconds(29));
  EXPECT_EQ(Reason(gate), "1 of 2 cells have reported");
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Reason(gate), "ready");
  NewRegistry();
  EXPECT_EQ(Reason(gate), "ready");
}

TEST_F(CellsGateTest, NodeThatStartsAgainWaitsForTheCellsThatItHad) {
  {
    CellsGate first = Gate(0, path_);
    EXPECT_EQ(Reason(first), "ready");
    Add("a");
    Add("a", kN);
    Add("b");
    first.Keep(*registry_);
    EXPECT_EQ(File(), "a\tm\na\tn|t\nb\tm\n");
  }
  NewRegistry();
  CellsGate again = Gate(0, path_);
  again.Keep(*registry_);
  EXPECT_EQ(File(), "a\tm\na\tn|t\nb\tm\n") << "it knows nothing yet";
  EXPECT_EQ(Reason(again), "0 of 2 cells have reported, not a, b");
  Add("a");
  Add("b");
  EXPECT_EQ(Reason(again), "1 of 2 cells have reported, not a");
  Add("a", kN);
  EXPECT_EQ(Reason(again), "ready");
  // A cell that said goodbye is no longer waited for.
  cells_.erase("b@@m");
  again.Keep(*registry_);
  EXPECT_EQ(File(), "a\tm\na\tn|t\n");
}

TEST_F(CellsGateTest, CellWithoutWhichItBecameReadyIsWaitedForAtTheNextStart) {
  std::ofstream(path_) << "a\tm\nb\tm\nc\tm\n";
  {
    CellsGate gate = Gate(0, path_);
    Add("a");
    clock_.Advance(std::chrono::seconds(30));
    EXPECT_EQ(Reason(gate), "ready");
    gate.Keep(*registry_);
    EXPECT_EQ(File(), "a\tm\nb\tm\nc\tm\n");
    // Heard, it counts as any other.
    Add("b");
    gate.Keep(*registry_);
    cells_.erase("b@@m");
    gate.Keep(*registry_);
    EXPECT_EQ(File(), "a\tm\nc\tm\n");
  }
  NewRegistry();
  CellsGate again = Gate(0, path_);
  Add("a");
  EXPECT_EQ(Reason(again), "1 of 2 cells have reported, not c");
  clock_.Advance(std::chrono::seconds(30));
  EXPECT_EQ(Reason(again), "ready");
  // It will not come any more.
  clock_.Advance(std::chrono::hours(1));
  again.Keep(*registry_);
  EXPECT_EQ(File(), "a\tm\n");
}

TEST_F(CellsGateTest, DamagedFileCountsForWhatCanBeRead) {
  std::ofstream(path_) << "a\tm\nno tab\n\t\t\n\xff\xfe\nb\tm";
  CellsGate gate = Gate(0, path_);
  EXPECT_THAT(Reason(gate), HasSubstr("not a, b"));
  std::remove(path_.c_str());
  EXPECT_EQ(Reason(gate), "0 of 2 cells have reported, not a, b");
  CellsGate none = Gate(0, path_);
  EXPECT_EQ(Reason(none), "ready");
}

}  // namespace
}  // namespace kvatlas
