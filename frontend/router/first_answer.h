// Which of several replicas answers first? One question to one of them; to the next as soon as it
// fails, or is late, or says nothing of use; the first useful answer counts, from any of them.
//
//   replica 1  ├──────── late ──────────────────▶ too late: dropped
//   replica 2       ├──────▶ useful: `done`
//              0    hedge_after                     until
//
// *Truth*: `done` is called exactly once, at the latest when the last replica asked has answered or
// run into its deadline.
// *Threads*: answers and the timer may come from any, at once.
// *Bounds*: each replica is asked once. Without a timer one replica is asked at a time: each has
// its share of the time that is left.
// *Lifetime*: kept alive by the callbacks it has given out; so is what `ask` holds.

#ifndef KVATLAS_FRONTEND_ROUTER_FIRST_ANSWER_H_
#define KVATLAS_FRONTEND_ROUTER_FIRST_ANSWER_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

// Asking is not worth starting with less time.
inline constexpr Duration kHopMin = std::chrono::microseconds(200);

struct FirstAnswerOptions {
  std::vector<std::string> addresses;  // at least one
  Time until{0};
  Duration hedge_after{0};
  const Clock* clock = nullptr;
  Timer* timer = nullptr;  // may be null
};

template <typename Answer>
class FirstAnswer : public std::enable_shared_from_this<FirstAnswer<Answer>> {
 public:
  struct Outcome {
    absl::StatusOr<Answer> answer = absl::UnknownError("not answered");
    std::string address;  // of the one that answered, or was asked last
  };
  using Reply = std::function<void(absl::StatusOr<Answer>)>;
  using Ask = std::function<void(const std::string& address, Duration deadline, Reply reply)>;
  // Why an answer is of no use; OK when it is.
  using Check = std::function<absl::Status(const Answer& answer)>;
  using Done = std::function<void(Outcome outcome)>;

  static void Start(FirstAnswerOptions options, Ask ask, Check check, Done done) {
    std::shared_ptr<FirstAnswer>(
        new FirstAnswer(std::move(options), std::move(ask), std::move(check), std::move(done)))
        ->AskAfter(0);
  }

 private:
  FirstAnswer(FirstAnswerOptions options, Ask ask, Check check, Done done)
      : options_(std::move(options)),
        ask_(std::move(ask)),
        check_(std::move(check)),
        done_(std::move(done)) {}

  // Asks replica number `asked`, unless others were asked meanwhile.
  void AskAfter(size_t asked) {
    {
      MutexLock lock(&mutex_);
      if (ended_ || asked_ != asked || asked == options_.addresses.size()) return;
      ++asked_;
      ++open_;
    }
    const std::string& address = options_.addresses[asked];
    const Duration left = options_.until - options_.clock->Now();
    const auto others = static_cast<int64_t>(options_.addresses.size() - asked);
    const Duration deadline = options_.timer != nullptr ? left : left / others;
    const auto self = this->shared_from_this();
    if (deadline < kHopMin) return OnReply(asked, absl::DeadlineExceededError("no time left"));
    if (options_.timer != nullptr && others > 1)
      options_.timer->After(options_.hedge_after, [self, asked] { self->AskAfter(asked + 1); });
    ask_(address, deadline,
         [self, asked](absl::StatusOr<Answer> answer) { self->OnReply(asked, std::move(answer)); });
  }

  void OnReply(size_t replica, absl::StatusOr<Answer> answer) {
    if (answer.ok()) {
      if (absl::Status useless = check_(*answer); !useless.ok()) answer = useless;
    }
    size_t asked = 0;
    {
      MutexLock lock(&mutex_);
      --open_;
      if (ended_) return;
      asked = asked_;
      ended_ = answer.ok() || (asked == options_.addresses.size() && open_ == 0);
      if (!ended_ && asked == options_.addresses.size()) return;  // others are still asked
      if (!ended_) {
        failure_ = answer.status();
      } else if (!answer.ok() && answer.status().message() == "no time left" && !failure_.ok()) {
        answer = failure_;  // tells more
      }
    }
    if (!answer.ok() && asked < options_.addresses.size()) return AskAfter(asked);
    done_({.answer = std::move(answer), .address = options_.addresses[replica]});
  }

  const FirstAnswerOptions options_;
  const Ask ask_;
  const Check check_;
  const Done done_;
  Mutex mutex_;
  size_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;  // asked, and not answered
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_FIRST_ANSWER_H_
