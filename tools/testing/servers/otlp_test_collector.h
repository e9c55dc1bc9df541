// A collector for tests: OTLP's real service over gRPC, which keeps all spans that it is sent.
//
// *Threads*: any.

#ifndef KVATLAS_TOOLS_TESTING_SERVERS_OTLP_TEST_COLLECTOR_H_
#define KVATLAS_TOOLS_TESTING_SERVERS_OTLP_TEST_COLLECTOR_H_

#include <grpcpp/server_context.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/address.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_server.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

namespace kvatlas {

// And the process that it came from.
struct CollectedSpan {
  opentelemetry::proto::trace::v1::Span span;
  opentelemetry::proto::resource::v1::Resource resource;

  // "service.name".
  std::string program() const {
    for (const auto& attribute : resource.attributes())
      if (attribute.key() == "service.name") return attribute.value().string_value();
    return "";
  }
};

class OtlpTestCollector final
    : public opentelemetry::proto::collector::trace::v1::TraceService::Service {
 public:
  OtlpTestCollector() : server_({.listen = {"127.0.0.1", 0}}) {
    server_.Register(this);
    EXPECT_TRUE(server_.Start().ok());
  }
  ~OtlpTestCollector() override { server_.Stop(Duration::zero()); }

  grpc::Status Export(
      grpc::ServerContext*,
      const opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest* request,
      opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse*) override {
    MutexLock lock(&mutex_);
    ++calls_;
    if (refuses_) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
    for (const auto& resource : request->resource_spans())
      for (const auto& scope : resource.scope_spans())
        for (const auto& span : scope.spans()) spans_.push_back({span, resource.resource()});
    return grpc::Status::OK;
  }

  std::string address() const { return server_.address().ToString(); }
  std::vector<CollectedSpan> Spans() {
    MutexLock lock(&mutex_);
    return spans_;
  }
  // The first of this name.
  std::optional<CollectedSpan> Find(const std::string& name) {
    MutexLock lock(&mutex_);
    for (const CollectedSpan& one : spans_)
      if (one.span.name() == name) return one;
    return std::nullopt;
  }
  int calls() {
    MutexLock lock(&mutex_);
    return calls_;
  }
  // From now on.
  void Refuse() {
    MutexLock lock(&mutex_);
    refuses_ = true;
  }

 private:
  Mutex mutex_;
  std::vector<CollectedSpan> spans_ ABSL_GUARDED_BY(mutex_);
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool refuses_ ABSL_GUARDED_BY(mutex_) = false;
  GrpcServer server_;
};

// Lower case, as in a traceparent.
inline std::string HexOf(const std::string& bytes) {
  std::string hex;
  for (const unsigned char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += {kDigits[c >> 4], kDigits[c & 15]};
  }
  return hex;
}

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SERVERS_OTLP_TEST_COLLECTOR_H_
