// A frontend whose hierarchy, leaves and clock answer at once, for tests of what it chooses.

#ifndef KVATLAS_FRONTEND_ROUTER_ROUTE_CHOICE_TEST_UTIL_H_
#define KVATLAS_FRONTEND_ROUTER_ROUTE_CHOICE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/router/frontend.h"
#include "frontend/router/frontend_test_util.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// A hierarchy and leaves that answer at once, and a timer whose time is the clock's.
class TimedFleet : public CellFinder, public OverlapFinder, public Timer {
 public:
  explicit TimedFleet(ManualClock* clock) : clock_(clock) {}

  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    CellsAnswer answer;
    for (const auto& [cell, workers] : cells)
      answer.cells.push_back(
          {.cell = cell, .address = cell + ":1", .blocks_below = 1000, .labels = labels[cell]});
    callback(std::move(answer));
  }
  void FindOverlaps(const std::string& address, const OverlapQuestion&, Duration,
                    OverlapFinder::Callback callback) override {
    ++leaves_asked;
    callback(cells.at(address.substr(0, address.find(':'))));
  }
  void After(Duration delay, std::function<void()> callback) override {
    timers.push_back({clock_->Now() + delay, std::move(callback)});
  }
  // Time passes, and whatever is due then happens.
  void Pass(Duration time) {
    clock_->Advance(time);
    std::vector<std::pair<Time, std::function<void()>>> due;
    for (auto& timer : std::exchange(timers, {}))
      (timer.first <= clock_->Now() ? due : timers).push_back(std::move(timer));
    for (auto& timer : due) timer.second();
  }

  WorkerFound& Add(const std::string& cell, const std::string& worker, uint32_t blocks = 0,
                   Labels of_worker = {}) {
    WorkersAnswer& answer = cells[cell];
    if (!of_worker.empty()) {
      auto all = answer.labels == nullptr ? std::make_shared<LabelsByWorker>()
                                          : std::make_shared<LabelsByWorker>(*answer.labels);
      (*all)[Id(worker)] = std::move(of_worker);
      answer.labels = std::move(all);
    }
    answer.workers.push_back({.worker = Id(worker), .blocks = blocks, .load = Load()});
    return answer.workers.back();
  }
  WorkerFound& At(const std::string& cell, size_t worker) { return cells[cell].workers[worker]; }

  std::map<std::string, WorkersAnswer> cells;
  std::map<std::string, Labels> labels;
  std::vector<std::pair<Time, std::function<void()>>> timers;
  int leaves_asked = 0;

 private:
  ManualClock* const clock_;
};

// Behind a shared beginning, blocks that are the request's own.
inline std::vector<SequenceHash> Prompt(size_t shared, size_t own, uint64_t who) {
  std::vector<SequenceHash> sequence = Prompt(shared);
  for (size_t i = 1; i <= own; ++i) sequence.push_back(SequenceHash((who + 2) * 1'000'000 + i));
  return sequence;
}

class RouteChoiceTest : public testing::Test {
 protected:
  RouteChoiceTest() : fleet_(&clock_) {
    options_.hierarchies = {"h"};
    clock_.Advance(std::chrono::seconds(1000));
  }

  Frontend& frontend() {
    if (frontend_ == nullptr)
      frontend_ = std::make_unique<Frontend>(options_, &fleet_, &fleet_, &clock_, &fleet_);
    return *frontend_;
  }
  absl::StatusOr<RouteResult> TryRoute(RouteInput input) {
    input.domain = kDomain;
    if (input.sequence_hashes.empty()) input.sequence_hashes = Prompt(100);
    // One token follows the last block, so that all blocks can be reused.
    input.prompt_tokens =
        static_cast<uint32_t>(input.sequence_hashes.size()) * options_.block_size + 1;
    absl::StatusOr<RouteResult> result = absl::UnknownError("still waiting");
    frontend().RouteAsync(std::move(input),
                          [&](absl::StatusOr<RouteResult> route) { result = std::move(route); });
    return result;
  }
  RouteResult Route(RouteInput input = {}) {
    absl::StatusOr<RouteResult> result = TryRoute(std::move(input));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RouteResult();
  }
  std::string WorkerFor(RouteInput input = {}) { return Route(std::move(input)).worker.name; }

  ManualClock clock_;
  TimedFleet fleet_;
  FrontendOptions options_;
  std::unique_ptr<Frontend> frontend_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_ROUTE_CHOICE_TEST_UTIL_H_
