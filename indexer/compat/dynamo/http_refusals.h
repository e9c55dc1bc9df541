// Refusals in the form of Dynamo's indexer, {"error":…}, which Mooncake's door has too.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_REFUSALS_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_REFUSALS_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "indexer/net/http_server.h"
#include "indexer/registry/explain_json.h"

namespace kvatlas {

inline HttpResponse HttpRefusal(int status, std::string_view text) {
  HttpResponse response{.status = status};
  AppendJsonError(text, &response.body);
  return response;
}

// HTTP status and headers as everywhere (`HttpError`), the text as Dynamo's clients read it:
// without the code's name.
inline HttpResponse HttpRefusal(const absl::Status& status) {
  HttpResponse response = HttpError(status);
  response.body.clear();
  const absl::string_view text = status.message();
  AppendJsonError({text.data(), text.size()}, &response.body);
  return response;
}

// For want of memory, or of a place for a long answer: both pass. 503 and not 429, which would
// speak of the client.
inline HttpResponse HttpRefusalForNow(std::string_view why) {
  HttpResponse refused = HttpRefusal(503, why);
  refused.headers.emplace_back("retry-after", "5");
  return refused;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_REFUSALS_H_
