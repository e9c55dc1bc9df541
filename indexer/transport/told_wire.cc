// A frontend is gone when the last stream that named it ends. `ToldStreams::streams_` counts
// streams for each frontend; a stream has those that it named (`frontends_`), each once.

#include "indexer/transport/told_wire.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/routed.h"
#include "indexer/security/visible_domain.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

constexpr uint32_t kFirstMax = 65536;  // as many blocks as a question may have

// Bounds come before copies: positions are limited to what a question may have, and more blocks
// than `kRoutedBlocksMax` are cut off rather than refused, since their beginning is useful.
absl::Status HearRouted(const Domain& domain, uint64_t frontend, const v1::Routed& routed,
                        HolderRegistry* registry) {
  HolderId worker;
  if (absl::Status bad = FromProto(routed.worker(), &worker); !bad.ok()) return bad;
  if (routed.first() > kFirstMax) return absl::InvalidArgumentError("first is too large");
  const int count = std::min(routed.blocks_size(), static_cast<int>(kRoutedBlocksMax));
  std::vector<SequenceHash> blocks;
  blocks.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) blocks.push_back(SequenceHash{routed.blocks(i)});
  const Duration ttl =
      routed.ttl_ms() == 0 ? kRoutedTtl : Duration(std::chrono::milliseconds(routed.ttl_ms()));
  return registry->Tell(domain, frontend,
                        {.decision = routed.decision(),
                         .worker = std::move(worker),
                         .first = routed.first(),
                         .blocks = blocks,
                         .session = routed.session(),
                         .ttl = ttl});
}

}  // namespace

// `Leave` is called without the mutex: it takes the locks of all domains.
ToldStreams::Stream::~Stream() {
  for (uint64_t frontend : frontends_) {
    {
      MutexLock lock(&owner_->mutex_);
      const auto streams = owner_->streams_.find(frontend);
      if (--streams->second > 0) continue;
      owner_->streams_.erase(streams);
    }
    owner_->registry_->Leave(frontend);
  }
}

// Counts the frontend at its first telling on this stream. False beyond `kFrontendsMax`.
bool ToldStreams::Stream::Knows(uint64_t frontend) {
  if (std::find(frontends_.begin(), frontends_.end(), frontend) != frontends_.end()) return true;
  if (frontends_.size() >= kFrontendsMax) return false;
  frontends_.push_back(frontend);
  MutexLock lock(&owner_->mutex_);
  ++owner_->streams_[frontend];
  return true;
}

// 1. The domain is looked at as the teller may see it; a hidden one is treated like an unknown one.
// 2. Its prompts count as questions against the teller's quota, an empty telling as one.
// 3. Each prompt is told to the registry by itself, and ends after the prompts of the same message.
int ToldStreams::Stream::Hear(const v1::Told& told) {
  Security* const security = owner_->security_;
  HolderRegistry* const registry = owner_->registry_;
  Domain asked;
  if (!FromProto(told.domain(), &asked).ok()) return told.routed_size();
  const VisibleDomain visible = DomainVisibleTo(*security, *teller_, asked);
  const bool taken =
      !visible.hidden &&
      (!security->enforces() || security
                                    ->Take(*teller_, QuotaKind::kQueries,
                                           std::max(told.routed_size(), 1), peer_, asked.tenant)
                                    .ok()) &&
      Knows(told.frontend());
  if (!taken) return told.routed_size();
  int unknown = 0;
  for (const v1::Routed& routed : told.routed())
    unknown += !HearRouted(visible.domain, told.frontend(), routed, registry).ok();
  for (const v1::RouteOver& over : told.over())
    registry->End(visible.domain, told.frontend(),
                  {.decision = over.decision(), .failed = over.failed()});
  return unknown;
}

}  // namespace kvatlas
