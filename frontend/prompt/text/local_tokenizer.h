// A PromptTokenizer in this process: the models of a registry, in the caller's thread or in a few
// of its own.
//
// *Threads*: with `threads` 0 a call does the work and calls back before it returns. Else calls
// wait in a queue for one of `threads`; a prompt whose deadline passes there is answered
// DEADLINE_EXCEEDED and costs nothing. A prompt whose deadline passes while it is read or encoded
// is given up.
// *Bounds*: `queue_max` prompts wait; a further one is RESOURCE_EXHAUSTED at once.
// *Lifetime*: the destructor answers waiting prompts with UNAVAILABLE.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_LOCAL_TOKENIZER_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_LOCAL_TOKENIZER_H_

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct LocalTokenizerOptions {
  int threads = 0;
  size_t queue_max = 1024;
  const Clock* clock = &Clock::Real();
};

class LocalTokenizer : public PromptTokenizer {
 public:
  // `registry` outlives it.
  LocalTokenizer(ModelRegistry* registry, const LocalTokenizerOptions& options);
  ~LocalTokenizer() override;

  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;

 private:
  struct Job {
    std::string model;
    Prompt prompt;
    Time until;
    Callback callback;
  };

  absl::StatusOr<PromptTokens> Now(const std::string& model, const Prompt& prompt,
                                   Duration limit) const;
  void Work();

  ModelRegistry* const registry_;
  const LocalTokenizerOptions options_;
  Mutex mutex_;
  CondVar woken_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_LOCAL_TOKENIZER_H_
