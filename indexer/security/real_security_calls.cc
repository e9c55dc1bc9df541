// Open calls: what each was allowed is checked again when files change and when a credential
// expires.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/security/open_security.h"
#include "indexer/security/real_security.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// Targets of one call that are kept for the recheck.
constexpr size_t kTargetsMax = 1024;

}  // namespace

// An open call: its credential, and what it was allowed. It is in `calls_` from AddCall until its
// `Call` is destroyed.
//
// `mutex` is held while `cut` runs, so that the destructor of `Call` waits for it: after the
// destructor `cut` never runs, and what it uses may go. `cutter` is the thread that runs `cut`; the
// destructor does not wait if it runs on that thread, within `cut`.
// Locks: `mutex` before `calls_mutex_`, where a `Call` is destroyed within `cut`; otherwise one at
// a time.
struct RealSecurity::Entry {
  std::shared_ptr<const Identity> identity;  // when it began
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

class RealSecurity::Call final : public OpenCall {
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
  // Beyond `kTargetsMax` further targets are not checked again; the verb still is.
  void Allowed(Verb verb, PolicyTarget target) override {
    // Once each: a target that comes again and again leaves the others their places.
    std::pair<Verb, PolicyTarget> allowed(verb, std::move(target));
    MutexLock lock(&entry_->mutex);
    const bool is_known =
        std::find(entry_->allowed.begin(), entry_->allowed.end(), allowed) != entry_->allowed.end();
    if (!is_known && entry_->allowed.size() < kTargetsMax)
      entry_->allowed.push_back(std::move(allowed));
  }

 private:
  RealSecurity* const owner_;
  const std::shared_ptr<Entry> entry_;
};

std::unique_ptr<Security::OpenCall> RealSecurity::AddCall(std::shared_ptr<const Identity> identity,
                                                          std::string chain_pem, std::string bearer,
                                                          Verb verb, std::string peer,
                                                          std::function<void()> cut) {
  if (!enforces()) return MakeOpenCall();
  auto entry = std::make_shared<Entry>();
  entry->identity = std::move(identity);
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

// On the thread that looks at files. Works on a copy of the set: Cut may destroy calls.
void RealSecurity::CheckCalls(bool changed) {
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

// 1. Authenticates the credential again: it may have expired, been revoked, or lost its CA.
// 2. Where policy or files changed, or the identity became anonymous, the verb and every target
//    that the call was allowed are decided again.
absl::Status RealSecurity::StillAllowed(Entry& entry, bool changed) {
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

// At most once for each call, by `over`.
void RealSecurity::Cut(Entry& entry, const absl::Status& why) {
  MutexLock lock(&entry.mutex);
  if (std::exchange(entry.over, true)) return;
  cut_.fetch_add(1, std::memory_order_relaxed);
  const std::string identity = entry.identity->Text();
  const std::string reason = WhyRefused(why).reason;
  Log(LogLevel::kWarning, "call ended: its credential is not allowed any more",
      {{"identity", identity}, {"peer", entry.peer}, {"reason", reason}});
  audit_->Write({.event = "revoked",
                 .allowed = false,
                 .identity = identity,
                 .peer = entry.peer,
                 .verb = VerbName(entry.verb),
                 .reason = reason});
  entry.cutter.store(std::this_thread::get_id());
  entry.cut();
  entry.cutter.store({});
}

}  // namespace kvatlas
