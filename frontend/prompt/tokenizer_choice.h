// Who makes tokens of this model's prompts? One way after the other, as told per model.
//
//   --tokenize local+engine,llava=render
//
// *Truth*: the next way is tried when one does not know the model (NOT_FOUND) or cannot answer now (UNAVAILABLE,
// RESOURCE_EXHAUSTED), and of several that do not, one that may once an engine is met speaks; a prompt that is refused (INVALID_ARGUMENT) is refused.
// *Threads*: any.
// *Lifetime*: the tokenizers outlive it.

#ifndef KVATLAS_FRONTEND_PROMPT_TOKENIZER_CHOICE_H_
#define KVATLAS_FRONTEND_PROMPT_TOKENIZER_CHOICE_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/clock.h"

namespace kvatlas {

// The names of ways by model; those of "" are for all others.
using TokenizeWays = std::map<std::string, std::vector<std::string>>;

// INVALID_ARGUMENT: a way that is none of local, engine, render; a model twice.
absl::StatusOr<TokenizeWays> ParseTokenizeWays(const std::vector<std::string>& flag);

class TokenizerChoice : public PromptTokenizer {
 public:
  // `by_way` may lack ways: such are passed over.
  TokenizerChoice(TokenizeWays ways, std::map<std::string, PromptTokenizer*> by_way);

  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;

 private:
  struct Task;
  void TryNext(const std::shared_ptr<Task>& task, absl::Status why) const;

  const TokenizeWays ways_;
  const std::map<std::string, PromptTokenizer*> by_way_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TOKENIZER_CHOICE_H_
