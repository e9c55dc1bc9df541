// One engine's stream: its sockets and what is done with what they bring. The order of messages is
// decided by `StreamTracker`, what they mean by `StreamWorker`; here are connections, turns and the
// replay socket.
//
// A message of a stream with a socket of its own:
//
// 1. libzmq's descriptor is readable; the lane marks the stream (`MarkReady`) and calls `Serve`.
// 2. `ServeLocked` looks at the monitor first (`ServeMonitor`): connections that came and went are
//    known before their messages are read.
// 3. `ServeReplay`, then `ServeLive`, each at most `kTurnMessages` and `kTurnBytes`, pass messages
//    to the tracker.
// 4. `Perform` carries out the tracker's actions after every message: the payload that they point
//    to is valid until the next one is received.
//
// A stream that is fed (`MakeFed`) has no socket: `ZmqShared` calls `Feed` and `Depart`, in the
// same lane's thread.
//
// *Locks*: `mutex_` is held for a whole turn. The lane only tries it; other threads take it through
// `Visit`, and the lane lets them pass.

#include "indexer/kv_events/zmq_stream.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/net/connection_account.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/process_memory.h"

namespace kvatlas {
namespace {

// The number that ends an engine's replay.
constexpr uint64_t kEndOfReplay = UINT64_MAX;
// By then libzmq has tried to connect: a stream without a connection has a reason that is worth a
// probe.
constexpr Duration kProbeAfter = std::chrono::milliseconds(300);
// Where libzmq does not connect again by itself, or the socket was closed here.
constexpr Duration kConnectAgainAfter = std::chrono::seconds(1);
constexpr std::string_view kStrangers =
    "it accepts connections and does not speak ZeroMQ: is this another port of the engine?";

LogLimiter& Limiter() {
  static LogLimiter limiter(std::chrono::seconds(10));
  return limiter;
}

}  // namespace

// The poller keeps an event in the lowest bits of a stream's address.
static_assert(alignof(ZmqStream) > ZmqPoller::kAll);

// Locks the stream for a thread that is not the lane's. `visitors_` is raised before it waits: a
// lane that has always something to read would take the mutex again and again, and a caller would
// starve.
class ABSL_SCOPED_LOCKABLE ZmqStream::Visit {
 public:
  explicit Visit(const ZmqStream* stream) ABSL_EXCLUSIVE_LOCK_FUNCTION(stream->mutex_)
      : stream_(const_cast<ZmqStream*>(stream)) {
    stream_->visitors_.fetch_add(1, std::memory_order_relaxed);
    stream_->mutex_.Lock();
    stream_->visitors_.fetch_sub(1, std::memory_order_relaxed);
  }
  ~Visit() ABSL_UNLOCK_FUNCTION() { stream_->mutex_.Unlock(); }

 private:
  ZmqStream* const stream_;
};

absl::StatusOr<std::shared_ptr<ZmqStream>> ZmqStream::Make(const ZmqStreamSettings& settings,
                                                           const ZmqSource& source,
                                                           const TrackerOptions& tracker,
                                                           std::unique_ptr<StreamWorker> worker) {
  std::shared_ptr<ZmqStream> stream(new ZmqStream(settings, source, tracker, std::move(worker)));
  if (absl::Status opened = stream->Open(); !opened.ok()) return opened;
  return stream;
}

absl::StatusOr<std::shared_ptr<ZmqStream>> ZmqStream::MakeShared(
    const ZmqStreamSettings& settings, const ZmqSource& source, std::shared_ptr<ZmqShared> shared) {
  std::shared_ptr<ZmqStream> stream(new ZmqStream(settings, source, {}, nullptr));
  stream->shared_ = std::move(shared);
  if (absl::Status opened = stream->Open(); !opened.ok()) return opened;
  return stream;
}

std::shared_ptr<ZmqStream> ZmqStream::MakeFed(const ZmqStreamSettings& settings,
                                              const ZmqSource& source,
                                              const TrackerOptions& tracker,
                                              std::unique_ptr<StreamWorker> worker) {
  return std::shared_ptr<ZmqStream>(new ZmqStream(settings, source, tracker, std::move(worker)));
}

ZmqStream::ZmqStream(const ZmqStreamSettings& settings, const ZmqSource& source,
                     const TrackerOptions& tracker, std::unique_ptr<StreamWorker> worker)
    : settings_(settings),
      source_(source),
      live_target_(TargetOf(source, source.endpoint)),
      replay_target_(TargetOf(source, source.replay_endpoint)),
      tracker_([&] {
        TrackerOptions options = tracker;
        options.can_replay = !source.replay_endpoint.empty();
        return options;
      }()),
      worker_(std::move(worker)),
      live_watch_("engine events", source.endpoint,
                  {{"worker", source.worker_name}, {"rank", source.rank}}, settings.clock),
      replay_watch_("engine replay", source.replay_endpoint,
                    {{"worker", source.worker_name}, {"rank", source.rank}}, settings.clock),
      away_since_(Clock::Real().Now()),
      heard_at_(settings.clock->Now()) {}

// The monitor ends before the socket does (`ZmqMonitor::End`).
ZmqStream::~ZmqStream() {
  Visit visit(this);
  monitor_.End(&live_);
}

// An endpoint of a flag is given to libzmq as it is. Any other is connected to by numeric address
// alone, so that libzmq resolves no name: `ZmqNames` does, and checks the addresses.
ZmqStream::Target ZmqStream::TargetOf(const ZmqSource& source, const std::string& endpoint) {
  Target target{.as_given = endpoint, .named = {}, .address = {}};
  if (source.from_flags || endpoint.empty()) return target;
  absl::StatusOr<Address> named = TcpAddressOf(endpoint);
  if (!named.ok()) return Target();  // refused before
  if (IsNumericHost(named->host)) target.address = named->host;
  target.named = *std::move(named);
  return target;
}

absl::Status ZmqStream::Open() {
  Visit visit(this);
  if (absl::Status opened = OpenLive(); !opened.ok()) return opened;
  if (source_.endpoint.rfind("inproc://", 0) == 0) {
    connected_ = true;  // such connections are not monitored
    live_watch_.Set(ConnectionState::kConnected);
    arrivals_ = 1;
  }
  return absl::OkStatus();
}

// Order matters: options and key before the connection, the monitor before anything can happen at
// the socket. A name without an address yet leaves the socket unconnected; `SetAddresses` and
// `OpenLiveAgain` connect it.
absl::Status ZmqStream::OpenLive() {
  absl::StatusOr<ZmqSocket> live = ZmqSocket::Make(settings_.context, ZMQ_SUB);
  if (!live.ok()) return live.status();
  live_ = *std::move(live);
  monitor_ = ZmqMonitor();
  if (absl::Status set = live_.Configure(settings_.socket); !set.ok()) return set;
  if (!source_.server_key.empty()) {
    absl::Status set = live_.Encrypt(settings_.socket.curve, source_.server_key);
    if (!set.ok()) return set;
  }
  if (absl::Status set = live_.Set(ZMQ_SUBSCRIBE, source_.topic); !set.ok()) return set;
  if (absl::Status set = monitor_.Watch(settings_.context, &live_); !set.ok()) return set;
  const std::string endpoint = live_target_.Endpoint();
  if (!source_.bind) return endpoint.empty() ? absl::OkStatus() : live_.Connect(endpoint);
  if (absl::Status bound = live_.Bind(endpoint); !bound.ok()) return bound;
  bound_endpoint_ = live_.LastEndpoint();
  return absl::OkStatus();
}

// A new socket for each address, so that nothing of an earlier connection is counted as of this
// one. Nothing happens where a connection came since it was asked for. A failure here fails the
// stream: there are no sockets or descriptors left.
void ZmqStream::OpenLiveAgain(ZmqLaneState* lane) {
  ServeMonitor(lane);
  const std::string next = std::exchange(next_address_, "");
  if (connected_ || arrivals_ > 0) return;  // it came meanwhile
  if (!next.empty()) live_target_.address = next;
  gave_up_at_.reset();
  lane->poller.Unwatch(live_.fd());
  lane->poller.Unwatch(monitor_.fd());
  monitor_.End(&live_);
  live_.Close();
  absl::Status opened = OpenLive();
  if (opened.ok()) opened = lane->poller.Watch(live_.fd(), this, ZmqPoller::kLive);
  if (opened.ok()) opened = lane->poller.Watch(monitor_.fd(), this, ZmqPoller::kMonitor);
  if (!opened.ok()) Fail(std::string(opened.message()));
  ready_ = ZmqPoller::kAll;
}

// ---- The lane's thread ----

// Runs in the lane's thread. Everything counts as ready: descriptors are edge-triggered, and what
// came before `Watch` makes no edge.
void ZmqStream::Attach(ZmqLaneState* lane) {
  Visit visit(this);
  if (!live_) return;  // it is fed
  absl::Status watched = lane->poller.Watch(live_.fd(), this, ZmqPoller::kLive);
  if (watched.ok()) watched = lane->poller.Watch(monitor_.fd(), this, ZmqPoller::kMonitor);
  if (!watched.ok()) Fail(std::string(watched.message()));
  ready_ = ZmqPoller::kAll;
}

// Ends sockets and gives back what the lane counted as held. The stream stays in memory for callers
// that have it, and reads nothing more.
void ZmqStream::Detach(ZmqLaneState* lane) {
  Visit visit(this);
  EndReplay(lane);
  if (live_) {
    lane->poller.Unwatch(live_.fd());
    lane->poller.Unwatch(monitor_.fd());
    monitor_.End(&live_);
    live_.Close();
  }
  lane->held_bytes -= std::exchange(held_counted_, 0);
}

// Never waits: kBusy where another thread has the stream, or waits for it.
ZmqStream::Turn ZmqStream::Serve(ZmqLaneState* lane) {
  if (visitors_.load(std::memory_order_relaxed) > 0 || !mutex_.TryLock()) return Turn::kBusy;
  const Turn turn = ServeLocked(lane);
  mutex_.Unlock();
  return turn;
}

ZmqStream::Turn ZmqStream::ServeLocked(ZmqLaneState* lane) {
  if (!next_address_.empty()) OpenLiveAgain(lane);
  // A connection's arrival is known before what came over it is read.
  if ((ready_ & ZmqPoller::kMonitor) != 0) ServeMonitor(lane);
  ready_ &= ~ZmqPoller::kMonitor;
  if (!Running()) return Turn::kIdle;
  const Time now = settings_.clock->Now();
  started_ = true;
  // The tracker hears of the end of a connection before that of the next one begins (`Arrive`).
  if (std::exchange(departed_, false)) {
    tracker_.OnDisconnected(now, &lane->actions);
    Perform(lane, now);
  }
  // The tracker hears of an arrival after the messages of the connection before were read: the live
  // socket is read even if nothing new came.
  if (arrivals_ > 0) ready_ |= ZmqPoller::kLive;
  bool more = false;
  if ((ready_ & ZmqPoller::kReplay) != 0) {
    if (ServeReplay(lane, now)) {
      more = true;
    } else {
      ready_ &= ~ZmqPoller::kReplay;
    }
    CountHeld(lane);
  }
  // A full lane reads no further for streams that hold messages back, unless a connection is to be
  // told.
  const bool full = held_counted_ > 0 && lane->held_bytes >= lane->held_bytes_max && arrivals_ == 0;
  if ((ready_ & ZmqPoller::kLive) != 0 && !full && live_) {
    if (ServeLive(lane, now)) {
      more = true;
    } else {
      ready_ &= ~ZmqPoller::kLive;
    }
    CountHeld(lane);
  }
  return more ? Turn::kMore : Turn::kIdle;
}

// Takes what the monitor saw into fields; the tracker hears of it later, in order (`departed_`,
// `arrivals_`). A shared socket passes the ends of connections to its topics instead.
void ZmqStream::ServeMonitor(ZmqLaneState* lane) {
  if (!live_) return;  // `LookAtHeld` closed it
  const ZmqMonitor::Changes changes = monitor_.Poll();
  if (shared_ != nullptr) {
    connected_ = changes.connected;
    return shared_->Departed(lane, changes.departed_fds, settings_.clock->Now());
  }
  strangers_ = changes.strangers;
  if (!changes.gave_up || source_.bind) {
    gave_up_at_.reset();
  } else if (!gave_up_at_.has_value()) {
    gave_up_at_ = Clock::Real().Now();
  }
  if (changes.arrived > 0) mute_probes_ = 0;
  if (changes.connected) {
    live_watch_.Set(ConnectionState::kConnected);
  } else if (changes.departed > 0) {
    away_since_ = Clock::Real().Now();
    if (changes.arrived > 0) live_watch_.Set(ConnectionState::kConnected);
    live_watch_.Set(ConnectionState::kUnreachable,
                    "the engine, or the network, ended the connection");
  }
  connected_ = changes.connected;
  departed_ = departed_ || changes.departed > 0;
  arrivals_ += changes.arrived;
  // Another peer is still connected (`bind`): it has to be checked again.
  if (changes.departed > 0 && changes.arrived == 0 && changes.connected) ++arrivals_;
}

// Tells the tracker of one connection. Only the last of several is the current one; a replay can be
// asked for over no other.
void ZmqStream::Arrive(ZmqLaneState* lane, Time now) {
  --arrivals_;
  origin_.Forget();
  tracker_.OnConnected(/*current=*/arrivals_ == 0 && connected_, now, &lane->actions);
  Perform(lane, now);
}

// Reads the replay socket. The tracker may end the replay with any message, so that the socket is
// looked at again each time round. True: the turn was used up, and there may be more.
bool ZmqStream::ServeReplay(ZmqLaneState* lane, Time now) {
  size_t bytes = 0;
  for (size_t messages = 0; messages < kTurnMessages && bytes < kTurnBytes; ++messages) {
    if (!replay_ || abandoned_.load(std::memory_order_relaxed)) return false;
    const ZmqFrames::Result received = lane->frames.Receive(replay_);
    if (received != ZmqFrames::Result::kMessage) return false;
    replay_monitor_.held().Took(lane->frames.count(), lane->frames.bytes());
    if (replay_asked_at_.has_value()) {
      replay_asked_at_.reset();
      replay_watch_.Set(ConnectionState::kConnected);
    }
    const std::optional<uint64_t> number = lane->frames.number();
    const std::string_view payload = lane->frames.payload();
    bytes += payload.size();
    if (!number) {
      ++bad_frames_;
      continue;
    }
    if (*number == kEndOfReplay || payload.empty()) {
      tracker_.OnReplayEnd(now, &lane->actions);
    } else {
      bytes_ += payload.size();
      tracker_.OnReplayed(*number, payload, now, &lane->actions);
    }
    Perform(lane, now);
  }
  return true;
}

// Reads the live socket. A message is [topic, number, payload]; other forms are counted and
// skipped.
//
// While the tracker has not heard of a connection (`arrivals_`), each message is checked for its
// connection (`ZmqOrigin`): the tracker hears of the new one before its first message, and of all
// once the socket is empty.
bool ZmqStream::ServeLive(ZmqLaneState* lane, Time now) {
  constexpr size_t kFrames = 3;  // topic, number, payload
  if (shared_ != nullptr) shared_->FeedWaiting(lane, now);
  size_t bytes = 0;
  for (size_t messages = 0; messages < kTurnMessages && bytes < kTurnBytes; ++messages) {
    if (abandoned_.load(std::memory_order_relaxed)) return false;
    const ZmqFrames::Result received =
        lane->frames.Receive(live_, shared_ == nullptr ? nullptr : &topic_);
    if (received == ZmqFrames::Result::kFailed) Fail(zmq_strerror(zmq_errno()));
    if (received != ZmqFrames::Result::kMessage) {
      monitor_.held().Emptied();
      while (arrivals_ > 0) Arrive(lane, now);
      return false;
    }
    monitor_.held().Took(lane->frames.count(), lane->frames.bytes());
    heard_at_ = now;
    if (arrivals_ > 0 && !origin_.IsOf(lane->frames)) Arrive(lane, now);
    if (!origin_.known() && lane->frames.count() > 1) origin_.Take(lane->frames);
    const std::optional<uint64_t> number = lane->frames.number();
    const std::string_view payload = lane->frames.payload();
    bytes += payload.size();
    bytes_ += payload.size();
    if (lane->frames.count() != kFrames || !number || *number == kEndOfReplay ||
        topic_.size() > ZmqShared::kTopicBytesMax) {
      ++bad_frames_;
      LogEvery(Limiter(), source_.worker_name, LogLevel::kWarning, "bad frames",
               {{"worker", source_.worker_name},
                {"rank", source_.rank},
                {"frames", lane->frames.count()}});
      continue;
    }
    // A topic's message over a connection that is new to it: the monitor may know that the one
    // before has ended, and its descriptor may be in use again.
    if (shared_ != nullptr) {
      if (!shared_->IsKnown(topic_, lane->frames)) ServeMonitor(lane);
      shared_->Take(lane, topic_, *number, monitor_.held(), now);
      continue;
    }
    tracker_.OnLive(*number, payload, now, &lane->actions);
    Perform(lane, now);
  }
  return true;
}

// The tracker hears of connections as it does with a socket of its own: the end of the one before,
// then the new one, then the message.
void ZmqStream::Feed(ZmqLaneState* lane, uint64_t number, std::string_view payload, bool arrived,
                     Time now) {
  Visit visit(this);
  if (!Running()) return;
  started_ = true;
  heard_at_ = now;
  bytes_ += payload.size();
  if (arrived || !connected_) {
    if (connected_) tracker_.OnDisconnected(now, &lane->actions);
    Perform(lane, now);
    connected_ = true;
    live_watch_.Set(ConnectionState::kConnected);
    tracker_.OnConnected(/*current=*/true, now, &lane->actions);
    Perform(lane, now);
  }
  tracker_.OnLive(number, payload, now, &lane->actions);
  Perform(lane, now);
  CountHeld(lane);
}

void ZmqStream::Depart(ZmqLaneState* lane, Time now) {
  Visit visit(this);
  if (!connected_) return;
  connected_ = false;
  live_watch_.Set(ConnectionState::kUnreachable,
                  "the engine, or the network, ended the connection");
  if (!Running()) return;
  tracker_.OnDisconnected(now, &lane->actions);
  Perform(lane, now);
}

// Every 50 ms from the lane: bounds, connecting again, and the tracker's timeouts. A stream that is
// busy is left out until the next tick.
void ZmqStream::Tick(ZmqLaneState* lane) {
  if (visitors_.load(std::memory_order_relaxed) > 0 || !mutex_.TryLock()) return;
  live_watch_.Tick();
  if (number % lane->look_every == lane->tick % lane->look_every) LookAtHeld(lane);
  if (gave_up_at_.has_value() && Clock::Real().Now() - *gave_up_at_ >= kConnectAgainAfter) {
    if (!strangers_ && live_) {
      live_watch_.Set(ConnectionState::kUnreachable,
                      absl::StrCat("it broke ZeroMQ's protocol, or sent more than ",
                                   settings_.socket.message_bytes_max, " bytes at once"));
    }
    OpenLiveAgain(lane);
  }
  if (started_ && Running() && tracker_.busy()) {
    const Time now = settings_.clock->Now();
    tracker_.Tick(now, &lane->actions);
    Perform(lane, now);
    CountHeld(lane);
  }
  mutex_.Unlock();
}

// Whether libzmq holds more bytes of a connection than one message may have. Such a peer sends a
// message that does not end, or faster than the lane reads; libzmq bounds neither in bytes
// (`zmq_held.h`).
bool ZmqStream::HoldsTooMuch(ZmqMonitor* monitor, bool replay) {
  const uint64_t held = monitor->held().Bytes(Clock::Real().Now());
  const auto message_bytes_max =
      static_cast<uint64_t>(std::max<int64_t>(0, settings_.socket.message_bytes_max));
  if (held <= kHeldSlack + (MemoryIsCritical() ? 0 : message_bytes_max)) return false;
  CountConnectionEnded(EndedFor::kEngine);
  LogEvery(Limiter(), source_.worker_name, LogLevel::kWarning, "engine connection closed",
           {{"worker", source_.worker_name},
            {"rank", source_.rank},
            {"endpoint", replay ? source_.replay_endpoint : source_.endpoint},
            {"reason", "too many bytes of which no message was taken"},
            {"bytes", held}});
  return true;
}

// Closing the live socket counts as if the engine had gone: `departed_` for the tracker, and
// `gave_up_at_`, by which `Tick` opens a new socket a second later. A bound socket stays, since
// other engines use it: its connections are cut.
void ZmqStream::LookAtHeld(ZmqLaneState* lane) {
  if (replay_) {
    replay_monitor_.Poll();
    // Treated as a server that is silent.
    if (HoldsTooMuch(&replay_monitor_, /*replay=*/true)) EndReplay(lane);
  }
  if (!live_ || !HoldsTooMuch(&monitor_, /*replay=*/false)) return;
  if (source_.bind) return monitor_.held().CutConnections();
  // libzmq keeps whole messages of a connection that has ended: only closing the socket drops them.
  lane->poller.Unwatch(live_.fd());
  lane->poller.Unwatch(monitor_.fd());
  monitor_.End(&live_);
  live_.Close();
  monitor_ = ZmqMonitor();
  departed_ = departed_ || connected_;
  connected_ = false;
  arrivals_ = 0;
  origin_.Forget();
  away_since_ = Clock::Real().Now();
  gave_up_at_ = away_since_;
  live_watch_.Set(ConnectionState::kUnreachable,
                  "closed: more was held of it than a message may have, and no message taken");
}

// Carries out the tracker's actions in order. Replay sockets are this stream's, everything else is
// the worker's; losses and restarts are logged besides. A shared socket's stream has no worker, and
// its tracker no actions.
void ZmqStream::Perform(ZmqLaneState* lane, Time now) {
  using Kind = StreamTracker::Action::Kind;
  for (const StreamTracker::Action& action : lane->actions) {
    switch (action.kind) {
      case Kind::kAskReplay:
        AskReplay(lane, action.from);
        continue;
      case Kind::kEndReplay:
        EndReplay(lane);
        continue;
      case Kind::kLost:
        LogLost();
        break;
      case Kind::kRestarted:
        LogRestarted();
        break;
      case Kind::kApply:
      case Kind::kRepaired:
        break;
    }
    worker_->Perform(action.kind, action.payload, &lane->decoder, now);
  }
  lane->actions.clear();
}

// Asks for a replay: an empty frame, then the number in 8 bytes, big-endian. A new socket for every
// request, so that no late answer of an earlier one is taken for this one's. A failure here is not
// reported to the tracker: it is as silence, and `replay_timeout` ends it.
void ZmqStream::AskReplay(ZmqLaneState* lane, uint64_t from) {
  EndReplay(lane);
  absl::StatusOr<ZmqSocket> socket = ZmqSocket::Make(settings_.context, ZMQ_DEALER);
  absl::Status status = socket.status();
  if (live_target_.IsName() && replay_target_.IsName() &&
      replay_target_.named->host == live_target_.named->host)
    replay_target_.address = live_target_.address;  // the same engine
  const std::string endpoint = replay_target_.Endpoint();
  if (endpoint.empty())
    status = absl::UnavailableError(source_.replay_endpoint + " has no address");
  if (status.ok()) status = socket->Configure(settings_.socket);
  if (status.ok() && !source_.server_key.empty())
    status = socket->Encrypt(settings_.socket.curve, source_.server_key);
  replay_monitor_ = ZmqMonitor();
  if (status.ok()) status = replay_monitor_.Watch(settings_.context, &*socket);
  if (status.ok()) status = socket->Connect(endpoint);
  std::array<char, sizeof(from)> start;
  for (size_t i = 0; i < start.size(); ++i) start[i] = static_cast<char>(from >> (56 - 8 * i));
  if (status.ok()) status = socket->Send("", /*more=*/true);
  if (status.ok()) {
    status = socket->Send(std::string_view(start.data(), start.size()), /*more=*/false);
  }
  if (status.ok()) status = lane->poller.Watch(socket->fd(), this, ZmqPoller::kReplay);
  if (!status.ok()) {  // as without an answer
    if (socket.ok()) replay_monitor_.End(&*socket);
    last_error_ = std::string(status.message());
    replay_watch_.Set(ConnectionState::kUnreachable, last_error_);
    return;
  }
  replay_asked_at_ = Clock::Real().Now();
  replay_ = *std::move(socket);
  ready_ |= ZmqPoller::kReplay;
}

// Nothing to do without a replay. The order is `Unwatch`, monitor, socket: a closed descriptor may
// be another's at once.
void ZmqStream::EndReplay(ZmqLaneState* lane) {
  if (!replay_) return;
  lane->poller.Unwatch(replay_.fd());
  replay_monitor_.End(&replay_);
  replay_.Close();
}

// Logs a loss, once in 10 seconds for each worker and text. A restart was logged already, and its
// loss is no news; a replay under way is no loss yet.
void ZmqStream::LogLost() {
  const uint64_t lost = tracker_.stats().messages_lost - lost_said_;
  if (std::exchange(restart_said_, false) && lost == 0) return;
  LogLevel level = LogLevel::kInfo;
  std::string_view event = "what the engine said while it was not connected is unknown";
  if (lost > 0) {
    level = LogLevel::kWarning;
    event = "batches missing";
  } else if (!source_.replay_endpoint.empty()) {
    event = "asking the engine for what may be missing";
  }
  static LogLimiter limiter(std::chrono::seconds(10));
  const std::optional<uint64_t> held_back =
      limiter.Admit(source_.worker_name + std::string(event), settings_.clock->Now());
  if (!held_back.has_value()) return;
  lost_said_ += lost;
  std::vector<LogField> fields = {
      {"worker", source_.worker_name}, {"rank", source_.rank}, {"endpoint", source_.endpoint}};
  if (lost > 0) fields.emplace_back("lost", lost);
  LogAll(level, event, fields);
}

void ZmqStream::LogRestarted() {
  const uint64_t restarts = tracker_.stats().restarts;
  restart_said_ = true;
  const bool is_new = std::exchange(restarts_said_, restarts) != restarts;
  LogEvery(
      Limiter(), source_.worker_name + (is_new ? " restarted" : " rebuilt"), LogLevel::kInfo,
      is_new ? "engine restarted: its cache is new" : "engine replays everything: built anew",
      {{"worker", source_.worker_name}, {"rank", source_.rank}, {"endpoint", source_.endpoint}});
}

// Brings the lane's sum of held bytes up to date: the bound is the lane's (`held_bytes_max`).
void ZmqStream::CountHeld(ZmqLaneState* lane) {
  const size_t held = tracker_.stats().held_bytes;
  lane->held_bytes += held - held_counted_;
  held_counted_ = held;
}

void ZmqStream::Fail(std::string_view what) {
  failed_ = true;
  last_error_ = std::string(what);
  Log(LogLevel::kError, "stream failed",
      {{"worker", source_.worker_name}, {"rank", source_.rank}, {"reason", what}});
}

// ---- Any thread ----

// Whether messages are applied. Partner of the acquire load: the exchange in `ZmqIngest::OpenGate`,
// after recovery has filled the workers.
bool ZmqStream::Running() const {
  return !paused_ && !failed_ && settings_.gate->load(std::memory_order_acquire) &&
         !abandoned_.load(std::memory_order_relaxed);
}

ListenerStatus ZmqStream::StatusNow() const {
  if (failed_) return ListenerStatus::kFailed;
  if (paused_) return ListenerStatus::kPaused;
  return settings_.gate->load(std::memory_order_acquire) ? ListenerStatus::kActive
                                                         : ListenerStatus::kPending;
}

absl::Status ZmqStream::Pause() {
  Visit visit(this);
  if (const ListenerStatus status = StatusNow(); status != ListenerStatus::kActive) {
    return absl::FailedPreconditionError("cannot be paused from status " +
                                         std::string(ListenerStatusName(status)));
  }
  paused_ = true;
  return absl::OkStatus();
}

// A failed stream is tried again: what failed may be possible now.
absl::Status ZmqStream::Resume() {
  Visit visit(this);
  const ListenerStatus status = StatusNow();
  if (status != ListenerStatus::kPaused && status != ListenerStatus::kFailed) {
    return absl::FailedPreconditionError("cannot be resumed from status " +
                                         std::string(ListenerStatusName(status)));
  }
  paused_ = failed_ = false;
  last_error_.clear();
  tracker_.OnResumed(settings_.clock->Now());
  return absl::OkStatus();
}

// Before the first turn only: a tracker that has begun cannot take another position.
absl::Status ZmqStream::ResumeFrom(const StreamPosition& position, bool earlier) {
  Visit visit(this);
  if (started_) return absl::FailedPreconditionError("the stream is already being applied");
  tracker_.Resume(position, earlier);
  return absl::OkStatus();
}

// The mutex keeps the lane out: nothing of the stream is applied while `cut` runs.
void ZmqStream::WithPosition(const std::function<void(std::optional<StreamPosition>)>& cut) {
  Visit visit(this);
  cut(tracker_.position());
}

// Only while something is missing: a live connection, or the answer to a replay, for longer than
// libzmq takes.
std::vector<ZmqStream::Probe> ZmqStream::ProbesWanted() const {
  Visit visit(this);
  const Time now = Clock::Real().Now();
  std::vector<Probe> probes;
  const std::string live = live_target_.Endpoint();
  const std::string replay = replay_target_.Endpoint();
  if (!source_.bind && !connected_ && arrivals_ == 0 && !live.empty() &&
      now - away_since_ >= kProbeAfter)
    probes.push_back({.replay = false, .endpoint = live, .replay_beside = replay});
  if (replay_asked_at_.has_value() && !replay.empty() && now - *replay_asked_at_ >= kProbeAfter)
    probes.push_back({.replay = true, .endpoint = replay});
  return probes;
}

// The state may have changed while the probe ran without the lock: a result that has become wrong
// is dropped. An endpoint that accepts once may just be connecting; twice, and it does not speak
// ZeroMQ.
void ZmqStream::Probed(const Probe& probe, const absl::Status& reached) {
  Visit visit(this);
  if (absl::IsUnimplemented(reached)) return;
  const absl::string_view words = reached.message();
  if (probe.replay) {
    if (!replay_asked_at_.has_value()) return;  // answered meanwhile
    return replay_watch_.Set(ConnectionState::kUnreachable,
                             reached.ok() ? std::string_view("it accepts connections and answers "
                                                             "no request for a replay")
                                          : std::string_view(words.data(), words.size()));
  }
  if (connected_ || arrivals_ > 0) return;
  if (!reached.ok()) {
    mute_probes_ = 0;
    return live_watch_.Set(ConnectionState::kUnreachable, {words.data(), words.size()});
  }
  // The first time it may just be connecting.
  if (strangers_ || ++mute_probes_ > 1)
    live_watch_.Set(ConnectionState::kUnreachable,
                    strangers_ ? kStrangers
                               : std::string_view("it accepts connections and sends no greeting "
                                                  "of ZeroMQ"));
}

std::vector<std::string> ZmqStream::NamesWanted() const {
  Visit visit(this);
  std::vector<std::string> names;
  for (const Target* target : {&live_target_, &replay_target_}) {
    if (target->IsName() && (!connected_ || target->address.empty()) &&
        std::find(names.begin(), names.end(), target->named->host) == names.end())
      names.push_back(target->named->host);
  }
  return names;
}

// Takes the addresses of a name in turn, one per look-up, so that an address that does not answer
// is not tried alone. A stream that is connected keeps its address.
bool ZmqStream::SetAddresses(const std::string& name,
                             const absl::StatusOr<std::vector<std::string>>& addresses) {
  Visit visit(this);
  if (!addresses.ok()) {
    name_failed_ = true;
    last_error_ = std::string(addresses.status().message());
    const bool of_live = live_target_.IsName() && live_target_.named->host == name;
    if (of_live && !connected_) live_watch_.Set(ConnectionState::kUnreachable, last_error_);
    if (replay_target_.IsName() && replay_target_.named->host == name && !of_live)
      replay_watch_.Set(ConnectionState::kUnreachable, last_error_);
    return false;
  }
  if (std::exchange(name_failed_, false)) last_error_.clear();
  const std::string& next = (*addresses)[lookups_++ % addresses->size()];
  if (replay_target_.IsName() && replay_target_.named->host == name) replay_target_.address = next;
  if (!live_target_.IsName() || live_target_.named->host != name || connected_) return false;
  next_address_ = next == live_target_.address ? "" : next;
  return !next_address_.empty();
}

ZmqStreamStats ZmqStream::Stats() const {
  Visit visit(this);
  return {.status = StatusNow(),
          .last_error = last_error_,
          .connection = live_watch_.Get(),
          .replay = replay_watch_.Get().state == ConnectionState::kConnecting
                        ? std::nullopt
                        : std::optional(replay_watch_.Get()),
          .connected = connected_,
          .arrived = connected_ && arrivals_ == 0,
          .silent = std::max(Duration(0), settings_.clock->Now() - heard_at_),
          .bytes = bytes_,
          .bad_frames = bad_frames_,
          .undecodable = worker_->undecodable(),
          .lag_ms = worker_->lag_ms(),
          .queued_bytes = tracker_.stats().held_bytes,
          .tracker = tracker_.stats()};
}

}  // namespace kvatlas
