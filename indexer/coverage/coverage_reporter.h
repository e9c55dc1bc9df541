// Reports to parents what this process covers. Per domain, the waypoints of its `Coverage` become a
// resident set and a stream of holdings, to one or several parents.
//
//   Coverage ─ Tick ─┬─▶ resident set ──▶ SenderPump ─▶ parent 1
//   (domain)         │   of shard a   └─▶ SenderPump ─▶ parent 2, its replica
//                    └─▶ resident set ──▶ SenderPump ─▶ parent 3
//                        of shard b
//
// To a parent this process is one holder (a cell with its replica), and a block's position is the
// ordinal of its waypoint. A level that is not split is one shard.
//
// *Place*: a leaf has one, and a hierarchy node that has parents of its own. The links are made by
// the owner (`make_link`).
// *Truth*: every parent of a shard gets the same events, those of the shard's part; a parent that
// was away is repaired from the resident set. When the parents change (`SetParents`), each new one
// is sent all of its part; waypoints that a shard no longer has to know are withdrawn after
// `parents_overlap`, and parents that left get their goodbye then: a question that still goes by
// the earlier map finds what that promises. In the log: how each parent is reached
// (`connection_watch.h`), all domains together.
// *Threads*: any thread may call everything but `Tick` and `Stop`, which one thread calls.
// *Bounds*: `CoverageOptions::waypoints_max`; at most `waypoints_per_tick` leave per tick and
// domain; a parent that does not keep up costs its pump's window and then gets a snapshot.
//
// Example:
//   CoverageReporter reporter({.cell = {"cell-a", 0, ""}, .parents = {"127.0.0.1:7420"}, .make_link
//   = make});
//   Coverage* coverage = reporter.AddDomain({"llama-70b", ""}, 16);
//   ...                    // coverage->OnChanged(...) from ingest
//   reporter.Tick();       // every 10 to 20 ms
//   reporter.Stop(std::chrono::seconds(1));

#ifndef KVATLAS_INDEXER_COVERAGE_COVERAGE_REPORTER_H_
#define KVATLAS_INDEXER_COVERAGE_COVERAGE_REPORTER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/coverage/coverage.h"
#include "indexer/registry/domain_observer.h"
#include "indexer/stream/link.h"
#include "indexer/stream/sender.h"

namespace kvatlas {

using SenderLinkFactory = std::function<std::unique_ptr<SenderLink>(const std::string& parent)>;

// Valid during the call that tells it.
struct ParentRefusal {
  const std::string& parent;  // its address
  const Domain& domain;
  const std::string& schedule;  // of what is reported
  const absl::Status& why;
};

struct CoverageReporterOptions {
  HolderId cell;
  std::string address;  // this process's own gRPC address, shown in the parents' answers
  std::vector<std::pair<std::string, std::string>> labels;
  ShardMap parents;               // may be empty: then nothing is kept, and stays so, unless
  bool parents_may_come = false;  // they are still to be found: coverage is kept for them
  Duration parents_overlap = std::chrono::minutes(1);
  SenderLinkFactory make_link;
  std::string contract_id;
  const WaypointSchedule* schedule = &WaypointSchedule::Standard();  // of positions here
  std::string schedule_name = WaypointSchedule::Standard().Name();   // as parents know it
  // A parent takes nothing until something is mended at either end, such as another schedule: told
  // at every `Tick`, as long as it is so. May be null.
  std::function<void(const ParentRefusal& refusal)> on_refused;
  CoverageOptions coverage;
  // A sparse stream of digests every 5 s would be digests mostly.
  SenderOptions sender = {.digest_every = std::chrono::seconds(15), .digest_blocks = 64};
  Epoch epoch = 0;  // of all its streams: the start time in ns
  uint64_t instance_id = 0;
  // Loads are not sent more often than `load_every`: then when what a request waits for at the
  // average worker changed by `load_step` blocks of prefill (a running request counts for one) or
  // workers came or went, else after `load_refresh`. A sparse stream would consist of loads mostly.
  Duration load_every = std::chrono::milliseconds(50);
  double load_step = 8;
  Duration load_refresh = std::chrono::seconds(30);
  size_t waypoints_per_tick = 1 << 14;
  const Clock* clock = &Clock::Real();
};

// One stream: a domain to a parent.
struct ParentStats {
  std::string parent;
  std::string shard;  // empty when the level is not split
  Domain domain;
  bool connected = false;
  // Everything announced is acknowledged and no withdrawal is pending.
  bool at_rest = false;
  uint64_t waypoints_announced = 0;
  uint64_t waypoints_withdrawn = 0;
  uint64_t bytes_sent = 0;         // as serialized, of batches and snapshots
  uint64_t waypoints_held = 0;     // announced now, of all shards
  uint64_t waypoints_here = 0;     // of this parent's shard
  uint64_t waypoints_covered = 0;  // of the domain, announced or not
  uint64_t waypoints_waiting = 0;  // of these, kept back by a budget
  BatchNumber last_batch = 0;
  BatchNumber acknowledged = 0;
  SenderStats sender;
  absl::Status status;  // not OK: refused for good
  // Not OK: refused until something is mended, such as a schedule at either end, or two processes
  // of one name.
  absl::Status refusal;
  std::optional<absl::Status> progress;  // `SenderPump::Progress`
};

class CoverageReporter {
 public:
  explicit CoverageReporter(CoverageReporterOptions options);
  ~CoverageReporter();

  CoverageReporter(const CoverageReporter&) = delete;
  CoverageReporter& operator=(const CoverageReporter&) = delete;

  // Sets `CoverageReporterOptions::address`, for an owner that knows it only when its server
  // listens. Before the first `Tick`.
  void SetAddress(std::string address);

  // Other parents from the next tick on. FAILED_PRECONDITION: none are given, or there were none
  // before and none were to come.
  absl::Status SetParents(ShardMap parents);

  // The coverage of a domain, to be fed from now on, until it was removed as often as it was added,
  // or the reporter is gone. Null when there are no parents, and none may come. Streams start with
  // the next tick. A domain that comes again has the same coverage; with another block size it is a
  // new one, and the old one's stream says goodbye. REQUIRES: nothing is held in the domain.
  Coverage* AddDomain(const Domain& domain, uint32_t block_size);
  // The domain is gone, and `coverage` not used any more: its stream says goodbye at the next tick.
  // REQUIRES: from `AddDomain`.
  void RemoveDomain(const DomainObserver* coverage);

  // Sends what is due.
  void Tick();

  // Says goodbye to the parents and ends the streams, all within `flush_for`.
  void Stop(Duration flush_for);

  std::vector<ParentStats> Stats() const;

 private:
  class Stream;
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COVERAGE_COVERAGE_REPORTER_H_
