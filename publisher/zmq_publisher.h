// An engine's blocks for consumers that are not ours, over ZeroMQ as vLLM publishes them: numbered
// batches on a PUB socket, and a ROUTER socket that replays the last ones.
//
//   publisher's thread                  its own thread
//     Add, Flush ─▶ batch ─▶ ring ───┬─▶ PUB     [topic, number, payload]
//                   (numbered)       └─▶ ROUTER  every batch from the number that was asked for, then an end marker
//
// *Truth*: the engine's calls in their order (`zmq_events.h`). Numbers start at 0 and are never
// used twice. A lost batch (the ring rolled over it before its thread had sent it, or it is larger
// than the ring) uses up its number, so consumers see a gap. `AllBlocksCleared` goes out at once.
// Calls that name blocks by the contract's hashes have no tokens to tell: they are counted and left
// out. An engine's own batches go out byte for byte.
// *Threads*: `Add`, `Flush` and `Stop` serialised by the caller; the rest any. Nothing here waits
// for a socket: a subscriber that does not read loses batches beyond `send_hwm` (its gap), and
// delays no other.
// *Bounds*: the ring, in batches and bytes; `send_hwm` batches per subscriber, which share the
// ring's memory and may outlive it; `kReplaysMax` replays at once, sent in turn with live batches
// first. Further ones are refused.
// *Lifetime*: sockets exist, and are bound, when `Create` returns.
//
// Which end dials: with `kAuto` an endpoint is bound when its host is `*`, `0.0.0.0` or has `::` in
// it, its port is taken freely (`0`, `*`), or it is ipc or inproc; all others are connected to.
// (vLLM connects to `tcp://0.0.0.0`, which reaches no subscriber.) The replay socket always binds.
// Each data-parallel rank has endpoints of its own: `tcp` ports go up by the rank, unless taken
// freely; `inproc` and `ipc` names end in `_dpRANK` from rank 1.

#ifndef KVATLAS_PUBLISHER_ZMQ_PUBLISHER_H_
#define KVATLAS_PUBLISHER_ZMQ_PUBLISHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/tier.h"
#include "publisher/record_buffer.h"
#include "publisher/zmq_events.h"

namespace kvatlas {

enum class ZmqAttach : uint8_t { kAuto, kBind, kConnect };

// The form of a replay's messages.
enum class ZmqReplayLayout : uint8_t {
  kTopic,    // ["", topic, number, payload], end ["", "", 2^64-1, ""]: vLLM 0.26 and later
  kNoTopic,  // ["", number, payload], end ["", 2^64-1, ""]: before, and SGLang
};

struct ZmqPublisherOptions {
  std::string endpoint;  // tcp://host:port, ipc://path, inproc://name; empty: no events over ZeroMQ
  ZmqAttach attach = ZmqAttach::kAuto;
  std::string replay_endpoint;  // empty: no replay
  ZmqReplayLayout replay_layout = ZmqReplayLayout::kTopic;
  std::string topic;
  // File with its key of CURVE (`curve.h`): both sockets are encrypted, and only subscribers with
  // the public key can listen. Not for a socket that dials out. Empty: in clear.
  std::string curve_key = {};
  ZmqEventForm form = ZmqEventForm::kMap;
  // Kept for replay, and until sent.
  size_t ring_batches_max = 10000;
  size_t ring_bytes_max = 64 << 20;
  int send_hwm = 100000;
};

struct ZmqPublisherStats {
  std::string endpoint;  // as bound, with the port that was taken, or as connected to
  std::string replay_endpoint;
  uint64_t next_number = 0;
  uint64_t batches_sent = 0;  // to the subscribers at that time
  uint64_t batches_lost = 0;  // never sent; their numbers are burned
  uint64_t batches_replayed = 0;
  uint64_t replays = 0;          // asked for and taken on
  uint64_t replays_refused = 0;  // malformed, or too many at once
  uint64_t calls_untold = 0;     // of the engine, by the contract's hashes
  uint64_t ring_batches = 0;
  uint64_t ring_bytes = 0;
};

// The endpoint of a rank. INVALID_ARGUMENT: not an endpoint, or a port beyond 65535.
absl::StatusOr<std::string> ZmqEndpointOfRank(std::string_view endpoint, uint32_t rank);

// Whether a socket with this endpoint binds.
bool ZmqBinds(std::string_view endpoint, ZmqAttach attach);

class ZmqPublisher {
 public:
  static constexpr size_t kReplaysMax = 64;

  // INVALID_ARGUMENT: an endpoint, or a bound that is 0. UNAVAILABLE, naming it: an endpoint cannot
  // be bound.
  static absl::StatusOr<std::unique_ptr<ZmqPublisher>> Create(const ZmqPublisherOptions& options,
                                                              uint32_t block_size, uint32_t rank);
  ~ZmqPublisher();  // Stop(0)

  ZmqPublisher(const ZmqPublisher&) = delete;
  ZmqPublisher& operator=(const ZmqPublisher&) = delete;

  // One call of the engine; long runs become several events. Loads are none of its business.
  // REQUIRES: kCleared names all tiers; fewer are said as removals.
  void Add(const Record& record);
  void Remove(Tier tier, std::span<const uint64_t> hashes);

  // Sends what was added as one batch.
  void Flush();

  ZmqPublisherStats Stats() const;

  // Sends what waits, for at most `flush_for`, and closes. Idempotent; what is added after it goes
  // nowhere.
  void Stop(Duration flush_for);

 private:
  class Impl;
  explicit ZmqPublisher(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_ZMQ_PUBLISHER_H_
