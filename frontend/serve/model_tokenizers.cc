// One `Loaded` per model id, made at first sight and never removed. Loading holds the model's own
// lock, so other models tokenize meanwhile; `ready_` has what can be used without that lock.

#include "frontend/serve/model_tokenizers.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace kvatlas {
namespace {

namespace fs = std::filesystem;

// Files that `ModelRegistry` can read.
bool HasTokenizer(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "tokenizer.json", ignored) ||
         fs::exists(folder / "tokenizer.model", ignored);
}

// The newest revision of a model in a hub, as its refs/main says; empty: it is not there. Ids come
// from engines, so one that could lead out of the hub is none.
fs::path InHub(const std::string& hub, const std::string& id) {
  if (hub.empty() || id.empty() || id.front() == '/' || id.find("..") != std::string::npos)
    return {};
  const fs::path model =
      fs::path(hub) / absl::StrCat("models--", absl::StrReplaceAll(id, {{"/", "--"}}));
  std::ifstream file(model / "refs" / "main");
  std::string revision;
  std::getline(file, revision);
  const std::string name(absl::StripAsciiWhitespace(revision));
  if (name.empty()) return {};
  const fs::path snapshot = model / "snapshots" / name;
  return HasTokenizer(snapshot) ? snapshot : fs::path();
}

// Words for a model whose prompts the engine tokenizes itself.
constexpr char kEngines[] = "its own /tokenize";

}  // namespace

// In the order in which Hugging Face's own libraries look.
std::string DefaultHub() {
  std::error_code ignored;
  std::vector<fs::path> candidates;
  if (const char* hub = std::getenv("HF_HUB_CACHE")) candidates.emplace_back(hub);
  if (const char* home = std::getenv("HF_HOME")) candidates.push_back(fs::path(home) / "hub");
  if (const char* home = std::getenv("HOME"))
    candidates.push_back(fs::path(home) / ".cache/huggingface/hub");
  for (const fs::path& candidate : candidates)
    if (fs::is_directory(candidate, ignored)) return candidate.string();
  return "";
}

ModelTokenizers::ModelTokenizers(std::unique_ptr<ModelRegistry> given, std::string hub)
    : given_(std::move(given)), of_given_(given_.get(), {}), hub_(std::move(hub)) {}

// The engine's own folder comes before the cache: it may be another revision. Empty: there are no
// files.
std::string ModelTokenizers::FolderOf(const ServedModel& model) const {
  if (!model.root.empty() && model.root.front() == '/' && HasTokenizer(model.root))
    return model.root;
  for (const std::string& id : {model.root, model.id}) {
    if (const fs::path found = InHub(hub_, id); !found.empty()) return found.string();
  }
  return "";
}

// Two probe threads may ask about one model: the second waits for the first one's load.
std::string ModelTokenizers::Describe(const ServedModel& model) {
  if (given_ != nullptr && given_->Find(model.id).ok()) return "--models";
  Loaded* loaded = nullptr;
  {
    MutexLock lock(&mutex_);
    std::unique_ptr<Loaded>& of_model = loaded_[model.id];
    if (of_model == nullptr) of_model = std::make_unique<Loaded>();
    loaded = of_model.get();
  }
  MutexLock lock(&loaded->loading);
  if (loaded->words.empty()) Load(model, loaded);
  return loaded->words;
}

// Once for each model, also when it fails: `words` then says why, and prompts are left to other
// ways.
void ModelTokenizers::Load(const ServedModel& model, Loaded* loaded) {
  loaded->words = kEngines;
  const std::string folder = FolderOf(model);
  if (folder.empty()) return;
  ModelOptions options{.name = model.id};
  options.text.path = folder;
  auto registry = ModelRegistry::Create({std::move(options)});
  if (!registry.ok()) {
    loaded->words = absl::StrCat(kEngines, " (", folder, ": ", registry.status().message(), ")");
    return;
  }
  loaded->words = folder;
  loaded->registry = *std::move(registry);
  loaded->tokenizer =
      std::make_unique<LocalTokenizer>(loaded->registry.get(), LocalTokenizerOptions());
  MutexLock lock(&mutex_);
  ready_.emplace(model.id, loaded->tokenizer.get());
}

// A model of --models comes before the same one found on this machine.
void ModelTokenizers::Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                               Callback callback) {
  if (given_ != nullptr && given_->Find(model).ok())
    return of_given_.Tokenize(model, prompt, deadline, std::move(callback));
  LocalTokenizer* tokenizer = nullptr;
  {
    MutexLock lock(&mutex_);
    const auto found = ready_.find(model);
    if (found != ready_.end()) tokenizer = found->second;
  }
  if (tokenizer == nullptr)
    return callback(
        absl::NotFoundError("no tokenizer files of model '" + model + "' on this machine"));
  tokenizer->Tokenize(model, prompt, deadline, std::move(callback));
}

}  // namespace kvatlas
