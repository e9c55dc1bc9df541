// Mooncake's paths over the same directory and registry as Dynamo's (`http_api.h`), with the same
// JSON reader but its own names and its own errors: {"error":…} with 400 for a body that is no JSON
// or of another shape. Handlers run on the server's pool.

#include "indexer/compat/mooncake/mooncake_api.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/memory_budget.h"
#include "indexer/compat/dynamo/http_bodies.h"
#include "indexer/compat/dynamo/http_json_reader.h"
#include "indexer/compat/dynamo/http_refusals.h"
#include "indexer/registry/explain_json.h"
#include "indexer/security/visible_domain.h"

namespace kvatlas {
namespace {

// Of any body; 8 MiB are some million token ids.
constexpr size_t kQueryBytesMax = 8 << 20;
// Longer bodies are refused while memory is critical, as at the leaf's other doors: there those
// that are not for a quick handler.
const size_t kLongQuestionBytes = HttpServerOptions().quick_body_bytes_max;

HttpResponse BadBody(const JsonReader& reader) { return HttpRefusal(400, reader.error().text); }

// An instance is a name here, or a number, which becomes a name.
bool ReadName(JsonReader* reader, std::string* name) {
  if (reader->Peek() == '"') return reader->ReadString(name);
  uint64_t number;
  if (!reader->ReadU64(&number)) return false;
  *name = std::to_string(number);
  return true;
}

// Sequence hashes as unsigned numbers.
bool ReadU64s(JsonReader* reader, std::vector<SequenceHash>* hashes) {
  return reader->ReadSequence([&] {
    uint64_t hash;
    if (!reader->ReadU64(&hash)) return false;
    hashes->push_back(SequenceHash{hash});
    return true;
  });
}

// The body of /query or, with `hashes` in place of `tokens`, of /query_by_hash. "modelname" is an
// alias that registrations use.
struct QueryForm {
  std::string model;
  std::vector<TokenId> tokens;
  std::vector<SequenceHash> hashes;
  std::optional<std::string> tenant;
  std::optional<std::string> instance;
  std::optional<uint32_t> block_size;
  std::optional<std::string> lora_name;
  std::optional<std::string> cache_salt;

  bool Read(bool by_hash, JsonReader* reader) {
    const JsonField fields[] = {
        {"model", true, "modelname"},
        by_hash ? JsonField{"seq_hashes", true, "block_hash"} : JsonField{"token_ids", true},
        {"tenant_id"},
        {"instance_id"},
        {"block_size"},
        {"lora_name"},
        {"cache_salt"},
    };
    return reader->ReadStruct("QueryRequest", 7, fields, [&](size_t field) {
      switch (field) {
        case 0:
          return reader->ReadString(&model);
        case 1:
          return by_hash ? ReadU64s(reader, &hashes) : reader->ReadArray(&tokens);
        case 2:
          return reader->ReadOptional(&tenant);
        // Null, as in other optional fields, or a name or number.
        case 3:
          return reader->Peek() == 'n' ? reader->ReadOptional(&instance)
                                       : ReadName(reader, &instance.emplace());
        case 4:
          return reader->ReadOptional(&block_size);
        case 5:
          return reader->ReadOptional(&lora_name);
        default:
          return reader->ReadOptional(&cache_salt);
      }
    });
  }
};

// Mooncake's names for the fields of a registration. What the interface has no field for keeps its
// default; null is as if the field were absent.
bool ReadRegistration(JsonReader* reader, EngineRegistration* registration) {
  constexpr JsonField kFields[] = {
      {"endpoint", true},
      {"type", false},
      {"modelname", true, "model_name"},
      {"instance_id", true},
      {"block_size", true},
      {"dp_rank", false},
      {"tenant_id", false},
      {"lora_name", false},
      {"replay_endpoint", false},
      {"additionalsalt", false, "additional_salt"},
      {"server_key", false},
  };
  const auto read_text = [reader](std::string* to) {
    std::optional<std::string> text;
    if (!reader->ReadOptional(&text)) return false;
    if (text.has_value()) *to = *std::move(text);
    return true;
  };
  return reader->ReadStruct("RegisterRequest", 10, kFields, [&](size_t field) {
    switch (field) {
      case 0:
        return reader->ReadString(&registration->endpoint);
      case 1:
        return read_text(&registration->engine_type);
      case 2:
        return reader->ReadString(&registration->model);
      case 3:
        return ReadName(reader, &registration->instance);
      case 4:
        return ReadBlockSize(reader, &registration->block_size);
      case 5: {
        std::optional<uint32_t> rank;
        if (!reader->ReadOptional(&rank)) return false;
        registration->rank = rank.value_or(0);
        return true;
      }
      case 6:
        return read_text(&registration->group);
      case 7:
        return read_text(&registration->lora_name);
      case 8:
        return read_text(&registration->replay_endpoint);
      case 9:
        return read_text(&registration->additional_salt);
      default:
        return read_text(&registration->server_key);
    }
  });
}

// One instance of an answer: by medium the deepest prefix that one rank has on that medium alone,
// by rank over all media. External stores count as disk: the interface has three media.
void AppendInstanceAnswer(const std::map<uint32_t, RankDetail>& ranks, uint64_t block_size,
                          std::string* out) {
  RankDetail best;
  for (const auto& [rank, detail] : ranks) {
    for (size_t tier = 0; tier < kTiers; ++tier) {
      best.tiers[tier] = std::max(best.tiers[tier], detail.tiers[tier]);
    }
    best.any = std::max(best.any, detail.any);
  }
  const auto of = [&best](Tier tier) { return best.tiers[static_cast<size_t>(tier)]; };
  absl::StrAppend(out, "{\"longest_matched\":", best.any * block_size,
                  ",\"GPU\":", of(Tier::kDevice) * block_size, ",\"DP\":{");
  const char* comma = "";
  for (const auto& [rank, detail] : ranks) {
    absl::StrAppend(out, comma, "\"", rank, "\":", detail.any * block_size);
    comma = ",";
  }
  absl::StrAppend(out, "},\"CPU\":", of(Tier::kHost) * block_size,
                  ",\"DISK\":", std::max(of(Tier::kDisk), of(Tier::kExternal)) * block_size, "}");
}

// A key within an object that is open, with the comma before it unless it is the first.
void AppendKey(std::string_view name, std::string* out) {
  if (out->back() != '{') *out += ',';
  AppendJsonText(name, out);
  *out += ':';
}

// Blocks by rank and medium as the engine's worker counts them; 0 to 3 are the tiers device, host,
// disk, external.
void AppendEngineView(const EngineEntry& entry, std::string* out) {
  *out += "{\"type\":";
  AppendJsonText(entry.engine_type, out);
  *out += ",\"status\":";
  AppendJsonText(ListenerStatusName(entry.status), out);
  *out += ",\"DP\":{";
  for (const EngineListener& listener : entry.listeners) {
    AppendKey(std::to_string(listener.rank), out);
    *out += "{\"endpoint\":";
    AppendJsonText(listener.endpoint, out);
    *out += ",\"status\":";
    AppendJsonText(ListenerStatusName(listener.stream.status), out);
    *out += '}';
  }
  *out += "},\"blocks\":{";
  for (const EngineRankStats& rank : entry.worker.ranks) {
    AppendKey(std::to_string(rank.rank), out);
    absl::StrAppend(out, "{\"GPU\":", rank.blocks[0], ",\"CPU\":", rank.blocks[1],
                    ",\"DISK\":", rank.blocks[2] + rank.blocks[3], "}");
  }
  *out += "}}";
}

}  // namespace

MooncakeApi::MooncakeApi(MooncakeApiOptions options, const HolderRegistry* registry,
                         EngineDirectory* directory)
    : options_(options), registry_(registry), directory_(directory) {}

void MooncakeApi::AddRoutes(HttpServer* server) {
  const auto post = [server](std::string path, HttpHandler handler) {
    server->Handle({.method = "POST",
                    .path = std::move(path),
                    .handler = std::move(handler),
                    .body_bytes_max = kQueryBytesMax});
  };
  post("/register", [this](const HttpRequest& request) { return Register(request); });
  post("/unregister", [this](const HttpRequest& request) { return Unregister(request); });
  post("/query", [this](const HttpRequest& request) { return Query(request, false); });
  post("/query_by_hash", [this](const HttpRequest& request) { return Query(request, true); });
  server->Handle({.method = "GET", .path = "/global_view", .handler = [this](const HttpRequest&) {
                    return GlobalView();
                  }});
  server->Handle(
      {.method = "GET", .path = "/health", .quick = [](const HttpRequest&, HttpResponse* response) {
         response->body = "{\"status\":\"ok\"}";
         return true;
       }});
}

// 1. The body; 2. the policy, for the domain, the instance and every host that would be connected
//    to (audited either way); 3. the directory, whose statuses become HTTP's.
HttpResponse MooncakeApi::Register(const HttpRequest& request) {
  JsonReader reader(request.body);
  EngineRegistration registration;
  if (!ReadRegistration(&reader, &registration)) return BadBody(reader);
  const Domain domain = DomainOf(registration.model, registration.group);
  PolicyTarget target = {.model = domain.model,
                         .tenant = domain.tenant,
                         .holder = registration.instance,
                         .cell = options_.cell};
  for (const std::string& url :
       {registration.endpoint, registration.replay_endpoint, registration.url}) {
    if (!url.empty()) target.url_hosts.push_back(HostOfUrl(url));
  }
  if (absl::Status bad = security_->Check(*request.identity, Verb::kRegister, target, request.peer,
                                          "register", /*audit_allowed=*/true);
      !bad.ok()) {
    return HttpRefusal(403, std::string(bad.message()));
  }
  if (absl::Status bad = directory_->Register(registration); !bad.ok()) return HttpRefusal(bad);
  HttpResponse response{.body = "{\"status\":\"registered successfully\",\"instance_id\":"};
  AppendJsonText(registration.instance, &response.body);
  response.body += '}';
  return response;
}

// The request names no model, so the instance is looked for in all models of the tenant; the first
// one found goes, or its one rank. The answer lists what it had before.
HttpResponse MooncakeApi::Unregister(const HttpRequest& request) {
  JsonReader reader(request.body);
  std::string instance;
  std::optional<std::string> tenant;
  std::optional<uint32_t> rank;
  constexpr JsonField kFields[] = {{"instance_id", true}, {"tenant_id"}, {"dp_rank"}};
  const bool read = reader.ReadStruct("UnregisterRequest", 3, kFields, [&](size_t field) {
    return field == 0   ? ReadName(&reader, &instance)
           : field == 1 ? reader.ReadOptional(&tenant)
                        : reader.ReadOptional(&rank);
  });
  if (!read) return BadBody(reader);
  const std::string group = tenant.value_or(std::string(kDefaultGroup));
  for (const EngineEntry& entry : directory_->List(std::nullopt, group)) {
    if (entry.instance != instance) continue;
    const PolicyTarget target = {.model = entry.domain.model,
                                 .tenant = entry.domain.tenant,
                                 .holder = instance,
                                 .cell = options_.cell};
    if (absl::Status bad = security_->Check(*request.identity, Verb::kRegister, target,
                                            request.peer, "unregister", /*audit_allowed=*/true);
        !bad.ok()) {
      return HttpRefusal(403, std::string(bad.message()));
    }
    const absl::Status status = directory_->Unregister(instance, entry.domain.model, group, rank);
    if (!status.ok()) return HttpRefusal(status);
    HttpResponse response{.body =
                              "{\"status\":\"unregistered successfully\",\"removed_instances\":["};
    for (const EngineListener& listener : entry.listeners) {
      if (rank.has_value() && listener.rank != *rank) continue;
      if (response.body.back() != '[') response.body += ',';
      AppendJsonText(absl::StrCat(instance, "|", group, "|", listener.rank), &response.body);
    }
    response.body += "]}";
    return response;
  }
  return HttpRefusal(404, absl::StrCat("instance ", instance, " not found in tenant ", group));
}

// An unknown model or tenant, or one that the asker may not see, has no instances: 200 with an
// empty object. A block size, if the body names one, must be the domain's. Tokens are asked under
// each kind of hash that the domain's workers announce, as in `HttpQueries::Answer`; sequence
// hashes are of one kind.
HttpResponse MooncakeApi::Query(const HttpRequest& request, bool by_hash) {
  if (request.body.size() > kLongQuestionBytes) {
    const absl::Status full =
        CheckMemory(registry_->memory(), MemoryLevel::kCritical, "large questions");
    if (!full.ok()) return HttpRefusalForNow(std::string(full.message()));
  }
  JsonReader reader(request.body);
  QueryForm form;
  if (!form.Read(by_hash, &reader)) return BadBody(reader);
  const std::string group = form.tenant.value_or(std::string(kDefaultGroup));
  const Domain domain =
      DomainVisibleTo(*security_, *request.identity, DomainOf(form.model, group)).domain;
  const uint32_t block_size = registry_->BlockSizeOf(domain).value_or(0);
  if (block_size != 0 && form.block_size.has_value() && *form.block_size != block_size) {
    return HttpRefusal(400,
                       absl::StrCat("block_size is ", block_size, " here, not ", *form.block_size));
  }
  RankDetails ranks;
  const uint32_t look_aheads = by_hash ? 1 : 1 | directory_->LookAheads(domain);
  for (uint32_t left = block_size > 0 ? look_aheads : 0; left != 0; left &= left - 1) {
    const auto eagle = static_cast<uint32_t>(std::countr_zero(left));
    if (!by_hash) {
      const uint64_t seed = BlockSeed(
          {.lora_name = form.lora_name.value_or(""), .cache_salt = form.cache_salt.value_or("")},
          options_.contract);
      form.hashes =
          SequenceHashes(LocalHashes(form.tokens, {.block_size = block_size, .eagle = eagle}, seed),
                         options_.contract);
    }
    AddRankDetails(*registry_, domain, form.hashes, &ranks);
  }
  HttpResponse response;
  const bool wrap = options_.wrap_data || request.Param("data").value_or("0") == "1";
  if (wrap) response.body += "{\"data\":";
  response.body += '{';
  AppendJsonText(group, &response.body);
  response.body += ":{";
  for (const auto& [instance, by_rank] : ranks) {
    if (form.instance.has_value() && instance != *form.instance) continue;
    if (response.body.back() != '{') response.body += ',';
    AppendJsonText(instance, &response.body);
    response.body += ':';
    AppendInstanceAnswer(by_rank, block_size, &response.body);
  }
  response.body += wrap ? "}}}" : "}}";
  return response;
}

// Every engine of this leaf with its listeners and blocks. Made whole in memory: it grows with
// engines and ranks, not with blocks.
HttpResponse MooncakeApi::GlobalView() const {
  // By model, then by tenant. The block size of a domain is that of any of its instances.
  std::map<std::string, std::map<std::string, std::vector<EngineEntry>>> models;
  for (EngineEntry& entry : directory_->List()) {
    models[entry.domain.model][GroupOf(entry.domain)].push_back(std::move(entry));
  }
  HttpResponse response{.body = "{\"data\":{"};
  std::string* const out = &response.body;
  for (const auto& [model, tenants] : models) {
    AppendKey(model, out);
    *out += '{';
    for (const auto& [tenant, entries] : tenants) {
      AppendKey(tenant, out);
      absl::StrAppend(out, "{\"block_size\":", entries.front().block_size, ",\"instances\":{");
      for (const EngineEntry& entry : entries) {
        AppendKey(entry.instance, out);
        AppendEngineView(entry, out);
      }
      *out += "}}";
    }
    *out += '}';
  }
  *out += "}}";
  return response;
}

}  // namespace kvatlas
