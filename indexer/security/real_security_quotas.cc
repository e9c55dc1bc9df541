// Quotas of identities, and of the tenants that they act for.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "indexer/security/real_security.h"

namespace kvatlas {

// The users that a use counts for: the identity, and the tenant that it acts for where that has a
// quota.
std::vector<QuotaUser> RealSecurity::UsersOf(const Identity& identity, std::string_view tenant,
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

void RealSecurity::AuditQuota(const Identity& identity, std::string_view peer,
                              const absl::Status& why) {
  audit_->Write({.event = "quota",
                 .allowed = false,
                 .identity = identity.Text(),
                 .peer = peer,
                 .reason = std::string_view(why.message().data(), why.message().size())});
}

absl::Status RealSecurity::Take(const Identity& identity, QuotaKind kind, double amount,
                                std::string_view peer, std::string_view tenant) {
  const std::vector<QuotaUser> users = UsersOf(identity, tenant, kind);
  if (users.empty()) return absl::OkStatus();
  absl::Status status = quotas_.Take(users, kind, amount);
  if (!status.ok()) AuditQuota(identity, peer, status);
  return status;
}

absl::StatusOr<Security::Held> RealSecurity::Hold(const Identity& identity,
                                                  std::vector<QuotaUse> uses, std::string_view peer,
                                                  std::string_view tenant,
                                                  const QuotaHold* previous) {
  const std::vector<QuotaUser> users = UsersOf(identity, tenant, std::nullopt);
  if (users.empty()) return Held();
  absl::StatusOr<Held> held = quotas_.Hold(users, std::move(uses), previous);
  if (!held.ok()) AuditQuota(identity, peer, held.status());
  return held;
}

// All calls of one connection share a hold, found by identity and the peer's address with port; it
// goes with the last of them. `connections_mutex_` is held over `Hold`, which takes the mutex of
// the quotas: that order everywhere.
absl::StatusOr<Security::Held> RealSecurity::HoldConnection(const Identity& identity,
                                                            const std::string& peer) {
  if (!enforces()) return Held();
  const std::string name = absl::StrCat(identity.Text(), " ", peer);
  MutexLock lock(&connections_mutex_);
  const auto found = connections_.find(name);
  if (found != connections_.end()) {
    if (Held held = found->second.lock(); held != nullptr) return held;
  }
  absl::StatusOr<Held> held = Hold(identity, {{QuotaKind::kConnections, 1}}, peer, "", nullptr);
  if (!held.ok()) return held;
  // Expired entries are removed when the map has doubled: amortised constant cost.
  if (connections_.size() >= connections_kept_) {
    std::erase_if(connections_, [](const auto& one) { return one.second.expired(); });
    connections_kept_ = std::max(kConnectionsKept, 2 * connections_.size());
  }
  connections_[name] = *held;
  return held;
}

// The three bounds that are applied elsewhere (streams of answers, the index), as the narrower of
// identity and tenant; the other fields stay 0.
PolicyQuota RealSecurity::QuotaOf(const Identity& identity, std::string_view tenant) const {
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

}  // namespace kvatlas
