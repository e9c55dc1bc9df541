#include "indexer/holders/peer_quotas.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

using ChargePtr = std::shared_ptr<const PeerQuotas::Charge>;

PeerLimits Limits(uint64_t domains, uint64_t holders, uint64_t label_bytes) {
  return {.domains = {domains, "--domains"},
          .holders = {holders, "--holders"},
          .label_bytes = {label_bytes, "--bytes"}};
}

TEST(PeerQuotasTest, WhatIsGivenBackMayBeTakenAgain) {
  PeerQuotas quotas(Limits(2, 1, 100));
  absl::StatusOr<ChargePtr> first = quotas.TakeDomain("10.0.0.7");
  absl::StatusOr<ChargePtr> second = quotas.TakeDomain("10.0.0.7");
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = quotas.TakeDomain("10.0.0.7").status();
  EXPECT_TRUE(absl::IsResourceExhausted(third));
  EXPECT_EQ(third.message(),
            "address 10.0.0.7 has announced models up to its limit of 2: where that many are right "
            "behind one address, raise --domains");
  EXPECT_TRUE(quotas.TakeDomain("10.0.0.8").ok()) << "another address has its own";
  first->reset();
  EXPECT_TRUE(quotas.TakeDomain("10.0.0.7").ok());
}

TEST(PeerQuotasTest, AHolderThatSaysHelloAgainCountsOnce) {
  PeerQuotas quotas(Limits(1, 1, 100));
  absl::StatusOr<ChargePtr> holder = quotas.TakeHolder("10.0.0.7", 80, nullptr);
  ASSERT_TRUE(holder.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(quotas.TakeHolder("10.0.0.7", 1, nullptr).status()));
  absl::StatusOr<ChargePtr> again = quotas.TakeHolder("10.0.0.7", 100, *holder);
  ASSERT_TRUE(again.ok()) << again.status();
  holder = *std::move(again);
  EXPECT_TRUE(absl::IsResourceExhausted(quotas.TakeHolder("10.0.0.7", 101, *holder).status()));
  absl::StatusOr<ChargePtr> moved = quotas.TakeHolder("10.0.0.8", 10, *holder);
  ASSERT_TRUE(moved.ok());
  holder = *std::move(moved);
  EXPECT_TRUE(quotas.TakeHolder("10.0.0.7", 100, nullptr).ok()) << "it counts elsewhere now";
}

TEST(PeerQuotasTest, LabelsOfAllHoldersOfAnAddressCountTogether) {
  PeerQuotas quotas(Limits(1, 0, 100));
  const absl::StatusOr<ChargePtr> first = quotas.TakeHolder("10.0.0.7", 60, nullptr);
  const absl::StatusOr<ChargePtr> second = quotas.TakeHolder("10.0.0.7", 60, nullptr);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(second.status()));
  EXPECT_NE(second.status().message().find("--bytes"), std::string::npos);
}

TEST(PeerQuotasTest, WhatComesWithoutAnAddressIsNotCounted) {
  PeerQuotas quotas(Limits(1, 1, 1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(quotas.TakeDomain("").ok());
    EXPECT_TRUE(quotas.TakeHolder("", 100, nullptr).ok());
  }
}

TEST(PeerQuotasTest, AChargeMayOutliveIt) {
  auto quotas = std::make_unique<PeerQuotas>(PeerLimits());
  absl::StatusOr<ChargePtr> charge = quotas->TakeDomain("10.0.0.7");
  quotas.reset();
  charge->reset();
}

}  // namespace
}  // namespace kvatlas
