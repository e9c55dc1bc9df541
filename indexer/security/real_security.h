// A process with certificates, a policy, or both, as its options say.
//
// Its sources by subject: `real_security.cc` (authentication and decisions),
// `real_security_calls.cc` (open calls, which are cut), `real_security_quotas.cc`,
// `real_security_files.cc` (the thread that looks at files), `real_security_metrics.cc`.
//
// *Threads*: any, and one of its own that looks at files and cuts calls.

#ifndef KVATLAS_INDEXER_SECURITY_REAL_SECURITY_H_
#define KVATLAS_INDEXER_SECURITY_REAL_SECURITY_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/mutex.h"
#include "indexer/security/audit.h"
#include "indexer/security/identity.h"
#include "indexer/security/policy.h"
#include "indexer/security/quotas.h"
#include "indexer/security/security.h"
#include "indexer/security/tls_files.h"
#include "indexer/security/tokens.h"

namespace kvatlas {

class RealSecurity final : public Security {
 public:
  explicit RealSecurity(SecurityOptions options) : options_(std::move(options)) {}
  ~RealSecurity() override;

  // Once, before anything else.
  absl::Status Start();

  TlsFiles* tls() override { return tls_.get(); }
  bool enforces() const override { return !options_.policy.empty(); }
  Duration connection_age() const override {
    return enforces() ? options_.connection_age : Duration(0);
  }
  std::shared_ptr<const AccessPolicy> policy() const override;
  absl::Status MayListen(const Address& address) override;
  absl::Status MayGoInClear(std::string_view what, const std::string& host, bool trusted) override;
  absl::StatusOr<std::shared_ptr<const Identity>> Authenticate(std::string_view chain_pem,
                                                               std::string_view bearer) override;
  absl::Status CheckMethod(const Identity& identity, Verb verb, std::string_view peer) override;
  void AuditUnknown(Verb verb, std::string_view peer, const absl::Status& why) override;
  absl::Status Check(const Identity& identity, Verb verb, const PolicyTarget& target,
                     std::string_view peer, std::string_view event, bool audit_allowed) override;
  std::unique_ptr<OpenCall> AddCall(std::shared_ptr<const Identity> identity, std::string chain_pem,
                                    std::string bearer, Verb verb, std::string peer,
                                    std::function<void()> cut) override;
  absl::Status Take(const Identity& identity, QuotaKind kind, double amount, std::string_view peer,
                    std::string_view tenant) override;
  absl::StatusOr<Held> Hold(const Identity& identity, std::vector<QuotaUse> uses,
                            std::string_view peer, std::string_view tenant,
                            const QuotaHold* previous) override;
  absl::StatusOr<Held> HoldConnection(const Identity& identity, const std::string& peer) override;
  PolicyQuota QuotaOf(const Identity& identity, std::string_view tenant) const override;
  void Audit(const AuditLine& line) override { audit_->Write(line); }
  void AppendMetrics(std::string* text) const override;

 private:
  // Entries of `connections_` before expired ones are looked for (`HoldConnection`).
  static constexpr size_t kConnectionsKept = 1024;

  struct Entry;  // an open call
  class Call;

  struct Known {
    std::shared_ptr<const Identity> identity;
    absl::Status status;
  };
  // The certificate that a thread looked up last.
  struct Recent {
    uint64_t instance = 0;
    uint64_t generation = 0;
    std::string chain_pem;
    std::shared_ptr<const Identity> identity;
  };
  static uint64_t NextInstance();

  // Authentication.
  absl::StatusOr<std::shared_ptr<const Identity>> OfCertificate(std::string_view chain_pem,
                                                                const AccessPolicy& policy);
  Known LookAt(std::string_view chain_pem, const AccessPolicy& policy);
  absl::StatusOr<std::shared_ptr<const Identity>> OfToken(std::string_view bearer,
                                                          const AccessPolicy& policy);
  void ForgetIdentities() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Quotas. `UsersOf`: those that have a bound of `kind`, a rate; without a kind all of them, since
  // what is held counts without a bound too.
  std::vector<QuotaUser> UsersOf(const Identity& identity, std::string_view tenant,
                                 std::optional<QuotaKind> kind) const;
  void AuditQuota(const Identity& identity, std::string_view peer, const absl::Status& why);
  void AppendQuotaMetrics(std::string* text) const;

  // Files. `Look` is of the thread; true: something else counts from now on.
  std::array<std::string, 3> Stamps() const;
  absl::Status ReadPolicy();
  absl::Status ReadTokens();
  void Run();
  bool Look();
  void LogReload(std::string_view what, const std::string& path, const absl::Status& status);
  void NoteInClear(std::string what);
  void SayInsecure() const;

  // Open calls, of the thread. Without a change only credentials that have expired are looked for.
  void CheckCalls(bool changed);
  absl::Status StillAllowed(Entry& entry, bool changed);
  void Cut(Entry& entry, const absl::Status& why);

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
  std::atomic<bool> exposed_{false};  // `in_clear_` has something

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> in_clear_ ABSL_GUARDED_BY(mutex_);  // planes, beyond loopback
  std::shared_ptr<const AccessPolicy> policy_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Tokens> tokens_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Known> known_ ABSL_GUARDED_BY(mutex_);
  // The generation of policy and CAs; written under the mutex, after them.
  std::atomic<uint64_t> generation_{1};
  const uint64_t instance_ = NextInstance();

  Mutex calls_mutex_;
  std::set<std::shared_ptr<Entry>> calls_ ABSL_GUARDED_BY(calls_mutex_);

  // The members below belong to the thread.
  std::array<std::string, 3> stamps_;
  std::map<std::string, std::string> reload_errors_;
  std::thread thread_;
};

// Now, for what expires.
int64_t NowUnixSeconds();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_REAL_SECURITY_H_
