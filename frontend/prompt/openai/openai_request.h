// What does an engine's client ask for? A body of OpenAI's API, as vLLM and SGLang take it, read as far as a prompt needs it.
//
// *Truth*: what is read is what engines make the prompt of, and nothing is filled in that the body does not say. Fields that
// are no part of the prompt are not judged: how engines read those of another kind is their matter.
// *Threads*: pure functions.
// *Cost*: one pass of a JSON parser over the body.
// *Bounds*: of several prompts in one body the first one counts; the caller bounds the body's size.
//
// Example:
//   const std::optional<OpenAiCall> call = OpenAiCallOf("POST", "/v1/chat/completions");
//   if (!call.has_value()) return PassOn();
//   absl::StatusOr<OpenAiRequest> request = ParseOpenAiRequest(*call, body);

#ifndef KVATLAS_FRONTEND_PROMPT_OPENAI_OPENAI_REQUEST_H_
#define KVATLAS_FRONTEND_PROMPT_OPENAI_OPENAI_REQUEST_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/hash.h"

namespace kvatlas {

// `kEither`: a chat if the body has messages.
enum class OpenAiCall { kCompletion, kChat, kEither, kResponses };

// The calls that have a prompt; nothing: any other, which needs no choice by prompt. A query and what stands before /v1 do
// not matter.
std::optional<OpenAiCall> OpenAiCallOf(std::string_view method, std::string_view path);

struct OpenAiRequest {
  std::string model;  // empty: the body names none
  // Ids that the caller has already, or what a tokenizer turns into ids.
  std::variant<std::vector<TokenId>, TextPrompt, ChatPrompt> prompt;
  std::string cache_salt = {};
  size_t prompts = 1;  // in the body
  bool stream = false;
  size_t output_tokens_max = 0;  // 0: not said
  // Why there is no prompt that could be read, though the request is good: `prompt_embeds`, or what `responses_prompt.h` says; OK:
  // there is one.
  absl::Status no_prompt = {};
};

// INVALID_ARGUMENT names the field that is missing or of another kind.
absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(OpenAiCall call, std::string_view body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_OPENAI_OPENAI_REQUEST_H_
