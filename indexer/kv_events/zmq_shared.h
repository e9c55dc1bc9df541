// Sorts the messages of a socket that many engines dial, by topic. vLLM's publisher connects where
// its endpoint names a host, and llm-d has all pods dial one, with topics kv@POD@MODEL.
//
//   engines ══▶ SUB, bound ─▶ ZmqStream (of the socket) ─▶ ZmqShared ─▶ ZmqStream (of a topic) ─▶ StreamTracker ─▶ StreamWorker
//                                                              ╰─▶ on_topic: no stream has this one
//
// *Truth*: a topic's numbers are its engine's own, from 0 at each start, and its stream sees them
// as that of a socket of its own does: what is missing is a gap. Another connection with the same
// topic reaches the stream as a reconnection before its first message, and the end of the
// connection that a topic came by last as a disconnection. A connection without messages has no
// topic yet. Nothing can be asked for again there: a publisher that dials out is not asked for
// replays.
// *Threads*: `Add` and `Remove` any; the rest in the lane's. *Bounds*: `kTopicsMax`; of topics
// without a stream `kWaitingBytesMax` in all: the oldest of a topic goes, which is a gap.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_SHARED_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_SHARED_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/zmq_socket.h"
#include "indexer/kv_events/zmq_source.h"

namespace kvatlas {

struct ZmqLaneState;
class ZmqStream;

class ZmqShared {
 public:
  static constexpr size_t kTopicsMax = 65536;
  static constexpr size_t kTopicBytesMax = 4096;
  static constexpr size_t kWaitingBytesMax = 16 << 20;
  // A topic that still has no stream is reported again with a message after so long.
  static constexpr Duration kTellAgainAfter = std::chrono::seconds(5);

  explicit ZmqShared(ZmqSharedSocket socket) : socket_(std::move(socket)) {}

  // ---- Any thread ----
  void Add(const std::string& topic, std::shared_ptr<ZmqStream> stream);
  // Nothing more is fed to its stream.
  void Remove(const std::string& topic);

  // ---- The lane's thread ----
  // Its last message came over this connection too. Else the socket's monitor has to be read before
  // `Take`: the end of a connection must be known before its descriptor is in use again.
  bool IsKnown(std::string_view topic, const ZmqFrames& frames) const;
  // `held`: the socket's connections.
  void Take(ZmqLaneState* lane, const std::string& topic, uint64_t number, const ZmqHeld& held,
            Time now);
  // These connections have ended.
  void Departed(ZmqLaneState* lane, std::span<const int> descriptors, Time now);
  // Feeds messages that waited to streams that are there now.
  void FeedWaiting(ZmqLaneState* lane, Time now);

 private:
  struct Topic {
    std::shared_ptr<ZmqStream> stream;  // null: none has it
    ZmqOrigin origin;                   // of its last message
    int descriptor = -1;                // likewise; -1: that connection has ended
    bool arrived = false;               // of which its stream was not told
    std::deque<std::pair<uint64_t, std::string>> waiting;
    Time told{0};
  };

  void Feed(ZmqLaneState* lane, Topic* topic, uint64_t number, std::string_view payload, Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FeedWaiting(ZmqLaneState* lane, Topic* topic, Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For a stream to come.
  void Keep(const std::string& name, Topic* topic, uint64_t number, std::string_view payload,
            Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ZmqSharedSocket socket_;
  mutable Mutex mutex_;  // before a stream's
  std::map<std::string, Topic, std::less<>> topics_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_SHARED_H_
