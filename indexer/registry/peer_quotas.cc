// A charge has two parts: the amount on the address, counted here, and the charge that the
// identity's policy gave (`of_identity`), which it only keeps. `Accounts` is shared with the
// charges, which may outlive the quotas.

#include "indexer/registry/peer_quotas.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

struct Amount {
  uint64_t domains = 0;
  uint64_t holders = 0;
  uint64_t label_bytes = 0;

  bool Empty() const { return domains == 0 && holders == 0 && label_bytes == 0; }
};

// `amount` includes what is asked for.
absl::Status Check(uint64_t amount, const PeerLimit& limit, const char* what,
                   const std::string& peer) {
  if (limit.max == 0 || amount <= limit.max) return absl::OkStatus();
  return absl::ResourceExhaustedError("address " + peer + " has announced " + what +
                                      " up to its limit of " + std::to_string(limit.max) +
                                      ": where that many are right behind one address, raise " +
                                      limit.name);
}

}  // namespace

struct PeerQuotas::Accounts {
  explicit Accounts(PeerLimits given) : limits(std::move(given)) {}

  const PeerLimits limits;
  Mutex mutex;
  absl::flat_hash_map<std::string, Amount> by_peer ABSL_GUARDED_BY(mutex);
};

class PeerQuotas::Charge {
 public:
  Charge(std::shared_ptr<Accounts> accounts, std::string peer, Amount amount,
         PeerAllowance::ChargePtr of_identity)
      : accounts_(std::move(accounts)),
        peer_(std::move(peer)),
        amount_(amount),
        of_identity_(std::move(of_identity)) {}
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  ~Charge() {
    if (peer_.empty()) return;
    MutexLock lock(&accounts_->mutex);
    const auto found = accounts_->by_peer.find(peer_);
    found->second.domains -= amount_.domains;
    found->second.holders -= amount_.holders;
    found->second.label_bytes -= amount_.label_bytes;
    if (found->second.Empty()) accounts_->by_peer.erase(found);
  }

  // Adds to the account, or refuses and adds nothing. `previous`, the same holder's charge, is
  // destroyed soon and does not count against the limits. Where the amount does not grow no limit
  // is checked: a returning holder is never refused for what it has. Domains are charged once, at
  // their making.
  static absl::StatusOr<std::shared_ptr<const Charge>> Take(
      const std::shared_ptr<Accounts>& accounts, const std::string& peer, const Amount& amount,
      const Charge* previous, PeerAllowance::ChargePtr of_identity) {
    if (peer.empty() && of_identity == nullptr) return nullptr;
    if (peer.empty()) {
      return std::make_shared<const Charge>(accounts, peer, Amount(), std::move(of_identity));
    }
    const bool same = previous != nullptr && previous->peer_ == peer;
    const Amount less = same ? previous->amount_ : Amount();
    MutexLock lock(&accounts->mutex);
    const auto found = accounts->by_peer.find(peer);
    Amount sum = found == accounts->by_peer.end() ? Amount() : found->second;
    sum.domains += amount.domains;
    sum.holders += amount.holders;
    sum.label_bytes += amount.label_bytes;
    const PeerLimits& limits = accounts->limits;
    absl::Status status;
    if (amount.domains > 0) status.Update(Check(sum.domains, limits.domains, "models", peer));
    if (amount.holders > less.holders)
      status.Update(Check(sum.holders - less.holders, limits.holders, "holders", peer));
    if (amount.label_bytes > less.label_bytes)
      status.Update(
          Check(sum.label_bytes - less.label_bytes, limits.label_bytes, "bytes of labels", peer));
    if (!status.ok()) return status;
    accounts->by_peer[peer] = sum;
    return std::make_shared<const Charge>(accounts, peer, amount, std::move(of_identity));
  }

  const PeerAllowance::ChargePtr& of_identity() const { return of_identity_; }

 private:
  const std::shared_ptr<Accounts> accounts_;
  const std::string peer_;
  const Amount amount_;
  const PeerAllowance::ChargePtr of_identity_;
};

PeerQuotas::PeerQuotas(PeerLimits limits)
    : accounts_(std::make_shared<Accounts>(std::move(limits))) {}

PeerQuotas::~PeerQuotas() = default;

absl::StatusOr<std::shared_ptr<const PeerQuotas::Charge>> PeerQuotas::TakeDomain(
    const StreamPeer& peer, const std::string& tenant) {
  absl::StatusOr<PeerAllowance::ChargePtr> of_identity = PeerAllowance::ChargePtr();
  if (peer.allowance != nullptr) of_identity = peer.allowance->TakeDomain(tenant);
  if (!of_identity.ok()) return of_identity.status();
  return Charge::Take(accounts_, peer.address, {.domains = 1}, nullptr, *std::move(of_identity));
}

absl::StatusOr<std::shared_ptr<const PeerQuotas::Charge>> PeerQuotas::TakeHolder(
    const StreamPeer& peer, const std::string& tenant, uint64_t label_bytes,
    const std::shared_ptr<const Charge>& previous) {
  absl::StatusOr<PeerAllowance::ChargePtr> of_identity = PeerAllowance::ChargePtr();
  if (peer.allowance != nullptr) {
    of_identity = peer.allowance->TakeHolder(
        tenant, label_bytes, previous == nullptr ? nullptr : previous->of_identity());
  }
  if (!of_identity.ok()) return of_identity.status();
  return Charge::Take(accounts_, peer.address, {.holders = 1, .label_bytes = label_bytes},
                      previous.get(), *std::move(of_identity));
}

}  // namespace kvatlas
