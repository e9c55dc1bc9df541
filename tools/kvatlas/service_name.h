// Names of services: one way to name any of them, wherever the command takes one.
//
//   KIND=HOST:PORT     leaf, hierarchy, frontend, relay, serve, with either of its ports: gRPC or HTTP
//
// Where a command needs the other port, the service says which that is: over HTTP in `GET /status`,
// over gRPC in `Stats`.
//
// *Truth*: `Located` never guesses: a port that speaks the wrong protocol and does not tell of the
// other is an error that says which port is wanted. *Threads*: any.

#ifndef KVATLAS_TOOLS_KVATLAS_SERVICE_NAME_H_
#define KVATLAS_TOOLS_KVATLAS_SERVICE_NAME_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/kvatlas/services.h"

namespace kvatlas {

inline constexpr ServiceRole kRoles[] = {ServiceRole::kLeaf, ServiceRole::kHierarchy,
                                         ServiceRole::kFrontend, ServiceRole::kRelay,
                                         ServiceRole::kServe};
std::string_view RoleName(ServiceRole role);  // "leaf"

enum class Plane { kGrpc, kHttp };

struct ServiceName {
  ServiceRole role = ServiceRole::kLeaf;
  Address address;

  // INVALID_ARGUMENT, quoting `text` and saying what is expected.
  static absl::StatusOr<ServiceName> Parse(std::string_view text);
  std::string ToString() const;  // "leaf=127.0.0.1:7410"
  std::string Title() const;     // "leaf 127.0.0.1:7410", as errors begin

  friend bool operator==(const ServiceName&, const ServiceName&) = default;
};

// Whether `text` begins as a service's or a source's name does.
bool IsNamed(std::string_view text);

// Where `name` answers on `plane`. UNAVAILABLE, DEADLINE_EXCEEDED: it is not there.
// FAILED_PRECONDITION: another kind of process is, or it does not say where its other port is.
absl::StatusOr<Address> Located(const ServiceName& name, Plane plane, Duration timeout);

// `Stats` of a leaf or a node as it is at its `GET /status`; 64-bit numbers are texts.
absl::StatusOr<nlohmann::json> StatsJson(const v1::StatsResponse& stats);

// Where it listens, of such JSON: "grpc", "http", and of `serve` "listen", "leaf_grpc",
// "leaf_http". A wildcard is `asked`'s host.
std::optional<Address> ListensAt(const nlohmann::json& status, const std::string& port,
                                 const Address& asked);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_SERVICE_NAME_H_
