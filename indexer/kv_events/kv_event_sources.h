// Where does each rank of an engine publish its events? vLLM's answer to GET /kv_event_sources, and
// the endpoints in it.
//
// *Threads*: pure functions; `AskKvEventSources` waits for the answer.

#ifndef KVATLAS_INDEXER_KV_EVENTS_KV_EVENT_SOURCES_H_
#define KVATLAS_INDEXER_KV_EVENTS_KV_EVENT_SOURCES_H_

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"

namespace kvatlas {

// vLLM has two bytes for one; no deployment has more than this.
inline constexpr uint32_t kEngineRanksMax = 4096;

// Where a rank publishes its events, as the engine says it: addresses of its own side, such as
// "tcp://*:5557".
struct KvEventSource {
  std::string endpoint;
  std::string replay_endpoint = {};  // empty: none
  std::string topic = {};

  friend bool operator==(const KvEventSource&, const KvEventSource&) = default;
};

using KvEventSources = std::map<uint32_t, KvEventSource>;  // by rank

// Adds what an engine says of one rank; without an endpoint it is left out, and so is a rank that
// none has.
void AddKvEventSource(uint32_t rank, const nlohmann::json& said, KvEventSources* sources);

// The sources in vLLM's answer; empty: it publishes none. Nothing: it is another text.
std::optional<KvEventSources> ReadKvEventSources(std::string_view body);

// The sources of the engine at `url`. UNAVAILABLE: no answer, or that of a server that is not
// ready. NOT_FOUND: it does not say, as engines from before vLLM 0.33, or wants another key.
// `authorization`: of the request, such as "Bearer KEY"; empty: none.
absl::StatusOr<KvEventSources> AskKvEventSources(const std::string& url, Duration timeout,
                                                 const std::string& authorization = "");

// The port of "tcp://HOST:PORT"; empty: it is none that another host can connect to.
std::string_view PortOfEndpoint(std::string_view endpoint);
// An engine's endpoint as it is reached at `host`: engines bind all addresses, or say loopback's
// where they did (SGLang). Empty: not by TCP.
std::string EndpointAt(const std::string& host, std::string_view endpoint);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_KV_EVENT_SOURCES_H_
