// How the engines of a model read requests. vLLM and SGLang may make different tokens of one chat,
// and so may two SGLang engines that were started with different parsers: the kind and the options
// of an engine decide which tokens its workers are asked by.
//
// *Place*: filled by `EngineNames` (kvatlas-frontend) or by the probes of `kvatlas serve`; read for
// each prompt.
// *Truth*: what engines said of themselves last: `owned_by` of their models, SGLang's server info.
// An engine that does not say reads as --engine_kind has it, or, under `auto`, as most of the
// model's engines do; where none says, as vLLM.
// *Threads*: any. *Cost*: a look-up under a lock.
//
// Example:
//   EngineConventions conventions;
//   conventions.Set({{.model = "m", .authority = "10.0.0.7:8000", .convention = Convention{.engine
//   = EngineKind::kSglang}}});
//   conventions.Of("m")->conventions.front();

#ifndef KVATLAS_FRONTEND_PROMPT_ENGINE_CONVENTIONS_H_
#define KVATLAS_FRONTEND_PROMPT_ENGINE_CONVENTIONS_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "frontend/engine_client/engine_probe.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr char kEngineKindFlag[] = "engine_kind";
inline constexpr char kEngineKindHelp[] =
    "as what engines read requests that do not say what they are; plain: by the chat template "
    "alone; auto: as most engines of the model, or else as vllm";

std::vector<std::string> EngineKindNames();
// The value of --engine_kind; nothing: auto. INVALID_ARGUMENT: another word.
absl::StatusOr<std::optional<Convention>> ParseEngineKind(const std::string& text);

// "vllm", "sglang", "sglang reasoning_parser=qwen3 tool_call_parser=qwen25".
std::string ToString(const Convention& convention);

// Nothing: the engine does not say what it is.
std::optional<Convention> ConventionOf(const EngineFacts& facts);

// Whether the engine runs the ids that stand in the `kv_transfer_params` of a chat and makes none
// of its own: vLLM from 0.33 on (renderers/online_renderer.py, `_reused_prompt_token_ids`).
bool TakesTokenIds(const EngineFacts& facts);

// Immutable.
struct ModelConventions {
  using Ptr = std::shared_ptr<const ModelConventions>;

  std::vector<Convention> conventions;  // each once, that of most engines first; at least one
  absl::flat_hash_map<std::string, size_t> by_authority = {};  // HOST:PORT: its place above
  absl::flat_hash_set<std::string> takes_token_ids = {};       // HOST:PORT

  // The place in `conventions` of the engine at `url`; of an unknown one 0.
  size_t Of(const std::string& url) const;
  bool TakesTokenIds(const std::string& url) const;
};

class EngineConventions {
 public:
  struct Engine {
    std::string model;
    std::string authority;                      // `EngineUrl::authority`
    std::optional<Convention> convention = {};  // nothing: it does not say
    bool takes_token_ids = false;               // as `TakesTokenIds` says
  };

  // `otherwise`: the convention of engines that do not say; nothing: `auto`.
  explicit EngineConventions(std::optional<Convention> otherwise = std::nullopt);

  // Replaces all engines that are known.
  void Set(const std::vector<Engine>& engines);
  // Never null.
  ModelConventions::Ptr Of(const std::string& model) const;

 private:
  using Models = absl::flat_hash_map<std::string, ModelConventions::Ptr>;

  const std::optional<Convention> otherwise_;
  const ModelConventions::Ptr unknown_;  // of models without engines
  mutable Mutex mutex_;
  Models models_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_ENGINE_CONVENTIONS_H_
