// One client request through the proxy, in the order of its life: reading the head, choosing an
// engine, the try, its end. All of it runs on the thread of the connection (`io_`); work that grows
// with the body goes to the router's threads and comes back (`Aside`, `ToThread`). Every
// continuation checks `gone_`, since the client may leave at any of these points.

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

// The `retry-after` of a request that no engine took: suspects are tried again soon.
constexpr Duration kNobodyTookItRetryAfter = std::chrono::seconds(1);

constexpr std::string_view kModels = "/v1/models";
constexpr std::string_view kResponses = "/v1/responses/";
// The most engines that are asked for a response whose maker this proxy does not know.
constexpr size_t kResponseEnginesMax = 64;

// The engine of a try, as `ResponseMakers` keeps it.
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

// The order of the refusals matters: an unknown path is 404 or 405 for every client, then the
// policy decides, then loops are broken. Only then is anything asked of the fleet.
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

// Rewrites `message_.body` on another thread; this thread does not touch it until the continuation
// runs.
void ProxiedRequest::PutSalt() {
  Aside(message_.body->size(), [this]() -> std::function<void()> {
    const absl::Status put = parts_->tenancy().PutSalt(tenant_, &message_.body).status();
    return [this, put] { return put.ok() ? Choose() : Refuse(put); };
  });
}

// Called by the router with the wishes of the body, before it chooses, on the thread that read the
// body: a long one is not copied on an I/O thread. A rank that the client names, in the header that
// counts before the body, is the one that serves it.
void ProxiedRequest::OnWishes(const RequestWishes& wishes, RouteInput* input) {
  if (wishes.has_engine_arguments) {
    if (std::optional<std::string> without = WithoutFullReports(*message_.body))
      message_.body = std::make_shared<const std::string>(*std::move(without));
  }
  const std::string said = HeaderOf(message_.headers, kDataParallelRankHeader);
  if (said.empty()) input->rank = wishes.rank;
  message_.names_rank = input->rank.has_value();
  message_.one_prompt = wishes.one_prompt;
  stored_ = wishes.stored;
  message_.stored_elsewhere = !stored_.empty();
  by_maker_ = AllowMaker(input);
}

// An engine's stored items are on that engine alone. `responses` and `stored` are learnt from
// answers that passed here: an unknown id restricts nothing, and a 404 is followed by asking the
// others.
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

// True: `then` follows once leaves were asked; false: there is nothing to wait for, or it was done
// before. `work` keeps the I/O thread running while the callback is on its way.
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

// The list depends on the client's key: engines may show different models to different keys, so a
// kept list is used for the same `asker` only.
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

// Merging parses every answer, hence aside. When no engine gave a list, one engine's own answer is
// passed on (`Choose`).
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

// GET /v1/models, or /v1/models/ID. To a client a model that the policy forbids does not exist.
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

// Runs `job` on a router thread and the function it returns on this one; small work runs here at
// once. A full queue refuses the request (RESOURCE_EXHAUSTED). Not after `gone_`: the continuation
// is dropped.
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

// Fills in all that the head decides:
// 1. `message_`: the request as engines get it, without headers of the connection, our own ones,
//    and a credential that was meant for us (`token_counted`).
// 2. Hops: this process adds itself; a request that has it already, or `kHopsMax` others, goes
//    round.
// 3. Tenant and policy (`ReadTenant`), session.
// 4. The kind of call: a list of models, something below a response, any engine, or by its model.
// A form names its model in a part of its own (`MultipartModel`); a form without one goes to any
// engine and needs the right to all models.
void ProxiedRequest::ReadHead() {
  const HttpRequest& request = exchange_->request();
  const std::vector<std::string> hops = HopsOf(request.headers);
  std::string hops_passed;
  message_.body = std::make_shared<const std::string>(exchange_->TakeBody());
  message_.method = exchange_->head_only() ? "HEAD" : request.method;
  message_.target = request.target;
  // A client's `kPrefillerHeader` would choose the prefiller in our place: it goes nowhere.
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
    // /v1/responses/render is a call of its own, not an id.
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

// The tenant of the credential; a request that the policy forbids is refused before anything is
// asked. A call that leaves blocks in an engine's cache and has no place for a salt is refused for
// a tenant with a salt, since its blocks would be visible to others.
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

// Four ways to an engine: any of them; by the prompt of the body; by load for the model of a JSON
// body; by load for the model of a form.
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

// No decision of the frontend: engines by turns, except that a response is asked for at its maker
// first. `tried_engines_` excludes those that have failed.
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

// A choice with decision id 0: nothing is reported on it.
void ProxiedRequest::TryAny(KnownEngine engine) {
  PromptRoute choice;
  choice.route.worker = std::move(engine.worker);
  choice.route.cell = std::move(engine.cell);
  choice.route.url = std::move(engine.url);
  Try(std::move(choice));
}

// Everything but the body. `end_follows` promises a report of the end in any case; `UpstreamTry`
// keeps that promise, also when the client leaves.
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
  // The engine may get the ids of a chat (`PromptRoute::forward`).
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

// A failed choice falls back in this order: without the maker of stored items; the reason why the
// tried engines failed; engines of --engines by turns, which no leaf knows; the error itself.
void ProxiedRequest::OnChoice(absl::StatusOr<PromptRoute> choice) {
  // The maker is gone, and its items with it; the other engines answer that in their own words.
  if (!choice.ok() && tried_.empty() && GiveUpMaker()) return Choose();
  if (!choice.ok()) {
    // The fleet has no other worker: the client learns why the tried ones failed. A 429 stays one.
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

// Starts a try with this choice. Not started are: any, once the client has gone; one whose workers
// were tried, since tried workers come last and so no other is left; one at an engine that was
// tried under another worker's name, after which the next is chosen. The destructor of a try that
// was not started abandons its choice.
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

// At most once true: `maker_failed_` stays set.
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

// The router keeps the tokens and answers of the earlier route, so that nothing is read again.
void ProxiedRequest::ChooseAgain(const PromptRoute& earlier) {
  if (any_engine_) return ChooseAny();
  if (GiveUpMaker()) return Choose();
  parts_->router()->RouteAgain(earlier, tried_workers_, ToThread());
}

// ---- The try ----

// A response whose maker is unknown, or has lost it, is looked for at one engine after the other.
// An engine without it has not failed, so the try does not count.
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

// Ids in the answer: the first is the response's own, the others are those of its items.
void ProxiedRequest::NoteIds(std::string_view piece) {
  for (const std::string& id : made_->Add(piece)) {
    ResponseMakers& makers = response_noted_ ? parts_->stored : parts_->responses;
    makers.Note(id, MakerOf(*try_));
    response_noted_ = true;
  }
}

// The head of the answer. A 404 for a response asks the next engine. Otherwise an earlier refusal
// is dropped, as this answer takes its place. The first piece, if it is there already, goes out
// with the head in one write.
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

// `piece` is valid until `Resume`, which runs when the client's connection has taken the bytes: a
// slow client slows the engine.
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

// After the head the answer can only be cut. Work that may go on is not repeated elsewhere.
// Otherwise another engine is tried.
void ProxiedRequest::OnFailed(const TryFailure& failure) {
  const std::shared_ptr<UpstreamTry> failed = std::exchange(try_, nullptr);
  if (failure.answered) return exchange_->Cut();
  if (failure.at_work) return RefuseLate(failure);
  TryAnother(failure, *failed);
}

// The refusing engine's answer waits unread at its connection, as the client's answer if no other
// engine takes the request. Only the latest refusal is kept.
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

// Notes the failure and chooses again, within `ProxyOptions::tries`. A 404 for stored items was not
// counted as a try (`OnRefusal`), and its bound is `kResponseEnginesMax`.
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

// 503 with the reason of each tried worker. Refused by an engine: that engine's own answer
// (`Refuse`).
void ProxiedRequest::RefuseTried() {
  Refuse(WithRetryAfter(absl::UnavailableError("no engine took the request: " + tried_),
                        kNobodyTookItRetryAfter));
}

// 504 for a request that an engine may still be generating. No other engine generates it again: a
// request too long for our patience would be so at each. The SDKs of OpenAI and Anthropic ask again
// after a 504, unless the answer tells them not to.
void ProxiedRequest::RefuseLate(const TryFailure& failure) {
  NoteTried(failure.worker, failure.reason);
  DropRefusal();
  Refuse(absl::DeadlineExceededError(absl::StrCat(
             "the engine that took the request did not answer within --proxy_answer_timeout: ",
             tried_)),
         {{"x-should-retry", "false"}});
}

// An answer of our own, unless an engine's refusal waits: the client gets that one instead.
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

// 405 with `allow` where the path has another method, else 404 with the list of paths.
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

// 508 (RFC 5842). A kvatlas proxy that sent it here treats the status as a refusal and asks another
// engine.
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

// Called by the exchange. `Cancel` reports the try's choice and closes its connection to the
// engine.
void ProxiedRequest::OnClientGone() {
  gone_ = true;
  span_.Fail("the client has gone");
  span_.End();
  parts_->counters.client_gone.Increment();
  DropRefusal();
  if (try_ != nullptr) std::exchange(try_, nullptr)->Cancel();
}

}  // namespace kvatlas
