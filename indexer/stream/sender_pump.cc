#include "indexer/stream/sender_pump.h"

#include <optional>
#include <utility>

namespace kvatlas {
namespace {

// True if a connection ended for a reason that lasts until something is mended: another version,
// name, certificate or quota. Other reasons are reported as UNAVAILABLE (`Progress`).
bool IsRefusal(const absl::Status& why) {
  switch (why.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

// The sender reads wall time for its epoch, the pump monotonic time: one clock for both, so that
// tests control all of it.
SenderOptions WithClock(SenderOptions options, const Clock* clock) {
  options.clock = clock;
  return options;
}

}  // namespace

// Locks in this order: `resident_mutex`, then `mutex`. The link is written under both, which never
// blocks, so that messages leave in the order in which they were made; it is reset and stopped
// under neither.
struct SenderPump::State {
  State(const SenderOptions& options, SenderIdentity identity, const ResidentSet* resident,
        Mutex* resident_mutex_in, std::unique_ptr<SenderLink> link_in, const Clock* clock_in)
      : resident_mutex(resident_mutex_in),
        link(std::move(link_in)),
        clock(clock_in),
        sender(WithClock(options, clock_in), std::move(identity), resident) {}

  Mutex* const resident_mutex;
  const std::unique_ptr<SenderLink> link;
  const Clock* const clock;

  mutable Mutex mutex;
  CondVar changed;
  StreamSender sender ABSL_GUARDED_BY(mutex);
  // Made but not taken by the link.
  std::optional<SenderMessage> pending ABSL_GUARDED_BY(mutex);
  bool connected ABSL_GUARDED_BY(mutex) = false;
  absl::Status ended ABSL_GUARDED_BY(mutex);  // why the last connection ended, or was not made
  std::optional<absl::Status> lost ABSL_GUARDED_BY(mutex);  // for `TakeLost`
  bool started ABSL_GUARDED_BY(mutex) = false;
  bool stopped ABSL_GUARDED_BY(mutex) = false;

  // Writes one message; false if there is none, or the link is full. `resident_mutex` is taken for
  // one message at a time, so that the reader of events is held up by one snapshot part at most. A
  // message that the link did not take stays `pending` and goes first when `OnWritable` comes.
  bool WriteOne() {
    MutexLock resident_lock(resident_mutex);
    MutexLock lock(&mutex);
    if (!connected) return false;
    if (!pending.has_value()) pending = sender.Poll(clock->Now());
    if (!pending.has_value() || !link->Write(*pending)) return false;
    pending.reset();
    return true;
  }
};

SenderPump::SenderPump(const SenderOptions& options, SenderIdentity identity,
                       const ResidentSet* resident, Mutex* resident_mutex,
                       std::unique_ptr<SenderLink> link, const Clock* clock)
    : state_(std::make_unique<State>(options, std::move(identity), resident, resident_mutex,
                                     std::move(link), clock)) {}

SenderPump::~SenderPump() { Stop(false, Duration(0)); }

void SenderPump::Start() {
  {
    MutexLock lock(&state_->mutex);
    if (state_->started || state_->stopped) return;
    state_->started = true;
  }
  state_->link->Start(this);
}

// The caller holds `resident_mutex`, so that set and stream change together. Nothing is written
// here: `Flush` needs `resident_mutex` free, and one flush serves many appends.
void SenderPump::Append(const std::vector<Event>& events, const std::optional<Load>& load) {
  MutexLock lock(&state_->mutex);
  state_->sender.Append(events, load, state_->clock->Now());
}

void SenderPump::SetDegraded(bool degraded) {
  MutexLock lock(&state_->mutex);
  state_->sender.SetDegraded(degraded);
}

void SenderPump::NoteLayout() {
  MutexLock lock(&state_->mutex);
  state_->sender.NoteLayout();
}

void SenderPump::Flush() {
  while (state_->WriteOne()) {
  }
}

void SenderPump::Tick() { Flush(); }

// `stopped` is set first, so that nothing starts any more; what the sender still has goes out by
// `Flush` and, as far as the link buffers it, within `flush_for`.
void SenderPump::Stop(bool goodbye, Duration flush_for) {
  bool started;
  {
    MutexLock lock(&state_->mutex);
    if (state_->stopped) return;
    state_->stopped = true;
    started = state_->started;
    if (goodbye) state_->sender.Stop();
  }
  if (!started) return;
  if (goodbye) Flush();
  state_->link->Stop(flush_for);
  MutexLock lock(&state_->mutex);
  state_->connected = false;
  state_->changed.SignalAll();
}

// The first message of a connection is a hello, whatever was pending on the one before.
void SenderPump::OnConnected() {
  {
    MutexLock lock(&state_->mutex);
    state_->connected = true;
    state_->pending.reset();
    state_->sender.OnConnected(state_->clock->Now());
  }
  Flush();
}

void SenderPump::OnUnreachable(const absl::Status& why) {
  MutexLock lock(&state_->mutex);
  state_->ended = why;
}

// `lost` is for `TakeLost`: a loss counts only if the stream was welcomed. A reason stays in
// `ended` until the next end, for `Progress`.
void SenderPump::OnDisconnected(const absl::Status& why) {
  MutexLock lock(&state_->mutex);
  state_->ended = why;
  if (state_->sender.welcomed()) state_->lost = why;
  state_->connected = false;
  state_->pending.reset();  // the welcome of the next connection says what is missing
  state_->sender.OnDisconnected(state_->clock->Now());
  state_->changed.SignalAll();
}

// A message that the sender's state does not allow ends the connection: the next welcome says what
// the receiver has, and both begin from there.
void SenderPump::OnMessage(ReceiverMessage message) {
  absl::Status status;
  {
    MutexLock lock(&state_->mutex);
    status = state_->sender.OnMessage(message, state_->clock->Now());
    state_->changed.SignalAll();
  }
  if (!status.ok()) {
    state_->link->Reset();
  } else {
    Flush();
  }
}

void SenderPump::OnWritable() { Flush(); }

// Waits until everything appended before this call is acknowledged and no snapshot is owed. Events
// appended meanwhile are not waited for.
bool SenderPump::WaitAtRest(Duration timeout) {
  const Time until = Clock::Real().Now() + timeout;
  Flush();
  MutexLock lock(&state_->mutex);
  const BatchNumber target = state_->sender.last_number();
  while (true) {
    if (state_->sender.welcomed() && state_->sender.acknowledged() >= target &&
        !state_->sender.snapshot_owed() && state_->link->Confirmed(target)) {
      return true;
    }
    const Duration left = until - Clock::Real().Now();
    if (left <= Duration(0) || state_->stopped || !state_->sender.status().ok()) return false;
    state_->changed.WaitFor(&state_->mutex, left);
  }
}

bool SenderPump::connected() const {
  MutexLock lock(&state_->mutex);
  return state_->connected;
}

bool SenderPump::welcomed() const {
  MutexLock lock(&state_->mutex);
  return state_->sender.welcomed();
}

bool SenderPump::AtRest() const {
  MutexLock lock(&state_->mutex);
  return state_->sender.AtRest() && state_->link->Confirmed(state_->sender.last_number());
}

BatchNumber SenderPump::last_number() const {
  MutexLock lock(&state_->mutex);
  return state_->sender.last_number();
}

BatchNumber SenderPump::acknowledged() const {
  MutexLock lock(&state_->mutex);
  return state_->sender.acknowledged();
}

SenderStats SenderPump::stats() const {
  MutexLock lock(&state_->mutex);
  return state_->sender.stats();
}

absl::Status SenderPump::status() const {
  MutexLock lock(&state_->mutex);
  return state_->sender.status();
}

absl::Status SenderPump::refusal() const {
  MutexLock lock(&state_->mutex);
  return state_->sender.refusal();
}

// OK: welcomed. Nothing: still connecting. A status: why not, the sender's own verdict first, then
// the receiver's refusal, then how the last connection ended.
std::optional<absl::Status> SenderPump::Progress() const {
  MutexLock lock(&state_->mutex);
  if (!state_->sender.status().ok()) return state_->sender.status();
  if (state_->sender.welcomed()) return absl::OkStatus();
  if (!state_->sender.refusal().ok()) return state_->sender.refusal();
  const absl::Status ended = state_->ended;
  if (ended.ok()) return std::nullopt;
  return IsRefusal(ended) || absl::IsUnavailable(ended) ? ended
                                                        : absl::UnavailableError(ended.ToString());
}

std::optional<absl::Status> SenderPump::TakeLost() {
  MutexLock lock(&state_->mutex);
  return std::exchange(state_->lost, std::nullopt);
}

absl::Status SenderPump::WhyRefused() const {
  MutexLock lock(&state_->mutex);
  return state_->sender.status().ok() ? state_->sender.refusal() : state_->sender.status();
}

}  // namespace kvatlas
