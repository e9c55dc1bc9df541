// `ParseModels` reads a flag or a file into options; `Reload` turns options into loaded models and
// is also how `Create` loads for the first time. `models_` has an entry for each name and each
// alias; aliases share the object of their model.

#include "frontend/prompt/text/model_registry.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "frontend/prompt/text/model_files.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// Names of models in an error.
constexpr size_t kNamesInError = 20;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// NAME=PATH,…: a path that is the name of an earlier model makes NAME an alias of it. A path may
// hold "=", a name may not.
absl::StatusOr<std::vector<ModelOptions>> ParsePairs(const std::string& flag) {
  std::vector<ModelOptions> models;
  for (const absl::string_view pair : absl::StrSplit(flag, ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    const auto& [name, path] = parts;
    if (name.empty() || path.empty()) return Invalid("models: \"", pair, "\" is not NAME=PATH");
    const auto base = std::find_if(models.begin(), models.end(),
                                   [&](const ModelOptions& model) { return model.name == path; });
    if (base != models.end()) {
      base->aliases.push_back(name);
    } else {
      models.push_back({.name = name, .text = {.path = path}});
    }
  }
  return models;
}

absl::StatusOr<TokenizerRules> ParseRules(const std::string& rules) {
  if (rules == "transformers") return TokenizerRules::kTransformers;
  if (rules == "file") return TokenizerRules::kFile;
  return Invalid("rules are \"transformers\" or \"file\", not \"", rules, "\"");
}

// One model of a file. An unknown field is refused rather than ignored: it is a typing error. The
// JSON library throws where a field has another type; the exception ends here.
absl::StatusOr<ModelOptions> ParseModel(const Json& said) try {
  static const std::set<std::string> kFields = {"name",
                                                "path",
                                                "aliases",
                                                "rules",
                                                "chat_template",
                                                "template_kwargs",
                                                "trust_request_templates",
                                                "cache_bytes",
                                                "prompt_bytes_max"};
  if (!said.is_object()) return Invalid("models: a model is no object");
  for (const auto& [field, value] : said.items()) {
    if (!kFields.contains(field)) return Invalid("models: unknown field \"", field, "\"");
  }
  ModelOptions model;
  model.name = said.value("name", "");
  model.text.path = said.value("path", "");
  if (model.name.empty() || model.text.path.empty()) {
    return Invalid("models: a model without name or path");
  }
  model.aliases = said.value("aliases", std::vector<std::string>());
  const absl::StatusOr<TokenizerRules> rules = ParseRules(said.value("rules", "transformers"));
  if (!rules.ok()) return Invalid("models: ", model.name, ": ", rules.status().message());
  model.text.rules = *rules;
  model.text.chat_template_path = said.value("chat_template", "");
  model.text.template_kwargs = said.value("template_kwargs", Json());
  model.text.trust_request_templates = said.value("trust_request_templates", false);
  model.text.cache_bytes = said.value("cache_bytes", model.text.cache_bytes);
  model.text.prompt_bytes_max = said.value("prompt_bytes_max", model.text.prompt_bytes_max);
  return model;
} catch (const Json::exception& error) {
  return Invalid("models: ", error.what());
}

absl::StatusOr<std::vector<ModelOptions>> ParseFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Invalid("models: ", text.status().message());
  const Json said = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!said.is_object() || !said.contains("models") || !said["models"].is_array()) {
    return Invalid("models: ", path, " is no object with an array \"models\"");
  }
  std::vector<ModelOptions> models;
  for (const Json& one : said["models"]) {
    absl::StatusOr<ModelOptions> model = ParseModel(one);
    if (!model.ok()) return model.status();
    models.push_back(*std::move(model));
  }
  return models;
}

}  // namespace

// Names and aliases share one space, as clients use both in the same field.
absl::StatusOr<std::vector<ModelOptions>> ParseModels(std::string_view flag) {
  absl::StatusOr<std::vector<ModelOptions>> models = flag.starts_with('@')
                                                         ? ParseFile(std::string(flag.substr(1)))
                                                         : ParsePairs(std::string(flag));
  if (!models.ok()) return models.status();
  if (models->size() > kModelsMax) return Invalid("models: more than ", kModelsMax);
  std::set<std::string> names;
  for (const ModelOptions& model : *models) {
    if (!names.insert(model.name).second) return Invalid("models: ", model.name, " is there twice");
    for (const std::string& alias : model.aliases) {
      if (!names.insert(alias).second) return Invalid("models: ", alias, " is there twice");
    }
  }
  return models;
}

absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelRegistry::FromFlag(std::string_view flag) {
  if (flag.empty()) return nullptr;
  absl::StatusOr<std::vector<ModelOptions>> options = ParseModels(flag);
  if (!options.ok()) return options.status();
  return Create(*std::move(options));
}

// Fails with the first model that cannot be loaded: at the start a missing tokenizer is an error of
// the operator.
absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelRegistry::Create(
    std::vector<ModelOptions> options) {
  std::unique_ptr<ModelRegistry> made(new ModelRegistry(std::move(options)));
  if (absl::Status loaded = made->Reload(); !loaded.ok()) return loaded;
  return made;
}

absl::StatusOr<std::shared_ptr<TextModel>> ModelRegistry::Find(std::string_view name) const {
  MutexLock lock(&mutex_);
  const auto found = models_.find(name);
  if (found != models_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [model, text] : models_) {
    if (known.size() < kNamesInError) known.push_back(model);
  }
  return absl::NotFoundError(absl::StrCat(
      "no tokenizer for model \"", std::string(name),
      "\"; known: ", known.empty() ? "none" : absl::StrJoin(known, ", "),
      models_.size() > known.size() ? absl::StrCat(" and ", models_.size() - known.size(), " more")
                                    : ""));
}

// Loads one model after the other without the lock, as each takes seconds; requests go on with the
// earlier ones. A model whose files say what they said keeps its object, and with it the memory of
// prefixes. Requests hold the object that they found, so a
// replaced one ends with its last request.
absl::Status ModelRegistry::Reload() {
  absl::Status first_error;
  for (const ModelOptions& options : options_) {
    absl::StatusOr<std::shared_ptr<TextModel>> loaded = TextModel::Load(options.text);
    if (!loaded.ok()) {
      if (first_error.ok()) {
        first_error =
            absl::Status(loaded.status().code(),
                         absl::StrCat("model ", options.name, ": ", loaded.status().message()));
      }
      continue;
    }
    MutexLock lock(&mutex_);
    std::shared_ptr<TextModel>& there = models_[options.name];
    if (there == nullptr || !there->ReadsAs(**loaded)) there = *std::move(loaded);
    const std::shared_ptr<TextModel> model = there;
    for (const std::string& alias : options.aliases) models_[alias] = model;
  }
  return first_error;
}

TokenCache::Stats ModelRegistry::cache_stats() const {
  TokenCache::Stats sum;
  MutexLock lock(&mutex_);
  for (const ModelOptions& options : options_) {
    const auto found = models_.find(options.name);
    if (found == models_.end()) continue;
    const TokenCache::Stats stats = found->second->cache_stats();
    sum.bytes += stats.bytes;
    sum.chunks += stats.chunks;
    sum.known_bytes += stats.known_bytes;
    sum.asked_bytes += stats.asked_bytes;
    sum.evicted_chunks += stats.evicted_chunks;
  }
  return sum;
}

Json ModelRegistry::Describe() const {
  Json all = Json::array();
  MutexLock lock(&mutex_);
  for (const ModelOptions& options : options_) {
    const auto found = models_.find(options.name);
    if (found == models_.end()) continue;
    const TextModelFacts& facts = found->second->facts();
    const TokenCache::Stats cache = found->second->cache_stats();
    all.push_back({{"name", options.name},
                   {"aliases", options.aliases},
                   {"kind", facts.kind},
                   {"path", facts.path},
                   {"rules", options.text.rules == TokenizerRules::kFile ? "file" : "transformers"},
                   {"tokenizer_hash", facts.tokenizer_hash},
                   {"template_hash", facts.template_hash},
                   {"vocabulary_size", facts.vocabulary_size},
                   {"tokens_before", facts.tokens_before},
                   {"tokens_after", facts.tokens_after},
                   {"cache_bytes", cache.bytes},
                   {"known_bytes", cache.known_bytes},
                   {"asked_bytes", cache.asked_bytes}});
  }
  return all;
}

}  // namespace kvatlas
