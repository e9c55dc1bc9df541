// Chooses the tokenizer of a model's prompts: one way after the other, as the flag says per model.
//
//   --tokenize local+engine,llava=render
//
// *Truth*: the next way is tried when one does not know the model (NOT_FOUND), cannot read the
// request (UNIMPLEMENTED) or cannot answer now (UNAVAILABLE, RESOURCE_EXHAUSTED), and if all fail,
// a reason that may end once an engine is met is kept. A refusal of the engine (INVALID_ARGUMENT)
// is final; a refusal of files here is not, where a way to ask the engine follows. Where `local`
// comes first, samples of its tokens are compared with the engine's (`token_evidence.h`): requests
// of a shape that differs are tokenized by the engine alone, and the log says so. Of a request with
// media that no way can tokenize, the tokens in front of the first item are made (`media_marks.h`).
// *Threads*: any.
// *Lifetime*: the tokenizers outlive it, and their callbacks may.

#ifndef KVATLAS_FRONTEND_PROMPT_TOKENIZER_CHOICE_H_
#define KVATLAS_FRONTEND_PROMPT_TOKENIZER_CHOICE_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/token_evidence.h"
#include "indexer/base/clock.h"

namespace kvatlas {

// The names of ways by model; the entry "" is for all others.
using TokenizeWays = std::map<std::string, std::vector<std::string>>;

// INVALID_ARGUMENT: a way that is none of local, engine, render; a model twice.
absl::StatusOr<TokenizeWays> ParseTokenizeWays(const std::vector<std::string>& flag);

class TokenizerChoice : public PromptTokenizer {
 public:
  // Ways that `by_way` lacks are skipped.
  TokenizerChoice(TokenizeWays ways, std::map<std::string, PromptTokenizer*> by_way,
                  const TokenEvidenceOptions& evidence = {});

  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;

  const TokenEvidence& evidence() const { return *evidence_; }
  // Enough samples of such requests had the engine's tokens, and none differed.
  bool IsTrusted(const std::string& model, const BodyPrompt& prompt) const {
    return evidence_->IsTrusted(ShapeOf(model, prompt));
  }

 private:
  struct Way {
    PromptTokenizer* tokenizer = nullptr;
    bool is_local = false;
  };
  struct Task;

  std::vector<Way> WaysOf(const std::string& model) const;
  void TryNext(const std::shared_ptr<Task>& task, absl::Status why);
  void TryBeginning(const std::shared_ptr<Task>& task, Duration left, absl::Status why);
  void Sample(const Task& task, const PromptTokens& here) const;

  const TokenizeWays ways_;
  const std::map<std::string, PromptTokenizer*> by_way_;
  const std::shared_ptr<TokenEvidence> evidence_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TOKENIZER_CHOICE_H_
