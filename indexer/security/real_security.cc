// Identities and decisions of a process with certificates, a policy, or both: what happens on the
// path of a call. Files, open calls, quotas and metrics are in the sources that real_security.h
// lists.
//
// A call passes Authenticate (certificate or token to identity), then CheckMethod (the verb, before
// the request is read), then Check (the target, once the request is known). Policy and tokens are
// immutable objects behind shared pointers: a call takes the pointer under `mutex_` and works on
// without it.

#include "indexer/security/real_security.h"

#include "absl/strings/str_cat.h"
#include "indexer/base/clock.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/security/open_security.h"

namespace kvatlas {
namespace {

// Certificates whose identity is remembered in `known_`. At the bound all are forgotten and looked
// at again.
constexpr size_t kIdentitiesMax = 4096;

// An anonymous caller gets UNAUTHENTICATED, so that it shows a credential; others get
// PERMISSION_DENIED. Neither says why: the reason is in the audit log.
absl::Status Refused(const Identity& identity) {
  if (identity.role == IdentityRole::kAnonymous) {
    return CredentialRefused("no credential");
  }
  return absl::PermissionDeniedError(absl::string_view(kNotAllowed.data(), kNotAllowed.size()));
}

}  // namespace

int64_t NowUnixSeconds() { return static_cast<int64_t>(Clock::Real().WallNs() / 1'000'000'000u); }

// The thread is joined before any member goes. Open calls must be gone: their handles use `calls_`.
RealSecurity::~RealSecurity() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

// 1. Reads the TLS files. 2. Refuses options that need one another: a policy without TLS would take
//    names from an open wire, tokens without a policy would have no effect. 3. Reads policy and
//    tokens; the stamps are taken before, so that a change in between is seen by the next look. 4.
//    Opens the audit log. 5. Starts the thread that looks at files.
absl::Status RealSecurity::Start() {
  if (options_.tls.any()) {
    absl::StatusOr<std::unique_ptr<TlsFiles>> tls = TlsFiles::Read(options_.tls);
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
  }
  if (!options_.policy.empty() && (tls_ == nullptr || tls_->server() == nullptr)) {
    return absl::InvalidArgumentError(
        "--access_policy says what certificates and tokens may do, and needs --tls_cert, "
        "--tls_key and "
        "--tls_ca");
  }
  const bool tokens = !options_.tokens.tokens.empty() || !options_.tokens.jwks.empty();
  if (tokens && options_.policy.empty()) {
    return absl::InvalidArgumentError(
        "--access_tokens and --jwks say who asks, and only a policy says what they may: "
        "--access_policy=FILE");
  }
  stamps_ = Stamps();
  if (absl::Status bad = ReadPolicy(); !bad.ok()) return bad;
  if (absl::Status bad = ReadTokens(); !bad.ok()) return bad;
  absl::StatusOr<std::unique_ptr<AuditLog>> audit =
      AuditLog::Open(options_.audit_log, options_.process);
  if (!audit.ok()) return audit.status();
  audit_ = *std::move(audit);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

std::shared_ptr<const AccessPolicy> RealSecurity::policy() const {
  MutexLock lock(&mutex_);
  return policy_;
}

// Beyond loopback a port needs a server certificate and a policy. With --insecure it may do
// without; the process then says so in the log every minute and in `kvatlas_insecure`.
absl::Status RealSecurity::MayListen(const Address& address) {
  if (IsLoopbackHost(address.host)) return absl::OkStatus();
  const bool safe = tls_ != nullptr && tls_->server() != nullptr && enforces();
  if (safe) return absl::OkStatus();
  if (options_.insecure) {
    NoteInClear("ports");
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      address.ToString(),
      " is beyond loopback, and everyone who reaches it could speak for any worker and tenant: "
      "give --tls_cert, --tls_key, --tls_ca and --access_policy (kvatlas pki makes them for a "
      "trial), "
      "or --insecure where the network is trusted"));
}

absl::Status RealSecurity::MayGoInClear(std::string_view what, const std::string& host,
                                        bool trusted) {
  // A trusted name is let through either way, so it is not resolved: a registration must not wait
  // for a resolver.
  if ((!trusted || IsNumericHost(host)) && IsLoopbackHost(host)) return absl::OkStatus();
  if (enforces() && !options_.insecure && !trusted) {
    return absl::FailedPreconditionError(absl::StrCat(
        absl::string_view(what.data(), what.size()), " at ", host,
        " would be reached in clear across a network, and this process has an access policy: give "
        "it TLS, or --insecure where the network is trusted"));
  }
  NoteInClear(std::string(what));
  return absl::OkStatus();
}

void RealSecurity::NoteInClear(std::string what) {
  MutexLock lock(&mutex_);
  in_clear_.insert(std::move(what));
  exposed_.store(true, std::memory_order_relaxed);
}

// ---- Authentication ----

// The certificate counts first. A token counts where there is no certificate, or none that counts;
// beside a good certificate it is ignored, since it may be meant for the engine behind a proxy.
absl::StatusOr<std::shared_ptr<const Identity>> RealSecurity::Authenticate(
    std::string_view chain_pem, std::string_view bearer) {
  const std::shared_ptr<const AccessPolicy> policy = this->policy();
  if (policy == nullptr) return AnonymousIdentity();
  if (!chain_pem.empty()) {
    auto identity = OfCertificate(chain_pem, *policy);
    if (identity.ok() || bearer.empty()) return identity;
  }
  if (bearer.empty()) return AnonymousIdentity();
  return OfToken(bearer, *policy);
}

// The identity of a certificate, from two caches:
// 1. `recent`, of the thread: the last chain that it saw. It is valid for one instance of this
//    class (tests have several) and one generation of policy and CAs.
// 2. `known_`, of all threads, by chain; refusals are in it too.
// 3. Otherwise LookAt decides. The result is remembered only if policy and generation are still
//    those it was made with; the check is under the mutex, where both change.
// The expiry is checked each time, as it needs no change of files.
// Memory order: the acquire load of `generation_` pairs with the release in ForgetIdentities.
absl::StatusOr<std::shared_ptr<const Identity>> RealSecurity::OfCertificate(
    std::string_view chain_pem, const AccessPolicy& policy) {
  // Calls of a thread mostly come over one connection, or over a few of one process: what was
  // looked up last is compared, not hashed.
  thread_local Recent recent;
  Known known;
  uint64_t generation = generation_.load(std::memory_order_acquire);
  if (recent.instance == instance_ && recent.generation == generation &&
      recent.chain_pem == chain_pem) {
    known.identity = recent.identity;
  } else {
    MutexLock lock(&mutex_);
    generation = generation_.load(std::memory_order_relaxed);
    // An entry may be of a younger policy than the caller's, which counts as well.
    const auto found = known_.find(std::string(chain_pem));
    if (found != known_.end()) known = found->second;
  }
  if (known.identity == nullptr && known.status.ok()) {
    known = LookAt(chain_pem, policy);
    MutexLock lock(&mutex_);
    if (generation_.load(std::memory_order_relaxed) == generation && policy_.get() == &policy) {
      if (known_.size() >= kIdentitiesMax) known_.clear();
      known_[std::string(chain_pem)] = known;
    } else {
      generation = 0;  // of a policy that is not the one of now: not to be remembered
    }
  }
  if (!known.status.ok()) return known.status;
  if (generation != 0 && known.identity != recent.identity)
    recent = {instance_, generation, std::string(chain_pem), known.identity};
  if (known.identity->not_after_unix_s != 0 &&
      known.identity->not_after_unix_s <= NowUnixSeconds()) {
    return CredentialRefused("the certificate has expired", known.identity.get());
  }
  return known.identity;
}

// Without a cache: parse the certificate, verify its chain by the CAs of now, map it to an
// identity, and look for it in the policy's list of revoked ones. The identity is found before the
// chain is verified, so that the audit log can name it in a refusal.
RealSecurity::Known RealSecurity::LookAt(std::string_view chain_pem, const AccessPolicy& policy) {
  const absl::StatusOr<CertificateNames> names = ReadCertificate(chain_pem);
  if (!names.ok()) return {nullptr, CredentialRefused(names.status().message())};
  absl::StatusOr<Identity> identity = policy.IdentityOf(*names);
  const Identity* const named = identity.ok() ? &*identity : nullptr;
  if (tls_ != nullptr) {
    const absl::Status trusted = tls_->Trusts(chain_pem);
    if (!trusted.ok()) return {nullptr, CredentialRefused(trusted.message(), named)};
  }
  if (!identity.ok()) return {nullptr, CredentialRefused(identity.status().message())};
  if (policy.Revoked(*identity))
    return {nullptr, CredentialRefused("the certificate is revoked", named)};
  return {std::make_shared<const Identity>(*std::move(identity)), absl::OkStatus()};
}

// Nothing is remembered: a token is hashed, or a JWT's signature verified, for each call.
absl::StatusOr<std::shared_ptr<const Identity>> RealSecurity::OfToken(std::string_view bearer,
                                                                      const AccessPolicy& policy) {
  std::shared_ptr<const Tokens> tokens;
  {
    MutexLock lock(&mutex_);
    tokens = tokens_;
  }
  if (tokens == nullptr) return AnonymousIdentity();  // the header may be the engine's
  absl::StatusOr<Identity> identity = tokens->IdentityOf(bearer, NowUnixSeconds());
  if (!identity.ok()) return identity.status();
  if (policy.Revoked(*identity)) return CredentialRefused("the token is revoked", &*identity);
  return std::make_shared<const Identity>(*std::move(identity));
}

// After policy or CAs have changed, under the same lock. The generation invalidates the threads'
// own memories.
void RealSecurity::ForgetIdentities() {
  known_.clear();
  generation_.fetch_add(1, std::memory_order_release);
}

uint64_t RealSecurity::NextInstance() {
  static std::atomic<uint64_t> instances{0};
  return ++instances;
}

// ---- Decisions ----

// A refusal here costs no reading of the request. What passes may still be refused by Check.
absl::Status RealSecurity::CheckMethod(const Identity& identity, Verb verb, std::string_view peer) {
  const std::shared_ptr<const AccessPolicy> policy = this->policy();
  if (policy == nullptr || verb == Verb::kHealth) return absl::OkStatus();
  const PolicyDecision decision = policy->DecideMethod(identity, verb);
  if (decision.allowed) return absl::OkStatus();
  refusals_[static_cast<size_t>(verb)].fetch_add(1, std::memory_order_relaxed);
  audit_->Write({.event = "refusal",
                 .allowed = false,
                 .identity = identity.Text(),
                 .peer = peer,
                 .verb = VerbName(verb),
                 .reason = decision.reason});
  return Refused(identity);
}

void RealSecurity::AuditUnknown(Verb verb, std::string_view peer, const absl::Status& why) {
  refusals_[static_cast<size_t>(verb)].fetch_add(1, std::memory_order_relaxed);
  const CredentialRefusal refusal = WhyRefused(why);
  audit_->Write({.event = "refusal",
                 .allowed = false,
                 .identity = refusal.identity,
                 .peer = peer,
                 .verb = VerbName(verb),
                 .reason = refusal.reason});
}

// Allowed calls are audited only where the caller asks for it and a log is configured: the text of
// a target is built for that alone.
absl::Status RealSecurity::Check(const Identity& identity, Verb verb, const PolicyTarget& target,
                                 std::string_view peer, std::string_view event,
                                 bool audit_allowed) {
  const std::shared_ptr<const AccessPolicy> policy = this->policy();
  if (policy == nullptr) {
    if (audit_allowed && !options_.audit_log.empty()) {
      audit_->Write({.event = event,
                     .identity = identity.Text(),
                     .peer = peer,
                     .verb = VerbName(verb),
                     .target = TextOf(target),
                     .reason = "no policy"});
    }
    return absl::OkStatus();
  }
  const PolicyDecision decision = policy->Decide(identity, verb, target);
  if (!decision.allowed) refusals_[static_cast<size_t>(verb)].fetch_add(1);
  if (!decision.allowed || (audit_allowed && !options_.audit_log.empty())) {
    audit_->Write({.event = event,
                   .allowed = decision.allowed,
                   .identity = identity.Text(),
                   .peer = peer,
                   .verb = VerbName(verb),
                   .target = TextOf(target),
                   .reason = decision.reason});
  }
  return decision.allowed ? absl::OkStatus() : Refused(identity);
}

}  // namespace kvatlas
