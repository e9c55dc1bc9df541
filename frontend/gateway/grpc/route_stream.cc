// The reactor of a stream of questions. Each callback of gRPC changes the state under the lock,
// lets `Step` decide what is due, and does it without the lock (`Do`). At most one read and one
// write are under way; `Finish` comes last.

#include "frontend/gateway/grpc/route_stream.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "indexer/base/durations.h"
#include "indexer/net/grpc_status.h"

namespace kvatlas {

RouteStreamReactor::RouteStreamReactor(const RouteCalls* calls, RouteCalls::Asker asker,
                                       std::string peer)
    : calls_(calls), asker_(std::move(asker)), peer_(std::move(peer)) {
  StartRead(&incoming_);
}

void RouteStreamReactor::OnReadDone(bool ok) {
  if (ok && !incoming_.refused.ok()) return Refuse();
  if (ok) return Ask();
  Next next;
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    read_all_ = true;
    next = Step();
  }
  Do(next);
}

// What was sent before is answered, then the stream ends.
void RouteStreamReactor::Refuse() {
  LogRefusedMessage("/kvatlas.v1.Frontend/RouteStream", peer_, incoming_.refused);
  Next next;
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    read_all_ = true;
    refused_ = incoming_.refused;
    next = Step();
  }
  Do(next);
}

// Asks the question in `request_`. The answer may come before `Ask` returns. `request_` is free for
// the next read only at the end, when `Step` may start it; its charge goes with the answer.
void RouteStreamReactor::Ask() {
  const uint64_t id = request_.id();
  const bool large = incoming_.charge.bytes() > kSmallMessageBytes;
  const bool report = request_.question_case() == v1::RouteStreamRequest::kReport;
  {
    MutexLock lock(&mutex_);
    if (report) {
      Forget(request_.report().decision_id());
    } else {
      // Counted before asking: the answer counts it down.
      ++asked_;
    }
  }
  std::shared_ptr<MessageAccount::Charge> charge;
  if (incoming_.charge.charged())
    charge = std::make_shared<MessageAccount::Charge>(std::move(incoming_.charge));
  const auto answer = [this, id, charge](absl::StatusOr<v1::RouteResponse> response) {
    if (charge != nullptr) *charge = {};
    OnAnswer(id, std::move(response));
  };
  switch (request_.question_case()) {
    case v1::RouteStreamRequest::kReport:
      calls_->Report(request_.report(), asker_);
      break;
    case v1::RouteStreamRequest::kRoute:
      calls_->Ask(request_.route(), Duration::max(), answer, asker_);
      break;
    case v1::RouteStreamRequest::kChat:
      calls_->Ask(request_.chat(), Duration::max(), answer, asker_);
      break;
    default:
      answer(absl::InvalidArgumentError("no question: neither route nor chat nor report"));
  }
  if (large) request_ = {};
  Next next;
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    next = Step();
  }
  Do(next);
}

// Any thread. Choices are noted in the order of answers; at the bound the oldest is forgotten, and
// stays in flight until a report or its expiry if the stream breaks.
void RouteStreamReactor::OnAnswer(uint64_t id, absl::StatusOr<v1::RouteResponse> answer) {
  v1::RouteStreamResponse response;
  response.set_id(id);
  if (answer.ok()) {
    *response.mutable_route() = *std::move(answer);
  } else {
    response.set_code(static_cast<uint32_t>(answer.status().code()));
    response.set_message(std::string(answer.status().message()));
    if (const std::optional<Duration> retry = RetryAfter(answer.status()))
      response.set_retry_after_ms(Milliseconds(*retry));
  }
  Next next;
  {
    MutexLock lock(&mutex_);
    --asked_;
    if (response.has_route()) {
      choices_.push_back(response.route().decision_id());
      if (choices_.size() > kStreamChoicesMax) choices_.pop_front();
    }
    answers_.push_back(std::move(response));
    next = Step();
  }
  Do(next);
}

// The written answer is the first of `answers_`, which must not move while gRPC reads it: a deque
// keeps the others in place.
void RouteStreamReactor::OnWriteDone(bool ok) {
  Next next;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    answers_.pop_front();
    if (!ok) cancelled_ = true;
    next = Step();
  }
  Do(next);
}

void RouteStreamReactor::OnCancel() {
  Next next;
  {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    next = Step();
  }
  Do(next);
}

// From the end, as most reports are on late choices.
void RouteStreamReactor::Forget(uint64_t decision_id) {
  const auto found = std::find(choices_.rbegin(), choices_.rend(), decision_id);
  if (found != choices_.rend()) choices_.erase(std::next(found).base());
}

// Decides what is due:
// 1. After a cancellation nothing more is written; the answer being written stays until
//    `OnWriteDone`.
// 2. The next answer is written, if none is.
// 3. The next question is read while less than `kStreamOutstandingMax` are asked or wait to be
//    written: a client that does not read its answers is not read from.
// 4. When nothing is read any more, nothing is being written, and every question is answered, the
//    stream finishes. Callbacks of questions hold `this`, hence the last condition.
RouteStreamReactor::Next RouteStreamReactor::Step() {
  Next next;
  if (finished_) return next;
  if (cancelled_ && !writing_) answers_.clear();
  if (!writing_ && !answers_.empty()) {
    writing_ = true;
    next.write = &answers_.front();
  }
  const bool over = cancelled_ || read_all_;
  if (!over && !reading_ && asked_ + answers_.size() < kStreamOutstandingMax) {
    reading_ = true;
    next.read = true;
  }
  if (over && !reading_ && !writing_ && asked_ == 0) {
    finished_ = true;
    next.finish = true;
    next.end = cancelled_ ? grpc::Status::CANCELLED : ToGrpcStatus(refused_);
  }
  return next;
}

// REQUIRES: no lock. After `Finish` this may be gone, so it comes last.
void RouteStreamReactor::Do(const Next& next) {
  if (next.read) StartRead(&incoming_);
  if (next.write != nullptr) StartWrite(next.write);
  if (next.finish) Finish(next.end);
}

// A stream that was cancelled releases the choices that were not reported on; one that its caller
// ended keeps them, since they were sent to their workers.
void RouteStreamReactor::OnDone() {
  std::deque<uint64_t> left;
  {
    MutexLock lock(&mutex_);
    if (cancelled_) left.swap(choices_);
  }
  for (uint64_t decision_id : left) calls_->Release(decision_id);
  delete this;
}

// Called once, on any thread; `Finish` is its last access, as `OnDone` may delete this at once.
void RouteReactor::Answer(absl::StatusOr<v1::RouteResponse> answer) {
  if (answer.ok()) {
    *response_ = *std::move(answer);
    decision_id_ = response_->decision_id();
  } else if (const std::optional<Duration> retry = RetryAfter(answer.status())) {
    context_->AddTrailingMetadata("retry-after-ms", std::to_string(Milliseconds(*retry)));
  }
  Finish(ToGrpcStatus(answer.status()));
}

// gRPC calls `OnDone` after `OnCancel`, so a relaxed load sees it.
void RouteReactor::OnDone() {
  if (cancelled_.load(std::memory_order_relaxed) && decision_id_ != 0)
    calls_->Release(decision_id_);
  delete this;
}

}  // namespace kvatlas
