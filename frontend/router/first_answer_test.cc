#include "frontend/router/first_answer.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

// Replicas that answer when told, and time that passes when told.
class FirstAnswerTest : public testing::Test, public Timer {
 protected:
  using Asked = FirstAnswer<int>;

  void After(Duration delay, std::function<void()> callback) override {
    alarms_.emplace(clock_.Now() + delay, std::move(callback));
  }
  void Pass(Duration time) {
    clock_.Advance(time);
    while (!alarms_.empty() && alarms_.begin()->first <= clock_.Now()) {
      const auto due = std::move(alarms_.begin()->second);
      alarms_.erase(alarms_.begin());
      due();
    }
  }
  void Start(std::vector<std::string> replicas, bool with_timer = true) {
    Asked::Start(
        {.addresses = std::move(replicas),
         .until = clock_.Now() + milliseconds(40),
         .hedge_after = milliseconds(4),
         .clock = &clock_,
         .timer = with_timer ? this : nullptr},
        [this](const std::string& address, Duration deadline, Asked::Reply reply) {
          asked_.push_back(address);
          deadlines_.push_back(deadline);
          replies_[address] = std::move(reply);
        },
        [](const int& answer) {
          return answer < 0 ? absl::NotFoundError("negative") : absl::OkStatus();
        },
        [this](Asked::Outcome outcome) {
          ASSERT_FALSE(outcome_.has_value()) << "twice";
          outcome_ = std::move(outcome);
        });
  }
  void Reply(const std::string& address, absl::StatusOr<int> answer) {
    replies_.at(address)(std::move(answer));
  }

  ManualClock clock_;
  std::multimap<Time, std::function<void()>> alarms_;
  std::vector<std::string> asked_;
  std::vector<Duration> deadlines_;
  std::map<std::string, Asked::Reply> replies_;
  std::optional<Asked::Outcome> outcome_;
};

TEST_F(FirstAnswerTest, OneAnswerIsEnough) {
  Start({"a", "b"});
  EXPECT_THAT(asked_, ElementsAre("a"));
  Reply("a", 7);
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(*outcome_->answer, 7);
  EXPECT_EQ(outcome_->address, "a");
  Pass(milliseconds(100));
  EXPECT_THAT(asked_, ElementsAre("a"));
}

TEST_F(FirstAnswerTest, AFailureOrAUselessAnswerAsksTheNextAtOnce) {
  Start({"a", "b", "c"});
  Reply("a", absl::UnavailableError("down"));
  EXPECT_THAT(asked_, ElementsAre("a", "b"));
  Reply("b", -1);
  EXPECT_THAT(asked_, ElementsAre("a", "b", "c"));
  Reply("c", 3);
  EXPECT_EQ(outcome_->address, "c");
}

TEST_F(FirstAnswerTest, ALateOneIsHedgedAndMayStillWin) {
  Start({"a", "b"});
  Pass(milliseconds(3));
  EXPECT_THAT(asked_, ElementsAre("a"));
  Pass(milliseconds(1));
  EXPECT_THAT(asked_, ElementsAre("a", "b"));
  Reply("a", 1);
  EXPECT_EQ(*outcome_->answer, 1);
  Reply("b", 2);  // dropped
}

TEST_F(FirstAnswerTest, TheHedgeWinsAndTheLateOneIsDropped) {
  Start({"a", "b"});
  Pass(milliseconds(4));
  Reply("b", 2);
  EXPECT_EQ(outcome_->address, "b");
  Reply("a", absl::DeadlineExceededError("late"));
}

TEST_F(FirstAnswerTest, AFailureWaitsForThoseStillAsked) {
  Start({"a", "b"});
  Pass(milliseconds(4));
  Reply("b", absl::UnavailableError("down"));
  EXPECT_FALSE(outcome_.has_value());
  Reply("a", 1);
  EXPECT_EQ(*outcome_->answer, 1);
}

TEST_F(FirstAnswerTest, AnAlarmOfAnEarlierReplicaAsksNobodyTwice) {
  Start({"a", "b", "c"});
  Reply("a", absl::UnavailableError("down"));
  Pass(milliseconds(3));
  EXPECT_THAT(asked_, ElementsAre("a", "b"));
  Pass(milliseconds(1));  // both alarms
  EXPECT_THAT(asked_, ElementsAre("a", "b", "c"));
}

TEST_F(FirstAnswerTest, AllFailuresEndWithTheLast) {
  Start({"a", "b"});
  Reply("a", absl::UnavailableError("down"));
  Reply("b", absl::InternalError("broken"));
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->answer.status(), absl::InternalError("broken"));
}

TEST_F(FirstAnswerTest, WithoutATimerEachHasItsShareOfTheTime) {
  Start({"a", "b"}, /*with_timer=*/false);
  EXPECT_THAT(deadlines_, ElementsAre(milliseconds(20)));
  clock_.Advance(milliseconds(20));
  Reply("a", absl::DeadlineExceededError("late"));
  EXPECT_THAT(deadlines_, ElementsAre(milliseconds(20), milliseconds(20)));
  clock_.Advance(milliseconds(20));
  Reply("b", absl::DeadlineExceededError("late"));
  EXPECT_TRUE(outcome_.has_value());
}

TEST_F(FirstAnswerTest, WithoutTimeNobodyIsAskedAndTheReasonIsTheFirstFailure) {
  Start({"a", "b"});
  clock_.Advance(milliseconds(40));
  Reply("a", absl::DeadlineExceededError("late"));
  EXPECT_THAT(asked_, ElementsAre("a"));
  ASSERT_TRUE(outcome_.has_value());
  EXPECT_EQ(outcome_->answer.status(), absl::DeadlineExceededError("late"));
}

}  // namespace
}  // namespace kvatlas
