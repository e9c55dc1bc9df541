// One epoll set. Its user data is the stream's address with the event in the lowest bits, 0 for the
// eventfd by which other threads wake the lane.

#include "indexer/kv_events/zmq_poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace kvatlas {
namespace {

constexpr int kEventsPerWait = 256;
// A stream's address leaves room for the event in its lowest bits.
constexpr uint64_t kEventBits = ZmqPoller::kAll;

}  // namespace

ZmqPoller::ZmqPoller()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = 0}};
  if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) {
    status_ = absl::ResourceExhaustedError(std::string("epoll: ") + std::strerror(errno));
  }
}

ZmqPoller::~ZmqPoller() {
  if (wake_ >= 0) close(wake_);
  if (epoll_ >= 0) close(epoll_);
}

// Edge-triggered, as libzmq's descriptors require: they say that a socket's state changed, not that
// it can be read. Receive until nothing is there, or an edge is lost.
absl::Status ZmqPoller::Watch(int fd, ZmqStream* stream, Event event) {
  epoll_event watched = {.events = static_cast<uint32_t>(EPOLLIN | EPOLLET),
                         .data = {.u64 = reinterpret_cast<uint64_t>(stream) | event}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &watched) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(std::string("epoll: ") + std::strerror(errno));
}

void ZmqPoller::Unwatch(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

// Waits once, then takes the rest without waiting while events fill the array.
void ZmqPoller::Wait(int timeout_ms, const std::function<void(ZmqStream*, Event)>& ready) {
  epoll_event events[kEventsPerWait];
  int count = kEventsPerWait;
  for (; count == kEventsPerWait; timeout_ms = 0) {
    count = epoll_wait(epoll_, events, kEventsPerWait, timeout_ms);
    for (int i = 0; i < count; ++i) {
      const uint64_t data = events[i].data.u64;
      if (data == 0) {
        uint64_t wakes;
        while (read(wake_, &wakes, sizeof(wakes)) > 0) {
        }
        continue;
      }
      ready(reinterpret_cast<ZmqStream*>(data & ~kEventBits),
            static_cast<Event>(data & kEventBits));
    }
  }
}

void ZmqPoller::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full: then it wakes too.
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

}  // namespace kvatlas
