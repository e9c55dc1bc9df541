// The receiving end of a stream of holdings: a state machine without I/O. Messages and the time go
// in, messages come out; what it learns about its holder goes into a `HoldingsSink`.
//
// *Place*: one per (holder, domain) at a leaf or a hierarchy node, kept across connections, so that
// a sender that reconnects goes on where it was.
// *Truth*: applies every batch of an epoch once and in order. A gap, a digest that differs or a
// broken snapshot make the trust `kDegraded` and lead to one `Need` at a time, repeated after
// `retry_after`. Until repaired holdings stay; after `repair_timeout` they are dropped. Trust is
// `kDegraded` too while the sender says so of itself.
// *Connections*: the receiver does not see them. The caller passes on messages only of the
// connection whose hello was the last to be welcomed, and calls `OnDisconnected` only for that one;
// an earlier connection of the same stream it closes. After a refusal it closes the connection.
// *Threads*: none; the caller serialises.
// *Bounds*: `ReceiverOptions`; a snapshot's parts are applied as they come, and what was held
// before and they have not named yet is remembered (16 bytes a block) until the last part. A
// snapshot that names more than `SnapshotBlocksMax`, or takes longer than `snapshot_time_max`, is
// dropped and the stream ended; what is held stays degraded, and is dropped after `repair_timeout`
// unless a whole snapshot comes: parts of other ones do not put that off.

#ifndef KVATLAS_INDEXER_STREAM_RECEIVER_H_
#define KVATLAS_INDEXER_STREAM_RECEIVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

// The destination of everything that a receiver learns about its holder.
class HoldingsSink {
 public:
  virtual ~HoldingsSink() = default;
  // RESOURCE_EXHAUSTED: shed; the receiver suspends digests and asks for a snapshot later.
  virtual absl::Status Apply(const Event& event) = 0;
  virtual void SetLoad(const Load& load) = 0;
  // The holder's cache classes, from now on; what is held of side classes stays. The default keeps
  // none: for holders that have none, such as cells.
  virtual void SetLayout(const CacheLayout&) {}
  // Every (tier, block) held now, side blocks by their names, for the end of a snapshot. `side`: 0,
  // or what a `Removed` of the block says.
  virtual void ForEachHeld(
      const std::function<void(SequenceHash, TierMask, SideClass side)>& visit) = 0;
  virtual Digest CurrentDigest() = 0;
};

struct ReceiverOptions {
  uint64_t credit_batches = 64;
  Duration retry_after = std::chrono::seconds(1);      // a `Need` is repeated after this
  Duration repair_timeout = std::chrono::seconds(30);  // then what is not confirmed is dropped
  Duration lease_ttl = std::chrono::seconds(10);       // silence after which the holder is masked
  Duration shed_retry =
      std::chrono::seconds(60);  // between snapshots asked for because of shedding
  // Most blocks of the holder; the sink refuses a run that could go beyond. 0: no limit.
  uint64_t blocks_max = 0;
  // Most blocks that a snapshot may name, a block counting once for each tier. With a `blocks_max`
  // the limit is derived from that instead (`SnapshotBlocksMax`).
  uint64_t snapshot_blocks_max = 1 << 26;
  Duration snapshot_time_max = std::chrono::minutes(10);  // from its first part to its last
  const Clock* clock = &Clock::Real();                    // its wall time alone (`CheckEpoch`)
};

// A holder of `blocks_max` blocks has four times as many side blocks at most, each of them in any
// tier.
inline uint64_t SnapshotBlocksMax(const ReceiverOptions& options) {
  constexpr uint64_t kTimes = 5 * kTiers;
  return options.blocks_max == 0 || options.blocks_max > options.snapshot_blocks_max / kTimes
             ? options.snapshot_blocks_max
             : options.blocks_max * kTimes;
}

struct ReceiverStats {
  uint64_t batches_applied = 0;
  uint64_t batches_duplicate = 0;
  uint64_t blocks_applied = 0;
  uint64_t gaps = 0;
  uint64_t replays_asked = 0;
  uint64_t snapshots_asked = 0;
  uint64_t snapshots_applied = 0;
  uint64_t snapshots_dropped = 0;  // beyond their bounds
  uint64_t digests_equal = 0;
  uint64_t digests_different = 0;
  uint64_t repairs_timed_out = 0;
  uint64_t hellos_refused = 0;
  uint64_t sheds = 0;  // times that something began to be refused by a bound
};

// Where a stream stands: what a checkpoint keeps of a receiver.
struct ReceiverPosition {
  Epoch epoch = 0;
  uint64_t instance_id = 0;
  BatchNumber applied = 0;
  // True if the contents are exactly what the sender held after `applied`; else some are in doubt,
  // and only a snapshot helps.
  bool whole = true;
  bool sender_degraded = false;  // `Batch::degraded` of the last one applied

  friend bool operator==(const ReceiverPosition&, const ReceiverPosition&) = default;
};

class StreamReceiver {
 public:
  // `sink` outlives the receiver.
  StreamReceiver(const ReceiverOptions& options, HoldingsSink* sink);
  ~StreamReceiver();

  // Goes on from `position`, kept by an earlier process that last heard the sender at `heard`; the
  // lease runs from `lease_from`. Never exact before the sender has said hello and everything was
  // applied that it had sent by then. REQUIRES: no message yet; the sink has what was held.
  void Restore(const ReceiverPosition& position, Time heard, Time lease_from);

  // A message from the sender; answers are appended to `out`. A `Hello` may come at any time (a new
  // connection): it is welcomed or refused by epoch and instance id, of which an epoch that is too
  // far ahead of the clock, taken while that was wrong, does not count; contract, block size and
  // schedule are the caller's to check before. INVALID_ARGUMENT: what no correct sender would say
  // (before a hello, over a bound); nothing changed, and the caller closes the connection.
  // RESOURCE_EXHAUSTED: a snapshot beyond its bounds was dropped, and the caller closes the
  // connection.
  absl::Status OnMessage(const SenderMessage& message, Time now, std::vector<ReceiverMessage>* out);

  // The connection is gone. Lease and repair clocks go on.
  void OnDisconnected(Time now);

  // Time passes: repeats a `Need`, gives up a repair. To be called at least every second.
  void Tick(Time now, std::vector<ReceiverMessage>* out);

  // The lease ran out: nothing heard for `lease_ttl`.
  bool Expired(Time now) const;
  // When the sender was last heard; before the first hello after `Restore`, by the source of the
  // position.
  Time last_heard() const;
  // When the lease began that runs now: when the sender was last heard, or later where it was
  // restored.
  Time lease_began() const;
  // The sender said goodbye.
  bool gone() const;

  Trust trust(Time now) const;
  Epoch epoch() const;
  uint64_t instance_id() const;
  BatchNumber applied() const;
  ReceiverPosition position() const;
  const ReceiverStats& stats() const;
  // Batches that the sender says it has sent, and that are not applied.
  BatchNumber behind() const;
  // Memory for the snapshot that is being received, about.
  uint64_t snapshot_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_RECEIVER_H_
