// Names of services, and how the port that a command needs is found from the one that was named. A
// service is asked over HTTP first, since every kind has a /status there; if the port speaks
// something else, over gRPC.

#include "tools/kvatlas/service_name.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/base/nearest_name.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kNames[] = {"leaf", "hierarchy", "frontend", "relay", "serve"};

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// "leaf" of "kvatlas-leaf"; "": the status does not say.
std::string NameInProgram(const Json& status) {
  const auto process = status.find("process");
  const Json& of = process != status.end() && process->is_object() ? *process : status;
  const auto program = of.find("program");
  if (program == of.end() || !program->is_string()) return "";
  const std::string name = program->get<std::string>();
  return name.starts_with("kvatlas-") ? name.substr(8) : name;
}

// Whether a process of this program answers for `role`. An empty program does not say what it is.
bool Answers(ServiceRole role, const std::string& program) {
  if (program.empty() || program == RoleName(role)) return true;
  return program == "serve" && (role == ServiceRole::kLeaf || role == ServiceRole::kFrontend);
}

// The name of the port in the status; `serve` has ports of its own for its leaf.
std::string PortName(ServiceRole role, Plane plane, const std::string& program) {
  const std::string port = plane == Plane::kGrpc ? "grpc" : "http";
  return program == "serve" && role == ServiceRole::kLeaf ? "leaf_" + port : port;
}

absl::StatusOr<Json> OverHttp(const ServiceName& name, Duration timeout) {
  const absl::StatusOr<std::string> body =
      HttpBody(std::string(RoleName(name.role)), name.address, "GET", "/status", "", timeout);
  if (!body.ok()) return body.status();
  Json json = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::FailedPreconditionError(name.Title() + ": its /status is no status of kvatlas");
}

// Frontends and relays have no statistics over gRPC, so their HTTP port has to be named.
absl::StatusOr<Json> OverGrpc(const ServiceName& name, Duration timeout) {
  if (name.role == ServiceRole::kFrontend || name.role == ServiceRole::kRelay) {
    return absl::FailedPreconditionError(absl::StrCat(
        name.Title(), ": expected its HTTP port (",
        name.role == ServiceRole::kRelay ? "8093" : "8092", " unless --http says otherwise)"));
  }
  const absl::StatusOr<v1::StatsResponse> stats =
      HolderService(name.role, name.address, timeout).Stats();
  if (!stats.ok()) return stats.status();
  return StatsJson(*stats);
}

// An answer that is none of HTTP's: the port is there, and speaks something else. Told by the words
// of `Exchange` (services.cc): failures to connect or to resolve are others.
bool IsOtherProtocol(const absl::Status& status) {
  const std::string_view text(status.message().data(), status.message().size());
  return absl::IsUnavailable(status) && text.find(": connecting") == std::string_view::npos &&
         text.find(": resolving") == std::string_view::npos;
}

struct Told {
  Json status;
  Plane plane = Plane::kHttp;  // of the address that was asked
};

// At most two questions.
absl::StatusOr<Told> Ask(const ServiceName& name, Duration timeout) {
  absl::StatusOr<Json> json = OverHttp(name, timeout);
  if (json.ok()) return Told{*std::move(json), Plane::kHttp};
  if (!IsOtherProtocol(json.status())) return json.status();
  json = OverGrpc(name, timeout);
  if (!json.ok()) return json.status();
  return Told{*std::move(json), Plane::kGrpc};
}

}  // namespace

absl::StatusOr<Json> StatsJson(const v1::StatsResponse& stats) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(stats, &text, options).ok())
    return absl::InternalError("its statistics are not printable as JSON");
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string_view RoleName(ServiceRole role) { return kNames[static_cast<size_t>(role)]; }

absl::StatusOr<ServiceName> ServiceName::Parse(std::string_view text) {
  const size_t equals = text.find('=');
  const std::string kind(text.substr(0, equals));
  for (const ServiceRole role : kRoles) {
    if (equals == std::string_view::npos || kind != RoleName(role)) continue;
    absl::StatusOr<Address> address = Address::Parse(text.substr(equals + 1));
    if (!address.ok()) return address.status();
    return ServiceName{.role = role, .address = *std::move(address)};
  }
  const std::vector<std::string> kinds(std::begin(kNames), std::end(kNames));
  return absl::InvalidArgumentError(absl::StrCat(
      "expected KIND=HOST:PORT of a leaf, hierarchy, frontend, relay or serve; found \"",
      ToAbsl(text), "\"", equals == std::string_view::npos ? "" : DidYouMean(kind, kinds)));
}

std::string ServiceName::ToString() const {
  return absl::StrCat(ToAbsl(RoleName(role)), "=", address.ToString());
}

std::string ServiceName::Title() const {
  return absl::StrCat(ToAbsl(RoleName(role)), " ", address.ToString());
}

// Also a source's name (`holdings.h`), for the parsing of --json and --watch.
bool IsNamed(std::string_view text) {
  const std::string_view kind = text.substr(0, text.find('='));
  if (kind.size() == text.size()) return false;
  for (const std::string_view name : kNames)
    if (kind == name) return true;
  return kind == "file" || kind == "checkpoint";
}

std::optional<Address> ListensAt(const Json& status, const std::string& port,
                                 const Address& asked) {
  const auto process = status.find("process");
  if (process == status.end() || !process->is_object()) return std::nullopt;
  const auto listens = process->find("listens");
  if (listens == process->end() || !listens->is_object()) return std::nullopt;
  const auto found = listens->find(port);
  if (found == listens->end() || !found->is_string()) return std::nullopt;
  absl::StatusOr<Address> address = Address::Parse(found->get<std::string>());
  if (!address.ok()) return std::nullopt;
  if (address->host == "0.0.0.0" || address->host == "::") address->host = asked.host;
  return *std::move(address);
}

// 1. The service is asked for its status, over either port.
// 2. Its program has to be one that answers for the role.
// 3. The status says where the wanted port is; else the named port is it, if it speaks the wanted
//    protocol.
// A service that refuses its status is there all the same: the named port is then taken as it is.
absl::StatusOr<Address> Located(const ServiceName& name, Plane plane, Duration timeout) {
  const absl::StatusOr<Told> told = Ask(name, timeout);
  if (!told.ok()) {
    // Not let in to its status, or a frontend's gRPC port: it is there all the same.
    const bool http = absl::IsUnauthenticated(told.status()) ||
                      absl::IsPermissionDenied(told.status()) ||
                      absl::IsResourceExhausted(told.status());
    const bool grpc =
        absl::IsFailedPrecondition(told.status()) && name.role == ServiceRole::kFrontend;
    if ((plane == Plane::kHttp && http) || (plane == Plane::kGrpc && grpc)) return name.address;
    if (!absl::IsNotFound(told.status())) return told.status();
    return absl::FailedPreconditionError(
        absl::StrCat(told.status().message(), "; another server is at this address"));
  }
  const std::string program = NameInProgram(told->status);
  if (!Answers(name.role, program)) {
    return absl::FailedPreconditionError(absl::StrCat(
        name.Title(), ": a kvatlas-", program, " is there, no ", ToAbsl(RoleName(name.role)),
        "; name it as ", program, "=", name.address.ToString()));
  }
  if (std::optional<Address> found =
          ListensAt(told->status, PortName(name.role, plane, program), name.address);
      found.has_value())
    return *std::move(found);
  if (told->plane == plane) return name.address;
  return absl::FailedPreconditionError(
      absl::StrCat(name.Title(), ": expected its ", plane == Plane::kGrpc ? "gRPC" : "HTTP",
                   " port: this is the other one, and does not say where that is"));
}

}  // namespace kvatlas
