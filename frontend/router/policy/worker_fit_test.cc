#include "frontend/router/policy/worker_fit.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

const HolderId kWorker = {.name = "w0", .rank = 0, .replica = ""};

bool Allowed(const WorkerFilter& filter, const WorkerLabels& own = {},
             const WorkerLabels& of_cell = {}) {
  return IsAllowed(filter, kWorker, &own, &of_cell);
}

TEST(WorkerFitTest, WithoutWishesEveryWorkerIsAllowed) {
  EXPECT_TRUE(IsAllowed({}, kWorker, nullptr, nullptr));
}

TEST(WorkerFitTest, OnlyNamedWorkersAreAllowedAndNoExcludedOnes) {
  const std::vector<std::string> with = {"w0", "x"}, without = {"x"};
  EXPECT_TRUE(Allowed({.allowed_workers = with}));
  EXPECT_FALSE(Allowed({.allowed_workers = without}));
  EXPECT_FALSE(Allowed({.excluded_workers = with}));
  EXPECT_TRUE(Allowed({.excluded_workers = without}));
}

TEST(WorkerFitTest, RequiredLabelsAreTheWorkersOwnOrItsCells) {
  const std::map<std::string, std::string> required = {{"gpu", "h100"}, {"zone", "a"}};
  const WorkerFilter filter = {.required_labels = &required};
  EXPECT_FALSE(Allowed(filter));
  EXPECT_TRUE(Allowed(filter, {{"gpu", "h100"}}, {{"zone", "a"}}));
  EXPECT_FALSE(Allowed(filter, {{"gpu", "l40"}}, {{"gpu", "h100"}, {"zone", "a"}}))
      << "its own goes first";
}

TEST(WorkerFitTest, DrainingWorkersTakeNothingWhoeverSaysSo) {
  const std::set<std::string> draining = {"w0"};
  EXPECT_FALSE(Allowed({.draining = &draining}));
  EXPECT_FALSE(Allowed({}, {{"draining", "true"}}));
  EXPECT_FALSE(Allowed({}, {}, {{"draining", "1"}}));
  EXPECT_TRUE(Allowed({}, {{"draining", "false"}}));
}

TEST(WorkerFitTest, TenantsAreListed) {
  const WorkerLabels labels = {{"tenants", "a,bc"}};
  EXPECT_TRUE(Allowed({.tenant = "a"}, labels));
  EXPECT_TRUE(Allowed({.tenant = "bc"}, labels));
  EXPECT_FALSE(Allowed({.tenant = "b"}, labels));
  EXPECT_FALSE(Allowed({.tenant = ""}, labels));
}

TEST(WorkerFitTest, EveryThresholdOverloadsByItself) {
  const Load load = {.running_requests = 3,
                     .waiting_requests = 2,
                     .used_blocks = 80,
                     .free_blocks = 20,
                     .waiting_prefill_blocks = 50};
  const InFlight in_flight = {.blocks = 10, .requests = 1};
  const auto over = [&](OverloadThresholds overload) {
    return IsOverloaded(overload, load, in_flight);
  };
  EXPECT_FALSE(over({}));
  EXPECT_FALSE(over({.queue_blocks = 61}));
  EXPECT_TRUE(over({.queue_blocks = 60}));
  EXPECT_FALSE(over({.requests = 7}));
  EXPECT_TRUE(over({.requests = 6}));
  EXPECT_FALSE(over({.used_share = 0.81}));
  EXPECT_TRUE(over({.used_share = 0.8}));
  EXPECT_EQ(QueueExcess({.queue_blocks = 55}, load, in_flight), 6u);
  EXPECT_EQ(QueueExcess({.queue_blocks = 61}, load, in_flight), 0u);
}

TEST(WorkerFitTest, AWorkerOfUnknownLoadIsBelowEveryThreshold) {
  EXPECT_FALSE(
      IsOverloaded({.queue_blocks = 1, .requests = 1, .used_share = 0.1}, std::nullopt, {}));
}

TEST(WorkerFitTest, RolesAreTheWorkersOrItsCells) {
  const WorkerLabels prefill = {{"role", "prefill"}}, decode = {{"role", "decode"}};
  EXPECT_EQ(RoleOf(nullptr, nullptr), Role::kBoth);
  EXPECT_EQ(RoleOf(&prefill, &decode), Role::kPrefill);
  EXPECT_EQ(RoleOf(nullptr, &decode), Role::kDecode);
}

}  // namespace
}  // namespace kvatlas
