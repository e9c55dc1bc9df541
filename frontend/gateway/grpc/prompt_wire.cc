// A chat of the wire is turned into the JSON body that a client would send to an engine: one reader
// of prompts then serves both.

#include "frontend/gateway/grpc/prompt_wire.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/cluster_client/wire.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// Appends a field's JSON as a member of the body; it has to be an object or an array. The text goes
// in as it came, since templates print what is in it, in its order.
absl::Status AddField(std::string_view name, const std::string& json, bool object,
                      std::string* body) {
  if (json.empty()) return absl::OkStatus();
  const bool is_kind =
      Json::accept(json) && json[json.find_first_not_of(" \t\r\n")] == (object ? '{' : '[');
  if (!is_kind) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chat.", std::string(name), "_json is not a JSON ", object ? "object" : "array"));
  }
  absl::StrAppend(body, ",\"",
                  std::string(name == "template_kwargs" ? "chat_template_kwargs" : name),
                  "\":", json);
  return absl::OkStatus();
}

// The body of such a chat, as a client of an engine would send it: the flags as an object first,
// whose closing brace is taken off for the fields of JSON.
absl::StatusOr<BodyPrompt> ReadChat(const v1::ChatPrompt& proto) {
  if (proto.messages_json().empty())
    return absl::InvalidArgumentError("chat.messages_json is missing");
  Json flags = Json::object();
  if (!proto.chat_template().empty()) flags["chat_template"] = proto.chat_template();
  if (proto.has_add_generation_prompt())
    flags["add_generation_prompt"] = proto.add_generation_prompt();
  flags["continue_final_message"] = proto.continue_final_message();
  if (proto.has_add_special_tokens()) flags["add_special_tokens"] = proto.add_special_tokens();
  std::string body = flags.dump(-1, ' ', false, Json::error_handler_t::replace);
  body.pop_back();
  absl::Status bad = AddField("messages", proto.messages_json(), false, &body);
  bad.Update(AddField("tools", proto.tools_json(), false, &body));
  bad.Update(AddField("template_kwargs", proto.template_kwargs_json(), true, &body));
  if (!bad.ok()) return bad;
  body += '}';
  return BodyPrompt{.path = RequestPath::kChat,
                    .body = std::make_shared<const std::string>(std::move(body))};
}

}  // namespace

absl::StatusOr<Prompt> PromptFromProto(const v1::RouteRequest& request) {
  if (request.has_chat()) {
    absl::StatusOr<BodyPrompt> chat = ReadChat(request.chat());
    if (!chat.ok()) return chat.status();
    return *std::move(chat);
  }
  TextPrompt text{.text = request.text().text()};
  if (request.text().has_add_special_tokens())
    text.add_special_tokens = request.text().add_special_tokens();
  return text;
}

// The response of `wire.h` and what only prompts have.
v1::RouteResponse ToProto(const PromptRoute& answer) {
  v1::RouteResponse response = ToProto(answer.route);
  response.set_prompt_tokens(static_cast<uint32_t>(answer.prompt_tokens));
  response.set_tokenizer(answer.tokenizer);
  response.mutable_tokens()->Add(answer.tokens.begin(), answer.tokens.end());
  return response;
}

}  // namespace kvatlas
