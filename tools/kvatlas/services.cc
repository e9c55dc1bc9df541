// Clients for one question each: gRPC by a blocking call, HTTP by an exchange on an I/O context of
// its own. Connections are not kept.

#include "tools/kvatlas/services.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_status.h"
#include "indexer/net/http_client_stream.h"
#include "indexer/security/security.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {
namespace {

// The operator's bearer token, sent with every question; set before anything is asked, so without a
// lock.
std::string& BearerToken() {
  static auto* const token = new std::string;
  return *token;
}

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

// Puts the service's name in front of the error.
absl::Status About(const std::string& who, const absl::Status& status) {
  if (status.ok()) return status;
  std::string why = absl::StrCat(who, ": ", status.message());
  // gRPC's words for a connection that the other side ended, as a port that expects TLS does.
  if (why.ends_with("Socket closed") && Security::OfProcess()->tls() == nullptr)
    why += "; where its port is encrypted, name its CAs by --tls_ca";
  return absl::Status(status.code(), why);
}

// gRPC waits for no connection here: one that is refused is UNAVAILABLE at once.
std::unique_ptr<grpc::ClientContext> ContextFor(Duration timeout) {
  auto context = std::make_unique<grpc::ClientContext>();
  if (const std::string& token = BearerToken(); !token.empty())
    context->AddMetadata("authorization", "Bearer " + token);
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::microseconds>(timeout));
  return context;
}

// One call of a stub's method.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Call(const std::string& who, const Address& address, Duration timeout,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request) {
  // A channel for one call: this command asks each service seldom.
  Stub stub(MakeChannel(address.ToString()));
  const std::unique_ptr<grpc::ClientContext> context = ContextFor(timeout);
  Response response;
  const absl::Status status = FromGrpcStatus((stub.*method)(context.get(), request, &response));
  if (!status.ok()) return About(who, status);
  return response;
}

template <typename Stub>
// A dump is long: its deadline is `kDumpTimeouts` times that of another question.
absl::Status ReadDump(Stub* stub, const v1::DumpRequest& request, Duration timeout,
                      const std::function<void(const v1::DumpResponse&)>& visit) {
  const std::unique_ptr<grpc::ClientContext> context = ContextFor(timeout * kDumpTimeouts);
  const auto reader = stub->Dump(context.get(), request);
  for (v1::DumpResponse piece; reader->Read(&piece);) visit(piece);
  return FromGrpcStatus(reader->Finish());
}

// The reason in the body of an answer that is no success: our own services' JSON, or the beginning
// of another server's text.
std::string ReasonIn(const HttpReply& reply) {
  const auto json = nlohmann::json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("error") && json["error"].is_string())
    return json["error"].get<std::string>();
  constexpr size_t kQuoted = 100;
  const std::string line = reply.body.substr(0, std::min(reply.body.find('\n'), kQuoted));
  return absl::StrCat("HTTP status ", reply.status,
                      line.empty() ? "" : absl::StrCat(", not in kvatlas's form: \"", line, "\""));
}

// The reverse of our services' table, so that exit statuses are the same over HTTP and gRPC.
absl::StatusCode CodeOf(int http_status) {
  switch (http_status) {
    case 400:
      return absl::StatusCode::kInvalidArgument;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 409:
      return absl::StatusCode::kFailedPrecondition;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 503:
      return absl::StatusCode::kUnavailable;
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Runs the operation that was begun on `stream` to its end; its handler has set `error`.
absl::Status Finish(asio::io_context* context, const error_code& error, const char* what) {
  context->restart();
  context->run();
  if (!error) return absl::OkStatus();
  if (error == beast::error::timeout)
    return absl::DeadlineExceededError(std::string(what) + " took too long");
  return absl::UnavailableError(std::string(what) + ": " + error.message());
}

// One request over a connection of its own: resolve, connect, TLS where the process has CAs, write,
// read. Each step has the whole timeout, and a long answer each of its pieces. The words in front
// of the errors ("connecting", "resolving") are read by `service_name.cc`.
absl::StatusOr<HttpReply> Exchange(const Address& to, const std::string& method,
                                   const std::string& target, const std::string& body,
                                   Duration timeout) {
  asio::io_context context;
  HttpClientStream stream(context);
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  error_code error;
  const auto found =
      asio::ip::tcp::resolver(context).resolve(to.host, std::to_string(to.port), error);
  if (error) return absl::UnavailableError("resolving: " + error.message());
  stream.expires_after(limit);
  stream.tcp().async_connect(found, [&](const error_code& e, const auto&) { error = e; });
  if (absl::Status bad = Finish(&context, error, "connecting"); !bad.ok()) return bad;
  if (const std::shared_ptr<Security> security = Security::OfProcess();
      security->tls() != nullptr) {
    if (absl::Status bad = stream.PrepareTls(to, security.get()); !bad.ok()) return bad;
    stream.expires_after(limit);
    stream.async_handshake([&](const error_code& e) { error = e; });
    if (absl::Status bad = Finish(&context, error, "TLS"); !bad.ok()) return bad;
    if (absl::Status bad = stream.CheckServer(to); !bad.ok()) return bad;
  }
  http::request<http::string_body> request(http::string_to_verb(method), target, 11);
  request.set(http::field::host, to.ToString());
  // The answer ends with the connection; nothing is kept.
  request.set(http::field::connection, "close");
  if (const std::string& token = BearerToken(); !token.empty())
    request.set(http::field::authorization, "Bearer " + token);
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  stream.expires_after(limit);
  http::async_write(stream, request, [&](const error_code& e, size_t) { error = e; });
  if (absl::Status bad = Finish(&context, error, "asking"); !bad.ok()) return bad;
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kHttpAnswerBytesMax);
  while (!parser.is_done()) {
    stream.expires_after(limit);
    http::async_read_some(stream, buffer, parser, [&](const error_code& e, size_t) { error = e; });
    if (absl::Status bad = Finish(&context, error, "waiting for the answer"); !bad.ok()) return bad;
  }
  return HttpReply{.status = static_cast<int>(parser.get().result_int()),
                   .body = std::move(parser.get().body())};
}

}  // namespace

void SetBearerToken(std::string token) { BearerToken() = std::move(token); }

HolderService::HolderService(ServiceRole role, Address address, Duration timeout)
    : is_leaf_(role != ServiceRole::kHierarchy),
      address_(std::move(address)),
      timeout_(timeout),
      name_((is_leaf_ ? "leaf " : "hierarchy ") + address_.ToString()) {}

absl::StatusOr<v1::StatsResponse> HolderService::Stats() const {
  const v1::StatsRequest request;
  if (is_leaf_) return Call(name_, address_, timeout_, &v1::Leaf::Stub::Stats, request);
  return Call(name_, address_, timeout_, &v1::Hierarchy::Stub::Stats, request);
}

absl::Status HolderService::Dump(const v1::DumpRequest& request,
                                 const std::function<void(const v1::DumpResponse&)>& visit) const {
  const auto channel = MakeChannel(address_.ToString());
  if (is_leaf_) {
    v1::Leaf::Stub stub(channel);
    return About(name_, ReadDump(&stub, request, timeout_, visit));
  }
  v1::Hierarchy::Stub stub(channel);
  return About(name_, ReadDump(&stub, request, timeout_, visit));
}

absl::StatusOr<v1::FindOverlapsResponse> HolderService::FindOverlaps(
    const v1::FindOverlapsRequest& request) const {
  return Call(name_, address_, timeout_, &v1::Leaf::Stub::FindOverlaps, request);
}

absl::StatusOr<v1::FindCellsResponse> HolderService::FindCells(
    const v1::FindCellsRequest& request) const {
  return Call(name_, address_, timeout_, &v1::Hierarchy::Stub::FindCells, request);
}

// The report must follow, else the request would count as running at its worker until it expires.
absl::StatusOr<v1::RouteResponse> AskRoute(const Address& frontend, const v1::RouteRequest& request,
                                           Duration timeout) {
  const std::string who = "frontend " + frontend.ToString();
  absl::StatusOr<v1::RouteResponse> route =
      Call(who, frontend, timeout, &v1::Frontend::Stub::Route, request);
  if (!route.ok()) return route;
  v1::ReportRequest over;
  over.set_decision_id(route->decision_id());
  over.set_finished(true);
  const auto reported = Call(who, frontend, timeout, &v1::Frontend::Stub::Report, over);
  if (!reported.ok()) return reported.status();
  return route;
}

absl::StatusOr<HttpReply> HttpAsk(const std::string& who, const Address& to,
                                  const std::string& method, const std::string& target,
                                  const std::string& body, Duration timeout) {
  absl::StatusOr<HttpReply> reply = Exchange(to, method, target, body, timeout);
  if (!reply.ok()) return About(who + " " + to.ToString(), reply.status());
  return reply;
}

absl::StatusOr<std::string> HttpBody(const std::string& who, const Address& to,
                                     const std::string& method, const std::string& target,
                                     const std::string& body, Duration timeout) {
  absl::StatusOr<HttpReply> reply = HttpAsk(who, to, method, target, body, timeout);
  if (!reply.ok()) return reply.status();
  if (reply->status / 100 == 2) return std::move(reply->body);
  return About(who + " " + to.ToString(), absl::Status(CodeOf(reply->status), ReasonIn(*reply)));
}

// Everything but RFC 3986's unreserved characters is encoded.
std::string UrlEncoded(const std::string& text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_' || c == '.' || c == '~') {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

}  // namespace kvatlas
