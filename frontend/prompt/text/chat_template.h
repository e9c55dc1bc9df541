// What text does a conversation become? A model's chat templates, rendered as `apply_chat_template` of the Python package
// `transformers` does: white space, `tojson`, Python's methods, `raise_exception`, `strftime_now`.
//
// *Truth*: the text is that of transformers 5, for the same messages; an older one differs only where it prints keys whose value is
// null. One thing is known to differ: a number below 1e-4 or above 1e16 that is joined to a text by `~` is written without an
// exponent. Dates are in the time zone of this machine, as they are in that of the engine's.
// *Threads*: `Render` may be called from any.
// *Bounds*: a template stops after kTemplateSteps steps.
//
// Example:
//   ASSIGN chat = ChatTemplate::Create({{"default", source}}, tokenizer->facts().special_tokens);
//   absl::StatusOr<std::string> text = chat->Render({.messages = body["messages"]}, now);

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_CHAT_TEMPLATE_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"

struct kvatlas_template;

namespace kvatlas {

class ChatTemplate {
 public:
  // `sources` by name: "default" is used, and "tool_use", where there is one, for prompts with tools. `special_tokens`: variables
  // that every template sees. INVALID_ARGUMENT: a template that does not parse, or none at all.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(
      const std::map<std::string, std::string>& sources, nlohmann::ordered_json special_tokens);

  // The text of `prompt`; `now_s`, since 1970, is for templates that print a date. Its own template, if it has one, is not
  // looked at. INVALID_ARGUMENT: what is no conversation, and what the template refuses, in its words.
  absl::StatusOr<std::string> Render(const ChatPrompt& prompt, int64_t now_s) const;

 private:
  struct Free {
    void operator()(kvatlas_template* compiled) const;
  };
  struct Compiled {
    std::string source;
    std::unique_ptr<kvatlas_template, Free> handle;
  };

  ChatTemplate() = default;
  absl::StatusOr<const Compiled*> Choose(const ChatPrompt& prompt) const;

  std::map<std::string, Compiled> templates_;
  nlohmann::ordered_json special_tokens_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_CHAT_TEMPLATE_H_
