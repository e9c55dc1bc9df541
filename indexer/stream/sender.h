// The sending end of a stream of holdings: a state machine without I/O that gets a holder's events
// to a receiver, whatever happens in between. Events and the time go in, messages come out.
//
//   1. `OnConnected`: a `Hello` is due.
//   2. `Welcome`: go on from the batch it names, or send a snapshot.
//   3. Batches flow while there is credit; `Ack` frees the window and grants credit.
//   4. `Need`: replay from the window if it still has the batch, else a snapshot.
//   5. Every `digest_every` an (else possibly empty) batch carries a digest; a silent stream sends
//      heartbeats.
//   6. `Refuse` with a younger epoch: a sender that is just starting raises its own above it. A
//      sender that ran before has been replaced: it says hello again after `replaced_retry`, later
//      and later, with the epoch that it has, and takes the stream again, with an epoch above, only
//      when the receiver says that the other one was not heard for a lease (`Refuse::lapsed`).
//      Refused with an epoch that is ahead of its own clock, raised above one that was made while a
//      clock was wrong, it goes back to its clock's. So two live senders of one name do not fight:
//      one of them has the stream, and the other reports it (`refusal`, `SenderStats::replaced`).
//
// *Place*: one per parent in a publisher (to its leaf replicas) and in a leaf (to its parents).
// *Truth*: the resident set is the sender's own memory of what is held: snapshots and digests come
// from it, so that repair depends on no window. Several senders may share one resident set (one per
// parent): then each is fed the same events.
// *Threads*: none; the caller serialises.
// *Bounds*: at most `window_batches` are kept for replay and unsent together. When `Append` finds
// the window full of unacknowledged batches, the window is dropped, its numbers are burnt, and a
// snapshot is owed: nothing blocks and nothing grows.

#ifndef KVATLAS_INDEXER_STREAM_SENDER_H_
#define KVATLAS_INDEXER_STREAM_SENDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/resident_set.h"

namespace kvatlas {

struct SenderIdentity {
  HolderId holder;
  Domain domain;
  uint32_t block_size = 0;
  std::string contract_id;
  std::string schedule;
  std::string address;
  std::vector<std::pair<std::string, std::string>> labels;
  Epoch epoch = 0;
  uint64_t instance_id = 0;
};

struct SenderOptions {
  uint64_t window_batches = 1024;
  Duration digest_every = std::chrono::seconds(5);
  // A stream that told of fewer than `digest_blocks` since its last digest sends one after
  // `digest_quiet_every`. 0 blocks: `digest_every` always.
  uint64_t digest_blocks = 0;
  Duration digest_quiet_every = std::chrono::seconds(60);
  Duration heartbeat_every = std::chrono::milliseconds(3333);  // a third of the receiver's lease
  Duration hello_timeout = std::chrono::seconds(2);  // without an answer the hello is repeated
  // A snapshot that was sent and is not acknowledged answers a receiver that asks for one: busy
  // receivers ask more than once for a snapshot that waits in their queue. It does not answer a
  // receiver that has seen a number at or behind it, since it is lost then. For a receiver that
  // does not say what it has seen (`Need::next` 0) it does so for this long only, doubled after
  // each in a row.
  Duration snapshot_again_after = std::chrono::seconds(5);
  // Waiting time of a sender that was replaced, until its next hello: a quarter more or less by
  // instance id, doubled after each in a row up to the second.
  Duration replaced_retry = std::chrono::seconds(30);
  Duration replaced_retry_max = std::chrono::minutes(5);
  const Clock* clock =
      &Clock::Real();  // its wall time alone, for the epoch; a `SenderPump` fills in its own
};

struct SenderStats {
  uint64_t batches_sent = 0;
  uint64_t batches_replayed = 0;
  uint64_t batches_dropped = 0;  // overflow: burnt numbers
  uint64_t blocks_sent = 0;
  uint64_t snapshots_sent = 0;
  uint64_t hellos_sent = 0;
  uint64_t refused = 0;
  uint64_t replaced = 0;  // hellos refused because another sender of this name has a younger epoch
};

class StreamSender {
 public:
  // `resident` outlives the sender and already contains what was appended before.
  StreamSender(const SenderOptions& options, SenderIdentity identity, const ResidentSet* resident);
  ~StreamSender();

  // Events that `resident` already reflects, and nothing else since the call before. They are cut
  // into batches within the bounds of `event.h`.
  void Append(const std::vector<Event>& events, const std::optional<Load>& load, Time now);

  // The holdings are not certain, or are so again (`Batch::degraded`): travels in stream order,
  // with everything appended from now on. Not degraded until told.
  void SetDegraded(bool degraded);

  // The resident set's cache classes changed (`ResidentSet::SetLayout`). REQUIRES: before `Append`
  // of the events that need them.
  void NoteLayout();

  void OnConnected(Time now);
  void OnDisconnected(Time now);
  // INVALID_ARGUMENT: what no correct receiver would say; the caller reconnects.
  absl::Status OnMessage(const ReceiverMessage& message, Time now);

  // The next message to put on the connection, or nothing for now. Called until it is empty, after
  // every other call and at least every `heartbeat_every`.
  std::optional<SenderMessage> Poll(Time now);

  // Stops for good: `Poll` yields a `Goodbye`, then nothing.
  void Stop();

  // Refused as INVALID_ARGUMENT, for good; the reason why. OK otherwise.
  const absl::Status& status() const;

  // Why the last hello was refused for now, such as for another schedule, or because another sender
  // has this name; it is repeated. OK: it was not, or not yet answered.
  const absl::Status& refusal() const;

  bool welcomed() const;
  // Highest number given out, highest acknowledged. Equal, and not `snapshot_owed`: the receiver
  // has it all.
  BatchNumber last_number() const;
  BatchNumber acknowledged() const;
  bool snapshot_owed() const;
  // Everything appended so far is applied at the receiver.
  bool AtRest() const { return welcomed() && acknowledged() == last_number() && !snapshot_owed(); }
  Epoch epoch() const;
  const SenderStats& stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_SENDER_H_
