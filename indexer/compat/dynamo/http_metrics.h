// Requests per endpoint, their durations and refusals, under the names of Dynamo's indexer:
//
//   dynamo_kvindexer_request_duration_seconds{endpoint}, …_requests_total{endpoint,method},
//   …_errors_total{endpoint,status_class}
//
// *Threads*: any. *Lifetime*: metrics and log outlive it, and it the server whose routes it
// observes.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_METRICS_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_METRICS_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/compat/dynamo/http_access_log.h"
#include "indexer/net/http_server.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

// The requests of one endpoint.
class HttpEndpointMetrics : public HttpObserver {
 public:
  // `log` may be null.
  HttpEndpointMetrics(std::string endpoint, Metrics* metrics, HttpAccessLog* log);

  void Answered(const HttpRequest& request, std::string_view method, const HttpResponse& response,
                Duration took) override;

 private:
  void Count(std::string_view method);

  const std::string endpoint_;
  Metrics* const metrics_;
  HttpAccessLog* const log_;
  Histogram seconds_;
  Mutex mutex_;
  std::map<std::string, Counter, std::less<>> requests_ ABSL_GUARDED_BY(mutex_);  // by method
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_METRICS_H_
