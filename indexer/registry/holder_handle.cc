// Without a shared store every call goes straight to the holder. With one, `ApplyToStore` sends
// blocks of its tiers to the store's holder and everything else to the own one.

#include "indexer/registry/holder_handle.h"

#include <utility>
#include <variant>

#include "indexer/registry/domain_state.h"
#include "indexer/registry/holder.h"

namespace kvatlas {

HolderHandle::HolderHandle(std::shared_ptr<DomainState> domain, std::shared_ptr<Holder> holder,
                           const Clock* clock)
    : domain_(std::move(domain)), holder_(std::move(holder)), clock_(clock) {}

HolderHandle::~HolderHandle() {
  holder_->Retire();
  domain_->Forget(holder_);
}

Applied HolderHandle::Apply(std::span<const Event> events) {
  if (!holder_->reached()) SetReached(true);
  if (store_ == nullptr) return holder_->ApplyLocal(events);
  Applied applied;
  for (const Event& event : events) {
    const size_t before = applied.events;
    applied = ApplyToStore(event);
    applied.events += before;
    if (!GoesOn(event, applied)) break;
  }
  return applied;
}

// A clear of the store's tiers is dropped (`ShareStore`). Blocks of the store's tiers go to its
// holder in the external tier, side blocks of them nowhere; the store counts as heard. All blocks
// count as changed: what other engines have announced to the store says nothing about this one's
// names, so `GoesOn` must not end here.
Applied HolderHandle::ApplyToStore(const Event& event) {
  if (const Cleared* const cleared = std::get_if<Cleared>(&event)) {
    const Event own = Cleared{.tiers = cleared->tiers & ~store_tiers_};
    if (std::get<Cleared>(own).tiers.empty()) return {.events = 1, .changed = 0, .status = {}};
    return holder_->ApplyLocal({&own, 1});
  }
  const Stored* const stored = std::get_if<Stored>(&event);
  const Removed* const removed = std::get_if<Removed>(&event);
  if (!store_tiers_.Has(stored != nullptr ? stored->tier : removed->tier))
    return holder_->ApplyLocal({&event, 1});
  Applied applied = {.events = 1, .changed = 0, .status = {}};
  if ((stored != nullptr ? stored->side : removed->side) == 0) {
    Event of_store = event;
    (stored != nullptr ? std::get<Stored>(of_store).tier : std::get<Removed>(of_store).tier) =
        Tier::kExternal;
    store_->Heard();
    applied = store_->Apply({&of_store, 1});
  }
  applied.changed = BlockCount(event);
  return applied;
}

void HolderHandle::SetTrust(Trust trust) { holder_->SetLocalTrust(trust, clock_->Now()); }
void HolderHandle::SetLayout(const CacheLayout& layout) { holder_->SetLocalLayout(layout); }

void HolderHandle::ForEachHeld(
    const std::function<void(SequenceHash, SequenceHash, LocalHash)>& visit) const {
  holder_->ForEachLocal(visit);
  if (store_ != nullptr) store_->ForEachHeld(visit);
}

void HolderHandle::SetLoad(const Load& load) { holder_->SetLocalLoad(load); }
void HolderHandle::SetMasked(bool masked) { holder_->SetLocalMasked(masked); }
void HolderHandle::Heard() { holder_->Heard(clock_->Now()); }
void HolderHandle::SetReached(bool reached) { holder_->SetLocalReached(reached, clock_->Now()); }
bool HolderHandle::reached() const { return holder_->reached(); }

void HolderHandle::ShareStore(std::shared_ptr<HolderHandle> store, TierMask tiers) {
  store_ = tiers.empty() ? nullptr : std::move(store);
  store_tiers_ = tiers;
}

}  // namespace kvatlas
