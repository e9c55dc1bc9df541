#include "indexer/compat/dynamo/http_metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

namespace kvatlas {
namespace {

// 0.1 ms to about 52 s, each bound twice the one before.
std::vector<double> DurationBuckets() {
  std::vector<double> buckets;
  for (double bound = 1e-4; buckets.size() < 20; bound *= 2) buckets.push_back(bound);
  return buckets;
}

// Methods that get a counter of their own. A client may send any word as a method: others share
// "other", so that the number of series is bounded.
constexpr std::array<std::string_view, 7> kMethods = {"GET",    "HEAD",    "POST", "PUT",
                                                      "DELETE", "OPTIONS", "PATCH"};

}  // namespace

HttpEndpointMetrics::HttpEndpointMetrics(std::string endpoint, Metrics* metrics, HttpAccessLog* log)
    : endpoint_(std::move(endpoint)),
      metrics_(metrics),
      log_(log),
      seconds_(metrics->AddHistogram("dynamo_kvindexer_request_duration_seconds",
                                     "HTTP request latency", DurationBuckets(),
                                     {{"endpoint", endpoint_}})) {}

// Called by the server for every request of the endpoint, after it was answered, on the thread that
// did.
void HttpEndpointMetrics::Answered(const HttpRequest& request, std::string_view method,
                                   const HttpResponse& response, Duration took) {
  seconds_.Observe(std::chrono::duration<double>(took).count());
  Count(method);
  if (response.status >= 400) {
    metrics_
        ->AddCounter(
            "dynamo_kvindexer_errors_total", "HTTP error responses (4xx/5xx)",
            {{"endpoint", endpoint_}, {"status_class", response.status >= 500 ? "5xx" : "4xx"}})
        .Increment();
  }
  if (log_ != nullptr) log_->Write(request, method, response, took);
}

// Counters are made at their first use: a scrape has no zeros of unused methods.
void HttpEndpointMetrics::Count(std::string_view method) {
  if (std::find(kMethods.begin(), kMethods.end(), method) == kMethods.end()) method = "other";
  MutexLock lock(&mutex_);
  auto counter = requests_.find(method);
  if (counter == requests_.end()) {
    counter = requests_
                  .emplace(std::string(method),
                           metrics_->AddCounter(
                               "dynamo_kvindexer_requests_total", "Total HTTP requests",
                               {{"endpoint", endpoint_}, {"method", std::string(method)}}))
                  .first;
  }
  counter->second.Increment();
}

}  // namespace kvatlas
