#include "frontend/prompt/openai/responses_prompt.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Unconverted(const char* what) {
  return absl::UnimplementedError(absl::StrCat("the prompt is not known here: ", what));
}

// A field that is there and not null.
const Json* Find(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool IsText(const Json& object, const char* name) {
  const Json* const value = Find(object, name);
  return value != nullptr && value->is_string();
}

// A string as it is; of parts of text, parts as chats have them.
absl::StatusOr<Json> Content(const Json& content) {
  if (content.is_string()) return content;
  if (!content.is_array()) return absl::InvalidArgumentError("input is without text in content");
  Json parts = Json::array();
  for (const Json& part : content) {
    const bool text = part.is_object() && IsText(part, "type") && IsText(part, "text") &&
                      (part["type"] == "input_text" || part["type"] == "output_text");
    if (!text) return Unconverted("input has parts that are no text");
    parts.push_back({{"type", "text"}, {"text", part["text"]}});
  }
  return parts;
}

absl::Status AddInput(const Json& input, Json* messages) {
  if (input.is_string()) {
    messages->push_back({{"role", "user"}, {"content", input}});
    return absl::OkStatus();
  }
  if (!input.is_array() || input.empty())
    return absl::InvalidArgumentError("input is neither text nor an array of items");
  for (const Json& item : input) {
    if (!item.is_object()) return absl::InvalidArgumentError("input is not an array of items");
    const Json* const type = Find(item, "type");
    const Json* const content = Find(item, "content");
    if ((type != nullptr && *type != "message") || !IsText(item, "role") || content == nullptr)
      return Unconverted("input has items that are no messages");
    absl::StatusOr<Json> text = Content(*content);
    if (!text.ok()) return text.status();
    messages->push_back({{"role", item["role"]}, {"content", *std::move(text)}});
  }
  return absl::OkStatus();
}

absl::Status AddTools(const Json& tools, Json* to) {
  if (!tools.is_array()) return absl::InvalidArgumentError("tools is not an array");
  if (tools.empty()) return absl::OkStatus();
  *to = Json::array();
  for (const Json& tool : tools) {
    if (!tool.is_object() || !IsText(tool, "type") || tool["type"] != "function")
      return Unconverted("tools has other tools than functions");
    Json function = Json::object();
    for (const char* name : {"name", "description", "parameters"}) {
      if (const Json* const value = Find(tool, name)) function[name] = *value;
    }
    to->push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatPrompt> ResponsesPrompt(const Json& body) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (Find(body, name) != nullptr) return Unconverted("it goes on from what an engine keeps");
  }
  ChatPrompt chat{.messages = Json::array()};
  chat.template_kwargs = Json::object();
  if (const Json* const instructions = Find(body, "instructions")) {
    if (!instructions->is_string())
      return absl::InvalidArgumentError("instructions is not a string");
    chat.messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  const Json* const input = Find(body, "input");
  if (input == nullptr) return absl::InvalidArgumentError("input is missing");
  absl::Status bad = AddInput(*input, &chat.messages);
  if (const Json* const tools = Find(body, "tools")) bad.Update(AddTools(*tools, &chat.tools));
  if (!bad.ok()) return bad;
  return chat;
}

}  // namespace kvatlas
