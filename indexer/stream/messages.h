// The messages between the two ends of a stream of holdings, as typed values.
//
//   sender                                   receiver
//     Hello        ─────────────────────────▶
//                  ◀─────────────────────────  Welcome | Refuse
//     Batch 1…n    ─────────────────────────▶
//                  ◀─────────────────────────  Ack (applied, credit)
//     Heartbeat    ─────────────────────────▶   (names the last batch sent: a lost tail is noticed)
//                  ◀─────────────────────────  Need (replay from n | snapshot)
//     Batch … or SnapshotPart 0…k ──────────▶
//
// One stream has one identity: (holder, domain, epoch). The same messages flow from a publisher to
// a leaf and from a leaf to the hierarchy.

#ifndef KVATLAS_INDEXER_STREAM_MESSAGES_H_
#define KVATLAS_INDEXER_STREAM_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// First message of every connection.
struct Hello {
  HolderId holder;
  Domain domain;
  uint32_t block_size = 0;
  std::string contract_id;  // `HashContract::Id()`
  std::string schedule;     // `WaypointSchedule::Name()` when blocks are waypoints, else empty
  Epoch epoch = 0;
  uint64_t instance_id = 0;    // random; tells two senders of one epoch apart
  BatchNumber first_kept = 1;  // oldest batch that can still be replayed
  BatchNumber last_sent = 0;   // highest batch that exists
  bool starting = false;       // not yet welcomed in this incarnation: may raise its epoch
  std::string address;         // where the holder itself can be asked (a leaf's gRPC), may be empty
  std::vector<std::pair<std::string, std::string>> labels;  // e.g. {"zone", "a"}
  bool degraded = false;  // `Batch::degraded`, as of now: for a receiver that does not remember

  friend bool operator==(const Hello&, const Hello&) = default;
};

// The receiver knows the stream and wants batch `next`, or a snapshot first.
struct Welcome {
  BatchNumber next = 1;
  bool snapshot = false;
  uint64_t credit = 0;  // batches the sender may have unacknowledged

  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// The receiver will not take the stream. FAILED_PRECONDITION with `epoch` set: a younger
// incarnation exists, and with `lapsed` it was not heard for a lease: a sender that was replaced by
// it may take its place. INVALID_ARGUMENT: never right, do not retry soon. RESOURCE_EXHAUSTED,
// UNAVAILABLE: retry later.
struct Refuse {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string reason;
  Epoch epoch = 0;
  uint64_t instance_id = 0;
  bool lapsed = false;

  friend bool operator==(const Refuse&, const Refuse&) = default;
};

struct Ack {
  BatchNumber applied = 0;
  uint64_t credit = 0;

  friend bool operator==(const Ack&, const Ack&) = default;
};

// The receiver misses something: `snapshot`, else everything from batch `next`. With `snapshot`,
// `next` is one more than the highest number that the receiver has seen on this connection (0: it
// does not say): a snapshot of a number below did not arrive whole.
struct Need {
  BatchNumber next = 0;
  bool snapshot = false;

  friend bool operator==(const Need&, const Need&) = default;
};

// Sent when nothing else was for a third of the lease.
struct Heartbeat {
  BatchNumber last_sent = 0;

  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

// Everything the sender holds as it was after batch `as_of`, in parts 0, 1, … of at most
// `kBatchBlocksMax` blocks. The holder holds nothing else. The last part carries the digest, the
// load and `Batch::degraded`, the first one the cache classes; none: the main class alone.
struct SnapshotPart {
  uint64_t snapshot_id = 0;
  BatchNumber as_of = 0;
  uint32_t part = 0;
  bool last = false;
  std::vector<Stored> stored;
  std::optional<Load> load;
  std::optional<Digest> digest;
  bool degraded = false;
  std::optional<CacheLayout> layout = {};

  friend bool operator==(const SnapshotPart&, const SnapshotPart&) = default;
};

// The sender stops for good and wants to be forgotten at once.
struct Goodbye {
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

using SenderMessage = std::variant<Hello, Batch, SnapshotPart, Heartbeat, Goodbye>;
using ReceiverMessage = std::variant<Welcome, Refuse, Ack, Need>;

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_MESSAGES_H_
