// Is this message the next one, again one, or is something missing? The numbers of one engine's stream: gaps,
// replay, restarts. A state machine without I/O: messages and the time go in, what to do comes out.
//
//   live n      n == last + 1          apply
//               n > last + 1           lost: hold it back, ask for a replay from last + 1 (or go on, degraded)
//               n <= last live         the engine restarted: forget, ask for a replay from 0
//               n <= last applied      came with a replay already: skip
//   connected again                    ask for a replay from `last` itself: the same bytes mean the same engine
//
// *Place*: one per registered socket. *Truth*: `Action`s in order are all that is to be done to the worker.
// *Threads*: none; the caller serialises.
// *Bounds*: live messages held back during a replay: `held_bytes_max`, `held_messages_max`; beyond, the replay is given up.

#ifndef KVATLAS_INDEXER_ENGINES_STREAM_TRACKER_H_
#define KVATLAS_INDEXER_ENGINES_STREAM_TRACKER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "indexer/base/clock.h"

namespace kvatlas {

struct TrackerOptions {
  bool can_replay = false;
  Duration replay_timeout =
      std::chrono::seconds(5);  // silence during a replay after which it is given up
  Duration replay_total = std::chrono::seconds(60);  // of a whole replay
  Duration replay_retry = std::chrono::seconds(1);   // before a failed replay is asked for again
  uint32_t replay_tries = 5;
  size_t held_bytes_max = 64 << 20;
  size_t held_messages_max = 65536;
};

struct TrackerStats {
  std::optional<uint64_t> last;  // last number applied
  uint64_t messages = 0;
  uint64_t gaps = 0;
  uint64_t messages_lost = 0;  // numbers that never came, not even by replay
  uint64_t duplicates = 0;
  uint64_t restarts = 0;
  uint64_t replays_asked = 0;
  uint64_t replays_complete = 0;
  uint64_t replays_incomplete = 0;  // began later than asked, ended early, timed out
  uint64_t replayed = 0;            // messages
  bool replaying = false;
};

// Where this stream stands: what another replica needs to go on from it.
struct StreamPosition {
  uint64_t last = 0;         // last number applied
  uint64_t fingerprint = 0;  // xxh3 of that message's payload: tells two incarnations apart
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
    std::string payload;  // of kApply
  };

  explicit StreamTracker(const TrackerOptions& options);
  ~StreamTracker();

  // What became due is appended to `actions`.
  void OnLive(uint64_t number, std::string payload, Time now, std::vector<Action>* actions);
  void OnReplayed(uint64_t number, std::string payload, Time now, std::vector<Action>* actions);
  void OnReplayEnd(Time now, std::vector<Action>* actions);
  // The live socket's connection came back after it was gone.
  void OnReconnected(Time now, std::vector<Action>* actions);
  void Tick(Time now, std::vector<Action>* actions);

  // Goes on from where another replica was; before the first message.
  void Resume(const StreamPosition& position);
  std::optional<StreamPosition> position() const;

  const TrackerStats& stats() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINES_STREAM_TRACKER_H_
