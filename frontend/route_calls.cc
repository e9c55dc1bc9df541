#include "frontend/route_calls.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/openai/json_depth.h"
#include "frontend/wire.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kForever = std::chrono::hours(1);
constexpr Duration kQueueWaitMax = std::chrono::minutes(1);

// A tenth of what is left is for the way back.
Duration Within(Duration wanted, Duration left) {
  return std::max<Duration>(std::min({wanted, left - left / 10, kForever}), Duration(1));
}

// Nobody waits for a worker longer than its caller waits for the answer.
void BoundQueueWait(const Frontend& frontend, Duration left, RouteInput* input) {
  input->queue_wait = std::min({input->queue_wait.value_or(frontend.options().queue_wait),
                                std::max(left, Duration(0)), kQueueWaitMax});
}

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

absl::StatusOr<Prompt> ReadPrompt(const v1::RouteRequest& request) {
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

}  // namespace

void RouteCalls::Ask(const v1::RouteRequest& request, Duration left, Callback callback) const {
  absl::StatusOr<RouteInput> input = FromProto(request);
  if (input.ok() && request.has_text() + request.has_chat() + request.has_tokens() +
                            (request.sequence_hashes_size() > 0) >
                        1) {
    input = absl::InvalidArgumentError("more than one of tokens, sequence_hashes, text and chat");
  }
  if (!input.ok()) {
    count_(input.status());
    return callback(input.status());
  }
  if (request.has_text() || request.has_chat())
    return AskPrompt(request, *std::move(input), left, std::move(callback));
  const auto prompt_tokens = static_cast<uint32_t>(input->tokens.size());
  // No use in an answer after the caller's own deadline.
  const Duration wanted =
      input->deadline > Duration(0) ? input->deadline : frontend_->options().deadline;
  input->deadline = Within(wanted, left);
  BoundQueueWait(*frontend_, left, &*input);
  frontend_->RouteAsync(*std::move(input), [this, prompt_tokens, callback = std::move(callback)](
                                               absl::StatusOr<RouteResult> result) {
    count_(result);
    if (!result.ok()) return callback(result.status());
    v1::RouteResponse response = ToProto(*result);
    response.set_prompt_tokens(prompt_tokens);
    callback(std::move(response));
  });
}

void RouteCalls::AskPrompt(const v1::RouteRequest& request, RouteInput input, Duration left,
                           Callback callback) const {
  absl::StatusOr<Prompt> prompt = ReadPrompt(request);
  if (prompt.ok() && router_ == nullptr)
    prompt = absl::NotFoundError("no tokenizer for model \"" + request.domain().model() +
                                 "\": this frontend has none");
  if (!prompt.ok()) {
    count_(prompt.status());
    return callback(prompt.status());
  }
  input.lora_name = request.has_chat() ? request.chat().lora_name() : request.text().lora_name();
  input.cache_salt = request.has_chat() ? request.chat().cache_salt() : request.text().cache_salt();
  const Duration wanted = input.deadline;
  BoundQueueWait(*frontend_, left, &input);
  router_->Route({.input = std::move(input),
                  .prompt = *std::move(prompt),
                  .return_tokens = request.return_tokens(),
                  .deadline = Within(wanted > Duration(0) ? wanted : left, left)},
                 Told(std::move(callback)));
}

void RouteCalls::Ask(const v1::RouteChatRequest& request, Duration left, Callback callback) const {
  PromptQuestion question;
  question.input.domain.tenant = request.tenant();
  question.return_tokens = request.return_tokens();
  const Duration wanted = std::chrono::milliseconds(request.deadline_ms());
  question.input.deadline = wanted;
  question.deadline = Within(wanted > Duration(0) ? wanted : left, left);
  if (absl::Status bad = ChoiceFromProto(request, &question.input); !bad.ok()) {
    count_(bad);
    return callback(std::move(bad));
  }
  BoundQueueWait(*frontend_, left, &question.input);
  AskBody(OpenAiCall::kEither, std::make_shared<const std::string>(request.body()),
          std::move(question), std::move(callback));
}

void RouteCalls::AskBody(OpenAiCall call, std::shared_ptr<const std::string> body,
                         PromptQuestion question, Callback callback) const {
  if (router_ == nullptr) {
    absl::Status none = absl::NotFoundError("no tokenizer: this frontend has none");
    count_(none);
    return callback(std::move(none));
  }
  router_->RouteBody(call, std::move(body), std::move(question), Told(std::move(callback)));
}

PromptRouter::Callback RouteCalls::Told(Callback callback) const {
  return [this, callback = std::move(callback)](const absl::StatusOr<PromptRoute>& answer) {
    if (!answer.ok()) {
      count_(answer.status());
      return callback(answer.status());
    }
    count_(answer->route);
    callback(ToProto(*answer));
  };
}

void RouteCalls::Release(uint64_t decision_id) const {
  frontend_->Report(decision_id, {.abandoned = true});
}

void RouteCalls::Report(const v1::ReportRequest& request) const {
  count_report_();
  frontend_->Report(request.decision_id(), FromProto(request));
}

}  // namespace kvatlas
