// `ProbeEngine` asks an engine's endpoints one after the other, and waits for each; a reader for
// each answer fills its part of `EngineFacts`. Answers are other programs' JSON and text, so every
// field is optional and may be of any type.

#include "frontend/engine_client/engine_probe.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "indexer/net/http_fetch.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr size_t kBodyBytesMax = 8 << 20;

// A status and a body, of any status.
struct Answer {
  int status = 0;
  std::string body;
};

// An engine as this process asks it.
struct Asked {
  const std::string& url;
  const Duration timeout;
  const std::string& authorization;
};

absl::StatusOr<Answer> Get(const Asked& engine, const char* path) {
  HttpFetch fetch({.connect_timeout = engine.timeout,
                   .read_timeout = engine.timeout,
                   .total_timeout = 2 * engine.timeout,
                   .authorization = engine.authorization});
  absl::StatusOr<int> status = fetch.Get(engine.url, path);
  if (!status.ok()) return status.status();
  absl::StatusOr<std::string> body = fetch.ReadAll(kBodyBytesMax);
  if (!body.ok()) return body.status();
  return Answer{*status, *std::move(body)};
}

// Empty if missing or of another type; so is 0 below.
std::string Text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

uint32_t Number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_unsigned() ? found->get<uint32_t>() : 0;
}

// Value of a label in `{a="x",b="y"}`; nothing: it has no such label.
std::optional<std::string_view> LabelOf(std::string_view labels, std::string_view name) {
  size_t at = 0;
  while ((at = labels.find(name, at)) != std::string_view::npos) {
    const bool begins = at == 0 || labels[at - 1] == ',' || labels[at - 1] == '{';
    const size_t value = at + name.size() + 2;
    if (begins && labels.substr(at + name.size(), 2) == "=\"") {
      const size_t end = labels.find('"', value);
      if (end != std::string_view::npos) return labels.substr(value, end - value);
    }
    ++at;
  }
  return std::nullopt;
}

// SGLang 0.5.23 shows a hybrid model by a field of its arguments that the model's architecture
// resolves, or by a second pool of tokens.
bool IsHybrid(const Json& info) {
  const auto states = info.find("uses_mamba_radix_cache");
  if (states != info.end() && *states == true) return true;
  const auto ranks = info.find("internal_states");
  if (ranks == info.end() || !ranks->is_array()) return false;
  return std::any_of(ranks->begin(), ranks->end(), [](const Json& rank) {
    if (!rank.is_object()) return false;
    const auto memory = rank.find("memory_usage");
    return memory != rank.end() && memory->is_object() && Number(*memory, "token_capacity_swa") > 0;
  });
}

// 0: no number, or one that does not fit.
uint32_t ToNumber(std::string_view text) {
  const double value = std::strtod(std::string(text).c_str(), nullptr);
  return value > 0 && value < 4e9 ? static_cast<uint32_t>(value) : 0;
}

// Ranks from 0 to `count`.
void FillRanks(uint32_t count, EngineFacts* facts) {
  for (uint32_t rank = 0; rank < std::min(count, kEngineRanksMax); ++rank)
    facts->ranks.insert(rank);
}

// The metrics of one rank, gathered from several lines.
struct RankMetrics {
  double running = 0;
  double waiting = 0;
  double used_share = 0;
  double blocks = 0;
};

// Asks vLLM where its events are, once for each start: engines from before that endpoint answer
// 404, which stands in their logs. An earlier answer holds while start and version are the same; if
// the engine says no start, only an answer without sources does.
void AskForSources(const Asked& engine, const EngineFacts* before, EngineFacts* facts) {
  const bool is_known = before != nullptr && before->asked_sources &&
                        before->start == facts->start && before->version == facts->version &&
                        (!facts->start.empty() || !before->kv_sources.has_value());
  if (is_known) {
    facts->asked_sources = true;
    facts->kv_sources = before->kv_sources;
    facts->kv_events = before->kv_events;
    facts->kv_replay = before->kv_replay;
    return;
  }
  absl::StatusOr<KvEventSources> sources =
      AskKvEventSources(engine.url, engine.timeout, engine.authorization);
  facts->asked_sources = !absl::IsUnavailable(sources.status());
  if (!sources.ok()) return;
  facts->kv_sources = *std::move(sources);
  facts->kv_events = !facts->kv_sources->empty();
  facts->kv_replay =
      std::any_of(facts->kv_sources->begin(), facts->kv_sources->end(),
                  [](const auto& source) { return !source.second.replay_endpoint.empty(); });
}

}  // namespace

std::string EngineFacts::Title() const {
  if (kind.empty()) return "engine";
  return version.empty() ? kind : kind + " " + version;
}

absl::StatusOr<std::vector<ServedModel>> ReadModels(std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("data") || !json["data"].is_array())
    return absl::InvalidArgumentError("the answer of /v1/models is no list of models");
  std::vector<ServedModel> models;
  for (const Json& entry : json["data"]) {
    if (!entry.is_object()) continue;
    std::string id = Text(entry, "id");
    std::string parent = Text(entry, "parent");
    if (id.empty() || std::max(id.size(), parent.size()) > kModelIdBytesMax) continue;
    models.push_back({.id = std::move(id),
                      .root = Text(entry, "root"),
                      .parent = std::move(parent),
                      .owned_by = Text(entry, "owned_by")});
  }
  // The engine's own come before adapters.
  std::stable_partition(models.begin(), models.end(),
                        [](const ServedModel& model) { return model.parent.empty(); });
  if (models.empty()) return absl::InvalidArgumentError("/v1/models lists no model");
  return models;
}

// vLLM 0.33.0: entrypoints/serve/engine/protocol.py, ModelCard; SGLang 0.5.23:
// entrypoints/openai/protocol.py, ModelCard.
std::string KindOf(const std::vector<ServedModel>& models) {
  const std::string& owner = models.front().owned_by;
  if (owner == "vllm") return kVllm;
  return owner == "sglang" ? kSglang : "";
}

std::string ReadVersion(std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? Text(json, "version") : "";
}

// An object without any of SGLang's three sizes is of another server, and says nothing.
void ReadServerInfo(std::string_view body, EngineFacts* facts) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  if (!json.contains("dp_size") && !json.contains("page_size") && !json.contains("tp_size")) return;
  facts->kind = kSglang;
  facts->version = Text(json, "version");
  FillRanks(Number(json, "dp_size"), facts);
  facts->block_size = Number(json, "page_size");
  // How long the start took, to the microsecond: as good as an id of the start.
  if (const auto start = json.find("startup_time"); start != json.end() && start->is_number())
    facts->start = start->dump();
  facts->hybrid = IsHybrid(json);
  facts->reasoning_parser = Text(json, "reasoning_parser");
  facts->tool_call_parser = Text(json, "tool_call_parser");
  if (const auto off = json.find("disable_radix_cache"); off != json.end() && off->is_boolean())
    facts->prefix_caching = !off->get<bool>();
  // SGLang 0.5.23, scheduler_components/kv_events_publisher.py: of the ranks on this node.
  if (const auto said = json.find("kv_event_sources"); said != json.end() && said->is_array()) {
    KvEventSources& sources = facts->kv_sources.emplace();
    for (const Json& one : *said)
      if (one.is_object() && one.contains("dp_rank"))
        AddKvEventSource(Number(one, "dp_rank"), one, &sources);
  }
  const auto events = json.find("kv_events_config");
  if (events == json.end()) return;
  const std::string config = Text(json, "kv_events_config");
  const Json said = Json::parse(config, nullptr, /*allow_exceptions=*/false);
  facts->kv_events = said.is_object() && Text(said, "publisher") == "zmq";
  facts->kv_replay = *facts->kv_events && !Text(said, "replay_endpoint").empty();
}

// Prometheus text, line by line, without a parser of the format:
//   1. `process_start_time_seconds` tells one start from another.
//   2. Lines of vLLM (`vllm:`) and SGLang (`sglang:`) go to the rank that their label names. Counts
//      of a rank are summed over its lines (models, for example); shares are taken as they are.
//   3. Lines without a rank are the whole engine's: they count only if no line names one.
//   4. Blocks in use are the pool's size times the share in use; without a size both are 0, which
//      means not known.
void ReadMetrics(std::string_view text, EngineFacts* facts) {
  std::map<uint32_t, RankMetrics> ranks;
  RankMetrics of_no_rank;
  bool unranked = false;  // some line names no rank
  double blocks = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    // A server of one process has it; where there are several, prometheus_client leaves it out.
    constexpr std::string_view kStart = "process_start_time_seconds ";
    if (line.starts_with(kStart)) facts->start = line.substr(kStart.size());
    const bool vllm = line.starts_with("vllm:");
    if (!vllm && !line.starts_with("sglang:")) continue;
    const size_t brace = line.find('{');
    const size_t space = line.rfind(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, std::min(brace, space));
    const std::string_view labels =
        brace == std::string_view::npos ? "" : line.substr(brace, line.rfind('}') - brace);
    const double value = std::strtod(std::string(line.substr(space + 1)).c_str(), nullptr);
    const std::optional<std::string_view> rank = LabelOf(labels, vllm ? "engine" : "dp_rank");
    if (facts->kind.empty()) facts->kind = vllm ? kVllm : kSglang;
    const std::string_view what = name.substr(name.find(':') + 1);
    const uint32_t number = rank.has_value() ? ToNumber(*rank) : 0;
    if (number >= kEngineRanksMax) continue;
    RankMetrics& of = rank.has_value() ? ranks[number] : of_no_rank;
    unranked = unranked || !rank.has_value();
    if (what == "num_requests_running" || what == "num_running_reqs") {
      of.running += value;
    } else if (what == "num_requests_waiting" || what == "num_queue_reqs") {
      of.waiting += value;
    } else if (what == "kv_cache_usage_perc" || what == "gpu_cache_usage_perc" ||
               what == "token_usage") {
      of.used_share = value;
    } else if (what == "prompt_tokens_total") {
      facts->prompt_tokens += static_cast<uint64_t>(std::clamp(value, 0.0, 1e18));
    } else if (what == "cache_config_info") {
      if (const auto size = LabelOf(labels, "block_size")) facts->block_size = ToNumber(*size);
      if (const auto caching = LabelOf(labels, "enable_prefix_caching"))
        facts->prefix_caching = *caching == "True" || *caching == "true";
      if (const auto count = LabelOf(labels, "num_gpu_blocks"))
        blocks = of.blocks = ToNumber(*count);
    }
  }
  // Lines without a rank count only where no line names one; beside named ranks they are the whole
  // engine's.
  if (ranks.empty() && unranked) ranks[0] = of_no_rank;
  for (const auto& [rank, metrics] : ranks) {
    const double total = metrics.blocks > 0 ? metrics.blocks : blocks;
    const double used = total * std::clamp(metrics.used_share, 0.0, 1.0);
    facts->loads[rank] = {.running_requests = static_cast<uint32_t>(std::max(metrics.running, 0.0)),
                          .waiting_requests = static_cast<uint32_t>(std::max(metrics.waiting, 0.0)),
                          .used_blocks = static_cast<uint64_t>(used),
                          .free_blocks = static_cast<uint64_t>(total - used)};
  }
  if (!facts->ranks.empty() || facts->loads.empty()) return;
  // vLLM has lines of each rank from its start; SGLang's ranks are all there, and begin to speak
  // one after the other.
  if (facts->kind == kVllm) {
    for (const auto& [rank, load] : facts->loads) facts->ranks.insert(rank);
  } else {
    FillRanks(facts->loads.rbegin()->first + 1, facts);
  }
}

// Only `/v1/models` has to answer. The kind is taken from the first that says it: SGLang's server
// info, the names of metrics, `owned_by`. An engine that is not SGLang is asked `/version`, and
// only vLLM where its events are.
absl::StatusOr<EngineFacts> ProbeEngine(const std::string& url, Duration timeout,
                                        const std::string& authorization,
                                        const EngineFacts* before) {
  const Asked engine{.url = url, .timeout = timeout, .authorization = authorization};
  const absl::StatusOr<Answer> models = Get(engine, "/v1/models");
  if (!models.ok()) return absl::UnavailableError(std::string(models.status().message()));
  if (models->status == 401 || models->status == 403) {
    return absl::PermissionDeniedError(absl::StrCat(
        "GET /v1/models answered ", models->status,
        authorization.empty() ? ": it was started with an API key (--api-key); put the key into a "
                                "file of mode 0640 and name that by --engine_api_key_file"
                              : ": it refuses the key in the file of --engine_api_key_file; "
                                "expected the one that it was started with (--api-key)"));
  }
  if (models->status != 200) {
    return absl::FailedPreconditionError(absl::StrCat("GET /v1/models answered ", models->status,
                                                      "; expected 200 with a list of models"));
  }
  absl::StatusOr<std::vector<ServedModel>> read = ReadModels(models->body);
  if (!read.ok()) return absl::FailedPreconditionError(std::string(read.status().message()));
  EngineFacts facts{.models = *std::move(read)};
  for (const char* path : {"/server_info", "/get_server_info"}) {
    if (!facts.kind.empty()) break;
    const absl::StatusOr<Answer> info = Get(engine, path);
    if (info.ok() && info->status == 200) ReadServerInfo(info->body, &facts);
  }
  const absl::StatusOr<Answer> metrics = Get(engine, "/metrics");
  if (metrics.ok() && metrics->status == 200) ReadMetrics(metrics->body, &facts);
  if (facts.kind.empty()) facts.kind = KindOf(facts.models);
  if (facts.kind != kSglang) {
    const absl::StatusOr<Answer> version = Get(engine, "/version");
    if (version.ok() && version->status == 200) facts.version = ReadVersion(version->body);
  }
  if (facts.kind == kVllm) AskForSources(engine, before, &facts);
  return facts;
}

}  // namespace kvatlas
