// The form of a prompt for diagnoses: a chat passes a template, a completion the tokenizer alone.

#ifndef KVATLAS_FRONTEND_PROMPT_PROMPT_FORM_H_
#define KVATLAS_FRONTEND_PROMPT_PROMPT_FORM_H_

#include <variant>

#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"

namespace kvatlas {

inline PromptForm FormOf(const Prompt& prompt) {
  const auto* const body = std::get_if<BodyPrompt>(&prompt);
  if (body == nullptr) return PromptForm::kCompletion;
  switch (body->path) {
    case RequestPath::kCompletions:
    case RequestPath::kSglangGenerate:
    case RequestPath::kVllmGenerate:
      return PromptForm::kCompletion;
    case RequestPath::kChat:
    case RequestPath::kResponses:
    case RequestPath::kMessages:
    case RequestPath::kChatOrCompletion:
      break;
  }
  return PromptForm::kChat;
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_PROMPT_FORM_H_
