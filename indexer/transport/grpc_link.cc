// `Core` is the link, `Call` one attempt at a connection. A call's life: `StartCall`, headers
// (`Connected`), messages both ways, `Close`, `OnDone`, `Disconnected`, backoff, `StartCall`.
//
// Lock order: `Core::mutex`, then a call's `mutex_`. Neither is held while the observer is called
// or an operation of gRPC is started.

#include "indexer/transport/grpc_link.h"

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/net/grpc_status.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"

namespace kvatlas {

// The state that outlives a call. At most one call exists at a time.
//
// Notices for the observer go through a queue: a thread that adds one while no other delivers
// becomes the deliverer, and goes on until the queue is empty. So the observer is called one at a
// time, in order, with no lock held. The next call is started only when `Disconnected` has been
// delivered: a message that the observer writes always belongs to the connection it knows of.
struct GrpcLink::Core : std::enable_shared_from_this<GrpcLink::Core> {
  struct Connected {};
  struct Received {
    Call* call;  // alive: pinned until the message is delivered
    ReceiverMessage message;
  };
  struct Writable {};
  struct Disconnected {
    absl::Status why;
  };
  using Notice = std::variant<Connected, Received, Writable, Disconnected>;

  explicit Core(const GrpcLinkOptions& options) : options(options) {}

  void StartCall() ABSL_LOCKS_EXCLUDED(mutex);
  // The call of the connection that the observer knows of, pinned, or null.
  Call* PinConnected() ABSL_LOCKS_EXCLUDED(mutex);
  // The call is over: it cannot be found any more. `Notify(Disconnected)` follows.
  void Forget() ABSL_LOCKS_EXCLUDED(mutex);
  // Cancels the call, connected or not.
  void CancelCall() ABSL_LOCKS_EXCLUDED(mutex);
  void Notify(Notice notice) ABSL_LOCKS_EXCLUDED(mutex);
  void Deliver(Notice notice, SenderLinkObserver* to) ABSL_LOCKS_EXCLUDED(mutex);
  void OnBackoffOver() ABSL_LOCKS_EXCLUDED(mutex);
  void ScheduleCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void WaitIdle(std::optional<Time> until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Nothing is under way that could call the observer or start a call. `ending` bridges the time in
  // which `call` is null and `Disconnected` is not queued yet.
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return call == nullptr && !ending && !backing_off && !delivering && notices.empty();
  }

  const GrpcLinkOptions options;
  std::unique_ptr<v1::Holdings::Stub> stub;  // with the channel; immutable until `Stop`'s end
  std::atomic<uint64_t> messages_written{0};
  std::atomic<uint64_t> bytes_written{0};

  Mutex mutex;
  CondVar idle;
  SenderLinkObserver* observer ABSL_GUARDED_BY(mutex) = nullptr;
  bool started ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  std::deque<Notice> notices ABSL_GUARDED_BY(mutex);
  bool delivering ABSL_GUARDED_BY(mutex) = false;
  bool connected ABSL_GUARDED_BY(mutex) = false;  // as the observer knows it
  Call* call ABSL_GUARDED_BY(mutex) = nullptr;    // from its start until it is done
  bool ending ABSL_GUARDED_BY(mutex) = false;     // the call is done, `Disconnected` not yet queued
  bool backing_off ABSL_GUARDED_BY(mutex) = false;
  std::unique_ptr<grpc::Alarm> alarm ABSL_GUARDED_BY(mutex);
  Duration backoff ABSL_GUARDED_BY(mutex){0};
};

// One gRPC call. It deletes itself when gRPC is done with it.
//
// Operations are started from outside of gRPC's callbacks, so a hold keeps the call from being
// done. `pins_` counts what may still start one: a write under way, a message being delivered, a
// half-close. Once the call is closing, no new pin is added, and the last pin removed gives up the
// hold; gRPC then calls `OnDone`.
class GrpcLink::Call : public grpc::ClientBidiReactor<v1::SenderMessage, v1::ReceiverMessage> {
 public:
  // The call does not wait for the channel: gRPC tells a waiting call nothing about why the peer is
  // missing, a failing one gets the reason (`OnUnreachable`).
  explicit Call(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  // REQUIRES: `core->call` is this.
  void Start() {
    core_->stub->async()->Stream(&context_, this);
    AddHold();
    grpc::ClientBidiReactor<v1::SenderMessage, v1::ReceiverMessage>::StartCall();
  }

  // Queues the message, or returns false for want of room; then `Writable` follows once half of the
  // buffer is free. The conversion is done before the lock. One write is under way at a time.
  // REQUIRES: pinned.
  bool Write(const SenderMessage& message) {
    v1::SenderMessage wire;
    ToProto(message, &wire);
    const size_t bytes = wire.ByteSizeLong();
    grpc::WriteOptions options;
    {
      MutexLock lock(&mutex_);
      if (closing_ || half_closed_) return false;
      if (IsFull(bytes)) {
        wants_room_ = true;
        return false;
      }
      queued_bytes_ += bytes;
      queue_.push_back({std::move(wire), bytes});
      if (writing_) return true;
      options = BeginWrite();
    }
    StartWrite(&outgoing_.message, options);
    return true;
  }

  // False: the call is ending.
  bool Pin() {
    MutexLock lock(&mutex_);
    if (closing_) return false;
    ++pins_;
    return true;
  }

  void Unpin() {
    bool give_up = false;
    {
      MutexLock lock(&mutex_);
      --pins_;
      give_up = closing_ && pins_ == 0;
    }
    if (give_up) RemoveHold();
  }

  // No more writes: the server sees the end once all is written.
  void HalfClose() {
    {
      MutexLock lock(&mutex_);
      if (half_closed_ || closing_) return;
      half_closed_ = true;
      if (writing_) return;  // the last write goes on with it
      ++pins_;
    }
    StartWritesDone();
  }

  void Cancel() { context_.TryCancel(); }

  // Reads the next message, now that the observer is done with this one: a slow observer thereby
  // slows the receiver down. The pin is from `OnReadDone`.
  void MessageDelivered() {
    StartRead(&incoming_);
    Unpin();
  }

 private:
  struct Queued {
    v1::SenderMessage message;
    size_t bytes;
  };

  // The headers are the receiver's sign that it has the stream.
  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return Close();
    core_->Notify(Core::Connected{});
    StartRead(&incoming_);  // after it, so that no message comes before
  }

  // A message that is out of bounds ends the connection with its own status (`refused_`), which
  // outranks the status of the cancelled call.
  void OnReadDone(bool ok) override {
    if (!ok) return Close();
    ReceiverMessage message;
    if (absl::Status status = FromProto(incoming_, &message); !status.ok()) {
      {
        MutexLock lock(&mutex_);
        refused_ = status;
      }
      Cancel();
      return Close();
    }
    bool closing;
    {
      MutexLock lock(&mutex_);
      closing = closing_;
      if (!closing) ++pins_;
    }
    // gRPC tells the call's status once all that came is read: a call that a failed write has
    // closed reads on, to the end.
    if (closing) return StartRead(&incoming_);
    core_->Notify(Core::Received{this, std::move(message)});
  }

  // 1. The next queued message is written under the same pin; else a half-close that waited for the
  //    queue follows; else the pin goes.
  // 2. `Writable` comes at half of the buffer, not at the first free place: one wake-up serves
  //    many messages.
  // 3. A failed write closes the call; reading goes on, so that its status arrives.
  void OnWriteDone(bool ok) override {
    bool notify = false;
    bool half_close = false;
    bool more = false;
    grpc::WriteOptions options;
    {
      MutexLock lock(&mutex_);
      more = ok && !closing_ && !queue_.empty();
      if (more) {
        options = TakeNext();
      } else {
        writing_ = false;
        half_close = ok && !closing_ && half_closed_;
      }
      if (wants_room_ && !closing_ && queue_.size() <= core_->options.buffer_messages_max / 2 &&
          queued_bytes_ <= core_->options.buffer_bytes_max / 2) {
        wants_room_ = false;
        notify = true;
      }
    }
    // The pin of the write passes on to what follows it.
    if (more) {
      StartWrite(&outgoing_.message, options);
    } else if (half_close) {
      StartWritesDone();
    }
    if (notify) core_->Notify(Core::Writable{});
    if (!ok) Close();
    if (!more && !half_close) Unpin();
  }

  void OnWritesDoneDone(bool) override { Unpin(); }

  // The two texts below name mistakes that are made often: an HTTP port, and a process that is no
  // leaf.
  void OnDone(const grpc::Status& status) override {
    absl::Status why = FromGrpcStatus(status);
    {
      MutexLock lock(&mutex_);
      if (!refused_.ok()) why = refused_;
    }
    if (why.ok()) why = absl::UnavailableError("the receiver ended the stream");
    if (why.message().find("http1.x") != absl::string_view::npos)
      why = absl::UnavailableError("it speaks HTTP/1 and not gRPC: is this its --http port?");
    if (absl::IsUnimplemented(why))
      why = absl::UnimplementedError(
          "it takes no streams: is this the gRPC port of a leaf or a hierarchy?");
    const std::shared_ptr<Core> core = core_;
    core->Forget();
    delete this;  // the context holds the channel: it goes before `Stop` is woken
    core->Notify(Core::Disconnected{std::move(why)});
  }

  // One message always fits into an empty queue, however large it is.
  bool IsFull(size_t bytes) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() && (queue_.size() >= core_->options.buffer_messages_max ||
                               queued_bytes_ + bytes > core_->options.buffer_bytes_max);
  }

  // Both move the next message to `outgoing_`, which the caller then writes without the lock: from
  // here to `OnWriteDone` it is gRPC's. The hint lets gRPC collect messages while more are queued.
  grpc::WriteOptions BeginWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    ++pins_;
    return TakeNext();
  }

  grpc::WriteOptions TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= outgoing_.bytes;
    core_->messages_written.fetch_add(1, std::memory_order_relaxed);
    core_->bytes_written.fetch_add(outgoing_.bytes, std::memory_order_relaxed);
    grpc::WriteOptions options;
    if (!queue_.empty()) options.set_buffer_hint();
    return options;
  }

  // The connection is over. A pin is taken and given up at once: if there is no other, this gives
  // up the hold.
  void Close() {
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      closing_ = true;
      ++pins_;
    }
    Unpin();
  }

  std::shared_ptr<Core> core_;
  grpc::ClientContext context_;
  v1::ReceiverMessage incoming_;  // of the one read under way
  Queued outgoing_;               // of the one write under way

  Mutex mutex_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool wants_room_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  int pins_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
};

// `call` is set before gRPC knows of it, so that `Stop` and `Reset` find it in any case.
void GrpcLink::Core::StartCall() {
  Call* started = nullptr;
  {
    MutexLock lock(&mutex);
    if (stopping) return idle.SignalAll();
    call = started = new Call(shared_from_this());
  }
  started->Start();
}

GrpcLink::Call* GrpcLink::Core::PinConnected() {
  MutexLock lock(&mutex);
  return connected && call != nullptr && call->Pin() ? call : nullptr;
}

void GrpcLink::Core::Forget() {
  MutexLock lock(&mutex);
  call = nullptr;
  ending = true;
}

void GrpcLink::Core::CancelCall() {
  Call* pinned = nullptr;
  {
    MutexLock lock(&mutex);
    if (call == nullptr || !call->Pin()) return;  // none, or ending by itself
    pinned = call;
  }
  pinned->Cancel();
  pinned->Unpin();
}

// 1. The notice is queued. If another thread delivers, it will take it.
// 2. `connected` changes as its notice is delivered, not when it is queued: `PinConnected` refuses
//    writes of an observer that has not heard of its connection yet.
// 3. A call that ends before it was connected is `OnUnreachable`, one that ends later
//    `OnDisconnected`. After `Stop` began no call follows.
// 4. After the end of a call the next one is scheduled (`ScheduleCall`).
void GrpcLink::Core::Notify(Notice notice) {
  mutex.Lock();
  if (std::holds_alternative<Disconnected>(notice)) ending = false;
  notices.push_back(std::move(notice));
  if (delivering) return mutex.Unlock();
  delivering = true;
  while (!notices.empty()) {
    Notice next = std::move(notices.front());
    notices.pop_front();
    if (std::holds_alternative<Connected>(next)) connected = true;
    SenderLinkObserver* const to = connected ? observer : nullptr;
    const bool ended = std::holds_alternative<Disconnected>(next);
    SenderLinkObserver* const in_vain = ended && !connected && !stopping ? observer : nullptr;
    if (ended) connected = false;
    mutex.Unlock();
    if (in_vain != nullptr) {
      in_vain->OnUnreachable(std::get<Disconnected>(next).why);
    } else {
      Deliver(std::move(next), to);
    }
    mutex.Lock();
    if (ended && !stopping) ScheduleCall();
  }
  delivering = false;
  if (Idle()) idle.SignalAll();
  mutex.Unlock();
}

// Any message but a refusal shows that the receiver takes the stream: the backoff starts over. The
// next read is started after the observer has returned, also without an observer.
void GrpcLink::Core::Deliver(Notice notice, SenderLinkObserver* to) {
  if (Received* received = std::get_if<Received>(&notice)) {
    if (!std::holds_alternative<Refuse>(received->message)) {
      MutexLock lock(&mutex);
      backoff = Duration(0);
    }
    if (to != nullptr) to->OnMessage(std::move(received->message));
    received->call->MessageDelivered();
  } else if (to == nullptr) {
    return;
  } else if (const Disconnected* disconnected = std::get_if<Disconnected>(&notice)) {
    to->OnDisconnected(disconnected->why);
  } else if (std::holds_alternative<Connected>(notice)) {
    to->OnConnected();
  } else {
    to->OnWritable();
  }
}

// Doubled from `backoff_initial` up to `backoff_max`. The alarm keeps the core alive until it has
// run.
void GrpcLink::Core::ScheduleCall() {
  backoff = std::min(std::max(backoff * 2, options.backoff_initial), options.backoff_max);
  backing_off = true;
  alarm = std::make_unique<grpc::Alarm>();
  alarm->Set(DeadlineIn(backoff), [core = shared_from_this()](bool) { core->OnBackoffOver(); });
}

// Runs when the alarm is cancelled, too: `Stop` waits for it by `backing_off`, and `StartCall` does
// nothing then.
void GrpcLink::Core::OnBackoffOver() {
  {
    MutexLock lock(&mutex);
    backing_off = false;
  }
  StartCall();
}

void GrpcLink::Core::WaitIdle(std::optional<Time> until) {
  while (!Idle()) {
    if (!until) {
      idle.Wait(&mutex);
      continue;
    }
    const Duration left = *until - Clock::Real().Now();
    if (left <= Duration(0)) return;
    idle.WaitFor(&mutex, left);
  }
}

GrpcLink::GrpcLink(const std::string& target, const GrpcLinkOptions& options)
    : core_(std::make_shared<Core>(options)) {
  core_->stub = v1::Holdings::NewStub(MakeChannel(target, {.security = options.security}));
}

GrpcLink::~GrpcLink() { Stop(Duration(0)); }

void GrpcLink::Start(SenderLinkObserver* observer) {
  {
    MutexLock lock(&core_->mutex);
    if (core_->started || core_->stopped) return;
    core_->started = true;
    core_->observer = observer;
  }
  core_->StartCall();
}

// The pin keeps the call alive without a lock while the message is converted.
bool GrpcLink::Write(const SenderMessage& message) {
  Call* const call = core_->PinConnected();
  if (call == nullptr) return false;
  const bool taken = call->Write(message);
  call->Unpin();
  return taken;
}

void GrpcLink::Reset() { core_->CancelCall(); }

// 1. No call is started any more; an alarm that waits is cancelled.
// 2. With `flush_for` the call is half-closed: the server ends it once all is written, or the time
//    is over.
// 3. A call that is left is cancelled, and `WaitIdle` waits for its end: no observer is called
//    after it.
// 4. The channel ends here, on the owner's thread: the rest of `Core` may go on a thread of gRPC's,
//    and gRPC 1.51 joins its callback threads where its last channel ends; one of them cannot join
//    itself.
void GrpcLink::Stop(std::chrono::nanoseconds flush_for) {
  const Time until = Clock::Real().Now() + flush_for;
  {
    MutexLock lock(&core_->mutex);
    if (std::exchange(core_->stopped, true) || !core_->started) return;
    core_->stopping = true;
    if (core_->alarm != nullptr) core_->alarm->Cancel();
  }
  if (Call* call = flush_for > Duration(0) ? core_->PinConnected() : nullptr; call != nullptr) {
    call->HalfClose();
    call->Unpin();
    MutexLock lock(&core_->mutex);
    core_->WaitIdle(until);
  }
  core_->CancelCall();
  std::unique_ptr<v1::Holdings::Stub> stub;
  MutexLock lock(&core_->mutex);
  core_->WaitIdle(std::nullopt);
  core_->observer = nullptr;
  core_->alarm = nullptr;
  stub = std::move(core_->stub);
}

uint64_t GrpcLink::messages_written() const {
  return core_->messages_written.load(std::memory_order_relaxed);
}

uint64_t GrpcLink::bytes_written() const {
  return core_->bytes_written.load(std::memory_order_relaxed);
}

}  // namespace kvatlas
