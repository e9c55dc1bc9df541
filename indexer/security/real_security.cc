#include "indexer/security/real_security.h"

#include "absl/strings/str_cat.h"
#include "indexer/base/clock.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/security/open_security.h"

namespace kvatlas {
namespace {

// Certificates whose identity is remembered; beyond, all are looked at again.
constexpr size_t kIdentitiesMax = 4096;

absl::Status Refused(const Identity& identity) {
  if (identity.role == IdentityRole::kAnonymous) {
    return CredentialRefused("no credential");
  }
  return absl::PermissionDeniedError(absl::string_view(kNotAllowed.data(), kNotAllowed.size()));
}

}  // namespace

int64_t NowUnixSeconds() { return static_cast<int64_t>(Clock::Real().WallNs() / 1'000'000'000u); }

RealSecurity::~RealSecurity() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

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
  // The name of what is let through anyway is not looked up: a registration must not wait for a
  // resolver.
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

// ---- Who is it? ----

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
    // Of another policy than the caller's: a younger one, which counts as well.
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

void RealSecurity::ForgetIdentities() {
  known_.clear();
  generation_.fetch_add(1, std::memory_order_release);
}

uint64_t RealSecurity::NextInstance() {
  static std::atomic<uint64_t> instances{0};
  return ++instances;
}

// ---- May it? ----

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
