// Which token ids will the engine see for this text? The question, and who may answer it: a tokenizer in this process, or an
// engine's own endpoint.
//
// *Truth*: an answer is the engine's tokens exactly, special tokens and chat template included, or it is an error; nothing is
// estimated. `source` names what made it, so that a receipt can.
// *Threads*: `Tokenize` may be called from any. The callback is called exactly once, from any thread, possibly before the call
// returns.
//
// Example:
//   tokenizer.Tokenize("llama-70b", ChatPrompt{.messages = body["messages"]}, std::chrono::seconds(1),
//                      [](absl::StatusOr<PromptTokens> answer) { ... });

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_TOKENIZER_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_TOKENIZER_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"

namespace kvatlas {

// The prompt of a completion, as it is.
struct TextPrompt {
  std::string text;
  std::optional<bool> add_special_tokens = {};  // engines' default: yes
};

// A conversation, as engines' chat endpoints take it. JSON keeps the order of its keys, since templates print it.
struct ChatPrompt {
  nlohmann::ordered_json messages = {};           // an array of objects
  nlohmann::ordered_json tools = {};              // an array, or null
  nlohmann::ordered_json template_kwargs = {};    // an object, or null
  std::optional<std::string> chat_template = {};  // the request's own; else the model's
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::optional<bool> add_special_tokens = {};  // engines' default: no, since templates write them
};

using Prompt = std::variant<TextPrompt, ChatPrompt>;

struct PromptTokens {
  std::vector<TokenId> tokens;
  // Of them, the leading ones that an earlier prompt had already been cut into.
  size_t reused = 0;
  // What begins a text with special tokens. Nothing: nothing does, or it is not known.
  std::optional<TokenId> bos = {};
  std::string source;  // "qwen3 (tokenizer.json 5f0c…)" or "http://10.0.0.7:8000/tokenize"
};

class PromptTokenizer {
 public:
  using Callback = std::function<void(absl::StatusOr<PromptTokens>)>;
  virtual ~PromptTokenizer() = default;

  // NOT_FOUND: a model without a tokenizer here. INVALID_ARGUMENT: messages that the template refuses (its words are in the
  // message), invalid UTF-8. RESOURCE_EXHAUSTED: longer than this tokenizer takes. DEADLINE_EXCEEDED, UNAVAILABLE: an engine
  // that was asked is late, or away.
  virtual void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                        Callback callback) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_TOKENIZER_H_
