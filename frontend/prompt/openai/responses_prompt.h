// Which conversation is a request of OpenAI's Responses API? Its `instructions` and `input` as the messages of a chat, as engines
// make one of them before their chat template.
//
// *Truth*: only what engines turn into messages word by word is converted: instructions, text of messages, functions as tools. Anything
// else (an earlier response, calls of tools and their results, images, files) is refused, and its prompt is not known here.
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_PROMPT_OPENAI_RESPONSES_PROMPT_H_
#define KVATLAS_FRONTEND_PROMPT_OPENAI_RESPONSES_PROMPT_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"

namespace kvatlas {

// INVALID_ARGUMENT: a field of a wrong kind. UNIMPLEMENTED: not such a conversation. REQUIRES: `body` is an object.
absl::StatusOr<ChatPrompt> ResponsesPrompt(const nlohmann::ordered_json& body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_OPENAI_RESPONSES_PROMPT_H_
