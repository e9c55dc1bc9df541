// Does an identity ask for more than it may? A token bucket per identity and kind of use; counts for what is held.
//
// *Threads*: any. *Bounds*: `kQuotaIdentitiesMax` identities are remembered; those that were idle for longest go first.
// *Cost*: a hash lookup and a short lock.

#ifndef KVATLAS_INDEXER_SERVICE_SECURITY_QUOTAS_H_
#define KVATLAS_INDEXER_SERVICE_SECURITY_QUOTAS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/service/security/policy.h"

namespace kvatlas {

inline constexpr size_t kQuotaIdentitiesMax = 4096;

enum class QuotaKind : uint8_t {
  kConnections,  // held, as the next three
  kStreams,
  kDomains,
  kHolders,
  kLabelBytes,
  kHellos,  // per second, with a burst of one second, as what follows
  kBlocks,
  kQueries,
  kDumps,
};
inline constexpr int kQuotaKinds = 9;
std::string_view QuotaKindName(QuotaKind kind);

class Quotas {
 public:
  explicit Quotas(const Clock* clock = &Clock::Real());
  ~Quotas();

  // RESOURCE_EXHAUSTED names the quota and its bound; nothing is taken then. Of what is held, `amount` must be given back.
  absl::Status Take(std::string_view identity, QuotaKind kind, double amount,
                    const PolicyQuota& quota);
  void GiveBack(std::string_view identity, QuotaKind kind, double amount);
  uint64_t refused(QuotaKind kind) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_SECURITY_QUOTAS_H_
