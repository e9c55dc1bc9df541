// The security of a process: certificates, policy, tokens, quotas and audit in one place. It
// decides which peers are trusted, and with what.
//
//   connection ─▶ certificate or token ─▶ Identity ─▶ Check(verb, target) ─▶ OK | PERMISSION_DENIED, audited
//                                                            ▲
//   files (certificates, CAs, policy, tokens, JWKS) ─ looked at every 500 ms, a bad one keeps the old
//                                                            ▼
//   open calls and streams ─ checked again when files change and when a credential expires; those no longer allowed are cut
//
// Servers and channels of a process ask `Security::OfProcess()`, which `ServiceMain` sets from the
// flags of the group "Security";
// without these flags it is `Security::Open()`: no TLS, everything is allowed, and listening beyond
// loopback is refused unless --insecure.
//
// *Threads*: any. *Cost* of a check: a look at the identity (cached by certificate) and a decision
// of the policy, below a microsecond or two; nothing without a policy. *Bounds*: `kIdentitiesMax`
// cached certificates.

#ifndef KVATLAS_INDEXER_SECURITY_SECURITY_H_
#define KVATLAS_INDEXER_SECURITY_SECURITY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/security/audit.h"
#include "indexer/security/identity.h"
#include "indexer/security/policy.h"
#include "indexer/security/quotas.h"
#include "indexer/security/tls_files.h"
#include "indexer/security/tokens.h"

namespace kvatlas {

struct SecurityOptions {
  std::string process = {};  // for the audit log
  TlsPaths tls = {};
  std::string policy = {};  // path; empty: everything is allowed
  TokenFiles tokens = {};
  std::string audit_log = {};  // path; empty: none
  bool insecure = false;       // may listen beyond loopback without TLS and policy
  Duration look_every = std::chrono::milliseconds(500);
  // A gRPC connection keeps the certificate that it was made with. After so long new calls come
  // over a new one, with the certificate of then; streams stay. Replace certificates so long before
  // they expire. A call begun just then may end as UNAVAILABLE.
  Duration connection_age = std::chrono::minutes(10);
};

class Security {
 public:
  // For a test, a benchmark, a library: nothing is asked, nothing is encrypted.
  static const std::shared_ptr<Security>& Open();
  // INVALID_ARGUMENT names the file or flag.
  static absl::StatusOr<std::shared_ptr<Security>> Start(SecurityOptions options);
  virtual ~Security() = default;

  static std::shared_ptr<Security> OfProcess();
  static void SetOfProcess(std::shared_ptr<Security> security);

  // The TLS files; null: connections are not encrypted.
  virtual TlsFiles* tls() = 0;
  // Whether there is a policy. Without one every check is OK.
  virtual bool enforces() const = 0;
  // The age at which gRPC connections end; 0: they stay, since nothing checks their certificates.
  virtual Duration connection_age() const = 0;
  // Null without one. What it points to is immutable; a later policy is another one.
  virtual std::shared_ptr<const AccessPolicy> policy() const = 0;

  // FAILED_PRECONDITION, with the remedy: beyond loopback, and neither TLS with a policy nor
  // --insecure.
  virtual absl::Status MayListen(const Address& address) = 0;

  // Whether the plane `what` ("redis", "engines") may go in clear between this process and `host`.
  // Beyond loopback: FAILED_PRECONDITION under a policy, unless --insecure or `trusted`, a flag of
  // that plane. A plane that passes is logged every minute, and counts in `kvatlas_insecure`.
  virtual absl::Status MayGoInClear(std::string_view what, const std::string& host,
                                    bool trusted) = 0;

  // The identity of a client's certificate with its intermediates (PEM) and an "Authorization:
  // Bearer" value; each may be empty. A certificate counts before a token, which may be meant for
  // the engine.
  // Never null; anonymous without either, and without a policy. UNAUTHENTICATED
  // (`CredentialRefused`): expired, revoked, not of the fleet, unknown token.
  virtual absl::StatusOr<std::shared_ptr<const Identity>> Authenticate(std::string_view chain_pem,
                                                                       std::string_view bearer) = 0;

  // Whether the verb is allowed for any target. For servers, before they read a request. Refusals
  // are audited as "refusal".
  virtual absl::Status CheckMethod(const Identity& identity, Verb verb, std::string_view peer) = 0;
  // A peer whose credential `Authenticate` refused: counted as a refusal, and audited with what
  // `WhyRefused` says.
  virtual void AuditUnknown(Verb verb, std::string_view peer, const absl::Status& why) = 0;
  // PERMISSION_DENIED, in the same words whatever the reason. Refusals are audited; `audit_allowed`
  // says so of what is allowed too.
  virtual absl::Status Check(const Identity& identity, Verb verb, const PolicyTarget& target,
                             std::string_view peer, std::string_view event,
                             bool audit_allowed = false) = 0;

  // One call or stream that lasts. `cut` is called once, from the thread that looks at files, when
  // the identity is no longer allowed; not after `OpenCall` is destroyed.
  class OpenCall {
   public:
    virtual ~OpenCall() = default;
    // A target that the call was allowed: it is checked again too.
    virtual void Allowed(Verb verb, PolicyTarget target) = 0;
  };
  virtual std::unique_ptr<OpenCall> AddCall(std::shared_ptr<const Identity> identity,
                                            std::string chain_pem, std::string bearer, Verb verb,
                                            std::string peer, std::function<void()> cut) = 0;

  // RESOURCE_EXHAUSTED, audited, beyond a quota that the policy gives this identity, or the tenant
  // that it acts for: `tenant`, or if that is empty the one of its credential. `Take` is of rates,
  // `Hold` of what is held, until the hold, which may be null, is destroyed; `previous`: what it
  // replaces.
  virtual absl::Status Take(const Identity& identity, QuotaKind kind, double amount,
                            std::string_view peer, std::string_view tenant = "") = 0;
  using Held = std::shared_ptr<const QuotaHold>;
  virtual absl::StatusOr<Held> Hold(const Identity& identity, std::vector<QuotaUse> uses,
                                    std::string_view peer, std::string_view tenant = "",
                                    const QuotaHold* previous = nullptr) = 0;
  // One connection, whatever the number of its calls: `peer` is an address with a port.
  virtual absl::StatusOr<Held> HoldConnection(const Identity& identity,
                                              const std::string& peer) = 0;
  // The quota that answers of so many bytes take until they are sent, for a stream of answers; null
  // where `identity` has no bound. Beyond it the stream is cancelled, which `cancel` does.
  std::function<std::shared_ptr<const void>(size_t bytes)> UnreadOf(
      std::shared_ptr<const Identity> identity, std::string peer, std::function<void()> cancel);
  // The narrower of the identity's and the tenant's. 0: none.
  virtual PolicyQuota QuotaOf(const Identity& identity, std::string_view tenant = "") const = 0;

  virtual void Audit(const AuditLine& line) = 0;

  // Prometheus text of refusals, reloads, certificates' expiry, audit lines lost,
  // `kvatlas_insecure`.
  virtual void AppendMetrics(std::string* text) const = 0;
};

// Whether all addresses of the host are on this machine's loopback. False for a host that does not
// resolve.
bool IsLoopbackHost(const std::string& host);

// The message of PERMISSION_DENIED, whatever the reason: the reason is in the audit log.
inline constexpr std::string_view kNotAllowed =
    "not allowed; the audit log of the server says why (kvatlas policy explain)";

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_SECURITY_H_
