// The reason why a prompt has no tokens: one of a few words for a status, for a metric and the log,
// whichever API the prompt came through.
//
//   path          no prompt is read from such a call: embeddings, /tokenize, forms
//   unsupported   the body has a prompt that no tokens can be made of here: `prompt_embeds`, a response that an engine has stored
//   refused       the template or the tokenizer refuses it
//   no_tokenizer  no tokenizer for the model
//   unavailable   the tokenizer or engine is away, or failed
//   late          the tokens were not there in time
//   too_long      for hashing, or for a queue
//
// *Truth*: counts prompts that were routed by load for this reason, or refused where an API has no
// other way. An unknown model is not counted.
// *Threads*: any. *Bounds*: a line of the log a minute for each model and reason, of `LogLimiter`'s
// keys.
// *Lifetime*: the metrics outlive it, and it outlives what counts.
//
// Example:
//   NoTokensCounter no_tokens(&metrics);
//   PromptRouter router({.on_no_tokens = no_tokens.counting()}, &frontend, &tokenizer);

#ifndef KVATLAS_FRONTEND_PROMPT_NO_TOKENS_H_
#define KVATLAS_FRONTEND_PROMPT_NO_TOKENS_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

// For `PromptQuestion::no_prompt` of a call whose body holds no prompt.
absl::Status NoPromptOf(std::string_view method, std::string_view path);

std::string_view NoTokensReason(const absl::Status& why);

using OnNoTokens = std::function<void(const std::string& model, const absl::Status& why)>;

class NoTokensCounter {
 public:
  explicit NoTokensCounter(Metrics* metrics);
  NoTokensCounter(const NoTokensCounter&) = delete;
  NoTokensCounter& operator=(const NoTokensCounter&) = delete;

  void Count(const std::string& model, const absl::Status& why);
  OnNoTokens counting() {
    return [this](const std::string& model, const absl::Status& why) { Count(model, why); };
  }

 private:
  std::map<std::string_view, Counter> by_reason_;
  LogLimiter limiter_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_NO_TOKENS_H_
