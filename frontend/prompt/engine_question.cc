// Writes the request that an engine is asked, and reads its answer. A question is written as text:
// "{" and fields, each value byte for byte as the client's body has it (`json_fields.h`), so that
// numbers and escapes are not changed on the way. `EngineQuestion::body` has no closing brace until
// the last field is written.
//
//   TokenizeQuestion ─▶ VllmChat, SglangChat or Completion, by path and engine
//   RenderQuestion   ─▶ the client's own fields, but for a few
//   ReadEngineAnswer ─▶ ids, and the places of media items (`ReadItems`)

#include "frontend/prompt/engine_question.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/json_fields.h"
#include "frontend/prompt/media_marks.h"

namespace kvatlas {
namespace {

bool Contains(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

// UNIMPLEMENTED: /tokenize would give other tokens than the chat, or none.
absl::Status Lacks(std::string_view what) {
  return absl::UnimplementedError(absl::StrCat("/tokenize cannot express ", std::string(what)));
}

// vLLM's chat takes `reasoning_content` as `reasoning` where a message has none
// (ChatCompletionRequest._normalize_messages_before); its TokenizeChatRequest does not. So the
// field is renamed here. Messages without the word are copied as they are.
absl::StatusOr<std::string> WithReasoning(std::string_view messages) {
  JsonText array(messages);
  absl::StatusOr<std::vector<std::string_view>> items = array.AsItems();
  if (!items.ok()) return items.status();
  std::string made = "[";
  for (const std::string_view item : *items) {
    if (made.size() > 1) made += ',';
    if (!item.starts_with('{') || !Contains(item, "\"reasoning_content\"")) {
      made += item;
      continue;
    }
    JsonText message(item);
    absl::StatusOr<JsonFields> fields = message.AsFields();
    if (!fields.ok()) return fields.status();
    const std::string_view content = GivenIn(*fields, "reasoning_content");
    const bool renamed = !content.empty() && GivenIn(*fields, "reasoning").empty();
    std::string object = "{";
    for (const auto& [name, raw] : *fields) {
      if (name == "reasoning_content" || (renamed && name == "reasoning")) continue;
      AppendField(name, raw, &object);
    }
    if (renamed) AppendField("reasoning", content, &object);
    absl::StrAppend(&made, object, "}");
  }
  return made + "]";
}

// The template variables of a chat (`chat_template_kwargs`), with what the chat makes of
// `reasoning_effort` and `documents` before its template (ChatCompletionRequest.build_chat_params):
// /tokenize takes variables, but not these two fields. The fields win over variables of the same
// name; an effort also sets `enable_thinking`, unless the request does. UNIMPLEMENTED for a value
// that is no effort, which the chat refuses. Empty: there are no variables.
absl::StatusOr<std::string> VariablesOf(const JsonFields& chat) {
  const std::string_view given = GivenIn(chat, "chat_template_kwargs");
  const std::string_view effort = GivenIn(chat, "reasoning_effort");
  const std::string_view documents = GivenIn(chat, "documents");
  if (effort.empty() && documents.empty()) return std::string(given);
  JsonText text(given.empty() ? "{}" : given);
  absl::StatusOr<JsonFields> variables = text.AsFields();
  if (!variables.ok()) return Lacks("chat_template_kwargs that are no object");
  std::string object = "{";
  bool says_thinking = false;
  for (const auto& [name, raw] : *variables) {
    const bool replaced = (name == "reasoning_effort" && !effort.empty()) ||
                          (name == "documents" && !documents.empty());
    if (replaced) continue;
    says_thinking = says_thinking || name == "enable_thinking";
    AppendField(name, raw, &object);
  }
  if (!documents.empty()) AppendField("documents", documents, &object);
  if (!effort.empty()) {
    constexpr std::array kEfforts = {"\"none\"", "\"minimal\"", "\"low\"", "\"medium\"",
                                     "\"high\"", "\"xhigh\"",   "\"max\""};
    if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end())
      return Lacks(absl::StrCat("reasoning_effort ", std::string(effort)));
    AppendField("reasoning_effort", effort, &object);
    if (!says_thinking)
      AppendField("enable_thinking", effort == "\"none\"" ? "false" : "true", &object);
  }
  return object + "}";
}

// The text of `messages`. UNIMPLEMENTED where they have media: /tokenize does not say where items
// stand in the prompt, and blocks with a part of an item have its hash.
absl::StatusOr<std::string> MessagesOf(const JsonFields& chat) {
  const std::string_view messages = GivenIn(chat, "messages");
  if (messages.empty()) return absl::InvalidArgumentError("messages is missing");
  if (const std::string_view media = MediaIn(messages); !media.empty())
    return Lacks(absl::StrCat("where ", std::string(media), " stands in the prompt"));
  return std::string(messages);
}

// The question for a chat to vLLM: the fields of a chat that /tokenize reads in the same way.
// Fields that change the tokens of a chat and that /tokenize does not have are UNIMPLEMENTED.
absl::StatusOr<EngineQuestion> VllmChat(const JsonFields& chat, EngineQuestion question) {
  // Its chat refuses an empty list of tools, and /tokenize does not.
  if (GivenIn(chat, "tools") == "[]") return absl::InvalidArgumentError("tools is empty");
  if (!GivenIn(chat, "truncate_prompt_tokens").empty()) return Lacks("truncate_prompt_tokens");
  // The chat takes these ids in the place of its messages (renderers/online_renderer.py,
  // _reused_prompt_token_ids).
  if (Contains(GivenIn(chat, "kv_transfer_params"), "\"prompt_token_ids\""))
    return Lacks("kv_transfer_params.prompt_token_ids");
  absl::StatusOr<std::string> messages = MessagesOf(chat);
  if (messages.ok() && Contains(*messages, "\"reasoning_content\""))
    messages = WithReasoning(*messages);
  if (!messages.ok()) return messages.status();
  AppendField("messages", *messages, &question.body);
  for (const char* name : {"add_generation_prompt", "continue_final_message", "add_special_tokens",
                           "chat_template", "mm_processor_kwargs", "tools"}) {
    if (const std::string_view raw = GivenIn(chat, name); !raw.empty())
      AppendField(name, raw, &question.body);
  }
  const absl::StatusOr<std::string> variables = VariablesOf(chat);
  if (!variables.ok()) return variables.status();
  if (!variables->empty()) AppendField("chat_template_kwargs", *variables, &question.body);
  const std::string_view effort = GivenIn(chat, "reasoning_effort");
  question.wrong_for_harmony = !effort.empty() && effort != "\"medium\"";
  return question;
}

// SGLang's TokenizeRequest hands fields that it does not know on to the chat, which drops those
// that it does not know either: all of the client's fields are passed on. Left out are those that
// /tokenize obeys and the chat does not: `add_generation_prompt` and with it `add_special_tokens`,
// and a prompt beside the messages.
absl::StatusOr<EngineQuestion> SglangChat(const JsonFields& chat, EngineQuestion question) {
  if (const absl::Status bad = MessagesOf(chat).status(); !bad.ok()) return bad;
  for (const auto& [name, raw] : chat) {
    if (name == "model" || name == "add_generation_prompt" || name == "add_special_tokens" ||
        name == "prompt" || raw == "null")
      continue;
    // These change no token and differ between requests of one prompt. Without them more questions
    // are equal, and found in the cache of answers.
    if (name == "stream" || name == "stream_options" || name == "user") continue;
    AppendField(name, raw, &question.body);
  }
  return question;
}

// A text, or the first of several, as it is written. Ids are refused: they need no tokenizer.
absl::StatusOr<std::string> FirstText(std::string_view raw) {
  if (!raw.starts_with('[')) return std::string(raw);
  JsonText array(raw);
  absl::StatusOr<std::vector<std::string_view>> items = array.AsItems();
  if (!items.ok() || items->empty() || !items->front().starts_with('"'))
    return absl::InvalidArgumentError("prompt is neither text nor token ids");
  return std::string(items->front());
}

// The question for a text, alike for both engines but for the fields that each of them reads.
absl::StatusOr<EngineQuestion> Completion(EngineKind engine, RequestPath path,
                                          const JsonFields& request, EngineQuestion question) {
  // SGLang ignores these fields: without a --completion-template it drops a suffix.
  const bool vllm = engine != EngineKind::kSglang;
  for (const char* name : {"suffix", "truncate_prompt_tokens", "prompt_embeds"})
    if (vllm && !GivenIn(request, name).empty()) return Lacks(name);
  for (const char* name : {"image_data", "audio_data", "video_data", "input_embeds"})
    if (path == RequestPath::kSglangGenerate && !GivenIn(request, name).empty()) return Lacks(name);
  const std::string_view text =
      GivenIn(request, path == RequestPath::kSglangGenerate ? "text" : "prompt");
  if (text.empty()) return absl::InvalidArgumentError("prompt is missing");
  const absl::StatusOr<std::string> first = FirstText(text);
  if (!first.ok()) return first.status();
  // Both engines refuse an empty prompt, and /tokenize does not.
  if (*first == "\"\"") return absl::InvalidArgumentError("the prompt is empty");
  AppendField("prompt", *first, &question.body);
  if (const std::string_view adds = GivenIn(request, "add_special_tokens"); vllm && !adds.empty())
    AppendField("add_special_tokens", adds, &question.body);
  return question;
}

// `kChatOrCompletion` is settled by the body.
RequestPath Decided(const BodyPrompt& prompt, const JsonFields& fields) {
  if (prompt.path != RequestPath::kChatOrCompletion) return prompt.path;
  return GivenIn(fields, "messages").empty() ? RequestPath::kCompletions : RequestPath::kChat;
}

using Json = nlohmann::json;

// An engine's words about a refusal are cut to this many bytes.
constexpr size_t kWordsMax = 500;

// The words of an error: {"error": {"message": …}}, {"message": …}, {"detail": …}, or the text
// itself.
std::string WordsOf(std::string_view body) {
  const Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const Json* at = &json;
  if (at->is_object() && at->contains("error")) at = &(*at)["error"];
  for (const char* name : {"message", "detail"}) {
    if (at->is_object() && at->contains(name)) at = &(*at)[name];
  }
  std::string words = at->is_string() ? at->get<std::string>() : std::string(body);
  if (words.size() > kWordsMax) words.resize(kWordsMax);
  return words;
}

// Reads the place and the hash of each multimodal item (scale_out/token_in_token_out/protocol.py,
// MultiModalFeatures): two objects, `mm_hashes` and `mm_placeholders`, with equal lists by kind of
// media. False: they are not of this form, or a place lies outside the prompt; without them the
// blocks' hashes would be wrong, so the whole answer is refused. Afterwards `items` are in the
// order of their places, whatever their kind.
bool ReadItems(const Json& features, size_t tokens, std::vector<PromptItem>* items) {
  if (features.is_null()) return true;
  if (!features.is_object()) return false;
  const auto hashes = features.find("mm_hashes");
  const auto places = features.find("mm_placeholders");
  if (hashes == features.end() || places == features.end()) return features.empty();
  if (!hashes->is_object() || !places->is_object() || hashes->size() != places->size())
    return false;
  for (const auto& [kind, of_kind] : hashes->items()) {
    const auto at = places->find(kind);
    if (at == places->end() || !of_kind.is_array() || !at->is_array() ||
        of_kind.size() != at->size())
      return false;
    for (size_t i = 0; i < of_kind.size(); ++i) {
      const Json& place = (*at)[i];
      if (!of_kind[i].is_string() || !place.is_object()) return false;
      const auto offset = place.find("offset");
      const auto length = place.find("length");
      if (offset == place.end() || length == place.end() || !offset->is_number_unsigned() ||
          !length->is_number_unsigned())
        return false;
      items->push_back({.offset = offset->get<size_t>(),
                        .length = length->get<size_t>(),
                        .hash = MultimodalHash(of_kind[i].get<std::string>())});
      if (items->back().offset > tokens || items->back().length > tokens - items->back().offset)
        return false;
    }
  }
  std::sort(items->begin(), items->end(),
            [](const PromptItem& a, const PromptItem& b) { return a.offset < b.offset; });
  return true;
}

// Each prompt of gpt-oss begins so in Harmony's form: <|start|>system<|message|> of o200k_harmony.
// Tells from the answer alone that the model is one of them.
constexpr std::array<TokenId, 3> kHarmonyBegins = {200006, 17360, 200008};

// The beginning of a question: the model by the name that the engine was asked for.
std::string Begun(const std::string& model) { return "{\"model\":" + Quoted(model); }

}  // namespace

const char* PathName(RequestPath path) {
  switch (path) {
    case RequestPath::kResponses:
      return "/v1/responses";
    case RequestPath::kMessages:
      return "/v1/messages";
    case RequestPath::kVllmGenerate:
      return "/inference/v1/generate";
    case RequestPath::kSglangGenerate:
      return "/generate";
    case RequestPath::kCompletions:
      return "/v1/completions";
    case RequestPath::kChat:
    case RequestPath::kChatOrCompletion:
      break;
  }
  return "/v1/chat/completions";
}

// Paths but chats and completions (/v1/responses, /v1/messages, ids) have no /tokenize.
absl::StatusOr<EngineQuestion> TokenizeQuestion(EngineKind engine, const std::string& model,
                                                const Prompt& prompt) {
  EngineQuestion question{.target = "/tokenize", .body = Begun(model)};
  absl::StatusOr<EngineQuestion> made = question;
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) {
    AppendField("prompt", Quoted(text->text), &made->body);
    if (text->add_special_tokens.has_value())
      AppendField("add_special_tokens", *text->add_special_tokens ? "true" : "false", &made->body);
  } else {
    const BodyPrompt& request = std::get<BodyPrompt>(prompt);
    JsonText body(*request.body);
    const absl::StatusOr<JsonFields> fields = body.AsFields();
    if (!fields.ok()) return fields.status();
    const RequestPath path = Decided(request, *fields);
    switch (path) {
      case RequestPath::kChat:
        made = engine == EngineKind::kSglang ? SglangChat(*fields, question)
                                             : VllmChat(*fields, question);
        break;
      case RequestPath::kCompletions:
      case RequestPath::kSglangGenerate:
        made = Completion(engine, path, *fields, question);
        break;
      default:
        return Lacks(PathName(path));
    }
  }
  if (made.ok()) made->body += '}';
  return made;
}

// Passes on the client's body, as a render endpoint reads it like the path itself does. Left out
// are fields that change no token, and those that say how media come back: "mm_payload": "none"
// asks for their hashes and places without their data.
absl::StatusOr<EngineQuestion> RenderQuestion(EngineKind engine, const std::string& model,
                                              const Prompt& prompt) {
  if (engine == EngineKind::kSglang)
    return absl::UnimplementedError("SGLang has no render endpoints");
  EngineQuestion question{.target = "/v1/completions/render", .body = Begun(model)};
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) {
    AppendField("prompt", Quoted(text->text), &question.body);
    if (text->add_special_tokens.has_value())
      AppendField("add_special_tokens", *text->add_special_tokens ? "true" : "false",
                  &question.body);
    question.body += ",\"max_tokens\":1}";
    return question;
  }
  const BodyPrompt& request = std::get<BodyPrompt>(prompt);
  JsonText body(*request.body);
  const absl::StatusOr<JsonFields> fields = body.AsFields();
  if (!fields.ok()) return fields.status();
  const RequestPath path = Decided(request, *fields);
  if (path == RequestPath::kVllmGenerate || path == RequestPath::kSglangGenerate)
    return absl::UnimplementedError(absl::StrCat("no render endpoint takes ", PathName(path)));
  // A render endpoint does not know the responses that another engine stored.
  if (!GivenIn(*fields, "previous_response_id").empty())
    return absl::UnimplementedError("render endpoints do not know previous_response_id");
  question.target = absl::StrCat(PathName(path), "/render");
  for (const auto& [name, raw] : *fields) {
    // A stream's options are refused without a stream.
    if (name == "model" || name == "stream" || name == "stream_options" || name == "user" ||
        name == "mm_payload" || name == "return_mm_kwargs")
      continue;
    AppendField(name, raw, &question.body);
  }
  question.body += ",\"mm_payload\":\"none\"}";
  return question;
}

bool LacksEndpoint(int status, std::string_view body) {
  // 403: vLLM without --enable-scale-out (scale_out/factories.py). A 404 of an unknown path has no
  // other words than "Not Found" (FastAPI); a 404 of an unknown model has.
  if (status == 404) return WordsOf(body) == "Not Found";
  return status == 403 || status == 405 || status == 501;
}

// By status first, then by form. vLLM's /tokenize has "tokens", a render endpoint "token_ids", a
// render of completions a list, of which the first entry is the prompt. An answer that is not fully
// understood is UNAVAILABLE: another engine may do better.
absl::StatusOr<PromptTokens> ReadEngineAnswer(const EngineQuestion& question, int status,
                                              std::string_view body) {
  if (status == 400 || status == 413 || status == 422)
    return absl::InvalidArgumentError("the engine refuses the prompt: " + WordsOf(body));
  if (status == 404) return absl::NotFoundError("the engine does not know it: " + WordsOf(body));
  if (status != 200) return absl::UnavailableError("it answered " + std::to_string(status));
  const Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const Json* of = &json;
  if (of->is_array() && !of->empty()) of = &of->front();
  const Json* ids = nullptr;
  for (const char* name : {"token_ids", "tokens"}) {
    if (!of->is_object() || ids != nullptr) break;
    if (const auto found = of->find(name); found != of->end() && found->is_array()) ids = &*found;
  }
  if (ids == nullptr) return absl::UnavailableError("its answer has no tokens");
  PromptTokens answer;
  answer.tokens.reserve(ids->size());
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<uint32_t>::max())
      return absl::UnavailableError("its answer has tokens that are none");
    answer.tokens.push_back(static_cast<TokenId>(id.get<uint32_t>()));
  }
  if (const auto features = of->find("features");
      features != of->end() && !ReadItems(*features, answer.tokens.size(), &answer.items))
    return absl::UnavailableError("its answer has multimodal items that are none");
  if (question.wrong_for_harmony && answer.tokens.size() > kHarmonyBegins.size() &&
      std::equal(kHarmonyBegins.begin(), kHarmonyBegins.end(), answer.tokens.begin()))
    return Lacks("reasoning_effort of a model in Harmony's form");
  return answer;
}

}  // namespace kvatlas
