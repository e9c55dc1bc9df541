// What does an OpenAI client understand as an error? The body that its libraries read: what went wrong, of which kind, and in
// which field.
//
//   {"error": {"message": "messages is missing", "type": "invalid_request_error", "param": "messages", "code": null}}

#ifndef KVATLAS_FRONTEND_DOORS_HTTP_OPENAI_ERROR_H_
#define KVATLAS_FRONTEND_DOORS_HTTP_OPENAI_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/service/http_server.h"

namespace kvatlas {

// `param`: the field; `code`: what OpenAI calls it; empty: none.
std::string OpenAiErrorBody(int status, std::string_view message, std::string_view param = {},
                            std::string_view code = {});

// The status of a request that was not routed: `HttpStatusOf`, but of what is RESOURCE_EXHAUSTED 429 says that the fleet is
// overloaded (`RetryAfter`), and 413 that the prompt is too large.
int RouteHttpStatus(const absl::Status& why);

// Of a request that was refused, or could not be brought to an engine. Of INVALID_ARGUMENT the first word is the field, where
// the message begins as "FIELD is …". NOT_FOUND is the model: nobody serves it, or makes tokens for it. A fleet that is overloaded says when to come again (`retry-after`).
HttpResponse OpenAiError(const absl::Status& why);

// `retry-after` in seconds, of a fleet that is overloaded; else nothing.
HttpHeaders RetryAfterHeaders(const absl::Status& why);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_DOORS_HTTP_OPENAI_ERROR_H_
