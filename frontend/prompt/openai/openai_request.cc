#include "frontend/prompt/openai/openai_request.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "frontend/prompt/openai/json_reader.h"
#include "frontend/prompt/openai/responses_prompt.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// Of the body's own fields, those that engines hand to the template beside its `chat_template_kwargs`.
constexpr std::array<const char*, 2> kTemplateFields = {"documents", "reasoning_effort"};

absl::Status Wrong(const std::string& field, const char* what) {
  return absl::InvalidArgumentError(field + " is " + what);
}

// A field that is there and not null.
const Json* Find(const Json& body, const char* name) {
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}
Json* Find(Json& body, const char* name) {
  return const_cast<Json*>(Find(static_cast<const Json&>(body), name));
}

absl::Status ReadText(const Json& body, const char* name, std::string* text) {
  const Json* const value = Find(body, name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return Wrong(name, "not a string");
  *text = value->get<std::string>();
  return absl::OkStatus();
}

template <typename Bool>
absl::Status ReadBool(const Json& body, const char* name, Bool* to) {
  const Json* const value = Find(body, name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return Wrong(name, "neither true nor false");
  *to = value->get<bool>();
  return absl::OkStatus();
}

// 5, 5.0 and "5", as engines take it; what is no count they judge themselves.
void ReadCount(const Json& body, const char* name, size_t* to) {
  const Json* const value = Find(body, name);
  if (value == nullptr) return;
  double count = 0;
  if (value->is_number()) {
    count = value->get<double>();
  } else if (!value->is_string() || !absl::SimpleAtod(value->get<std::string>(), &count)) {
    return;
  }
  if (count >= 0 && count < 1e15) *to = static_cast<size_t>(count);
}

absl::StatusOr<std::vector<TokenId>> Ids(const Json& array) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const Json& id : array) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<TokenId>::max())
      return Wrong("prompt", "not an array of token ids");
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

// A string, an array of ids, or an array of either.
absl::Status ReadPrompt(const Json& body, OpenAiRequest* request) {
  const Json* prompt = Find(body, "prompt");
  if (prompt == nullptr && Find(body, "prompt_embeds") != nullptr) {
    request->no_prompt = absl::UnimplementedError("prompt_embeds has no tokens");
    return absl::OkStatus();
  }
  if (prompt == nullptr) return Wrong("prompt", "missing");
  if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
    request->prompts = prompt->size();
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    TextPrompt text{.text = prompt->get<std::string>()};
    absl::Status bad = ReadBool(body, "add_special_tokens", &text.add_special_tokens);
    request->prompt = std::move(text);
    return bad;
  }
  if (!prompt->is_array() || prompt->empty())
    return Wrong("prompt", "neither text nor token ids, nor an array of such");
  absl::StatusOr<std::vector<TokenId>> ids = Ids(*prompt);
  if (ids.ok()) request->prompt = *std::move(ids);
  return ids.status();
}

absl::Status ReadTemplateKwargs(Json& body, ChatPrompt* chat) {
  chat->template_kwargs = Json::object();
  for (const char* name : kTemplateFields) {
    if (Json* const value = Find(body, name)) chat->template_kwargs[name] = std::move(*value);
  }
  if (const Json* const kwargs = Find(body, "chat_template_kwargs")) {
    if (!kwargs->is_object()) return Wrong("chat_template_kwargs", "not an object");
    chat->template_kwargs.update(*kwargs);
  }
  return absl::OkStatus();
}

absl::Status ReadMessages(Json& body, ChatPrompt* chat) {
  Json* const messages = Find(body, "messages");
  if (messages == nullptr) return Wrong("messages", "missing");
  const bool objects =
      messages->is_array() && std::all_of(messages->begin(), messages->end(),
                                          [](const Json& message) { return message.is_object(); });
  if (messages->is_array() && messages->empty())
    return Wrong("messages", "empty; expected at least one message");
  if (!objects) return Wrong("messages", "not an array of messages");
  chat->messages = std::move(*messages);
  if (Json* const tools = Find(body, "tools")) {
    if (!tools->is_array()) return Wrong("tools", "not an array");
    chat->tools = std::move(*tools);
  }
  return absl::OkStatus();
}

// Takes what it reads.
absl::Status ReadChat(Json& body, ChatPrompt* chat) {
  absl::Status bad = ReadMessages(body, chat);
  bad.Update(ReadTemplateKwargs(body, chat));
  std::string own_template;
  bad.Update(ReadText(body, "chat_template", &own_template));
  if (!own_template.empty()) chat->chat_template = std::move(own_template);
  bad.Update(ReadBool(body, "add_generation_prompt", &chat->add_generation_prompt));
  bad.Update(ReadBool(body, "continue_final_message", &chat->continue_final_message));
  bad.Update(ReadBool(body, "add_special_tokens", &chat->add_special_tokens));
  return bad;
}

}  // namespace

std::optional<OpenAiCall> OpenAiCallOf(std::string_view method, std::string_view path) {
  if (method != "POST") return std::nullopt;
  path = path.substr(0, path.find('?'));
  if (path.ends_with("/v1/chat/completions")) return OpenAiCall::kChat;
  if (path.ends_with("/v1/completions")) return OpenAiCall::kCompletion;
  if (path.ends_with("/v1/responses")) return OpenAiCall::kResponses;
  return std::nullopt;
}

absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(OpenAiCall call, std::string_view body) {
  absl::StatusOr<Json> read = ReadJson(body);
  if (!read.ok()) return read.status();
  Json& json = *read;
  if (!json.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
  OpenAiRequest request;
  absl::Status bad = ReadText(json, "model", &request.model);
  bad.Update(ReadText(json, "cache_salt", &request.cache_salt));
  const Json* const stream = Find(json, "stream");
  request.stream = stream != nullptr && *stream == true;
  ReadCount(json, "max_tokens", &request.output_tokens_max);
  ReadCount(json, "max_completion_tokens", &request.output_tokens_max);
  if (call == OpenAiCall::kResponses) {
    ReadCount(json, "max_output_tokens", &request.output_tokens_max);
    absl::StatusOr<ChatPrompt> chat = ResponsesPrompt(json);
    if (chat.ok()) {
      request.prompt = *std::move(chat);
    } else if (absl::IsUnimplemented(chat.status())) {
      request.no_prompt = chat.status();
    } else {
      bad.Update(chat.status());
    }
    if (!bad.ok()) return bad;
    return request;
  }
  const bool chat = call == OpenAiCall::kChat ||
                    (call == OpenAiCall::kEither && Find(json, "messages") != nullptr);
  bad.Update(chat ? ReadChat(json, &request.prompt.emplace<ChatPrompt>())
                  : ReadPrompt(json, &request));
  if (!bad.ok()) return bad;
  return request;
}

}  // namespace kvatlas
