// Which token ids will the engine see for this request? The question, and who may answer it: a
// tokenizer in this process, or an engine's own endpoint.
//
// *Truth*: an answer is the engine's tokens exactly, special tokens and chat template included, or
// it is an error; nothing is estimated. `source` names what made it, so that a receipt can.
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

// What of a client's body is the prompt follows from its path
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

// Whose rules turn a request into the text that its chat template prints (rust/src/request).
// `kPlain`: apply_chat_template alone.
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
  // Not empty: the tokens are the prompt's beginning alone, and why.
  std::string ends_before = {};
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

  // NOT_FOUND: a model without a tokenizer here. INVALID_ARGUMENT: what the engine refuses, too
  // (the template's words are in the message), invalid UTF-8. UNIMPLEMENTED: what the engine may
  // take and this tokenizer cannot read. RESOURCE_EXHAUSTED: longer than this tokenizer takes.
  // DEADLINE_EXCEEDED, UNAVAILABLE: an engine that was asked is late, or away.
  virtual void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                        Callback callback) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_TOKENIZER_H_
