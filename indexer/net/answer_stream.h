// Answers many questions over one call: a stream whose requests each carry a few questions, and
// whose responses carry their answers.
//
//   StartRead ─▶ OnReadDone ─▶ Hear: reports of the request
//                    ╰──────▶ AnswerSome ─▶ queue ─▶ StartWrite ─▶ OnWriteDone
//       ╰───────────◀──────────────┴──── while fewer than kAnswersQueuedMax responses are unwritten
//
// *Truth*: a request's reports go to `Hear` before its questions are answered; they have no answer.
// The first response is empty and goes out at once, so that the caller knows that questions are
// taken. Then every question has an answer, in their order; those of one request come together, in
// more than one response when they are large.
// *Threads*: gRPC's; questions of one stream are answered one after the other, those of several at
// once.
// *Cost*: per request no call, no stream and, as long as request and response fit an arena, nothing
// of the heap.
// *Bounds*: `kAnswersQueuedMax` responses of about `kAnswersBytes`: a caller that does not read is
// neither answered further nor read from. A request of more than `kQuestionsMax`, or of more memory
// than `message_account.h` allows, ends its stream with RESOURCE_EXHAUSTED.
// *Lifetime*: streams own themselves; `AnswerStreams` outlives the server.
//
// Example:
//   AnswerStreams<v1::FindOverlapsStreamRequest, v1::FindOverlapsStreamResponse> streams_{
//       [this](const v1::FindOverlapsRequest& request, v1::FindOverlapsResponse* response) {
//         return Answer(request, response);
//       }};
//   MarkMethodCallback(1, decltype(streams_)::MethodHandler([this](auto*) { return streams_.Open();
//   }));
//   streams_.Stop();      // so that the server's stop need not wait for callers
//   server.Stop(grace);

#ifndef KVATLAS_INDEXER_NET_ANSWER_STREAM_H_
#define KVATLAS_INDEXER_NET_ANSWER_STREAM_H_

#include <grpcpp/support/message_allocator.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"
#include "indexer/net/arena_messages.h"
#include "indexer/net/bounded_message.h"

namespace kvatlas {

inline constexpr size_t kAnswersQueuedMax = 4;
inline constexpr int kQuestionsMax = 1024;
// On the wire; a response that has more takes no further answer. In memory it is up to 20 times as
// much.
inline constexpr size_t kAnswersBytes = 64 << 10;

template <typename StreamRequest, typename StreamResponse>
class AnswerStreams {
 public:
  using Request = std::decay_t<decltype(std::declval<StreamRequest>().questions(0).request())>;
  using Response = std::decay_t<decltype(std::declval<StreamResponse>().answers(0).response())>;
  using Incoming = BoundedMessage<StreamRequest>;
  using Reactor = grpc::ServerBidiReactor<Incoming, StreamResponse>;
  // The handler of the method, for `Service::MarkMethodCallback`; `open` returns what `Open` does.
  static auto* MethodHandler(std::function<Reactor*(grpc::CallbackServerContext*)> open) {
    return new grpc::internal::CallbackBidiHandler<Incoming, StreamResponse>(std::move(open));
  }
  // Called on any thread; must not wait.
  using Handler = std::function<absl::Status(const Request& request, Response* response)>;

  // Takes what a request reports beside its questions. Any thread; several at once.
  using Hear = std::function<void(const StreamRequest& request)>;

  explicit AnswerStreams(Handler handler) : handler_(std::move(handler)) {}
  // REQUIRES: the server has stopped.
  ~AnswerStreams() = default;

  AnswerStreams(const AnswerStreams&) = delete;
  AnswerStreams& operator=(const AnswerStreams&) = delete;

  // The reactor that a method returns to gRPC.
  Reactor* Open() { return Open(handler_); }
  // `hear` of this stream alone goes with it.
  Reactor* OpenHearing(Hear hear) { return Open(handler_, nullptr, std::move(hear)); }
  // What a response of so many bytes takes until it is sent. Null where it may not be sent: then
  // the call has been cancelled.
  using Unread = std::function<std::shared_ptr<const void>(size_t bytes)>;
  // The same with a handler for this stream alone, which knows the caller; `unread` and `hear` may
  // be null: reports are then ignored.
  Reactor* Open(Handler handler, Unread unread = nullptr, Hear hear = nullptr) {
    return new Stream(this, std::move(handler), std::move(unread), std::move(hear));
  }

  // Ends those that are open, and from now on every new one, with UNAVAILABLE. What has been
  // answered still goes out; what was on its way may go unanswered.
  void Stop() {
    MutexLock lock(&mutex_);
    stopped_ = true;
    for (Stream* stream : open_) stream->Stop();
  }

  size_t open() const {
    MutexLock lock(&mutex_);
    return open_.size();
  }

 private:
  using Holder = grpc::MessageHolder<StreamRequest, StreamResponse>;

  class Stream : public Reactor {
   public:
    Stream(AnswerStreams* owner, Handler handler, Unread unread, Hear hear)
        : owner_(owner),
          handler_(std::move(handler)),
          unread_(std::move(unread)),
          hear_(std::move(hear)) {
      Next next;
      {
        MutexLock lock(&owner_->mutex_);
        owner_->open_.insert(this);
        MutexLock stream_lock(&mutex_);
        read_all_ = owner_->stopped_;
        if (read_all_) end_ = Stopping();
        answers_.push_back({owner_->messages_.AllocateMessages(), nullptr});
        next = Step();
      }
      Do(next);
    }

    void OnReadDone(bool ok) override {
      const StreamRequest& request = *reading_into_->request();
      const bool takes = ok && bounded_.refused.ok() && request.questions_size() <= kQuestionsMax &&
                         request.told_size() <= kQuestionsMax;
      if (takes && hear_ != nullptr && request.told_size() > 0) hear_(request);
      Next next;
      {
        MutexLock lock(&mutex_);
        Holder* const read = std::exchange(reading_into_, nullptr);
        if (takes && read->request()->questions_size() > 0) {
          asking_ = read;
          asked_at_ = 0;
        } else {
          read->Release();
          bounded_.charge = {};
        }
        if (!takes) read_all_ = true;
        if (ok && !takes) end_ = {grpc::StatusCode::RESOURCE_EXHAUSTED, WhyNot()};
        next = Step();
      }
      Do(next);
    }

    void OnWriteDone(bool ok) override {
      Next next;
      {
        MutexLock lock(&mutex_);
        writing_ = false;
        answers_.front().holder->Release();
        answers_.pop_front();
        if (!ok) over_ = true;
        next = Step();
      }
      Do(next);
    }

    void OnCancel() override {
      Next next;
      {
        MutexLock lock(&mutex_);
        over_ = true;
        next = Step();
      }
      Do(next);
    }

    void Stop() {
      Next next;
      {
        MutexLock lock(&mutex_);
        read_all_ = true;
        end_ = Stopping();
        next = Step();
      }
      Do(next);
    }

    void OnDone() override {
      {
        MutexLock lock(&owner_->mutex_);
        owner_->open_.erase(this);
      }
      {
        MutexLock lock(&mutex_);
        for (const Queued& answer : answers_) answer.holder->Release();
        if (asking_ != nullptr) asking_->Release();
      }
      delete this;
    }

   private:
    struct Queued {
      Holder* holder;
      std::shared_ptr<const void> hold;  // of `Unread`
    };
    // Work to be done once the lock is released.
    struct Next {
      StreamRequest* read = nullptr;
      const StreamResponse* write = nullptr;
      bool answer = false;
      bool finish = false;
      grpc::Status end = {};
    };

    std::string WhyNot() const {
      if (bounded_.refused.ok()) return "too many questions at once";
      LogRefusedMessage(StreamRequest::descriptor()->full_name(), "", bounded_.refused);
      return std::string(bounded_.refused.message());
    }

    static grpc::Status Stopping() { return {grpc::StatusCode::UNAVAILABLE, "stopping"}; }

    // Decides what the stream does next, under the lock; `Do` then does it without the lock, since
    // gRPC may call back at once. Each of the three activities runs at most once at a time:
    // 1. Write the first queued response (`writing_`).
    // 2. Answer the questions that were read (`answering_`), while fewer than `kAnswersQueuedMax`
    //    responses wait.
    // 3. Read the next request, only when the last one is answered and the queue has room: a caller
    //    that does not read its answers is not read from.
    // When nothing is left and no write or answer runs, `Finish`, once. It may come while a read is
    // pending, and ends that read.
    Next Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      Next next;
      if (finished_) return next;
      if (!over_ && !writing_ && !answers_.empty()) {
        writing_ = true;
        next.write = answers_.front().holder->response();
      }
      if (!over_ && !answering_ && asking_ != nullptr && answers_.size() < kAnswersQueuedMax) {
        answering_ = true;
        next.answer = true;
      }
      if (!over_ && !read_all_ && reading_into_ == nullptr && asking_ == nullptr &&
          answers_.size() < kAnswersQueuedMax) {
        reading_into_ = owner_->messages_.AllocateMessages();
        next.read = reading_into_->request();
      }
      if (!writing_ && !answering_ &&
          (over_ || (read_all_ && answers_.empty() && asking_ == nullptr))) {
        finished_ = true;
        next.finish = true;
        next.end = end_;
      }
      return next;
    }

    // Does what `Step` decided, and goes on while there is something to answer. After `Finish` this
    // object may be gone, but not while it answers: `Step` does not finish then.
    void Do(Next next) {
      while (true) {
        if (next.read != nullptr) {
          bounded_ = {.into = next.read};
          this->StartRead(&bounded_);
        }
        if (next.write != nullptr) this->StartWrite(next.write);
        if (next.finish) this->Finish(next.end);
        if (!next.answer) return;
        next = AnswerSome();
      }
    }

    // Answers as many of the questions as one response holds, without the lock, and queues it.
    Next AnswerSome() {
      Holder* asked = nullptr;
      {
        MutexLock lock(&mutex_);
        asked = asking_;
      }
      Holder* const answer = owner_->Answer(handler_, asked, &asked_at_);
      std::shared_ptr<const void> hold;
      if (unread_ != nullptr) hold = unread_(answer->response()->ByteSizeLong());
      MutexLock lock(&mutex_);
      answering_ = false;
      answers_.push_back({answer, std::move(hold)});
      if (asked_at_ == asked->request()->questions_size()) {
        asking_ = nullptr;
        bounded_.charge = {};  // no read is under way yet
        if (answer != asked) asked->Release();
      }
      return Step();
    }

    AnswerStreams* const owner_;
    const Handler handler_;
    const Unread unread_;
    const Hear hear_;
    Mutex mutex_;                     // inside the owner's
    Holder* reading_into_ = nullptr;  // guarded while no read is under way; else of the reader
    Holder* asking_ ABSL_GUARDED_BY(mutex_) = nullptr;  // its questions are yet to be answered
    Incoming bounded_;                                  // of the reader
    int asked_at_ = 0;                                  // from this one on; of the answering thread
    bool answering_ ABSL_GUARDED_BY(mutex_) = false;
    bool read_all_ ABSL_GUARDED_BY(mutex_) = false;
    bool writing_ ABSL_GUARDED_BY(mutex_) = false;
    bool over_ ABSL_GUARDED_BY(mutex_) = false;  // the other side no longer reads
    grpc::Status end_ ABSL_GUARDED_BY(mutex_);   // of `Finish`
    bool finished_ ABSL_GUARDED_BY(mutex_) = false;
    std::deque<Queued> answers_ ABSL_GUARDED_BY(mutex_);  // the first is being written
  };

  // The response to the questions from `at` on, as many as one holds. What is asked alone, as it
  // mostly is, shares the question's arena: then it is `asked` itself.
  Holder* Answer(const Handler& handler, Holder* asked, int* at) {
    const auto& questions = asked->request()->questions();
    if (questions.size() == 1) {
      *at = 1;
      AnswerOne(handler, questions[0], asked->response());
      return asked;
    }
    Holder* const answers = messages_.AllocateMessages();
    for (size_t bytes = 0; *at < questions.size() && bytes <= kAnswersBytes; ++*at)
      bytes += AnswerOne(handler, questions[*at], answers->response())->ByteSizeLong();
    return answers;
  }

  template <typename Question>
  auto* AnswerOne(const Handler& handler, const Question& question, StreamResponse* response) {
    auto* const answer = response->add_answers();
    answer->set_id(question.id());
    const absl::Status status = handler(question.request(), answer->mutable_response());
    if (!status.ok()) {
      answer->clear_response();
      answer->set_code(static_cast<uint32_t>(status.code()));
      answer->set_message(std::string(status.message()));
    }
    return answer;
  }

  const Handler handler_;
  ArenaMessages<StreamRequest, StreamResponse> messages_;
  mutable Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<Stream*> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_ANSWER_STREAM_H_
