// The one table of errors for clients of every interface: gRPC, HTTP, the proxy, Envoy's ext_proc
// and C.
//
//   status                                          HTTP  type                     Anthropic's type       retry-after
//   INVALID_ARGUMENT, OUT_OF_RANGE                   400  BadRequestError          invalid_request_error
//   UNAUTHENTICATED                                  401  AuthenticationError      authentication_error
//   PERMISSION_DENIED                                403  PermissionDeniedError    permission_error
//   NOT_FOUND                                        404  NotFoundError            not_found_error
//   ALREADY_EXISTS, FAILED_PRECONDITION              409  BadRequestError          invalid_request_error
//   RESOURCE_EXHAUSTED: the request is too large     413  BadRequestError          request_too_large
//   RESOURCE_EXHAUSTED with a time (`RetryAfter`)    429  RateLimitError           rate_limit_error       that
//   UNIMPLEMENTED                                    501  NotImplementedError      api_error
//   UNAVAILABLE                                      503  ServiceUnavailableError  overloaded_error       that, or 1 s
//   DEADLINE_EXCEEDED                                504  InternalServerError      api_error
//   others                                           500  InternalServerError      api_error
//
// gRPC and C give the status' own code and message; gRPC adds the time as trailing metadata
// `retry-after-ms`.
//
// *Truth*: bodies and types are those of the engines, so that a client needs no second way to read
// them: vLLM's (serve/exception_handling/error_response.py; `code` is the HTTP status, a number)
// and, below /v1/messages, those of anthropic/protocol.py. Of a model that leaves do not know the
// message is vLLM's too (`UnknownModelError`), at every door and whatever the prompt is. A message
// names no address.
// *Threads*: pure functions.
//
// Example:
//   if (!route.ok()) return exchange->Answer(ErrorAnswer(route.status(), ErrorShapeOf(path)));

#ifndef KVATLAS_FRONTEND_GATEWAY_ERRORS_H_
#define KVATLAS_FRONTEND_GATEWAY_ERRORS_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/net/http_server.h"

namespace kvatlas {

struct ClientError {
  int http_status = 500;
  std::string param;    // the field that is wrong; empty: none, or not known
  std::string message;  // what was expected, what was found, what to do
  std::optional<Duration> retry_after = {};
};

// REQUIRES: `why` is not OK. Of INVALID_ARGUMENT the first word is `param`, where the message
// begins as "FIELD is …".
ClientError ToClientError(const absl::Status& why);

// The form of errors that a client of this path reads.
enum class ErrorShape { kOpenAi, kAnthropic };
ErrorShape ErrorShapeOf(std::string_view path);

// {"error": {"message": "messages is missing", "type": "BadRequestError", "param": "messages",
// "code": 400}}, or {"type": "error", "error": {"type": "invalid_request_error", "message":
// "messages is missing"}}.
std::string ErrorBody(const ClientError& error, ErrorShape shape = ErrorShape::kOpenAi);
// For a request that was refused by its HTTP alone.
std::string ErrorBody(int http_status, std::string_view message,
                      ErrorShape shape = ErrorShape::kOpenAi);
HttpResponse ErrorAnswer(const absl::Status& why, ErrorShape shape = ErrorShape::kOpenAi);

// {"error": "INVALID_ARGUMENT: tokens is not an array"}: of calls that are not OpenAI's.
HttpResponse PlainError(const absl::Status& why);

// In whole seconds, at least one, as the header `retry-after` has it.
std::string RetryAfterSeconds(Duration retry_after);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_ERRORS_H_
