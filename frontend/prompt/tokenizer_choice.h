// Who makes tokens of this model's prompts? One way after the other, as told per model.
//
//   --tokenize local+engine,llava=render
//
// *Truth*: the next way is tried when one does not know the model (NOT_FOUND), cannot read the
// request (UNIMPLEMENTED) or cannot answer now (UNAVAILABLE, RESOURCE_EXHAUSTED), and of several
// that do not, one that may once an engine is met speaks. What an engine refuses (INVALID_ARGUMENT)
// is refused; what files refuse here is asked of the engine where there is a way to. Where `local`
// comes first, samples of its tokens are compared with the engine's (`token_evidence.h`): requests
// of a shape that differs are the engine's alone, and a line says so. Of a request with images that
// no way can tell the tokens before them are made (`media_marks.h`).
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

// The names of ways by model; those of "" are for all others.
using TokenizeWays = std::map<std::string, std::vector<std::string>>;

// INVALID_ARGUMENT: a way that is none of local, engine, render; a model twice.
absl::StatusOr<TokenizeWays> ParseTokenizeWays(const std::vector<std::string>& flag);

class TokenizerChoice : public PromptTokenizer {
 public:
  // `by_way` may lack ways: such are passed over.
  TokenizerChoice(TokenizeWays ways, std::map<std::string, PromptTokenizer*> by_way,
                  const TokenEvidenceOptions& evidence = {});

  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;

  const TokenEvidence& evidence() const { return *evidence_; }
  // Enough samples of such requests were the engine's tokens, and none was not.
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
