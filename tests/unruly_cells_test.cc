// What does a cell cost the others that floods, lies, or takes another's name? Nothing: they are
// heard and answered for as before, and the statistics name who it was.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "hierarchy/hierarchy.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/waypoints.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

const Domain kDomain{"m", ""};
constexpr uint32_t kBlocks = 2000;

SequenceHash WaypointOf(const std::string& whose, uint64_t number) {
  return SequenceHash{Xxh3(whose, number + 1)};
}

// A cell that says what it is told to say.
class Cell {
 public:
  Cell(Hierarchy* hierarchy, const std::string& name)
      : session_(hierarchy->registry().Accept(
            [this](ReceiverMessage message) { replies_.push_back(std::move(message)); })) {
    hello_ = {.holder = {.name = name, .rank = 0, .replica = ""},
              .domain = kDomain,
              .block_size = 16,
              .contract_id = HashContract().Id(),
              .schedule = WaypointSchedule::Standard().Name(),
              .epoch = 10,
              .instance_id = 1,
              .address = "",
              .labels = {}};
  }

  absl::Status SayHello() { return session_->OnMessage(hello_); }
  absl::Status Send(std::vector<Event> events) {
    return session_->OnMessage(
        Batch{.number = ++number_, .events = std::move(events), .load = {}, .digest = {}});
  }
  absl::Status SendAgain(BatchNumber number, std::vector<Event> events) {
    return session_->OnMessage(
        Batch{.number = number, .events = std::move(events), .load = {}, .digest = {}});
  }

  // All but the first `depth` waypoints of the prompt are withdrawn, or these are announced.
  absl::Status Cover(const std::vector<SequenceHash>& prompt, uint32_t depth) {
    const Stored stored{.tier = Tier::kDevice,
                        .position = 0,
                        .parent = kNoParent,
                        .blocks = {prompt.begin(), prompt.begin() + depth}};
    const Removed removed{.tier = Tier::kDevice, .blocks = {prompt.begin() + depth, prompt.end()}};
    return Send({removed, stored});
  }

  Hello& hello() { return hello_; }
  BatchNumber number() const { return number_; }

 private:
  std::vector<ReceiverMessage> replies_;
  Hello hello_;
  BatchNumber number_ = 0;
  const std::unique_ptr<ReceiverSession> session_;
};

class UnrulyCellsTest : public testing::Test {
 protected:
  UnrulyCellsTest() : hierarchy_({.node = "node", .registry = {}}) {
    ConfigureLog({.component = "unruly_cells_test", .level_min = LogLevel::kError});
    for (uint32_t i = 0; i < WaypointSchedule::Standard().WaypointsIn(kBlocks); ++i)
      prompt_.push_back(WaypointOf("prompt", i));
    good_ = std::make_unique<Cell>(&hierarchy_, "good");
    EXPECT_TRUE(good_->SayHello().ok());
    EXPECT_TRUE(good_->Cover(prompt_, 2).ok());
  }

  // How many waypoints of the prompt the cell covers, for sure; nothing: it is in no answer.
  std::optional<uint32_t> DepthOf(const std::string& cell) {
    const absl::StatusOr<FoundCells> found =
        hierarchy_.FindCells({.domain = kDomain,
                              .waypoints = prompt_,
                              .blocks = kBlocks,
                              .schedule = hierarchy_.schedule_name()});
    EXPECT_TRUE(found.ok()) << found.status();
    for (const FoundCell& of : found->cells) {
      if (of.cell->id.name != cell) continue;
      EXPECT_EQ(of.trust, Trust::kExact);
      return WaypointSchedule::Standard().WaypointsIn(of.blocks_at_least);
    }
    return std::nullopt;
  }

  HolderStats StatsOf(const std::string& cell) {
    DomainStats stats = *hierarchy_.registry().StatsOf(kDomain);
    for (HolderStats& of : stats.holders)
      if (of.holder != nullptr && of.holder->id.name == cell) return std::move(of);
    ADD_FAILURE() << cell << " is not there";
    return {};
  }

  Hierarchy hierarchy_;
  std::vector<SequenceHash> prompt_;
  std::unique_ptr<Cell> good_;
};

// Far beyond the credit that it was given.
TEST_F(UnrulyCellsTest, OneThatFloodsIsHeardInItsTurnAndNamedAndTheOthersAreAsCurrentAsBefore) {
  Cell flood(&hierarchy_, "flood");
  ASSERT_TRUE(flood.SayHello().ok());
  const uint64_t batches = 4 * HolderRegistryOptions().receiver.credit_batches;
  std::atomic<uint64_t> sent{0};
  std::thread flooding([&] {
    for (uint64_t i = 0; i < batches; ++i) {
      Stored stored{.tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = {}};
      for (uint64_t j = 0; j < 1000; ++j)
        stored.blocks.push_back(WaypointOf("flood", 1000 * i + j));
      EXPECT_TRUE(flood.Send({std::move(stored)}).ok());
      sent.store(i + 1);
    }
  });
  uint32_t depth = 0;
  do {
    depth = depth % static_cast<uint32_t>(prompt_.size()) + 1;
    EXPECT_TRUE(good_->Cover(prompt_, depth).ok());
    EXPECT_EQ(DepthOf("good"), depth) << "at once, whatever waits of the other";
  } while (sent.load() < batches);
  flooding.join();
  EXPECT_EQ(DepthOf("flood"), 0u);
  EXPECT_EQ(StatsOf("flood").blocks, 1000 * batches);
  EXPECT_EQ(StatsOf("good").blocks, depth);
}

TEST_F(UnrulyCellsTest, ABatchBeyondTheBoundEndsItsConnectionAndChangesNothing) {
  Cell unruly(&hierarchy_, "unruly");
  ASSERT_TRUE(unruly.SayHello().ok());
  ASSERT_TRUE(unruly.Cover(prompt_, 1).ok());
  Stored stored{.tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = {}};
  for (uint64_t i = 0; i <= kBatchBlocksMax; ++i) stored.blocks.push_back(WaypointOf("more", i));
  EXPECT_EQ(unruly.Send({std::move(stored)}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StatsOf("unruly").blocks, 1u);
  EXPECT_EQ(DepthOf("unruly"), 1u);
  EXPECT_EQ(DepthOf("good"), 2u);
}

TEST_F(UnrulyCellsTest, OneThatLiesAboutItsScheduleIsRefusedAndCounted) {
  Cell liar(&hierarchy_, "liar");
  liar.hello().schedule = "every:7";
  EXPECT_EQ(liar.SayHello().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(hierarchy_.registry().Stats().streams_refused, 1u);
  EXPECT_FALSE(liar.Cover(prompt_, 5).ok());
  EXPECT_EQ(DepthOf("liar"), std::nullopt);
  EXPECT_EQ(DepthOf("good"), 2u);
}

TEST_F(UnrulyCellsTest, ANameThatALiveCellHasIsTakenByAYoungerOneOnly) {
  for (const auto& [epoch, instance] : {std::pair(10, 2), std::pair(9, 2)}) {
    Cell twin(&hierarchy_, "good");
    twin.hello().epoch = static_cast<Epoch>(epoch);
    twin.hello().instance_id = static_cast<uint64_t>(instance);
    EXPECT_EQ(twin.SayHello().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(twin.Cover(prompt_, 4).ok());
    EXPECT_EQ(DepthOf("good"), 2u);
    EXPECT_TRUE(good_->Cover(prompt_, 2).ok()) << "its connection goes on";
  }
  EXPECT_EQ(hierarchy_.registry().Stats().streams_refused, 2u);
}

TEST_F(UnrulyCellsTest, OneThatGoesBackInItsNumbersIsNotHeardTwice) {
  ASSERT_TRUE(good_->Cover(prompt_, 3).ok());
  const Removed removed{.tier = Tier::kDevice, .blocks = prompt_};
  for (BatchNumber number = 1; number <= good_->number(); ++number)
    EXPECT_TRUE(good_->SendAgain(number, {removed}).ok());
  EXPECT_EQ(DepthOf("good"), 3u);
  EXPECT_EQ(StatsOf("good").receiver.batches_duplicate, good_->number());
}

}  // namespace
}  // namespace kvatlas
