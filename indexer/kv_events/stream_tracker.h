// Follows the numbers of one engine's stream: the next message, a duplicate, a gap, a replay, a
// restart. A state machine without I/O: messages and the time go in, what to do comes out.
//
//   live n      n == last + 1          apply
//               n > last + 1           lost: hold it back, ask for a replay from last + 1 (or go on, degraded)
//               n <= last live         the engine restarted: forget, and ask for a replay from 0 unless n is 0
//               n <= last applied      came with a replay already: skip
//   connected   nothing applied yet    ask for a replay from 0: an idle engine says nothing by itself
//               again                  ask for a replay from `last` itself: the same bytes mean the same engine
//
// *Place*: one per registered socket. *Truth*: `Action`s in order are all that is to be done to the
// worker. A Lost comes as soon as something is known to be missing; when a replay brought all of
// it, in order, Repaired undoes the latest Lost alone. A replay that begins late, ends early or
// falls silent leaves the Lost standing, what it brought is applied, and live messages go on behind
// it. A server that fell silent is asked again in the background, from 0: if it still has the
// beginning, everything is rebuilt (Restarted, then all of it, then Repaired); until it answers,
// gaps are not held back for it. Engines that number from 1 are whole from 1. After a reconnection
// that no replay can verify, what is held stays unconfirmed, unless the numbers go on from so far
// that no restarted engine can be there.
// *Threads*: none; the caller serialises. *Cost*: a hash of at most 1 KB of the payload; a copy
// only of messages held back.
// *Bounds*: live messages held back during a replay: `held_bytes_max`, `held_messages_max`; beyond,
// the replay is given up. Replays asked for: `replay_tries` without success, one after a restart
// per `replay_retry`.
//
// Example:
//   tracker.OnLive(number, payload, clock->Now(), &actions);
//   for (const StreamTracker::Action& action : actions) { … }
//   actions.clear();

#ifndef KVATLAS_INDEXER_KV_EVENTS_STREAM_TRACKER_H_
#define KVATLAS_INDEXER_KV_EVENTS_STREAM_TRACKER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "indexer/base/clock.h"

namespace kvatlas {

struct TrackerOptions {
  bool can_replay = false;
  Duration replay_timeout =
      std::chrono::seconds(5);  // silence during a replay after which it is given up
  Duration replay_total = std::chrono::seconds(60);  // of a whole replay
  Duration replay_retry =
      std::chrono::seconds(1);  // before a failed replay is asked for again; doubles
  uint32_t replay_tries = 5;
  size_t held_bytes_max = 64 << 20;
  size_t held_messages_max = 65536;
};

struct TrackerStats {
  std::optional<uint64_t> last;  // last number applied
  uint64_t messages = 0;         // live
  uint64_t gaps = 0;
  uint64_t messages_lost = 0;  // numbers that never came, not even by replay
  uint64_t duplicates = 0;
  uint64_t restarts = 0;
  uint64_t replays_asked = 0;
  uint64_t replays_complete = 0;
  uint64_t replays_incomplete = 0;  // began later than asked, ended early, timed out
  uint64_t replayed = 0;            // messages
  uint64_t held_bytes = 0;          // live messages that wait for a replay
  bool replaying = false;
};

// Where this stream stands: what another replica needs to go on from it.
struct StreamPosition {
  uint64_t last = 0;  // last number applied
  // xxh3 of the size and both ends (512 bytes each) of that message's payload: tells two
  // incarnations apart.
  uint64_t fingerprint = 0;
};

class StreamTracker {
 public:
  struct Action {
    enum class Kind : uint8_t {
      kApply,      // `payload`
      kLost,       // EngineWorker::Lost
      kRepaired,   // EngineWorker::Repaired
      kRestarted,  // EngineWorker::Restarted
      kAskReplay,  // send a request from `from`; end any earlier one
      kEndReplay,  // close the replay socket
    };
    Kind kind;
    uint64_t number = 0;  // of kApply
    uint64_t from = 0;    // of kAskReplay
    // For kApply: valid until the next call here, and as long as the caller's.
    std::string_view payload = {};
  };

  explicit StreamTracker(const TrackerOptions& options);
  ~StreamTracker();

  // Actions that become due are appended to `actions`.
  void OnLive(uint64_t number, std::string_view payload, Time now, std::vector<Action>* actions);
  // Does nothing when no replay is under way.
  void OnReplayed(uint64_t number, std::string_view payload, Time now,
                  std::vector<Action>* actions);
  void OnReplayEnd(Time now, std::vector<Action>* actions);
  // The live socket's connection is gone. Messages that it still had may follow.
  void OnDisconnected(Time now, std::vector<Action>* actions);
  // It got a connection, its first or another one: after everything that came over the last one.
  // Not `current`: that one is known to be gone too, though what came over it is still to be read.
  void OnConnected(bool current, Time now, std::vector<Action>* actions);
  // To be called every 100 ms or so while `busy`.
  void Tick(Time now, std::vector<Action>* actions);
  // The stream was not listened to until `now`: the silence was ours.
  void OnResumed(Time now);

  // Goes on from where another replica is; before the first message. `earlier`: where this one was
  // before it was started again, so that the first connection counts as another one.
  void Resume(const StreamPosition& position, bool earlier = false);
  std::optional<StreamPosition> position() const;

  // Something will be due without a message.
  bool busy() const;
  const TrackerStats& stats() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_STREAM_TRACKER_H_
