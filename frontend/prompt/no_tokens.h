// Why has a prompt no tokens? One of a few words of a status, for a metric and the log, whichever
// door it came through.
//
//   path          no prompt is read of such a call: embeddings, /tokenize, forms
//   unsupported   the body has a prompt that no tokens can be made of here: `prompt_embeds`, a response that an engine has stored
//   refused       the template or the tokenizer refuses it
//   no_tokenizer  nothing makes tokens for the model
//   unavailable   what makes them is away, or failed
//   late          the tokens were not there in time
//   too_long      for hashing, or for a queue
//
// *Truth*: of a prompt that was routed by load for it, or refused where a door has no other way. An
// unknown model counts nowhere.
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

// What `PromptQuestion::no_prompt` says of a call whose body holds no prompt.
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
