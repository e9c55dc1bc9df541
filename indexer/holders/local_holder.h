// What does a holder hold whose stream ends in this very process? The door into a `HolderRegistry` for those who
// read engines' own streams: no hello, no numbers, no lease; the reader knows.
//
// *Truth*: events are a set's (`event.h`): copies are counted by who reads. Trust is what the reader says. A masked
// one is in no answer and is as it was when unmasked.
// *Threads*: any; calls are serialised by the holder's own mutex.
// *Lifetime*: destroying it forgets the holder at once; its blocks are swept later. It does not outlive the registry.

#ifndef KVATLAS_INDEXER_HOLDERS_LOCAL_HOLDER_H_
#define KVATLAS_INDEXER_HOLDERS_LOCAL_HOLDER_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"

namespace kvatlas {

class LocalHolder {
 public:
  virtual ~LocalHolder() = default;
  // RESOURCE_EXHAUSTED: shed. FAILED_PRECONDITION: the holder was forgotten.
  virtual absl::Status Apply(const Event& event) = 0;
  // How many blocks of the last event, when it was one of the main class, were not in its tier before, or are no longer.
  virtual uint64_t LastChanged() const = 0;
  // Every block held, with its parent and its local hash (0: not kept).
  virtual void ForEachHeld(const std::function<void(SequenceHash block, SequenceHash parent,
                                                    LocalHash local)>& visit) const = 0;
  // The classes of its cache, before the first event that names a block of them.
  virtual void SetLayout(const CacheLayout& layout) = 0;
  virtual void SetTrust(Trust trust) = 0;
  virtual void SetLoad(const Load& load) = 0;
  virtual void SetMasked(bool masked) = 0;
  // It was heard now: the age in answers.
  virtual void Heard() = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_HOLDERS_LOCAL_HOLDER_H_
