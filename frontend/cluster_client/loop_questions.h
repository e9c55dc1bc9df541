// Asks questions from an I/O loop: what `QuestionStream` does, over an `Http2Stream` of the loop's
// own thread. No other thread is woken, and the answer's callback runs where the question was
// asked.
//
//   Ask ─▶ batch ─▶ Flush, after the handlers that are due ─▶ one message ─▶ OnMessage ─▶ callbacks
//
// *Truth*: as `QuestionStream`'s: a question that was taken is called back exactly once, and
// nothing is asked again.
// *Threads*: the loop's. *Cost*: of a question some 10 us, the kernel's part included; one timer
// for all deadlines.
// *Bounds*: as `QuestionStream`'s. A peer that was not heard for `kSilentMax` while questions
// became late is given up.
// *Lifetime*: kept by its pending operations until `Close`.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_LOOP_QUESTIONS_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_LOOP_QUESTIONS_H_

#include <google/protobuf/arena.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/cluster_client/http2_stream.h"
#include "frontend/cluster_client/question_stream.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/net/io_loop.h"

namespace kvatlas {

inline constexpr Duration kSilentMax = std::chrono::seconds(1);

// `Asked` as for `QuestionStream`, and kStreamMethod, the method's path.
template <typename Asked>
class LoopQuestions : public std::enable_shared_from_this<LoopQuestions<Asked>> {
 public:
  using Stream = QuestionStream<Asked>;
  using Callback = typename Stream::Callback;

  LoopQuestions(boost::asio::io_context* io, Address peer)
      : io_(io), peer_(std::move(peer)), timer_(*io) {}

  // Whether it takes a question of about so many bytes now. Where there is no stream one is opened,
  // unless it failed a moment ago (`not_before_`). A peer that is leaving (GOAWAY) gets no more
  // questions; once the last one is answered its stream is closed and the next one opened.
  bool Takes(size_t bytes) {
    const bool left = stream_ != nullptr && stream_->is_leaving();
    if (left && pending_.empty()) {
      stream_->Close();
      stream_ = nullptr;
      taking_ = false;
    }
    if (stream_ == nullptr && !closed_ && Clock::Real().Now() >= not_before_) Open();
    return taking_ && !left && !closed_ && pending_.size() < kQuestionsPendingMax &&
           stream_->unsent() + batch_bytes_ + bytes <= kUnreadBytesMax;
  }

  // REQUIRES: it takes it. `fill` is called at once, `callback` never within.
  void Ask(size_t bytes, typename Stream::Fill fill, Duration deadline, Callback callback) {
    auto* const question = batch_->add_questions();
    question->set_id(++last_id_);
    fill(question->mutable_request());
    batch_bytes_ += bytes;
    const Time until = Clock::Real().Now() + deadline;
    pending_[last_id_] = {.until = until, .callback = std::move(callback)};
    if (!timer_at_.has_value() || until + kDeadlineStep < *timer_at_) SetTimer(until);
    Added();
  }

  // Something that is told and not answered; `fill` is called at once, and adds to `told` of a
  // request. REQUIRES: it takes it.
  void Tell(size_t bytes, absl::FunctionRef<void(typename Asked::StreamRequest*)> fill) {
    fill(batch_);
    batch_bytes_ += bytes;
    Added();
  }

  // Pending questions end CANCELLED, and none is taken from now on.
  void Close() {
    closed_ = true;
    timer_.cancel();
    if (stream_ != nullptr) stream_->Close();
    EndAll(absl::CancelledError("stopping"));
  }

 private:
  struct Pending {
    Time until{0};
    Callback callback;
  };

  // The stream's events hold a weak pointer: the stream may outlive this object by its pending
  // operations.
  void Open() {
    took_ = false;
    const std::weak_ptr<LoopQuestions> weak = this->weak_from_this();
    stream_ =
        std::make_shared<Http2Stream>(io_, peer_, Asked::kStreamMethod,
                                      Http2Stream::Events{.on_message =
                                                              [weak](std::string_view message) {
                                                                if (const auto self = weak.lock())
                                                                  self->OnMessage(message);
                                                              },
                                                          .on_over =
                                                              [weak](const absl::Status& why) {
                                                                if (const auto self = weak.lock())
                                                                  self->OnOver(why);
                                                              }});
    stream_->Open();
  }

  int InBatch() const { return batch_->questions_size() + batch_->told_size(); }

  // A full batch goes at once. Otherwise `Flush` is posted behind the handlers that are due now, so
  // that the questions of one turn of the loop share a message.
  void Added() {
    if (InBatch() >= kQuestionsBatchMax) SendBatch();
    if (!std::exchange(flushing_, true))
      boost::asio::post(*io_, [self = this->shared_from_this()] { self->Flush(); });
  }

  void Flush() {
    flushing_ = false;
    if (InBatch() > 0) SendBatch();
  }

  // The arena is emptied for the next batch, so no question allocates once it is warm. A batch that
  // has no stream any more is dropped; its questions have ended with the stream.
  void SendBatch() {
    if (stream_ != nullptr) {
      batch_->SerializeToString(&message_);
      stream_->Send(message_);
    }
    batch_bytes_ = 0;
    batch_arena_.Reset();
    batch_ = google::protobuf::Arena::CreateMessage<typename Asked::StreamRequest>(&batch_arena_);
  }

  // The first message, which may be empty, says that the peer takes questions. Callbacks may ask
  // again: each is taken out of `pending_` before it runs. `answers_arena_` is emptied at the end,
  // so answers are valid during their callbacks alone.
  void OnMessage(std::string_view message) {
    if (closed_) return;
    taking_ = took_ = true;
    auto* const answers =
        google::protobuf::Arena::CreateMessage<typename Asked::StreamResponse>(&answers_arena_);
    if (!answers->ParseFromArray(message.data(), static_cast<int>(message.size()))) {
      answers_arena_.Reset();
      stream_->Close();
      return OnOver(absl::UnavailableError("malformed answers"));
    }
    for (const auto& answer : answers->answers()) {
      const auto found = pending_.find(answer.id());
      if (found == pending_.end()) continue;  // too late
      const Callback callback = std::move(found->second.callback);
      pending_.erase(found);
      callback(absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message()),
               answer.response());
    }
    answers_arena_.Reset();
  }

  // State first, callbacks last: a callback that asks finds no stream, and `Takes` opens another
  // one or not.
  void OnOver(const absl::Status& why) {
    const bool connected = stream_->heard() > Time(0);
    stream_ = nullptr;
    taking_ = false;
    if (!took_) not_before_ = Clock::Real().Now() + (connected ? kAgain : kSoon);
    EndAll(why);
  }

  // `pending_` is swapped out because callbacks may add to it.
  void EndAll(const absl::Status& why) {
    absl::flat_hash_map<uint64_t, Pending> pending;
    pending.swap(pending_);
    for (auto& [id, question] : pending)
      question.callback(why, Asked::Response::default_instance());
  }

  void SetTimer(Time at) {
    timer_at_ = at;
    timer_.expires_after(std::max<Duration>(at - Clock::Real().Now(), Duration(0)));
    timer_.async_wait(
        [self = this->shared_from_this()](const boost::system::error_code& cancelled) {
          if (!cancelled && !self->closed_) self->OnTimer();
        });
  }

  // One timer for all deadlines, set for the earliest. Late questions end one by one; if nothing at
  // all was heard for `kSilentMax` the connection is taken for dead, and the rest ends with it.
  void OnTimer() {
    timer_at_ = std::nullopt;
    const Time now = Clock::Real().Now();
    std::vector<Callback> late;
    const std::optional<Time> next = TakeLate(now, &pending_, &late);
    if (next.has_value()) SetTimer(std::max(*next, now + kDeadlineStep));
    for (Callback& callback : late)
      callback(absl::DeadlineExceededError("no answer in time"),
               Asked::Response::default_instance());
    if (late.empty() || stream_ == nullptr || now - stream_->heard() < kSilentMax) return;
    stream_->Close();
    OnOver(absl::UnavailableError("the peer is silent"));
  }

  static constexpr Duration kSoon = std::chrono::seconds(1);  // after a connection that was refused
  static constexpr Duration kAgain = std::chrono::seconds(10);  // after one that took no questions

  boost::asio::io_context* const io_;
  const Address peer_;
  std::shared_ptr<Http2Stream> stream_;  // null: over, or not yet opened
  bool taking_ = false;                  // the peer has said so
  bool took_ = false;
  bool closed_ = false;
  Time not_before_{0};

  static constexpr size_t kArenaBytes = 8 << 10;
  char batch_space_[kArenaBytes];
  google::protobuf::Arena batch_arena_{batch_space_, kArenaBytes};
  typename Asked::StreamRequest* batch_ =
      google::protobuf::Arena::CreateMessage<typename Asked::StreamRequest>(&batch_arena_);
  size_t batch_bytes_ = 0;
  bool flushing_ = false;
  std::string message_;
  char answers_space_[kArenaBytes];
  google::protobuf::Arena answers_arena_{answers_space_, kArenaBytes};

  uint64_t last_id_ = 0;
  absl::flat_hash_map<uint64_t, Pending> pending_;
  boost::asio::steady_timer timer_;
  std::optional<Time> timer_at_;
};

// The peers of one `GrpcQuestions` that are asked from one loop.
template <typename Asked>
class LoopPeers : public IoLoop::Tenant {
 public:
  static constexpr size_t kLoopPeersMax = 256;

  explicit LoopPeers(boost::asio::io_context* io) : io_(io) {}

  // Null: beyond the bound, or no HOST:PORT.
  LoopQuestions<Asked>* Of(const std::string& address) {
    const auto found = peers_.find(address);
    if (found != peers_.end()) return found->second.get();
    const absl::StatusOr<Address> parsed = Address::Parse(address);
    if (!parsed.ok() || peers_.size() >= kLoopPeersMax) return nullptr;
    return (peers_[address] = std::make_shared<LoopQuestions<Asked>>(io_, *parsed)).get();
  }

  void Close() override {
    for (const auto& [address, peer] : peers_) peer->Close();
  }

 private:
  boost::asio::io_context* const io_;
  absl::flat_hash_map<std::string, std::shared_ptr<LoopQuestions<Asked>>> peers_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_LOOP_QUESTIONS_H_
