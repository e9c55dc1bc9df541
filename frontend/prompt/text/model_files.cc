// Looks for files in the order of AutoTokenizer of `transformers`. A file that may be missing is
// read as null or empty; a file that is there but not of its format fails the load, with its path.

#include "frontend/prompt/text/model_files.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvatlas {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uintmax_t kFileBytesMax = uintmax_t{1} << 30;
// The first one that is there is the tokenizer.
constexpr std::array<const char*, 2> kTokenizers = {"tokenizer.json", "tokenizer.model"};

// Null where there is no such file.
absl::StatusOr<Json> ReadJson(const fs::path& path) {
  absl::StatusOr<std::string> text = ReadFile(path.string());
  if (absl::IsNotFound(text.status())) return Json();
  if (!text.ok()) return text.status();
  Json read = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (read.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not JSON"));
  }
  return read;
}

// A path to a file is taken whatever its name is.
absl::StatusOr<fs::path> FindTokenizer(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (fs::is_regular_file(path, error)) return path;
    return absl::NotFoundError(absl::StrCat(path.string(), ": no such folder or file"));
  }
  for (const char* name : kTokenizers) {
    if (fs::is_regular_file(path / name, error)) return path / name;
  }
  return absl::NotFoundError(
      absl::StrCat(path.string(), ": neither tokenizer.json nor tokenizer.model is there"));
}

// Reads `chat_template` of a configuration: a template, an object of templates by name, or a list
// of {"name", "template"}. A template without a name is "default".
absl::Status TakeTemplates(const Json& said, const fs::path& path,
                           std::map<std::string, std::string>& templates) {
  if (said.is_string()) {
    templates["default"] = said.get<std::string>();
    return absl::OkStatus();
  }
  if (said.is_null()) return absl::OkStatus();
  if (said.is_object()) {
    for (const auto& [name, source] : said.items()) {
      if (source.is_string()) templates[name] = source.get<std::string>();
    }
    return absl::OkStatus();
  }
  if (!said.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": chat_template is no template"));
  }
  for (const Json& entry : said) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template") ||
        !entry["name"].is_string() || !entry["template"].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path.string(), ": a chat template without name or template"));
    }
    templates[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
  return absl::OkStatus();
}

// The first source that has templates counts alone:
// 1. chat_template.jinja and additional_chat_templates/*.jinja,
// 2. chat_template.json,
// 3. `chat_template` of tokenizer_config.json.
absl::Status ReadTemplates(const fs::path& folder, const Json& config,
                           std::map<std::string, std::string>& templates) {
  std::map<std::string, std::string> files;
  absl::StatusOr<std::string> own = ReadFile((folder / "chat_template.jinja").string());
  if (own.ok()) files["default"] = *std::move(own);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates", error)) {
    if (entry.path().extension() != ".jinja") continue;
    absl::StatusOr<std::string> more = ReadFile(entry.path().string());
    if (!more.ok()) return more.status();
    files[entry.path().stem().string()] = *std::move(more);
  }
  if (!files.empty()) {
    templates = std::move(files);
    return absl::OkStatus();
  }
  const absl::StatusOr<Json> older = ReadJson(folder / "chat_template.json");
  if (!older.ok()) return older.status();
  if (older->is_object() && older->contains("chat_template")) {
    return TakeTemplates((*older)["chat_template"], folder / "chat_template.json", templates);
  }
  if (config.is_object() && config.contains("chat_template")) {
    return TakeTemplates(config["chat_template"], folder / "tokenizer_config.json", templates);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  if (bytes > kFileBytesMax) return absl::InvalidArgumentError(absl::StrCat(path, ": too big"));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return text;
}

// Chains the hash over names and texts, in the order of the names.
std::string HashOf(const std::map<std::string, std::string>& texts) {
  uint64_t hash = 0;
  for (const auto& [name, text] : texts) hash = Xxh3(text, Xxh3(name, hash));
  return absl::StrFormat("%016x", hash);
}

// `tokenizer_hash` covers the tokenizer, its configuration without the templates, special tokens,
// the type of the model and the rules; not `has_mistral_files` and `context_tokens_max`. Templates
// have a hash of their own.
absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& path, TokenizerRules rules) {
  const absl::StatusOr<fs::path> found = FindTokenizer(path);
  if (!found.ok()) return found.status();
  absl::StatusOr<std::string> tokenizer = ReadFile(found->string());
  if (!tokenizer.ok()) return tokenizer.status();
  const fs::path folder = found->parent_path();
  absl::StatusOr<Json> config = ReadJson(folder / "tokenizer_config.json");
  if (!config.ok()) return config.status();
  absl::StatusOr<Json> specials = ReadJson(folder / "special_tokens_map.json");
  if (!specials.ok()) return specials.status();
  const absl::StatusOr<Json> model = ReadJson(folder / "config.json");
  if (!model.ok()) return model.status();

  ModelFiles files;
  files.path = found->string();
  files.tokenizer.rules = rules;
  if (absl::Status read = ReadTemplates(folder, *config, files.chat_templates); !read.ok())
    return read;
  if (config->is_object()) config->erase("chat_template");
  if (model->is_object() && model->contains("model_type") && (*model)["model_type"].is_string()) {
    files.tokenizer.model_type = (*model)["model_type"].get<std::string>();
  }
  if (model->is_object()) {
    const auto context = model->find("max_position_embeddings");
    if (context != model->end() && context->is_number_unsigned())
      files.context_tokens_max = context->get<size_t>();
  }
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    files.has_mistral_files |= name == "tekken.json" || name.starts_with("tokenizer.model.v");
  }
  files.tokenizer_hash =
      HashOf({{"tokenizer", *tokenizer},
              {"config", config->dump()},
              {"special tokens", specials->dump()},
              {"model type", files.tokenizer.model_type},
              {"rules", rules == TokenizerRules::kFile ? "file" : "transformers"}});
  files.tokenizer.tokenizer_config = *std::move(config);
  files.tokenizer.special_tokens_map = *std::move(specials);
  (found->extension() == ".model" ? files.sentencepiece_model : files.tokenizer.tokenizer_json) =
      *std::move(tokenizer);
  return files;
}

}  // namespace kvatlas
