// Carries out what `StreamTracker` decided about one stream: each payload is decoded and applied by
// the worker of its engine; losses and restarts are passed on to it.
//
// *Truth*: payloads that come while the worker's block size is unknown are kept, and applied as
// soon as it is known, so that the order of events does not matter for it. A payload that is no
// batch may have removed something, and counts as a loss (`EngineWorker::Unreadable`).
// *Threads*: the lane's. *Bounds*: `kEarlyBytesMax` kept; of more the oldest goes, and its blocks
// are missing.

#ifndef KVATLAS_INDEXER_KV_EVENTS_STREAM_WORKER_H_
#define KVATLAS_INDEXER_KV_EVENTS_STREAM_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "indexer/base/clock.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/stream_tracker.h"

namespace kvatlas {

// Shared by the streams of a lane: its thread's memory for decoding.
struct LaneDecoder {
  explicit LaneDecoder(size_t payload_bytes_max);
  EngineDecoder decoder;
  EngineBatch batch;
};

class StreamWorker {
 public:
  // Called instead of a worker, in tests of streams: kApply with its payload, kLost, kRepaired,
  // kRestarted.
  using Tap = std::function<void(StreamTracker::Action::Kind kind, std::string_view payload)>;

  // `name` and `rank` as registered.
  StreamWorker(std::string name, uint32_t rank, std::shared_ptr<EngineWorker> worker);
  explicit StreamWorker(Tap tap);

  // One of the four kinds that `Tap` has.
  void Perform(StreamTracker::Action::Kind kind, std::string_view payload, LaneDecoder* lane,
               Time now);

  uint64_t undecodable() const { return undecodable_; }  // payloads that are no batch
  double lag_ms() const {
    return lag_ms_;
  }  // engine's clock to applied, of the last batch that named a time

 private:
  static constexpr size_t kEarlyBytesMax = 1 << 20;

  void Apply(std::string_view payload, LaneDecoder* lane, Time now);
  // Into the lane's batch.
  bool Decode(std::string_view payload, LaneDecoder* lane, Time now);
  void Keep(std::string_view payload);
  void ForgetEarly();

  const std::string name_;
  const uint32_t rank_ = 0;
  const std::shared_ptr<EngineWorker> worker_;
  const Tap tap_;
  uint64_t undecodable_ = 0;
  double lag_ms_ = 0;
  bool knows_size_ = false;
  std::deque<std::string> early_;
  size_t early_bytes_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_STREAM_WORKER_H_
