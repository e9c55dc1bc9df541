// The way of a question: `Ask` admits it (tenant, salt), `AskAdmitted` checks it and routes tokens
// and hashes, `AskPrompt` routes text and chats through the router. Bodies of engines' APIs go by
// `AskBody`, `AskSalted`, `AskAdmittedBody`. Every way ends in the callback, and every outcome is
// counted once.

#include "frontend/gateway/grpc/route_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "frontend/cluster_client/wire.h"
#include "frontend/gateway/grpc/prompt_wire.h"
#include "frontend/prompt/error_code.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {
namespace {

// Bounds a deadline that the caller leaves open.
constexpr Duration kForever = std::chrono::hours(1);
constexpr Duration kQueueWaitMax = std::chrono::minutes(1);
// Decisions whose asker is remembered; a report on an older one is ignored.
constexpr size_t kOwnersMax = 1 << 16;
// Bodies up to this size are salted on the caller's thread, larger ones on the threads that read
// prompts.
constexpr size_t kInlineBytesMax = 64 << 10;

// `wanted`, or what is left less a tenth for the way back; at least one tick, as 0 would mean the
// default.
Duration Within(Duration wanted, Duration left) {
  return std::max<Duration>(std::min({wanted, left - left / 10, kForever}), Duration(1));
}

// A route waits for a worker no longer than its caller waits for the answer.
void BoundQueueWait(const Frontend& frontend, Duration left, RouteInput* input) {
  input->queue_wait = std::min({input->queue_wait.value_or(frontend.options().queue_wait),
                                std::max(left, Duration(0)), kQueueWaitMax});
}

}  // namespace

// Admits a question and rewrites it: the tenant becomes its pool, and the caller's salt becomes
// that of the tenant. Hashes of a salted tenant are refused, since their salt cannot be checked.
absl::StatusOr<RouteCalls::Admitted> RouteCalls::Admit(const Identity& asker,
                                                       v1::RouteRequest* request) const {
  const bool hashes = request->sequence_hashes_size() > 0;
  absl::StatusOr<std::string> tenant = tenancy_.Admit(
      asker,
      {.tenant = request->domain().tenant(),
       .model = request->domain().model(),
       .no_salt = hashes ? "send tokens, text or chat in the place of sequence_hashes" : ""});
  if (!tenant.ok()) return tenant.status();
  request->mutable_domain()->set_tenant(tenancy_.PoolOf(*tenant));
  std::string* const callers = request->has_chat()   ? request->mutable_chat()->mutable_cache_salt()
                               : request->has_text() ? request->mutable_text()->mutable_cache_salt()
                               : request->has_tokens()
                                   ? request->mutable_tokens()->mutable_cache_salt()
                                   : nullptr;
  if (callers == nullptr || !tenancy_.Salted(*tenant, *callers))
    return Admitted{.tenant = *std::move(tenant), .salt = ""};
  *callers = tenancy_.SaltOf(*tenant, request->domain().model(), *callers);
  return Admitted{.tenant = *std::move(tenant), .salt = *callers};
}

// Wraps `callback` in a span of the whole call. `trace` becomes the span's context, so that the
// route is its child.
RouteCalls::Callback RouteCalls::Traced(TraceContext* trace, Callback callback) {
  Tracer& tracer = *Tracer::OfProcess();
  if (!tracer.on()) return callback;
  Span begun = tracer.Begin("Route", SpanKind::kServer, *trace);
  *trace = begun.context();
  if (!begun.recorded()) return callback;
  return [span = std::make_shared<Span>(std::move(begun)),
          callback = std::move(callback)](absl::StatusOr<v1::RouteResponse> answer) {
    span->End(answer.status());
    callback(std::move(answer));
  };
}

// With a policy: the answer tells the salt that the engine's request must carry, and the decision
// is noted as this asker's. `owners_` and `owned_` have the same ids; the oldest goes at the bound.
RouteCalls::Callback RouteCalls::Salting(std::string salt, const Asker& asker,
                                         Callback callback) const {
  return [this, salt = std::move(salt), owner = asker->Text(),
          callback = std::move(callback)](absl::StatusOr<v1::RouteResponse> answer) {
    if (answer.ok()) {
      answer->set_cache_salt(salt);
      MutexLock lock(&mutex_);
      if (owned_.size() >= kOwnersMax) {
        owners_.erase(owned_.front());
        owned_.pop_front();
      }
      owners_[answer->decision_id()] = owner;
      owned_.push_back(answer->decision_id());
    }
    callback(std::move(answer));
  };
}

void RouteCalls::Ask(const v1::RouteRequest& request, Duration left, Callback callback,
                     const Asker& asker) const {
  if (asker == nullptr || !tenancy_.enforces())
    return AskAdmitted(request, "", left, std::move(callback));
  v1::RouteRequest admitted = request;
  absl::StatusOr<Admitted> as = Admit(*asker, &admitted);
  if (!as.ok()) {
    count_(as.status());
    return callback(as.status());
  }
  AskAdmitted(admitted, as->tenant, left, Salting(as->salt, asker, std::move(callback)));
}

// REQUIRES: the tenant in `request` may be used. `tenant` is the caller's, where a pool took its
// place in the domain.
void RouteCalls::AskAdmitted(const v1::RouteRequest& request, const std::string& tenant,
                             Duration left, Callback callback) const {
  absl::StatusOr<RouteInput> input = FromProto(request);
  if (input.ok()) input->tenant = tenant;
  if (input.ok() && request.has_text() + request.has_chat() + request.has_tokens() +
                            (request.sequence_hashes_size() > 0) >
                        1) {
    input = absl::InvalidArgumentError("more than one of tokens, sequence_hashes, text and chat");
  }
  if (!input.ok()) {
    count_(input.status());
    return callback(input.status());
  }
  input->trace = Tracer::ParentOf(request.traceparent());
  callback = Traced(&input->trace, std::move(callback));
  if (request.has_text() || request.has_chat())
    return AskPrompt(request, *std::move(input), left, std::move(callback));
  const auto prompt_tokens = static_cast<uint32_t>(input->tokens.size());
  // No use in an answer after the caller's own deadline.
  const Duration wanted =
      input->deadline > Duration(0) ? input->deadline : frontend_->options().deadline;
  input->deadline = Within(wanted, left);
  BoundQueueWait(*frontend_, left, &*input);
  frontend_->RouteAsync(*std::move(input), [this, prompt_tokens, callback = std::move(callback)](
                                               absl::StatusOr<RouteResult> result) {
    Note(result);
    if (!result.ok()) return callback(result.status());
    v1::RouteResponse response = ToProto(*result);
    response.set_prompt_tokens(prompt_tokens);
    callback(std::move(response));
  });
}

void RouteCalls::AskPrompt(const v1::RouteRequest& request, RouteInput input, Duration left,
                           Callback callback) const {
  absl::StatusOr<Prompt> prompt = PromptFromProto(request);
  if (prompt.ok() && router_ == nullptr)
    prompt = AboutTokenizer(absl::NotFoundError(
        "no tokenizer for model \"" + request.domain().model() + "\": this frontend has none"));
  if (!prompt.ok()) {
    count_(prompt.status());
    return callback(prompt.status());
  }
  input.lora_name = request.has_chat() ? request.chat().lora_name() : request.text().lora_name();
  input.cache_salt = request.has_chat() ? request.chat().cache_salt() : request.text().cache_salt();
  const Duration wanted = input.deadline;
  BoundQueueWait(*frontend_, left, &input);
  router_->Route({.input = std::move(input),
                  .prompt = *std::move(prompt),
                  .return_tokens = request.return_tokens(),
                  .deadline = Within(wanted > Duration(0) ? wanted : left, left)},
                 Recording(std::move(callback)));
}

void RouteCalls::Ask(const v1::RouteChatRequest& request, Duration left, Callback callback,
                     const Asker& asker) const {
  PromptQuestion question;
  question.input.domain.tenant = request.tenant();
  question.return_tokens = request.return_tokens();
  const Duration wanted = std::chrono::milliseconds(request.deadline_ms());
  question.input.deadline = wanted;
  question.deadline = Within(wanted > Duration(0) ? wanted : left, left);
  if (absl::Status bad = ChoiceFromProto(request, &question.input); !bad.ok()) {
    count_(bad);
    return callback(std::move(bad));
  }
  BoundQueueWait(*frontend_, left, &question.input);
  question.input.trace = Tracer::ParentOf(request.traceparent());
  AskBody(RequestPath::kChatOrCompletion, std::make_shared<const std::string>(request.body()),
          std::move(question), std::move(callback), asker);
}

// With a policy: admits the caller by its tenant, then salts the body. Its model is known only when
// the body is read, so `may_use` asks for it then.
void RouteCalls::AskBody(RequestPath call, std::shared_ptr<const std::string> body,
                         PromptQuestion question, Callback callback, const Asker& asker) const {
  if (asker == nullptr || !tenancy_.enforces())
    return AskAdmittedBody(call, std::move(body), std::move(question), std::move(callback));
  absl::StatusOr<std::string> tenant =
      tenancy_.Admit(*asker, {.tenant = question.input.domain.tenant});
  if (!tenant.ok()) {
    count_(tenant.status());
    return callback(tenant.status());
  }
  question.may_use = tenancy_.MayUseOf(asker, *tenant);
  question.input.domain.tenant = tenancy_.PoolOf(*tenant);
  question.input.tenant = *tenant;
  if (router_ == nullptr || body->size() <= kInlineBytesMax || !tenancy_.MaySalt(*tenant))
    return AskSalted(call, std::move(body), std::move(question), std::move(callback), asker);
  router_->Run(
      [this, call, body = std::move(body), question = std::move(question), callback,
       asker]() mutable {
        AskSalted(call, std::move(body), std::move(question), std::move(callback), asker);
      },
      callback);
}

// On a thread that may parse the body.
void RouteCalls::AskSalted(RequestPath call, std::shared_ptr<const std::string> body,
                           PromptQuestion question, Callback callback, const Asker& asker) const {
  absl::StatusOr<std::string> salt = tenancy_.PutSalt(question.input.tenant, &body);
  if (!salt.ok()) {
    count_(salt.status());
    return callback(salt.status());
  }
  AskAdmittedBody(call, std::move(body), std::move(question),
                  Salting(*std::move(salt), asker, std::move(callback)));
}

void RouteCalls::AskAdmittedBody(RequestPath call, std::shared_ptr<const std::string> body,
                                 PromptQuestion question, Callback callback) const {
  if (router_ == nullptr) {
    absl::Status none = AboutTokenizer(absl::NotFoundError("no tokenizer: this frontend has none"));
    count_(none);
    return callback(std::move(none));
  }
  callback = Traced(&question.input.trace, std::move(callback));
  router_->RouteBody(call, std::move(body), std::move(question), Recording(std::move(callback)));
}

// Counts, notes the id, and converts to the wire.
PromptRouter::Callback RouteCalls::Recording(Callback callback) const {
  return [this, callback = std::move(callback)](const absl::StatusOr<PromptRoute>& answer) {
    if (!answer.ok()) {
      count_(answer.status());
      return callback(answer.status());
    }
    Note(answer->route);
    callback(ToProto(*answer));
  };
}

// Ids of a frontend count up: the range from first to last holds all that were given out here, and
// a few that other interfaces of the process gave out.
void RouteCalls::Note(const absl::StatusOr<RouteResult>& result) const {
  count_(result);
  if (!result.ok()) return;
  const uint64_t id = result->decision_id;
  MutexLock lock(&mutex_);
  if (!given_out_.has_value()) given_out_ = {id, id};
  given_out_->first = std::min(given_out_->first, id);
  given_out_->second = std::max(given_out_->second, id);
}

bool RouteCalls::GaveOut(uint64_t decision_id) const {
  MutexLock lock(&mutex_);
  return given_out_.has_value() && decision_id >= given_out_->first &&
         decision_id <= given_out_->second;
}

void RouteCalls::Release(uint64_t decision_id) const {
  frontend_->Report(decision_id, {.abandoned = true});
}

// An operator may report on every decision. Decisions that are forgotten are no caller's.
bool RouteCalls::IsOf(uint64_t decision_id, const Asker& asker) const {
  if (asker == nullptr || !tenancy_.enforces() || asker->role == IdentityRole::kOperator)
    return true;
  MutexLock lock(&mutex_);
  const auto found = owners_.find(decision_id);
  return found != owners_.end() && found->second == asker->Text();
}

void RouteCalls::Report(const v1::ReportRequest& request, const Asker& asker) const {
  count_report_();
  if (!IsOf(request.decision_id(), asker)) return;
  frontend_->Report(request.decision_id(), FromProto(request));
}

}  // namespace kvatlas
