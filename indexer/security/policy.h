// The access policy: one file for all processes of a fleet, denied by default.
//
// *Format* (JSON, version 1; comments are not allowed, unknown keys are refused with the nearest
// name):
//   {
//     "version": 1,
//     "trust_domain": "example.org",
//     "names": {"dns:leaf-a.example.org": "leaf/a/0", "cn:ops": "operator/ops"},
//     "rules": [
//       {"identity": "worker/*/*", "allow": ["publish"],
//        "models": ["*"], "tenants": ["team-x"], "url_hosts": ["10.0.0.0/8", "*.engines.svc"],
//        "quota": {"hellos_per_s": 10, "holders": 16}},
//       {"identity": "leaf/*/*", "allow": ["report", "snapshot"]},
//       {"identity": "frontend/*", "allow": ["query"], "tenants": ["*"]},
//       {"identity": "gateway/team-x", "allow": ["route", "feedback"], "tenants": ["team-x"]},
//       {"identity": "operator/*", "allow": ["*"]},
//       {"identity": "viewer/*", "allow": ["status", "metrics"]}
//     ], "revoked": ["worker/a/7", "serial:1f", "sha256:…", "token:gateway-1"], "tenants":
//     {"team-x": {"salt": "@/etc/kvatlas/team-x.salt", "pool": "shared", "public_prefixes": false,
//                           "quota": {"queries_per_s": 1000}}}
//   }
// "identity" is the text form with one * in a segment, or "*". A rule without "models" or "cells"
// allows all of them; one without "tenants" allows the tenant that the credential is bound to, or
// the empty one; one without "url_hosts" allows no host. Names of tenants, models and hosts may
// have one * each. One rule must allow everything of a request. The first rule of an identity that
// has a "quota" gives its bounds; a tenant's "quota" bounds all of its identities together
// (`quotas.h`). A worker publishes only under its own name, at any data-parallel rank, unless the
// rule has "holders": names that it may publish under, for a relay that speaks for several engines.
// Rules of identities that are not configurable: a worker publishes only to its own cell; a leaf
// reports only for its own cell and replica, and takes snapshots only of its own cell; a node
// reports only under its own name. A credential that is bound to a tenant is of that tenant only,
// whatever the rules say.
//
// *Threads*: immutable. *Cost* of a decision: some hundred nanoseconds a rule of the identity's
// role.

#ifndef KVATLAS_INDEXER_SECURITY_POLICY_H_
#define KVATLAS_INDEXER_SECURITY_POLICY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/security/identity.h"

namespace kvatlas {

enum class Verb : uint8_t {
  kPublish,  // a stream of holdings to a leaf
  kReport,   // a stream of coverage to a hierarchy node
  kQuery,    // which workers, which cells
  kRoute,    // a request to a frontend: Route, /v1/*
  kPick,  // a gateway's question which endpoint a request goes to (ext_proc); an identity that may `route` may this too
  kFeedback,  // what an engine served from cache; receipts of own decisions
  kSnapshot,  // a replica's whole contents, for recovery
  kDump,      // contents for people: dumps, explain, anything with hashes
  kRegister,  // engines to listen to
  kOperate,   // checkpoint, log level, drains: changes that no other verb names
  kStatus,    // what has no hashes: /status, Stats, reflection
  kMetrics,
  kHealth,  // always allowed
};
inline constexpr int kVerbs = 13;

std::string_view VerbName(Verb verb);
std::optional<Verb> VerbOfName(std::string_view name);

// The target that a verb is applied to; fields that do not apply are empty.
struct PolicyTarget {
  std::optional<std::string> model = std::nullopt;
  std::optional<std::string> tenant = std::nullopt;
  std::optional<std::string> holder = std::nullopt;   // a worker's name, without its rank
  std::optional<std::string> cell = std::nullopt;     // claimed by the holder
  std::optional<std::string> replica = std::nullopt;  // likewise
  std::vector<std::string> url_hosts =
      {};  // hosts of addresses and URLs that others would dial: all must be allowed

  friend bool operator==(const PolicyTarget&, const PolicyTarget&) = default;
};

// For the audit log: "model=m tenant= holder=w cell=a host=10.0.0.7".
std::string TextOf(const PolicyTarget& target);

struct PolicyDecision {
  bool allowed = false;
  std::string
      reason;  // for the audit log and `kvatlas policy explain`: the rule, or what was missing
};

// Bounds of an identity or a tenant, 0: none.
struct PolicyQuota {
  double connections = 0;
  double streams = 0;
  double hellos_per_s = 0;
  double domains = 0;
  double holders = 0;
  double label_bytes = 0;        // of holders' names, addresses and labels
  double blocks_per_holder = 0;  // held; what is beyond is shed, and the holder is degraded
  // The same as a multiple of the pool that the holder's load reports, for a holder that claims
  // more than it can have.
  double pool_times = 0;
  double unread_bytes = 0;   // of answers that the client has not taken
  double blocks_per_s = 0;   // announced
  double queries_per_s = 0;  // questions and routes
  double dumps_per_s = 0;
};

struct PolicyTenant {
  std::string salt;              // the secret's bytes; empty: prompts of this tenant are not salted
  bool public_prefixes = false;  // shares unsalted prefixes: opt-in
  // The tenant of the domains whose engines serve it: another's for engines that several tenants
  // share; none: its own.
  std::optional<std::string> pool = std::nullopt;
  std::optional<PolicyQuota> quota = std::nullopt;
};

class AccessPolicy {
 public:
  AccessPolicy() = default;  // allows nothing but health

  // INVALID_ARGUMENT names the place ("rules[2].allow[0]"), what was expected and what was found.
  // Reads the salt files, which only the owner and group may read.
  static absl::StatusOr<std::shared_ptr<const AccessPolicy>> Parse(std::string_view json);
  static absl::StatusOr<std::shared_ptr<const AccessPolicy>> Read(const std::string& path);

  // The identity of a certificate: by a SPIFFE ID of the trust domain, or a mapped name. A
  // certificate with neither: PERMISSION_DENIED.
  absl::StatusOr<Identity> IdentityOf(const CertificateNames& names) const;

  // Only the verb: allowed if there is any target for which it is. Health always is.
  PolicyDecision DecideMethod(const Identity& identity, Verb verb) const;
  PolicyDecision Decide(const Identity& identity, Verb verb, const PolicyTarget& target) const;
  bool Revoked(const Identity& identity) const;

  // The tenants for which `verb` is allowed; "*" among them: all.
  std::vector<std::string> TenantsOf(const Identity& identity, Verb verb) const;
  PolicyQuota QuotaOf(const Identity& identity) const;
  // The tenant whose quota counts for what `identity` does: that of its credential, or the only one
  // of its rules. Empty: none, or no tenant has a quota.
  std::string QuotaTenantOf(const Identity& identity) const;
  const PolicyTenant* Tenant(std::string_view name) const;
  // Permissions that look like an oversight, one line each.
  std::vector<std::string> Doubts() const;
  const std::string& trust_domain() const { return trust_domain_; }
  size_t rules() const { return rules_.size(); }

 private:
  struct Rule;
  class Reader;

  std::string trust_domain_;
  std::map<std::string, Identity, std::less<>> names_;
  std::vector<std::shared_ptr<const Rule>> rules_;
  std::vector<std::string> revoked_;
  std::map<std::string, PolicyTenant, std::less<>> tenants_;
  bool tenant_quotas_ = false;
};

// The host of SCHEME://[USER@]HOST[:PORT][/…] or HOST:PORT, for `PolicyTarget::url_hosts`.
std::string HostOfUrl(const std::string& url);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_POLICY_H_
