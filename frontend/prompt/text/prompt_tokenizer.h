// The interface that turns a request into the token ids that the engine will see. Implemented by a
// tokenizer in this process and by engines' own endpoints.
//
// *Truth*: an answer is the engine's tokens exactly, special tokens and chat template included, or
// it is an error; nothing is estimated. `source` names what made the tokens, for receipts.
// *Threads*: `Tokenize` may be called from any. The callback is called exactly once, from any
// thread, possibly before the call returns.
//
// Example:
//   tokenizer.Tokenize("llama-70b", BodyPrompt{.path = RequestPath::kChat, .body = body},
//   std::chrono::seconds(1),
//                      [](absl::StatusOr<PromptTokens> answer) { ... });

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_TOKENIZER_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_TOKENIZER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"

namespace kvatlas {

// A text without any API around it.
struct TextPrompt {
  std::string text;
  std::optional<bool> add_special_tokens = {};  // engines' default: yes
};

// The path decides which part of a client's body is the prompt
// (`frontend/prompt/request/prompt_request.h`).
enum class RequestPath {
  kCompletions,      // POST /v1/completions
  kChat,             // POST /v1/chat/completions
  kResponses,        // POST /v1/responses
  kMessages,         // POST /v1/messages
  kSglangGenerate,   // POST /generate
  kVllmGenerate,     // POST /inference/v1/generate: ids alone
  kChatOrCompletion  // a chat if the body has messages, else a completion
};

// The engine by whose rules a request becomes the text that its chat template prints
// (rust/src/request). `kPlain`: apply_chat_template alone.
enum class EngineKind { kPlain, kVllm, kSglang };

// How an engine reads requests: engines of one model with equal conventions make equal tokens.
struct Convention {
  EngineKind engine = EngineKind::kVllm;
  // SGLang's --reasoning-parser and --tool-call-parser; empty: none.
  std::string reasoning_parser = {};
  std::string tool_call_parser = {};

  friend bool operator==(const Convention&, const Convention&) = default;
};

// A request as its client sent it.
struct BodyPrompt {
  RequestPath path = RequestPath::kChat;
  std::shared_ptr<const std::string> body;  // not null
  Convention convention = {};
};

using Prompt = std::variant<TextPrompt, BodyPrompt>;

struct PromptTokens {
  std::vector<TokenId> tokens;
  // Images, audio and video in the prompt, with which its blocks are hashed.
  std::vector<PromptItem> items = {};
  // Not empty: the tokens are only the beginning of the prompt, for this reason.
  std::string ends_before = {};
  // How many leading tokens were known from an earlier prompt.
  size_t reused = 0;
  // The token that begins a text with special tokens. Nothing: there is none, or it is not known.
  std::optional<TokenId> bos = {};
  std::string source;  // "qwen3 (tokenizer.json 5f0c…)" or "http://10.0.0.7:8000/tokenize"
};

class PromptTokenizer {
 public:
  using Callback = std::function<void(absl::StatusOr<PromptTokens>)>;
  virtual ~PromptTokenizer() = default;

  // NOT_FOUND: a model without a tokenizer here. INVALID_ARGUMENT: the engine refuses the request,
  // too (the template's words are in the message), or it is not UTF-8. UNIMPLEMENTED: the engine
  // may take the request, but this tokenizer cannot read it. RESOURCE_EXHAUSTED: longer than this
  // tokenizer takes. DEADLINE_EXCEEDED, UNAVAILABLE: an engine that was asked is late, or away.
  virtual void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                        Callback callback) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_TOKENIZER_H_
