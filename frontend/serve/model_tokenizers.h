// Tokenizers of models that engines turn out to serve: from files on this machine, as soon as a
// model is seen.
//
// A model's files are looked for, in this order: what --models says, its `root` as a folder, its
// `root` or id in the cache of Hugging Face (`HUB/models--ORG--NAME/snapshots/REVISION`).
//
// *Truth*: the files are taken to be the engine's. Where there are none a prompt is NOT_FOUND here,
// and another way is tried.
// *Threads*: any.

#ifndef KVATLAS_FRONTEND_SERVE_MODEL_TOKENIZERS_H_
#define KVATLAS_FRONTEND_SERVE_MODEL_TOKENIZERS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "frontend/engine_client/engine_probe.h"
#include "frontend/prompt/text/local_tokenizer.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

class ModelTokenizers : public PromptTokenizer {
 public:
  // `given`: of --models, loaded; may be null. `hub`: a folder; empty: none.
  ModelTokenizers(std::unique_ptr<ModelRegistry> given, std::string hub);

  // Loads the model's files the first time, while others tokenize; says which they are, or "its own
  // /tokenize" where there are none.
  std::string Describe(const ServedModel& model);

  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;

 private:
  struct Loaded {
    Mutex loading;  // before `mutex_`
    std::string words ABSL_GUARDED_BY(loading);
    std::unique_ptr<ModelRegistry> registry ABSL_GUARDED_BY(loading);
    std::unique_ptr<LocalTokenizer> tokenizer ABSL_GUARDED_BY(loading);
  };

  void Load(const ServedModel& model, Loaded* loaded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(loaded->loading);
  std::string FolderOf(const ServedModel& model) const;

  const std::unique_ptr<ModelRegistry> given_;
  LocalTokenizer of_given_;
  const std::string hub_;
  Mutex mutex_;
  // By id; never removed, so that what is in use stays.
  std::map<std::string, std::unique_ptr<Loaded>, std::less<>> loaded_ ABSL_GUARDED_BY(mutex_);
  // The tokenizers that are loaded and have files, by id.
  std::map<std::string, LocalTokenizer*, std::less<>> ready_ ABSL_GUARDED_BY(mutex_);
};

// $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub, the first that there is; else empty.
std::string DefaultHub();

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_MODEL_TOKENIZERS_H_
