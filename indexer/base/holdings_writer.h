// The destination of an engine's events about one worker rank: the one seam between the parts that
// read engines' events and the parts that keep what a rank holds, which are a holder of this
// process, a relay's stream, or a publisher's own set.
//
// *Truth*: what is written acts on a set (`event.h`); the writer's caller counts copies and names.
// *Threads*: one at a time, in order.

#ifndef KVATLAS_INDEXER_BASE_HOLDINGS_WRITER_H_
#define KVATLAS_INDEXER_BASE_HOLDINGS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <variant>

#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"

namespace kvatlas {

// The result of events that were handed over together.
struct Applied {
  // How many were taken, from the first on; at least one. The events behind them were not looked
  // at.
  size_t events = 0;
  // Blocks of the main class that the last event taken changed. A writer that cannot tell says all.
  uint64_t changed = 0;
  absl::Status status;
};

// Events are taken up to the first one that is refused, and up to the first store of which some
// block was in its tier already: its caller may want to look at the events behind it again, now
// that it knows.
inline bool GoesOn(const Event& event, const Applied& applied) {
  const Stored* const stored = std::get_if<Stored>(&event);
  return applied.status.ok() &&
         (stored == nullptr || stored->side != 0 || applied.changed >= stored->blocks.size());
}

// For writers that take one event after the other: apply(event, &changed).
template <typename Apply>
Applied ApplyInOrder(std::span<const Event> events, Apply apply) {
  Applied applied;
  for (const Event& event : events) {
    ++applied.events;
    applied.changed = 0;
    applied.status = apply(event, &applied.changed);
    if (!GoesOn(event, applied)) break;
  }
  return applied;
}

class HoldingsWriter {
 public:
  virtual ~HoldingsWriter() = default;

  // REQUIRES: at least one event. RESOURCE_EXHAUSTED: blocks that the last event taken stored were
  // shed, all or some. FAILED_PRECONDITION: nothing will be kept any more.
  virtual Applied Apply(std::span<const Event> events) = 0;
  // The result of one event alone.
  absl::Status Apply(const Event& event) { return Apply({&event, 1}).status; }
  virtual void SetTrust(Trust trust) = 0;
  // The classes of the rank's cache: before the first event that names a block of a side class. The
  // default is for writers that keep the main class alone.
  virtual void SetLayout(const CacheLayout&) {}
  // Every block held with its parent and its local hash (0: not kept). The default, of writers that
  // cannot tell, visits none.
  virtual void ForEachHeld(const std::function<void(SequenceHash block, SequenceHash parent,
                                                    LocalHash local)>& visit) const {
    static_cast<void>(visit);
  }
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_HOLDINGS_WRITER_H_
