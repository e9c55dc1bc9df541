#include "frontend/prompt/text/chat_template.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "frontend/prompt/text/json_text.h"
#include "frontend/prompt/text/rust_text.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// Written behind the last message to find where it ends in the text.
constexpr std::string_view kEndMark = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::array<std::string_view, 3> kReasoning = {"reasoning_content", "thinking",
                                                        "reasoning"};

absl::Status Invalid(std::string_view what) {
  return absl::InvalidArgumentError(std::string(what));
}

// Under which of its names a message has its reasoning; null: it has none.
const Json* ReasoningOf(const Json& message) {
  for (std::string_view name : kReasoning) {
    const auto found = message.find(name);
    if (found != message.end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

// Reasoning under all of the names that templates know.
Json WithReasoning(const Json& message, const Json& reasoning) {
  Json with = Json::object();
  with["thinking"] = reasoning;
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) with[key] = value;
  }
  with["reasoning_content"] = reasoning;
  return with;
}

// A message as templates see it: keys without a value left out.
void AppendMessage(const Json& message, std::string* text) {
  if (const Json* const reasoning = ReasoningOf(message))
    return AppendJson(WithReasoning(message, *reasoning), text);
  const char* separator = "";
  *text += '{';
  for (const auto& [key, value] : message.get_ref<const Json::object_t&>()) {
    if (value.is_null()) continue;
    *text += std::exchange(separator, ",");
    AppendJsonString(key, text);
    *text += ':';
    AppendJson(value, text);
  }
  *text += '}';
}

absl::Status CheckMessages(const ChatPrompt& prompt) {
  if (!prompt.messages.is_array() || prompt.messages.empty())
    return Invalid("messages are no array with at least one message");
  for (const Json& message : prompt.messages) {
    if (!message.is_object()) return Invalid("a message is no object");
  }
  return absl::OkStatus();
}

// `last` in the place of the last one, where there is one.
void AppendMessages(const Json& messages, const std::optional<Json>& last, std::string* text) {
  const char* separator = "[";
  for (const Json& message : messages) {
    *text += std::exchange(separator, ",");
    const bool is_last = &message == &messages.back();
    AppendMessage(is_last && last.has_value() ? *last : message, text);
  }
  *text += ']';
}

// Python's str.strip().
std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kAsciiSpace = " \t\n\r\v\f\x1c\x1d\x1e\x1f";
  const size_t first = text.find_first_not_of(kAsciiSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kAsciiSpace) - first + 1);
}

// Marks the end of the last message and returns its text.
absl::StatusOr<std::string> MarkEnd(Json& last, const std::string& source) {
  const auto content = last.find("content");
  if (content == last.end() || content->is_null())
    return Invalid("there is no content to continue in the final message");
  if (source.find("content") == source.npos) return Invalid("the chat template prints no content");
  if (content->is_string()) {
    const std::string text = content->get<std::string>();
    *content = text + std::string(kEndMark);
    return text;
  }
  if (content->is_array()) {
    for (auto part = content->rbegin(); part != content->rend(); ++part) {
      if (!part->is_object() || !part->contains("text") || !(*part)["text"].is_string()) continue;
      const std::string text = (*part)["text"].get<std::string>();
      (*part)["text"] = text + std::string(kEndMark);
      return text;
    }
  }
  return Invalid("there is no text to continue in the final message");
}

absl::StatusOr<std::string> CutAtEnd(std::string rendered, std::string_view final_message) {
  const std::string_view mark = Stripped(kEndMark);
  const size_t at = rendered.rfind(mark);
  if (at == rendered.npos || rendered.find(Stripped(final_message)) == rendered.npos) {
    return Invalid("the final message to continue does not appear in the rendered chat");
  }
  const bool spaced = std::string_view(rendered).substr(at, kEndMark.size()) == kEndMark;
  rendered.resize(at);
  if (!spaced) {
    const std::string_view text = rendered;
    const std::string_view kept =
        Stripped(absl::StrCat("x", absl::string_view(text.data(), text.size())));
    rendered.resize(kept.size() - 1);
  }
  return rendered;
}

}  // namespace

void ChatTemplate::Free::operator()(kvatlas_template* compiled) const {
  kvatlas_template_free(compiled);
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(
    const std::map<std::string, std::string>& sources, Json special_tokens) {
  if (sources.empty()) return Invalid("no chat template");
  std::unique_ptr<ChatTemplate> made(new ChatTemplate);
  made->special_tokens_ = special_tokens.is_object() ? std::move(special_tokens) : Json::object();
  for (const auto& [name, source] : sources) {
    kvatlas_template* handle = nullptr;
    std::string error;
    const int code = kvatlas_template_new(RustView(source), &handle, RustSink(error));
    if (code != 0) {
      return RustStatus(code,
                        sources.size() == 1 ? error : absl::StrCat("\"", name, "\": ", error));
    }
    Compiled& compiled = made->templates_[name];
    compiled.source = source;
    compiled.handle.reset(handle);
  }
  return made;
}

absl::StatusOr<const ChatTemplate::Compiled*> ChatTemplate::Choose(const ChatPrompt& prompt) const {
  if (!prompt.tools.is_null()) {
    if (const auto found = templates_.find("tool_use"); found != templates_.end()) {
      return &found->second;
    }
  }
  if (const auto found = templates_.find("default"); found != templates_.end()) {
    return &found->second;
  }
  if (templates_.size() == 1) return &templates_.begin()->second;
  return Invalid(
      absl::StrCat("the model has several chat templates and none is the default: ",
                   absl::StrJoin(templates_, ", ", [](std::string* out, const auto& entry) {
                     absl::StrAppend(out, entry.first);
                   })));
}

// 1. The variables: messages, tools, what the prompt says, special tokens, the request's own (the latter win).
// 2. Where the last message is to be continued, its end is marked (MarkEnd).
// 3. The template prints them.
// 4. What it printed behind the mark is cut off (CutAtEnd).
absl::StatusOr<std::string> ChatTemplate::Render(const ChatPrompt& prompt, int64_t now_s) const {
  if (prompt.continue_final_message && prompt.add_generation_prompt) {
    return Invalid("continue_final_message and add_generation_prompt exclude each other");
  }
  const absl::StatusOr<const Compiled*> chosen = Choose(prompt);
  if (!chosen.ok()) return chosen.status();
  if (const absl::Status bad = CheckMessages(prompt); !bad.ok()) return bad;
  std::optional<std::string> final_message;
  std::optional<Json> last;
  if (prompt.continue_final_message) {
    last = prompt.messages.back();
    absl::StatusOr<std::string> marked = MarkEnd(*last, (*chosen)->source);
    if (!marked.ok()) return marked.status();
    final_message = *std::move(marked);
  }

  Json variables = special_tokens_;
  variables["documents"] = nullptr;
  if (prompt.template_kwargs.is_object()) variables.update(prompt.template_kwargs);
  for (const char* name : {"messages", "tools"}) variables.erase(name);
  variables["add_generation_prompt"] = prompt.add_generation_prompt;
  std::string json;
  AppendJson(variables, &json);
  json.back() = ',';  // in the place of the closing brace
  json += R"("tools":)";
  AppendJson(prompt.tools, &json);
  json += R"(,"messages":)";
  AppendMessages(prompt.messages, last, &json);
  json += '}';
  std::string text, error;
  const int code = kvatlas_template_render((*chosen)->handle.get(), RustView(json), now_s,
                                           RustSink(text), RustSink(error));
  if (code != 0) return RustStatus(code, error);
  if (final_message.has_value()) return CutAtEnd(std::move(text), *final_message);
  return text;
}

}  // namespace kvatlas
