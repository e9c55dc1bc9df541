#include "indexer/security/quotas.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

class QuotasTest : public testing::Test {
 protected:
  static QuotaUser Worker(const std::string& name, PolicyQuota quota) {
    return {.name = name, .user_class = static_cast<int>(IdentityRole::kWorker), .quota = quota};
  }
  static QuotaUser Tenant(const std::string& name, PolicyQuota quota) {
    return {.name = "tenant:" + name, .user_class = kTenantClass, .quota = quota};
  }
  std::shared_ptr<const QuotaHold> Hold(std::vector<QuotaUser> users, QuotaKind kind,
                                        double amount = 1, const QuotaHold* previous = nullptr) {
    auto held = quotas_.Hold(users, {{kind, amount}}, previous);
    status_ = held.status();
    return held.ok() ? *held : nullptr;
  }
  bool Takes(std::vector<QuotaUser> users, QuotaKind kind, double amount = 1) {
    status_ = quotas_.Take(users, kind, amount);
    return status_.ok();
  }

  ManualClock clock_;
  Quotas quotas_{&clock_};
  absl::Status status_;
};

TEST_F(QuotasTest, WhatIsHeldIsBoundedUntilItIsGivenBack) {
  const PolicyQuota two{.streams = 2};
  auto first = Hold({Worker("a", two)}, QuotaKind::kStreams);
  const auto second = Hold({Worker("a", two)}, QuotaKind::kStreams);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(Hold({Worker("a", two)}, QuotaKind::kStreams), nullptr);
  EXPECT_EQ(status_.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status_.message().find("streams"), std::string::npos) << status_;
  EXPECT_NE(Hold({Worker("b", two)}, QuotaKind::kStreams), nullptr);
  first = nullptr;
  EXPECT_NE(Hold({Worker("a", two)}, QuotaKind::kStreams), nullptr);
  EXPECT_EQ(quotas_.refused(QuotaKind::kStreams, static_cast<int>(IdentityRole::kWorker)), 1);
  EXPECT_EQ(quotas_.held(QuotaKind::kStreams, static_cast<int>(IdentityRole::kWorker)), 1);
}

TEST_F(QuotasTest, EveryKindThatIsHeldHasItsOwnBound) {
  const PolicyQuota quota{.connections = 1,
                          .streams = 2,
                          .domains = 3,
                          .holders = 4,
                          .label_bytes = 5,
                          .unread_bytes = 6};
  double bound = 1;
  for (const QuotaKind kind :
       {QuotaKind::kConnections, QuotaKind::kStreams, QuotaKind::kDomains, QuotaKind::kHolders,
        QuotaKind::kLabelBytes, QuotaKind::kUnreadBytes}) {
    EXPECT_NE(Hold({Worker("a", quota)}, kind, bound), nullptr) << QuotaKindName(kind);
    EXPECT_EQ(Hold({Worker("a", quota)}, kind, bound + 1), nullptr) << QuotaKindName(kind);
    ++bound;
  }
}

TEST_F(QuotasTest, RatesFillUpAgain) {
  for (const QuotaKind kind :
       {QuotaKind::kHellos, QuotaKind::kBlocks, QuotaKind::kQueries, QuotaKind::kDumps}) {
    const PolicyQuota ten{
        .hellos_per_s = 10, .blocks_per_s = 10, .queries_per_s = 10, .dumps_per_s = 10};
    int taken = 0;
    for (int i = 0; i < 100; ++i) taken += Takes({Worker("a", ten)}, kind);
    EXPECT_EQ(taken, 10) << QuotaKindName(kind);
    clock_.Advance(std::chrono::milliseconds(500));
    taken = 0;
    for (int i = 0; i < 100; ++i) taken += Takes({Worker("a", ten)}, kind);
    EXPECT_EQ(taken, 5) << QuotaKindName(kind);
  }
}

TEST_F(QuotasTest, ABatchLargerThanASecondsSharePassesWhenTheBucketIsFull) {
  EXPECT_TRUE(Takes({Worker("a", {.blocks_per_s = 10})}, QuotaKind::kBlocks, 30));
  clock_.Advance(std::chrono::milliseconds(2900));
  EXPECT_FALSE(Takes({Worker("a", {.blocks_per_s = 10})}, QuotaKind::kBlocks, 30));
  clock_.Advance(std::chrono::milliseconds(100));
  EXPECT_TRUE(Takes({Worker("a", {.blocks_per_s = 10})}, QuotaKind::kBlocks, 30));
}

TEST_F(QuotasTest, IdentitiesOfATenantShareItsBoundAndNothingIsTakenWhereOneRefuses) {
  const PolicyQuota many{.holders = 3, .queries_per_s = 100};
  const PolicyQuota of_tenant{.holders = 2, .queries_per_s = 5};
  const auto a = Hold({Worker("a", many), Tenant("x", of_tenant)}, QuotaKind::kHolders);
  const auto b = Hold({Worker("b", many), Tenant("x", of_tenant)}, QuotaKind::kHolders);
  EXPECT_NE(b, nullptr);
  EXPECT_EQ(Hold({Worker("c", many), Tenant("x", of_tenant)}, QuotaKind::kHolders), nullptr);
  EXPECT_NE(status_.message().find("tenant"), std::string::npos) << status_;
  EXPECT_EQ(quotas_.refused(QuotaKind::kHolders, kTenantClass), 1);
  // c was not charged: it may have three elsewhere.
  EXPECT_NE(Hold({Worker("c", many), Tenant("y", of_tenant)}, QuotaKind::kHolders, 2), nullptr);
  int taken = 0;
  for (int i = 0; i < 20; ++i)
    taken += Takes({Worker("d", many), Tenant("x", of_tenant)}, QuotaKind::kQueries);
  EXPECT_EQ(taken, 5);
  taken = 0;
  for (int i = 0; i < 200; ++i) taken += Takes({Worker("d", many)}, QuotaKind::kQueries);
  EXPECT_EQ(taken, 95);
}

TEST_F(QuotasTest, WhatIsReplacedDoesNotCountBesideItsReplacement) {
  const PolicyQuota quota{.label_bytes = 100};
  auto before = Hold({Worker("a", quota)}, QuotaKind::kLabelBytes, 80);
  auto after = Hold({Worker("a", quota)}, QuotaKind::kLabelBytes, 100, before.get());
  ASSERT_NE(after, nullptr);
  before = nullptr;
  EXPECT_EQ(Hold({Worker("a", quota)}, QuotaKind::kLabelBytes, 101, after.get()), nullptr);
  // Of another user it counts in full.
  EXPECT_NE(Hold({Worker("b", quota)}, QuotaKind::kLabelBytes, 100, after.get()), nullptr);
}

TEST_F(QuotasTest, WithoutABoundNothingIsRefused) {
  std::vector<std::shared_ptr<const QuotaHold>> held;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Takes({Worker("a", {})}, QuotaKind::kQueries));
    held.push_back(Hold({Worker("a", {})}, QuotaKind::kStreams));
    ASSERT_NE(held.back(), nullptr);
  }
  // They count once there is a bound.
  EXPECT_EQ(Hold({Worker("a", {.streams = 1000})}, QuotaKind::kStreams), nullptr);
}

TEST_F(QuotasTest, UsersWithoutEndDoNotForgetWhatIsHeld) {
  const PolicyQuota one{.streams = 1};
  const auto held = Hold({Worker("held", one)}, QuotaKind::kStreams);
  for (size_t i = 0; i < 3 * kQuotaUsersMax; ++i) {
    ASSERT_NE(Hold({Worker(std::to_string(i), one)}, QuotaKind::kStreams), nullptr);
  }
  EXPECT_EQ(Hold({Worker("held", one)}, QuotaKind::kStreams), nullptr);
}

// What was taken of a rate shows who is remembered: the bucket of one who is forgotten is full.
TEST_F(QuotasTest, UsersBeyondTheBoundAreForgottenOnceTheyHoldNothing) {
  const PolicyQuota one{.hellos_per_s = 1};
  const auto name = [](size_t i) { return std::to_string(i); };
  std::vector<std::shared_ptr<const QuotaHold>> holds;
  for (size_t i = 0; i < kQuotaUsersMax + 100; ++i) {
    ASSERT_TRUE(Takes({Worker(name(i), one)}, QuotaKind::kHellos));
    holds.push_back(Hold({Worker(name(i), one)}, QuotaKind::kStreams));
  }
  EXPECT_FALSE(Takes({Worker(name(0), one)}, QuotaKind::kHellos)) << "it holds a stream";
  for (auto& hold : holds) hold = nullptr;
  EXPECT_TRUE(Takes({Worker("new", one)}, QuotaKind::kHellos));
  EXPECT_FALSE(Takes({Worker(name(101), one)}, QuotaKind::kHellos));
  EXPECT_TRUE(Takes({Worker(name(99), one)}, QuotaKind::kHellos));
}

}  // namespace
}  // namespace kvatlas
