#include "indexer/transport/holder_metrics.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kContract[] = "xxh3-chain-1:1337";

class HolderMetricsTest : public ::testing::Test {
 protected:
  HolderMetricsTest() { AddHolderMetrics(&registry_, "kvatlas_leaf", &metrics_); }

  static HolderRegistryOptions Options(const Clock* clock) {
    HolderRegistryOptions options;
    options.contract_id = kContract;
    options.clock = clock;
    return options;
  }

  ReceiverSession* Hears(const std::string& name) {
    sessions_.push_back(registry_.Accept([](ReceiverMessage) {}));
    Hello hello;
    hello.holder = {name, 0, ""};
    hello.domain = {"m", ""};
    hello.block_size = 16;
    hello.contract_id = kContract;
    hello.epoch = 1;
    hello.instance_id = 1;
    EXPECT_TRUE(sessions_.back()->OnMessage(hello).ok());
    return sessions_.back().get();
  }

  static void Store(ReceiverSession* session, BatchNumber number) {
    Batch batch;
    batch.number = number;
    batch.events.push_back(Stored{.tier = Tier::kDevice,
                                  .position = 0,
                                  .parent = kNoParent,
                                  .blocks = {SequenceHash{number}}});
    EXPECT_TRUE(session->OnMessage(std::move(batch)).ok());
  }

  std::string Text() { return metrics_.Text(); }

  ManualClock clock_;
  HolderRegistry registry_{Options(&clock_)};
  std::vector<std::unique_ptr<ReceiverSession>> sessions_;
  Metrics metrics_;
};

TEST_F(HolderMetricsTest, AStreamHasItsAgeAndHowFarItIsBehind) {
  ReceiverSession* const session = Hears("w");
  Store(session, 1);
  clock_.Advance(milliseconds(1500));
  EXPECT_THAT(Text(),
              HasSubstr("kvatlas_leaf_stream_age_seconds{domain=\"m\",holder=\"w/0\"} 1.5\n"));
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_stream_age_max_seconds{domain=\"m\"} 1.5\n"));
  EXPECT_THAT(Text(),
              HasSubstr("kvatlas_leaf_stream_behind_batches{domain=\"m\",holder=\"w/0\"} 0\n"));
  // Four were sent, one came.
  EXPECT_TRUE(session->OnMessage(Heartbeat{.last_sent = 4}).ok());
  EXPECT_THAT(Text(),
              HasSubstr("kvatlas_leaf_stream_behind_batches{domain=\"m\",holder=\"w/0\"} 3\n"));
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_stream_trust{domain=\"m\",holder=\"w/0\"} 1\n"));
  for (BatchNumber number = 2; number <= 4; ++number) Store(session, number);
  EXPECT_THAT(Text(),
              HasSubstr("kvatlas_leaf_stream_behind_batches{domain=\"m\",holder=\"w/0\"} 0\n"));
}

TEST_F(HolderMetricsTest, AMaskedStreamIsNotTheOldestLiveOne) {
  Store(Hears("old"), 1);
  clock_.Advance(seconds(8));
  Store(Hears("young"), 1);
  clock_.Advance(seconds(3));
  registry_.Tick();
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_stream_masked{domain=\"m\",holder=\"old/0\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_stream_masked{domain=\"m\",holder=\"young/0\"} 0\n"));
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_stream_age_max_seconds{domain=\"m\"} 3\n"));
}

TEST_F(HolderMetricsTest, OfTooManyStreamsTheWorstAreShown) {
  for (size_t i = 0; i < kStreamSeriesMax; ++i) Store(Hears("w" + std::to_string(i)), 1);
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_streams_not_shown 0\n"));
  clock_.Advance(seconds(1));
  Store(Hears("fresh"), 1);
  ReceiverSession* const gap = Hears("gap");
  Store(gap, 1);
  Store(gap, 3);
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_streams_not_shown 2\n"));
  EXPECT_THAT(Text(), HasSubstr("kvatlas_leaf_stream_trust{domain=\"m\",holder=\"gap/0\"} 1\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("holder=\"fresh/0\"")));
}

TEST_F(HolderMetricsTest, CountersHaveTheirFormerNamesForOneRelease) {
  ReceiverSession* const session = Hears("w");
  Store(session, 1);
  Store(session, 3);
  EXPECT_THAT(Text(), HasSubstr("# TYPE kvatlas_leaf_gaps_total counter\n"
                                "kvatlas_leaf_gaps_total{domain=\"m\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("see kvatlas_leaf_gaps_total.\n# TYPE kvatlas_leaf_gaps gauge\n"
                                "kvatlas_leaf_gaps{domain=\"m\"} 1\n"));
  clock_.Advance(seconds(11));
  registry_.Tick();
  EXPECT_THAT(Text(), HasSubstr("# TYPE kvatlas_leaf_holders_expired_total counter\n"
                                "kvatlas_leaf_holders_expired_total 1\n"));
  EXPECT_THAT(Text(), HasSubstr("\nkvatlas_leaf_holders_expired 1\n"));
}

}  // namespace
}  // namespace kvatlas
