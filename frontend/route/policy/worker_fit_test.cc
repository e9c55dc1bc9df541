#include "frontend/route/policy/worker_fit.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

const HolderId kWorker = {.name = "w0", .rank = 0, .replica = ""};

Fit FitWith(const WorkerFilter& filter, const WorkerLabels& own = {},
            const WorkerLabels& of_cell = {}) {
  return FitOf(filter, kWorker, &own, &of_cell, std::nullopt, {});
}

TEST(WorkerFitTest, WithoutWishesEverybodyFits) {
  EXPECT_EQ(FitOf({}, kWorker, nullptr, nullptr, std::nullopt, {}), Fit::kFits);
}

TEST(WorkerFitTest, OnlyNamedWorkersAreAllowedAndNoExcludedOnes) {
  const std::vector<std::string> with = {"w0", "x"}, without = {"x"};
  EXPECT_EQ(FitWith({.allowed_workers = with}), Fit::kFits);
  EXPECT_EQ(FitWith({.allowed_workers = without}), Fit::kNotAllowed);
  EXPECT_EQ(FitWith({.excluded_workers = with}), Fit::kNotAllowed);
  EXPECT_EQ(FitWith({.excluded_workers = without}), Fit::kFits);
}

TEST(WorkerFitTest, RequiredLabelsAreTheWorkersOwnOrItsCells) {
  const std::map<std::string, std::string> required = {{"gpu", "h100"}, {"zone", "a"}};
  const WorkerFilter filter = {.required_labels = &required};
  EXPECT_EQ(FitWith(filter), Fit::kNotAllowed);
  EXPECT_EQ(FitWith(filter, {{"gpu", "h100"}}, {{"zone", "a"}}), Fit::kFits);
  EXPECT_EQ(FitWith(filter, {{"gpu", "l40"}}, {{"gpu", "h100"}, {"zone", "a"}}), Fit::kNotAllowed)
      << "its own goes first";
}

TEST(WorkerFitTest, DrainingWorkersTakeNothingWhoeverSaysSo) {
  const std::set<std::string> draining = {"w0"};
  EXPECT_EQ(FitWith({.draining = &draining}), Fit::kNotAllowed);
  EXPECT_EQ(FitWith({}, {{"draining", "true"}}), Fit::kNotAllowed);
  EXPECT_EQ(FitWith({}, {}, {{"draining", "1"}}), Fit::kNotAllowed);
  EXPECT_EQ(FitWith({}, {{"draining", "false"}}), Fit::kFits);
}

TEST(WorkerFitTest, TenantsAreListed) {
  const WorkerLabels labels = {{"tenants", "a,bc"}};
  EXPECT_EQ(FitWith({.tenant = "a"}, labels), Fit::kFits);
  EXPECT_EQ(FitWith({.tenant = "bc"}, labels), Fit::kFits);
  EXPECT_EQ(FitWith({.tenant = "b"}, labels), Fit::kNotAllowed);
  EXPECT_EQ(FitWith({.tenant = ""}, labels), Fit::kNotAllowed);
}

TEST(WorkerFitTest, EveryThresholdOverloadsByItself) {
  const Load load = {.running_requests = 3,
                     .waiting_requests = 2,
                     .used_blocks = 80,
                     .free_blocks = 20,
                     .waiting_prefill_blocks = 50};
  const InFlight in_flight = {.blocks = 10, .requests = 1};
  const auto fit = [&](OverloadThresholds overload) {
    return FitOf({.overload = overload}, kWorker, nullptr, nullptr, load, in_flight);
  };
  EXPECT_EQ(fit({}), Fit::kFits);
  EXPECT_EQ(fit({.queue_blocks = 61}), Fit::kFits);
  EXPECT_EQ(fit({.queue_blocks = 60}), Fit::kOverloaded);
  EXPECT_EQ(fit({.requests = 7}), Fit::kFits);
  EXPECT_EQ(fit({.requests = 6}), Fit::kOverloaded);
  EXPECT_EQ(fit({.used_share = 0.81}), Fit::kFits);
  EXPECT_EQ(fit({.used_share = 0.8}), Fit::kOverloaded);
  EXPECT_EQ(QueueExcess({.queue_blocks = 55}, load, in_flight), 6u);
  EXPECT_EQ(QueueExcess({.queue_blocks = 61}, load, in_flight), 0u);
}

TEST(WorkerFitTest, AWorkerOfUnknownLoadIsBelowEveryThreshold) {
  EXPECT_EQ(FitOf({.overload = {.queue_blocks = 1, .requests = 1, .used_share = 0.1}}, kWorker,
                  nullptr, nullptr, std::nullopt, {}),
            Fit::kFits);
}

TEST(WorkerFitTest, NotAllowedGoesBeforeOverloaded) {
  const std::vector<std::string> excluded = {"w0"};
  EXPECT_EQ(FitOf({.excluded_workers = excluded, .overload = {.requests = 1}}, kWorker, nullptr,
                  nullptr, Load{.running_requests = 9}, {}),
            Fit::kNotAllowed);
}

TEST(WorkerFitTest, RolesAreTheWorkersOrItsCells) {
  const WorkerLabels prefill = {{"role", "prefill"}}, decode = {{"role", "decode"}};
  EXPECT_EQ(RoleOf(nullptr, nullptr), Role::kBoth);
  EXPECT_EQ(RoleOf(&prefill, &decode), Role::kPrefill);
  EXPECT_EQ(RoleOf(nullptr, &decode), Role::kDecode);
}

}  // namespace
}  // namespace kvatlas
