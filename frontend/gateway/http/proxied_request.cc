#include "frontend/gateway/http/proxied_request.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "frontend/engine_client/hop_by_hop.h"
#include "frontend/gateway/errors.h"
#include "frontend/gateway/http/header_text.h"
#include "frontend/gateway/http/models_list.h"
#include "frontend/gateway/http/proxied_paths.h"
#include "frontend/gateway/http/response_makers.h"
#include "frontend/gateway/session_header.h"
#include "frontend/prompt/no_tokens.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;

// A body of so many bytes is parsed and tokenized on the connection's thread, which saves handing
// it over: tens of microseconds where its text was met before, else half a millisecond.
constexpr size_t kInlineBytesMax = 32 << 10;

// When a client should come again whose request no engine took: suspects are tried again soon.
constexpr Duration kNobodyTookItRetryAfter = std::chrono::seconds(1);

constexpr std::string_view kModels = "/v1/models";
constexpr std::string_view kResponses = "/v1/responses/";
// Engines that are asked for a response of which this proxy does not know who made it.
constexpr size_t kResponseEnginesMax = 64;

KnownEngine MakerOf(const UpstreamTry& by) {
  const CellWorker maker = by.destination();
  return {.domain = {},
          .cell = maker.first,
          .worker = maker.second,
          .url = by.choice().route.destination_url()};
}

}  // namespace

ProxiedRequest::ProxiedRequest(ProxyParts* parts, std::shared_ptr<HttpExchange> exchange)
    : parts_(parts), exchange_(std::move(exchange)), io_(&exchange_->io()) {
  parts_->under_way.fetch_add(1, std::memory_order_relaxed);
}

ProxiedRequest::~ProxiedRequest() { parts_->under_way.fetch_sub(1, std::memory_order_relaxed); }

void ProxiedRequest::Start() {
  exchange_->OnGone([self = shared_from_this()] { self->OnClientGone(); });
  ReadHead();
  const std::string& path = exchange_->request().path;
  if (!asks_models_ && !parts_->options().paths.Allows(message_.method, path))
    return RefusePath(path);
  if (!refused_.ok()) return Refuse(refused_);
  if (goes_round_) return RefuseRound();
  if (asks_models_) return AskForModels();
  if (call_.has_value() && TakesSalt(*call_) && parts_->tenancy().MaySalt(tenant_))
    return PutSalt();
  Choose();
}

void ProxiedRequest::PutSalt() {
  Aside(message_.body->size(), [this]() -> std::function<void()> {
    const absl::Status put = parts_->tenancy().PutSalt(tenant_, &message_.body).status();
    return [this, put] { return put.ok() ? Choose() : Refuse(put); };
  });
}

// A rank that the client names, in the header that counts before the body, is the one that serves
// it. Runs where the body was read: a long one is not copied on an I/O thread.
void ProxiedRequest::OnWishes(const RequestWishes& wishes, RouteInput* input) {
  if (std::optional<std::string> without = WithoutFullReports(*message_.body))
    message_.body = std::make_shared<const std::string>(*std::move(without));
  const std::string said = HeaderOf(message_.headers, kDataParallelRankHeader);
  if (said.empty()) input->rank = wishes.rank;
  message_.names_rank = input->rank.has_value();
  message_.one_prompt = wishes.one_prompt;
  stored_ = wishes.stored;
  message_.stored_elsewhere = !stored_.empty();
  by_maker_ = AllowMaker(input);
}

// What an engine has stored, no other one has, unless it answers otherwise: 404 is followed by
// asking the others.
bool ProxiedRequest::AllowMaker(RouteInput* input) const {
  if (maker_failed_) return false;
  for (const std::string& id : stored_) {
    std::optional<KnownEngine> maker = parts_->responses.Of(id);
    if (!maker.has_value()) maker = parts_->stored.Of(id);
    if (!maker.has_value()) continue;
    input->allowed_workers = {maker->worker.name};
    return true;
  }
  return false;
}

bool ProxiedRequest::MeetFirst(std::function<void(ProxiedRequest*)> then) {
  const auto& meet = parts_->options().meet_engines;
  if (meet == nullptr || std::exchange(met_, true)) return false;
  auto work = std::make_shared<asio::executor_work_guard<asio::io_context::executor_type>>(
      asio::make_work_guard(*io_));
  return !meet([self = shared_from_this(), then = std::move(then), work] {
    asio::dispatch(*self->io_, [self, then] {
      if (!self->gone_) then(self.get());
    });
  });
}

void ProxiedRequest::AskForModels() {
  if (parts_->Engines().empty() && MeetFirst(&ProxiedRequest::AskForModels)) return;
  // The engines' own key is for clients that are known here, as it is for requests.
  const std::string asker =
      absl::StrCat(message_.vouched ? "known " : "", HeaderOf(message_.headers, "authorization"));
  if (std::string list = parts_->KeptModels(asker); !list.empty())
    return AnswerModels(std::move(list));
  AskModels(
      io_, parts_->PoolOf(io_), parts_->Engines(), message_.headers,
      parts_->options().models_timeout,
      [self = shared_from_this(), asker](std::vector<std::optional<std::string>> bodies) {
        if (!self->gone_) self->OnModels(asker, std::move(bodies));
      },
      message_.vouched ? EnginesKey::kOwn : EnginesKey::kNone);
}

void ProxiedRequest::OnModels(std::string asker, std::vector<std::optional<std::string>> bodies) {
  size_t bytes = 0;
  for (const std::optional<std::string>& body : bodies)
    bytes += body.has_value() ? body->size() : 0;
  Aside(bytes, [this, asker = std::move(asker), bodies = std::move(bodies)] {
    return [this, asker, list = MergeModels(bodies)] {
      if (!list.has_value()) return Choose();
      parts_->counters.answered.Increment();
      parts_->KeepModels(asker, *list);
      AnswerModels(*list);
    };
  });
}

// A name that the policy does not let this client use is one that is not there.
void ProxiedRequest::AnswerModels(std::string list) {
  const Tenancy& tenancy = parts_->tenancy();
  const auto may_use = [this, &tenancy](const std::string& id) {
    return tenancy.MayRoute(*exchange_->request().identity, tenant_, id);
  };
  if (asked_model_.empty() && !tenancy.enforces())
    return exchange_->Answer({.body = std::move(list)});
  Aside(list.size(), [this, list, may_use]() -> std::function<void()> {
    std::optional<std::string> body;
    if (asked_model_.empty()) {
      body = ModelsOf(list, may_use);
    } else if (may_use(asked_model_)) {
      body = ModelIn(list, asked_model_);
    }
    return [this, body] {
      if (!body.has_value()) return Refuse(UnknownModelError(asked_model_));
      exchange_->Answer({.body = *body});
    };
  });
}

void ProxiedRequest::Aside(size_t bytes, std::function<std::function<void()>()> job) {
  if (bytes <= kInlineBytesMax) return job()();
  const auto back = [self = shared_from_this(),
                     work = asio::make_work_guard(*io_)](std::function<void()> then) {
    asio::dispatch(*self->io_, [self, then = std::move(then)] {
      if (!self->gone_) then();
    });
  };
  parts_->router()->Run(
      [back, job = std::move(job)] { back(job()); },
      [this, back](const absl::Status& why) { back([this, why] { Refuse(why); }); });
}

void ProxiedRequest::ReadHead() {
  const HttpRequest& request = exchange_->request();
  const std::vector<std::string> hops = HopsOf(request.headers);
  std::string hops_passed;
  message_.body = std::make_shared<const std::string>(exchange_->TakeBody());
  message_.method = exchange_->head_only() ? "HEAD" : request.method;
  message_.target = request.target;
  for (const auto& field : request.headers) {
    const bool ours = SameHeader(field.first, "host") ||
                      (request.token_counted && SameHeader(field.first, "authorization")) ||
                      SameHeader(field.first, "x-kvatlas-tenant") ||
                      SameHeader(field.first, "content-length") ||
                      SameHeader(field.first, kPrefillerHeader) || IsHopByHop(field.first, hops);
    if (SameHeader(field.first, kHopHeader)) {
      absl::StrAppend(&hops_passed, hops_passed.empty() ? "" : ", ", field.second);
    } else if (!ours) {
      message_.headers.push_back(field);
    }
  }
  const std::vector<std::string> passed = absl::StrSplit(hops_passed, ", ", absl::SkipEmpty());
  goes_round_ = passed.size() >= kHopsMax ||
                std::find(passed.begin(), passed.end(), parts_->hop) != passed.end();
  message_.headers.emplace_back(
      kHopHeader, absl::StrCat(hops_passed, hops_passed.empty() ? "" : ", ", parts_->hop));
  message_.vouched = request.identity->role != IdentityRole::kAnonymous;
  BeginSpan(request);
  tenant_ = HeaderOf(request.headers, "x-kvatlas-tenant");
  if (tenant_.empty()) tenant_ = parts_->options().tenant;
  call_ = RequestPathOf(message_.method, request.path);
  if (parts_->tenancy().enforces()) ReadTenant(request);
  session_ = SessionOfHeaders(request.headers);
  if (request.method == "GET" && request.path.starts_with(kModels)) {
    const std::string_view rest = std::string_view(request.path).substr(kModels.size());
    asked_model_ = rest.starts_with('/') ? rest.substr(1) : "";  // with its own slashes
    asks_models_ = rest.empty() || !asked_model_.empty();
  }
  if (request.path.starts_with(kResponses)) {
    response_ = request.path.substr(kResponses.size());
    response_.resize(std::min(response_.find('/'), response_.size()));
    if (response_ == "render") response_.clear();
  }
  any_engine_ = message_.method != "POST" || !response_.empty() ||
                (message_.body->empty() &&
                 !parts_->options().paths.IsInference(message_.method, request.path));
  const std::string type = HeaderOf(request.headers, "content-type");
  if (any_engine_ || call_.has_value() ||
      !absl::StartsWithIgnoreCase(absl::string_view(type), "multipart/"))
    return;
  form_model_ = MultipartModel(type, *message_.body);
  any_engine_ = !form_model_.has_value();
  if (any_engine_ && refused_.ok())
    refused_ = parts_->tenancy()
                   .Admit(*request.identity, {.tenant = tenant_, .model = kModelNotRead})
                   .status();
}

// Without tracing the client's own context goes on to the engine as any header does.
void ProxiedRequest::BeginSpan(const HttpRequest& request) {
  Tracer& tracer = *Tracer::OfProcess();
  if (!tracer.on()) return;
  span_ = tracer.Begin("proxy", SpanKind::kServer,
                       Tracer::ParentOf(HeaderOf(request.headers, kTraceparent)));
  span_.Set("http.request.method", message_.method);
  span_.Set("url.path", request.path);
}

// Of the credential; what the policy does not allow is refused before anything is asked.
void ProxiedRequest::ReadTenant(const HttpRequest& request) {
  const Tenancy& tenancy = parts_->tenancy();
  std::string no_salt;
  const bool salts = call_.has_value() && TakesSalt(*call_);
  if (!salts && !LeavesNoBlocks(message_.method, request.path))
    no_salt = absl::StrCat(request.path,
                           " has no place for a salt; send /v1/chat/completions, /v1/completions "
                           "or /v1/responses");
  absl::StatusOr<std::string> tenant =
      tenancy.Admit(*request.identity, {.tenant = tenant_, .no_salt = no_salt});
  refused_ = tenant.status();
  if (tenant.ok()) tenant_ = *std::move(tenant);
}

// ---- Choosing ----

void ProxiedRequest::Choose() {
  if (any_engine_) return ChooseAny();
  PromptRouter* const router = parts_->router();
  PromptQuestion question = Question();
  if (call_.has_value())
    return router->RouteBody(*call_, message_.body, std::move(question), ToThread());
  question.no_prompt = NoPromptOf(message_.method, exchange_->request().path);
  if (!form_model_.has_value())
    return router->RouteModel(message_.body, std::move(question), ToThread());
  question.input.domain.model = *form_model_;
  router->RouteByLoad(std::move(question), ToThread());
}

void ProxiedRequest::ChooseAny() {
  std::optional<KnownEngine> engine;
  if (tries_ == 0 && !response_.empty()) engine = parts_->responses.Of(response_);
  if (!engine.has_value()) engine = parts_->AnyEngine(tried_engines_);
  if (!engine.has_value()) {
    if (!tried_.empty()) return RefuseTried();
    if (MeetFirst(&ProxiedRequest::ChooseAny)) return;
    return Refuse(absl::UnavailableError("no engine is known yet"));
  }
  TryAny(*std::move(engine));
}

void ProxiedRequest::TryAny(KnownEngine engine) {
  PromptRoute choice;
  choice.route.worker = std::move(engine.worker);
  choice.route.cell = std::move(engine.cell);
  choice.route.url = std::move(engine.url);
  Try(std::move(choice));
}

PromptQuestion ProxiedRequest::Question() {
  PromptQuestion question;
  question.input.domain.tenant = parts_->tenancy().PoolOf(tenant_);
  question.input.tenant = tenant_;
  question.input.session_id = session_;
  question.input.end_follows = true;
  question.input.tried = tried_workers_;
  uint32_t rank = 0;
  if (absl::SimpleAtoi(HeaderOf(message_.headers, kDataParallelRankHeader), &rank))
    question.input.rank = rank;
  // This one is there until the callback was called.
  question.on_wishes = [this](const RequestWishes& wishes, RouteInput* input) {
    OnWishes(wishes, input);
  };
  question.may_use = parts_->tenancy().MayUseOf(exchange_->request().identity, tenant_);
  question.input.trace = span_.context();
  question.by_load_without_tokens = true;
  question.forward_tokens = parts_->options().forward_token_ids == "auto";
  question.inline_bytes_max = kInlineBytesMax;
  question.on_caller = [io = io_](std::function<void()> job) {
    asio::dispatch(*io, std::move(job));
  };
  return question;
}

// The callback may come on another thread; until it does, this one must not end. Its hold goes with
// the answer, so that a request never ends on a thread of the router's, maybe after the proxy.
PromptRouter::Callback ProxiedRequest::ToThread() {
  return [self = shared_from_this(),
          work = asio::make_work_guard(*io_)](absl::StatusOr<PromptRoute> choice) mutable {
    asio::io_context& io = *self->io_;
    asio::dispatch(io, [self = std::move(self), choice = std::move(choice)]() mutable {
      self->OnChoice(std::move(choice));
    });
  };
}

void ProxiedRequest::OnChoice(absl::StatusOr<PromptRoute> choice) {
  // What it has stored is gone with it, as the others will say in their own words.
  if (!choice.ok() && tried_.empty() && GiveUpMaker()) return Choose();
  if (!choice.ok()) {
    // The fleet has no other worker: what is wrong is that those it has failed.
    const bool nobody_else = !tried_.empty() && !absl::IsResourceExhausted(choice.status());
    if (nobody_else) return RefuseTried();
    // No leaf knows the engines that flags name: that must not keep requests from them.
    const bool unknown = absl::IsNotFound(choice.status()) || absl::IsUnavailable(choice.status());
    any_engine_ = unknown && !parts_->frontend()->options().engines.empty();
    return any_engine_ ? ChooseAny() : Refuse(choice.status());
  }
  parts_->route_metrics.Observe(choice->route);
  Try(*std::move(choice));
}

// A choice that is not started is given back as abandoned.
void ProxiedRequest::Try(PromptRoute choice) {
  auto next = std::make_shared<UpstreamTry>(parts_, io_, std::move(choice));
  if (gone_) return;
  const RouteResult& route = next->choice().route;
  const CellWorker destination = next->destination();
  // Tried workers come last: there is no other one.
  if (WasTried(destination) || WasTried({route.cell, route.worker})) return RefuseTried();
  const std::string engine = next->engine();
  if (!engine.empty() && tried_engines_.contains(engine)) {
    NoteTried(destination, "at an engine that was tried");
    parts_->frontend()->Avoid(destination.first, destination.second);
    return ChooseAgain(next->choice());
  }
  ++tries_;
  try_ = std::move(next);
  const std::shared_ptr<UpstreamTry> started = try_;  // may fail, and be given up, within
  started->Start(message_, span_.context(), shared_from_this());
}

bool ProxiedRequest::GiveUpMaker() {
  maker_failed_ = true;
  return std::exchange(by_maker_, false);
}

bool ProxiedRequest::WasTried(const CellWorker& worker) const {
  return std::find(tried_workers_.begin(), tried_workers_.end(), worker) != tried_workers_.end();
}

void ProxiedRequest::NoteTried(const CellWorker& worker, const std::string& reason) {
  tried_workers_.push_back(worker);
  absl::StrAppend(&tried_, tried_.empty() ? "" : ", ", worker.second.name, " (", reason, ")");
}

void ProxiedRequest::ChooseAgain(const PromptRoute& earlier) {
  if (any_engine_) return ChooseAny();
  if (GiveUpMaker()) return Choose();
  parts_->router()->RouteAgain(earlier, tried_workers_, ToThread());
}

// ---- The try ----

bool ProxiedRequest::AskAnother() {
  tried_engines_.insert(try_->engine());
  if (tried_engines_.size() >= kResponseEnginesMax) return false;
  std::optional<KnownEngine> next = parts_->AnyEngine(tried_engines_);
  if (!next.has_value()) return false;
  const std::shared_ptr<UpstreamTry> without = std::exchange(try_, nullptr);
  without->Cancel();
  --tries_;  // it did not fail
  TryAny(*std::move(next));
  return true;
}

// The first is the response's; the others are those of its items.
void ProxiedRequest::NoteIds(std::string_view piece) {
  for (const std::string& id : made_->Add(piece)) {
    ResponseMakers& makers = response_noted_ ? parts_->stored : parts_->responses;
    makers.Note(id, MakerOf(*try_));
    response_noted_ = true;
  }
}

// The first piece that is there already goes out with the head, in one write.
void ProxiedRequest::OnHead(HttpHead head, bool piece_follows) {
  if (head.status == 404 && !response_.empty() && AskAnother()) return;
  DropRefusal();
  if (call_ == RequestPath::kResponses && head.status < 300) {
    made_.emplace();
    // A conversation is where its last response was made.
    for (const std::string& id : stored_) parts_->stored.Note(id, MakerOf(*try_));
  }
  span_.Set("http.response.status_code", int64_t{head.status});
  if (!tried_.empty()) head.headers.emplace_back("x-kvatlas-tried", HeaderText(tried_));
  if (!piece_follows) return exchange_->Begin(std::move(head), ToResume());
  head_ = std::move(head);
  try_->Resume();
}

void ProxiedRequest::OnPiece(std::string_view piece) {
  if (made_.has_value()) NoteIds(piece);
  if (!head_.has_value()) return exchange_->Write(piece, ToResume());
  const HttpHead head = *std::exchange(head_, std::nullopt);
  exchange_->Begin(head, piece, ToResume());
}

HttpExchange::Done ProxiedRequest::ToResume() {
  return [self = shared_from_this()] {
    if (self->try_ != nullptr) self->try_->Resume();
  };
}

void ProxiedRequest::OnEnd() {
  try_ = nullptr;
  span_.End();
  exchange_->End();
}

void ProxiedRequest::OnFailed(const TryFailure& failure) {
  const std::shared_ptr<UpstreamTry> failed = std::exchange(try_, nullptr);
  if (failure.answered) return exchange_->Cut();
  if (failure.at_work) return RefuseLate(failure);
  TryAnother(failure, *failed);
}

// Its answer waits unread at the engine's connection.
void ProxiedRequest::OnRefusal(const TryFailure& failure) {
  DropRefusal();
  refusing_ = std::exchange(try_, nullptr);
  const std::shared_ptr<UpstreamTry> refusing = refusing_;  // may be given up within
  if (failure.not_there && tried_engines_.size() < kResponseEnginesMax) --tries_;
  TryAnother(failure, *refusing);
}

void ProxiedRequest::DropRefusal() {
  if (refusing_ != nullptr) std::exchange(refusing_, nullptr)->Cancel();
}

void ProxiedRequest::TryAnother(const TryFailure& failure, const UpstreamTry& failed) {
  // An engine that could not even be asked about its prefiller may still be asked with another one.
  if (failure.worker == failed.destination() && !failed.engine().empty())
    tried_engines_.insert(failed.engine());
  NoteTried(failure.worker, failure.reason);
  if (tries_ >= parts_->options().tries) return RefuseTried();
  parts_->counters.tried_again.Increment();
  ChooseAgain(failed.choice());
}

// ---- Its end ----

void ProxiedRequest::RefuseTried() {
  Refuse(WithRetryAfter(absl::UnavailableError("no engine took the request: " + tried_),
                        kNobodyTookItRetryAfter));
}

// What it may be generating, no other engine generates again: one request too long for our patience
// would be so at each. The SDKs of OpenAI and Anthropic ask again after a 504, unless the answer
// tells them not to.
void ProxiedRequest::RefuseLate(const TryFailure& failure) {
  NoteTried(failure.worker, failure.reason);
  DropRefusal();
  Refuse(absl::DeadlineExceededError(absl::StrCat(
             "the engine that took the request did not answer within --proxy_answer_timeout: ",
             tried_)),
         {{"x-should-retry", "false"}});
}

void ProxiedRequest::Refuse(const absl::Status& why, const HttpHeaders& more) {
  if (gone_) return;
  if (refusing_ != nullptr) {
    try_ = std::exchange(refusing_, nullptr);
    const std::shared_ptr<UpstreamTry> passed_on = try_;
    return passed_on->PassOn();
  }
  span_.End(why);
  HttpResponse response = ErrorAnswer(why, ErrorShapeOf(exchange_->request().path));
  response.headers.insert(response.headers.end(), more.begin(), more.end());
  AnswerRefusal(std::move(response));
}

void ProxiedRequest::RefusePath(const std::string& path) {
  const ProxiedPaths& paths = parts_->options().paths;
  // A model's name may have slashes.
  const bool is_model = path.starts_with("/v1/models/") && !path.ends_with('/');
  const std::string allow = is_model ? "GET, HEAD" : paths.MethodsOf(path);
  if (allow.empty()) {
    return Refuse(absl::NotFoundError(
        absl::StrCat(message_.method, " ", path,
                     " is not passed on to engines. Passed on are: ", paths.ToString())));
  }
  const std::string why = absl::StrCat(message_.method, " is not for ", path, "; expected ", allow);
  span_.Fail(why);
  span_.End();
  AnswerRefusal({.status = 405,
                 .body = ErrorBody(405, why, ErrorShapeOf(path)),
                 .headers = {{"allow", allow}}});
}

// 508 (RFC 5842): who asked takes it for an engine that is not there.
void ProxiedRequest::RefuseRound() {
  const std::string why =
      "the request has passed this kvatlas before: an engine's URL (--engine, --engines, or a "
      "worker's label url) leads back to it";
  span_.Fail(why);
  span_.End();
  AnswerRefusal(
      {.status = 508, .body = ErrorBody(508, why, ErrorShapeOf(exchange_->request().path))});
}

void ProxiedRequest::AnswerRefusal(HttpResponse response) {
  parts_->counters.refused.Increment();
  if (!tried_.empty()) response.headers.emplace_back("x-kvatlas-tried", HeaderText(tried_));
  exchange_->Answer(std::move(response));
}

void ProxiedRequest::OnClientGone() {
  gone_ = true;
  span_.Fail("the client has gone");
  span_.End();
  parts_->counters.client_gone.Increment();
  DropRefusal();
  if (try_ != nullptr) std::exchange(try_, nullptr)->Cancel();
}

}  // namespace kvatlas
