// Asks an engine's HTTP server where its ranks publish events. Values that are not understood are
// left out: a server of another engine answers something else.

#include "indexer/kv_events/kv_event_sources.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "indexer/net/http_fetch.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// A larger answer is refused.
constexpr size_t kBodyBytesMax = 1 << 20;

std::string Text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

void AddKvEventSource(uint32_t rank, const Json& said, KvEventSources* sources) {
  if (rank >= kEngineRanksMax || !said.is_object()) return;
  KvEventSource source = {.endpoint = Text(said, "endpoint"),
                          .replay_endpoint = Text(said, "replay_endpoint"),
                          .topic = Text(said, "topic")};
  if (!source.endpoint.empty()) (*sources)[rank] = std::move(source);
}

// vLLM 0.33, entrypoints/serve/instrumentator/basic.py: the publisher's configuration by rank, as
// bound; without events {}.
std::optional<KvEventSources> ReadKvEventSources(std::string_view body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  KvEventSources sources;
  for (const auto& [key, of_rank] : json.items()) {
    uint32_t rank = 0;
    if (absl::SimpleAtoi(key, &rank)) AddKvEventSource(rank, of_rank, &sources);
  }
  return sources;
}

// UNAVAILABLE: ask again, the server may be starting. NOT_FOUND: it answers, and not this question.
absl::StatusOr<KvEventSources> AskKvEventSources(const std::string& url, Duration timeout,
                                                 const std::string& authorization) {
  HttpFetch fetch({.connect_timeout = timeout,
                   .read_timeout = timeout,
                   .total_timeout = 2 * timeout,
                   .authorization = authorization});
  const absl::StatusOr<int> status = fetch.Get(url, "/kv_event_sources");
  if (!status.ok()) return absl::UnavailableError(std::string(status.status().message()));
  if (*status >= 500) return absl::UnavailableError(absl::StrCat("it answered ", *status));
  if (*status != 200) return absl::NotFoundError(absl::StrCat("it answered ", *status));
  const absl::StatusOr<std::string> body = fetch.ReadAll(kBodyBytesMax);
  if (!body.ok()) return absl::UnavailableError(std::string(body.status().message()));
  std::optional<KvEventSources> sources = ReadKvEventSources(*body);
  if (!sources.has_value()) return absl::NotFoundError("no object of ranks");
  return *std::move(sources);
}

// Empty where there is no port to connect to: "tcp://*:0" was not bound yet.
std::string_view PortOfEndpoint(std::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with("tcp://") || colon < 6) return "";
  const std::string_view port = endpoint.substr(colon + 1);
  const bool is_number = !port.empty() && port.size() <= 5 &&
                         std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  return is_number && port != "0" ? port : "";
}

std::string EndpointAt(const std::string& host, std::string_view endpoint) {
  const std::string_view port = PortOfEndpoint(endpoint);
  if (port.empty()) return "";
  const bool is_v6 = host.find(':') != std::string::npos;
  return absl::StrCat("tcp://", is_v6 ? "[" : "", host, is_v6 ? "]:" : ":",
                      absl::string_view(port.data(), port.size()));
}

}  // namespace kvatlas
