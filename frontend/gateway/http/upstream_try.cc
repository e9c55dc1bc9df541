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

// What a client is told; the log says which addresses.
constexpr char kOutside[] = "its url leads outside --engine_addresses";

LogLimiter& FailedLimiter() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(1));
  return limiter;
}

LogLimiter& OutsideLimiter() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}

absl::StatusOr<EngineUrl> UrlOf(const HolderId& worker, const std::string& url) {
  if (!url.empty()) return EngineUrl::Parse(url);
  return absl::UnavailableError("worker " + worker.name +
                                " has no label url, and no --engines says where it is");
}

// In the place of the client's own, where there is a context of ours.
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

// Its URL leads, maybe through others, back to this process (`kHopHeader`).
constexpr int kGoesRound = 508;

// It says that it did nothing of the request, so that another engine may.
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

UpstreamTry::~UpstreamTry() { Cancel(); }

CellWorker UpstreamTry::destination() const {
  return {choice_.route.destination_cell(), choice_.route.destination()};
}

void UpstreamTry::Start(const ProxiedMessage& message, const TraceContext& trace,
                        std::shared_ptr<Owner> owner) {
  owner_ = std::move(owner);
  span_ = Tracer::OfProcess()->BeginChild("engine", SpanKind::kClient, trace);
  const RouteResult& route = choice_.route;
  absl::StatusOr<HttpHeaders> headers = EngineHeaders(message);
  // Nothing is held against the worker that was to decode.
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

// The client's, or with the ids that were hashed, which the engine then need not make again.
std::shared_ptr<const std::string> UpstreamTry::BodyOf(const ProxiedMessage& message) const {
  if (choice_.forward == nullptr || choice_.route.decode.has_value()) return message.body;
  auto with_tokens = BodyWithTokens(*message.body, *choice_.forward);
  if (with_tokens == nullptr) return message.body;
  parts_->counters.forwarded_tokens.Increment();
  return with_tokens;
}

void UpstreamTry::Cancel() {
  owner_ = nullptr;
  span_.End();
  if (call_ != nullptr) std::exchange(call_, nullptr)->Cancel();
  Report(status_ == 0 ? RouteReport{.abandoned = true} : RouteReport{.finished = true});
}

// The client's, with what we add: for an engine that decodes the address of the one that prefills,
// the trace, the engine's key.
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

// An engine that was started again with fewer ranks refuses those that it had: whichever it has
// takes the request then.
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

void UpstreamTry::OnHead(EngineHead head) {
  if (RefusesRank(head.status)) return OnRankRefused();
  const bool not_there = head.status == 404 && message_->stored_elsewhere;
  not_there || IsRefusal(head.status) ? OnRefusal(std::move(head)) : PassHead(std::move(head));
}

// An engine that limits its rate is left to its own judgement; the others are not there for a
// while.
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

void UpstreamTry::PassOn() { PassHead(*std::exchange(refusal_, std::nullopt)); }

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

void UpstreamTry::OnEnd() {
  RouteReport report{.finished = true};
  if (rank_refused_) report.served_by = HolderId{};  // another rank
  if (status_ >= 400) report.error = "the engine answered " + std::to_string(status_);
  const std::optional<OpenAiUsage> usage = usage_.has_value() ? usage_->Finish() : std::nullopt;
  if (usage.has_value() && one_prompt_) {
    // What the decoding engine had cached, or was sent, says nothing of the one that prefilled.
    if (!choice_.route.decode.has_value()) report.cached_tokens = usage->cached_tokens;
    report.prompt_tokens = usage->prompt_tokens;
  }
  Report(report);
  if (!report.error.empty()) span_.Fail(report.error);
  span_.End();
  call_ = nullptr;
  std::exchange(owner_, nullptr)->OnEnd();
}

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
  // The worker that was to prefill was not asked: nothing is held against it.
  Fail({.worker = worker, .reason = reason, .at_work = at_work},
       {.error = reason, .decode_unreachable = true});
}

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

// The choice may be over already, and with it what it said of its worker: that is avoided by a call
// of its own.
void UpstreamTry::Fail(const TryFailure& failure, const RouteReport& report) {
  parts_->frontend()->Avoid(failure.worker.first, failure.worker.second);
  Report(report);
  span_.Fail(failure.reason);
  span_.End();
  reported_over_ = true;
  call_ = nullptr;
  std::exchange(owner_, nullptr)->OnFailed(failure);
}

// An engine that is itself such a proxy has said the same of its own choice.
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

void UpstreamTry::Report(const RouteReport& report) {
  if (choice_.route.decision_id == 0 || reported_over_) return;
  reported_over_ = report.finished || report.abandoned;
  parts_->frontend()->Report(choice_.route.decision_id, report);
}

}  // namespace kvatlas
