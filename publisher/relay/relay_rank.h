// One worker rank as the relay tells leaves of it: its resident set, and a stream of ours to every
// leaf.
//
//   EngineWorker ── events, trust ──▶ RelayRank: resident set ─┬▶ SenderPump ─▶ link ─▶ leaf, replica 0
//   ZmqIngest ──── heard, settled ──▶                          └▶ SenderPump ─▶ link ─▶ leaf, replica 1
//
//        settled            not heard                not heard for `lease_ttl`
//   new ─────────▶ offered ◀─────────▶ quiet ──────────────────────────────────▶ withdrawn ── settled ──▶ offered
//
// *Truth*: leaves are told no more than the relay knows. While it missed some of the engine's
// events, has not heard it yet, or had no room, the stream is marked (`Batch::degraded`) and so are
// the leaves' answers. Nothing is offered before the engine's first replay is over, so that leaves
// that remember do not forget what is about to be said again. For an engine that is not heard no
// heartbeats are sent, so that its lease runs out at the leaves as if they listened themselves.
// *Threads*: any. Events and trust come with the worker's lock held: neither waits for a
// connection. `Flush`, `Tick`, `SetStream`, `SetLeaves` and `Stop` may take long, and are called by
// one thread each.
// *Bounds*: the shared `BlockBudget`; beyond it stored blocks are shed until the engine clears or
// restarts. Batches that wait: `SenderOptions::window_batches` for each leaf, then a snapshot
// instead.

#ifndef KVATLAS_PUBLISHER_RELAY_RELAY_RANK_H_
#define KVATLAS_PUBLISHER_RELAY_RELAY_RANK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/holdings_writer.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/net/connection_watch.h"
#include "indexer/stream/link.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/sender_pump.h"

namespace kvatlas {

// The bound of blocks that all ranks of a process hold together.
class BlockBudget {
 public:
  // 0: no limit.
  explicit BlockBudget(uint64_t blocks_max) : blocks_max_(blocks_max) {}
  // False: no room, and nothing was taken.
  bool Take(uint64_t blocks);
  void GiveBack(uint64_t blocks) { used_.fetch_sub(blocks, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const uint64_t blocks_max_;
  std::atomic<uint64_t> used_{0};
};

// Makes the link that carries one rank's stream to one leaf, not started.
using MakeRelayLink = std::function<std::unique_ptr<SenderLink>(const std::string& leaf,
                                                                const SenderIdentity& identity)>;

class RelayRank;

struct RelayRankOptions {
  SenderIdentity identity;  // epoch and instance id are filled in
  SenderOptions sender;
  std::vector<std::string> leaves;  // at the start
  MakeRelayLink make_link;
  Duration lease_ttl = std::chrono::seconds(10);
  BlockBudget* budget = nullptr;  // outlives the rank
  // Something waits for the rank's `Flush`: once until that is called, with the engine's worker
  // locked, by any thread.
  std::function<void(std::shared_ptr<RelayRank>)> wake;
  const Clock* clock = &Clock::Real();
};

enum class RelayStand : uint8_t { kNew, kOffered, kQuiet, kWithdrawn };
std::string_view RelayStandName(RelayStand stand);  // "offered"

struct RelayLinkStats {
  std::string leaf;
  bool connected = false;
  bool welcomed = false;
  bool at_rest = false;
  BatchNumber last_number = 0;
  BatchNumber acknowledged = 0;
  SenderStats sender;
  // Not OK: UNAVAILABLE: the leaf is not reached; else why it is refused; INVALID_ARGUMENT: for
  // good, else it tries again.
  absl::Status status;
  ConnectionStatus connection;
};

struct RelayRankStats {
  SenderIdentity identity;  // of the latest offer
  RelayStand stand = RelayStand::kNew;
  Trust trust = Trust::kExact;
  std::string doubt;  // why not exact
  uint64_t blocks = 0;
  Digest digest;
  uint64_t shed = 0;  // blocks there was no room for
  std::vector<RelayLinkStats> links;
};

struct RelayRankDump {
  SenderIdentity identity;
  std::vector<Stored> runs;
  CacheLayout layout;
  BatchNumber last_number = 0;  // the highest of any leaf's stream
  Trust trust = Trust::kExact;
};

// Owned by `std::shared_ptr`s.
class RelayRank : public HoldingsWriter, public std::enable_shared_from_this<RelayRank> {
 public:
  explicit RelayRank(RelayRankOptions options);
  ~RelayRank() override;  // Stop(false, 0)

  RelayRank(const RelayRank&) = delete;
  RelayRank& operator=(const RelayRank&) = delete;

  // ---- What the engine's worker says ----
  using HoldingsWriter::Apply;
  Applied Apply(std::span<const Event> events) override;
  void SetTrust(Trust trust) override;
  void SetLayout(const CacheLayout& layout) override;

  // The state of the engine's stream, to be told every 200 ms or so. `heard`: a peer is there.
  // `settled`: no first replay is under way or to come. `certain`: something came over it, or a
  // replay said that there is nothing.
  void SetStream(bool heard, bool settled, bool certain, Time now);

  // The leaves that are told from now on. A new one gets a stream of its own, with a snapshot; one
  // that is no longer named is dropped, and keeps what it knows for a lease. Called by the thread
  // that calls `SetStream`.
  void SetLeaves(const std::vector<std::string>& leaves);

  // Writes what is due to every leaf that takes it.
  void Flush();
  // Time passes for the streams, at least every 100 ms: nothing while quiet.
  void Tick();
  // Ends the streams; with `goodbye` leaves forget the rank at once. Idempotent; nothing is offered
  // after it.
  void Stop(bool goodbye, Duration flush_for);

  RelayRankStats Stats() const;
  RelayRankDump Dump() const;
  bool ever_offered() const { return ever_offered_.load(std::memory_order_relaxed); }

 private:
  struct Link {
    std::string leaf;
    std::shared_ptr<SenderPump> pump;
    std::shared_ptr<ConnectionWatch> watch;
  };
  using Links = std::vector<Link>;

  absl::Status ApplyLocked(const Event& event, uint64_t* changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Degraded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the streams, when that has changed.
  void TellDoubt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Offer() ABSL_LOCKS_EXCLUDED(mutex_);
  // Each one of an epoch of its own: a leaf may remember another stream of ours, with other
  // numbers.
  Link MakeLink(const std::string& leaf) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Links> links() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake();
  void Shed(uint64_t blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RelayRankOptions options_;
  std::atomic<bool> ever_offered_{false};
  std::atomic<bool> awake_{false};  // `wake` was called, and not yet `Flush`

  // Also the pumps' `resident_mutex`: before their own, after the engine worker's.
  mutable Mutex mutex_;
  ResidentSet resident_ ABSL_GUARDED_BY(mutex_);
  // Null: no streams. A pump is stopped without the mutex.
  std::shared_ptr<Links> links_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> leaves_ ABSL_GUARDED_BY(mutex_);
  SenderIdentity identity_ ABSL_GUARDED_BY(mutex_);  // of the latest link
  RelayStand stand_ ABSL_GUARDED_BY(mutex_) = RelayStand::kNew;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Trust trust_ ABSL_GUARDED_BY(mutex_) = Trust::kExact;  // of the engine's worker
  bool certain_ ABSL_GUARDED_BY(mutex_) = false;
  bool shedding_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t shed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool told_degraded_ ABSL_GUARDED_BY(mutex_) = false;
  Time last_heard_ ABSL_GUARDED_BY(mutex_){0};
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_RELAY_RELAY_RANK_H_
