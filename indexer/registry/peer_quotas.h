// Limits on what one address, and one identity, may take of this process by its announcements:
// domains, holders, and the bytes of their names and labels.
//
//   hello from 10.0.0.7 ─▶ TakeDomain, TakeHolder ─▶ a charge, given back when domain or holder is forgotten
//
// *Place*: one in a `HolderRegistry`. An address is that of the connection, without its port, of
// IPv6 the first 64 bits. Streams without one (through Redis, or in this process) are not counted.
// Limits of an identity are in its `PeerAllowance`.
// *Truth*: a domain counts for the address whose hello made it, a holder for that of its last
// hello.
// *Threads*: any. *Cost*: a short lock and a look-up at a hello, none afterwards. *Lifetime*:
// charges may outlive it.

#ifndef KVATLAS_INDEXER_REGISTRY_PEER_QUOTAS_H_
#define KVATLAS_INDEXER_REGISTRY_PEER_QUOTAS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/stream/link.h"

namespace kvatlas {

struct PeerLimit {
  uint64_t max = 0;  // 0: no limit
  std::string name;  // in refusals: what sets it
};

// The defaults are for many workers behind one address, such as a relay's, or those of a node, or a
// proxy's.
struct PeerLimits {
  PeerLimit domains{256, "domains_per_peer"};
  PeerLimit holders{1 << 14, "holders_per_peer"};
  PeerLimit label_bytes{16 << 20,
                        "label_bytes_per_peer"};  // of holders' names, addresses and labels
};

// The peer that announces; both may be empty.
struct StreamPeer {
  std::string address = {};
  std::shared_ptr<PeerAllowance> allowance = nullptr;
};

class PeerQuotas {
 public:
  // The share of one domain or one holder, until it is destroyed.
  class Charge;

  explicit PeerQuotas(PeerLimits limits);
  ~PeerQuotas();

  // RESOURCE_EXHAUSTED says which limit of which peer is reached, and what to do. Null where `peer`
  // is empty.
  absl::StatusOr<std::shared_ptr<const Charge>> TakeDomain(const StreamPeer& peer,
                                                           const std::string& tenant);
  // `previous`, which may be null, is what the same holder took before: it goes when this one is
  // there.
  absl::StatusOr<std::shared_ptr<const Charge>> TakeHolder(
      const StreamPeer& peer, const std::string& tenant, uint64_t label_bytes,
      const std::shared_ptr<const Charge>& previous);

 private:
  struct Accounts;
  const std::shared_ptr<Accounts> accounts_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_PEER_QUOTAS_H_
