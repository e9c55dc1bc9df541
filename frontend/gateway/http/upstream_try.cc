// One try at one engine. Exactly one of three things ends it: `OnEnd` (the whole answer was passed
// on), `Fail` (the owner hears `OnFailed`), or `Cancel`. `reported_over_` keeps the reports to the
// frontend consistent with that: after the report that ends the choice no other one goes out.

#include "frontend/gateway/http/upstream_try.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "frontend/gateway/http/forwarded_tokens.h"
#include "frontend/gateway/http/header_text.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// The reason as clients read it, without an address; the log has the addresses.
constexpr char kOutside[] = "its url leads outside --engine_addresses";

// Never destroyed, since threads may log while the process ends.
LogLimiter& FailedLimiter() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(1));
  return limiter;
}

LogLimiter& OutsideLimiter() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}

// UNAVAILABLE: nothing says where the worker's engine is.
absl::StatusOr<EngineUrl> UrlOf(const HolderId& worker, const std::string& url) {
  if (!url.empty()) return EngineUrl::Parse(url);
  return absl::UnavailableError("worker " + worker.name +
                                " has no label url, and no --engines says where it is");
}

// Puts our trace context in the place of the client's. The client's `tracestate` belongs to the
// trace of its own `traceparent`: it stays only where that trace goes on.
void PutTraceparent(const TraceContext& context, HttpHeaders* headers) {
  if (!context.valid()) return;
  const std::optional<TraceContext> client = ParseTraceparent(HeaderOf(*headers, kTraceparent));
  const bool goes_on = client.has_value() && client->trace_high == context.trace_high &&
                       client->trace_low == context.trace_low;
  std::erase_if(*headers, [goes_on](const auto& field) {
    return SameHeader(field.first, kTraceparent) ||
           (!goes_on && SameHeader(field.first, kTracestate));
  });
  headers->emplace_back(kTraceparent, ToTraceparent(context));
}

bool Has(const HttpHeaders& headers, const char* name) {
  return std::any_of(headers.begin(), headers.end(),
                     [&](const auto& field) { return SameHeader(field.first, name); });
}

// The status of a proxy that has seen the request before (`kHopHeader`): the engine's URL leads,
// maybe through other proxies, back to this process.
constexpr int kGoesRound = 508;

// Statuses with which an engine says that it did nothing of the request, so that another engine
// may.
bool IsRefusal(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504 || status == kGoesRound;
}

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

}  // namespace

UpstreamTry::UpstreamTry(ProxyParts* parts, boost::asio::io_context* io, PromptRoute choice)
    : parts_(parts),
      io_(io),
      choice_(std::move(choice)),
      url_(UrlOf(choice_.route.destination(), choice_.route.destination_url())) {}

// A choice that was never started is abandoned here.
UpstreamTry::~UpstreamTry() { Cancel(); }

CellWorker UpstreamTry::destination() const {
  return {choice_.route.destination_cell(), choice_.route.destination()};
}

// 1. The headers are built. They fail if the prefiller's url is missing or outside of the reach.
// 2. The chosen rank is put into a header, unless the client named one itself. Only then does a 400
//    of the engine mean "no such rank" (`RefusesRank`).
// 3. `Call` connects, writes and reads; the reach of the engine itself is checked there, for every
//    address that its name resolves to.
void UpstreamTry::Start(const ProxiedMessage& message, const TraceContext& trace,
                        std::shared_ptr<Owner> owner) {
  owner_ = std::move(owner);
  span_ = Tracer::OfProcess()->BeginChild("engine", SpanKind::kClient, trace);
  const RouteResult& route = choice_.route;
  absl::StatusOr<HttpHeaders> headers = EngineHeaders(message);
  // The prefiller is at fault: the report accuses it alone, not the decoder.
  if (absl::IsPermissionDenied(headers.status()))
    return OnOutside({route.cell, route.worker}, route.url, headers.status(),
                     {.error = kOutside, .unreachable = true});
  if (!url_.ok() || !headers.ok())
    return OnCallFailed(url_.ok() ? headers.status() : url_.status(), false);
  span_.Set("server.address", engine());
  span_.Set("worker", choice_.route.destination().name);
  message_ = &message;
  one_prompt_ = message.one_prompt;
  names_rank_ = route.engine_rank.has_value() && !message.names_rank &&
                !Has(*headers, kDataParallelRankHeader);
  if (names_rank_)
    headers->emplace_back(kDataParallelRankHeader, std::to_string(*route.engine_rank));
  Call(*std::move(headers));
}

// The callbacks hold this try, and so its owner, as long as the call runs. REQUIRES: `message_` is
// set; it belongs to the owner.
void UpstreamTry::Call(HttpHeaders headers) {
  const std::shared_ptr<UpstreamTry> self = shared_from_this();
  call_ = std::make_shared<EngineCall>(
      io_, parts_->PoolOf(io_),
      EngineCallRequest{.url = *url_,
                        .method = message_->method,
                        .target = message_->target,
                        .headers = std::move(headers),
                        .body = BodyOf(*message_)},
      EngineCallbacks{.on_head = [self](EngineHead head) { self->OnHead(std::move(head)); },
                      .on_piece = [self](std::string_view piece) { self->OnPiece(piece); },
                      .on_end = [self] { self->OnEnd(); },
                      .on_failed = [self](const absl::Status& why,
                                          bool answered) { self->OnCallFailed(why, answered); }});
  const std::shared_ptr<EngineCall> call = call_;  // may fail, and be given up, within
  call->Start();
}

// The client's body, or the body with the ids that were hashed, which the engine then need not make
// again. Not with a separate prefiller: two engines would have to agree on them.
std::shared_ptr<const std::string> UpstreamTry::BodyOf(const ProxiedMessage& message) const {
  if (choice_.forward == nullptr || choice_.route.decode.has_value()) return message.body;
  auto with_tokens = BodyWithTokens(*message.body, *choice_.forward);
  if (with_tokens == nullptr) return message.body;
  parts_->counters.forwarded_tokens.Increment();
  return with_tokens;
}

// `owner_` goes first: nothing is called from within. An answer that had begun counts as finished,
// since the engine has worked for it.
void UpstreamTry::Cancel() {
  owner_ = nullptr;
  span_.End();
  if (call_ != nullptr) std::exchange(call_, nullptr)->Cancel();
  Report(status_ == 0 ? RouteReport{.abandoned = true} : RouteReport{.finished = true});
}

// The client's headers and ours: the prefiller's address for an engine that decodes, the trace, and
// the engine's key. PERMISSION_DENIED: the prefiller is outside of the reach.
absl::StatusOr<HttpHeaders> UpstreamTry::EngineHeaders(const ProxiedMessage& message) const {
  const EngineReach& reach = parts_->options().engine.reach;
  HttpHeaders headers = message.headers;
  if (choice_.route.decode.has_value()) {
    const absl::StatusOr<EngineUrl> prefiller = UrlOf(choice_.route.worker, choice_.route.url);
    if (!prefiller.ok()) return prefiller.status();
    if (const absl::Status outside = reach.Check(*prefiller); !outside.ok()) return outside;
    headers.emplace_back(kPrefillerHeader, prefiller->authority());
  }
  PutTraceparent(span_.context(), &headers);
  if (message.vouched && url_.ok()) reach.Authorize(*url_, &headers);
  return headers;
}

// Asks the same engine once more, without a rank. An engine that was restarted with fewer ranks
// refuses those that it had; without a rank it takes the request with any. `names_rank_` is false
// from then on, so a second 400 is passed on as the client's own mistake.
void UpstreamTry::OnRankRefused() {
  const std::shared_ptr<UpstreamTry> self = shared_from_this();  // that the call held
  const std::shared_ptr<EngineCall> refused = std::exchange(call_, nullptr);
  refused->Cancel();
  names_rank_ = false;
  choice_.route.engine_rank.reset();
  rank_refused_ = true;
  absl::StatusOr<HttpHeaders> headers = EngineHeaders(*message_);
  if (!headers.ok()) return OnCallFailed(headers.status(), false);
  Call(*std::move(headers));
}

// Three kinds of answers: the rank is refused (again without), the request is refused (the owner
// decides), or it is an answer for the client.
void UpstreamTry::OnHead(EngineHead head) {
  if (RefusesRank(head.status)) return OnRankRefused();
  const bool not_there = head.status == 404 && message_->stored_elsewhere;
  not_there || IsRefusal(head.status) ? OnRefusal(std::move(head)) : PassHead(std::move(head));
}

// The engine did nothing of the request. After 429 the choice is only given back: an engine that
// limits its rate stays a candidate. After a 404 of something stored elsewhere nothing is wrong
// with it either. After 502, 503, 504 and 508 it is avoided for a while. The answer stays unread
// (`refusal_`), so that it can be passed on if no other engine takes the request.
void UpstreamTry::OnRefusal(EngineHead head) {
  const CellWorker worker = destination();
  const std::string reason = absl::StrCat(
      "answered ", head.status, head.status == kGoesRound ? ": its url leads back here" : "");
  const bool not_there = head.status == 404;
  if (!not_there) {
    LogEvery(FailedLimiter(), LogLevel::kWarning, "an engine refused a request",
             {{"worker", worker.second.name},
              {"cell", worker.first},
              {"engine", engine()},
              {"reason", reason}});
  }
  if (head.status == 429 || not_there) {
    Report({.abandoned = true});
  } else {
    parts_->frontend()->Avoid(worker.first, worker.second);
    Report({.finished = true, .error = "the engine " + reason, .decode_unreachable = true});
  }
  reported_over_ = true;
  span_.Set("http.response.status_code", int64_t{head.status});
  refusal_ = std::move(head);
  owner_->OnRefusal({.worker = worker, .reason = reason, .not_there = not_there});
}

// REQUIRES: `OnRefusal` came, and neither `PassOn` nor `Cancel` since.
void UpstreamTry::PassOn() { PassHead(*std::exchange(refusal_, std::nullopt)); }

// The point of no return: from here on the client gets this engine's answer. The figures of usage
// are read unless the answer is compressed. A 5xx is not reported as accepted; `OnEnd` reports its
// end with an error. An engine whose latest answers were all 500 is avoided (`FailsAgain`).
void UpstreamTry::PassHead(EngineHead head) {
  parts_->counters.answered.Increment();
  choice_.route.routed = nullptr;  // no other engine is asked from now on
  if (HeaderOf(head.headers, "content-encoding").empty())
    usage_.emplace(HeaderOf(head.headers, "content-type"));
  status_ = head.status;
  if (head.status < 500) Report({.accepted = true});
  if (parts_->FailsAgain(engine(), head.status))
    parts_->frontend()->Avoid(choice_.route.destination_cell(), choice_.route.destination());
  HttpHead out{.status = head.status,
               .reason = std::move(head.reason),
               .headers = std::move(head.headers),
               .length = head.length,
               .no_body = head.no_body};
  span_.Set("http.response.status_code", int64_t{out.status});
  AddDecision(&out.headers);
  owner_->OnHead(std::move(out), head.piece_follows);
}

void UpstreamTry::OnPiece(std::string_view piece) {
  if (usage_.has_value()) usage_->Add(piece);
  owner_->OnPiece(piece);
}

// Reports the end with the engine's figures. `served_by` without a name says that another rank than
// the chosen one served it, so the prediction for the chosen one is not judged by the figures.
void UpstreamTry::OnEnd() {
  RouteReport report{.finished = true};
  if (rank_refused_) report.served_by = HolderId{};  // another rank
  if (status_ >= 400) report.error = "the engine answered " + std::to_string(status_);
  const std::optional<OpenAiUsage> usage = usage_.has_value() ? usage_->Finish() : std::nullopt;
  if (usage.has_value() && one_prompt_) {
    // The decoder's figures say nothing of the engine that prefilled.
    if (!choice_.route.decode.has_value()) report.cached_tokens = usage->cached_tokens;
    report.prompt_tokens = usage->prompt_tokens;
  }
  Report(report);
  if (!report.error.empty()) span_.Fail(report.error);
  span_.End();
  call_ = nullptr;
  std::exchange(owner_, nullptr)->OnEnd();
}

// The call failed:
// * outside of the reach: nothing was sent (`OnOutside`);
// * after the head: the client's answer is broken, no other engine can be asked;
// * by its deadline with something sent: `at_work`, the engine may still compute;
// * else nothing was answered, and another engine may be asked.
// `call_` is null if the try failed before it was made, in `Start`.
void UpstreamTry::OnCallFailed(const absl::Status& why, bool answered) {
  const CellWorker worker = destination();
  if (absl::IsPermissionDenied(why))
    return OnOutside(worker, choice_.route.destination_url(), why,
                     {.error = kOutside, .decode_unreachable = true});
  const std::string reason = MessageOf(why);
  LogEvery(FailedLimiter(), LogLevel::kWarning, "an engine failed",
           {{"worker", worker.second.name},
            {"cell", worker.first},
            {"engine", engine()},
            {"answered", answered ? "yes" : "no"},
            {"reason", reason}});
  if (answered) {
    parts_->counters.broken.Increment();
    return Fail({.worker = worker, .reason = reason, .answered = true},
                {.finished = true, .error = reason});
  }
  const bool at_work = absl::IsDeadlineExceeded(why) && call_ != nullptr && call_->sent();
  // The prefiller was not asked, so the report does not accuse it.
  Fail({.worker = worker, .reason = reason, .at_work = at_work},
       {.error = reason, .decode_unreachable = true});
}

// Counted and logged per worker, apart from failures: the cause is a wrong label or flag, and stays
// until that is corrected.
void UpstreamTry::OnOutside(const CellWorker& worker, const std::string& url,
                            const absl::Status& why, const RouteReport& report) {
  parts_->counters.outside.Increment();
  LogEvery(OutsideLimiter(), worker.second.name, LogLevel::kWarning,
           "a worker gets no requests: its url leads outside --engine_addresses",
           {{"worker", worker.second.name},
            {"cell", worker.first},
            {"url", url},
            {"reason", MessageOf(why)}});
  Fail({.worker = worker, .reason = kOutside}, report);
}

// Ends the try as failed. The worker is avoided by a call of its own, since a report on a choice
// that is over already (after `OnRefusal` and `PassOn`) would not be heard.
void UpstreamTry::Fail(const TryFailure& failure, const RouteReport& report) {
  parts_->frontend()->Avoid(failure.worker.first, failure.worker.second);
  Report(report);
  span_.Fail(failure.reason);
  span_.End();
  reported_over_ = true;
  call_ = nullptr;
  std::exchange(owner_, nullptr)->OnFailed(failure);
}

// Replaces every `x-kvatlas-` header: an engine that is itself a kvatlas proxy has set those of its
// own choice. Decision id 0 (any engine) has no decision to show.
void UpstreamTry::AddDecision(HttpHeaders* headers) const {
  std::erase_if(*headers, [](const auto& field) {
    return absl::StartsWithIgnoreCase(absl::string_view(field.first), "x-kvatlas-");
  });
  const RouteResult& route = choice_.route;
  if (route.decision_id != 0) {
    headers->emplace_back("x-kvatlas-decision", std::to_string(route.decision_id));
    headers->emplace_back("x-kvatlas-overlap-blocks", std::to_string(route.overlap_blocks));
    headers->emplace_back("x-kvatlas-fallback",
                          choice_.no_tokens.ok()
                              ? std::string(ToString(route.receipt.fallback))
                              : HeaderText("no_tokens: " + MessageOf(choice_.no_tokens)));
  }
  headers->emplace_back("x-kvatlas-worker", HeaderText(route.worker.name));
  if (route.engine_rank.has_value())
    headers->emplace_back("x-kvatlas-rank", std::to_string(route.destination().rank));
  if (!route.cell.empty()) headers->emplace_back("x-kvatlas-cell", HeaderText(route.cell));
  if (route.decode.has_value()) {
    headers->emplace_back("x-kvatlas-decode-worker", HeaderText(route.decode->worker.name));
    headers->emplace_back("x-kvatlas-decode-cell", HeaderText(route.decode->cell));
  }
}

// Drops every report after the one that ended the choice, and all of a choice that the frontend did
// not make.
void UpstreamTry::Report(const RouteReport& report) {
  if (choice_.route.decision_id == 0 || reported_over_) return;
  reported_over_ = report.finished || report.abandoned;
  parts_->frontend()->Report(choice_.route.decision_id, report);
}

}  // namespace kvatlas
