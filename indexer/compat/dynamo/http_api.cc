// The routes of Dynamo's indexer and ours on top, in `HttpApi::Impl`: AddRoutes, then the handlers
// by theme (queries, engines, replicas). Bodies are read by `http_bodies.h`, questions answered by
// `HttpQueries`, long answers streamed piece by piece.
// The path alone decides which verb of the policy a request needs; handlers check only what a body
// names (`Refused`).

#include "indexer/compat/dynamo/http_api.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/memory_budget.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "indexer/compat/dynamo/http_access_log.h"
#include "indexer/compat/dynamo/http_bodies.h"
#include "indexer/compat/dynamo/http_metrics.h"
#include "indexer/compat/dynamo/http_queries.h"
#include "indexer/compat/dynamo/http_refusals.h"
#include "indexer/compat/dynamo/http_workers.h"
#include "indexer/net/long_answers.h"
#include "indexer/registry/explain_json.h"
#include "indexer/security/policy.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

// Bytes of a body of queries, and about the size of one piece of a batch's answer.
constexpr size_t kQueryBytesMax = 8 << 20;
constexpr size_t kBatchPieceBytes = 256 << 10;
constexpr char kPlainText[] = "text/plain; charset=utf-8";

HttpResponse Ok(int status = 200) { return {.status = status, .body = "{\"status\":\"ok\"}"}; }

// The answer of axum, the web framework of Dynamo's indexer, to a body of the wrong form: plain
// text, 400 for broken JSON and 422 for JSON of another shape.
void RefuseBody(const JsonReader& reader, HttpResponse* response) {
  const JsonError error = reader.error();
  response->status = error.syntax ? 400 : 422;
  response->content_type = kPlainText;
  response->body = error.syntax ? "Failed to parse the request body as JSON: "
                                : "Failed to deserialize the JSON body into the target type: ";
  response->body += error.text;
}

bool IsTrue(std::string_view text) {
  const absl::string_view word(text.data(), text.size());
  for (const absl::string_view yes : {"1", "true", "yes", "on"}) {
    if (absl::EqualsIgnoreCase(word, yes)) return true;
  }
  return false;
}

// `otherwise` for a parameter that is missing or no number: such a query is not refused.
uint32_t NumberParam(const HttpRequest& request, std::string_view name, uint32_t otherwise) {
  const std::string text = request.Param(name).value_or("");
  uint32_t number = otherwise;
  const std::from_chars_result result =
      std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() ? number : otherwise;
}

// Bounds of an explanation, whatever ?blocks= and ?ranks= say.
constexpr uint32_t kExplainedBlocksMax = 65536;
constexpr uint32_t kExplainedRanksMax = 1024;

// The answer of a batch, {"answers":[…]}, made while it is sent: a piece ends with the query that
// exceeds `kBatchPieceBytes`, so neither time nor memory of a piece grows with the number of
// queries. Owns the queries; runs on the threads that the server writes from, one call at a time.
class BatchAnswer {
 public:
  BatchAnswer(HttpQueries* queries, QueriesBody body, std::shared_ptr<const Identity> asker,
              bool detail)
      : queries_(queries), body_(std::move(body)), asker_(std::move(asker)), detail_(detail) {}

  bool Next(std::string* piece) {
    if (at_ == 1) *piece += "{\"answers\":[";  // the first entry is the frame's
    // Borrowed for one piece only: a slow client must not hold memory for questions.
    HttpQueries::Lease scratch = queries_->Borrow();
    for (; at_ < body_.count; ++at_) {
      if (piece->size() > kBatchPieceBytes) return true;
      if (at_ > 1) *piece += ',';
      Append(scratch.get(), piece);
    }
    *piece += "]}";
    return false;
  }

 private:
  // Appends one answer. An error gets its HTTP status into its object, since the response as a
  // whole is 200: its closing brace is replaced.
  void Append(HttpQueries::Scratch* scratch, std::string* piece) {
    const int status = queries_->Answer(body_.queries[at_], *asker_, detail_, scratch, piece);
    if (status == 200) return;
    piece->back() = ',';
    absl::StrAppend(piece, "\"status\":", status, "}");
  }

  HttpQueries* const queries_;
  const QueriesBody body_;
  const std::shared_ptr<const Identity> asker_;
  const bool detail_;
  size_t at_ = 1;
};

}  // namespace

bool TestEndpointsFromEnvironment() {
  for (const char* name : {"KVATLAS_TEST_ENDPOINTS", "DYN_KV_INDEXER_TEST_ENDPOINTS"}) {
    if (const char* value = std::getenv(name); value != nullptr && IsTrue(value)) return true;
  }
  return false;
}

class HttpApi::Impl {
 public:
  Impl(HttpApiOptions options, HttpApiParts parts)
      : options_(std::move(options)),
        parts_(std::move(parts)),
        security_(Security::OfProcess()),
        queries_(options_.contract, parts_.registry, parts_.directory, security_) {
    if (!options_.access_log.empty()) log_ = std::make_unique<HttpAccessLog>(options_.access_log);
  }

  absl::Status Open() { return log_ == nullptr ? absl::OkStatus() : log_->Open(); }

  // All routes have an observer for metrics and the access log. `vital` ones are answered whatever
  // others do.
  void AddRoutes(HttpServer* server) {
    AddQueries(server);
    Add(server, {.method = "GET",
                 .path = "/ready",
                 .handler = [this](const HttpRequest&) { return Ready(); },
                 .vital = true});
    Add(server, {.method = "GET",
                 .path = "/health",
                 .quick =
                     [](const HttpRequest&, HttpResponse* response) {
                       response->content_type.clear();
                       return true;
                     },
                 .vital = true});
    Add(server, {.method = "GET",
                 .path = "/metrics",
                 .handler =
                     [this](const HttpRequest&) {
                       return HttpResponse{.content_type = "text/plain; version=0.0.4",
                                           .body = parts_.metrics->Text()};
                     },
                 .vital = true});
    AddGet(server, "/workers", [this](const HttpRequest& request) { return Workers(request); });
    AddGet(server, "/peers", [this](const HttpRequest&) { return ListPeers(); });
    AddGet(server, "/dump", [this](const HttpRequest&) { return Dump(); });
    AddGet(server, "/snapshot", [this](const HttpRequest& request) { return Snapshot(request); });
    AddPost(server, "/register", &Impl::Register);
    AddPost(server, "/unregister", &Impl::Unregister);
    AddPost(server, "/register_peer", &Impl::RegisterPeer);
    AddPost(server, "/deregister_peer", &Impl::DeregisterPeer);
    Add(server, {.method = "POST", .path = "/reopen_logs", .handler = [this](const HttpRequest&) {
                   const absl::Status status = Open();
                   return status.ok() ? Ok() : HttpRefusal(500, std::string(status.message()));
                 }});
    if (!options_.test_endpoints) return;
    AddPost(server, "/test/pause_listener", &Impl::Pause);
    AddPost(server, "/test/resume_listener", &Impl::Resume);
  }

 private:
  // Observers are per path: methods of one path share theirs.
  void Add(HttpServer* server, HttpRoute route) {
    std::unique_ptr<HttpEndpointMetrics>& metrics = endpoints_[route.path];
    if (metrics == nullptr) {
      metrics = std::make_unique<HttpEndpointMetrics>(route.path, parts_.metrics, log_.get());
    }
    route.observer = metrics.get();
    server->Handle(std::move(route));
  }

  void AddGet(HttpServer* server, std::string path, HttpHandler handler) {
    Add(server, {.method = "GET", .path = std::move(path), .handler = std::move(handler)});
  }

  // A handler of a JSON body.
  using Method = HttpResponse (Impl::*)(const HttpRequest& request, JsonReader* reader);
  void AddPost(HttpServer* server, std::string path, Method method) {
    auto handler = [this, method](const HttpRequest& request) {
      JsonReader reader(request.body);
      return (this->*method)(request, &reader);
    };
    Add(server, {.method = "POST",
                 .path = std::move(path),
                 .handler = std::move(handler),
                 .json_body = true});
  }

  // ---- Queries ----

  // A query has two handlers: the quick one runs on the I/O thread that read it and declines what
  // may take long; the same request is then answered on the pool.
  void AddQueries(HttpServer* server) {
    for (const bool by_hash : {false, true}) {
      Add(server, {.method = "POST",
                   .path = by_hash ? "/query_by_hash" : "/query",
                   .handler =
                       [this, by_hash](const HttpRequest& request) {
                         HttpResponse response;
                         Query(by_hash, /*quick=*/false, request, &response);
                         return response;
                       },
                   .quick =
                       [this, by_hash](const HttpRequest& request, HttpResponse* response) {
                         return Query(by_hash, /*quick=*/true, request, response);
                       },
                   .body_bytes_max = kQueryBytesMax,
                   .json_body = true});
    }
    Add(server,
        {.method = "POST",
         .path = "/explain",
         .handler =
             [this](const HttpRequest& request) {
               return WithPlace([&](const LongAnswers::Place&) { return Explain(request); });
             },
         .body_bytes_max = kQueryBytesMax,
         .json_body = true});
  }

  // One query or a batch of them.
  // 1. Details and batches are declined by the quick handler; the body of a declined batch is read
  //    again on the pool.
  // 2. On the pool, memory at its critical level refuses: only what is too large for the quick
  //    handler comes here. Small queries are answered at any level.
  // 3. A single query is answered into the response; a batch becomes a `BatchAnswer` that takes the
  //    queries out of the scratch.
  // False: declined, `response` is untouched.
  bool Query(bool by_hash, bool quick, const HttpRequest& request, HttpResponse* response) {
    const bool detail = !request.query.empty() && IsTrue(request.Param("detail").value_or("0"));
    if (quick && detail) return false;
    if (!quick) {
      const absl::Status full =
          CheckMemory(parts_.registry->memory(), MemoryLevel::kCritical, "large questions");
      if (!full.ok()) *response = HttpRefusalForNow(std::string(full.message()));
      if (!full.ok()) return true;
    }
    HttpQueries::Lease scratch = queries_.Borrow();
    JsonReader reader(request.body);
    if (!scratch->body.Read(by_hash, &reader)) {
      RefuseBody(reader, response);
      return true;
    }
    if (!scratch->body.batch) {
      const QueryBody& query = scratch->body.queries[0];
      response->about = query.model;
      response->status =
          queries_.Answer(query, *request.identity, detail, scratch.get(), &response->body);
      return true;
    }
    if (quick) return false;
    auto answer = std::make_shared<BatchAnswer>(&queries_, std::move(scratch->body),
                                                request.identity, detail);
    scratch->body = {};
    response->more = [answer](std::string* piece) { return answer->Next(piece); };
    return true;
  }

  // Runs `answer` with one of the process's places for long answers; without a free one, or with
  // memory full, 503 and retry-after.
  HttpResponse WithPlace(const std::function<HttpResponse(LongAnswers::Place)>& answer) const {
    const absl::Status full = CheckMemory(parts_.registry->memory(), MemoryLevel::kFull,
                                          "dumps, snapshots and explanations");
    if (!full.ok()) return HttpRefusalForNow(std::string(full.message()));
    LongAnswers::Place place = LongAnswers::Process().Take();
    return place == nullptr ? HttpRefusalForNow(kTooManyLongAnswers) : answer(std::move(place));
  }

  // A body that holds its place until the client has taken the last piece or is gone: the server
  // destroys it then.
  static HttpBodySource Keeping(LongAnswers::Place place, HttpBodySource source) {
    return [place = std::move(place), source = std::move(source)](std::string* piece) {
      return source(piece);
    };
  }

  // Which of the two bodies it is, is not in the path: one that names "block_hashes" is read as a
  // query by hash.
  HttpResponse Explain(const HttpRequest& request) {
    HttpResponse response;
    HttpQueries::Lease scratch = queries_.Borrow();
    const bool by_hash = request.body.find("\"block_hashes\"") != std::string::npos;
    JsonReader reader(request.body);
    if (!scratch->body.Read(by_hash, &reader)) {
      RefuseBody(reader, &response);
      return response;
    }
    if (scratch->body.batch) return HttpRefusal(400, "one query at a time is explained");
    response.about = scratch->body.queries[0].model;
    const ExplainOptions options = {
        .blocks_max = std::min(NumberParam(request, "blocks", 1024), kExplainedBlocksMax),
        .ranks_max = std::min(NumberParam(request, "ranks", 16), kExplainedRanksMax)};
    response.status =
        queries_.Explain(scratch->body.queries[0], *request.identity, options, &response.body);
    return response;
  }

  // Without a gate (tests) always ready.
  HttpResponse Ready() {
    const Readiness readiness =
        parts_.ready ? parts_.ready() : Readiness{.ready = true, .reason = {}};
    if (readiness.ready) return {.body = "{\"ready\":true}"};
    HttpResponse response{.status = 503, .body = "{\"ready\":false,\"reason\":"};
    AppendJsonText(readiness.reason, &response.body);
    response.body += '}';
    return response;
  }

  // ---- Engines ----

  // The policy is asked for every host that the leaf would connect to or pass on; the directory
  // checks endpoints (`CheckZmqSource`). Engines registered here are not `from_flags`: they come
  // back from checkpoints until they are unregistered.
  HttpResponse Register(const HttpRequest& request, JsonReader* reader) {
    RegisterBody body;
    if (HttpResponse response; !body.Read(reader)) {
      RefuseBody(*reader, &response);
      return response;
    }
    if (parts_.directory == nullptr) return HttpRefusal(503, "this leaf listens to no engines");
    PolicyTarget target = TargetOf(body.model, body.group, std::to_string(body.instance));
    for (const std::string& url :
         {body.endpoint, body.replay_endpoint.value_or(""), body.url.value_or("")}) {
      if (!url.empty()) target.url_hosts.push_back(HostOfUrl(url));
    }
    if (auto refused = Refused(request, Verb::kRegister, target, "register")) return *refused;
    const absl::Status status = parts_.directory->Register({
        .instance = std::to_string(body.instance),
        .model = body.model,
        .group = body.group,
        .rank = body.rank.value_or(0),
        .block_size = body.block_size,
        .endpoint = body.endpoint,
        .replay_endpoint = body.replay_endpoint.value_or(""),
        .topic = body.topic.value_or(""),
        .server_key = body.server_key.value_or(""),
        .bind = body.bind,
        .lora_name = body.lora_name.value_or(""),
        .additional_salt = {},
        .image_token = body.image_token_id,
        .counts_copies = body.count_copies,
        .eagle_drop = body.eagle_drop.value_or(""),
        .chunk_tokens = body.chunk_tokens.value_or(0),
        .window_tokens = body.window_tokens.value_or(0),
        .hybrid = body.hybrid,
        .offload_chunk_tokens = body.offload_chunk_tokens.value_or(0),
        .silent_tiers = body.silent_tiers.value_or(""),
        .silent_blocks = body.silent_blocks.value_or(0),
        .silent_seconds = body.silent_seconds.value_or(0),
        .store = body.store.value_or(""),
        .store_tiers = body.store_tiers.value_or(""),
        .url = body.url.value_or(""),
        .first_rank = body.first_rank.value_or(0),
        .engine_type = body.engine_type.value_or(""),
    });
    return status.ok() ? Ok(201) : HttpRefusal(status);
  }

  // Without a group the instance goes in whichever group it is, so the caller must be allowed to do
  // that for every tenant.
  HttpResponse Unregister(const HttpRequest& request, JsonReader* reader) {
    UnregisterBody body;
    if (HttpResponse response; !body.Read(reader)) {
      RefuseBody(*reader, &response);
      return response;
    }
    if (parts_.directory == nullptr) return HttpRefusal(503, "this leaf listens to no engines");
    PolicyTarget target =
        TargetOf(body.model, body.group.value_or(std::string(kDefaultGroup)), body.instance);
    if (!body.group.has_value()) target.tenant = "*";  // of every tenant
    if (auto refused = Refused(request, Verb::kRegister, target, "unregister")) return *refused;
    const absl::Status status =
        parts_.directory->Unregister(body.instance, body.model, body.group, body.rank);
    return status.ok() ? Ok() : HttpRefusal(status);
  }

  // The policy's name for the subject of a body.
  PolicyTarget TargetOf(const std::string& model, const std::string& group,
                        const std::string& holder) const {
    const Domain domain = DomainOf(model, group);
    PolicyTarget target;
    target.model = domain.model;
    target.tenant = domain.tenant;
    target.holder = holder;
    target.cell = options_.cell;
    return target;
  }

  // 403 if the policy does not allow this target; nothing if it does. Both are audited.
  std::optional<HttpResponse> Refused(const HttpRequest& request, Verb verb,
                                      const PolicyTarget& target, std::string_view event) const {
    const absl::Status status = security_->Check(*request.identity, verb, target, request.peer,
                                                 event, /*audit_allowed=*/true);
    if (status.ok()) return std::nullopt;
    return HttpRefusal(403, std::string(status.message()));
  }

  HttpResponse Workers(const HttpRequest& request) {
    WorkersFilter filter;
    if (std::string problem = filter.Read(request.query); !problem.empty()) {
      return {.status = 400, .content_type = kPlainText, .body = std::move(problem)};
    }
    HttpResponse response;
    std::vector<EngineEntry> entries;
    if (parts_.directory != nullptr) entries = parts_.directory->List(filter.model, filter.group);
    AppendWorkers(entries, IsTrue(request.Param("detail").value_or("0")), &response.body);
    return response;
  }

  HttpResponse Pause(const HttpRequest&, JsonReader* reader) {
    return SetPaused(reader, &EngineDirectory::Pause);
  }
  HttpResponse Resume(const HttpRequest&, JsonReader* reader) {
    return SetPaused(reader, &EngineDirectory::Resume);
  }

  // The test endpoints pause or resume one rank's stream, or all of an instance's.
  HttpResponse SetPaused(JsonReader* reader,
                         absl::Status (EngineDirectory::*set)(const std::string&,
                                                              std::optional<uint32_t>)) {
    ListenerBody body;
    if (HttpResponse response; !body.Read(reader)) {
      RefuseBody(*reader, &response);
      return response;
    }
    if (parts_.directory == nullptr) return HttpRefusal(503, "this leaf listens to no engines");
    const absl::Status status = (parts_.directory->*set)(std::to_string(body.instance), body.rank);
    return status.ok() ? Ok() : HttpRefusal(status);
  }

  // ---- Replicas ----

  // While the leaf recovers what it has is not whole: a replica that asks now must try again or ask
  // another.
  HttpResponse Dump() {
    if (parts_.directory == nullptr) return {.body = "{}"};
    if (parts_.directory->recovering()) return HttpRefusal(503, "recovering");
    return WithPlace([this](LongAnswers::Place place) {
      return HttpResponse{.more = Keeping(std::move(place), DumpSource(parts_.directory))};
    });
  }

  // As for dumps; under a policy the cell is checked too, since replicas of this cell alone may
  // have it. Without names it is short and needs no place.
  HttpResponse Snapshot(const HttpRequest& request) {
    PolicyTarget target;
    target.cell = options_.cell;
    if (auto refused = Refused(request, Verb::kSnapshot, target, "snapshot")) return *refused;
    if (parts_.directory == nullptr) return HttpRefusal(404, "this leaf listens to no engines");
    if (parts_.directory->recovering()) return HttpRefusal(503, "recovering");
    const bool names = request.Param("names").value_or("1") != "0";
    HttpBodySource source = ReplicaSnapshotSource(options_.contract, parts_.directory, names);
    if (!names) return {.content_type = kSnapshotContentType, .more = std::move(source)};
    return WithPlace([&](LongAnswers::Place place) {
      return HttpResponse{.content_type = kSnapshotContentType,
                          .more = Keeping(std::move(place), std::move(source))};
    });
  }

  HttpResponse RegisterPeer(const HttpRequest&, JsonReader* reader) {
    return SetPeer(reader, /*add=*/true);
  }
  HttpResponse DeregisterPeer(const HttpRequest&, JsonReader* reader) {
    return SetPeer(reader, /*add=*/false);
  }

  HttpResponse SetPeer(JsonReader* reader, bool add) {
    PeerBody body;
    if (HttpResponse response; !body.Read(reader)) {
      RefuseBody(*reader, &response);
      return response;
    }
    const absl::Status status = add ? parts_.peers->Add(body.url) : parts_.peers->Remove(body.url);
    return status.ok() ? Ok(add ? 201 : 200) : HttpRefusal(status);
  }

  HttpResponse ListPeers() {
    HttpResponse response{.body = "["};
    for (const std::string& url : parts_.peers->List()) {
      if (response.body.size() > 1) response.body += ',';
      AppendJsonText(url, &response.body);
    }
    response.body += ']';
    return response;
  }

  const HttpApiOptions options_;
  const HttpApiParts parts_;
  const std::shared_ptr<Security> security_;
  HttpQueries queries_;
  // Null without --access_log. It and the observers outlive the routes: the server is stopped
  // before this is destroyed.
  std::unique_ptr<HttpAccessLog> log_;
  std::map<std::string, std::unique_ptr<HttpEndpointMetrics>> endpoints_;
};

HttpApi::HttpApi(HttpApiOptions options, HttpApiParts parts)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(parts))) {}
HttpApi::~HttpApi() = default;

absl::Status HttpApi::Open() { return impl_->Open(); }
void HttpApi::AddRoutes(HttpServer* server) { impl_->AddRoutes(server); }

}  // namespace kvatlas
