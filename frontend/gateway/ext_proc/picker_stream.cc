// The state machine of one HTTP request. The request side runs
//
//   kHeaders ─▶ kCollecting ─▶ kPicking ─▶ kPassing       a body that is read
//   kHeaders ─▶ [kMeeting ─▶] kPassing                    no body to read: any endpoint by turns
//   any ─▶ kEnded                                         refused, broken, or closed
//
// and the response side runs independently of it, since a proxy may answer its client by itself at
// any time. Every answer goes out through `wire_`; a null `wire_` means that nothing may be sent
// any more.

#include "frontend/gateway/ext_proc/picker_stream.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "frontend/gateway/errors.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/http/header_text.h"
#include "frontend/gateway/session_header.h"
#include "frontend/prompt/request/prompt_request.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {
namespace {

// The value of `response.code_details` for an answer of the engine itself.
constexpr char kByEngine[] = "via_upstream";

// "IP:PORT,IP:PORT", the first choice first.
std::string Joined(const std::vector<PickedEndpoint>& endpoints) {
  std::string text;
  for (const PickedEndpoint& endpoint : endpoints)
    text += (text.empty() ? "" : ",") + endpoint.address;
  return text;
}

}  // namespace

PickerStream::PickerStream(const PickerStreamOptions& options, Picker* picker,
                           PickerStreamStats* stats, HeldBodies* bodies, Wire* wire)
    : options_(options),
      picker_(picker),
      stats_(stats),
      wire_(wire),
      request_mode_(options.mode_unsaid),
      response_mode_(options.mode_unsaid),
      held_(bodies) {}

// Handles one message of the proxy:
// 1. The first message says how the proxy sends bodies (`OnFirst`).
// 2. A proxy in observability mode reads no answers: nothing is answered, nothing is picked.
// 3. In kMeeting messages are queued (`KeepEarly`) until engines have been looked for.
// 4. Otherwise the handler of its kind runs, and judges by `state_` whether the message is in turn.
// 5. A body that is whole is picked for, outside the lock: `Pick` may answer before it returns, and
//    `OnPicked` takes the lock itself. Messages that arrive meanwhile find kPicking.
void PickerStream::OnMessage(ext_proc::ProcessingRequest message) {
  using Kind = ext_proc::ProcessingRequest::RequestCase;
  bool whole = false;
  PickInput input;
  {
    MutexLock lock(&mutex_);
    if (wire_ == nullptr) return;
    if (std::exchange(first_, false)) OnFirst(message);
    if (watching_) return;
    if (state_ == Request::kMeeting) return KeepEarly(std::move(message));
    ReadMetadata(message.metadata_context());
    switch (message.request_case()) {
      case Kind::kRequestHeaders:
        OnRequestHeaders(message.request_headers());
        break;
      case Kind::kRequestBody:
        whole = OnRequestBody(message.mutable_request_body());
        break;
      case Kind::kRequestTrailers:
        whole = OnRequestTrailers();
        break;
      case Kind::kResponseHeaders:
        ReadAttributes(message);
        OnResponseHeaders(message.response_headers());
        break;
      case Kind::kResponseBody:
        OnResponseBody(message.mutable_response_body());
        break;
      case Kind::kResponseTrailers:
        OnResponseTrailers();
        break;
      case Kind::REQUEST_NOT_SET:
        break;  // something that did not exist when this was written
    }
    if (whole) input = TakeInput();
  }
  // Without the lock: the answer may come at once.
  if (!whole) return;
  picker_->Pick(std::move(input), [self = shared_from_this()](PickResult result) {
    // The callback keeps the stream alive, also when the call has ended in the meantime.
    self->OnPicked(std::move(result));
  });
}

// Without `protocol_config` the modes stay those of --ext_proc_mode.
void PickerStream::OnFirst(const ext_proc::ProcessingRequest& message) {
  watching_ = message.observability_mode();
  if (!message.has_protocol_config()) return;
  request_mode_ = message.protocol_config().request_body_mode();
  response_mode_ = message.protocol_config().response_body_mode();
}

// The subset comes with the request, the served endpoint with the response; each message may carry
// either, and the latest value counts.
void PickerStream::ReadMetadata(const ext_proc::Metadata& metadata) {
  if (const google::protobuf::Value* const subset = Find(metadata, kSubsetSpace, kSubsetKey))
    input_.subset = EndpointsIn(*subset);
  if (const google::protobuf::Value* const served = Find(metadata, kEndpointSpace, kServedKey))
    served_ = served->string_value();
}

// Attributes of the response, sent by proxies that are configured so (`response_attributes`): the
// endpoint that was asked last and why the proxy answered by itself. A failed connection marks that
// endpoint for requests without a prompt, an answer of the engine clears the mark; every other
// reason says nothing of the engine. Only an endpoint that was picked counts as the one that
// served.
void PickerStream::ReadAttributes(const ext_proc::ProcessingRequest& message) {
  const auto attributes = message.attributes().find(kFilterName);
  if (attributes == message.attributes().end()) return;
  const auto text = [&](const char* key) {
    const auto value = attributes->second.fields().find(key);
    return value == attributes->second.fields().end() ? "" : value->second.string_value();
  };
  reply_details_ = text(kReplyDetails);
  const absl::StatusOr<std::string> upstream = EndpointOf(text(kUpstreamAddress));
  if (!upstream.ok()) return;
  upstream_ = *upstream;
  const bool reached = !NeverConnected(reply_details_);
  if (!reached || reply_details_ == kByEngine) picker_->endpoints().Reached(upstream_, reached);
  const bool picked =
      std::any_of(picked_.endpoints.begin(), picked_.endpoints.end(),
                  [&](const PickedEndpoint& one) { return one.address == *upstream; });
  if (picked && served_.empty()) served_ = upstream_;
}

// ---- The request ----

// Decides by the head alone how the request is handled:
// 1. GET, and a POST without a body, go to any endpoint at once (`PassWithoutPrompt`).
// 2. A POST is checked against the policy first (`tenant_of`). One whose body is not read, by its
//    type or by the proxy's mode, needs the right to all models.
// 3. Any other POST collects its body. Full duplex: the headers are held back until the choice, so
//    nothing is answered now. Buffered: Envoy waits for this answer before it sends the body. Other
//    modes would send the headers on before the choice and end the stream.
void PickerStream::OnRequestHeaders(const ext_proc::HttpHeaders& headers) {
  if (state_ != Request::kHeaders) return End(absl::InvalidArgumentError("headers twice"));
  said_routes_ = RoutingHeadersIn(headers.headers());
  const std::string rank = ValueIn(headers.headers(), kDataParallelRankHeader);
  says_rank_ = !rank.empty();
  if (uint32_t named = 0; absl::SimpleAtoi(rank, &named)) input_.rank = named;
  request_ended_ = headers.end_of_stream();
  BeginSpan(headers.headers());
  const std::string method = ValueIn(headers.headers(), ":method");
  const std::string path = ValueIn(headers.headers(), ":path");
  error_shape_ = ErrorShapeOf(path);
  const std::optional<RequestPath> call = RequestPathOf(method, path);
  if (method != "POST" || headers.end_of_stream()) return PassWithoutPrompt();
  const bool unread =
      request_mode_ == ext_proc::NONE ||
      absl::StartsWithIgnoreCase(ValueIn(headers.headers(), "content-type"), "multipart/");
  input_.tenant = ValueIn(headers.headers(), kTenantHeader);
  if (options_.tenant_of != nullptr) {
    absl::StatusOr<PickerStreamOptions::Tenants> tenants =
        options_.tenant_of(input_.tenant, method, path);
    absl::Status may = tenants.status();
    if (may.ok() && unread) may = tenants->may_use(kModelNotRead);
    if (!may.ok()) return Refuse(ToClientError(may));
    // `owner` is the tenant itself, `tenant` the pool whose engines serve it (`Tenancy::PoolOf`).
    input_.owner = std::move(tenants->tenant);
    input_.tenant = std::move(tenants->pool);
    input_.may_use = std::move(tenants->may_use);
  }
  if (unread) return PassWithoutPrompt();
  if (!duplex() && request_mode_ != ext_proc::BUFFERED) {
    return End(absl::FailedPreconditionError(
        "request_body_mode must be FULL_DUPLEX_STREAMED or BUFFERED: the endpoint is chosen by the "
        "whole body, before the headers go on"));
  }
  makes_response_ = call == RequestPath::kResponses;
  input_.call = call;
  input_.method = method;
  input_.path = path.substr(0, path.find('?'));
  rewrite_ = ValueIn(headers.headers(), kRewriteHeaders);
  input_.objective = ValueIn(headers.headers(), kObjectiveHeaders);
  // Without a policy the gateway's fairness id names the owner.
  if (input_.owner.empty()) input_.owner = ValueIn(headers.headers(), kFairnessHeaders);
  input_.session_id =
      SessionBy([&](std::string_view name) { return ValueIn(headers.headers(), name); });
  input_.trace = span_.context();
  state_ = Request::kCollecting;
  if (duplex()) return;
  // The endpoint comes with the body: until then nothing of the client's may route it.
  ext_proc::ProcessingResponse response;
  ext_proc::HeadersResponse* const answer = response.mutable_request_headers();
  for (const std::string_view header : said_routes_)
    answer->mutable_response()->mutable_header_mutation()->add_remove_headers(std::string(header));
  // Envoy takes no body of another length than that header says, and compares them before it takes
  // the headers that come with the body.
  if (!rewrite_.empty())
    answer->mutable_response()->mutable_header_mutation()->add_remove_headers(kContentLength);
  wire_->Send(std::move(response));
}

// A request that came without a trace context is the root of a trace; the engine gets ours.
void PickerStream::BeginSpan(const ext_proc::HeaderMap& headers) {
  const TraceContext parent = Tracer::ParentOf(ValueIn(headers, kTraceparent));
  span_ = Tracer::OfProcess()->Begin("ext_proc", SpanKind::kServer, parent);
  if (!parent.valid()) traceparent_ = ToTraceparent(span_.context());
  span_.Set("http.request.method", ValueIn(headers, ":method"));
  span_.Set("url.path", ValueIn(headers, ":path"));
}

// GET, multipart bodies, and calls whose body the proxy does not send:
//   1. Any endpoint of the pool takes it, by turns.
//   2. While none is known, engines are looked for once (`Picker::Meets`). The stream waits in
//      kMeeting, and what the proxy sends meanwhile is kept in order, within the bound of bodies.
//   3. `OnMet` tries again and hands over what was kept. If there is still none, the answer is 503.
void PickerStream::PassWithoutPrompt() {
  const std::variant<std::string, ClientError> any = picker_->PickAny(input_.subset);
  if (const auto* const refusal = std::get_if<ClientError>(&any)) {
    if (!std::exchange(met_, true) &&
        picker_->Meets([self = shared_from_this()] { self->OnMet(); })) {
      state_ = Request::kMeeting;
      return;
    }
    return Refuse(*refusal);
  }
  state_ = Request::kPassing;
  stats_->Picked(/*by_prompt=*/false);
  ext_proc::ProcessingResponse response;
  ext_proc::HeadersResponse* const headers = response.mutable_request_headers();
  picked_.endpoints = {{.address = std::get<std::string>(any)}};
  SetEndpoints(std::get<std::string>(any), headers->mutable_response(), &response);
  SetOtherHeaders(headers->mutable_response());
  span_.End();
  wire_->Send(std::move(response));
}

// Messages of the proxy that arrive before an endpoint is known: bodies, and that there were
// trailers, whose names and values are not read. What they take in memory counts against the bound
// of one body and against `held_`, as a collected body does.
void PickerStream::KeepEarly(ext_proc::ProcessingRequest message) {
  ext_proc::ProcessingRequest kept;
  if (message.has_request_body()) {
    kept.mutable_request_body()->Swap(message.mutable_request_body());
    kept.mutable_request_body()->DiscardUnknownFields();
  } else if (message.has_request_trailers()) {
    kept.mutable_request_trailers();
  } else {
    return;
  }
  const size_t bytes = kept.SpaceUsedLong();
  early_bytes_ += bytes;
  if (early_bytes_ > options_.body_bytes_max || !held_.Add(bytes))
    return Refuse(RefusalOf(absl::UnavailableError("no engine is known yet: try again")));
  early_.push_back(std::move(kept));
}

// Runs on the thread of `EngineNames`. The second `PassWithoutPrompt` cannot wait again (`met_`),
// so the state afterwards is kPassing or kEnded.
void PickerStream::OnMet() {
  MutexLock lock(&mutex_);
  if (wire_ == nullptr || state_ != Request::kMeeting) return;
  PassWithoutPrompt();
  for (ext_proc::ProcessingRequest& message : std::exchange(early_, {})) {
    if (wire_ == nullptr) return;
    if (message.has_request_body()) OnRequestBody(message.mutable_request_body());
    if (message.has_request_trailers()) OnRequestTrailers();
  }
  held_.Clear();
}

bool PickerStream::OnRequestBody(ext_proc::HttpBody* body) {
  // True: the body is whole and its endpoint can be picked. In kPassing the endpoint is named
  // already and a piece is only echoed (full duplex) or acknowledged. `body_ended_` guards against
  // a repeat: Envoy 1.35.13, 1.36.9 and 1.37.5 may send the last piece of a body above 1 MB twice
  // (kubernetes-sigs/gateway-api-inference-extension#2988).
  if (body_ended_) return false;
  body_ended_ = request_ended_ = body->end_of_stream();
  if (state_ == Request::kPassing) {
    ext_proc::ProcessingResponse response;
    ext_proc::BodyResponse* const answer = response.mutable_request_body();
    if (duplex()) PassOn(body, StreamedBody(answer));
    wire_->Send(std::move(response));
    return false;
  }
  if (state_ != Request::kCollecting) {
    End(absl::InvalidArgumentError("a body out of turn"));
    return false;
  }
  if (body->body().size() > options_.body_bytes_max - body_.size()) {
    Refuse(RefusalOf(absl::ResourceExhaustedError(
        "the body has more than " + std::to_string(options_.body_bytes_max) + " bytes")));
    return false;
  }
  if (!held_.Add(body->body().size())) {
    Refuse(RefusalOf(absl::UnavailableError("too many long requests at once: try again")),
           kSaturated);
    return false;
  }
  if (body_.empty()) {
    body_ = std::move(*body->mutable_body());
  } else {
    body_ += body->body();
  }
  // A buffered body comes in one piece.
  return body->end_of_stream() || !duplex();
}

// Trailers end a body whose last piece did not say so; the answer to them is due after the body
// (`SendPicked`).
bool PickerStream::OnRequestTrailers() {
  request_ended_ = true;
  if (state_ == Request::kCollecting) {
    trailers_ = true;
    return true;
  }
  if (state_ == Request::kHeaders) {
    End(absl::InvalidArgumentError("trailers out of turn"));
    return false;
  }
  ext_proc::ProcessingResponse response;
  response.mutable_request_trailers();
  wire_->Send(std::move(response));
  return false;
}

// From kCollecting to kPicking. The pick and the stream share the body where it must be sent back:
// always in full duplex, where the proxy has given it up; buffered only when something in it was
// changed here. What the picker changes comes back with its answer.
PickInput PickerStream::TakeInput() {
  state_ = Request::kPicking;
  RewriteModel();
  if (!rewrite_.empty()) body_length_ = body_.size();
  input_.body = std::make_shared<const std::string>(std::exchange(body_, {}));
  if (duplex() || changed_) whole_ = input_.body;
  return std::exchange(input_, {});
}

// Puts the model of the rewrite header into the body; from here on it is a request for that model.
// A body that is no JSON object, or names no model, stays as it is. `names_` turns the engine's
// name in the answer back into the client's.
void PickerStream::RewriteModel() {
  if (rewrite_.empty()) return;
  std::string before;
  absl::StatusOr<std::string> changed = WithModel(body_, rewrite_, &before);
  if (!changed.ok() || before == rewrite_) return;
  body_ = *std::move(changed);
  changed_ = true;
  names_.emplace(rewrite_, before);
}

// The answer of the picker, on any thread. If the stream has ended, the choice is abandoned, so
// that nothing stays in flight at the worker.
void PickerStream::OnPicked(PickResult result) {
  auto* const picked = std::get_if<Picked>(&result);
  MutexLock lock(&mutex_);
  if (wire_ == nullptr) {
    // The client is gone: nothing was sent to the worker.
    if (picked == nullptr || picked->decision_id == 0) return;
    stats_->EndedEarly();
    return picker_->frontend()->Report(picked->decision_id, {.abandoned = true});
  }
  if (picked == nullptr) return Refuse(std::get<ClientError>(result));
  picked_ = std::move(*picked);
  if (picked_.body.has_value()) {
    whole_ = std::make_shared<const std::string>(*std::exchange(picked_.body, std::nullopt));
    changed_ = true;
  }
  stats_->Picked(/*by_prompt=*/!picked_.by_turns);
  SendPicked();
}

// Sends the endpoint, in the order that Envoy demands. Buffered: endpoint, headers and a changed
// body are in the one answer to the body. Full duplex:
// 1. the answer to the headers, which was held back until now, with the endpoint;
// 2. the body in pieces (`SendBody`);
// 3. the trailers, if some came.
void PickerStream::SendPicked() {
  state_ = Request::kPassing;
  span_.End();
  const std::string endpoints = Joined(picked_.endpoints);
  ext_proc::ProcessingResponse response;
  if (!duplex()) {
    ext_proc::BodyResponse* const body = response.mutable_request_body();
    SetEndpoints(endpoints, body->mutable_response(), &response);
    SetOtherHeaders(body->mutable_response());
    if (body_length_.has_value()) {
      SetHeader(kContentLength, std::to_string(*body_length_),
                body->mutable_response()->mutable_header_mutation());
    }
    if (changed_) {
      const std::shared_ptr<const std::string> whole = std::exchange(whole_, nullptr);
      body->mutable_response()->mutable_body_mutation()->set_body(*whole);
    }
    return wire_->Send(std::move(response));
  }
  ext_proc::HeadersResponse* const headers = response.mutable_request_headers();
  SetEndpoints(endpoints, headers->mutable_response(), &response);
  SetOtherHeaders(headers->mutable_response());
  if (names_.has_value()) {
    SetHeader(kContentLength, std::to_string(whole_->size()),
              headers->mutable_response()->mutable_header_mutation());
  }
  wire_->Send(std::move(response));
  SendBody();
  if (!trailers_) return;
  ext_proc::ProcessingResponse trailers;
  trailers.mutable_request_trailers();
  wire_->Send(std::move(trailers));
}

// All headers but the endpoint's, which the caller sets. Every routing header of the client is
// removed unless it is overwritten here: a client never routes its own request. A rank that the
// client named stays. With a traceparent of ours the client's `tracestate` has no meaning and is
// removed.
void PickerStream::SetOtherHeaders(ext_proc::CommonResponse* common) const {
  if (!picked_.prefiller.empty())
    SetHeader(kPrefillerHeader, picked_.prefiller, common->mutable_header_mutation());
  for (const std::string_view header : said_routes_) {
    const bool set =
        header == kEndpointKey || (header == kPrefillerHeader && !picked_.prefiller.empty());
    if (!set) common->mutable_header_mutation()->add_remove_headers(std::string(header));
  }
  if (picked_.rank.has_value() && !says_rank_) {
    SetHeader(kDataParallelRankHeader, std::to_string(*picked_.rank),
              common->mutable_header_mutation());
  }
  if (!traceparent_.empty()) {
    SetHeader(kTraceparent, traceparent_, common->mutable_header_mutation());
    common->mutable_header_mutation()->add_remove_headers(kTracestate);
  }
}

// Envoy bounds a message, hence the pieces. An empty body still sends one piece: its
// `end_of_stream` ends the request. With trailers no piece ends it.
void PickerStream::SendBody() {
  const std::shared_ptr<const std::string> whole = std::exchange(whole_, nullptr);
  const std::string_view body = *whole;
  size_t at = 0;
  do {
    ext_proc::ProcessingResponse response;
    ext_proc::StreamedBodyResponse* const chunk = StreamedBody(response.mutable_request_body());
    const std::string_view piece = body.substr(at, kBodyChunkMax);
    chunk->set_body(piece.data(), piece.size());
    at += chunk->body().size();
    chunk->set_end_of_stream(at == body.size() && !trailers_);
    wire_->Send(std::move(response));
  } while (at < body.size());
}

// Answers the client in the engine's place and ends the stream. A 429 and a 503 say in a header why
// the request was dropped, so that clients and gateways can retry by it.
void PickerStream::Refuse(const ClientError& refusal, std::string_view dropped) {
  if (dropped.empty() && refusal.http_status == 429) dropped = kSaturated;
  if (dropped.empty() && refusal.http_status == 503) dropped = kNoEndpoints;
  span_.Fail(refusal.message);
  span_.End();
  stats_->Refused(refusal.http_status);
  TakeWire()->SendLast(ToImmediateResponse(refusal, error_shape_, dropped));
}

// Frees the body at once: gRPC may keep the stream for a while. `wire_` is not null here, as every
// caller has checked, and `End` is its last call.
void PickerStream::End(const absl::Status& status) { TakeWire()->End(status); }

PickerStream::Wire* PickerStream::TakeWire() {
  state_ = Request::kEnded;
  body_ = {};
  whole_ = nullptr;
  early_ = {};
  held_.Clear();
  return std::exchange(wire_, nullptr);
}

// ---- The response ----

// The engine has answered, so the proxy has taken the whole body: its bytes are released. From here
// on `usage_` reads the answer for the engine's figures.
void PickerStream::OnResponseHeaders(const ext_proc::HttpHeaders& headers) {
  held_.Clear();
  const std::string status_text = ValueIn(headers.headers(), ":status");
  int http_status = 0;
  std::from_chars(status_text.data(), status_text.data() + status_text.size(), http_status);
  usage_.emplace(ValueIn(headers.headers(), "content-type"));
  ReportAccepted(http_status);
  if (makes_response_ && http_status >= 200 && http_status < 300) {
    ids_.emplace();
    NoteStored(picked_.names_stored);
  }
  if (headers.end_of_stream()) ReportFinished();
  ext_proc::ProcessingResponse response;
  ext_proc::HeadersResponse* const answer = response.mutable_response_headers();
  // Its length is known with the last piece of the body.
  if (names_.has_value())
    answer->mutable_response()->mutable_header_mutation()->add_remove_headers(kContentLength);
  if (!picked_.no_tokens.empty()) {
    SetHeader(kFallbackHeader, HeaderText("no_tokens: " + picked_.no_tokens),
              answer->mutable_response()->mutable_header_mutation());
  }
  SendOfResponse(std::move(response), headers.end_of_stream());
}

// Reads the piece for usage, for ids of responses and for Envoy's own words, then sends it on. In
// full duplex every piece must be echoed; in other modes only a changed body is sent.
void PickerStream::OnResponseBody(ext_proc::HttpBody* body) {
  if (usage_.has_value()) usage_->Add(body->body());
  if (ids_.has_value()) NoteStored(ids_->Add(body->body()));
  if (reads_reply_) LookAtReply(body->body());
  if (body->end_of_stream()) ReportFinished();
  ext_proc::ProcessingResponse response;
  ext_proc::BodyResponse* const answer = response.mutable_response_body();
  const bool streamed = response_mode_ == ext_proc::FULL_DUPLEX_STREAMED;
  if (names_.has_value()) {
    // A buffered body comes in one piece.
    const bool last = body->end_of_stream() || response_mode_ == ext_proc::BUFFERED;
    body->set_body(names_->Add(body->body(), last));
    if (!streamed) answer->mutable_response()->mutable_body_mutation()->set_body(body->body());
  }
  if (streamed) PassOn(body, StreamedBody(answer));
  SendOfResponse(std::move(response), body->end_of_stream());
}

// Trailers end the answer: the bytes that `names_` held back go out before them.
void PickerStream::OnResponseTrailers() {
  ReportFinished();
  if (const std::string rest = names_.has_value() ? names_->Add("", /*last=*/true) : "";
      !rest.empty() && response_mode_ == ext_proc::FULL_DUPLEX_STREAMED) {
    ext_proc::ProcessingResponse body;
    StreamedBody(body.mutable_response_body())->set_body(rest);
    wire_->Send(std::move(body));
  }
  ext_proc::ProcessingResponse response;
  response.mutable_response_trailers();
  SendOfResponse(std::move(response), /*ends=*/true);
}

// Once request and response are over nothing is left to answer, and the stream ends with this
// answer. Left to the proxy, which ends it with a reset (Envoy), it would take two further messages
// to write and to hear of for each request, and a call that counts as failed, of which there must
// not be many (`grpc_call_watch.h`). A response that is over before its request (an engine that
// refuses a body it has not read) leaves the stream open.
void PickerStream::SendOfResponse(ext_proc::ProcessingResponse response, bool ends) {
  if (ends && request_ended_ && state_ == Request::kPassing)
    return TakeWire()->SendLast(std::move(response));
  wire_->Send(std::move(response));
}

// The response's status, in three cases:
//   - Below 400: the engine works on it, and the choice counts until the stream's end.
//   - 400 and more: the choice is over. It is the engine's fault only if the engine was asked,
//     which `reply_details_` says; without these, a 503 is looked into for Envoy's words
//     (`LookAtReply`).
//   - The proxy never connected: the worker that was tried last is avoided.
void PickerStream::ReportAccepted(int http_status) {
  const PickedEndpoint* const not_reached = NotReached();
  if (not_reached != nullptr) Avoid(*not_reached);
  // Without attributes and with several endpoints it is not known which one answered.
  const bool unsaid = reply_details_.empty() && picked_.endpoints.size() == 1;
  reads_reply_ = unsaid && http_status == 503;
  if (unsaid && http_status < 500)
    picker_->endpoints().Reached(picked_.endpoints.front().address, true);
  if (picked_.decision_id == 0) return;
  if (http_status < 400)
    return picker_->frontend()->Report(picked_.decision_id, {.accepted = true});
  const bool by_engine = reply_details_.empty() || reply_details_ == kByEngine;
  const std::string error = (by_engine ? "the engine answered " : "the gateway answered ") +
                            std::to_string(http_status) + (by_engine ? "" : ": " + reply_details_);
  // The request went to the decoder; of a separate prefiller nothing is known.
  const bool as_chosen = not_reached == picked_.endpoints.data();
  picker_->frontend()->Report(std::exchange(picked_.decision_id, 0),
                              {.finished = true,
                               .error = error,
                               .decode_unreachable = not_reached != nullptr && as_chosen});
}

// The endpoint that the proxy tried last and could not reach; null: it did not say so, or none that
// was picked.
const PickedEndpoint* PickerStream::NotReached() const {
  if (!NeverConnected(reply_details_)) return nullptr;
  for (const PickedEndpoint& endpoint : picked_.endpoints) {
    const bool tried =
        upstream_.empty() ? picked_.endpoints.size() == 1 : endpoint.address == upstream_;
    if (tried) return endpoint.worker.second.name.empty() ? nullptr : &endpoint;
  }
  return nullptr;
}

// Two effects: requests by turns pass the endpoint over, and routes treat the worker as a suspect.
void PickerStream::Avoid(const PickedEndpoint& endpoint) {
  stats_->NotReached();
  picker_->endpoints().Reached(endpoint.address, false);
  if (!endpoint.worker.second.name.empty())
    picker_->frontend()->Avoid(endpoint.worker.first, endpoint.worker.second);
}

// Envoy's text may come in pieces; at most `kReplyTextMax` bytes are collected. REQUIRES: one
// endpoint was picked (`unsaid` in `ReportAccepted`).
void PickerStream::LookAtReply(const std::string& piece) {
  reply_.append(piece, 0, kReplyTextMax - reply_.size());
  if (SaysNeverConnected(reply_)) Avoid(picked_.endpoints.front());
  reads_reply_ = reply_.size() < kReplyTextMax && !SaysNeverConnected(reply_);
}

// Remembers the worker that answered as the maker of these ids: a later request that names them
// goes there. After a retry by the proxy it is the endpoint in `served_`; of an unknown one nothing
// is noted.
void PickerStream::NoteStored(const std::vector<std::string>& ids) {
  if (picked_.endpoints.empty()) return;
  std::optional<HolderId> worker = picked_.endpoints.front().worker.second;
  if (!served_.empty() && served_ != picked_.endpoints.front().address)
    worker = picker_->endpoints().At(served_);
  if (!worker.has_value() || worker->name.empty()) return;
  for (const std::string& id : ids)
    picker_->stored().Note(id, {.domain = {}, .cell = {}, .worker = *worker, .url = {}});
}

// Reports the end, once per choice, with the figures of its usage, for the worker that really
// served it: the proxy may have retried at another endpoint.
void PickerStream::ReportFinished() {
  if (picked_.decision_id == 0) return;
  RouteReport report{.finished = true};
  const bool elsewhere = !served_.empty() && served_ != picked_.endpoints.front().address;
  if (elsewhere && !picked_.decodes) report.served_by = picker_->endpoints().At(served_);
  const std::optional<OpenAiUsage> usage =
      usage_.has_value() ? usage_->Finish() : std::optional<OpenAiUsage>();
  // Figures of an unknown worker say nothing.
  if (usage.has_value() && picked_.one_prompt && (!elsewhere || report.served_by.has_value())) {
    // The decoder's figures say nothing of the worker that prefilled.
    if (!picked_.decodes) report.cached_tokens = usage->cached_tokens;
    report.prompt_tokens = usage->prompt_tokens;
  }
  picker_->frontend()->Report(std::exchange(picked_.decision_id, 0), report);
}

// The last call of the other side. A choice still open counts as finished if the engine had begun
// its answer, else as abandoned; nothing stays in flight.
void PickerStream::Closed() {
  MutexLock lock(&mutex_);
  wire_ = nullptr;
  state_ = Request::kEnded;
  body_ = {};
  whole_ = nullptr;
  early_ = {};
  held_.Clear();
  if (picked_.decision_id == 0) return;
  stats_->EndedEarly();
  picker_->frontend()->Report(std::exchange(picked_.decision_id, 0),
                              {.finished = usage_.has_value(), .abandoned = !usage_.has_value()});
}

}  // namespace kvatlas
