// What is on its way to each worker that no report of the worker's own shows yet?
//
// A choice counts from the moment it is made, so that of two siblings the second sees the first. It counts no longer when
//   the caller says what became of it                                     `Release`, `ReleasePrefill`
//   the worker is seen to hold a block of the prompt that it did not have  `Saw`: its events have come
//   the worker's load has risen by as many requests                        `Saw`: its own report counts them
//   it is too old                                                          `Expire`
//
// *Place*: behind `FleetMemory`. A choice may be two: one worker prefills, another decodes.
// *Truth*: a rise of load by other frontends' requests releases ours too early; a request that came while another one ended
// raises nothing and is left to the other ways. A choice is never released by what was heard of before it was made.
// *Threads*: none; the owner serialises. *Cost*: constant, and per answer one look-up for each worker of it while anything
// is in flight.
// *Bounds*: `choices_max`; the oldest is no longer counted beyond.

#ifndef KVATLAS_FRONTEND_ROUTE_IN_FLIGHT_H_
#define KVATLAS_FRONTEND_ROUTE_IN_FLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frontend/route/finders.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// Choices in flight to one worker, or to all workers of a cell.
struct InFlight {
  uint64_t blocks = 0;
  uint32_t requests = 0;

  friend bool operator==(const InFlight&, const InFlight&) = default;
};

struct NewChoice {
  std::string cell;
  HolderId worker = {};
  uint64_t blocks = 0;  // to prefill
  // The first block of the prompt that the worker does not have, if there is any.
  Position missing_position = 0;
  std::optional<SequenceHash> missing_block = {};
  std::optional<Load> load = {};  // of the worker as it was chosen by
  // Who decodes, where that is another.
  std::optional<std::pair<std::string, HolderId>> decode = {};
};

class InFlightChoices {
 public:
  using CellWorker = std::pair<std::string, HolderId>;

  InFlightChoices(size_t choices_max, Duration ttl) : choices_max_(choices_max), ttl_(ttl) {}

  // REQUIRES: `id` was never used.
  void Choose(uint64_t id, NewChoice choice, Time now);
  // False when the choice is unknown: released before, too old, or never made.
  bool Release(uint64_t id);
  // The worker that prefills has it; one that is to decode it does not know yet. False as `Release`.
  bool ReleasePrefill(uint64_t id);
  std::optional<CellWorker> WorkerOf(uint64_t id) const;
  // Where the client's request is sent: to the worker that is to decode it, where that is another.
  std::optional<CellWorker> DestinationOf(uint64_t id) const;
  // Forgets what is older than the time to live; returns how many.
  size_t Expire(Time now);

  // What a worker said of itself, in an answer for the prompt `sequence`; returns how many choices it shows.
  size_t Saw(const std::string& cell, const WorkerFound& found,
             std::span<const SequenceHash> sequence, Time now);

  InFlight To(const std::string& cell, const HolderId& worker) const;
  // Of each of these workers, in their order; empty: nothing is in flight to any worker of the cell.
  std::vector<InFlight> To(const std::string& cell, std::span<const WorkerFound> workers) const;
  InFlight To(const std::string& cell) const;
  size_t size() const { return choices_.size(); }

 private:
  struct Choice {
    CellWorker prefill;
    std::optional<CellWorker> decode;
    bool prefilling = true;  // counts at `prefill`
    uint64_t blocks = 0;
    Position missing_position = 0;
    std::optional<SequenceHash> missing_block;
    Time made{0};
  };
  struct OfWorker {
    InFlight sum;
    std::deque<uint64_t> ids;          // of choices that it is to prefill, oldest first
    std::optional<uint64_t> requests;  // that it last reported
    uint64_t accepted = 0;             // released by reports, not yet in its load
  };

  struct OfCell {
    InFlight sum;
    absl::flat_hash_map<HolderId, OfWorker> workers;
  };

  const OfWorker* Find(const std::string& cell, const HolderId& worker) const;
  OfWorker* Find(const std::string& cell, const HolderId& worker) {
    return const_cast<OfWorker*>(std::as_const(*this).Find(cell, worker));
  }
  void Add(const CellWorker& worker, uint64_t blocks);
  void Subtract(const CellWorker& worker, uint64_t blocks);
  bool ReleaseAtWorker(uint64_t id, bool told);
  size_t ReleaseHeld(OfWorker* of_worker, const WorkerFound& found,
                     std::span<const SequenceHash> sequence);
  size_t ReleaseRisen(const std::string& cell, const WorkerFound& found, Time now);

  const size_t choices_max_;
  const Duration ttl_;
  absl::flat_hash_map<uint64_t, Choice> choices_;
  std::deque<std::pair<Time, uint64_t>> by_age_;      // released ones are skipped when they come up
  absl::flat_hash_map<std::string, OfCell> to_cell_;  // no entry of nothing
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTE_IN_FLIGHT_H_
