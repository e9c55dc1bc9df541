// Tells which of many sockets may have something to read. One epoll over their edge-triggered
// descriptors: what it costs depends on those that are ready, not on how many there are.
//
// *Threads*: `Wake` any; the rest by the one that waits.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_POLLER_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_POLLER_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace kvatlas {

class ZmqStream;

class ZmqPoller {
 public:
  // Which of a stream's sockets.
  enum Event : uint8_t { kLive = 1, kMonitor = 2, kReplay = 4, kAll = 7 };

  ZmqPoller();
  ~ZmqPoller();
  ZmqPoller(const ZmqPoller&) = delete;
  ZmqPoller& operator=(const ZmqPoller&) = delete;

  // OK, or why no poller could be made: RESOURCE_EXHAUSTED.
  const absl::Status& status() const { return status_; }

  absl::Status Watch(int fd, ZmqStream* stream, Event event);
  void Unwatch(int fd);

  // Waits until something is ready, `Wake`, or the timeout, and tells all that is.
  void Wait(int timeout_ms, const std::function<void(ZmqStream*, Event)>& ready);
  void Wake();

 private:
  absl::Status status_;
  int epoll_ = -1;
  int wake_ = -1;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_POLLER_H_
