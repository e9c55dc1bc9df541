#include "indexer/service/security/quotas.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(QuotasTest, WhatIsHeldIsBoundedUntilItIsGivenBack) {
  ManualClock clock;
  Quotas quotas(&clock);
  const PolicyQuota quota{.streams = 2};
  EXPECT_TRUE(quotas.Take("a", QuotaKind::kStreams, 1, quota).ok());
  EXPECT_TRUE(quotas.Take("a", QuotaKind::kStreams, 1, quota).ok());
  const absl::Status refused = quotas.Take("a", QuotaKind::kStreams, 1, quota);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("streams"), std::string::npos) << refused;
  EXPECT_TRUE(quotas.Take("b", QuotaKind::kStreams, 1, quota).ok());
  quotas.GiveBack("a", QuotaKind::kStreams, 1);
  EXPECT_TRUE(quotas.Take("a", QuotaKind::kStreams, 1, quota).ok());
  EXPECT_EQ(quotas.refused(QuotaKind::kStreams), 1);
}

TEST(QuotasTest, RatesFillUpAgain) {
  ManualClock clock;
  Quotas quotas(&clock);
  const PolicyQuota quota{.queries_per_s = 10};
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += quotas.Take("a", QuotaKind::kQueries, 1, quota).ok();
  EXPECT_EQ(taken, 10);
  clock.Advance(std::chrono::milliseconds(500));
  taken = 0;
  for (int i = 0; i < 100; ++i) taken += quotas.Take("a", QuotaKind::kQueries, 1, quota).ok();
  EXPECT_EQ(taken, 5);
}

TEST(QuotasTest, WithoutABoundNothingIsRefused) {
  ManualClock clock;
  Quotas quotas(&clock);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(quotas.Take("a", QuotaKind::kQueries, 1, {}).ok());
    ASSERT_TRUE(quotas.Take("a", QuotaKind::kStreams, 1, {}).ok());
  }
}

TEST(QuotasTest, IdentitiesWithoutEndDoNotForgetWhatIsHeld) {
  ManualClock clock;
  Quotas quotas(&clock);
  const PolicyQuota quota{.streams = 1};
  ASSERT_TRUE(quotas.Take("held", QuotaKind::kStreams, 1, quota).ok());
  for (size_t i = 0; i < 3 * kQuotaIdentitiesMax; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_TRUE(quotas.Take(name, QuotaKind::kStreams, 1, quota).ok());
    quotas.GiveBack(name, QuotaKind::kStreams, 1);
  }
  EXPECT_FALSE(quotas.Take("held", QuotaKind::kStreams, 1, quota).ok());
}

}  // namespace
}  // namespace kvatlas
