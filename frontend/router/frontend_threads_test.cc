// Routes that choose at the same time.

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "frontend/router/frontend.h"
#include "frontend/router/frontend_test_util.h"
#include "frontend/router/lookup_clients.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

using testing::UnorderedElementsAre;

// Answers from a thread per question, so that the two leaves of a route race.
class RacingFleet : public CellFinder, public OverlapFinder {
 public:
  ~RacingFleet() override {
    // A thread may run before the one that started it has put it here.
    std::vector<std::thread> threads;
    {
      MutexLock lock(&mutex_);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    Run([callback] {
      CellsAnswer answer;
      for (const char* cell : {"a", "b"}) answer.cells.push_back({.cell = cell, .address = cell});
      callback(answer);
    });
  }
  void FindOverlaps(const std::string& address, const OverlapQuestion&, Duration,
                    OverlapFinder::Callback callback) override {
    Run([address, callback] {
      callback(WorkersAnswer{.workers = {Worker(address + "0", 1), Worker(address + "1", 1)}});
    });
  }

 private:
  void Run(std::function<void()> answer) {
    MutexLock lock(&mutex_);
    threads_.emplace_back(std::move(answer));
  }
  Mutex mutex_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

TEST(FrontendThreadsTest, ChoicesMadeAtTheSameTimeAreAllCountedAndSpread) {
  RacingFleet fleet;
  ManualClock clock;
  FrontendOptions options;
  options.hierarchies = {"h"};
  options.siblings_together = false;
  Frontend frontend(options, &fleet, &fleet, &clock);
  Mutex mutex;
  std::map<std::string, int> chosen;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        absl::StatusOr<RouteResult> route =
            frontend.Route({.domain = kDomain, .sequence_hashes = Prompt(10)});
        ASSERT_TRUE(route.ok());
        MutexLock lock(&mutex);
        chosen[route->worker.name]++;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(frontend.stats().in_flight, 100u);
  EXPECT_THAT(chosen, UnorderedElementsAre(std::pair("a0", 25), std::pair("a1", 25),
                                           std::pair("b0", 25), std::pair("b1", 25)));
}

}  // namespace
}  // namespace kvatlas
