// How do thousands of engines' ZMQ streams reach their workers? Sockets on a few I/O threads, decoding in
// parallel, order per worker kept.
//
//   SUB sockets ─▶ I/O threads ─▶ StreamTracker ─▶ lanes (bounded, one stream always the same) ─▶ EngineDecoder ─▶ EngineWorker
//   DEALER (replay) ─╯
//
// *Truth*: every message of a stream reaches its worker once and in order, or its loss is noticed (gap), told to
// the worker, and repaired by replay where the engine offers it. A full lane stops reading its sockets: libzmq's
// queue fills, then the engine's, whose drops show as gaps.
// *Threads*: any thread may call everything. `Add` does not wait for a connection. After `Remove` returned nothing of that
// stream is applied any more.
// *Bounds*: `ZmqIngestOptions`. *Lifetime*: workers outlive their streams.

#ifndef KVATLAS_INDEXER_ENGINES_ZMQ_INGEST_H_
#define KVATLAS_INDEXER_ENGINES_ZMQ_INGEST_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/engines/engine_worker.h"
#include "indexer/engines/stream_tracker.h"

namespace kvatlas {

struct ZmqIngestOptions {
  uint32_t io_threads = 1;      // that read sockets
  uint32_t decode_threads = 0;  // lanes; 0: as many as cores, at most 8
  size_t lane_bytes_max = 64 << 20;
  int receive_hwm = 100000;  // per socket, messages
  Duration heartbeat =
      std::chrono::seconds(5);  // ZMTP ping; a peer silent for three of them is gone
  Duration reconnect_min = std::chrono::milliseconds(100);
  Duration reconnect_max = std::chrono::seconds(5);
  TrackerOptions tracker;  // `can_replay` is filled in
  const Clock* clock = &Clock::Real();
};

struct ZmqSource {
  std::string worker_name;      // for logs
  uint32_t rank = 0;            // registered data-parallel rank
  std::string endpoint;         // tcp://host:port, tcp://[v6]:port, ipc://path, inproc://name
  std::string replay_endpoint;  // empty: the engine cannot replay
  std::string topic;            // prefix; empty: everything
  bool bind = false;            // engines that dial out
};

enum class ListenerStatus : uint8_t { kPending, kActive, kPaused, kFailed };
std::string_view ListenerStatusName(ListenerStatus status);  // "active"

struct ZmqStreamStats {
  ListenerStatus status = ListenerStatus::kPending;
  std::string last_error;
  bool connected = false;  // a peer is there (`bind`: at least one)
  Duration silent{0};      // since the last message; since the start when there was none
  uint64_t bytes = 0;
  uint64_t bad_frames = 0;   // not [topic, number, payload]
  uint64_t undecodable = 0;  // payloads that are no batch
  double lag_ms =
      0;  // engine's clock to applied, of the last batch that named a time; may be negative
  uint64_t queued_bytes = 0;  // waiting for its lane
  TrackerStats tracker;
};

// Says what is wrong with an endpoint, in the words of Dynamo's indexer: "invalid ZMQ endpoint `E`: missing scheme".
absl::Status CheckZmqEndpoint(std::string_view endpoint);

using ZmqStreamId = uint64_t;

class ZmqIngest {
 public:
  explicit ZmqIngest(ZmqIngestOptions options);
  ~ZmqIngest();  // Stop()

  ZmqIngest(const ZmqIngest&) = delete;
  ZmqIngest& operator=(const ZmqIngest&) = delete;

  // INVALID_ARGUMENT: bad endpoint. UNAVAILABLE: an address to bind cannot be had. With `resume` the stream goes on
  // from there: messages up to it are skipped, one beyond the next is a gap.
  absl::StatusOr<ZmqStreamId> Add(const ZmqSource& source, std::shared_ptr<EngineWorker> worker,
                                  std::optional<StreamPosition> resume = std::nullopt);
  void Remove(ZmqStreamId stream);

  // `resume` said after `Add`, while the gate is closed: a starting leaf subscribes first and learns positions then.
  // FAILED_PRECONDITION: the gate is open. NOT_FOUND.
  absl::Status ResumeFrom(ZmqStreamId stream, const StreamPosition& position);

  // Sockets stay, messages wait in them. FAILED_PRECONDITION names the status it was in.
  absl::Status Pause(ZmqStreamId stream);
  absl::Status Resume(ZmqStreamId stream);

  // Until opened, sockets exist and receive, but nothing is applied (start-up: after recovery). Opens once.
  void OpenGate();

  // Runs `cut` with the stream's position while nothing of it is being applied: a consistent cut with its worker.
  // NOT_FOUND.
  absl::Status WithPosition(ZmqStreamId stream,
                            const std::function<void(std::optional<StreamPosition>)>& cut);

  // NOT_FOUND.
  absl::StatusOr<ZmqStreamStats> Stats(ZmqStreamId stream) const;
  // The address bound, with the port that was taken. NOT_FOUND; FAILED_PRECONDITION: it connects.
  absl::StatusOr<std::string> BoundEndpoint(ZmqStreamId stream) const;

  void Stop();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINES_ZMQ_INGEST_H_
