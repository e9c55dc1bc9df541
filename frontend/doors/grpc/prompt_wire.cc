#include "frontend/doors/grpc/prompt_wire.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "frontend/peers/wire.h"
#include "frontend/prompt/openai/json_depth.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

absl::Status ReadJson(const std::string& text, const char* field, bool object, Json* to) {
  if (text.empty()) return absl::OkStatus();
  if (IsNestedTooDeep(text))
    return absl::InvalidArgumentError(std::string("chat.") + field + " is nested too deep");
  *to = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object ? to->is_object() : to->is_array()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string("chat.") + field + " is not a JSON " +
                                    (object ? "object" : "array"));
}

absl::StatusOr<ChatPrompt> ReadChat(const v1::ChatPrompt& proto) {
  ChatPrompt chat;
  absl::Status bad = ReadJson(proto.messages_json(), "messages_json", false, &chat.messages);
  bad.Update(ReadJson(proto.tools_json(), "tools_json", false, &chat.tools));
  bad.Update(
      ReadJson(proto.template_kwargs_json(), "template_kwargs_json", true, &chat.template_kwargs));
  if (bad.ok() && chat.messages.empty())
    bad = absl::InvalidArgumentError("chat.messages_json is missing");
  if (!bad.ok()) return bad;
  if (!proto.chat_template().empty()) chat.chat_template = proto.chat_template();
  if (proto.has_add_generation_prompt()) chat.add_generation_prompt = proto.add_generation_prompt();
  chat.continue_final_message = proto.continue_final_message();
  if (proto.has_add_special_tokens()) chat.add_special_tokens = proto.add_special_tokens();
  return chat;
}

}  // namespace

absl::StatusOr<Prompt> PromptFromProto(const v1::RouteRequest& request) {
  if (request.has_chat()) {
    absl::StatusOr<ChatPrompt> chat = ReadChat(request.chat());
    if (!chat.ok()) return chat.status();
    return *std::move(chat);
  }
  TextPrompt text{.text = request.text().text()};
  if (request.text().has_add_special_tokens())
    text.add_special_tokens = request.text().add_special_tokens();
  return text;
}

v1::RouteResponse ToProto(const PromptRoute& answer) {
  v1::RouteResponse response = ToProto(answer.route);
  response.set_prompt_tokens(static_cast<uint32_t>(answer.prompt_tokens));
  response.set_tokenizer(answer.tokenizer);
  response.mutable_tokens()->Add(answer.tokens.begin(), answer.tokens.end());
  return response;
}

}  // namespace kvatlas
