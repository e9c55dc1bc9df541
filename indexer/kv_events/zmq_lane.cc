// The lane's thread. A round of `Run`: commands of other threads, a wait for sockets that are
// ready, a turn of each queued stream, a tick. Streams, queue and decoder are this thread's alone;
// other threads post commands (`Post`), so that they need no lock.

#include "indexer/kv_events/zmq_lane.h"

#include <chrono>
#include <utility>

namespace kvatlas {
namespace {

// How often timeouts are checked. In real time: it only paces looks at the streams' own clock.
constexpr std::chrono::milliseconds kTickEvery(50);
// Streams whose bytes in libzmq are looked at in one tick: a look takes some system calls.
constexpr size_t kLooksPerTick = 256;

}  // namespace

ZmqLane::ZmqLane(size_t held_bytes_max, size_t message_bytes_max) : state_(message_bytes_max) {
  state_.held_bytes_max = held_bytes_max;
  thread_ = std::thread([this] { Run(); });
}

ZmqLane::~ZmqLane() { Stop(); }

// Everything a stream does from here on, it does in this thread.
void ZmqLane::Add(std::shared_ptr<ZmqStream> stream) {
  Post([this, stream = std::move(stream)] {
    stream->Attach(&state_);
    stream->number = streams_added_++;
    streams_.emplace(stream.get(), stream);
    Queue(stream.get());
  });
}

// Waits for the command, and with it for the turn under way: afterwards nothing of the stream is
// applied. `Abandon` first, so that a long turn ends early. Called from the lane's own thread it
// would wait for itself.
void ZmqLane::Remove(const std::shared_ptr<ZmqStream>& stream) {
  stream->Abandon();
  bool removed = false;
  const bool posted = Post([this, stream, &removed] {
    stream->Detach(&state_);
    std::erase(queue_, stream.get());
    streams_.erase(stream.get());
    MutexLock lock(&mutex_);
    removed = true;
    done_.SignalAll();
  });
  if (!posted) return;
  MutexLock lock(&mutex_);
  while (!removed) done_.Wait(&mutex_);
}

// Also for the gate: with null all streams of the lane are queued.
void ZmqLane::Poke(std::shared_ptr<ZmqStream> poked) {
  Post([this, poked = std::move(poked)] {
    for (const auto& [stream, owner] : streams_) {
      if (poked != nullptr && owner != poked) continue;
      owner->MarkReady(ZmqPoller::kAll);
      Queue(owner.get());
    }
  });
}

// Commands that were posted before still run: `Remove` may wait for one.
void ZmqLane::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  state_.poller.Wake();
  if (thread_.joinable()) thread_.join();
}

// `Wake` after the command is there, or the thread could miss it.
bool ZmqLane::Post(std::function<void()> command) {
  {
    MutexLock lock(&mutex_);
    if (stopping_) return false;
    commands_.push_back(std::move(command));
  }
  state_.poller.Wake();
  return true;
}

void ZmqLane::Run() {
  ticked_at_ = std::chrono::steady_clock::now();
  bool waiting = false;
  for (;;) {
    RunCommands();
    {
      MutexLock lock(&mutex_);
      if (stopping_ && commands_.empty()) break;
    }
    // Nothing queued: sleep until a socket is ready or the next tick. Streams that another thread
    // has (`waiting`): look again after a millisecond. Else only collect what is ready, and go on.
    const int timeout_ms = queue_.empty() ? static_cast<int>(kTickEvery.count()) : waiting ? 1 : 0;
    state_.poller.Wait(timeout_ms, [this](ZmqStream* stream, ZmqPoller::Event event) {
      stream->MarkReady(event);
      Queue(stream);
    });
    waiting = ServeQueued();
    Tick();
  }
  for (const auto& [stream, owner] : streams_) owner->Detach(&state_);
  streams_.clear();
}

void ZmqLane::RunCommands() {
  std::vector<std::function<void()>> commands;
  {
    MutexLock lock(&mutex_);
    commands.swap(commands_);
  }
  for (const std::function<void()>& command : commands) command();
}

// A stream is in the queue once at most.
void ZmqLane::Queue(ZmqStream* stream) {
  if (std::exchange(stream->queued, true)) return;
  queue_.push_back(stream);
}

// One turn for each queued stream, in order; one with more to read goes to the end of the next
// round, so that no stream keeps the others waiting for longer than a turn. True: every stream was
// busy with another thread, or none was queued.
bool ZmqLane::ServeQueued() {
  round_.swap(queue_);
  bool all_busy = true;
  for (ZmqStream* stream : round_) {
    stream->queued = false;
    const ZmqStream::Turn turn = stream->Serve(&state_);
    if (turn != ZmqStream::Turn::kIdle) Queue(stream);
    all_busy = all_busy && turn == ZmqStream::Turn::kBusy;
  }
  round_.clear();
  return all_busy;
}

// With many streams each is looked at in one of `look_every` ticks: the system calls of a tick are
// bounded.
void ZmqLane::Tick() {
  const auto now = std::chrono::steady_clock::now();
  if (now - ticked_at_ < kTickEvery) return;
  ticked_at_ = now;
  ++state_.tick;
  state_.look_every = 1 + streams_.size() / kLooksPerTick;
  for (const auto& [stream, owner] : streams_) {
    owner->Tick(&state_);
    if (owner->ready()) Queue(owner.get());
  }
}

}  // namespace kvatlas
