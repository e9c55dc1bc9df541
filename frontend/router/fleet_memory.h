// The frontend's memory of the fleet: cells and workers as last seen, and what was sent there
// since.
//
// *Place*: written by every route's answers; read when no peer answers, and to count choices that
// no load report shows yet.
// *Truth*: as old as the last answer. A worker that its cell's latest answer no longer names is
// forgotten; a cell is kept, oldest dropped first, because a hierarchy that has just restarted does
// not know all of them yet.
// *Promises*: a cell whose leaf has less than the hierarchy said is a wrong cell; churn makes one
// answer in a hundred such. A cell has delivered a share of its last promises (older ones count
// half after five more). Down to three quarters its promises are believed in full; below that they
// count for the share. Doubt halves every `doubt_half_life` without another promise, so that a cell
// that mended itself is asked again.
// *Threads*: none; the owner serialises.
// *Bounds*: `FleetMemoryOptions`; beyond them what was seen longest ago is forgotten, and the
// oldest choice in flight is no longer counted.

#ifndef KVATLAS_FRONTEND_ROUTER_FLEET_MEMORY_H_
#define KVATLAS_FRONTEND_ROUTER_FLEET_MEMORY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frontend/router/in_flight.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/recently_stored.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

struct FleetMemoryOptions {
  size_t domains_max = 256;
  size_t cells_max = 8192;     // of one domain
  size_t workers_max = 65536;  // of one domain; whole cells are forgotten, never the latest answer
  size_t in_flight_max = 65536;
  Duration in_flight_ttl = std::chrono::seconds(30);  // how long a choice counts without a report
  size_t sent_max = 65536;  // waypoints of prompts sent somewhere, of one domain
  Duration sent_ttl = std::chrono::seconds(10);
  Duration doubt_half_life = std::chrono::seconds(30);  // 0: everything is always believed
};

struct KnownCell {
  std::string cell;
  std::string address;
  std::optional<Load> load = {};
  std::shared_ptr<const Labels> labels = {};  // null: none
  Time seen{0};
};

struct KnownWorker {
  std::string cell;
  HolderId worker = {};
  std::optional<Load> load = {};
  Time seen{0};
};

// The last answer of a cell's leaf.
struct KnownAnswer {
  std::string cell;
  std::shared_ptr<const WorkersAnswer> answer;
  Time seen{0};
  std::shared_ptr<const Labels> labels = {};  // the cell's; null: none
};

// This frontend's own knowledge of a worker, beside its leaf's answer.
struct WorkerNow {
  InFlight in_flight = {};
  uint64_t turn = 0;    // of the latest request that was sent there; 0: none
  double crowding = 0;  // `RecentlyStored::CrowdingAmong`
};

// A cell that was sent a prompt with these leading waypoints not long ago: it will soon cover them.
struct SentTo {
  std::string cell;      // empty: none
  HolderId worker = {};  // without a name: its leaf has shown it since
  uint32_t waypoints = 0;
  Time at{0};
  size_t reading = 0;  // of which `waypoints` are, where the prompt has several (`readings.h`)
};

// The roles of a cell's workers, where some of them only prefill or only decode, as its leaf last
// said.
struct CellRoles {
  std::string cell;
  std::string address;  // of the leaf that said so
  double distance = 0;
  bool alone = false;             // a worker prefills and decodes
  bool prefills = false;          // a worker only prefills
  uint32_t decoders = 0;          // workers that only decode,
  uint64_t decoder_requests = 0;  // and the requests there
  Time seen{0};

  bool only_decodes() const { return decoders > 0 && !alone && !prefills; }
};

// How a cell kept what the hierarchy promised of it.
struct CellPromises {
  std::string cell;
  uint64_t promises = 0;  // it was asked when at least one block was promised
  uint64_t broken = 0;    // its leaf had less
  double believed = 1;    // the share of its promises that is expected now
};

// Leaves `cells_max`: those that are doubted first, then those with most broken promises.
void SortPromises(size_t cells_max, std::vector<CellPromises>* cells);

class FleetMemory {
 public:
  explicit FleetMemory(const FleetMemoryOptions& options)
      : options_(options), choices_(options.in_flight_max, options.in_flight_ttl) {}

  void SawCells(const Domain& domain, std::span<const CellFound> cells, Time now);
  // The whole answer of a cell's leaf; it is kept as it is, not copied.
  void SawWorkers(const Domain& domain, const std::string& cell,
                  std::shared_ptr<const WorkersAnswer> answer, Time now);
  // As if no leaf had ever told of these workers.
  void Forget(const std::set<std::string>& names);

  // A cell where all workers do both has no entry.
  void SawRoles(const Domain& domain, CellRoles roles, Time now);
  // Null: all workers there do both, or it never answered. Valid until the next call that is not
  // const.
  const CellRoles* RolesOf(const Domain& domain, const std::string& cell) const;
  // Cells with a worker that only decodes; by name.
  std::vector<CellRoles> DecodeCells(const Domain& domain) const;
  bool has_roles(const Domain& domain) const;
  // Something that is to be done once in `every`, in a domain that has roles: true, and it counts
  // as done.
  enum class Errand { kExploreCells, kListCells };
  bool IsDue(const Domain& domain, Errand errand, Duration every, Time now);
  // When the cell's leaf last answered; nothing: never.
  std::optional<Time> Answered(const Domain& domain, const std::string& cell) const;

  // Latest seen first, then by name.
  std::vector<KnownCell> Cells(const Domain& domain) const;
  // In no particular order.
  std::vector<Domain> Domains() const;
  bool Knows(const Domain& domain) const;
  // By cell.
  std::vector<KnownWorker> Workers(const Domain& domain) const;
  // The same as they were answered; not copied.
  std::vector<KnownAnswer> Answers(const Domain& domain) const;
  // The knowledge of each of these workers, in their order; empty: nothing was sent to any of them.
  // Turns only where they are wanted.
  std::vector<WorkerNow> Now(const Domain& domain, const std::string& cell,
                             std::span<const WorkerFound> workers, bool turns) const;
  // A worker's labels, as last seen; null: none. Valid until the next call that is not const.
  const Labels* LabelsOf(const Domain& domain, const std::string& cell,
                         const HolderId& worker) const;
  // One cell; null: it was never seen.
  const KnownCell* FindCell(const Domain& domain, const std::string& cell) const;

  // Tokens per block, 0 while unknown.
  uint32_t BlockSize(const Domain& domain) const;
  void SetBlockSize(const Domain& domain, uint32_t block_size, Time now);

  // The choices without a report yet; and what a leaf's answer for `sequence` shows of them.
  InFlightChoices& choices() { return choices_; }
  const InFlightChoices& choices() const { return choices_; }
  size_t ShownBy(const std::string& cell, const WorkersAnswer& answer,
                 std::span<const SequenceHash> sequence, Time now);

  // Notes the latest choice of each worker: its turn, and the blocks that it is to store. A turn of
  // 0: none, or forgotten.
  void TookTurn(const Domain& domain, const std::string& cell, const HolderId& worker,
                uint64_t turn, uint64_t blocks);
  uint64_t TurnOf(const std::string& cell, const HolderId& worker) const;

  // Where a prompt with these waypoints was sent. A hint which cell to ask, ahead of the coverage
  // that the cell will report, and which worker will have the blocks, ahead of its events; never an
  // overlap.
  void Sent(const Domain& domain, std::span<const SequenceHash> waypoints, const std::string& cell,
            const HolderId& worker, Time now);
  // The worker's leaf shows these blocks now: from here on the leaf's word counts, and no longer
  // that they were sent there.
  void SentIsShown(const Domain& domain, std::span<const SequenceHash> waypoints,
                   const HolderId& worker);
  // The latest cell that was sent the deepest of these waypoints that any was sent within
  // `sent_ttl`.
  SentTo LastSentTo(const Domain& domain, std::span<const SequenceHash> waypoints, Time now) const;

  // The hierarchy said that the cell has at least `promised` blocks of a prompt; asked, its leaf
  // had `had`.
  void Promised(const Domain& domain, const std::string& cell, uint32_t promised, uint32_t had,
                Time now);
  // The part of such a promise to be expected: all of it, or less of a cell that broke many lately.
  uint32_t Believed(const Domain& domain, const std::string& cell, uint32_t promised,
                    Time now) const;
  // At most so many cells, as `SortPromises` orders them.
  std::vector<CellPromises> Promises(size_t cells_max, Time now) const;

  size_t cells(const Domain& domain) const;
  size_t workers() const;
  size_t cells() const;

 private:
  struct CellWorkers {
    std::shared_ptr<const WorkersAnswer> answer;
    Time seen{0};
  };
  struct LastTurn {
    uint64_t turn = 0;
    RecentlyStored::Sum stored;
  };
  // Number of workers that were answered for the domain, or sent to, whichever are more.
  size_t FleetWorkers(const Domain& domain) const;

  struct Kept {
    uint64_t promises = 0;
    uint64_t broken = 0;
    double share = 1;  // of its last promises, as of `seen`
    Time seen{0};
  };
  struct SentWaypoint {
    std::string cell;
    HolderId worker = {};
    Time at{0};
  };
  struct OfDomain {
    std::map<std::string, KnownCell> cells;
    std::map<std::string, Kept> promises;        // by cell; as many as cells
    std::map<std::string, CellWorkers> workers;  // by cell
    size_t worker_count = 0;                     // in all of them
    std::map<std::string, CellRoles> roles;      // by cell; as many as cells
    uint32_t block_size = 0;
    Time touched{0};
    std::optional<Time> explored;
    std::optional<Time> listed;
    absl::flat_hash_map<SequenceHash, SentWaypoint> sent;
    std::deque<SequenceHash> sent_by_age;  // of `sent`, by their first time
  };
  OfDomain& Touch(const Domain& domain, Time now);
  double ShareOf(const Kept& kept, Time now) const;

  const FleetMemoryOptions options_;
  absl::flat_hash_map<Domain, OfDomain> domains_;
  InFlightChoices choices_;
  absl::flat_hash_map<std::string, absl::flat_hash_map<HolderId, LastTurn>> turns_;  // by cell
  size_t turns_count_ = 0;
  RecentlyStored recently_stored_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_FLEET_MEMORY_H_
