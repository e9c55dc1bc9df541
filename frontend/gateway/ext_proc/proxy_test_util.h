// A proxy for tests: messages as Envoy sends them, a stream of them, and what an answer says.

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PROXY_TEST_UTIL_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PROXY_TEST_UTIL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontend/gateway/ext_proc/external_processor.grpc.pb.h"
#include "frontend/gateway/ext_proc/picker_stream.h"

namespace kvatlas {

// ---- What Envoy sends ----

using Headers = std::vector<std::pair<std::string, std::string>>;

inline void Fill(const Headers& headers, ext_proc::HeaderMap* to) {
  for (const auto& [key, value] : headers) {
    ext_proc::HeaderValue* const header = to->add_headers();
    header->set_key(key);
    header->set_raw_value(value);
  }
}

inline ext_proc::ProcessingRequest Request(const std::string& method, const std::string& path,
                                           bool end = false, const Headers& more = {}) {
  ext_proc::ProcessingRequest message;
  Headers headers = {{":method", method},
                     {":path", path},
                     {":authority", "gateway"},
                     {"content-type", "application/json"}};
  headers.insert(headers.end(), more.begin(), more.end());
  Fill(headers, message.mutable_request_headers()->mutable_headers());
  message.mutable_request_headers()->set_end_of_stream(end);
  return message;
}

inline ext_proc::ProcessingRequest Completion() { return Request("POST", "/v1/completions"); }

inline ext_proc::ProcessingRequest Mode(ext_proc::BodySendMode mode,
                                        ext_proc::ProcessingRequest message) {
  message.mutable_protocol_config()->set_request_body_mode(mode);
  message.mutable_protocol_config()->set_response_body_mode(mode);
  return message;
}

inline ext_proc::ProcessingRequest WithMetadata(const char* space, const char* key,
                                                const std::vector<std::string>& values,
                                                ext_proc::ProcessingRequest message) {
  google::protobuf::Struct& fields =
      (*message.mutable_metadata_context()->mutable_filter_metadata())[space];
  google::protobuf::Value& list = (*fields.mutable_fields())[key];
  list.mutable_list_value();
  for (const std::string& value : values)
    list.mutable_list_value()->add_values()->set_string_value(value);
  return message;
}

inline ext_proc::ProcessingRequest Subset(const std::vector<std::string>& values,
                                          ext_proc::ProcessingRequest message) {
  return WithMetadata(kSubsetSpace, kSubsetKey, values, std::move(message));
}

inline ext_proc::ProcessingRequest Body(const std::string& body, bool end) {
  ext_proc::ProcessingRequest message;
  message.mutable_request_body()->set_body(body);
  message.mutable_request_body()->set_end_of_stream(end);
  return message;
}

inline ext_proc::ProcessingRequest RequestTrailers() {
  ext_proc::ProcessingRequest message;
  message.mutable_request_trailers()->mutable_trailers();
  return message;
}

inline ext_proc::ProcessingRequest Response(const std::string& status,
                                            const std::string& content_type, bool end = false) {
  ext_proc::ProcessingRequest message;
  Fill({{":status", status}, {"content-type", content_type}},
       message.mutable_response_headers()->mutable_headers());
  message.mutable_response_headers()->set_end_of_stream(end);
  return message;
}

// With attributes, as far as the filter is configured to send them: why the proxy answers so, and
// which endpoint it asked last.
inline ext_proc::ProcessingRequest Because(const std::string& details, const std::string& upstream,
                                           ext_proc::ProcessingRequest message) {
  auto& fields = *(*message.mutable_attributes())[kFilterName].mutable_fields();
  if (!details.empty()) fields[kReplyDetails].set_string_value(details);
  if (!upstream.empty()) fields[kUpstreamAddress].set_string_value(upstream);
  return message;
}

inline ext_proc::ProcessingRequest ResponseBody(const std::string& body, bool end) {
  ext_proc::ProcessingRequest message;
  message.mutable_response_body()->set_body(body);
  message.mutable_response_body()->set_end_of_stream(end);
  return message;
}

inline ext_proc::ProcessingRequest ResponseTrailers() {
  ext_proc::ProcessingRequest message;
  message.mutable_response_trailers()->mutable_trailers();
  return message;
}

// One HTTP request of a proxy.
class Stream {
 public:
  explicit Stream(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(ext_proc::ExternalProcessor::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    stream_ = stub_->Process(&context_);
  }
  ~Stream() {
    if (finished_) return;
    context_.TryCancel();
    stream_->Finish();
  }

  void Write(const ext_proc::ProcessingRequest& message) { stream_->Write(message); }

  ext_proc::ProcessingResponse Read() {
    ext_proc::ProcessingResponse message;
    EXPECT_TRUE(stream_->Read(&message));
    return message;
  }

  void Cancel() { context_.TryCancel(); }

  // The proxy has said all; what the server then says.
  grpc::Status Finish() {
    stream_->WritesDone();
    return End();
  }
  // The server ends the stream.
  grpc::Status End() {
    ext_proc::ProcessingResponse message;
    EXPECT_FALSE(stream_->Read(&message)) << message.ShortDebugString();
    finished_ = true;
    return stream_->Finish();
  }

 private:
  std::unique_ptr<ext_proc::ExternalProcessor::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse>>
      stream_;
  bool finished_ = false;
};

// As gateways reach a picker: over TLS with any certificate and none of their own, or in clear.
inline std::shared_ptr<grpc::Channel> GatewayChannel(const std::string& address, bool tls) {
  if (!tls) return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_verify_server_certs(false);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  options.set_check_call_host(false);
  return grpc::CreateChannel(address, grpc::experimental::TlsCredentials(options));
}

// ---- What it reads ----

inline std::string HeaderIn(const ext_proc::HeaderMutation& mutation, const std::string& key) {
  for (const ext_proc::HeaderValueOption& option : mutation.set_headers()) {
    if (option.header().key() != key) continue;
    EXPECT_EQ(option.append_action(), ext_proc::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
    return option.header().raw_value();
  }
  return "";
}

// The endpoint that an answer names, in both places; empty: in neither.
inline std::string EndpointIn(const ext_proc::ProcessingResponse& response,
                              const ext_proc::CommonResponse& common) {
  std::string in_metadata;
  const auto& spaces = response.dynamic_metadata().fields();
  if (const auto space = spaces.find(kEndpointSpace); space != spaces.end())
    in_metadata = space->second.struct_value().fields().at(kEndpointKey).string_value();
  EXPECT_EQ(HeaderIn(common.header_mutation(), kEndpointKey), in_metadata);
  EXPECT_EQ(common.clear_route_cache(), !in_metadata.empty());
  return in_metadata;
}

inline std::string HeadersEndpoint(const ext_proc::ProcessingResponse& response) {
  EXPECT_TRUE(response.has_request_headers()) << response.ShortDebugString();
  return EndpointIn(response, response.request_headers().response());
}

inline std::string BodyEndpoint(const ext_proc::ProcessingResponse& response) {
  EXPECT_TRUE(response.has_request_body()) << response.ShortDebugString();
  EXPECT_FALSE(response.request_body().response().has_body_mutation());
  return EndpointIn(response, response.request_body().response());
}

inline ext_proc::StreamedBodyResponse Streamed(const ext_proc::BodyResponse& body) {
  EXPECT_TRUE(body.response().body_mutation().has_streamed_response()) << body.ShortDebugString();
  return body.response().body_mutation().streamed_response();
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PROXY_TEST_UTIL_H_
