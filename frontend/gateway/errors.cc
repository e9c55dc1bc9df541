// The table of the header as three functions of the status (`StatusNumber`, `TypeOf`,
// `AnthropicTypeOf`), and the bodies that are built of them.

#include "frontend/gateway/errors.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "frontend/prompt/error_code.h"
#include "frontend/router/frontend.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// The `retry-after` of a 503 whose cause names no time.
constexpr Duration kRetryAfter = std::chrono::seconds(1);

const char* TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 429:
      return "RateLimitError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return http_status < 500 ? "BadRequestError" : "InternalServerError";
  }
}

const char* AnthropicTypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

// The codes for which this table differs from the process's other HTTP (`HttpStatusOf`). A
// RESOURCE_EXHAUSTED with a time is a limit that passes (429); one without is a request that is too
// large, and stays so (413).
int StatusNumber(const absl::Status& why, bool has_retry_after) {
  switch (why.code()) {
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kResourceExhausted:
      return has_retry_after ? 429 : 413;
    case absl::StatusCode::kUnimplemented:
      return 501;
    default:
      return HttpStatusOf(why.code());
  }
}

// "messages" of "messages is missing": by convention the message of an INVALID_ARGUMENT begins with
// its field. Empty: it does not, as its first word is no field's name.
std::string_view FieldOf(std::string_view message) {
  const size_t end = message.find(" is ");
  if (end == std::string_view::npos) return {};
  const std::string_view word = message.substr(0, end);
  const bool name = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '[' ||
           c == ']';
  });
  return name ? word : std::string_view();
}

Json TextOrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

void AddRetryAfter(const ClientError& error, HttpResponse* response) {
  if (error.retry_after.has_value())
    response->headers.emplace_back("retry-after", RetryAfterSeconds(*error.retry_after));
}

}  // namespace

// `param` is the field at fault: of a 400 the one that the message names, and the model where the
// model or its tokenizer is unknown.
ClientError ToClientError(const absl::Status& why) {
  ClientError error;
  error.message = std::string(why.message().data(), why.message().size());
  error.retry_after = RetryAfter(why);
  error.http_status = StatusNumber(why, error.retry_after.has_value());
  if (error.http_status == 503 && !error.retry_after.has_value()) error.retry_after = kRetryAfter;
  if (IsUnknownModel(why) || IsAboutTokenizer(why)) error.param = "model";
  if (error.http_status == 400) error.param = std::string(FieldOf(error.message));
  return error;
}

// Anywhere in the path: a prefix before it changes nothing.
ErrorShape ErrorShapeOf(std::string_view path) {
  const bool anthropic = path.find("/v1/messages") != std::string_view::npos;
  return anthropic ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
}

std::string ErrorBody(const ClientError& error, ErrorShape shape) {
  Json body;
  if (shape == ErrorShape::kAnthropic) {
    body = {{"type", "error"},
            {"error", {{"type", AnthropicTypeOf(error.http_status)}, {"message", error.message}}}};
  } else {
    body = {{"error",
             {{"message", error.message},
              {"type", TypeOf(error.http_status)},
              {"param", TextOrNull(error.param)},
              {"code", error.http_status}}}};
  }
  // A message may quote bytes of a client that are no UTF-8: they must not make `dump` throw.
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ErrorBody(int http_status, std::string_view message, ErrorShape shape) {
  return ErrorBody({.http_status = http_status, .param = {}, .message = std::string(message)},
                   shape);
}

HttpResponse ErrorAnswer(const absl::Status& why, ErrorShape shape) {
  const ClientError error = ToClientError(why);
  HttpResponse response{.status = error.http_status, .body = ErrorBody(error, shape)};
  AddRetryAfter(error, &response);
  return response;
}

// Without the status's payloads, of which `RetryAfter` is one: it is a header here.
HttpResponse PlainError(const absl::Status& why) {
  const ClientError error = ToClientError(why);
  HttpResponse response =
      HttpError(error.http_status, why.ToString(absl::StatusToStringMode::kWithNoExtraData));
  AddRetryAfter(error, &response);
  return response;
}

std::string RetryAfterSeconds(Duration retry_after) {
  // Rounded up: a client that comes back early is refused again.
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(retry_after).count();
  return std::to_string(std::max<int64_t>(seconds, 1));
}

}  // namespace kvatlas
