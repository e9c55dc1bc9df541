#include "frontend/router/speculative_lookup.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;

WorkersAnswer Answer(const std::string& worker) {
  WorkersAnswer answer;
  answer.workers.push_back({.worker = {.name = worker, .rank = 0, .replica = ""}, .blocks = 3});
  return answer;
}

class AskedAheadTest : public testing::Test {
 protected:
  // Leaves answer when the test calls their callbacks.
  int asked_ = 0;
  std::map<std::string, OverlapFinder::Callback> held_;
  SpeculativeLookup::Question question_ = [this](const std::string& leaf_address, Duration,
                                                 OverlapFinder::Callback callback) {
    ++asked_;
    held_[leaf_address] = std::move(callback);
  };
  std::shared_ptr<SpeculativeLookup> ahead_ = std::make_shared<SpeculativeLookup>(question_);
  std::vector<std::string> got_;
  OverlapFinder::Callback callback_ = [this](absl::StatusOr<WorkersAnswer> answer) {
    got_.push_back(answer.ok() ? answer->workers[0].worker.name
                               : std::string(answer.status().message()));
  };
};

TEST_F(AskedAheadTest, AnAnswerThatIsThereIsGivenAtOnceAndToOneOnly) {
  ahead_->Ask("a", milliseconds(5));
  held_["a"](Answer("w0"));
  EXPECT_TRUE(ahead_->Take("a", callback_));
  EXPECT_THAT(got_, testing::ElementsAre("w0"));
  EXPECT_FALSE(ahead_->Take("a", callback_));
}

TEST_F(AskedAheadTest, AnAnswerOnItsWayComesToWhoeverTookIt) {
  ahead_->Ask("a", milliseconds(5));
  EXPECT_TRUE(ahead_->Take("a", callback_));
  EXPECT_FALSE(ahead_->Take("a", callback_));
  EXPECT_THAT(got_, testing::IsEmpty());
  held_["a"](absl::UnavailableError("down"));
  EXPECT_THAT(got_, testing::ElementsAre("down"));
  EXPECT_FALSE(ahead_->Take("a", callback_));
}

TEST_F(AskedAheadTest, WhoWasNotAskedHasNoAnswerAndNobodyIsAskedTwice) {
  EXPECT_FALSE(ahead_->Take("a", callback_));
  ahead_->Ask("a", milliseconds(5));
  ahead_->Ask("a", milliseconds(5));
  EXPECT_EQ(asked_, 1);
  EXPECT_FALSE(ahead_->Take("b", callback_));
}

TEST_F(AskedAheadTest, AnAnswerAfterTheRouteIsOverGoesNowhere) {
  ahead_->Ask("a", milliseconds(5));
  ahead_ = nullptr;
  held_["a"](Answer("w0"));
  EXPECT_THAT(got_, testing::IsEmpty());
}

TEST_F(AskedAheadTest, AnswersAndTakersMayMeetInAnyOrder) {
  for (int round = 0; round < 2000; ++round) {
    ahead_ = std::make_shared<SpeculativeLookup>(question_);
    ahead_->Ask("a", milliseconds(5));
    std::atomic<int> got{0};
    std::thread answers([&] { held_["a"](Answer("w0")); });
    const bool taken = ahead_->Take("a", [&](absl::StatusOr<WorkersAnswer> answer) {
      got += answer.ok() && answer->workers.size() == 1 ? 1 : 100;
    });
    answers.join();
    EXPECT_TRUE(taken);
    EXPECT_EQ(got, 1);
  }
}

}  // namespace
}  // namespace kvatlas
