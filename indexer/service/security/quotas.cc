#include "indexer/service/security/quotas.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

constexpr std::array<std::string_view, kQuotaKinds> kNames = {
    "connections",  "streams",      "domains",       "holders",    "label_bytes",
    "hellos_per_s", "blocks_per_s", "queries_per_s", "dumps_per_s"};

bool IsHeld(QuotaKind kind) { return kind <= QuotaKind::kLabelBytes; }

double BoundOf(QuotaKind kind, const PolicyQuota& quota) {
  switch (kind) {
    case QuotaKind::kConnections:
      return quota.connections;
    case QuotaKind::kStreams:
      return quota.streams;
    case QuotaKind::kDomains:
      return quota.domains;
    case QuotaKind::kHolders:
      return quota.holders;
    case QuotaKind::kLabelBytes:
      return quota.label_bytes;
    case QuotaKind::kHellos:
      return quota.hellos_per_s;
    case QuotaKind::kBlocks:
      return quota.blocks_per_s;
    case QuotaKind::kQueries:
      return quota.queries_per_s;
    case QuotaKind::kDumps:
      return quota.dumps_per_s;
  }
  return 0;
}

}  // namespace

std::string_view QuotaKindName(QuotaKind kind) { return kNames[static_cast<size_t>(kind)]; }

struct Quotas::Impl {
  struct Use {
    double amount = 0;  // held, or tokens that were taken and have not come back
    Time at{0};
  };
  struct User {
    std::array<Use, kQuotaKinds> uses;
    std::list<std::string>::iterator order;
  };

  explicit Impl(const Clock* clock) : clock(clock) {}

  User& Find(std::string_view identity) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const std::string name(identity);
    const auto found = users.find(name);
    if (found != users.end()) {
      order.splice(order.begin(), order, found->second.order);
      return found->second;
    }
    if (users.size() >= kQuotaIdentitiesMax) ForgetOne();
    order.push_front(name);
    User& user = users[name];
    user.order = order.begin();
    return user;
  }

  // The one idle for longest among those that hold nothing; if all do, nothing is forgotten.
  void ForgetOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      const User& user = users[*it];
      const bool holds =
          std::any_of(user.uses.begin(), user.uses.begin() + static_cast<int>(QuotaKind::kHellos),
                      [](const Use& use) { return use.amount > 0; });
      if (holds) continue;
      users.erase(*it);
      order.erase(std::next(it).base());
      return;
    }
  }

  const Clock* const clock;
  std::array<std::atomic<uint64_t>, kQuotaKinds> refused{};
  Mutex mutex;
  std::unordered_map<std::string, User> users ABSL_GUARDED_BY(mutex);
  std::list<std::string> order ABSL_GUARDED_BY(mutex);  // used last first
};

Quotas::Quotas(const Clock* clock) : impl_(std::make_unique<Impl>(clock)) {}
Quotas::~Quotas() = default;

absl::Status Quotas::Take(std::string_view identity, QuotaKind kind, double amount,
                          const PolicyQuota& quota) {
  const double bound = BoundOf(kind, quota);
  // What is held is counted without a bound too: a later policy may have one.
  if (bound == 0 && !IsHeld(kind)) return absl::OkStatus();
  MutexLock lock(&impl_->mutex);
  Impl::Use& use = impl_->Find(identity).uses[static_cast<size_t>(kind)];
  if (!IsHeld(kind)) {
    const Time now = impl_->clock->Now();
    const double seconds = std::chrono::duration<double>(now - use.at).count();
    use.amount = std::max(0.0, use.amount - seconds * bound);
    use.at = now;
  }
  // A bucket that is full takes one of any size, so that a batch larger than a second's share passes now and then.
  const bool fits =
      bound == 0 || use.amount + amount <= bound || (!IsHeld(kind) && use.amount == 0);
  if (!fits) {
    impl_->refused[static_cast<size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
    const std::string_view name = QuotaKindName(kind);
    return absl::ResourceExhaustedError(absl::StrCat(
        "the quota ", absl::string_view(name.data(), name.size()), " of this identity is ", bound));
  }
  use.amount += amount;
  return absl::OkStatus();
}

void Quotas::GiveBack(std::string_view identity, QuotaKind kind, double amount) {
  MutexLock lock(&impl_->mutex);
  const auto found = impl_->users.find(std::string(identity));
  if (found == impl_->users.end()) return;
  Impl::Use& use = found->second.uses[static_cast<size_t>(kind)];
  use.amount = std::max(0.0, use.amount - amount);
}

uint64_t Quotas::refused(QuotaKind kind) const {
  return impl_->refused[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
}

}  // namespace kvatlas
