// One object per question. Its calls hold it by their callbacks, and it holds its calls: the circle
// is broken when a call ends, or by `End`, which cancels those that are left.

#include "frontend/engine_client/engines_question.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string_view>
#include <utility>

#include "frontend/engine_client/engine_call.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;

class EnginesQuestion : public std::enable_shared_from_this<EnginesQuestion> {
 public:
  EnginesQuestion(asio::io_context* io, std::string target, EnginesAnswers callback)
      : io_(io), target_(std::move(target)), timer_(*io), callback_(std::move(callback)) {}

  // All calls exist before the first is started, since one may end within its `Start`; the copy of
  // the list is for `End`, which empties it.
  void Start(EngineConnections* pool, std::vector<EngineUrl> engines, const HttpHeaders& headers,
             EnginesKey key, Duration timeout) {
    for (EngineUrl& engine : engines) {
      answers_.push_back(std::make_shared<Answer>());
      Ask(pool, std::move(engine), headers, key, answers_.back());
    }
    left_ = answers_.size();
    if (left_ == 0) return asio::post(*io_, [self = shared_from_this()] { self->End(); });
    timer_.expires_after(timeout);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
      if (!cancelled) self->End();
    });
    for (const std::shared_ptr<Answer>& answer : std::vector(answers_)) answer->call->Start();
  }

  // By the last answer, the timer, or the caller; the first of them calls back with what is there.
  void End() {
    if (callback_ == nullptr) return;
    timer_.cancel();
    std::vector<std::optional<std::string>> bodies;
    for (const std::shared_ptr<Answer>& answer : answers_) {
      bodies.emplace_back();
      if (answer->good) bodies.back() = std::move(answer->body);
      if (answer->call != nullptr) std::exchange(answer->call, nullptr)->Cancel();
    }
    answers_.clear();
    std::exchange(callback_, nullptr)(std::move(bodies));
  }

 private:
  // An engine's answer; `good`: complete, and of status 200.
  struct Answer {
    std::shared_ptr<EngineCall> call;
    int status = 0;
    std::string body;
    bool over = false;
    bool good = false;
  };

  // Makes the call and does not start it.
  void Ask(EngineConnections* pool, EngineUrl url, HttpHeaders headers, EnginesKey key,
           const std::shared_ptr<Answer>& answer) {
    if (key == EnginesKey::kOwn) pool->options().reach.Authorize(url, &headers);
    const std::shared_ptr<EnginesQuestion> self = shared_from_this();
    answer->call = std::make_shared<EngineCall>(
        io_, pool,
        EngineCallRequest{.url = std::move(url),
                          .method = "GET",
                          .target = target_,
                          .headers = std::move(headers),
                          .body = nullptr},
        EngineCallbacks{
            .on_head =
                [self, answer](const EngineHead& head) {
                  answer->status = head.status;
                  answer->call->Resume();
                },
            .on_piece = [self, answer](std::string_view piece) { self->OnPiece(answer, piece); },
            .on_end = [self, answer] { self->OnOver(answer, answer->status == 200); },
            .on_failed = [self, answer](const absl::Status&,
                                        bool) { self->OnOver(answer, false); }});
  }

  // An answer that is too long ends its call, and is none.
  void OnPiece(const std::shared_ptr<Answer>& answer, std::string_view piece) {
    const std::shared_ptr<EngineCall> call = answer->call;
    if (answer->body.size() + piece.size() <= kEnginesAnswerBytesMax) {
      answer->body += piece;
      return call->Resume();
    }
    call->Cancel();
    OnOver(answer, false);
  }

  // Once for each answer.
  void OnOver(const std::shared_ptr<Answer>& answer, bool good) {
    if (std::exchange(answer->over, true)) return;
    answer->good = good;
    answer->call = nullptr;
    if (--left_ == 0) End();
  }

  asio::io_context* const io_;
  const std::string target_;
  asio::steady_timer timer_;
  EnginesAnswers callback_;
  std::vector<std::shared_ptr<Answer>> answers_;
  // Answers that are not over.
  size_t left_ = 0;
};

}  // namespace

std::function<void()> AskEngines(asio::io_context* io, EngineConnections* pool,
                                 std::vector<EngineUrl> engines, const std::string& target,
                                 const HttpHeaders& headers, Duration timeout,
                                 EnginesAnswers callback, EnginesKey key) {
  const auto question = std::make_shared<EnginesQuestion>(io, target, std::move(callback));
  question->Start(pool, std::move(engines), headers, key, timeout);
  // Weak: holding the function keeps no question alive.
  return [weak = std::weak_ptr<EnginesQuestion>(question)] {
    if (const auto asked = weak.lock()) asked->End();
  };
}

}  // namespace kvatlas
