#include "frontend/doors/errors.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "frontend/prompt/error_code.h"
#include "frontend/route/frontend.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// Of what is away and does not say for how long.
constexpr Duration kRetryAfter = std::chrono::seconds(1);

const char* TypeOf(int http_status) {
  switch (http_status) {
    case 401:
    case 403:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

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

// "messages" of "messages is missing".
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

ClientError ToClientError(const absl::Status& why) {
  ClientError error;
  error.message = std::string(why.message().data(), why.message().size());
  error.retry_after = RetryAfter(why);
  error.http_status = StatusNumber(why, error.retry_after.has_value());
  error.type = TypeOf(error.http_status);
  if (error.http_status == 503 && !error.retry_after.has_value()) error.retry_after = kRetryAfter;
  error.code = ErrorCodeOf(why);
  if (error.http_status == 404 && error.code.empty()) error.code = kModelNotFound;
  if (error.code == kModelNotFound || error.code == kTokenizerNotFound) error.param = "model";
  if (error.http_status == 400) error.param = std::string(FieldOf(error.message));
  return error;
}

std::string OpenAiErrorBody(const ClientError& error) {
  const Json body = {{"error",
                      {{"message", error.message},
                       {"type", error.type},
                       {"param", TextOrNull(error.param)},
                       {"code", TextOrNull(error.code)}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string OpenAiErrorBody(int http_status, std::string_view message) {
  return OpenAiErrorBody(ClientError{.http_status = http_status,
                                     .type = TypeOf(http_status),
                                     .code = {},
                                     .param = {},
                                     .message = std::string(message)});
}

HttpResponse OpenAiError(const absl::Status& why) {
  const ClientError error = ToClientError(why);
  HttpResponse response{.status = error.http_status, .body = OpenAiErrorBody(error)};
  AddRetryAfter(error, &response);
  return response;
}

HttpResponse PlainError(const absl::Status& why) {
  const ClientError error = ToClientError(why);
  HttpResponse response =
      HttpError(error.http_status, why.ToString(absl::StatusToStringMode::kWithNoExtraData));
  AddRetryAfter(error, &response);
  return response;
}

std::string RetryAfterSeconds(Duration retry_after) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(retry_after).count();
  return std::to_string(std::max<int64_t>(seconds, 1));
}

}  // namespace kvatlas
