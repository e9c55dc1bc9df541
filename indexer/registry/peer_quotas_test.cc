#include "indexer/registry/peer_quotas.h"

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
  absl::StatusOr<ChargePtr> first = quotas.TakeDomain({.address = "10.0.0.7"}, "");
  absl::StatusOr<ChargePtr> second = quotas.TakeDomain({.address = "10.0.0.7"}, "");
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = quotas.TakeDomain({.address = "10.0.0.7"}, "").status();
  EXPECT_TRUE(absl::IsResourceExhausted(third));
  EXPECT_EQ(third.message(),
            "address 10.0.0.7 has announced models up to its limit of 2: where that many are right "
            "behind one address, raise --domains");
  EXPECT_TRUE(quotas.TakeDomain({.address = "10.0.0.8"}, "").ok()) << "another address has its own";
  first->reset();
  EXPECT_TRUE(quotas.TakeDomain({.address = "10.0.0.7"}, "").ok());
}

TEST(PeerQuotasTest, AHolderThatSaysHelloAgainCountsOnce) {
  PeerQuotas quotas(Limits(1, 1, 100));
  absl::StatusOr<ChargePtr> holder = quotas.TakeHolder({.address = "10.0.0.7"}, "", 80, nullptr);
  ASSERT_TRUE(holder.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      quotas.TakeHolder({.address = "10.0.0.7"}, "", 1, nullptr).status()));
  absl::StatusOr<ChargePtr> again = quotas.TakeHolder({.address = "10.0.0.7"}, "", 100, *holder);
  ASSERT_TRUE(again.ok()) << again.status();
  holder = *std::move(again);
  EXPECT_TRUE(absl::IsResourceExhausted(
      quotas.TakeHolder({.address = "10.0.0.7"}, "", 101, *holder).status()));
  absl::StatusOr<ChargePtr> moved = quotas.TakeHolder({.address = "10.0.0.8"}, "", 10, *holder);
  ASSERT_TRUE(moved.ok());
  holder = *std::move(moved);
  EXPECT_TRUE(quotas.TakeHolder({.address = "10.0.0.7"}, "", 100, nullptr).ok())
      << "it counts elsewhere now";
}

TEST(PeerQuotasTest, LabelsOfAllHoldersOfAnAddressCountTogether) {
  PeerQuotas quotas(Limits(1, 0, 100));
  const absl::StatusOr<ChargePtr> first =
      quotas.TakeHolder({.address = "10.0.0.7"}, "", 60, nullptr);
  const absl::StatusOr<ChargePtr> second =
      quotas.TakeHolder({.address = "10.0.0.7"}, "", 60, nullptr);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(second.status()));
  EXPECT_NE(second.status().message().find("--bytes"), std::string::npos);
}

TEST(PeerQuotasTest, WhatComesWithoutAnAddressIsNotCounted) {
  PeerQuotas quotas(Limits(1, 1, 1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(quotas.TakeDomain({.address = ""}, "").ok());
    EXPECT_TRUE(quotas.TakeHolder({.address = ""}, "", 100, nullptr).ok());
  }
}

TEST(PeerQuotasTest, AChargeMayOutliveIt) {
  auto quotas = std::make_unique<PeerQuotas>(PeerLimits());
  absl::StatusOr<ChargePtr> charge = quotas->TakeDomain({.address = "10.0.0.7"}, "");
  quotas.reset();
  charge->reset();
}

// Counts charges, and has a bound of them.
class CountingAllowance : public PeerAllowance {
 public:
  struct Counted : Charge {
    explicit Counted(int* given) : count(given) { ++*count; }
    ~Counted() override { --*count; }
    int* const count;
  };

  absl::StatusOr<ChargePtr> TakeDomain(const std::string& tenant) override {
    return Take(tenant, nullptr);
  }
  absl::StatusOr<ChargePtr> TakeHolder(const std::string& tenant, uint64_t,
                                       const ChargePtr& previous) override {
    return Take(tenant, previous);
  }
  Blocks BlocksOf(const std::string&) const override { return {}; }

  int taken = 0;
  bool told_previous = false;

 private:
  absl::StatusOr<ChargePtr> Take(const std::string& tenant, const ChargePtr& before) {
    told_previous = before != nullptr;
    if (tenant == "full") return absl::ResourceExhaustedError("the tenant's quota");
    return std::make_shared<const Counted>(&taken);
  }
};

TEST(PeerQuotasTest, WhatAnIdentityTookGoesWithTheCharge) {
  PeerQuotas quotas({.holders = {1, "holders"}});
  const auto allowance = std::make_shared<CountingAllowance>();
  // With an address, and without one, as of a stream through Redis.
  for (const std::string address : {"10.0.0.7", ""}) {
    const StreamPeer peer = {.address = address, .allowance = allowance};
    auto domain = quotas.TakeDomain(peer, "x");
    auto holder = quotas.TakeHolder(peer, "x", 10, nullptr);
    ASSERT_TRUE(domain.ok() && holder.ok());
    EXPECT_EQ(allowance->taken, 2);
    auto again = quotas.TakeHolder(peer, "x", 10, *holder);
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(allowance->told_previous) << "what is replaced";
    EXPECT_TRUE(absl::IsResourceExhausted(quotas.TakeHolder(peer, "full", 10, *holder).status()));
    domain = holder = again = nullptr;
    EXPECT_EQ(allowance->taken, 0);
  }
  // An identity is not charged for what its address may not take.
  const StreamPeer peer = {.address = "10.0.0.8", .allowance = allowance};
  const auto only = quotas.TakeHolder(peer, "x", 10, nullptr);
  EXPECT_FALSE(quotas.TakeHolder(peer, "x", 10, nullptr).ok());
  EXPECT_EQ(allowance->taken, 1);
}

}  // namespace
}  // namespace kvatlas
