// Asks an engine over HTTP about itself: its models, kind, version, data-parallel ranks and load.
//
//   GET /v1/models                       models, adapters among them, and who made the engine; it has to answer
//   GET /version, /server_info, /get_server_info   vLLM; SGLang
//   GET /metrics                         requests that run and wait, use of the cache, per rank; block size and blocks of the pool
//   GET /kv_event_sources                where each rank of vLLM publishes its events; SGLang says it in /server_info
//
// *Truth*: what an engine does not say is 0 or empty. *Threads*: functions without state. *Cost*:
// three short requests, one after the other, each within `timeout`; the last one above once for
// each start of an engine.
// *Bounds*: ranks below `kEngineRanksMax`.

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_PROBE_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/kv_events/kv_event_sources.h"

namespace kvatlas {

inline constexpr size_t kModelIdBytesMax = 4096;  // models with longer ones are not seen
inline constexpr char kVllm[] = "vLLM";
inline constexpr char kSglang[] = "SGLang";

struct ServedModel {
  std::string id;
  std::string root = {};    // where its files are: an id of Hugging Face, or a path
  std::string parent = {};  // of an adapter: the id of its base model
  // "vllm" and "sglang" as these engines have it; others say what they like.
  std::string owned_by = {};

  friend bool operator==(const ServedModel&, const ServedModel&) = default;
};

struct EngineFacts {
  std::string kind = {};  // `kVllm`, `kSglang`, or empty
  std::string version = {};
  // Another one than before: it was restarted. Empty: not said.
  std::string start = {};
  std::vector<ServedModel> models = {};  // the first one is the engine's own
  // Data-parallel ranks behind this url; empty: not said. Not from 0 where the engine serves a part
  // of a deployment's (`EngineRegistration::first_rank`).
  std::set<uint32_t> ranks = {};
  uint32_t block_size = 0;  // 0: not said
  // The model has windows or recurrent states beside full attention. SGLang says so; of vLLM the
  // events do.
  bool hybrid = false;
  std::map<uint32_t, Load> loads = {};  // by rank
  // How it was started; nothing: not said. vLLM says the first in its metrics, SGLang all three in
  // its server info.
  std::optional<bool> prefix_caching = {};
  std::optional<bool> kv_events = {};  // published
  std::optional<bool> kv_replay = {};  // and those that were missed can be asked for
  // By rank; nothing: not said. Empty: it publishes none.
  std::optional<KvEventSources> kv_sources = {};
  bool asked_sources = false;  // vLLM was asked for them, and answered something
  uint64_t prompt_tokens = 0;  // since the start, all ranks
  // SGLang's --reasoning-parser and --tool-call-parser; empty: started without.
  std::string reasoning_parser = {};
  std::string tool_call_parser = {};

  // "vLLM 0.33.0", or "engine" when it does not say what it is.
  std::string Title() const;
};

// UNAVAILABLE: no answer, with the reason. PERMISSION_DENIED: it wants an API key, or another one.
// FAILED_PRECONDITION: an answer that no such engine gives, in words. `authorization`: of the
// requests, such as "Bearer KEY"; empty: none. `before`: the engine's last answer, or null; while
// its start is the same, its sources of events are.
absl::StatusOr<EngineFacts> ProbeEngine(const std::string& url, Duration timeout,
                                        const std::string& authorization = "",
                                        const EngineFacts* before = nullptr);

// The parts of it. INVALID_ARGUMENT: not a list of models.
absl::StatusOr<std::vector<ServedModel>> ReadModels(std::string_view body);
// `kVllm`, `kSglang`, or empty: it does not say.
std::string KindOf(const std::vector<ServedModel>& models);
void ReadServerInfo(std::string_view body, EngineFacts* facts);  // of SGLang
std::string ReadVersion(std::string_view body);                  // of vLLM; empty: it does not say
void ReadMetrics(std::string_view text, EngineFacts* facts);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_PROBE_H_
