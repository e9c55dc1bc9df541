// From the struct of C to a question of the router. Everything is copied: the caller's memory is
// free when the call returns.

#include "frontend/gateway/c/route_question.h"

#include <utility>

#include "absl/status/status.h"
#include "frontend/gateway/c/arguments.h"
#include "frontend/gateway/grpc/prompt_wire.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "indexer/base/ids.h"
#include "indexer/process/c_api.h"
#include "proto/kvatlas/v1/frontend.pb.h"

namespace kvatlas {
namespace {

// At most one prompt. None is allowed here: the route itself refuses a request without a prompt.
absl::Status CheckRequest(const kvatlas_route_request& given) {
  if (!Fits(given.tokens, given.tokens_count) ||
      !Fits(given.sequence_hashes, given.sequence_hashes_count) ||
      !Fits(given.allowed_workers, given.allowed_workers_count) ||
      !Fits(given.text, given.text_size) || !Fits(given.body, given.body_size)) {
    return absl::InvalidArgumentError("an array is NULL and has a count");
  }
  if (given.allowed_workers_count > kTextsMax)
    return absl::InvalidArgumentError("allowed_workers_count: too many");
  const int prompts = (given.tokens_count > 0) + (given.sequence_hashes_count > 0) +
                      (given.text != nullptr) + (given.messages_json != nullptr) +
                      (given.body != nullptr);
  if (prompts > 1) {
    return absl::InvalidArgumentError(
        "more than one of tokens, sequence_hashes, text, messages_json and body");
  }
  return absl::OkStatus();
}

// A negative `add_special_tokens` leaves the decision to the tokenizer, as engines do.
TextPrompt TextOf(const kvatlas_route_request& given) {
  TextPrompt text{.text = std::string(given.text, given.text_size)};
  if (given.add_special_tokens >= 0) text.add_special_tokens = given.add_special_tokens != 0;
  return text;
}

// Through the wire's message, so that a chat is read by the same code as over gRPC.
absl::StatusOr<Prompt> ChatOf(const kvatlas_route_request& given) {
  v1::RouteRequest request;
  v1::ChatPrompt& chat = *request.mutable_chat();
  chat.set_messages_json(given.messages_json);
  chat.set_tools_json(StringOf(given.tools_json));
  chat.set_template_kwargs_json(StringOf(given.template_kwargs_json));
  chat.set_chat_template(StringOf(given.chat_template));
  chat.set_add_generation_prompt(given.add_generation_prompt != 0);
  chat.set_continue_final_message(given.continue_final_message != 0);
  if (given.add_special_tokens >= 0) chat.set_add_special_tokens(given.add_special_tokens != 0);
  return PromptFromProto(request);
}

// Not for `body`, which says its model and salt itself.
RouteInput InputOf(const kvatlas_route_request& given) {
  RouteInput input;
  input.domain = {StringOf(given.model), StringOf(given.tenant)};
  if (given.tokens_count > 0) input.tokens.assign(given.tokens, given.tokens + given.tokens_count);
  input.sequence_hashes.reserve(given.sequence_hashes_count);
  for (size_t i = 0; i < given.sequence_hashes_count; ++i)
    input.sequence_hashes.push_back(SequenceHash{given.sequence_hashes[i]});
  input.prompt_tokens = given.prompt_tokens;
  input.lora_name = StringOf(given.lora_name);
  input.cache_salt = StringOf(given.cache_salt);
  input.session_id = StringOf(given.session_id);
  for (size_t i = 0; i < given.allowed_workers_count; ++i)
    input.allowed_workers.push_back(StringOf(given.allowed_workers[i]));
  input.expected_output_tokens = given.expected_output_tokens;
  input.deadline = Us(given.deadline_us);
  return input;
}

}  // namespace

// `Whole` fills in fields that an older header did not have.
absl::StatusOr<AskedRoute> AskedOf(const kvatlas_route_request* request) {
  if (!IsInitialized(request))
    return absl::InvalidArgumentError("request: not from kvatlas_route_request_init");
  const kvatlas_route_request given = Whole(*request, &kvatlas_route_request_init);
  if (absl::Status bad = CheckRequest(given); !bad.ok()) return bad;
  AskedRoute asked{.question = {.input = InputOf(given),
                                .return_tokens = given.return_tokens != 0,
                                .deadline = Us(given.deadline_us)}};
  if (given.body != nullptr) {
    asked.body = std::make_shared<const std::string>(given.body, given.body_size);
  } else if (given.text != nullptr) {
    asked.question.prompt = TextOf(given);
  } else if (given.messages_json != nullptr) {
    absl::StatusOr<Prompt> chat = ChatOf(given);
    if (!chat.ok()) return chat.status();
    asked.question.prompt = *std::move(chat);
  }
  return asked;
}

}  // namespace kvatlas

void kvatlas_route_request_init(kvatlas_route_request* request, size_t struct_size) {
  kvatlas_route_request whole = {};
  whole.struct_size = struct_size;
  whole.add_generation_prompt = 1;
  whole.add_special_tokens = -1;
  kvatlas::InitStruct(whole, request, struct_size);
}
