// Two queues: `State::queue` towards the session, `Replies` back. `Run` does one thing at a time: a
// reset, a connection, or deliveries both ways. The mutexes guard the queues alone and are not held
// while either side is called.

#include "indexer/transport/in_process_link.h"

#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

// Replies of one connection; the acceptor's side may keep it for longer than the connection lives.
struct InProcessLink::Replies {
  explicit Replies(size_t limit) : messages_max(limit) {}

  void Push(ReceiverMessage message) {
    MutexLock lock(&mutex);
    if (closed) return;
    if (queue.size() >= messages_max) {
      overflowed = true;
      return;
    }
    queue.push_back(std::move(message));
  }

  const size_t messages_max;
  Mutex mutex;
  std::deque<ReceiverMessage> queue ABSL_GUARDED_BY(mutex);
  bool closed ABSL_GUARDED_BY(mutex) = false;
  bool overflowed ABSL_GUARDED_BY(mutex) = false;
};

struct InProcessLink::State {
  State(StreamAcceptor* stream_acceptor, size_t limit)
      : acceptor(stream_acceptor), messages_max(limit) {}

  StreamAcceptor* const acceptor;
  const size_t messages_max;
  // Of the thread that runs.
  SenderLinkObserver* observer = nullptr;
  std::unique_ptr<ReceiverSession> session;
  std::shared_ptr<Replies> replies;

  Mutex mutex;
  std::deque<SenderMessage> queue ABSL_GUARDED_BY(mutex);
  bool connected ABSL_GUARDED_BY(mutex) = false;
  bool reset ABSL_GUARDED_BY(mutex) = false;
  bool full ABSL_GUARDED_BY(mutex) = false;  // a `Write` was refused
};

InProcessLink::InProcessLink(StreamAcceptor* acceptor, size_t messages_max)
    : state_(std::make_unique<State>(acceptor, messages_max)) {}

InProcessLink::~InProcessLink() { Stop(std::chrono::nanoseconds::zero()); }

void InProcessLink::Start(SenderLinkObserver* observer) { state_->observer = observer; }

bool InProcessLink::Write(const SenderMessage& message) {
  MutexLock lock(&state_->mutex);
  if (!state_->connected || state_->reset) return false;
  if (state_->queue.size() >= state_->messages_max) {
    state_->full = true;
    return false;
  }
  state_->queue.push_back(message);
  return true;
}

void InProcessLink::Reset() {
  MutexLock lock(&state_->mutex);
  state_->reset = true;
}

void InProcessLink::Stop(std::chrono::nanoseconds flush_for) {
  if (state_->session != nullptr && flush_for > std::chrono::nanoseconds::zero()) {
    std::deque<SenderMessage> queue;
    {
      MutexLock lock(&state_->mutex);
      queue.swap(state_->queue);
    }
    for (SenderMessage& message : queue) {
      if (!state_->session->OnMessage(std::move(message)).ok()) break;
    }
  }
  state_->observer = nullptr;
  Disconnect(absl::CancelledError("stopped"));
}

bool InProcessLink::Run() {
  if (state_->observer == nullptr) return false;
  bool reset;
  {
    MutexLock lock(&state_->mutex);
    reset = std::exchange(state_->reset, false) && state_->connected;
  }
  if (reset) {
    Disconnect(absl::UnavailableError("reset by the sender"));
    return true;
  }
  if (state_->session == nullptr) {
    state_->replies = std::make_shared<Replies>(state_->messages_max);
    state_->session =
        state_->acceptor->Accept([replies = state_->replies](ReceiverMessage message) {
          replies->Push(std::move(message));
        });
    {
      MutexLock lock(&state_->mutex);
      state_->connected = true;
    }
    state_->observer->OnConnected();
    return true;
  }
  const bool delivered = Deliver();
  return DeliverReplies() || delivered;
}

// Delivers until the queue is empty or the session ends the connection. `OnWritable` follows at the
// end if a `Write` was refused meanwhile.
bool InProcessLink::Deliver() {
  bool any = false;
  while (state_->session != nullptr) {
    std::optional<SenderMessage> message;
    {
      MutexLock lock(&state_->mutex);
      if (state_->queue.empty()) break;
      message = std::move(state_->queue.front());
      state_->queue.pop_front();
    }
    any = true;
    const absl::Status status = state_->session->OnMessage(*std::move(message));
    if (status.ok()) continue;
    DeliverReplies();  // A refusal says why.
    Disconnect(status);
  }
  bool writable;
  {
    MutexLock lock(&state_->mutex);
    writable = state_->connected && std::exchange(state_->full, false);
  }
  if (writable && state_->observer != nullptr) state_->observer->OnWritable();
  return any || writable;
}

// The queue is taken as a whole: what the observer's reactions cause comes with the next `Run`.
bool InProcessLink::DeliverReplies() {
  if (state_->replies == nullptr) return false;
  const std::shared_ptr<Replies> replies = state_->replies;
  std::deque<ReceiverMessage> queue;
  bool overflowed;
  {
    MutexLock lock(&replies->mutex);
    queue.swap(replies->queue);
    overflowed = replies->overflowed;
  }
  for (ReceiverMessage& message : queue) {
    if (state_->observer != nullptr) state_->observer->OnMessage(std::move(message));
  }
  if (overflowed) Disconnect(absl::ResourceExhaustedError("replies are not taken"));
  return !queue.empty() || overflowed;
}

// `closed` first, so that the receiver's replies are dropped from here on; then the session ends,
// and the observer is told last.
void InProcessLink::Disconnect(const absl::Status& why) {
  if (state_->session == nullptr) return;
  {
    MutexLock lock(&state_->mutex);
    state_->connected = false;
    state_->reset = false;
    state_->full = false;
    state_->queue.clear();
  }
  {
    MutexLock lock(&state_->replies->mutex);
    state_->replies->closed = true;
  }
  state_->session.reset();
  state_->replies.reset();
  if (state_->observer != nullptr) state_->observer->OnDisconnected(why);
}

}  // namespace kvatlas
