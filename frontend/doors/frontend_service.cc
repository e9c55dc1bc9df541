#include "frontend/doors/frontend_service.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <chrono>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "frontend/doors/errors.h"
#include "frontend/doors/grpc/route_stream.h"
#include "frontend/doors/strict_json.h"
#include "frontend/peers/wire.h"
#include "frontend/prompt/error_code.h"
#include "frontend/prompt/openai/json_depth.h"
#include "indexer/service/grpc_guard.h"
#include "indexer/service/grpc_status.h"
#include "indexer/service/metric_families.h"
#include "indexer/service/process_facts.h"
#include "indexer/service/text_escape.h"
#include "indexer/service/tracing/trace_context.h"
#include "indexer/service/tracing/tracer.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// Cells whose promises are shown one by one, the worst first.
constexpr size_t kPromisesShown = 64;
constexpr size_t kCellsShown = 4096;
constexpr size_t kEnginesShown = 4096;
// Of prompts over HTTP, which are text or numbers as text.
constexpr size_t kRouteBodyBytesMax = 64 << 20;
// A body of so many bytes is parsed on the I/O thread; others, on the threads that read prompts.
constexpr size_t kInlineBytesMax = 64 << 10;

constexpr std::string_view kRouteFields[] = {"model",           "tenant",
                                             "tokens",          "sequence_hashes",
                                             "prompt_tokens",   "lora_name",
                                             "cache_salt",      "deadline_ms",
                                             "session_id",      "allowed_workers",
                                             "queue_wait_ms",   "excluded_workers",
                                             "required_labels", "expected_output_tokens"};
constexpr std::string_view kReportFields[] = {"decision_id",   "accepted",    "finished",
                                              "abandoned",     "unreachable", "decode_unreachable",
                                              "error",         "worker",      "cached_tokens",
                                              "prompt_tokens", "rank"};

// A u64 as a number, or as a string for writers whose numbers end at 2^53.
std::optional<uint64_t> Unsigned(const Json& json) {
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  if (!json.is_string()) return std::nullopt;
  const std::string& text = json.get_ref<const std::string&>();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

absl::StatusOr<Json> ParseObject(const std::string& body) {
  if (IsNestedTooDeep(body)) return absl::InvalidArgumentError("the body is nested too deep");
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
  return json;
}

absl::StatusOr<std::string> TextIn(const Json& json, const char* name) {
  if (!json.contains(name)) return std::string();
  if (!json[name].is_string())
    return absl::InvalidArgumentError(std::string(name) + " is not a string");
  return json[name].get<std::string>();
}

// Calls `add` with every number of the array `name`, each at most `max`.
template <typename Add>
absl::Status NumbersIn(const Json& json, const char* name, uint64_t max, const Add& add) {
  if (!json.contains(name)) return absl::OkStatus();
  if (!json[name].is_array())
    return absl::InvalidArgumentError(std::string(name) + " is not an array");
  for (const Json& element : json[name]) {
    const std::optional<uint64_t> value = Unsigned(element);
    if (!value.has_value() || *value > max) {
      return absl::InvalidArgumentError(
          std::string(name) + " has an element that is no such number: " +
          element.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 64));
    }
    add(*value);
  }
  return absl::OkStatus();
}

absl::Status SetText(const Json& json, const char* name, std::string* text) {
  absl::StatusOr<std::string> value = TextIn(json, name);
  if (value.ok()) *text = *std::move(value);
  return value.status();
}

absl::Status SetNumber(const Json& json, const char* name,
                       const std::function<void(uint32_t)>& set) {
  if (!json.contains(name) || json[name].is_null()) return absl::OkStatus();
  const std::optional<uint64_t> value = Unsigned(json[name]);
  if (!value.has_value() || *value > std::numeric_limits<uint32_t>::max())
    return absl::InvalidArgumentError(std::string(name) + " is no such number");
  set(static_cast<uint32_t>(*value));
  return absl::OkStatus();
}

absl::Status SetTexts(const Json& json, const char* name,
                      google::protobuf::RepeatedPtrField<std::string>* texts) {
  if (!json.contains(name)) return absl::OkStatus();
  bool good = json[name].is_array();
  for (size_t i = 0; good && i < json[name].size(); ++i) {
    good = json[name][i].is_string();
    if (good) texts->Add(json[name][i].get<std::string>());
  }
  return good ? absl::OkStatus()
              : absl::InvalidArgumentError(std::string(name) + " is not an array of strings");
}

// Who may be chosen, and what else the choice goes by.
absl::Status SetChoice(const Json& json, v1::RouteRequest* request) {
  absl::Status status = SetText(json, "session_id", request->mutable_session_id());
  status.Update(SetTexts(json, "allowed_workers", request->mutable_allowed_workers()));
  status.Update(SetTexts(json, "excluded_workers", request->mutable_excluded_workers()));
  status.Update(SetNumber(json, "expected_output_tokens",
                          [&](uint32_t n) { request->set_expected_output_tokens(n); }));
  status.Update(
      SetNumber(json, "queue_wait_ms", [&](uint32_t n) { request->set_queue_wait_ms(n); }));
  if (!json.contains("required_labels")) return status;
  const Json& labels = json["required_labels"];
  bool good = labels.is_object();
  for (auto label = labels.begin(); good && label != labels.end(); ++label) {
    good = label->is_string();
    if (good) (*request->mutable_required_labels())[label.key()] = label->get<std::string>();
  }
  if (!good)
    status.Update(absl::InvalidArgumentError("required_labels is not an object of strings"));
  return status;
}

// The HTTP request as the message it stands for.
absl::StatusOr<v1::RouteRequest> RouteRequestFromJson(const std::string& body) {
  absl::StatusOr<Json> json = ParseObject(body);
  if (!json.ok()) return json.status();
  if (absl::Status bad = CheckFields(*json, "/route", kRouteFields); !bad.ok()) return bad;
  v1::RouteRequest request;
  absl::Status status = SetText(*json, "model", request.mutable_domain()->mutable_model());
  status.Update(SetText(*json, "tenant", request.mutable_domain()->mutable_tenant()));
  if (json->contains("tokens")) {
    v1::Tokens* tokens = request.mutable_tokens();
    status.Update(NumbersIn(*json, "tokens", std::numeric_limits<uint32_t>::max(),
                            [&](uint64_t id) { tokens->add_ids(static_cast<uint32_t>(id)); }));
    status.Update(SetText(*json, "lora_name", tokens->mutable_lora_name()));
    status.Update(SetText(*json, "cache_salt", tokens->mutable_cache_salt()));
  }
  status.Update(NumbersIn(*json, "sequence_hashes", std::numeric_limits<uint64_t>::max(),
                          [&](uint64_t hash) { request.add_sequence_hashes(hash); }));
  status.Update(
      SetNumber(*json, "prompt_tokens", [&](uint32_t n) { request.set_prompt_tokens(n); }));
  status.Update(SetNumber(*json, "deadline_ms", [&](uint32_t n) { request.set_deadline_ms(n); }));
  status.Update(SetChoice(*json, &request));
  if (!status.ok()) return status;
  return request;
}

// All but the id.
absl::Status ReportFromJson(const Json& json, v1::ReportRequest* request) {
  absl::Status status = CheckFields(json, "/report", kReportFields);
  const auto set = [&](const char* name, void (v1::ReportRequest::*to)(bool)) {
    bool value = false;
    status.Update(ReadBool(json, name, &value));
    (request->*to)(value);
  };
  set("accepted", &v1::ReportRequest::set_accepted);
  set("finished", &v1::ReportRequest::set_finished);
  set("abandoned", &v1::ReportRequest::set_abandoned);
  set("unreachable", &v1::ReportRequest::set_unreachable);
  set("decode_unreachable", &v1::ReportRequest::set_decode_unreachable);
  status.Update(SetText(json, "error", request->mutable_error()));
  status.Update(
      SetNumber(json, "cached_tokens", [&](uint32_t n) { request->set_cached_tokens(n); }));
  status.Update(
      SetNumber(json, "prompt_tokens", [&](uint32_t n) { request->set_prompt_tokens(n); }));
  if (json.contains("worker")) {
    v1::Holder* worker = request->mutable_worker();
    status.Update(SetText(json, "worker", worker->mutable_name()));
    status.Update(SetNumber(json, "rank", [&](uint32_t n) { worker->set_rank(n); }));
  }
  return status;
}

// Cells that broke a promise, the worst of them: they come and go.
void AppendPromises(const Frontend& frontend, std::string* text) {
  const std::vector<CellPromises> shown = frontend.promises(kPromisesShown);
  MetricFamilies families;
  constexpr char kPromises[] = "kvatlas_frontend_cell_promises_total";
  constexpr char kPromisesHelp[] = "Times a cell that broke a promise had promised something.";
  constexpr char kBroken[] = "kvatlas_frontend_cell_promises_broken_total";
  constexpr char kBrokenHelp[] = "Of these, times its leaf had less.";
  constexpr char kBelieved[] = "kvatlas_frontend_cell_believed";
  constexpr char kBelievedHelp[] = "The share of its promises that is expected now.";
  families.Declare([&](MetricFamilies* to) {
    to->CountRenamed(kPromises, kPromisesHelp, "", 0);
    to->CountRenamed(kBroken, kBrokenHelp, "", 0);
    to->Gauge(kBelieved, kBelievedHelp, "", 0);
  });
  for (const CellPromises& of : shown) {
    if (of.broken == 0) continue;
    const std::string label = MetricLabel("cell", of.cell);
    families.CountRenamed(kPromises, kPromisesHelp, label, static_cast<double>(of.promises));
    families.CountRenamed(kBroken, kBrokenHelp, label, static_cast<double>(of.broken));
    families.Gauge(kBelieved, kBelievedHelp, label, of.believed);
  }
  families.AppendTo(text);
}

int64_t Milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

// A call's own context, in its metadata, counts where the request has none.
template <typename Request>
const Request& WithTraceparent(const Request& request, const grpc::CallbackServerContext& context,
                               Request* copy) {
  if (!Tracer::OfProcess()->on() || !request.traceparent().empty()) return request;
  const auto found = context.client_metadata().find(kTraceparent);
  if (found == context.client_metadata().end()) return request;
  *copy = request;
  copy->set_traceparent(std::string(found->second.data(), found->second.size()));
  return *copy;
}

std::string TraceparentOf(const HttpRequest& request) {
  for (const auto& [name, value] : request.headers)
    if (absl::EqualsIgnoreCase(name, kTraceparent)) return value;
  return "";
}

// Cells and workers as last seen: where they are asked, and whether that works.
void AddFleet(const Frontend& frontend, Json* json) {
  Json& cells = (*json)["cells"] = Json::array();
  for (const SeenCell& seen : frontend.Cells(kCellsShown)) {
    cells.push_back({{"model", seen.domain.model},
                     {"tenant", seen.domain.tenant},
                     {"cell", seen.cell},
                     {"address", seen.address},
                     {"seen_ms", Milliseconds(seen.seen)},
                     {"answered_ms", nullptr},
                     {"workers", seen.workers}});
    if (seen.answered.has_value()) cells.back()["answered_ms"] = Milliseconds(*seen.answered);
  }
  Json& engines = (*json)["engines"] = Json::array();
  for (const KnownEngine& engine : frontend.Engines(kEnginesShown)) {
    engines.push_back({{"model", engine.domain.model},
                       {"tenant", engine.domain.tenant},
                       {"cell", engine.cell},
                       {"worker", engine.worker.name},
                       {"rank", engine.worker.rank},
                       {"url", WithoutSecrets(engine.url)},
                       {"state", engine.suspect ? "unreachable" : "not suspected"}});
  }
}

HttpResponse JsonResponse(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  HttpResponse response;
  if (!google::protobuf::util::MessageToJsonString(message, &response.body, options).ok()) {
    return HttpError(500, "the answer is not printable as JSON");
  }
  return response;
}

// Until the caller gives up.
Duration Left(const grpc::CallbackServerContext& context) {
  return std::chrono::duration_cast<Duration>(context.deadline() -
                                              std::chrono::system_clock::now());
}

// An answer's way back to the thread of its connection, which must not end before. Who has left gets none, and leaves nothing.
RouteCalls::Callback ToExchange(const RouteCalls* calls, std::shared_ptr<HttpExchange> exchange,
                                std::function<HttpResponse(const absl::Status&)> error) {
  auto gone = std::make_shared<bool>(false);  // of that thread
  exchange->OnGone([gone] { *gone = true; });
  boost::asio::io_context& io = exchange->io();
  return [calls, exchange, error, gone, &io,
          work = boost::asio::make_work_guard(io)](absl::StatusOr<v1::RouteResponse> answer) {
    boost::asio::post(io, [calls, exchange, error, gone, answer = std::move(answer)] {
      if (!answer.ok()) return exchange->Answer(error(answer.status()));
      if (*gone) return calls->Release(answer->decision_id());
      exchange->Answer(JsonResponse(*answer));
    });
  };
}

}  // namespace

FrontendService::FrontendService(Frontend* frontend, Metrics* metrics, PromptRouter* router)
    : frontend_(frontend),
      calls_(
          frontend, router,
          [this](const absl::StatusOr<RouteResult>& result) {
            if (result.ok()) route_metrics_.Observe(*result);
          },
          [this] { reports_.Increment(); }),
      router_(router),
      route_metrics_(metrics),
      reports_(metrics->AddCounter("kvatlas_frontend_reports_total", "Reports on choices.")) {
  ExportRouteTotals(frontend, metrics);
  Gauge in_flight = metrics->AddGauge("kvatlas_frontend_in_flight", "Choices not yet reported on.");
  Gauge workers = metrics->AddGauge("kvatlas_frontend_workers_remembered", "Workers last seen.");
  Gauge cells = metrics->AddGauge("kvatlas_frontend_cells_remembered", "Cells last seen.");
  metrics->OnText([frontend](std::string* text) { AppendPromises(*frontend, text); });
  metrics->OnScrape([frontend, metrics, in_flight, workers, cells]() mutable {
    const FrontendStats stats = frontend->stats();
    in_flight.Set(static_cast<double>(stats.in_flight));
    workers.Set(static_cast<double>(stats.workers));
    cells.Set(static_cast<double>(stats.cells));
    metrics->RaiseRenamed("kvatlas_frontend_refused_by_nodes_total",
                          "Questions that nodes refused for their schedule.",
                          static_cast<double>(stats.refused_by_nodes));
  });
}

// Null without a policy: nothing depends on who asks.
RouteCalls::Asker FrontendService::AskerOf(const grpc::CallbackServerContext& context) const {
  const Tenancy& tenancy = calls_.tenancy();
  return tenancy.enforces() ? IdentityOf(&tenancy.security(), context) : nullptr;
}

grpc::ServerUnaryReactor* FrontendService::Route(grpc::CallbackServerContext* context,
                                                 const v1::RouteRequest* request,
                                                 v1::RouteResponse* response) {
  auto* reactor = new RouteReactor(&calls_, context, response);
  const auto answer = [reactor](absl::StatusOr<v1::RouteResponse> response_or) {
    reactor->Answer(std::move(response_or));
  };
  v1::RouteRequest copy;
  calls_.Ask(WithTraceparent(*request, *context, &copy), Left(*context), answer, AskerOf(*context));
  return reactor;
}

grpc::ServerUnaryReactor* FrontendService::RouteChat(grpc::CallbackServerContext* context,
                                                     const v1::RouteChatRequest* request,
                                                     v1::RouteResponse* response) {
  auto* reactor = new RouteReactor(&calls_, context, response);
  const auto answer = [reactor](absl::StatusOr<v1::RouteResponse> response_or) {
    reactor->Answer(std::move(response_or));
  };
  v1::RouteChatRequest copy;
  calls_.Ask(WithTraceparent(*request, *context, &copy), Left(*context), answer, AskerOf(*context));
  return reactor;
}

grpc::ServerBidiReactor<v1::RouteStreamRequest, v1::RouteStreamResponse>*
FrontendService::RouteStream(grpc::CallbackServerContext* context) {
  return new RouteStreamReactor(&calls_, AskerOf(*context));
}

grpc::ServerUnaryReactor* FrontendService::Report(grpc::CallbackServerContext* context,
                                                  const v1::ReportRequest* request,
                                                  v1::ReportResponse*) {
  calls_.Report(*request, AskerOf(*context));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

void FrontendService::AddStatus(std::string name, std::function<std::string()> json) {
  status_sections_.emplace_back(std::move(name), std::move(json));
}

void FrontendService::AddHttp(AdminHttp* http) {
  const auto add = [http](const char* path, HttpStreamHandler handler) {
    http->server()->Handle({.method = "POST",
                            .path = path,
                            .stream = std::move(handler),
                            .body_bytes_max = kRouteBodyBytesMax});
  };
  add("/route", [this](std::shared_ptr<HttpExchange> exchange) { HttpRoute(std::move(exchange)); });
  add("/route/chat", [this](std::shared_ptr<HttpExchange> exchange) {
    HttpRouteBody(OpenAiCall::kChat, std::move(exchange));
  });
  add("/route/completion", [this](std::shared_ptr<HttpExchange> exchange) {
    HttpRouteBody(OpenAiCall::kCompletion, std::move(exchange));
  });
  http->Handle("GET", "/v1/models",
               [this](const HttpRequest& request) { return HttpModels(request); });
  http->Handle("POST", "/report",
               [this](const HttpRequest& request) { return HttpReport(request); });
  http->Handle("GET", "/status", [this](const HttpRequest&) { return HttpStatus(); });
}

void FrontendService::HttpRoute(std::shared_ptr<HttpExchange> exchange) {
  auto body = std::make_shared<const std::string>(exchange->TakeBody());
  const RouteCalls::Asker asker = exchange->request().identity;
  const std::string trace = TraceparentOf(exchange->request());
  RouteCalls::Callback answer = ToExchange(&calls_, std::move(exchange), PlainError);
  if (router_ == nullptr || body->size() <= kInlineBytesMax)
    return HttpRouteNow(*body, trace, std::move(answer), asker);
  router_->Run([this, body, trace, answer, asker] { HttpRouteNow(*body, trace, answer, asker); },
               answer);
}

void FrontendService::HttpRouteNow(const std::string& body, const std::string& traceparent,
                                   RouteCalls::Callback answer, const RouteCalls::Asker& asker) {
  absl::StatusOr<v1::RouteRequest> message = RouteRequestFromJson(body);
  if (!message.ok()) return answer(message.status());
  if (!traceparent.empty()) message->set_traceparent(traceparent);
  calls_.Ask(*message, Duration::max(), std::move(answer), asker);
}

void FrontendService::HttpRouteBody(OpenAiCall call, std::shared_ptr<HttpExchange> exchange) {
  PromptQuestion question;
  const HttpRequest& request = exchange->request();
  question.return_tokens = request.Param("tokens").value_or("0") == "1";
  for (const auto& [name, value] : request.headers) {
    if (absl::EqualsIgnoreCase(name, "x-kvatlas-tenant")) question.input.domain.tenant = value;
    if (absl::EqualsIgnoreCase(name, "x-kvatlas-session")) question.input.session_id = value;
  }
  question.input.trace = Tracer::ParentOf(TraceparentOf(request));
  const RouteCalls::Asker asker = request.identity;
  auto body = std::make_shared<const std::string>(exchange->TakeBody());
  calls_.AskBody(call, std::move(body), std::move(question),
                 ToExchange(&calls_, std::move(exchange), OpenAiError), asker);
}

HttpResponse FrontendService::HttpModels(const HttpRequest& request) const {
  std::set<std::string> models;
  for (const Domain& domain : frontend_->Domains())
    if (calls_.tenancy().MayRoute(*request.identity, domain.tenant)) models.insert(domain.model);
  Json json = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& model : models)
    json["data"].push_back(
        {{"id", model}, {"object", "model"}, {"created", 0}, {"owned_by", "kvatlas"}});
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

HttpResponse FrontendService::HttpReport(const HttpRequest& request) {
  absl::StatusOr<Json> json = ParseObject(request.body);
  if (!json.ok()) return PlainError(json.status());
  const std::optional<uint64_t> id =
      json->contains("decision_id") ? Unsigned((*json)["decision_id"]) : std::nullopt;
  if (!id.has_value())
    return PlainError(absl::InvalidArgumentError("decision_id is missing or no number"));
  v1::ReportRequest message;
  if (absl::Status bad = ReportFromJson(*json, &message); !bad.ok()) return PlainError(bad);
  message.set_decision_id(*id);
  if (!calls_.GaveOut(*id) || !calls_.IsOf(*id, request.identity))
    return PlainError(WithErrorCode(
        absl::NotFoundError("decision_id " + std::to_string(*id) +
                            " is none of this frontend's decisions: report the decision_id of an "
                            "answer of /route, to the frontend that gave it"),
        "decision_not_found"));
  calls_.Report(message, request.identity);
  return {.body = "{}"};
}

HttpResponse FrontendService::HttpStatus() const {
  const FrontendOptions& options = frontend_->options();
  const FrontendStats stats = frontend_->stats();
  Json json;
  if (const ProcessFacts facts = FactsOfProcess(); !facts.program.empty())
    json["process"] = Json::parse(ProcessFactsJson(facts), nullptr, /*allow_exceptions=*/false);
  json["contract"] = options.contract.Id();
  json["schedule"] = options.schedule->Name();
  json["hierarchies"] = frontend_->hierarchies().Addresses();
  json["leaves"] = Json::array();
  for (const ConfiguredLeaf& leaf : frontend_->leaves())
    json["leaves"].push_back(leaf.cell + "=" + leaf.address);
  json["ask_cells"] = options.ask_cells;
  json["deadline_ms"] = std::chrono::duration<double, std::milli>(options.deadline).count();
  json["routes"] = stats.routes;
  json["failed"] = stats.failed;
  for (int fallback = 0; fallback < kFallbacks; ++fallback) {
    json["by_fallback"][std::string(ToString(static_cast<Fallback>(fallback)))] =
        stats.by_fallback[fallback];
  }
  json["in_flight"] = stats.in_flight;
  json["expired_choices"] = stats.expired_choices;
  json["asked_ahead"] = stats.asked_ahead;
  json["asked_ahead_used"] = stats.asked_ahead_used;
  json["refused_by_nodes"] = stats.refused_by_nodes;
  json["cells_remembered"] = stats.cells;
  json["workers_remembered"] = stats.workers;
  json["promises"] = Json::array();
  for (const CellPromises& of : frontend_->promises(kPromisesShown)) {
    json["promises"].push_back({{"cell", of.cell},
                                {"promises", of.promises},
                                {"broken", of.broken},
                                {"believed", of.believed}});
  }
  AddFleet(*frontend_, &json);
  for (const auto& [name, section] : status_sections_)
    json[name] = Json::parse(section(), nullptr, /*allow_exceptions=*/false);
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace kvatlas
