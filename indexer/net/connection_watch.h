// The state of one outgoing connection, and since when it holds. Logs what an operator has to know:
// each change once, success included, and once a minute that it still does not work.
//
//   event=unreachable connection="engine events" worker=w7 endpoint=tcp://10.0.0.7:5557
//   reason="Connection refused" event="still unreachable" connection="engine events" …
//   reason="Connection refused" for=3m event=connected connection="engine events" … after=3m12s
//
//   kConnecting ──▶ kConnected ◀──▶ kUnreachable ◀──▶ kRefused        each may follow each
//
// *Place*: one per connection, at the side that makes it. Its owner calls `Set` or `Tick` at least
// every few seconds.
// *Truth*: a state that does not change is logged once a minute, unless it is kConnected. A new
// reason alone is no change, except for kRefused: a refusal is an error that an operator must mend.
// *Threads*: any. *Cost*: a short lock; a record where there is one.
// *Bounds*: `kChangesPerMinute` records of changes; further ones are counted in the next record's
// field `changes`.
//
// Example:
//   ConnectionWatch watch("leaf", "10.0.0.1:7410", {{"worker", name}});
//   watch.Set(ConnectionState::kUnreachable, "Connection refused");   // whenever one looks
//   watch.Get().ToString();                                           // "unreachable: 10.0.0.1:7410: Connection refused"

#ifndef KVATLAS_INDEXER_NET_CONNECTION_WATCH_H_
#define KVATLAS_INDEXER_NET_CONNECTION_WATCH_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

enum class ConnectionState : uint8_t {
  kConnecting,   // not known yet
  kConnected,    // it works
  kUnreachable,  // no peer is there, or not the expected one
  kRefused,      // the other side is there, and takes nothing
};
std::string_view ConnectionStateName(ConnectionState state);  // "unreachable"
// The state that a stream of holdings reports (`SenderPump::Progress`). Nothing: connecting; OK:
// connected; UNAVAILABLE: unreachable; else refused.
ConnectionState ConnectionStateOf(const std::optional<absl::Status>& how);

struct ConnectionStatus {
  ConnectionState state = ConnectionState::kConnecting;
  std::string reason;            // "ENDPOINT: why", empty where nothing is wrong
  Duration since{0};             // that it has been so
  bool ever = false;             // it was connected once
  std::string ToString() const;  // "connected", "unreachable: ENDPOINT: why"
};

inline constexpr Duration kSaidAgainAfter = std::chrono::minutes(1);

// True at once, and not again before `kSaidAgainAfter`, while something holds. *Threads*: none; the
// caller serialises.
class EveryMinute {
 public:
  bool Due(bool holds, Time now);

 private:
  std::optional<Time> next_;
};

class ConnectionWatch {
 public:
  static constexpr uint32_t kChangesPerMinute = 6;

  // `what` is a literal: "leaf", "engine events". `who` has fields of every record, such as the
  // worker it is about.
  ConnectionWatch(std::string_view what, std::string endpoint, std::vector<LogField> who = {},
                  const Clock* clock = &Clock::Real());

  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;

  void Set(ConnectionState state, std::string_view reason = "");
  // By `ConnectionStateOf`.
  void Set(const std::optional<absl::Status>& how);
  // Time passes.
  void Tick();

  ConnectionStatus Get() const;
  const std::string& endpoint() const { return endpoint_; }

 private:
  // The event of a change to `state_`.
  std::string_view ChangeName(ConnectionState before) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Say(std::string_view event, std::vector<LogField> more)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SayChange(ConnectionState before, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SayAgain(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string_view what_;
  const std::string endpoint_;
  const std::vector<LogField> who_;
  const Clock* const clock_;

  mutable Mutex mutex_;
  ConnectionState state_ ABSL_GUARDED_BY(mutex_) = ConnectionState::kConnecting;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  bool ever_ ABSL_GUARDED_BY(mutex_) = false;
  Time since_ ABSL_GUARDED_BY(mutex_);
  Time not_connected_since_ ABSL_GUARDED_BY(mutex_);
  Time again_at_ ABSL_GUARDED_BY(mutex_);
  Time minute_ends_ ABSL_GUARDED_BY(mutex_);
  uint32_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // in this minute
  uint32_t unsaid_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_CONNECTION_WATCH_H_
