// What is a client told when its request fails? The one table of errors of every door: gRPC, HTTP, the proxy, Envoy's ext_proc and C.
//
//   status                                    HTTP  type                    code                    retry-after
//   INVALID_ARGUMENT, OUT_OF_RANGE             400  invalid_request_error
//   UNAUTHENTICATED, PERMISSION_DENIED    401, 403  authentication_error
//   NOT_FOUND                                  404  not_found_error         model_not_found
//   ALREADY_EXISTS, FAILED_PRECONDITION        409  invalid_request_error
//   RESOURCE_EXHAUSTED: the request is too large 413  invalid_request_error
//   RESOURCE_EXHAUSTED with a time (`RetryAfter`)  429  rate_limit_error                                  that
//   UNIMPLEMENTED                              501  server_error
//   UNAVAILABLE                                503  server_error                                    that, or 1 s
//   DEADLINE_EXCEEDED                          504  server_error
//   others                                     500  server_error
//
// gRPC and C give the status' own code and message; gRPC adds the time as trailing metadata `retry-after-ms`.
//
// *Truth*: `code` is model_not_found only when the fleet answered and has no worker of the model; whatever else is not there says so
// by `WithErrorCode` (`error_code.h`). A message names no address.
// *Threads*: pure functions.
//
// Example:
//   if (!route.ok()) return exchange->Answer(OpenAiError(route.status()));

#ifndef KVATLAS_FRONTEND_DOORS_ERRORS_H_
#define KVATLAS_FRONTEND_DOORS_ERRORS_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/service/http_server.h"

namespace kvatlas {

inline constexpr char kModelNotFound[] = "model_not_found";

struct ClientError {
  int http_status = 500;
  std::string type;     // OpenAI's
  std::string code;     // of OpenAI; empty: none
  std::string param;    // the field that is wrong; empty: none, or not known
  std::string message;  // what was expected, what was found, what to do
  std::optional<Duration> retry_after = {};
};

// REQUIRES: `why` is not OK. Of INVALID_ARGUMENT the first word is `param`, where the message begins as "FIELD is …".
ClientError ToClientError(const absl::Status& why);

// {"error": {"message": "messages is missing", "type": "invalid_request_error", "param": "messages", "code": null}}, as OpenAI's
// libraries read it.
std::string OpenAiErrorBody(const ClientError& error);
// Of a request that was refused by its HTTP alone.
std::string OpenAiErrorBody(int http_status, std::string_view message);
HttpResponse OpenAiError(const absl::Status& why);

// {"error": "INVALID_ARGUMENT: tokens is not an array"}: of calls that are not OpenAI's.
HttpResponse PlainError(const absl::Status& why);

// In whole seconds, at least one, as the header `retry-after` has it.
std::string RetryAfterSeconds(Duration retry_after);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_DOORS_ERRORS_H_
