// Token buckets and counts by user name, behind one mutex. A rate is a leaky bucket: `amount` is
// what was taken and has not drained, which happens at `bound` a second; the bucket holds one
// second's worth. A count is a plain sum of the holds that live.

#include "indexer/security/quotas.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

constexpr std::array<std::string_view, kQuotaKinds> kNames = {
    "connections",  "streams",      "domains",      "holders",       "label_bytes",
    "unread_bytes", "hellos_per_s", "blocks_per_s", "queries_per_s", "dumps_per_s"};

}  // namespace

std::string_view QuotaKindName(QuotaKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string_view QuotaClassName(int user_class) {
  return user_class == kTenantClass ? "tenant" : RoleName(static_cast<IdentityRole>(user_class));
}

double BoundOf(const PolicyQuota& quota, QuotaKind kind) {
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
    case QuotaKind::kUnreadBytes:
      return quota.unread_bytes;
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

// Shared by `Quotas` and its holds, which may outlive it.
struct Quotas::State {
  struct Use {
    double amount = 0;  // held, or tokens that were taken and have not come back
    Time at{0};
  };
  // One identity or tenant. `order` is its place in `State::order`, for the least recently used.
  struct User {
    std::array<Use, kQuotaKinds> uses;
    std::list<std::string>::iterator order;
  };
  using Counts = std::array<std::array<std::atomic<uint64_t>, kQuotaClasses>, kQuotaKinds>;

  explicit State(const Clock* given) : clock(given) {}

  // The use of one kind by a user, which becomes the most recently used. Makes room for a new user
  // first. The reference is valid until the next call.
  Use& Find(const std::string& name, QuotaKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const size_t index = static_cast<size_t>(kind);
    const auto found = users.find(name);
    if (found != users.end()) {
      order.splice(order.begin(), order, found->second.order);
      return found->second.uses[index];
    }
    MakeRoom();
    order.push_front(name);
    User& user = users[name];
    user.order = order.begin();
    return user.uses[index];
  }

  // Forgets users that hold nothing, those that were idle for longest first, until there is room
  // for one more. What such a user took of rates is forgotten too: it may burst once more. Users
  // that hold something stay, and while they alone are too many, the holds bound their number.
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (auto it = order.end(); it != order.begin() && users.size() >= kQuotaUsersMax;) {
      const auto user = users.find(*--it);
      const auto& uses = user->second.uses;
      const bool holds =
          std::any_of(uses.begin(), uses.begin() + static_cast<int>(QuotaKind::kHellos),
                      [](const Use& use) { return use.amount > 0; });
      if (holds) continue;
      users.erase(user);
      it = order.erase(it);
    }
  }

  // The text names the quota and its bound, not the user: the caller knows itself.
  absl::Status Refuse(const QuotaUser& user, QuotaKind kind) {
    refused[static_cast<size_t>(kind)][static_cast<size_t>(user.user_class)].fetch_add(
        1, std::memory_order_relaxed);
    const std::string_view name = QuotaKindName(kind);
    return absl::ResourceExhaustedError(
        absl::StrCat("the quota ", absl::string_view(name.data(), name.size()), " of this ",
                     user.user_class == kTenantClass ? "tenant" : "identity", " is ",
                     BoundOf(user.quota, kind)));
  }

  // Adds a hold (1) or takes it back (-1). Sums of doubles may end slightly below 0, hence the
  // clamp.
  void Add(const QuotaUser& user, const QuotaUse& use, double sign)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Use& now = Find(user.name, use.kind);
    now.amount = std::max(0.0, now.amount + sign * use.amount);
    held[static_cast<size_t>(use.kind)][static_cast<size_t>(user.user_class)] += sign * use.amount;
  }

  const Clock* const clock;
  Counts refused{};
  mutable Mutex mutex;
  std::unordered_map<std::string, User> users ABSL_GUARDED_BY(mutex);
  std::list<std::string> order ABSL_GUARDED_BY(mutex);  // used last first
  std::array<std::array<double, kQuotaClasses>, kQuotaKinds> held ABSL_GUARDED_BY(mutex) = {};
};

// What was added for a set of users, taken back by the destructor. It keeps the users with their
// quotas of then; a later policy changes bounds, not what is held.
class Quotas::HoldImpl final : public QuotaHold {
 public:
  HoldImpl(std::shared_ptr<State> state, std::span<const QuotaUser> users,
           std::vector<QuotaUse> uses)
      : state_(std::move(state)), users_(users.begin(), users.end()), uses_(std::move(uses)) {}
  ~HoldImpl() override {
    MutexLock lock(&state_->mutex);
    for (const QuotaUser& user : users_) {
      for (const QuotaUse& use : uses_) state_->Add(user, use, -1);
    }
  }

  // What this hold has of a kind for that user: it does not count when the hold is replaced.
  double AmountOf(const std::string& user, QuotaKind kind) const {
    const bool same = std::any_of(users_.begin(), users_.end(),
                                  [&](const QuotaUser& one) { return one.name == user; });
    double amount = 0;
    for (const QuotaUse& use : uses_) amount += same && use.kind == kind ? use.amount : 0;
    return amount;
  }

 private:
  const std::shared_ptr<State> state_;
  const std::vector<QuotaUser> users_;
  const std::vector<QuotaUse> uses_;
};

Quotas::Quotas(const Clock* clock) : state_(std::make_shared<State>(clock)) {}
Quotas::~Quotas() = default;

// Two passes under one lock: first every user is checked, then all are charged, so that a refusal
// by the tenant does not charge the identity.
absl::Status Quotas::Take(std::span<const QuotaUser> users, QuotaKind kind, double amount) {
  MutexLock lock(&state_->mutex);
  const Time now = state_->clock->Now();
  for (const QuotaUser& user : users) {
    const double bound = BoundOf(user.quota, kind);
    if (bound == 0) continue;
    State::Use& use = state_->Find(user.name, kind);
    const double seconds = std::chrono::duration<double>(now - use.at).count();
    use.amount = std::max(0.0, use.amount - seconds * bound);
    use.at = now;
    // A bucket that has drained takes any amount: a batch larger than a second's share passes, and
    // the bucket then needs as many seconds to drain.
    if (use.amount > 0 && use.amount + amount > bound) return state_->Refuse(user, kind);
  }
  for (const QuotaUser& user : users) {
    if (BoundOf(user.quota, kind) != 0) state_->Find(user.name, kind).amount += amount;
  }
  return absl::OkStatus();
}

// As Take, for counts. `previous` still counts while this is checked, so it is subtracted; the
// caller drops it afterwards.
absl::StatusOr<std::shared_ptr<const QuotaHold>> Quotas::Hold(std::span<const QuotaUser> users,
                                                              std::vector<QuotaUse> uses,
                                                              const QuotaHold* previous) {
  const auto* const before = dynamic_cast<const HoldImpl*>(previous);
  MutexLock lock(&state_->mutex);
  for (const QuotaUser& user : users) {
    for (const QuotaUse& use : uses) {
      const double bound = BoundOf(user.quota, use.kind);
      const double less = before == nullptr ? 0 : before->AmountOf(user.name, use.kind);
      // A use that does not grow passes, even if a later policy has a bound below it.
      if (bound == 0 || use.amount <= less) continue;
      if (state_->Find(user.name, use.kind).amount - less + use.amount > bound)
        return state_->Refuse(user, use.kind);
    }
  }
  for (const QuotaUser& user : users) {
    for (const QuotaUse& use : uses) state_->Add(user, use, 1);
  }
  return std::make_shared<const HoldImpl>(state_, users, std::move(uses));
}

uint64_t Quotas::refused(QuotaKind kind, int user_class) const {
  return state_->refused[static_cast<size_t>(kind)][static_cast<size_t>(user_class)].load(
      std::memory_order_relaxed);
}

double Quotas::held(QuotaKind kind, int user_class) const {
  MutexLock lock(&state_->mutex);
  return state_->held[static_cast<size_t>(kind)][static_cast<size_t>(user_class)];
}

}  // namespace kvatlas
