// A fleet with scripted answers, and a frontend in front of it: for tests.

#ifndef KVATLAS_FRONTEND_ROUTER_FRONTEND_TEST_UTIL_H_
#define KVATLAS_FRONTEND_ROUTER_FRONTEND_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/routed.h"

namespace kvatlas {

inline HolderId Id(const std::string& name) { return {.name = name, .rank = 0, .replica = ""}; }

inline const Domain kDomain = {"m", ""};

// Hierarchies and leaves that answer at once from tables, or are down.
class FakeFleet : public CellFinder, public OverlapFinder {
 public:
  explicit FakeFleet(ManualClock* clock) : clock_(clock) {}

  void FindCells(const std::string& address, const CellQuestion& question, Duration deadline,
                 CellFinder::Callback callback) override {
    hierarchies_asked.push_back(address);
    waypoints_asked = question.waypoints.size();
    positions_asked[address].assign(question.positions.begin(), question.positions.end());
    if (hanging.contains(address)) {
      clock_->Advance(deadline);
      return callback(absl::DeadlineExceededError("late"));
    }
    if (refusing.contains(address)) {
      return callback(absl::FailedPreconditionError("schedule '" + question.schedule->Name() +
                                                    "' is not ours"));
    }
    const auto found = cells.find(address);
    if (found == cells.end()) return callback(absl::UnavailableError("down"));
    callback(found->second);
  }

  void FindOverlaps(const std::string& address, const OverlapQuestion& question, Duration deadline,
                    OverlapFinder::Callback callback) override {
    leaves_asked.push_back(address);
    blocks_asked = question.sequence.size();
    frontend_asked = question.frontend;
    first_asked = question.sequence.empty() ? kNoParent : question.sequence.front();
    if (hold) {
      held.push_back([this, address, callback] { Answer(address, callback); });
      return;
    }
    if (hanging.contains(address)) {
      clock_->Advance(deadline);
      return callback(absl::DeadlineExceededError("late"));
    }
    Answer(address, callback);
  }

  void Tell(const std::string& leaf, const Domain& domain, uint64_t frontend,
            const Routed& routed) override {
    told.push_back({.leaf = leaf,
                    .domain = domain,
                    .frontend = frontend,
                    .routed = routed,
                    .blocks = {routed.blocks.begin(), routed.blocks.end()}});
  }
  void End(const std::string& leaf, const Domain& domain, uint64_t frontend,
           const RouteOver& over_) override {
    over.push_back({.leaf = leaf, .domain = domain, .frontend = frontend, .over = over_});
  }

  void TellCell(const std::string& node, const Domain& domain, uint64_t frontend,
                const Routed& routed) override {
    cells_told.push_back({.leaf = node,
                          .domain = domain,
                          .frontend = frontend,
                          .routed = routed,
                          .blocks = {routed.blocks.begin(), routed.blocks.end()}});
  }

  void Answer(const std::string& address, const OverlapFinder::Callback& callback) {
    const auto found = workers.find(address);
    if (found == workers.end()) return callback(absl::UnavailableError("down"));
    callback(found->second);
  }

  void AddCell(const std::string& cell, uint32_t at_least, std::vector<WorkerFound> of_cell,
               Load load = {}) {
    cells["h"].cells.push_back({.cell = cell,
                                .address = cell + ":1",
                                .blocks_at_least = at_least,
                                .blocks_below = at_least + 32,
                                .load = load,
                                .labels = {}});
    workers[cell + ":1"] = {.workers = std::move(of_cell)};
  }

  std::map<std::string, CellsAnswer> cells;      // by hierarchy; missing: down
  std::map<std::string, WorkersAnswer> workers;  // by leaf; missing: down
  std::set<std::string> hanging;
  std::set<std::string> refusing;  // hierarchies with another schedule
  bool hold = false;
  std::vector<std::function<void()>> held;

  std::vector<std::string> hierarchies_asked;
  std::vector<std::string> leaves_asked;
  size_t waypoints_asked = 0;
  std::map<std::string, std::vector<Position>> positions_asked;  // by hierarchy
  size_t blocks_asked = 0;
  SequenceHash first_asked{0};
  uint64_t frontend_asked = 0;

  // A choice as a leaf heard it; `routed.blocks` is not valid any more.
  struct Told {
    std::string leaf;
    Domain domain;
    uint64_t frontend = 0;
    Routed routed = {};
    std::vector<SequenceHash> blocks = {};
    RouteOver over = {};
  };
  std::vector<Told> told, over, cells_told;

 private:
  ManualClock* const clock_;
};

inline WorkerFound Worker(const std::string& name, uint32_t blocks, Load load = {}) {
  return {.worker = Id(name), .blocks = blocks, .load = load};
}

inline std::vector<SequenceHash> Prompt(size_t blocks) {
  std::vector<SequenceHash> sequence;
  for (size_t i = 1; i <= blocks; ++i) sequence.push_back(SequenceHash(i * 1000));
  return sequence;
}

class FrontendTest : public testing::Test {
 protected:
  FrontendTest() : fleet_(&clock_) {
    options_.hierarchies = {"h"};
    options_.ask_ahead = 0;  // leaves are asked after the hierarchy, and in order
  }

  Frontend& frontend() {
    if (frontend_ == nullptr)
      frontend_ = std::make_unique<Frontend>(options_, &fleet_, &fleet_, &clock_);
    return *frontend_;
  }
  RouteResult Route(size_t blocks = 100) {
    absl::StatusOr<RouteResult> result =
        frontend().Route({.domain = kDomain,
                          .sequence_hashes = Prompt(blocks),
                          .prompt_tokens = static_cast<uint32_t>(blocks * options_.block_size + 1),
                          .tried = tried_});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RouteResult();
  }
  void TearHierarchyDown() { fleet_.cells.clear(); }
  void TearLeavesDown() { fleet_.workers.clear(); }

  ManualClock clock_;
  FakeFleet fleet_;
  FrontendOptions options_;
  std::vector<CellWorker> tried_;  // by the request that is routed
  std::unique_ptr<Frontend> frontend_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_FRONTEND_TEST_UTIL_H_
