#include "frontend/gateway/grpc/route_stream.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "indexer/base/durations.h"
#include "indexer/net/grpc_status.h"

namespace kvatlas {

RouteStreamReactor::RouteStreamReactor(const RouteCalls* calls, RouteCalls::Asker asker)
    : calls_(calls), asker_(std::move(asker)) {
  StartRead(&request_);
}

void RouteStreamReactor::OnReadDone(bool ok) {
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

// The answer may come before `Ask` returns; reading goes on in any case.
void RouteStreamReactor::Ask() {
  const uint64_t id = request_.id();
  const bool report = request_.question_case() == v1::RouteStreamRequest::kReport;
  {
    MutexLock lock(&mutex_);
    if (report) {
      Forget(request_.report().decision_id());
    } else {
      ++asked_;
    }
  }
  const auto answer = [this, id](absl::StatusOr<v1::RouteResponse> response) {
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
  Next next;
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    next = Step();
  }
  Do(next);
}

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

void RouteStreamReactor::Forget(uint64_t decision_id) {
  const auto found = std::find(choices_.rbegin(), choices_.rend(), decision_id);
  if (found != choices_.rend()) choices_.erase(std::next(found).base());
}

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
    next.cancelled = cancelled_;
  }
  return next;
}

// After `Finish` this may be gone.
void RouteStreamReactor::Do(const Next& next) {
  if (next.read) StartRead(&request_);
  if (next.write != nullptr) StartWrite(next.write);
  if (next.finish) Finish(next.cancelled ? grpc::Status::CANCELLED : grpc::Status::OK);
}

void RouteStreamReactor::OnDone() {
  std::deque<uint64_t> left;
  {
    MutexLock lock(&mutex_);
    if (cancelled_) left.swap(choices_);
  }
  for (uint64_t decision_id : left) calls_->Release(decision_id);
  delete this;
}

void RouteReactor::Answer(absl::StatusOr<v1::RouteResponse> answer) {
  if (answer.ok()) {
    *response_ = *std::move(answer);
    decision_id_ = response_->decision_id();
  } else if (const std::optional<Duration> retry = RetryAfter(answer.status())) {
    context_->AddTrailingMetadata("retry-after-ms", std::to_string(Milliseconds(*retry)));
  }
  Finish(ToGrpcStatus(answer.status()));
}

void RouteReactor::OnDone() {
  if (cancelled_.load(std::memory_order_relaxed) && decision_id_ != 0)
    calls_->Release(decision_id_);
  delete this;
}

}  // namespace kvatlas
