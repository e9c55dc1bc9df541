// Asks many questions over one call: the asking side of answer_stream.h. Each question has its own
// deadline and is called back on its own.
//
//   Ask ─▶ batch ─▶ StartWrite ─▶ OnWriteDone: the next batch, of what has come up meanwhile
//   OnReadDone ─▶ the next StartRead ─▶ the callbacks of the questions that are answered
//
// *Truth*: `Ask` takes no question before the peer has said that it takes them, nor when the stream
// is over: the caller asks otherwise. A question that was taken is called back exactly once: with
// the answer, with DEADLINE_EXCEEDED, or with what ended the stream, UNAVAILABLE when the peer just
// went away. Nothing is asked again.
// *Threads*: any. Callbacks in gRPC's, several at once; none under a lock.
// *Cost*: beside gRPC's of a message, a table entry; a timer per deadline that passes, not per
// question.
// *Bounds*: `kQuestionsPendingMax` questions without an answer; `kQuestionsBatchMax` in one
// message; `kUnreadBytesMax` that the peer does not take off the wire.
// *Lifetime*: kept by gRPC from `Open` until it is over, by its alarm, and by its callers.
// `on_over` is called once.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_QUESTION_STREAM_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_QUESTION_STREAM_H_

#include <google/protobuf/arena.h>
#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/net/grpc_status.h"

namespace kvatlas {

inline constexpr size_t kQuestionsPendingMax = 4096;
inline constexpr int kQuestionsBatchMax = 16;
inline constexpr size_t kUnreadBytesMax = 1 << 20;
// Deadlines are kept to this.
inline constexpr Duration kDeadlineStep = std::chrono::milliseconds(1);

// Moves the callbacks of what is due out of `pending`, by id with `until` and `callback`. Returns
// when the next is due, if there is one.
template <typename Pending, typename Callback>
std::optional<Time> TakeLate(Time now, absl::flat_hash_map<uint64_t, Pending>* pending,
                             std::vector<Callback>* late) {
  std::optional<Time> next;
  for (auto it = pending->begin(); it != pending->end();) {
    if (it->second.until <= now) {
      late->push_back(std::move(it->second.callback));
      pending->erase(it++);
    } else {
      next = std::min(next.value_or(it->second.until), it->second.until);
      ++it;
    }
  }
  return next;
}

// `Asked` names the messages: Request, Response, StreamRequest, StreamResponse.
template <typename Asked>
class QuestionStream
    : public grpc::ClientBidiReactor<typename Asked::StreamRequest, typename Asked::StreamResponse>,
      public std::enable_shared_from_this<QuestionStream<Asked>> {
 public:
  using Request = typename Asked::Request;
  using Response = typename Asked::Response;
  using StreamRequest = typename Asked::StreamRequest;
  using StreamResponse = typename Asked::StreamResponse;
  using Reactor = grpc::ClientBidiReactor<StreamRequest, StreamResponse>;
  using Fill = absl::FunctionRef<void(Request* request)>;
  // `response` lives as long as the call, and is of use when `status` is OK.
  using Callback = std::function<void(const absl::Status& status, const Response& response)>;
  // `took`: the peer has ever said that it takes questions.
  using OnOver =
      std::function<void(const QuestionStream* stream, const absl::Status& status, bool took)>;
  using Start = std::function<void(grpc::ClientContext* context, Reactor* reactor)>;

  // `start` calls the method; `ended` is called when nothing of the stream is left.
  // `self_` keeps the stream until `OnDone`. The hold keeps gRPC from calling `OnDone` while `Ask`
  // may still start a write; `End` or the last `OnWriteDone` removes it.
  static std::shared_ptr<QuestionStream> Open(const Start& start, OnOver on_over,
                                              std::function<void()> ended) {
    std::shared_ptr<QuestionStream> stream(new QuestionStream(std::move(on_over)),
                                           [ended = std::move(ended)](QuestionStream* gone) {
                                             delete gone;
                                             ended();
                                           });
    stream->self_ = stream;
    start(&stream->context_, stream.get());
    stream->AddHold();  // for writes that come from outside
    stream->Read();
    stream->StartCall();
    return stream;
  }

  // A question of about so many bytes. False: not taken, and neither function was or will be
  // called. `fill` is called at once, under a lock; `callback` is moved from.
  bool Ask(size_t bytes, Fill fill, Duration deadline, Callback* callback) {
    const StreamRequest* write = nullptr;
    {
      MutexLock lock(&mutex_);
      if (!taking_ || over_ || pending_.size() >= kQuestionsPendingMax) return false;
      if (unread_bytes_ + bytes > kUnreadBytesMax) return false;
      if (!HasRoom()) batches_.push_back(TakeSpare(&spare_batches_));
      unread_bytes_ += bytes;
      batches_.back()->bytes += bytes;
      auto* const question = batches_.back()->message->add_questions();
      question->set_id(++last_id_);
      fill(question->mutable_request());
      const Time until = Clock::Real().Now() + deadline;
      pending_[last_id_] = {.until = until, .callback = std::move(*callback)};
      if (!alarm_at_.has_value() || until + kDeadlineStep < *alarm_at_) SetAlarm(until);
      // Exactly one write is under way while `writing_`; it is started outside of the lock.
      if (!std::exchange(writing_, true)) write = batches_.front()->message;
    }
    if (write != nullptr) this->StartWrite(write);
    return true;
  }

  // Something that is told and not answered. False: not taken. `fill` is called at once, under a
  // lock; it adds to `told` of a request.
  bool Tell(size_t bytes, absl::FunctionRef<void(StreamRequest* request)> fill) {
    const StreamRequest* write = nullptr;
    {
      MutexLock lock(&mutex_);
      if (!taking_ || over_ || unread_bytes_ + bytes > kUnreadBytesMax) return false;
      if (!HasRoom()) batches_.push_back(TakeSpare(&spare_batches_));
      unread_bytes_ += bytes;
      batches_.back()->bytes += bytes;
      fill(batches_.back()->message);
      if (!std::exchange(writing_, true)) write = batches_.front()->message;
    }
    if (write != nullptr) this->StartWrite(write);
    return true;
  }

  // Questions without an answer; nothing: it takes none, not yet or not any more.
  std::optional<size_t> pending() const {
    MutexLock lock(&mutex_);
    if (!taking_ || over_) return std::nullopt;
    return pending_.size();
  }

  // Pending questions end CANCELLED.
  void Close() { context_.TryCancel(); }

  // ---- gRPC's ----

  // The next read is started before the callbacks run, so answers are delivered by several threads
  // at once. A callback that was taken out of `pending_` belongs to this call alone.
  void OnReadDone(bool ok) override {
    if (!ok) return End();
    std::unique_ptr<Message<StreamResponse>> answers = std::move(reading_);
    std::vector<Callback> callbacks;
    {
      MutexLock lock(&mutex_);
      taking_ = true;
      for (const auto& answer : answers->message->answers()) callbacks.push_back(Take(answer.id()));
    }
    Read();
    for (size_t i = 0; i < callbacks.size(); ++i) {
      const auto& answer = answers->message->answers(static_cast<int>(i));
      if (callbacks[i] == nullptr) continue;  // too late
      callbacks[i](absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message()),
                   answer.response());
    }
    MutexLock lock(&mutex_);
    Keep(std::move(answers), &spare_responses_);
  }

  // The batch that was written makes room; the next one is written unless the stream is over. After
  // the end the last write to finish removes the hold.
  void OnWriteDone(bool ok) override {
    const StreamRequest* write = nullptr;
    bool release = false;
    {
      MutexLock lock(&mutex_);
      unread_bytes_ -= batches_.front()->bytes;
      Keep(std::move(batches_.front()), &spare_batches_);
      batches_.pop_front();
      writing_ = ok && !over_ && !batches_.empty();
      if (writing_) write = batches_.front()->message;
      release = over_ && !writing_;
    }
    if (write != nullptr) this->StartWrite(write);
    if (release) this->RemoveHold();
  }

  // No read, write or hold is left. The questions without an answer end with the stream's status.
  void OnDone(const grpc::Status& status) override {
    const absl::Status why =
        status.ok() ? absl::UnavailableError("the peer ended the stream") : FromGrpcStatus(status);
    absl::flat_hash_map<uint64_t, Pending> pending;
    bool took = false;
    {
      MutexLock lock(&mutex_);
      pending.swap(pending_);
      took = taking_;
      if (alarm_ != nullptr) alarm_->Cancel();
    }
    on_over_(this, why, took);
    for (auto& [id, question] : pending) question.callback(why, Response::default_instance());
    self_ = nullptr;  // may be the last
  }

 private:
  // In an arena: an answer has a few small ones per worker.
  template <typename Proto>
  struct Message {
    static constexpr size_t kBytes = 8 << 10;
    char space[kBytes];
    google::protobuf::Arena arena{space, kBytes};
    Proto* message = google::protobuf::Arena::CreateMessage<Proto>(&arena);
    size_t bytes = 0;  // of the questions in it

    void Clear() {
      arena.Reset();
      message = google::protobuf::Arena::CreateMessage<Proto>(&arena);
      bytes = 0;
    }
  };
  using Batch = Message<StreamRequest>;
  static constexpr size_t kSpare = 2;
  struct Pending {
    Time until{0};
    Callback callback;
  };

  explicit QuestionStream(OnOver on_over) : on_over_(std::move(on_over)) {}

  // A few messages are used again.
  template <typename T>
  static std::unique_ptr<T> TakeSpare(std::vector<std::unique_ptr<T>>* spare) {
    if (spare->empty()) return std::make_unique<T>();
    std::unique_ptr<T> message = std::move(spare->back());
    spare->pop_back();
    return message;
  }
  template <typename T>
  static void Keep(std::unique_ptr<T> message, std::vector<std::unique_ptr<T>>* spare) {
    if (spare->size() == kSpare) return;
    message->Clear();
    spare->push_back(std::move(message));
  }

  void Read() {
    {
      MutexLock lock(&mutex_);
      reading_ = TakeSpare(&spare_responses_);
    }
    this->StartRead(reading_->message);
  }

  // The last batch is not yet being written, nor full.
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (batches_.empty() || (writing_ && batches_.size() == 1)) return false;
    const StreamRequest& last = *batches_.back()->message;
    return last.questions_size() + last.told_size() < kQuestionsBatchMax;
  }

  Callback Take(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) return nullptr;
    Callback callback = std::move(found->second.callback);
    pending_.erase(found);
    return callback;
  }

  // Nothing more comes. The questions that wait are ended by `OnDone`, which knows why.
  void End() {
    bool release = false;
    {
      MutexLock lock(&mutex_);
      over_ = true;
      release = !writing_;
    }
    if (release) this->RemoveHold();
  }

  void SetAlarm(Time at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (alarm_ != nullptr) alarm_->Cancel();
    alarm_at_ = at;
    alarm_ = std::make_shared<grpc::Alarm>();
    // The alarm keeps its callback, and the callback keeps the alarm, until it has run.
    alarm_->Set(DeadlineIn(at - Clock::Real().Now()),
                [self = this->shared_from_this(), alarm = alarm_](bool ok) mutable {
                  const std::shared_ptr<QuestionStream> stream = std::move(self);
                  const std::shared_ptr<grpc::Alarm> last = std::move(alarm);
                  if (ok) stream->OnAlarm(last);
                });
  }

  void OnAlarm(const std::shared_ptr<grpc::Alarm>& alarm) {
    std::vector<Callback> late;
    {
      MutexLock lock(&mutex_);
      if (alarm != alarm_) return;  // another was set meanwhile
      alarm_ = nullptr;
      alarm_at_ = std::nullopt;
      const Time now = Clock::Real().Now();
      const std::optional<Time> next = TakeLate(now, &pending_, &late);
      if (next.has_value() && !over_) SetAlarm(std::max(*next, now + kDeadlineStep));
    }
    for (Callback& callback : late)
      callback(absl::DeadlineExceededError("no answer in time"), Response::default_instance());
  }

  const OnOver on_over_;
  grpc::ClientContext context_;
  std::unique_ptr<Message<StreamResponse>> reading_;  // of who reads
  mutable Mutex mutex_;
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // the first of `batches_`
  std::deque<std::unique_ptr<Batch>> batches_ ABSL_GUARDED_BY(mutex_);
  size_t unread_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of `batches_`
  std::vector<std::unique_ptr<Batch>> spare_batches_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Message<StreamResponse>>> spare_responses_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  std::optional<Time> alarm_at_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<QuestionStream> self_;  // until `OnDone`
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_QUESTION_STREAM_H_
