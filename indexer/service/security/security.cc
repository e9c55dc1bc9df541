#include "indexer/service/security/security.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

// Certificates whose identity is remembered; beyond, all are looked at again.
constexpr size_t kIdentitiesMax = 4096;
constexpr Duration kSayInsecureEvery = std::chrono::minutes(1);

int64_t NowUnixSeconds() { return static_cast<int64_t>(Clock::Real().WallNs() / 1'000'000'000u); }

const std::shared_ptr<const Identity>& Anonymous() {
  static const auto* const anonymous =
      new std::shared_ptr<const Identity>(std::make_shared<Identity>());
  return *anonymous;
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return v6->sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

// Of what `Look` reads with a whole file: changed when this changed.
std::string StampOfFile(const std::string& path) {
  struct stat status = {};
  if (path.empty() || stat(path.c_str(), &status) != 0) return "-;";
  return absl::StrCat(status.st_ino, ":", status.st_size, ":", status.st_mtim.tv_sec, ":",
                      status.st_mtim.tv_nsec, ";");
}

absl::Status Refused(const Identity& identity) {
  if (identity.role == IdentityRole::kAnonymous) {
    return absl::UnauthenticatedError("a client certificate or a bearer token is needed");
  }
  return absl::PermissionDeniedError(absl::string_view(kNotAllowed.data(), kNotAllowed.size()));
}

class NoCall : public Security::OpenCall {
  void Allowed(Verb, PolicyTarget) override {}
};

class OpenSecurity : public Security {
 public:
  TlsFiles* tls() override { return nullptr; }
  bool enforces() const override { return false; }
  Duration connection_age() const override { return Duration(0); }
  std::shared_ptr<const AccessPolicy> policy() const override { return nullptr; }
  absl::Status MayListen(const Address&) override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<const Identity>> Authenticate(std::string_view,
                                                               std::string_view) override {
    return Anonymous();
  }
  absl::Status CheckMethod(const Identity&, Verb, std::string_view) override {
    return absl::OkStatus();
  }
  void AuditUnknown(Verb, std::string_view, const absl::Status&) override {}
  absl::Status Check(const Identity&, Verb, const PolicyTarget&, std::string_view, std::string_view,
                     bool) override {
    return absl::OkStatus();
  }
  std::unique_ptr<OpenCall> AddCall(std::string, std::string, Verb, std::string,
                                    std::function<void()>) override {
    return std::make_unique<NoCall>();
  }
  absl::Status Take(const Identity&, QuotaKind, double, std::string_view) override {
    return absl::OkStatus();
  }
  absl::StatusOr<Held> Hold(const Identity&, std::vector<QuotaUse>, std::string_view,
                            const QuotaHold*) override {
    return Held();
  }
  absl::StatusOr<Held> HoldConnection(const Identity&, const std::string&) override {
    return Held();
  }
  PolicyQuota QuotaOf(const Identity&, std::string_view) const override { return {}; }
  void Audit(const AuditLine&) override {}
  void AppendMetrics(std::string*) const override {}
};

// What is checked again of one call. `mutex` is held while `cut` runs, so that it does not run once the call is over; `cutter`
// lets the call end within `cut` itself.
struct Entry {
  std::string chain_pem;
  std::string bearer;
  Verb verb;
  std::string peer;
  std::function<void()> cut;
  std::atomic<std::thread::id> cutter{};
  Mutex mutex;
  bool over ABSL_GUARDED_BY(mutex) = false;
  std::vector<std::pair<Verb, PolicyTarget>> allowed ABSL_GUARDED_BY(mutex);
};

// Of `HoldConnection`, before those that are over are looked for.
constexpr size_t kConnectionsKept = 1024;

// A target that a call was allowed a thousand times is one.
constexpr size_t kTargetsMax = 1024;

class RealSecurity final : public Security {
 public:
  explicit RealSecurity(SecurityOptions options) : options_(std::move(options)) {}

  ~RealSecurity() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
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

  TlsFiles* tls() override { return tls_.get(); }
  bool enforces() const override { return !options_.policy.empty(); }
  Duration connection_age() const override {
    return enforces() ? options_.connection_age : Duration(0);
  }

  std::shared_ptr<const AccessPolicy> policy() const override {
    MutexLock lock(&mutex_);
    return policy_;
  }

  absl::Status MayListen(const Address& address) override {
    if (IsLoopbackHost(address.host)) return absl::OkStatus();
    const bool safe = tls_ != nullptr && tls_->server() != nullptr && enforces();
    if (safe) return absl::OkStatus();
    if (options_.insecure) {
      exposed_.store(true, std::memory_order_relaxed);
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        address.ToString(),
        " is beyond loopback, and everyone who reaches it could speak for any worker and tenant: "
        "give --tls_cert, --tls_key, --tls_ca and --access_policy (kvatlas pki makes them for a "
        "trial), "
        "or --insecure where the network is trusted"));
  }

  absl::StatusOr<std::shared_ptr<const Identity>> Authenticate(std::string_view chain_pem,
                                                               std::string_view bearer) override {
    const std::shared_ptr<const AccessPolicy> policy = this->policy();
    if (policy == nullptr) return Anonymous();
    if (!chain_pem.empty()) {
      auto identity = OfCertificate(chain_pem, *policy);
      if (identity.ok() || bearer.empty()) return identity;
    }
    if (bearer.empty()) return Anonymous();
    return OfToken(bearer, *policy);
  }

  absl::Status CheckMethod(const Identity& identity, Verb verb, std::string_view peer) override {
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

  void AuditUnknown(Verb verb, std::string_view peer, const absl::Status& why) override {
    refusals_[static_cast<size_t>(verb)].fetch_add(1, std::memory_order_relaxed);
    audit_->Write({.event = "refusal",
                   .allowed = false,
                   .identity = "",
                   .peer = peer,
                   .verb = VerbName(verb),
                   .reason = std::string_view(why.message().data(), why.message().size())});
  }

  absl::Status Check(const Identity& identity, Verb verb, const PolicyTarget& target,
                     std::string_view peer, std::string_view event, bool audit_allowed) override {
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

  std::unique_ptr<OpenCall> AddCall(std::string chain_pem, std::string bearer, Verb verb,
                                    std::string peer, std::function<void()> cut) override {
    if (!enforces()) return std::make_unique<NoCall>();
    auto entry = std::make_shared<Entry>();
    entry->chain_pem = std::move(chain_pem);
    entry->bearer = std::move(bearer);
    entry->verb = verb;
    entry->peer = std::move(peer);
    entry->cut = std::move(cut);
    {
      MutexLock lock(&calls_mutex_);
      calls_.insert(entry);
    }
    return std::make_unique<Call>(this, std::move(entry));
  }

  absl::Status Take(const Identity& identity, QuotaKind kind, double amount,
                    std::string_view tenant) override {
    const std::vector<QuotaUser> users = UsersOf(identity, tenant, kind);
    if (users.empty()) return absl::OkStatus();
    absl::Status status = quotas_.Take(users, kind, amount);
    if (!status.ok()) AuditQuota(identity, status);
    return status;
  }

  absl::StatusOr<Held> Hold(const Identity& identity, std::vector<QuotaUse> uses,
                            std::string_view tenant, const QuotaHold* previous) override {
    const std::vector<QuotaUser> users = UsersOf(identity, tenant, std::nullopt);
    if (users.empty()) return Held();
    absl::StatusOr<Held> held = quotas_.Hold(users, std::move(uses), previous);
    if (!held.ok()) AuditQuota(identity, held.status());
    return held;
  }

  absl::StatusOr<Held> HoldConnection(const Identity& identity, const std::string& peer) override {
    if (!enforces()) return Held();
    const std::string name = absl::StrCat(identity.Text(), " ", peer);
    MutexLock lock(&connections_mutex_);
    const auto found = connections_.find(name);
    if (found != connections_.end()) {
      if (Held held = found->second.lock(); held != nullptr) return held;
    }
    absl::StatusOr<Held> held = Hold(identity, {{QuotaKind::kConnections, 1}}, "", nullptr);
    if (!held.ok()) return held;
    // Those that are gone go when as many have come.
    if (connections_.size() >= connections_kept_) {
      std::erase_if(connections_, [](const auto& one) { return one.second.expired(); });
      connections_kept_ = std::max(kConnectionsKept, 2 * connections_.size());
    }
    connections_[name] = *held;
    return held;
  }

  PolicyQuota QuotaOf(const Identity& identity, std::string_view tenant) const override {
    PolicyQuota narrow;
    for (const QuotaUser& user : UsersOf(identity, tenant, std::nullopt)) {
      const auto narrower = [](double* bound, double other) {
        if (other != 0 && (*bound == 0 || other < *bound)) *bound = other;
      };
      narrower(&narrow.unread_bytes, user.quota.unread_bytes);
      narrower(&narrow.blocks_per_holder, user.quota.blocks_per_holder);
      narrower(&narrow.pool_times, user.quota.pool_times);
    }
    return narrow;
  }

  void Audit(const AuditLine& line) override { audit_->Write(line); }

  void AppendMetrics(std::string* text) const override {
    const auto gauge = [text](std::string_view name, std::string_view help, auto value) {
      const absl::string_view n(name.data(), name.size());
      absl::StrAppend(text, "# HELP ", n, " ", absl::string_view(help.data(), help.size()),
                      "\n# TYPE ", n, absl::EndsWith(n, "_total") ? " counter\n" : " gauge\n", n,
                      " ", value, "\n");
    };
    gauge("kvatlas_insecure", "1: listens beyond loopback without TLS and policy.",
          exposed_.load(std::memory_order_relaxed) ? 1 : 0);
    // Families that are without series where there is no certificate or no policy.
    absl::StrAppend(text,
                    "# HELP kvatlas_certificate_expires_seconds When the certificate expires, in "
                    "Unix time.\n# TYPE kvatlas_certificate_expires_seconds gauge\n");
    if (tls_ != nullptr)
      absl::StrAppend(text, "kvatlas_certificate_expires_seconds ", tls_->not_after_unix_s(), "\n");
    gauge("kvatlas_security_reloads_total", "Changed security files that were taken over.",
          reloads_.load(std::memory_order_relaxed));
    gauge("kvatlas_security_reloads_failed_total", "Changed security files that were not.",
          reloads_failed_.load(std::memory_order_relaxed));
    gauge("kvatlas_security_calls_cut_total", "Open calls that were no longer allowed.",
          cut_.load(std::memory_order_relaxed));
    gauge("kvatlas_audit_lines_total", "Lines for the audit log.", audit_->lines());
    gauge("kvatlas_audit_lines_lost_total", "Lines that the audit log had no room for.",
          audit_->dropped());
    absl::StrAppend(text,
                    "# HELP kvatlas_refused_total What the policy refused.\n"
                    "# TYPE kvatlas_refused_total counter\n");
    for (size_t verb = 0; enforces() && verb < refusals_.size(); ++verb) {
      const std::string_view name = VerbName(static_cast<Verb>(verb));
      absl::StrAppend(text, "kvatlas_refused_total{verb=\"",
                      absl::string_view(name.data(), name.size()), "\"} ",
                      refusals_[verb].load(std::memory_order_relaxed), "\n");
    }
    absl::StrAppend(text,
                    "# HELP kvatlas_quota_refused_total What was beyond a quota.\n"
                    "# TYPE kvatlas_quota_refused_total counter\n");
    // Without a policy no sample, and the heads all the same.
    const auto each = [this](std::string_view name, const auto& value) {
      for (int kind = 0; enforces() && kind < kQuotaKinds; ++kind) {
        for (int of = 0; of < kQuotaClasses; ++of) value(name, static_cast<QuotaKind>(kind), of);
      }
    };
    const auto add = [text](std::string_view name, QuotaKind kind, int of, auto value) {
      const std::string_view quota = QuotaKindName(kind);
      const std::string_view user = QuotaClassName(of);
      absl::StrAppend(text, absl::string_view(name.data(), name.size()), "{quota=\"",
                      absl::string_view(quota.data(), quota.size()), "\",of=\"",
                      absl::string_view(user.data(), user.size()), "\"} ", value, "\n");
    };
    each("kvatlas_quota_refused_total", [&](std::string_view name, QuotaKind kind, int of) {
      add(name, kind, of, quotas_.refused(kind, of));
    });
    absl::StrAppend(text,
                    "# HELP kvatlas_quota_held What identities of a role, and tenants, hold.\n"
                    "# TYPE kvatlas_quota_held gauge\n");
    each("kvatlas_quota_held", [&](std::string_view name, QuotaKind kind, int of) {
      if (IsHeld(kind)) add(name, kind, of, quotas_.held(kind, of));
    });
  }

 private:
  class Call final : public OpenCall {
   public:
    Call(RealSecurity* owner, std::shared_ptr<Entry> entry)
        : owner_(owner), entry_(std::move(entry)) {}
    ~Call() override {
      {
        MutexLock lock(&owner_->calls_mutex_);
        owner_->calls_.erase(entry_);
      }
      if (entry_->cutter.load() == std::this_thread::get_id()) return;  // within `cut`
      MutexLock lock(&entry_->mutex);
      entry_->over = true;
    }
    void Allowed(Verb verb, PolicyTarget target) override {
      MutexLock lock(&entry_->mutex);
      if (entry_->allowed.size() < kTargetsMax) {
        entry_->allowed.emplace_back(verb, std::move(target));
      }
    }

   private:
    RealSecurity* const owner_;
    const std::shared_ptr<Entry> entry_;
  };

  struct Known {
    std::shared_ptr<const Identity> identity;
    absl::Status status;
  };
  // What a thread looked up last.
  struct Recent {
    uint64_t instance = 0;
    uint64_t generation = 0;
    std::string chain_pem;
    std::shared_ptr<const Identity> identity;
  };
  static uint64_t NextInstance() {
    static std::atomic<uint64_t> instances{0};
    return ++instances;
  }

  // Those that have a bound of `kind`, a rate; without a kind all of them, since what is held counts without a bound too.
  std::vector<QuotaUser> UsersOf(const Identity& identity, std::string_view tenant,
                                 std::optional<QuotaKind> kind) const {
    std::vector<QuotaUser> users;
    const std::shared_ptr<const AccessPolicy> policy = this->policy();
    if (policy == nullptr) return users;
    const PolicyQuota own = policy->QuotaOf(identity);
    if (!kind.has_value() || BoundOf(own, *kind) != 0)
      users.push_back({identity.Text(), static_cast<int>(identity.role), own});
    const std::string of = tenant.empty() ? policy->QuotaTenantOf(identity) : std::string(tenant);
    const PolicyTenant* const shared = policy->Tenant(of);
    if (shared == nullptr || !shared->quota.has_value()) return users;
    if (!kind.has_value() || BoundOf(*shared->quota, *kind) != 0)
      users.push_back({absl::StrCat("tenant:", of), kTenantClass, *shared->quota});
    return users;
  }

  void AuditQuota(const Identity& identity, const absl::Status& why) {
    audit_->Write({.event = "quota",
                   .allowed = false,
                   .identity = identity.Text(),
                   .reason = std::string_view(why.message().data(), why.message().size())});
  }

  absl::StatusOr<std::shared_ptr<const Identity>> OfCertificate(std::string_view chain_pem,
                                                                const AccessPolicy& policy) {
    // Calls of a thread mostly come over one connection, or over a few of one process: what was looked up last is compared, not hashed.
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
      return absl::UnauthenticatedError("the certificate has expired");
    }
    return known.identity;
  }

  Known LookAt(std::string_view chain_pem, const AccessPolicy& policy) {
    Known known;
    if (tls_ != nullptr) known.status = tls_->Trusts(chain_pem);
    if (!known.status.ok()) return known;
    const absl::StatusOr<CertificateNames> names = ReadCertificate(chain_pem);
    if (!names.ok()) {
      known.status = absl::UnauthenticatedError(names.status().message());
      return known;
    }
    absl::StatusOr<Identity> identity = policy.IdentityOf(*names);
    if (!identity.ok()) {
      known.status = absl::UnauthenticatedError(identity.status().message());
    } else if (policy.Revoked(*identity)) {
      known.status = absl::UnauthenticatedError("the certificate is revoked");
    } else {
      known.identity = std::make_shared<const Identity>(*std::move(identity));
    }
    return known;
  }

  absl::StatusOr<std::shared_ptr<const Identity>> OfToken(std::string_view bearer,
                                                          const AccessPolicy& policy) {
    std::shared_ptr<const Tokens> tokens;
    {
      MutexLock lock(&mutex_);
      tokens = tokens_;
    }
    if (tokens == nullptr) return Anonymous();  // the header may be the engine's
    absl::StatusOr<Identity> identity = tokens->IdentityOf(bearer, NowUnixSeconds());
    if (!identity.ok()) return identity.status();
    if (policy.Revoked(*identity)) return absl::UnauthenticatedError("the token is revoked");
    return std::make_shared<const Identity>(*std::move(identity));
  }

  std::array<std::string, 3> Stamps() const {
    return {StampOfFile(options_.policy), StampOfFile(options_.tokens.tokens),
            StampOfFile(options_.tokens.jwks)};
  }

  absl::Status ReadPolicy() {
    if (options_.policy.empty()) return absl::OkStatus();
    absl::StatusOr<std::shared_ptr<const AccessPolicy>> policy =
        AccessPolicy::Read(options_.policy);
    if (!policy.ok()) return policy.status();
    MutexLock lock(&mutex_);
    policy_ = *std::move(policy);
    ForgetIdentities();
    return absl::OkStatus();
  }

  absl::Status ReadTokens() {
    if (options_.tokens.tokens.empty() && options_.tokens.jwks.empty()) return absl::OkStatus();
    absl::StatusOr<std::shared_ptr<const Tokens>> tokens = Tokens::Read(options_.tokens);
    if (!tokens.ok()) return tokens.status();
    MutexLock lock(&mutex_);
    tokens_ = *std::move(tokens);
    return absl::OkStatus();
  }

  void ForgetIdentities() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    known_.clear();
    generation_.fetch_add(1, std::memory_order_release);
  }

  void Run() {
    Time say_insecure{0};
    int64_t checked_s = NowUnixSeconds();
    while (true) {
      {
        MutexLock lock(&mutex_);
        if (!stopping_) wake_.WaitFor(&mutex_, options_.look_every);
        if (stopping_) return;
      }
      const bool changed = Look();
      // Credentials expire by themselves: looked for once a second.
      const int64_t now_s = NowUnixSeconds();
      if (changed || now_s != checked_s) CheckCalls(changed);
      checked_s = now_s;
      if (!exposed_.load(std::memory_order_relaxed)) continue;
      const Time now = Clock::Real().Now();
      if (now - say_insecure < kSayInsecureEvery && say_insecure != Time{0}) continue;
      say_insecure = now;
      Log(LogLevel::kWarning,
          "insecure: this process listens beyond loopback without TLS and policy",
          {{"remedy",
            "--tls_cert, --tls_key, --tls_ca and --access_policy; see docs/security.md"}});
    }
  }

  void LogReload(std::string_view what, const std::string& path, const absl::Status& status) {
    // The same reason once: a file that stays bad is looked at twice a second.
    std::string& last = reload_errors_[std::string(what)];
    const std::string now = status.ok() ? "" : std::string(status.message());
    if (status.ok()) {
      reloads_.fetch_add(1, std::memory_order_relaxed);
      Log(LogLevel::kInfo, "security files read again",
          {{"what", std::string(what)}, {"path", path}});
    } else if (now != last) {
      reloads_failed_.fetch_add(1, std::memory_order_relaxed);
      Log(LogLevel::kError, "security files stay as they were",
          {{"what", std::string(what)}, {"path", path}, {"reason", now}});
    }
    if (status.ok() || now != last) {
      audit_->Write({.event = "reload",
                     .allowed = status.ok(),
                     .identity = "",
                     .target = absl::StrCat(absl::string_view(what.data(), what.size()), "=", path),
                     .reason = now});
    }
    last = now;
  }

  // Of the thread. True: something else counts from now on.
  bool Look() {
    bool any = false;
    if (tls_ != nullptr) {
      bool changed = false;
      const absl::Status status = tls_->Look(&changed);
      if (changed) {
        MutexLock lock(&mutex_);
        ForgetIdentities();
      }
      if (changed || !status.ok()) LogReload("tls", options_.tls.certificate, status);
      any |= changed;
    }
    std::array<std::string, 3> stamps = Stamps();
    if (stamps == stamps_) return any;
    if (stamps[0] != stamps_[0]) {
      const absl::Status status = ReadPolicy();
      LogReload("policy", options_.policy, status);
      any |= status.ok();
    }
    if (stamps[1] != stamps_[1] || stamps[2] != stamps_[2]) {
      const absl::Status status = ReadTokens();
      LogReload("tokens", options_.tokens.tokens, status);
      any |= status.ok();
    }
    stamps_ = std::move(stamps);
    return any;
  }

  // Of the thread. Without a change only credentials that have expired are looked for.
  void CheckCalls(bool changed) {
    std::vector<std::shared_ptr<Entry>> calls;
    {
      MutexLock lock(&calls_mutex_);
      calls.assign(calls_.begin(), calls_.end());
    }
    for (const std::shared_ptr<Entry>& entry : calls) {
      const absl::Status status = StillAllowed(*entry, changed);
      if (!status.ok()) Cut(*entry, status);
    }
  }

  absl::Status StillAllowed(Entry& entry, bool changed) {
    const absl::StatusOr<std::shared_ptr<const Identity>> identity =
        Authenticate(entry.chain_pem, entry.bearer);
    if (!identity.ok()) return identity.status();
    // A certificate that has expired beside a token that says nothing is no identity.
    if (!changed && (*identity)->role != IdentityRole::kAnonymous) return absl::OkStatus();
    const std::shared_ptr<const AccessPolicy> policy = this->policy();
    PolicyDecision decision = policy->DecideMethod(**identity, entry.verb);
    MutexLock lock(&entry.mutex);
    for (const auto& [verb, target] : entry.allowed) {
      if (!decision.allowed) break;
      decision = policy->Decide(**identity, verb, target);
    }
    return decision.allowed ? absl::OkStatus() : absl::PermissionDeniedError(decision.reason);
  }

  void Cut(Entry& entry, const absl::Status& why) {
    MutexLock lock(&entry.mutex);
    if (std::exchange(entry.over, true)) return;
    cut_.fetch_add(1, std::memory_order_relaxed);
    Log(LogLevel::kWarning, "call ended: its credential is not allowed any more",
        {{"peer", entry.peer}, {"reason", std::string(why.message())}});
    audit_->Write({.event = "revoked",
                   .allowed = false,
                   .identity = "",
                   .peer = entry.peer,
                   .verb = VerbName(entry.verb),
                   .reason = std::string_view(why.message().data(), why.message().size())});
    entry.cutter.store(std::this_thread::get_id());
    entry.cut();
    entry.cutter.store({});
  }

  const SecurityOptions options_;
  std::unique_ptr<TlsFiles> tls_;    // immutable after Start
  std::unique_ptr<AuditLog> audit_;  // likewise
  Quotas quotas_;
  Mutex connections_mutex_;
  std::unordered_map<std::string, std::weak_ptr<const QuotaHold>> connections_
      ABSL_GUARDED_BY(connections_mutex_);
  size_t connections_kept_ ABSL_GUARDED_BY(connections_mutex_) = kConnectionsKept;
  std::array<std::atomic<uint64_t>, kVerbs> refusals_{};
  std::atomic<uint64_t> reloads_{0};
  std::atomic<uint64_t> reloads_failed_{0};
  std::atomic<uint64_t> cut_{0};
  std::atomic<bool> exposed_{false};

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const AccessPolicy> policy_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Tokens> tokens_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Known> known_ ABSL_GUARDED_BY(mutex_);
  // Of policy and CAs; written under the mutex, after them.
  std::atomic<uint64_t> generation_{1};
  const uint64_t instance_ = NextInstance();

  Mutex calls_mutex_;
  std::set<std::shared_ptr<Entry>> calls_ ABSL_GUARDED_BY(calls_mutex_);

  // Of the thread.
  std::array<std::string, 3> stamps_;
  std::map<std::string, std::string> reload_errors_;
  std::thread thread_;
};

Mutex& ProcessMutex() {
  static auto* const mutex = new Mutex;
  return *mutex;
}

std::shared_ptr<Security>& ProcessSecurity() {
  static auto* const security = new std::shared_ptr<Security>(Security::Open());
  return *security;
}

}  // namespace

bool IsLoopbackHost(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (!IsLoopback(one->ai_addr)) return false;
  }
  return found != nullptr;
}

const std::shared_ptr<Security>& Security::Open() {
  static const auto* const open = new std::shared_ptr<Security>(std::make_shared<OpenSecurity>());
  return *open;
}

absl::StatusOr<std::shared_ptr<Security>> Security::Start(SecurityOptions options) {
  auto security = std::make_shared<RealSecurity>(std::move(options));
  if (absl::Status bad = security->Start(); !bad.ok()) return bad;
  return security;
}

std::function<std::shared_ptr<const void>(size_t bytes)> Security::UnreadOf(
    std::shared_ptr<const Identity> identity, std::function<void()> cancel) {
  if (QuotaOf(*identity).unread_bytes == 0) return nullptr;
  return [this, identity = std::move(identity),
          cancel = std::move(cancel)](size_t bytes) -> std::shared_ptr<const void> {
    absl::StatusOr<Held> held =
        Hold(*identity, {{QuotaKind::kUnreadBytes, static_cast<double>(bytes)}});
    if (held.ok()) return *std::move(held);
    cancel();
    return nullptr;
  };
}

std::shared_ptr<Security> Security::OfProcess() {
  MutexLock lock(&ProcessMutex());
  return ProcessSecurity();
}

void Security::SetOfProcess(std::shared_ptr<Security> security) {
  MutexLock lock(&ProcessMutex());
  ProcessSecurity() = std::move(security);
}

}  // namespace kvatlas
