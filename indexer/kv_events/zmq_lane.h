// A thread that reads, decodes and applies the messages of many streams, in turns.
//
// A stream stays in the lane it was added to, so that its order needs no other lock. A lane that is
// busy does not read: messages wait in libzmq's queue, then in the engine's, whose drops show as
// gaps.
//
// *Threads*: any; not from within a sink. *Cost*: a turn of a ready stream is a system call or two,
// spread over the messages that wait; idle streams cost nothing.
// *Bounds*: messages held back for replays, `held_bytes_max` over all streams: beyond, streams that
// hold some are not read.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_LANE_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_LANE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/zmq_stream.h"

namespace kvatlas {

class ZmqLane {
 public:
  ZmqLane(size_t held_bytes_max, size_t message_bytes_max);
  ~ZmqLane();  // Stop()

  ZmqLane(const ZmqLane&) = delete;
  ZmqLane& operator=(const ZmqLane&) = delete;

  // RESOURCE_EXHAUSTED: no poller could be made, and nothing will be read.
  const absl::Status& status() const { return state_.poller.status(); }

  void Add(std::shared_ptr<ZmqStream> stream);
  // Returns when nothing of it is applied any more and its sockets are closed.
  void Remove(const std::shared_ptr<ZmqStream>& stream);
  // Something about it changed: look at it. Null: at all of them.
  void Poke(std::shared_ptr<ZmqStream> stream);
  // Closes every stream's sockets.
  void Stop();

 private:
  void Run();
  void RunCommands();
  void Queue(ZmqStream* stream);
  // True: nothing is left to do but to wait for callers that are at a stream.
  bool ServeQueued();
  void Tick();
  // False: stopped, nothing will run.
  bool Post(std::function<void()> command);

  // This thread's.
  ZmqLaneState state_;
  std::unordered_map<const ZmqStream*, std::shared_ptr<ZmqStream>> streams_;
  std::vector<ZmqStream*> queue_;  // streams that are to be served in the next round
  std::vector<ZmqStream*> round_;
  size_t streams_added_ = 0;
  std::chrono::steady_clock::time_point ticked_at_;

  Mutex mutex_;
  CondVar done_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> commands_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_LANE_H_
