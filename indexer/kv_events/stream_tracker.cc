#include "indexer/kv_events/stream_tracker.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

namespace kvatlas {
namespace {

// An engine that restarted between two connections is not found at exactly the next number beyond
// this one.
constexpr uint64_t kUnlikelyCoincidence = 1 << 16;
constexpr uint32_t kBackoffDoublingsMax = 6;

// A payload says when it was sent, in its first bytes: its ends tell it from others.
uint64_t Fingerprint(std::string_view payload) {
  constexpr size_t kEnd = 512;
  const size_t head = std::min(payload.size(), kEnd);
  const size_t tail = std::min(payload.size() - head, kEnd);
  const uint64_t seed =
      XXH3_64bits_withSeed(payload.data() + payload.size() - tail, tail, payload.size());
  return XXH3_64bits_withSeed(payload.data(), head, seed);
}

}  // namespace

struct StreamTracker::State {
  using Kind = Action::Kind;

  enum class Mode : uint8_t {
    kLive,     // no replay
    kFill,     // a replay brings what comes after `last`; live messages are held back
    kVerify,   // a replay from `last` shows whether it is the same engine; likewise
    kRebuild,  // asked for everything from 0, not answered yet; live messages go on
  };

  // What became of a live message.
  enum class Step : uint8_t { kDone, kAsked };

  struct Message {
    uint64_t number;
    uint64_t fingerprint;
    std::string_view payload;
  };
  struct Held {
    uint64_t number;
    uint64_t fingerprint;
    std::string payload;
  };

  explicit State(const TrackerOptions& options) : options(options) {}

  // ---- What is done ----

  void Push(Kind kind) { out->push_back({.kind = kind}); }

  void Apply(const Message& message) {
    out->push_back({.kind = Kind::kApply, .number = message.number, .payload = message.payload});
    last = message.number;
    fingerprint = message.fingerprint;
    unverified = false;
    zero_seen = zero_seen || message.number == 0;
  }

  // Numbers [Next(), number) are passed over.
  void Pass(uint64_t number) {
    stats.messages_lost += number - Next();
    hole = true;
    Push(Kind::kLost);
  }

  void Ask(uint64_t from, Mode new_mode, bool lost_told, Time now) {
    mode = new_mode;
    replay = {.asked_at = now, .heard_at = now, .lost_told = lost_told};
    retry_at.reset();
    ++stats.replays_asked;
    out->push_back({.kind = Kind::kAskReplay, .from = from});
  }

  // Live messages are held back until there is a connection to ask on.
  void Await(bool lost_told, Time now) {
    mode = Mode::kFill;
    replay = {.asked_at = now, .heard_at = now, .lost_told = lost_told, .waiting = true};
  }

  void EndReplay() {
    mode = Mode::kLive;
    Push(Kind::kEndReplay);
  }

  // ---- What is known ----

  uint64_t Next() const { return last ? *last + 1 : 0; }

  bool CanAsk(Time now) const {
    return options.can_replay && !silent && !(quiet_until && now < *quiet_until);
  }

  bool CanBeFirst(uint64_t number) const { return !last && number == 1 && !zero_seen; }

  // The first number of an engine, though it is not 0.
  bool IsFirst(uint64_t number, Time now) const {
    return CanBeFirst(number) && (nothing_before || !CanAsk(now));
  }

  // ---- Live messages ----

  // One live message in its turn, no replay holding it back. kAsked: it is to be held back for the
  // replay asked for.
  Step TakeLive(const Message& message, Time now) {
    const uint64_t number = message.number;
    if (last && number <= *last) {
      if (number == *last && message.fingerprint != fingerprint) return TakeRestart(message, now);
      ++stats.duplicates;
      return Step::kDone;
    }
    if (number != Next() && !IsFirst(number, now)) {
      ++stats.gaps;
      if (CanAsk(now)) {
        Push(Kind::kLost);
        if (gone) {
          Await(/*lost_told=*/true, now);
        } else {
          Ask(Next(), Mode::kFill, /*lost_told=*/true, now);
        }
        return Step::kAsked;
      }
      Pass(number);
      ScheduleRetry(now);
    } else if (unverified && *last >= kUnlikelyCoincidence) {
      Push(Kind::kRepaired);
    } else if (unverified) {
      hole = true;
      ScheduleRetry(now);
    }
    Apply(message);
    return Step::kDone;
  }

  // The first message that was seen of a new incarnation.
  Step TakeRestart(const Message& message, Time now) {
    ++stats.restarts;
    if (mode != Mode::kLive) EndReplay();
    Forget();
    tries = 0;
    retry_at.reset();
    const Step step = TakeLive(message, now);
    if (step == Step::kAsked) quiet_until = now + options.replay_retry;
    return step;
  }

  void Forget() {
    Push(Kind::kRestarted);
    last.reset();
    fingerprint = 0;
    hole = unverified = nothing_before = beginning_gone = false;
  }

  void Hold(const Message& message, Time now) {
    held.push_back({message.number, message.fingerprint, std::string(message.payload)});
    stats.held_bytes += message.payload.size();
    if (held.size() > options.held_messages_max || stats.held_bytes > options.held_bytes_max) {
      GiveUp(now);
    }
  }

  // The oldest message held back: its bytes stay until the next call.
  Message PopHeld() {
    released.push_back(std::move(held.front().payload));
    const Message message = {held.front().number, held.front().fingerprint, released.back()};
    held.pop_front();
    stats.held_bytes -= message.payload.size();
    return message;
  }

  void DropHeld(size_t count) {
    for (; count > 0; --count) {
      stats.held_bytes -= held.front().payload.size();
      held.pop_front();
    }
  }

  // Held messages take their turn, until one asks for another replay.
  void ReleaseHeld(Time now) {
    while (!held.empty() && mode == Mode::kLive) {
      const Message message = PopHeld();
      if (TakeLive(message, now) == Step::kDone) continue;
      stats.held_bytes += message.payload.size();
      held.push_front({message.number, message.fingerprint, std::move(released.back())});
      released.pop_back();
    }
  }

  void Live(const Message& message, Time now) {
    const uint64_t number = message.number;
    ++stats.messages;
    const bool back = last_live && number <= *last_live;
    if (back && number == *last_live && message.fingerprint == live_fingerprint) {
      ++stats.duplicates;
      return;
    }
    last_live = number;
    live_fingerprint = message.fingerprint;
    if (back) {
      DropHeld(held.size());
      if (TakeRestart(message, now) == Step::kAsked) Hold(message, now);
      return;
    }
    if (mode == Mode::kFill && number == 0 && !last && held.empty()) {
      EndReplay();  // the very first message: there was nothing to be replayed
      if (replay.lost_told) Push(Kind::kRepaired);
    } else if ((mode == Mode::kFill || mode == Mode::kVerify) && silent) {
      EndReplay();  // asked again in the background, and still silent: nothing waits for that
    }
    if (mode == Mode::kLive || mode == Mode::kRebuild) {
      if (TakeLive(message, now) == Step::kAsked) Hold(message, now);
      return;
    }
    Hold(message, now);
    if (mode == Mode::kFill && replay.answered) FinishIfReached(now);
  }

  // ---- Replay ----

  void Replayed(const Message& message, Time now) {
    const uint64_t number = message.number;
    if (mode == Mode::kLive || replay.waiting) return;
    ++stats.replayed;
    replay.heard_at = now;
    replay.answered = true;
    silent = false;
    if (mode == Mode::kRebuild) {
      if (number > 1) {  // it does not reach back to the beginning either
        beginning_gone = true;
        ++stats.replays_incomplete;
        EndReplay();
        return;
      }
      Forget();
      Push(Kind::kLost);
      replay.lost_told = true;
      mode = Mode::kFill;
    }
    if (mode == Mode::kVerify) {
      if (number < *last) return;
      mode = Mode::kFill;
      if (number == *last && message.fingerprint != fingerprint) {
        NewIncarnation(now);
        return;
      }
      // Too late to tell: the same engine or not, something is missing.
      if (number > *last) replay.late = hole = beginning_gone = true;
    }
    Fill(message);
    FinishIfReached(now);
  }

  void Fill(const Message& message) {
    while (!held.empty() && held.front().number < message.number) FillOne(PopHeld());
    FillOne(message);
  }

  void FillOne(const Message& message) {
    if (last && message.number <= *last) return;
    if (message.number != Next() && !CanBeFirst(message.number)) {
      replay.late = beginning_gone = true;
      Pass(message.number);
    }
    Apply(message);
  }

  // Is there nothing more that only a replay can bring?
  void FinishIfReached(Time now) {
    if (mode != Mode::kFill) return;
    if (!held.empty() && held.front().number <= Next()) Finish(now);
  }

  void ReplayEnded(Time now) {
    if (mode == Mode::kLive || replay.waiting) return;
    silent = false;
    if (mode == Mode::kRebuild) {
      ++stats.replays_incomplete;
      EndReplay();
      ScheduleRetry(now);
      return;
    }
    if (mode == Mode::kVerify) {  // it never published what we had from it
      NewIncarnation(now);
      return;
    }
    nothing_before = !last;
    const uint64_t wanted = !held.empty() ? held.front().number : last_live ? *last_live + 1 : 0;
    if (wanted > Next() && !CanBeFirst(wanted)) {
      replay.early = true;
      hole = true;
      if (!held.empty()) {
        const Message message = PopHeld();
        Pass(message.number);
        Apply(message);
      }
    }
    Finish(now);
  }

  void Finish(Time now) {
    EndReplay();
    if (!replay.late && !replay.early) {
      ++stats.replays_complete;
      tries = 0;
      if (replay.lost_told) Push(Kind::kRepaired);
    } else {
      ++stats.replays_incomplete;
    }
    unverified = false;
    ReleaseHeld(now);
    if (hole) ScheduleRetry(now);
  }

  // Another engine than the one we heard is behind the connection.
  void NewIncarnation(Time now) {
    ++stats.restarts;
    DropHeld(std::min(replay.held_before, held.size()));
    last_live.reset();
    if (!held.empty()) last_live = held.back().number;
    Forget();
    Push(Kind::kLost);
    Ask(0, Mode::kFill, /*lost_told=*/true, now);
  }

  // Silence, or more live messages than may be held back.
  void GiveUp(Time now) {
    ++stats.replays_incomplete;
    silent = true;
    hole = hole || replay.lost_told;
    unverified = unverified || (mode == Mode::kVerify && replay.lost_told);
    EndReplay();
    ReleaseHeld(now);
    ScheduleRetry(now);
  }

  void ScheduleRetry(Time now) {
    if (!options.can_replay || retry_at || tries >= options.replay_tries) return;
    if (hole && beginning_gone && !unverified) return;
    retry_at = now + options.replay_retry * (1 << std::min(tries, kBackoffDoublingsMax));
    ++tries;
  }

  void Retry(Time now) {
    retry_at.reset();
    if (unverified) {
      Ask(*last, Mode::kVerify, /*lost_told=*/true, now);
    } else if (hole) {
      Ask(0, Mode::kRebuild, /*lost_told=*/false, now);
    } else {
      Ask(Next(), Mode::kFill, /*lost_told=*/false, now);
    }
  }

  // What is still read came before. A replay's answer could already be another incarnation's.
  void Disconnected(Time now) {
    gone = true;
    if (mode == Mode::kLive) return;
    const bool lost_told = replay.lost_told && !replay.late;
    const bool rebuild = mode == Mode::kRebuild;
    EndReplay();
    if (!rebuild) Await(lost_told, now);
  }

  void Connected(bool current, Time now) {
    const bool first = !connected_before;
    connected_before = true;
    gone = !current;
    // A resumed tracker has heard nothing itself: from here on, numbers up to there are another
    // incarnation's.
    if (!first && last && !last_live) {
      last_live = last;
      live_fingerprint = fingerprint;
    }
    if (first && (last_live || mode != Mode::kLive)) return;  // heard before we were told
    silent = false;
    if (!options.can_replay) {
      if (!first && last) {
        Push(Kind::kLost);
        unverified = true;
      }
      return;
    }
    tries = 0;
    bool lost_told = mode != Mode::kLive && replay.lost_told && !replay.late;
    if (last && !first && !lost_told) {
      Push(Kind::kLost);
      lost_told = true;
    }
    if (!last) {
      // Whose they are cannot be verified; the replay has them if they are the same engine's.
      DropHeld(held.size());
      last_live.reset();
    }
    if (gone) {
      if (last || mode != Mode::kLive) Await(lost_told, now);
    } else {
      Ask(last.value_or(0), last ? Mode::kVerify : Mode::kFill, lost_told, now);
      replay.held_before = held.size();
    }
  }

  void Tick(Time now) {
    if (mode != Mode::kLive) {
      const bool overdue = now - replay.heard_at > options.replay_timeout ||
                           now - replay.asked_at > options.replay_total;
      if (overdue) GiveUp(now);
    } else if (retry_at && now >= *retry_at && !gone) {
      Retry(now);
    }
  }

  // Every public call: memory of the last one goes, actions are appended to `actions`.
  void Begin(std::vector<Action>* actions) {
    released.clear();
    out = actions;
  }

  const TrackerOptions options;
  TrackerStats stats;
  std::vector<Action>* out = nullptr;  // of the call under way

  std::optional<uint64_t> last;  // applied, or taken over
  uint64_t fingerprint = 0;      // of `last`
  std::optional<uint64_t> last_live;
  uint64_t live_fingerprint = 0;  // of `last_live`
  bool hole = false;              // something was passed over since the last restart
  bool unverified = false;      // reconnected, and nothing has shown yet that it is the same engine
  bool nothing_before = false;  // a replay from 0 was empty: the first number is what comes first
  bool beginning_gone = false;  // no replay can bring everything
  bool connected_before = false;
  bool gone = false;       // disconnected
  bool zero_seen = false;  // engines behind this endpoint do not begin with 1

  Mode mode = Mode::kLive;
  struct Replay {
    Time asked_at{0};
    Time heard_at{0};
    bool lost_told = false;  // a Lost stands that this replay repairs
    bool answered = false;
    bool late = false;       // began later than asked, or had holes
    bool early = false;      // ended before the live messages
    bool waiting = false;    // not asked yet: there is no connection
    size_t held_before = 0;  // of those held, how many came on an earlier connection
  } replay;
  bool silent = false;  // the server's last word was none
  uint32_t tries = 0;   // without success
  std::optional<Time> retry_at;
  std::optional<Time> quiet_until;  // no replay for a restart before

  std::deque<Held> held;             // live messages, by number
  std::deque<std::string> released;  // what actions of the last call point to
};

StreamTracker::StreamTracker(const TrackerOptions& options)
    : state_(std::make_unique<State>(options)) {}
StreamTracker::~StreamTracker() = default;

void StreamTracker::OnLive(uint64_t number, std::string_view payload, Time now,
                           std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->Live({number, Fingerprint(payload), payload}, now);
}

void StreamTracker::OnReplayed(uint64_t number, std::string_view payload, Time now,
                               std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->Replayed({number, Fingerprint(payload), payload}, now);
}

void StreamTracker::OnReplayEnd(Time now, std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->ReplayEnded(now);
}

void StreamTracker::OnDisconnected(Time now, std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->Disconnected(now);
}

void StreamTracker::OnConnected(bool current, Time now, std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->Connected(current, now);
}

void StreamTracker::Tick(Time now, std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->Tick(now);
}

void StreamTracker::OnResumed(Time now) {
  state_->replay.heard_at = now;
  state_->replay.asked_at = now;
}

void StreamTracker::Resume(const StreamPosition& position, bool earlier) {
  state_->connected_before = earlier;
  state_->last = position.last;
  state_->fingerprint = position.fingerprint;
}

std::optional<StreamPosition> StreamTracker::position() const {
  if (!state_->last) return std::nullopt;
  return StreamPosition{.last = *state_->last, .fingerprint = state_->fingerprint};
}

bool StreamTracker::busy() const {
  return state_->mode != State::Mode::kLive || state_->retry_at || !state_->released.empty();
}

const TrackerStats& StreamTracker::stats() const {
  state_->stats.last = state_->last;
  state_->stats.replaying = state_->mode != State::Mode::kLive;
  return state_->stats;
}

}  // namespace kvatlas
