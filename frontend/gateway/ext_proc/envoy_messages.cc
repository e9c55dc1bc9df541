// Reading and writing of Envoy's external-processing messages, field by field. Names of metadata,
// attributes and headers are in the header.

#include "frontend/gateway/ext_proc/envoy_messages.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"

namespace kvatlas {

std::string ValueIn(const ext_proc::HeaderMap& headers, std::string_view key) {
  for (const ext_proc::HeaderValue& header : headers.headers()) {
    // A proxy fills in one of the two values; keys are in lower case, as in HTTP/2.
    if (header.key() == key)
      return header.raw_value().empty() ? header.value() : header.raw_value();
  }
  return "";
}

std::string ValueIn(const ext_proc::HeaderMap& headers, std::span<const std::string_view> keys) {
  for (const std::string_view key : keys)
    if (std::string value = ValueIn(headers, key); !value.empty()) return value;
  return "";
}

std::vector<std::string_view> RoutingHeadersIn(const ext_proc::HeaderMap& headers) {
  std::vector<std::string_view> names;
  for (const std::string_view name : kRoutingHeaders) {
    const bool there =
        std::any_of(headers.headers().begin(), headers.headers().end(),
                    [&](const ext_proc::HeaderValue& header) { return header.key() == name; });
    if (there) names.push_back(name);
  }
  return names;
}

const google::protobuf::Value* Find(const ext_proc::Metadata& metadata, const char* space,
                                    const char* key) {
  const auto fields = metadata.filter_metadata().find(space);
  if (fields == metadata.filter_metadata().end()) return nullptr;
  const auto value = fields->second.fields().find(key);
  return value == fields->second.fields().end() ? nullptr : &value->second;
}

// Gateways send a string or a list of strings; other kinds are an empty set, which allows nothing.
EndpointSet EndpointsIn(const google::protobuf::Value& value) {
  EndpointSet endpoints;
  if (value.has_string_value()) endpoints.Add(value.string_value());
  for (const google::protobuf::Value& element : value.list_value().values())
    endpoints.Add(element.string_value());
  return endpoints;
}

// The two reasons of `onUpstreamReset` with which no byte of the request can have reached the
// engine.
bool NeverConnected(const std::string& reply_details) {
  return absl::StartsWith(reply_details,
                          "upstream_reset_before_response_started{remote_connection_failure") ||
         absl::StartsWith(reply_details,
                          "upstream_reset_before_response_started{connection_timeout");
}

// Requires Envoy's opening words, so that an engine's own 503 cannot pass for Envoy's.
bool SaysNeverConnected(std::string_view reply) {
  constexpr std::string_view kFromEnvoy =
      "upstream connect error or disconnect/reset before headers";
  constexpr std::string_view kReason = "reset reason: ";
  if (!reply.starts_with(kFromEnvoy)) return false;
  const size_t at = reply.find(kReason);
  if (at == std::string_view::npos) return false;
  const std::string_view reason = reply.substr(at + kReason.size());
  return reason.starts_with("remote connection failure") ||
         reason.starts_with("connection timeout");
}

// `raw_value` takes bytes that are no UTF-8; OVERWRITE so that a client's own value does not
// survive.
void SetHeader(const std::string& key, const std::string& value,
               ext_proc::HeaderMutation* mutation) {
  ext_proc::HeaderValueOption* const option = mutation->add_set_headers();
  option->mutable_header()->set_key(key);
  option->mutable_header()->set_raw_value(value);
  option->set_append_action(ext_proc::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
}

// In both places, as gateways differ in which one they read. Clearing the route cache makes Envoy
// choose the cluster anew with the header in place.
void SetEndpoints(const std::string& endpoints, ext_proc::CommonResponse* common,
                  ext_proc::ProcessingResponse* response) {
  common->set_clear_route_cache(true);
  SetHeader(kEndpointKey, endpoints, common->mutable_header_mutation());
  google::protobuf::Value& space =
      (*response->mutable_dynamic_metadata()->mutable_fields())[kEndpointSpace];
  (*space.mutable_struct_value()->mutable_fields())[kEndpointKey].set_string_value(endpoints);
}

ext_proc::StreamedBodyResponse* StreamedBody(ext_proc::BodyResponse* answer) {
  return answer->mutable_response()->mutable_body_mutation()->mutable_streamed_response();
}

// Moves the bytes: an answer of a model is echoed without a copy.
void PassOn(ext_proc::HttpBody* body, ext_proc::StreamedBodyResponse* piece) {
  piece->set_body(std::move(*body->mutable_body()));
  piece->set_end_of_stream(body->end_of_stream());
}

ext_proc::ProcessingResponse ToImmediateResponse(const ClientError& error, ErrorShape shape,
                                                 std::string_view dropped) {
  ext_proc::ProcessingResponse response;
  ext_proc::ImmediateResponse* const answer = response.mutable_immediate_response();
  answer->mutable_status()->set_code(static_cast<uint32_t>(error.http_status));
  answer->set_body(ErrorBody(error, shape));
  // Becomes `response.code_details` in the proxy's access log.
  answer->set_details("kvatlas_refused");
  SetHeader("content-type", "application/json", answer->mutable_headers());
  if (!dropped.empty()) SetHeader(kDroppedHeader, std::string(dropped), answer->mutable_headers());
  if (error.retry_after.has_value())
    SetHeader("retry-after", RetryAfterSeconds(*error.retry_after), answer->mutable_headers());
  return response;
}

}  // namespace kvatlas
