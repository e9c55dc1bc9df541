// Sentences for people. Commands are complete, with the ports that the list expects, so that they
// can be pasted.

#include "frontend/serve/engine_status_text.h"

#include "absl/strings/str_cat.h"
#include "frontend/engine_client/engine_probe.h"

namespace kvatlas {

std::string Plural(uint64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// vLLM's form for engines of unknown kind too.
std::string EventsRemedy(const std::string& kind, const EngineSpec& spec) {
  const std::string events = spec.events.substr(spec.events.rfind(':') + 1);
  const std::string replay = spec.replay == "none" || spec.replay.empty()
                                 ? "5657"
                                 : spec.replay.substr(spec.replay.rfind(':') + 1);
  if (spec.dials_in()) {
    return "start it with --kv-events-config '{\"enable_kv_cache_events\": true, \"publisher\": "
           "\"zmq\", \"endpoint\": \"tcp://THIS_HOST:" +
           events + "\", \"topic\": \"kv@" + spec.pods().front() +
           "@MODEL\"}', and send it a prompt: its topic names it from its first event on";
  }
  if (kind == kSglang) {
    return "start it with --kv-events-config '{\"publisher\": \"zmq\", \"topic\": \"kv-events\", "
           "\"endpoint\": \"tcp://*:" +
           events + "\", \"replay_endpoint\": \"tcp://*:" + replay + "\"}'";
  }
  return "start it with --kv-events-config '{\"enable_kv_cache_events\": true, \"publisher\": "
         "\"zmq\", \"endpoint\": \"tcp://*:" +
         events + "\", \"replay_endpoint\": \"tcp://*:" + replay + "\"}'";
}

// A salt explains more than an adapter, so it is named first; without either the engine must have
// one of its own.
std::string NamespaceWords(const ServedNamespace& served) {
  const std::string of_adapter =
      served.lora_name.empty() ? "" : absl::StrCat(" for adapter ", served.lora_name);
  if (!served.cache_salt.empty()) {
    return absl::StrCat(
        "cache salt differs: none of its blocks was announced under the \"cache_salt\" of requests",
        of_adapter,
        " that it served; such requests go there by load alone; it needs a version whose KV events "
        "say the salt, and no salt of its own");
  }
  if (!served.lora_name.empty()) {
    return absl::StrCat(
        "adapter differs: none of its blocks was announced under adapter ", served.lora_name,
        " of requests that it served; such requests go there by load alone; it needs "
        "a version whose KV events say the adapter's name");
  }
  return "cache salt differs: its blocks are announced under a cache salt or an adapter that "
         "requests "
         "do not have; they go there by load alone; start it without one, or send the same "
         "\"cache_salt\" with each request";
}

}  // namespace kvatlas
