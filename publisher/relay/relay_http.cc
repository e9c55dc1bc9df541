// JSON views of the relay, registrations, and dumps. Field names are those of a leaf's HTTP where
// it has the same call.

#include "publisher/relay/relay_http.h"

#include <google/protobuf/util/json_util.h>

#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "indexer/base/durations.h"
#include "indexer/base/tier.h"
#include "indexer/base/version.h"
#include "indexer/process/process_facts.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTierNames[kTiers] = {"device", "host", "disk", "external"};

HttpResponse Answer(const Json& json, int status = 200) {
  // Texts of peers may not be UTF-8: they are shown with replacement characters.
  return {.status = status,
          .body = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"};
}

const char* TrustText(Trust trust) { return trust == Trust::kExact ? "exact" : "degraded"; }

// ---- What there is ----

Json LinkJson(const RelayLinkStats& link) {
  Json json = {{"leaf", link.leaf},
               {"connected", link.connected},
               {"welcomed", link.welcomed},
               {"at_rest", link.at_rest},
               {"last_number", link.last_number},
               {"acknowledged", link.acknowledged},
               {"batches_sent", link.sender.batches_sent},
               {"batches_replayed", link.sender.batches_replayed},
               {"batches_dropped", link.sender.batches_dropped},
               {"blocks_sent", link.sender.blocks_sent},
               {"snapshots_sent", link.sender.snapshots_sent},
               {"refused", link.sender.refused}};
  json["state"] = std::string(ConnectionStateName(link.connection.state));
  if (!link.connection.reason.empty()) json["reason"] = link.connection.reason;
  if (!link.status.ok()) json["error"] = link.status.ToString();
  return json;
}

Json RankJson(const RelayRankStats& rank) {
  Json json = {{"rank", rank.identity.holder.rank},
               {"stand", std::string(RelayStandName(rank.stand))},
               {"trust", TrustText(rank.trust)},
               {"doubt", rank.doubt},
               {"epoch", std::to_string(rank.identity.epoch)},  // beyond 2^53, which browsers round
               {"blocks", rank.blocks},
               {"shed", rank.shed}};
  for (int tier = 0; tier < kTiers; ++tier)
    json["tiers"][kTierNames[tier]] = rank.digest.tiers[tier].blocks;
  json["leaves"] = Json::array();
  for (const RelayLinkStats& link : rank.links) json["leaves"].push_back(LinkJson(link));
  return json;
}

// `lost` counts messages that no replay brought; `gaps` all holes, those that were filled included.
Json ListenerJson(const RelayListener& listener) {
  const ZmqStreamStats& stream = listener.stream;
  Json json = {{"rank", listener.registration.rank},
               {"endpoint", listener.registration.endpoint},
               {"replay_endpoint", listener.registration.replay_endpoint},
               {"status", std::string(ListenerStatusName(stream.status))},
               {"connected", stream.connected},
               {"silent_ms", Milliseconds<int64_t>(stream.silent)},
               {"lag_ms", stream.lag_ms},
               {"bytes", stream.bytes},
               {"undecodable", stream.undecodable},
               {"last_sequence", nullptr},
               {"gaps", stream.tracker.gaps},
               {"lost", stream.tracker.messages_lost},
               {"replayed", stream.tracker.replayed},
               {"restarts", stream.tracker.restarts}};
  json["state"] = std::string(ConnectionStateName(stream.connection.state));
  if (!stream.connection.reason.empty()) json["reason"] = stream.connection.reason;
  if (stream.replay.has_value()) {
    json["replay_state"] = std::string(ConnectionStateName(stream.replay->state));
    if (!stream.replay->reason.empty()) json["replay_reason"] = stream.replay->reason;
  }
  if (stream.tracker.last.has_value()) json["last_sequence"] = *stream.tracker.last;
  if (!stream.last_error.empty()) json["last_error"] = stream.last_error;
  return json;
}

// One engine with its streams and ranks, as /status has it.
Json InstanceJson(const RelayInstance& instance) {
  Json json = {{"worker", instance.name},
               {"model", instance.domain.model},
               {"tenant", instance.domain.tenant},
               {"block_size", instance.block_size},
               {"batches", instance.worker.batches},
               {"events", instance.worker.events},
               {"blocks_stored", instance.worker.blocks_stored},
               {"blocks_removed", instance.worker.blocks_removed},
               {"last_refusal", instance.worker.last_refusal}};
  json["streams"] = Json::array();
  for (const RelayListener& listener : instance.listeners)
    json["streams"].push_back(ListenerJson(listener));
  json["ranks"] = Json::array();
  for (const RelayRankStats& rank : instance.ranks) json["ranks"].push_back(RankJson(rank));
  return json;
}

Json StatusJson(const Relay& relay) {
  const Readiness readiness = relay.readiness();
  Json json = {{"program", "kvatlas-relay"},
               {"version", std::string(kVersion)},
               {"contract", relay.options().contract.Id()},
               {"ready", readiness.ready},
               {"reason", readiness.reason},
               {"leaves", relay.leaves()},
               {"blocks", relay.blocks_held()},
               {"blocks_max", relay.options().blocks_max}};
  if (const ProcessFacts facts = FactsOfProcess(); !facts.program.empty())
    json["process"] = Json::parse(ProcessFactsJson(facts), nullptr, /*allow_exceptions=*/false);
  json["workers"] = Json::array();
  for (const RelayInstance& instance : relay.Instances())
    json["workers"].push_back(InstanceJson(instance));
  return json;
}

// In the form of a leaf's /workers.
Json WorkersJson(const Relay& relay) {
  Json all = Json::array();
  for (const RelayInstance& instance : relay.Instances()) {
    Json json = {{"instance_id", instance.name},
                 {"model_name", instance.domain.model},
                 {"routing_group", GroupOf(instance.domain)},
                 {"block_size", instance.block_size}};
    json["listeners"] = Json::object();
    for (const RelayListener& listener : instance.listeners)
      json["listeners"][std::to_string(listener.registration.rank)] = {
          {"endpoint", listener.registration.endpoint},
          {"status", std::string(ListenerStatusName(listener.stream.status))}};
    all.push_back(std::move(json));
  }
  return all;
}

// ---- Registrations ----

// Reads the fields of one body; the first that is wrong is remembered, and the caller asks for it
// once at the end. Parsed as `nlohmann::json`, not as the ordered `Json`, which is quadratic in
// keys.
class Body {
 public:
  explicit Body(const std::string& text)
      : json_(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false)) {
    if (!json_.is_object()) wrong_ = "the body is not a JSON object";
  }

  bool Has(const char* field) const {
    return json_.is_object() && json_.contains(field) && !json_[field].is_null();
  }
  void Text(const char* field, bool required, std::string* to) {
    if (!Present(field, required)) return;
    if (!json_[field].is_string()) return Refuse(field, "a text");
    *to = json_[field].get<std::string>();
  }
  // A number is taken for its text.
  void Name(const char* field, std::string* to) {
    if (Has(field) && json_[field].is_number_unsigned()) {
      *to = std::to_string(json_[field].get<uint64_t>());
      return;
    }
    Text(field, /*required=*/true, to);
  }
  void Number(const char* field, bool required, uint32_t* to) {
    if (!Present(field, required)) return;
    if (!json_[field].is_number_unsigned() || json_[field].get<uint64_t>() > 0xffffffffu)
      return Refuse(field, "a number of 32 bits");
    *to = static_cast<uint32_t>(json_[field].get<uint64_t>());
  }
  void Number(const char* field, std::optional<uint32_t>* to) {
    uint32_t number = 0;
    if (!Present(field, /*required=*/false)) return;
    Number(field, /*required=*/false, &number);
    *to = number;
  }
  void BlockSize(uint32_t* to) {
    if (Has("block_size") && json_["block_size"] == kBlockSizeAutoText) {
      *to = kBlockSizeAuto;
    } else {
      Number("block_size", /*required=*/true, to);
    }
  }
  void Bool(const char* field, bool* to) {
    if (!Present(field, /*required=*/false)) return;
    if (!json_[field].is_boolean()) return Refuse(field, "true or false");
    *to = json_[field].get<bool>();
  }
  const std::string& wrong() const { return wrong_; }

 private:
  bool Present(const char* field, bool required) {
    if (Has(field)) return true;
    if (required && wrong_.empty()) wrong_ = std::string(field) + " is missing";
    return false;
  }
  void Refuse(const char* field, const char* wanted) {
    if (wrong_.empty()) wrong_ = std::string(field) + " is not " + wanted;
  }

  const nlohmann::json json_;
  std::string wrong_;
};

// The fields of `EngineRegistration`, whose values `Relay::Register` checks.
HttpResponse Register(Relay* relay, const HttpRequest& request) {
  Body body(request.body);
  EngineRegistration of;
  body.Name("instance_id", &of.instance);
  body.Text("endpoint", /*required=*/true, &of.endpoint);
  body.Text("model_name", /*required=*/true, &of.model);
  body.BlockSize(&of.block_size);
  body.Text("routing_group", /*required=*/false, &of.group);
  body.Number("dp_rank", /*required=*/false, &of.rank);
  body.Text("replay_endpoint", /*required=*/false, &of.replay_endpoint);
  body.Text("additional_salt", /*required=*/false, &of.additional_salt);
  body.Text("topic", /*required=*/false, &of.topic);
  body.Text("server_key", /*required=*/false, &of.server_key);
  body.Text("lora_name", /*required=*/false, &of.lora_name);
  body.Text("engine_type", /*required=*/false, &of.engine_type);
  body.Bool("bind", &of.bind);
  body.Bool("count_copies", &of.counts_copies);
  body.Number("image_token_id", &of.image_token);
  body.Text("eagle_drop", /*required=*/false, &of.eagle_drop);
  body.Number("chunk_tokens", /*required=*/false, &of.chunk_tokens);
  body.Number("window_tokens", /*required=*/false, &of.window_tokens);
  body.Bool("hybrid", &of.hybrid);
  body.Number("offload_chunk_tokens", /*required=*/false, &of.offload_chunk_tokens);
  body.Text("silent_tiers", /*required=*/false, &of.silent_tiers);
  body.Number("first_rank", /*required=*/false, &of.first_rank);
  body.Number("silent_blocks", /*required=*/false, &of.silent_blocks);
  body.Number("silent_seconds", /*required=*/false, &of.silent_seconds);
  body.Text("store", /*required=*/false, &of.store);
  body.Text("store_tiers", /*required=*/false, &of.store_tiers);
  if (!body.wrong().empty()) return HttpError(400, body.wrong());
  const absl::Status status = relay->Register(of);
  return status.ok() ? Answer({{"status", "ok"}}, 201) : HttpError(status);
}

// Without `dp_rank` the whole instance goes, without `routing_group` whatever its group is.
HttpResponse Unregister(Relay* relay, const HttpRequest& request) {
  Body body(request.body);
  std::string instance, model, group;
  uint32_t rank = 0;
  body.Name("instance_id", &instance);
  body.Text("model_name", /*required=*/true, &model);
  body.Text("routing_group", /*required=*/false, &group);
  body.Number("dp_rank", /*required=*/false, &rank);
  if (!body.wrong().empty()) return HttpError(400, body.wrong());
  const absl::Status status = relay->Unregister(
      instance, model, body.Has("routing_group") ? std::optional(group) : std::nullopt,
      body.Has("dp_rank") ? std::optional(rank) : std::nullopt);
  return status.ok() ? Answer({{"status", "ok"}}) : HttpError(status);
}

// ---- A dump, a run a line ----

void AppendLine(const v1::DumpResponse& line, std::string* out) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  // Names were checked to be UTF-8 when they came.
  if (!google::protobuf::util::MessageToJsonString(line, &json, options).ok()) return;
  *out += json;
  *out += '\n';
}

// One line per run of blocks, then a last one without blocks that ends the rank.
std::string LinesOf(const RelayRankDump& dump) {
  v1::DumpResponse line;
  ToProto(dump.identity.domain, line.mutable_domain());
  ToProto(dump.identity.holder, line.mutable_worker());
  line.set_applied(dump.last_number);
  line.set_trust(ToProto(dump.trust));
  if (!dump.layout.plain()) ToProto(dump.layout, line.mutable_layout());
  std::string lines;
  for (const Stored& run : dump.runs) {
    line.clear_stored();
    ToProto(run, line.add_stored());
    AppendLine(line, &lines);
  }
  line.clear_stored();
  line.set_last_of_worker(true);
  AppendLine(line, &lines);
  return lines;
}

// The answer is made rank by rank while it is sent, so that memory holds one rank's lines at a
// time. A rank that is gone when its turn comes is left out.
HttpResponse Dump(const Relay* relay, const HttpRequest& request) {
  const std::optional<std::string> model = request.Param("model");
  std::optional<Domain> domain;
  if (model.has_value()) domain = Domain{*model, request.Param("tenant").value_or("")};
  const std::string worker = request.Param("worker").value_or("");
  // The ranks that there are now; each is read when its turn comes.
  auto holders = std::make_shared<std::deque<std::pair<Domain, HolderId>>>();
  bool known = !domain.has_value();
  for (const RelayInstance& instance : relay->Instances()) {
    if (domain.has_value() && !(instance.domain == *domain)) continue;
    known = true;
    if (!worker.empty() && instance.name != worker) continue;
    for (const RelayRankStats& rank : instance.ranks)
      holders->emplace_back(instance.domain, rank.identity.holder);
  }
  if (!known) return HttpError(404, "domain " + ToString(*domain) + " has no worker here");
  return {.content_type = "application/x-ndjson", .more = [relay, holders](std::string* piece) {
            if (holders->empty()) return false;
            const auto [of, holder] = std::move(holders->front());
            holders->pop_front();
            relay->ForEachDump(of, holder.name, [&](const RelayRankDump& dump) {
              if (dump.identity.holder.rank != holder.rank) return true;
              *piece += LinesOf(dump);
              return false;
            });
            return true;
          }};
}

}  // namespace

// /ready is that of `AdminHttp`, with the relay's readiness as its gate.
void AddRelayRoutes(Relay* relay, AdminHttp* http) {
  http->Handle("GET", "/health",
               [](const HttpRequest&) { return HttpResponse{.content_type = ""}; });
  http->health()->SetGate([relay] { return relay->readiness(); });
  http->Handle("GET", "/status",
               [relay](const HttpRequest&) { return Answer(StatusJson(*relay)); });
  http->Handle("GET", "/workers",
               [relay](const HttpRequest&) { return Answer(WorkersJson(*relay)); });
  http->Handle("GET", "/dump",
               [relay](const HttpRequest& request) { return Dump(relay, request); });
  http->Handle("POST", "/register",
               [relay](const HttpRequest& request) { return Register(relay, request); });
  http->Handle("POST", "/unregister",
               [relay](const HttpRequest& request) { return Unregister(relay, request); });
}

}  // namespace kvatlas
