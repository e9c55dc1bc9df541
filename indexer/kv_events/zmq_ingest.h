// Brings thousands of engines' ZMQ streams to their workers: sockets on a few I/O threads, decoding
// in parallel, order per worker kept.
//
//   SUB sockets ─▶ libzmq's I/O threads ─▶ lanes: StreamTracker ─▶ EngineDecoder ─▶ EngineWorker
//   DEALER (replay) ─╯                     (a worker's streams always in the same one)
//
// *Truth*: every message of a stream reaches its worker once and in order, or its loss is noticed
// (gap), told to the worker, and repaired by replay where the engine offers it. A busy lane does
// not read its sockets: libzmq's queue fills, then the engine's, whose drops show as gaps. A replay
// delays its own stream only.
// *Threads*: any thread may call everything, except from within a worker's sink. `Add` does not
// wait for a connection. After `Remove` returned nothing of that stream is applied any more; it
// waits for the turn under way in its lane.
// *Cost*: a message is handed over once, by libzmq to its lane, and decoded where it was received.
// An idle stream costs no CPU, four file descriptors and about 40 KB.
// *Bounds*: `ZmqIngestOptions`; about 16,000 streams, or what the limit of file descriptors allows
// (raised to the hard one). *Lifetime*: workers live at least as long as their streams.
//
// Example:
//   ZmqIngest ingest({});
//   ingest.OpenGate();
//   absl::StatusOr<ZmqStreamId> id = ingest.Add({.worker_name = "w7", .endpoint =
//   "tcp://10.0.0.7:5557"}, worker);

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_INGEST_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_INGEST_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/kv_events/zmq_source.h"

namespace kvatlas {

class StreamWorker;
class ZmqLane;
class ZmqNames;
class ZmqShared;
class ZmqStream;
struct ZmqStreamSettings;

class ZmqIngest {
 public:
  explicit ZmqIngest(ZmqIngestOptions options);
  ~ZmqIngest();  // Stop()

  ZmqIngest(const ZmqIngest&) = delete;
  ZmqIngest& operator=(const ZmqIngest&) = delete;

  // UNAVAILABLE: a socket of `ZmqIngestOptions::shared` cannot be bound. FAILED_PRECONDITION: it
  // would be in clear.
  const absl::Status& status() const { return status_; }

  // INVALID_ARGUMENT: bad endpoint, or one that only flags may name (`CheckZmqSource`).
  // UNAVAILABLE: an address to bind cannot be had. With `resume` the stream goes on from there:
  // messages up to it are skipped, one beyond the next is a gap.
  absl::StatusOr<ZmqStreamId> Add(const ZmqSource& source, std::shared_ptr<EngineWorker> worker,
                                  std::optional<StreamPosition> resume = std::nullopt);
  // The same with what is done with its messages. Streams of one group share a lane, since they
  // would wait for each other anyway.
  absl::StatusOr<ZmqStreamId> Add(const ZmqSource& source, const void* group,
                                  std::unique_ptr<StreamWorker> worker,
                                  std::optional<StreamPosition> resume = std::nullopt);
  void Remove(ZmqStreamId stream);

  // `resume` said after `Add`, while the gate is closed: a starting leaf subscribes first and
  // learns positions then. `earlier` as in `StreamTracker::Resume`. FAILED_PRECONDITION: the gate
  // is open. NOT_FOUND.
  absl::Status ResumeFrom(ZmqStreamId stream, const StreamPosition& position, bool earlier = false);

  // Sockets stay, messages wait in them. FAILED_PRECONDITION names the status it was in.
  absl::Status Pause(ZmqStreamId stream);
  absl::Status Resume(ZmqStreamId stream);

  // Until opened, sockets exist and receive, but nothing is applied (start-up: after recovery).
  // Opens once.
  void OpenGate();

  // Runs `cut` with the stream's position while nothing of it is being applied: a consistent cut
  // with its worker. NOT_FOUND.
  absl::Status WithPosition(ZmqStreamId stream,
                            const std::function<void(std::optional<StreamPosition>)>& cut);

  // NOT_FOUND.
  absl::StatusOr<ZmqStreamStats> Stats(ZmqStreamId stream) const;
  // The address bound, with the port that was taken. NOT_FOUND; FAILED_PRECONDITION: it connects.
  absl::StatusOr<std::string> BoundEndpoint(ZmqStreamId stream) const;

  void Stop();

  // As its options have them.
  const EngineAddresses& addresses() const { return options_.addresses; }

 private:
  struct Entry {
    std::shared_ptr<ZmqStream> stream;
    size_t lane = 0;
    const void* group = nullptr;
    std::shared_ptr<ZmqShared> shared = nullptr;  // it has `topic` of that
    std::string topic = {};
  };
  struct Shared {
    std::shared_ptr<ZmqShared> topics;
    std::shared_ptr<ZmqStream> stream;
    size_t lane = 0;
  };

  size_t LaneOf(const void* group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Entry> Find(ZmqStreamId stream) const;

  absl::Status CheckPlain(const ZmqSource& source) const;
  ZmqStreamSettings Settings() const;
  absl::Status OpenShared(const ZmqSharedSocket& socket);

  const ZmqIngestOptions options_;
  const bool enforces_;  // the process has an access policy
  CurveKeys curve_;
  std::atomic<bool> gate_{false};
  void* context_ = nullptr;
  bool own_context_ = false;
  std::vector<std::unique_ptr<ZmqLane>> lanes_;
  std::unique_ptr<ZmqNames> names_;  // pokes lanes
  // Immutable after the constructor.
  absl::Status status_;
  std::map<std::string, Shared> shared_;  // by endpoint

  mutable Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  ZmqStreamId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<ZmqStreamId, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> lane_streams_ ABSL_GUARDED_BY(mutex_);  // how many, by lane
  // Lane and streams of each group.
  std::map<const void*, std::pair<size_t, size_t>> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_INGEST_H_
