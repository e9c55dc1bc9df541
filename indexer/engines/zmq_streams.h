// How do many ZMQ streams reach whatever applies them? What `ZmqIngest` is, for any `StreamSink`; see there.

#ifndef KVATLAS_INDEXER_ENGINES_ZMQ_STREAMS_H_
#define KVATLAS_INDEXER_ENGINES_ZMQ_STREAMS_H_

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
#include "indexer/base/mutex.h"
#include "indexer/engines/stream_sink.h"
#include "indexer/engines/zmq_lane.h"
#include "indexer/engines/zmq_names.h"
#include "indexer/engines/zmq_source.h"
#include "indexer/engines/zmq_stream.h"
#include "indexer/service/engine_addresses.h"

namespace kvatlas {

// A sink for a stream that will be in that lane: [0, lanes()).
using MakeStreamSink = std::function<std::unique_ptr<StreamSink>(size_t lane)>;

class ZmqStreams {
 public:
  explicit ZmqStreams(ZmqIngestOptions options);
  ~ZmqStreams();  // Stop()

  ZmqStreams(const ZmqStreams&) = delete;
  ZmqStreams& operator=(const ZmqStreams&) = delete;

  size_t lanes() const { return lanes_.size(); }
  const EngineAddresses& addresses() const { return options_.addresses; }

  // Streams of one group share a lane, since they would wait for each other anyway.
  absl::StatusOr<ZmqStreamId> Add(const ZmqSource& source, const void* group,
                                  const MakeStreamSink& make_sink,
                                  std::optional<StreamPosition> resume);
  void Remove(ZmqStreamId stream);
  absl::Status ResumeFrom(ZmqStreamId stream, const StreamPosition& position, bool earlier);
  absl::Status Pause(ZmqStreamId stream);
  absl::Status Resume(ZmqStreamId stream);
  void OpenGate();
  absl::Status WithPosition(ZmqStreamId stream,
                            const std::function<void(std::optional<StreamPosition>)>& cut);
  absl::StatusOr<ZmqStreamStats> Stats(ZmqStreamId stream) const;
  absl::StatusOr<std::string> BoundEndpoint(ZmqStreamId stream) const;
  void Stop();

 private:
  struct Entry {
    std::shared_ptr<ZmqStream> stream;
    size_t lane = 0;
    const void* group = nullptr;
  };

  size_t LaneOf(const void* group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Entry> Find(ZmqStreamId stream) const;

  absl::Status CheckPlain(const ZmqSource& source) const;

  const ZmqIngestOptions options_;
  const bool enforces_;  // the process has an access policy
  CurveKeys curve_;
  std::atomic<bool> gate_{false};
  void* context_ = nullptr;
  bool own_context_ = false;
  std::vector<std::unique_ptr<ZmqLane>> lanes_;
  ZmqNames names_;  // pokes lanes

  mutable Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  ZmqStreamId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<ZmqStreamId, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> lane_streams_ ABSL_GUARDED_BY(mutex_);  // how many, by lane
  // Lane and streams of each group.
  std::map<const void*, std::pair<size_t, size_t>> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINES_ZMQ_STREAMS_H_
