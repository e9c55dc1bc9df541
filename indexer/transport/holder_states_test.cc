#include "indexer/transport/holder_states.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr char kContract[] = "xxh3-chain-1:1337";

class HolderStatesTest : public ::testing::Test {
 protected:
  static HolderRegistryOptions Options(const Clock* clock) {
    HolderRegistryOptions options;
    options.contract_id = kContract;
    options.clock = clock;
    return options;
  }

  std::unique_ptr<ReceiverSession> Hears(const std::string& name, Epoch epoch) {
    auto session = registry_.Accept([](ReceiverMessage) {});
    Hello hello;
    hello.holder = {name, 0, ""};
    hello.domain = {"m", ""};
    hello.block_size = 16;
    hello.contract_id = kContract;
    hello.epoch = epoch;
    hello.instance_id = epoch;
    (void)session->OnMessage(hello);
    return session;
  }

  void Store(ReceiverSession* session, BatchNumber number) {
    Batch batch;
    batch.number = number;
    batch.events.push_back(Stored{.tier = Tier::kDevice,
                                  .position = 0,
                                  .parent = kNoParent,
                                  .blocks = {SequenceHash{number}}});
    (void)session->OnMessage(std::move(batch));
  }

  std::string Text() const {
    std::string text;
    AppendHolderStates(registry_, "kvatlas_leaf", &text);
    return text;
  }

  ManualClock clock_;
  HolderRegistry registry_{Options(&clock_)};
};

TEST_F(HolderStatesTest, AHolderIsExactThenDegradedByAGapThenStaleAndMasked) {
  EXPECT_THAT(Text(), HasSubstr("# TYPE kvatlas_leaf_holders_masked gauge"));
  const auto session = Hears("w", 1);
  Store(session.get(), 1);
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_holders_by_trust{domain=\"m\",trust=\"exact\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_holders_masked{domain=\"m\"} 0\n"));
  Store(session.get(), 3);
  EXPECT_THAT(Text(),
              HasSubstr("kvatlas_leaf_holders_by_trust{domain=\"m\",trust=\"degraded\"} 1\n"));
  clock_.Advance(seconds(11));
  registry_.Tick();
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_holders_by_trust{domain=\"m\",trust=\"stale\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_holders_masked{domain=\"m\"} 1\n"));
}

TEST_F(HolderStatesTest, ANameThatTwoProcessesHaveIsCounted) {
  const auto younger = Hears("w", 2);
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_names_claimed_twice_total{domain=\"m\"} 0\n"));
  const auto older = Hears("w", 1);
  EXPECT_THAT(Text(), HasSubstr("# TYPE kvatlas_leaf_names_claimed_twice_total counter\n"
                                "kvatlas_leaf_names_claimed_twice_total{domain=\"m\"} 1\n"));
}

TEST_F(HolderStatesTest, ARepairThatNeverCameIsCounted) {
  const auto session = Hears("w", 1);
  Store(session.get(), 1);
  Store(session.get(), 3);
  // Heard all along, so that only the repair is late.
  for (BatchNumber number = 4; number < 24; ++number) {
    clock_.Advance(seconds(2));
    Store(session.get(), number);
    registry_.Tick();
  }
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_repairs_timed_out_total{domain=\"m\"} 1\n"));
}

}  // namespace
}  // namespace kvatlas
