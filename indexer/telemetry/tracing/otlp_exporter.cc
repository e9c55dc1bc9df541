#include "indexer/telemetry/tracing/otlp_exporter.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <unistd.h>

#include <utility>
#include <variant>

#include "indexer/base/version.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/net/grpc_status.h"
#include "indexer/telemetry/tracing/tracer.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

namespace kvatlas {
namespace {

namespace otlp = opentelemetry::proto;

// Big-endian: OTLP has ids as bytes in the order of their hexadecimal digits.
void AppendBytes(uint64_t value, std::string* bytes) {
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes->push_back(static_cast<char>(value >> shift & 0xff));
}

// Empty for 0: a root has no parent.
std::string SpanId(uint64_t span) {
  std::string bytes;
  if (span != 0) AppendBytes(span, &bytes);
  return bytes;
}

void AddText(const char* name, const std::string& value, otlp::resource::v1::Resource* resource) {
  otlp::common::v1::KeyValue* const attribute = resource->add_attributes();
  attribute->set_key(name);
  attribute->mutable_value()->set_string_value(value);
}

// The end is the start by the wall clock plus the monotonic duration, so it is never before the
// start. A span without failure leaves the status unset.
void ToProto(const SpanData& span, otlp::trace::v1::Span* proto) {
  AppendBytes(span.context.trace_high, proto->mutable_trace_id());
  AppendBytes(span.context.trace_low, proto->mutable_trace_id());
  proto->set_span_id(SpanId(span.context.span));
  proto->set_parent_span_id(SpanId(span.parent));
  proto->set_name(span.name);
  proto->set_kind(static_cast<otlp::trace::v1::Span::SpanKind>(span.kind));
  proto->set_start_time_unix_nano(span.started_unix_ns);
  proto->set_end_time_unix_nano(span.started_unix_ns + static_cast<uint64_t>(span.took.count()));
  for (const auto& [name, value] : span.attributes) {
    otlp::common::v1::KeyValue* const attribute = proto->add_attributes();
    attribute->set_key(name);
    if (const auto* number = std::get_if<int64_t>(&value)) {
      attribute->mutable_value()->set_int_value(*number);
    } else {
      attribute->mutable_value()->set_string_value(std::get<std::string>(value));
    }
  }
  if (!span.failed) return;
  proto->mutable_status()->set_code(otlp::trace::v1::Status::STATUS_CODE_ERROR);
  proto->mutable_status()->set_message(span.error);
}

}  // namespace

struct OtlpExporter::Impl {
  std::string endpoint;
  std::string program;
  std::unique_ptr<otlp::collector::trace::v1::TraceService::Stub> stub;
};

OtlpExporter::OtlpExporter(std::string endpoint, std::string program)
    : impl_(std::make_unique<Impl>(Impl{std::move(endpoint), std::move(program), nullptr})) {}
OtlpExporter::~OtlpExporter() = default;

// The channel is made with the first batch, on the exporter's thread: a program that is never
// traced does not connect.
absl::Status OtlpExporter::Export(const std::vector<std::unique_ptr<SpanData>>& spans,
                                  Duration timeout) {
  if (impl_->stub == nullptr) {
    // Without keepalive: collectors refuse a connection whose pings come more often than every five
    // minutes (too_many_pings), and each call has a deadline of its own.
    impl_->stub = otlp::collector::trace::v1::TraceService::NewStub(
        MakeChannel(impl_->endpoint, {.keepalive_time = Duration::max()}));
  }
  otlp::collector::trace::v1::ExportTraceServiceRequest request;
  otlp::trace::v1::ResourceSpans* const resource = request.add_resource_spans();
  AddText("service.name", impl_->program, resource->mutable_resource());
  AddText("service.version", kVersion, resource->mutable_resource());
  AddText("process.pid", std::to_string(getpid()), resource->mutable_resource());
  otlp::trace::v1::ScopeSpans* const scope = resource->add_scope_spans();
  scope->mutable_scope()->set_name("kvatlas");
  for (const std::unique_ptr<SpanData>& span : spans) ToProto(*span, scope->add_spans());
  otlp::collector::trace::v1::ExportTraceServiceResponse response;
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(timeout));
  return FromGrpcStatus(impl_->stub->Export(&context, request, &response));
}

}  // namespace kvatlas
