// One engine's stream: its socket, its connection, its numbers, and the replay when one runs.
//
//   SUB ─▶ ZmqFrames ─▶ StreamTracker ─▶ StreamWorker        all in one lane's thread: nothing is handed over
//   DEALER ─╯   monitor ─╯                                   or copied but what must wait for a replay
//
// *Threads*: `Serve` and `Tick` by the lane's thread; the rest by any. A caller from elsewhere
// holds the stream's mutex, and the lane then passes the stream by.
// *Bounds*: a turn of `Serve`: `kTurnMessages` and `kTurnBytes` (and one message more) from each
// socket. Bytes that libzmq holds of a connection (`zmq_held.h`): `message_bytes_max` and
// `kHeldSlack`, or `kHeldSlack` alone while memory is critical. Beyond it the connection is ended,
// logged and counted, and made again a second later; what the engine said meanwhile is a gap.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_STREAM_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_STREAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/kv_events/stream_worker.h"
#include "indexer/kv_events/zmq_poller.h"
#include "indexer/kv_events/zmq_shared.h"
#include "indexer/kv_events/zmq_socket.h"
#include "indexer/kv_events/zmq_source.h"
#include "indexer/net/connection_watch.h"

namespace kvatlas {

// Shared by the streams of one ingest.
struct ZmqStreamSettings {
  void* context = nullptr;
  ZmqSocketOptions socket;
  const Clock* clock = &Clock::Real();
  const std::atomic<bool>* gate = nullptr;  // open: messages are applied
};

// Shared by the streams of one lane; its thread's own.
struct ZmqLaneState {
  explicit ZmqLaneState(size_t message_bytes_max) : decoder(message_bytes_max) {}
  ZmqPoller poller;
  ZmqFrames frames;
  std::vector<StreamTracker::Action> actions;
  LaneDecoder decoder;
  size_t held_bytes = 0;  // of all its streams
  size_t held_bytes_max = 0;
  // Bytes that libzmq holds of a stream are looked at in one of `look_every` ticks; `tick` counts
  // them.
  size_t look_every = 1;
  size_t tick = 0;
};

class ZmqStream {
 public:
  static constexpr size_t kTurnMessages = 64;
  static constexpr size_t kTurnBytes = 1 << 20;
  static constexpr uint64_t kHeldSlack = 1 << 20;

  enum class Turn : uint8_t { kIdle, kMore, kBusy };  // kBusy: another thread is at it, come again

  // Connects or binds. UNAVAILABLE: an address to bind cannot be had, or no more sockets.
  static absl::StatusOr<std::shared_ptr<ZmqStream>> Make(const ZmqStreamSettings& settings,
                                                         const ZmqSource& source,
                                                         const TrackerOptions& tracker,
                                                         std::unique_ptr<StreamWorker> worker);
  // A socket whose messages are of other streams, by their topics.
  static absl::StatusOr<std::shared_ptr<ZmqStream>> MakeShared(const ZmqStreamSettings& settings,
                                                               const ZmqSource& source,
                                                               std::shared_ptr<ZmqShared> shared);
  // One of these: without a socket, it is fed.
  static std::shared_ptr<ZmqStream> MakeFed(const ZmqStreamSettings& settings,
                                            const ZmqSource& source, const TrackerOptions& tracker,
                                            std::unique_ptr<StreamWorker> worker);
  ~ZmqStream();

  // ---- The lane's thread ----
  void Attach(ZmqLaneState* lane);
  void Detach(ZmqLaneState* lane);
  // Something may have come at one of these sockets (`ZmqPoller::Event`).
  void MarkReady(uint8_t events) { ready_ |= events; }
  bool ready() const { return ready_ != 0; }
  Turn Serve(ZmqLaneState* lane);
  void Tick(ZmqLaneState* lane);
  // The next message of a stream that is fed. `arrived`: it came over another connection than the
  // one before.
  void Feed(ZmqLaneState* lane, uint64_t number, std::string_view payload, bool arrived, Time now);
  // The connection that its last message came over has ended.
  void Depart(ZmqLaneState* lane, Time now);

  // Places of the lane's own: in its list of streams to be served, and in its ticks.
  bool queued = false;
  size_t number = 0;

  // ---- Any thread ----
  absl::Status Pause();
  absl::Status Resume();
  absl::Status ResumeFrom(const StreamPosition& position, bool earlier = false);
  void WithPosition(const std::function<void(std::optional<StreamPosition>)>& cut);
  ZmqStreamStats Stats() const;
  // From now on nothing is applied that is not under way.
  void Abandon() { abandoned_.store(true, std::memory_order_relaxed); }
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }
  const std::string& bound_endpoint() const { return bound_endpoint_; }

  // ---- Why is it not connected? Any thread ----

  // One of its endpoints that should be tried from outside (`endpoint_probe.h`), since libzmq does
  // not say what is wrong.
  struct Probe {
    bool replay = false;
    std::string endpoint;
    std::string replay_beside =
        {};  // of the same engine, where `endpoint` has its events; empty: none
  };
  std::vector<Probe> ProbesWanted() const;
  // Takes the result of a probe into `Stats` and the log.
  void Probed(const Probe& probe, const absl::Status& reached);

  // ---- Names of a source that no flag names: any thread ----

  // Names to be resolved now: it is not connected, or has never known them.
  std::vector<std::string> NamesWanted() const;
  // The result for one name. True: the lane has to be poked, to connect. *Truth*: an engine that is
  // connected stays; of several addresses the next one is taken each time.
  bool SetAddresses(const std::string& name,
                    const absl::StatusOr<std::vector<std::string>>& addresses);

 private:
  // Where to connect: what flags name as it is, which libzmq resolves; what others name by its
  // numeric address.
  struct Target {
    std::string as_given;
    std::optional<Address> named;
    std::string address;  // of `named`, numeric; empty: not known
    // Empty: not known.
    std::string Endpoint() const {
      if (!named.has_value()) return as_given;
      return address.empty() ? "" : "tcp://" + Address{address, named->port}.ToString();
    }
    bool IsName() const { return named.has_value() && !IsNumericHost(named->host); }
  };

  // Holds the mutex for a caller that is not the lane.
  class Visit;

  ZmqStream(const ZmqStreamSettings& settings, const ZmqSource& source,
            const TrackerOptions& tracker, std::unique_ptr<StreamWorker> worker);

  static Target TargetOf(const ZmqSource& source, const std::string& endpoint);
  absl::Status Open();
  // Makes the socket for live messages, and connects where that is known.
  absl::Status OpenLive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Once more, to `next_address_` where there is one, unless it is connected.
  void OpenLiveAgain(ZmqLaneState* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Running() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ListenerStatus StatusNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Turn ServeLocked(ZmqLaneState* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the tracker of a connection, once everything that came over the last one was read.
  void Arrive(ZmqLaneState* lane, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ServeMonitor(ZmqLaneState* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True: there may be more.
  bool ServeReplay(ZmqLaneState* lane, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ServeLive(ZmqLaneState* lane, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(ZmqLaneState* lane, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AskReplay(ZmqLaneState* lane, uint64_t from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndReplay(ZmqLaneState* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountHeld(ZmqLaneState* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends connections of which libzmq holds more than it may.
  void LookAtHeld(ZmqLaneState* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HoldsTooMuch(ZmqMonitor* monitor, bool replay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(std::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogRestarted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Immutable.
  const ZmqStreamSettings settings_;
  const ZmqSource source_;
  std::string bound_endpoint_;

  // The lane's thread.
  uint8_t ready_ = 0;
  size_t held_counted_ = 0;  // of ours, in `ZmqLaneState::held_bytes`

  std::atomic<int> visitors_{0};  // callers that wait for the mutex
  std::atomic<bool> abandoned_{false};

  mutable Mutex mutex_;
  Target live_target_ ABSL_GUARDED_BY(mutex_);
  Target replay_target_ ABSL_GUARDED_BY(mutex_);
  std::string next_address_ ABSL_GUARDED_BY(mutex_);  // for `live_target_`; empty: it stays
  uint32_t lookups_ ABSL_GUARDED_BY(mutex_) = 0;
  bool name_failed_ ABSL_GUARDED_BY(mutex_) = false;  // `last_error_` says how
  ZmqSocket live_ ABSL_GUARDED_BY(mutex_);
  ZmqMonitor monitor_ ABSL_GUARDED_BY(mutex_);
  ZmqSocket replay_ ABSL_GUARDED_BY(mutex_);
  ZmqMonitor replay_monitor_ ABSL_GUARDED_BY(mutex_);
  StreamTracker tracker_ ABSL_GUARDED_BY(mutex_);
  // Null: of `MakeShared`.
  const std::unique_ptr<StreamWorker> worker_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ZmqShared> shared_;  // of `MakeShared`; set before it is shared between threads
  std::string topic_ ABSL_GUARDED_BY(mutex_);  // of its last message
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  // Not passed to the tracker yet.
  bool departed_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
  ZmqOrigin origin_ ABSL_GUARDED_BY(mutex_);  // of the messages last read
  ConnectionWatch live_watch_;
  ConnectionWatch replay_watch_;
  // On the machine's clock, since that is how long a probe and libzmq take.
  Time away_since_ ABSL_GUARDED_BY(mutex_);
  std::optional<Time> replay_asked_at_ ABSL_GUARDED_BY(mutex_);  // and not answered
  bool strangers_ ABSL_GUARDED_BY(mutex_) = false;               // `ZmqMonitor::Changes`
  std::optional<Time> gave_up_at_ ABSL_GUARDED_BY(mutex_);       // libzmq: likewise
  uint32_t mute_probes_ ABSL_GUARDED_BY(mutex_) =
      0;  // in a row: something listens, and does not greet
  uint64_t restarts_said_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t lost_said_ ABSL_GUARDED_BY(mutex_) = 0;
  bool restart_said_ ABSL_GUARDED_BY(mutex_) = false;  // and not yet the loss that comes with it
  bool started_ ABSL_GUARDED_BY(mutex_) = false;       // the tracker has got something
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  Time heard_at_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bad_frames_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_STREAM_H_
