// Prometheus text of the process's security. Families are declared even where they have no series,
// so that a dashboard or an alert finds their names in every process.

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "indexer/security/real_security.h"

namespace kvatlas {

void RealSecurity::AppendMetrics(std::string* text) const {
  const auto gauge = [text](std::string_view name, std::string_view help, auto value) {
    const absl::string_view n(name.data(), name.size());
    absl::StrAppend(text, "# HELP ", n, " ", absl::string_view(help.data(), help.size()),
                    "\n# TYPE ", n, absl::EndsWith(n, "_total") ? " counter\n" : " gauge\n", n, " ",
                    value, "\n");
  };
  gauge("kvatlas_insecure",
        "1: listens beyond loopback without TLS and policy, or takes engines' events or Redis' "
        "logs from there in clear.",
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
  AppendQuotaMetrics(text);
}

// By quota and by role, or "tenant": names of identities would be series without a bound.
void RealSecurity::AppendQuotaMetrics(std::string* text) const {
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

}  // namespace kvatlas
