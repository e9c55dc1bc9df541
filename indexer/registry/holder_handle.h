// A holder whose stream ends in this process: the way into a `HolderRegistry` for readers of
// engines' own streams. It has no hello, no numbers and no lease; its reader knows.
//
// *Truth*: events are a set's (`event.h`): copies are counted by the reader. Trust is what the
// reader says. A masked holder is in no answer, and is as it was when it is unmasked.
// *Threads*: any; calls are serialised by the holder's own mutex, which `Apply` takes once for all
// of its events.
// *Lifetime*: destroying it forgets the holder at once; its blocks are swept later. It does not
// outlive the registry.

#ifndef KVATLAS_INDEXER_REGISTRY_HOLDER_HANDLE_H_
#define KVATLAS_INDEXER_REGISTRY_HOLDER_HANDLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/holdings_writer.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"

namespace kvatlas {

class DomainState;
class Holder;

class HolderHandle : public HoldingsWriter {
 public:
  // Made by `HolderRegistry::AddLocal`. Keeps the domain, and with it the index, as long as it
  // lives.
  HolderHandle(std::shared_ptr<DomainState> domain, std::shared_ptr<Holder> holder,
               const Clock* clock);
  ~HolderHandle() override;
  HolderHandle(const HolderHandle&) = delete;
  HolderHandle& operator=(const HolderHandle&) = delete;

  using HoldingsWriter::Apply;
  // FAILED_PRECONDITION: the holder was forgotten.
  Applied Apply(std::span<const Event> events) override;
  void SetTrust(Trust trust) override;
  void SetLayout(const CacheLayout& layout) override;
  void ForEachHeld(const std::function<void(SequenceHash block, SequenceHash parent,
                                            LocalHash local)>& visit) const override;
  void SetLoad(const Load& load);
  void SetMasked(bool masked);
  // The holder was heard now, which answers show as its age.
  void Heard();

  // Whether there was anything to be sure of: while nothing was reached the holder is stale,
  // whatever `SetTrust` says. An event reaches it. A new one counts as reached.
  void SetReached(bool reached);
  bool reached() const;

  // From now on blocks of these tiers are `store`'s, in its external tier: a store that several
  // share. A clear takes nothing from it: its blocks are there for the others, and for the engine
  // when it is back. Blocks of side classes are not looked for there, and what others have
  // announced to it says nothing of this holder's names: all blocks count as changed. REQUIRES:
  // before the first event.
  void ShareStore(std::shared_ptr<HolderHandle> store, TierMask tiers);

 private:
  Applied ApplyToStore(const Event& event);

  const std::shared_ptr<DomainState> domain_;
  const std::shared_ptr<Holder> holder_;
  const Clock* const clock_;
  std::shared_ptr<HolderHandle> store_;
  TierMask store_tiers_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_HOLDER_HANDLE_H_
