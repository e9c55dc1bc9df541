#include "frontend/doors/ext_proc/envoy_messages.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "frontend/doors/ext_proc/endpoints.h"

namespace kvatlas {
namespace {

void AddEndpoints(const std::string& text, std::vector<std::string>* endpoints) {
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::string_view entry = absl::StripAsciiWhitespace(part);
    absl::StatusOr<std::string> endpoint = EndpointOf({entry.data(), entry.size()});
    if (endpoint.ok() && endpoints->size() < kSubsetMax) endpoints->push_back(*std::move(endpoint));
  }
}

}  // namespace

std::string ValueIn(const ext_proc::HeaderMap& headers, std::string_view key) {
  for (const ext_proc::HeaderValue& header : headers.headers()) {
    if (header.key() == key)
      return header.raw_value().empty() ? header.value() : header.raw_value();
  }
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

std::vector<std::string> EndpointsIn(const google::protobuf::Value& value) {
  std::vector<std::string> endpoints;
  if (value.has_string_value()) AddEndpoints(value.string_value(), &endpoints);
  for (const google::protobuf::Value& element : value.list_value().values())
    AddEndpoints(element.string_value(), &endpoints);
  return endpoints;
}

bool NeverConnected(const std::string& reply_details) {
  return absl::StartsWith(reply_details,
                          "upstream_reset_before_response_started{remote_connection_failure") ||
         absl::StartsWith(reply_details,
                          "upstream_reset_before_response_started{connection_timeout");
}

void SetHeader(const std::string& key, const std::string& value,
               ext_proc::HeaderMutation* mutation) {
  ext_proc::HeaderValueOption* const option = mutation->add_set_headers();
  option->mutable_header()->set_key(key);
  option->mutable_header()->set_raw_value(value);
  option->set_append_action(ext_proc::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
}

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

void PassOn(ext_proc::HttpBody* body, ext_proc::StreamedBodyResponse* piece) {
  piece->set_body(std::move(*body->mutable_body()));
  piece->set_end_of_stream(body->end_of_stream());
}

ext_proc::ProcessingResponse ToImmediateResponse(const ClientError& error, ErrorShape shape) {
  ext_proc::ProcessingResponse response;
  ext_proc::ImmediateResponse* const answer = response.mutable_immediate_response();
  answer->mutable_status()->set_code(static_cast<uint32_t>(error.http_status));
  answer->set_body(ErrorBody(error, shape));
  answer->set_details("kvatlas_refused");
  SetHeader("content-type", "application/json", answer->mutable_headers());
  if (error.retry_after.has_value())
    SetHeader("retry-after", RetryAfterSeconds(*error.retry_after), answer->mutable_headers());
  return response;
}

}  // namespace kvatlas
