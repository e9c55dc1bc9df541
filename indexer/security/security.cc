#include "indexer/security/security.h"

#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/security/open_security.h"
#include "indexer/security/real_security.h"

namespace kvatlas {
namespace {

// Both are never destroyed: servers may ask while static objects go.
Mutex& ProcessMutex() {
  static auto* const mutex = new Mutex;
  return *mutex;
}

std::shared_ptr<Security>& ProcessSecurity() {
  static auto* const security = new std::shared_ptr<Security>(Security::Open());
  return *security;
}

}  // namespace

const std::shared_ptr<Security>& Security::Open() {
  static const auto* const open = new std::shared_ptr<Security>(MakeOpenSecurity());
  return *open;
}

absl::StatusOr<std::shared_ptr<Security>> Security::Start(SecurityOptions options) {
  auto security = std::make_shared<RealSecurity>(std::move(options));
  if (absl::Status bad = security->Start(); !bad.ok()) return bad;
  return security;
}

// The function uses this object, which must outlive the stream.
std::function<std::shared_ptr<const void>(size_t bytes)> Security::UnreadOf(
    std::shared_ptr<const Identity> identity, std::string peer, std::function<void()> cancel) {
  if (QuotaOf(*identity).unread_bytes == 0) return nullptr;
  return [this, identity = std::move(identity), peer = std::move(peer),
          cancel = std::move(cancel)](size_t bytes) -> std::shared_ptr<const void> {
    absl::StatusOr<Held> held =
        Hold(*identity, {{QuotaKind::kUnreadBytes, static_cast<double>(bytes)}}, peer);
    if (held.ok()) return *std::move(held);
    cancel();
    return nullptr;
  };
}

// A copy, so that a later SetOfProcess does not pull it away from its user.
std::shared_ptr<Security> Security::OfProcess() {
  MutexLock lock(&ProcessMutex());
  return ProcessSecurity();
}

void Security::SetOfProcess(std::shared_ptr<Security> security) {
  MutexLock lock(&ProcessMutex());
  ProcessSecurity() = std::move(security);
}

}  // namespace kvatlas
