// Quotas of identities and tenants: token buckets for rates, counts for what is held.
//
//   Take(identity and tenant, kind, amount) ─▶ OK, taken from both | RESOURCE_EXHAUSTED, taken from neither
//
// *Truth*: what is held counts for an identity without a bound too, since a later policy may have
// one.
// *Threads*: any. *Bounds*: `kQuotaUsersMax` users are remembered; those that were idle for longest
// and hold nothing go first. Users that hold something are remembered beyond it, as long as they
// do: their number is that of connections and streams at most.
// *Cost*: a hash lookup a user and a short lock. *Lifetime*: holds may outlive this.

#ifndef KVATLAS_INDEXER_SECURITY_QUOTAS_H_
#define KVATLAS_INDEXER_SECURITY_QUOTAS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/security/identity.h"
#include "indexer/security/policy.h"

namespace kvatlas {

inline constexpr size_t kQuotaUsersMax = 4096;

enum class QuotaKind : uint8_t {
  kConnections,  // held, as those up to kUnreadBytes
  kStreams,
  kDomains,
  kHolders,
  kLabelBytes,
  kUnreadBytes,  // of answers that were made and are not sent yet
  kHellos,       // per second, with a burst of one second, as what follows
  kBlocks,
  kQueries,
  kDumps,
};
inline constexpr int kQuotaKinds = 10;
std::string_view QuotaKindName(QuotaKind kind);
// True: what is held is counted. False: a rate.
inline bool IsHeld(QuotaKind kind) { return kind <= QuotaKind::kUnreadBytes; }
// 0: none.
double BoundOf(const PolicyQuota& quota, QuotaKind kind);

// In metrics users go by their role, or as "tenant": labels that no caller can make more of.
inline constexpr int kQuotaClasses = kIdentityRoles + 1;
inline constexpr int kTenantClass = kIdentityRoles;
std::string_view QuotaClassName(int user_class);

// An identity or a tenant, and its bounds.
struct QuotaUser {
  std::string name;  // "worker/a/0", "tenant:x"
  int user_class = 0;
  PolicyQuota quota;
};

struct QuotaUse {
  QuotaKind kind;
  double amount;
};

// A hold: its uses count until it is destroyed.
class QuotaHold {
 public:
  virtual ~QuotaHold() = default;
};

class Quotas {
 public:
  explicit Quotas(const Clock* clock = &Clock::Real());
  ~Quotas();

  // Takes from a rate: all users pass, or nothing is taken and RESOURCE_EXHAUSTED names the quota,
  // its bound, and whether it is an identity's or a tenant's.
  absl::Status Take(std::span<const QuotaUser> users, QuotaKind kind, double amount);
  // Holds all uses of all users, or none. `previous`, which may be null, is dropped by the caller
  // when the new hold is there, and does not count where it is of the same user.
  absl::StatusOr<std::shared_ptr<const QuotaHold>> Hold(std::span<const QuotaUser> users,
                                                        std::vector<QuotaUse> uses,
                                                        const QuotaHold* previous = nullptr);

  uint64_t refused(QuotaKind kind, int user_class) const;
  double held(QuotaKind kind, int user_class) const;

 private:
  struct State;
  class HoldImpl;
  const std::shared_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_QUOTAS_H_
