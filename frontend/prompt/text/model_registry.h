// The models that can be tokenized here, by their names. Loads their tokenizers from files, and
// again on `Reload`.
//
// *Place*: a frontend has one; LocalTokenizer asks it by the name in a request. Adapters (LoRA)
// have names of their own and their base model's tokenizer.
// *Threads*: all methods may be called from any. A model that was found stays usable while it is
// held, whatever is reloaded.
// *Bounds*: kModelsMax models, each within the bounds of its TextModelOptions.
//
// Example:
//   ASSIGN options = ParseModels("llama=/models/llama,llama-pirate=llama");
//   ASSIGN registry = ModelRegistry::Create(options);
//   ASSIGN model = registry->Find("llama-pirate");

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_MODEL_REGISTRY_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_MODEL_REGISTRY_H_

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/prompt/text/text_model.h"
#include "frontend/prompt/text/token_cache.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kModelsMax = 1024;

struct ModelOptions {
  std::string name = {};
  std::vector<std::string> aliases = {};  // further names, adapters among them
  TextModelOptions text = {};
};

// Reads a flag: `NAME=PATH,…`, where PATH is a folder or a file (TextModelOptions) or the name of a
// model before it, of which NAME becomes an alias. Or `@FILE`, a JSON object:
//
//   {"models": [{"name": "llama", "path": "/models/llama", "aliases": ["llama-pirate"], "rules":
//   "transformers",
//                "chat_template": "/etc/llama.jinja", "template_kwargs": {"enable_thinking": false},
//                "trust_request_templates": false, "cache_bytes": 67108864, "prompt_bytes_max": 67108864}]}
//
// where only name and path are required. INVALID_ARGUMENT: anything else, a name twice, more than
// kModelsMax.
absl::StatusOr<std::vector<ModelOptions>> ParseModels(std::string_view flag);

class ModelRegistry {
 public:
  // Loads all models. An error names the model that could not be loaded.
  static absl::StatusOr<std::unique_ptr<ModelRegistry>> Create(std::vector<ModelOptions> options);
  // Loads the models of a flag (`ParseModels`); null where it is empty.
  static absl::StatusOr<std::unique_ptr<ModelRegistry>> FromFlag(std::string_view flag);

  // NOT_FOUND: no such model; the message names those that are known.
  absl::StatusOr<std::shared_ptr<TextModel>> Find(std::string_view name) const;

  // Reads all files again. A model that reads prompts as before keeps its memory of prefixes. A
  // model that cannot be loaded stays as it was; the first such error is returned.
  absl::Status Reload();

  // The sums over all models.
  TokenCache::Stats cache_stats() const;

  // A description for people: an array with an object for each model.
  nlohmann::ordered_json Describe() const;

 private:
  using Models = std::map<std::string, std::shared_ptr<TextModel>, std::less<>>;

  explicit ModelRegistry(std::vector<ModelOptions> options) : options_(std::move(options)) {}

  const std::vector<ModelOptions> options_;
  mutable Mutex mutex_;
  Models models_ ABSL_GUARDED_BY(mutex_);  // by name and alias
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_MODEL_REGISTRY_H_
