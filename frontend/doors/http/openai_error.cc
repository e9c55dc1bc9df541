#include "frontend/doors/http/openai_error.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/route/frontend.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

const char* TypeOf(int status) {
  switch (status) {
    case 401:
    case 403:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
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

}  // namespace

std::string OpenAiErrorBody(int status, std::string_view message, std::string_view param,
                            std::string_view code) {
  Json error;
  error["message"] = std::string(message);
  error["type"] = TypeOf(status);
  error["param"] = param.empty() ? Json() : Json(std::string(param));
  error["code"] = code.empty() ? Json() : Json(std::string(code));
  return Json{{"error", std::move(error)}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

int RouteHttpStatus(const absl::Status& why) {
  const bool too_large = absl::IsResourceExhausted(why) && !RetryAfter(why).has_value();
  return too_large ? 413 : HttpStatusOf(why.code());
}

HttpResponse OpenAiError(const absl::Status& why) {
  const std::string_view message(why.message().data(), why.message().size());
  const int status = RouteHttpStatus(why);
  // Nobody serves the model, or makes tokens for it.
  const bool no_model = absl::IsNotFound(why);
  const std::string_view param = no_model ? "model" : status == 400 ? FieldOf(message) : "";
  HttpResponse response{
      .status = status,
      .body = OpenAiErrorBody(status, message, param, no_model ? "model_not_found" : "")};
  response.headers = RetryAfterHeaders(why);
  return response;
}

HttpHeaders RetryAfterHeaders(const absl::Status& why) {
  const std::optional<Duration> retry = RetryAfter(why);
  if (!retry.has_value()) return {};
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(*retry).count();
  return {{"retry-after", std::to_string(std::max<int64_t>(seconds, 1))}};
}

}  // namespace kvatlas
