// The services of a fleet and what each says of itself. From some of them all others are found:
//
//   frontend ──▶ hierarchy nodes, its own leaves, cells it was told of, engines
//   serve ──▶ the leaf in it, and as a frontend; the leaf in it ──▶ serve
//   hierarchy node ──▶ leaves and nodes that report to it, its parents
//   leaf ──▶ its parents, its workers' engines
//   relay ──▶ its leaves
//
// *Place*: `kvatlas status`, `doctor` and `bundle` show what it found.
// *Truth*: a moment. Each service is asked once; one that is reached under several addresses is one
// service. Frontends and relays are not found by others. A service may be named by either of its
// ports; those that others name are asked at the port that they name.
// *Threads*: `kAskedAtOnce` of its own, ended when it returns. *Bounds*: `kServicesMax` addresses;
// further ones are not asked.

#ifndef KVATLAS_TOOLS_KVATLAS_SURVEY_H_
#define KVATLAS_TOOLS_KVATLAS_SURVEY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/engine_client/engine_probe.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/kvatlas/service_name.h"
#include "tools/kvatlas/services.h"
#include "tools/kvatlas/tls_look.h"

namespace kvatlas {

inline constexpr size_t kAskedAtOnce = 16;
inline constexpr size_t kServicesMax = 16384;

struct SurveyOptions {
  std::vector<ServiceName> services = {};
  Duration timeout = std::chrono::seconds(5);
  // Not empty: services are reached by TLS, and their certificates looked at.
  std::string tls_ca = {};
  bool follow = true;      // to services that others name
  bool engines = true;     // ask engines, too
  bool readiness = false;  // ask GET /ready of each
};

// When a service was asked, by the asker's clock.
struct Asked {
  int64_t before_unix_ms = 0;
  int64_t after_unix_ms = 0;
};

// A leaf, or a hierarchy node.
struct SurveyedNode {
  ServiceRole role = ServiceRole::kLeaf;  // or kHierarchy
  std::vector<std::string> addresses;     // the first is the one that was asked
  v1::StatsResponse stats;
  Asked asked;
  std::string readiness = {};  // "ready", "not ready: REASON"; empty: not asked, or it did not say

  bool is_leaf() const { return role == ServiceRole::kLeaf; }
  std::string Name() const;  // "leaf 127.0.0.1:7410 (cell a@1)"
  bool in_serve() const { return stats.process().program() == "kvatlas-serve"; }
  // The value of a flag that it was given; empty: it has the default.
  std::string Flag(const std::string& name) const;
  // Where it listens for HTTP, at the host where it was asked.
  std::optional<Address> Http() const;
};

// A frontend, or a relay.
struct SurveyedPage {
  std::string kind;  // "frontend" (of `serve`, too), "relay"
  std::string address;
  nlohmann::json status;
  nlohmann::json diagnosis;  // of a frontend, findings of its `/diagnosis`
  Asked asked;
  std::string readiness = {};  // as a node's

  std::string Name() const { return kind + " " + address; }
};

struct SurveyedEngine {
  std::string url;
  std::vector<std::string> of;  // "worker w0 at leaf 127.0.0.1:7410 (cell a)"
  std::string model;
  // The block size of its domain; 0: unknown, or its leaf has not learned it yet.
  uint32_t block_size = 0;
  std::optional<uint64_t> batches = {};  // that its leaf has of it; nothing: no leaf was asked
  absl::StatusOr<EngineFacts> facts = absl::UnknownError("not asked");
  bool in_serve = false;  // `kvatlas serve` was told of it
};

// An address at which nothing of ours answered.
struct Unreached {
  std::string kind;  // "leaf", "hierarchy", "frontend", "relay"
  std::string address;
  std::string told_by;  // empty: the command line
  std::string cell;     // of a leaf, where that is known
  absl::Status why;
  TlsLook tls;
};

struct Certificate {
  std::string service;  // the name of its service, as `Name`
  std::string address;
  TlsLook tls;
};

struct Survey {
  std::vector<SurveyedNode> nodes;
  std::vector<SurveyedPage> pages;
  std::vector<SurveyedEngine> engines;
  std::vector<Unreached> unreached;
  std::vector<Certificate> certificates;  // of services that were reached by TLS
  std::map<std::string, size_t> node_at;  // of `nodes`, by each address

  size_t Count(const std::string& kind) const;
  const SurveyedNode* NodeAt(const std::string& address) const;
};

Survey LookAround(const SurveyOptions& options);

// The engines that leaves and frontends of the survey name; not asked.
std::vector<SurveyedEngine> EnginesNamedIn(const Survey& survey);

// Text of a JSON object's field; "" when it is none.
std::string TextIn(const nlohmann::json& json, const char* field);
const nlohmann::json& ListIn(const nlohmann::json& json, const char* field);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_SURVEY_H_
