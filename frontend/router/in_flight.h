// Counts what is on its way to each worker and is not in the worker's own load yet.
//
// A choice counts from the moment it is made, so that of two siblings the second sees the first. It
// counts no longer when
//   the caller says what became of it                                     `Release`, `ReleasePrefill`
//   the worker is seen to hold a block of the prompt that it did not have  `Saw`: its events have come
//   the worker's load has risen by as many requests                        `Saw`: its own report counts them
//   it is too old                                                          `Expire`
//
// A choice whose end its caller will tell (`NewChoice::end_follows`) goes on to count as a request,
// without blocks, until a load is seen that differs from the one before and so is of later, or
// until its end; one that such a load shows and that has ended since is subtracted
// (`InFlight::ended`). Loads that are asked for once a second would else send all requests of that
// second to one worker.
//
// *Place*: behind `FleetMemory`. A choice may be two: one worker prefills, another decodes.
// *Truth*: a rise of load by other frontends' requests releases ours too early; a request that came
// while another one ended raises nothing and is left to the other ways. A choice is never released
// by what was heard of before it was made.
// *Threads*: none; the owner serialises. *Cost*: constant, and per answer one look-up for each
// worker of it while anything is in flight.
// *Bounds*: `choices_max`; the oldest is no longer counted beyond. Choices that only count as
// requests come on top: as many as the caller has under way.

#ifndef KVATLAS_FRONTEND_ROUTER_IN_FLIGHT_H_
#define KVATLAS_FRONTEND_ROUTER_IN_FLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// Choices in flight to one worker, or to all workers of a cell.
struct InFlight {
  uint64_t blocks = 0;
  uint32_t requests = 0;
  uint32_t ended = 0;  // requests that the worker's load still counts

  friend bool operator==(const InFlight&, const InFlight&) = default;
};

// The load without the requests that have ended since it was reported.
std::optional<Load> LoadNow(std::optional<Load> load, const InFlight& in_flight);

struct NewChoice {
  std::string cell;
  HolderId worker = {};
  uint64_t blocks = 0;  // to prefill
  // The first block of the prompt that the worker does not have, if there is any.
  Position missing_position = 0;
  std::optional<SequenceHash> missing_block = {};
  std::optional<Load> load = {};  // of the worker as it was chosen by
  // The worker that decodes, where that is another.
  std::optional<std::pair<std::string, HolderId>> decode = {};
  bool end_follows = false;  // `Release` will be called when the request is over
};

class InFlightChoices {
 public:
  using CellWorker = std::pair<std::string, HolderId>;

  InFlightChoices(size_t choices_max, Duration ttl) : choices_max_(choices_max), ttl_(ttl) {}

  // REQUIRES: `id` was never used.
  void Choose(uint64_t id, NewChoice choice, Time now);
  // False when the choice is unknown: released before, too old, or never made.
  bool Release(uint64_t id);
  // The worker that prefills has it; one that is to decode it does not know yet. False as
  // `Release`.
  bool ReleasePrefill(uint64_t id);
  std::optional<CellWorker> WorkerOf(uint64_t id) const;
  // Where the client's request is sent: to the worker that is to decode it, where that is another.
  std::optional<CellWorker> DestinationOf(uint64_t id) const;
  // Forgets what is older than the time to live; returns how many.
  size_t Expire(Time now);

  // Takes a worker's row of an answer for the prompt `sequence`; returns how many choices it shows.
  size_t Saw(const std::string& cell, const WorkerFound& found,
             std::span<const SequenceHash> sequence, Time now);

  InFlight To(const std::string& cell, const HolderId& worker) const;
  // In flight to each of these workers, in their order; empty: nothing is in flight to any worker
  // of the cell.
  std::vector<InFlight> To(const std::string& cell, std::span<const WorkerFound> workers) const;
  InFlight To(const std::string& cell) const;
  // Something is, or was a moment ago, in flight to the cell.
  bool knows(const std::string& cell) const { return to_cell_.contains(cell); }
  // Without those that only count as requests any more.
  size_t size() const { return choices_.size() - running_; }

 private:
  struct Choice {
    CellWorker prefill;
    std::optional<CellWorker> decode;
    bool prefilling = true;  // counts at `prefill`
    uint64_t blocks = 0;
    Position missing_position = 0;
    std::optional<SequenceHash> missing_block;
    Time made{0};
    bool end_follows = false;
    std::optional<uint32_t> running_since =
        {};  // `OfWorker::loads_seen`, when it began to count as a request alone

    // Counts until its end.
    bool goes_on() const { return decode.has_value() || running_since.has_value(); }
  };
  struct OfWorker {
    InFlight sum;
    std::deque<uint64_t> ids;          // of choices that it is to prefill, oldest first
    std::optional<uint64_t> requests;  // that it last reported
    uint32_t loads_seen = 0;           // that differed from the one before
    uint32_t since_load = 0;           // of `sum.requests`, those that run since the latest one
    uint64_t accepted = 0;             // released by reports, not yet in its load
    size_t running = 0;                // choices with `running_since`
  };

  struct OfCell {
    InFlight sum;
    size_t running = 0;
    absl::flat_hash_map<HolderId, OfWorker> workers;
  };
  static constexpr size_t kIdleWorkersMax = 4096;

  const OfWorker* Find(const std::string& cell, const HolderId& worker) const;
  OfWorker* Find(const std::string& cell, const HolderId& worker) {
    return const_cast<OfWorker*>(std::as_const(*this).Find(cell, worker));
  }
  void Add(const CellWorker& worker, uint64_t blocks);
  void Subtract(const CellWorker& worker, uint64_t blocks, uint32_t requests = 1);
  void ForgetIfIdle(const CellWorker& worker);
  // How a choice stops counting at the worker that prefills; one that does not go on is forgotten,
  // but for `kOver`, whose caller does that.
  enum class Left { kTold, kShownByLoad, kOver };
  bool LeavePrefill(uint64_t id, Left how);
  void EndRunning(const Choice& choice);
  size_t ReleaseHeld(OfWorker* of_worker, const WorkerFound& found,
                     std::span<const SequenceHash> sequence);
  size_t ReleaseRisen(const std::string& cell, const WorkerFound& found, Time now);

  const size_t choices_max_;
  const Duration ttl_;
  absl::flat_hash_map<uint64_t, Choice> choices_;
  size_t running_ = 0;                                // of these, with `running_since`
  std::deque<std::pair<Time, uint64_t>> by_age_;      // released ones are skipped when they come up
  absl::flat_hash_map<std::string, OfCell> to_cell_;  // none without a choice
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_IN_FLIGHT_H_
