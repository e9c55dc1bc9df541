// The state machine of one stream. `Mode` says what is asked of the replay endpoint, `last` up to
// where messages were applied; every public call appends actions to `out`.
//
//                  TakeLive: gap                  Fill reaches the live messages, or ReplayEnded
//     kLive ─────────────────────────▶ kFill ────────────────────────────────────────────────▶ kLive
//       │ Connected, again              ▲  ▲
//       ├──────────────▶ kVerify ───────╯  │ `last` came again with the same bytes; else NewIncarnation asks from 0
//       │ Retry after a hole               │
//       ╰──────────────▶ kRebuild ─────────╯ its first message is the beginning: Forget, and fill from there
//
// A gap, in steps:
//
// 1. `TakeLive` finds a number beyond `Next()`: kLost, and `Ask` from `Next()`; the message is
//    held.
// 2. Live messages that come meanwhile are held in order (`Hold`), within the bounds; beyond,
//    `GiveUp`.
// 3. `Replayed` applies what is missing (`Fill`). A message of the replay that is not beyond `last`
//    is skipped.
// 4. When the first held message is the next one (`FinishIfReached`), or at the replay's end
//    (`ReplayEnded`), `Finish` tells kRepaired if nothing is missing, and `ReleaseHeld` applies the
//    held ones.
// 5. Silence for `replay_timeout` (`Tick`) ends in `GiveUp`: the held messages are applied as they
//    are, with their gaps, and `Retry` asks again in the background, with doubled waits.
//
// Invariants: numbers of `held` ascend; outside kFill and kVerify nothing is held between calls. A
// kLost is followed by at most one kRepaired that undoes it (`Replay::lost_told`).

#include "indexer/kv_events/stream_tracker.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

namespace kvatlas {
namespace {

// Beyond this number a stream that goes on at exactly the next number after a reconnection is taken
// for the same engine: a restarted one would have to have reached just this number.
constexpr uint64_t kUnlikelyCoincidence = 1 << 16;
// A retry waits `replay_retry`, doubled with each try up to 64 times of it.
constexpr uint32_t kBackoffDoublingsMax = 6;

// A payload has the time of its sending in its first bytes: both ends and the size tell it from
// others.
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

  // How `TakeLive` ended.
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

  // The only place where `last` advances. A message that applies verifies the stream: either its
  // number followed, or a kLost was pushed.
  void Apply(const Message& message) {
    out->push_back({.kind = Kind::kApply, .number = message.number, .payload = message.payload});
    last = message.number;
    fingerprint = message.fingerprint;
    unverified = false;
    zero_seen = zero_seen || message.number == 0;
  }

  // Numbers [Next(), number) are passed over for now: they are lost unless a rebuild brings them.
  void Pass(uint64_t number) {
    stats.messages_lost += number - Next();
    hole = true;
    Push(Kind::kLost);
  }

  // Starts a replay and forgets the one before. `lost_told`: a kLost stands that this replay may
  // repair.
  void Ask(uint64_t from, Mode new_mode, bool lost_told, Time now) {
    mode = new_mode;
    replay = {.asked_at = now, .heard_at = now, .lost_told = lost_told};
    retry_at.reset();
    ++stats.replays_asked;
    out->push_back({.kind = Kind::kAskReplay, .from = from});
  }

  // As `Ask`, while there is no connection: live messages that are still read from the old one are
  // held back, and `Connected` asks.
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

  // Not while the server is silent: a gap must not hold live messages back for a replay that
  // nothing answers. Not for `replay_retry` after a restart that asked: engines that restart in
  // turns behind one address would be asked all the time.
  bool CanAsk(Time now) const {
    return options.can_replay && !silent && !(quiet_until && now < *quiet_until);
  }

  bool CanBeFirst(uint64_t number) const { return !last && number == 1 && !zero_seen; }

  // Whether 1 is the first number of this engine, so that nothing is missing before it: either a
  // replay from 0 said that nothing is there, or none can be asked.
  bool IsFirst(uint64_t number, Time now) const {
    return CanBeFirst(number) && (nothing_before || !CanAsk(now));
  }

  // ---- Live messages ----

  // Takes a live message in its turn: no replay holds it back. kAsked: a replay was asked for, and
  // the caller holds the message. Cases, in order:
  //
  // 1. At or before `last`: a replay brought it already. The same number with other bytes is a new
  //    incarnation's.
  // 2. A gap: ask, or pass it over and try again later.
  // 3. The next number after an unverified reconnection: beyond `kUnlikelyCoincidence` it is the
  //    same engine, and the loss is repaired; below, the stream goes on with a hole.
  // 4. The next number: applied.
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

  // The first message that was seen of a new incarnation. All that is held of the old one is
  // forgotten. Unless its number is 0 (or the first number 1), `TakeLive` finds a gap before it.
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

  // Tells the worker to drop everything, and starts again without a number.
  void Forget() {
    Push(Kind::kRestarted);
    last.reset();
    fingerprint = 0;
    hole = unverified = nothing_before = beginning_gone = false;
  }

  // Copies the message: its bytes are the caller's. The bound is checked after the copy, so that it
  // is exceeded by one message at most.
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

  // Every live message. `last_live` is compared before the mode is looked at: a number that goes
  // back is a restart, also while a replay runs, whose answers are then of the old incarnation.
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

  // A message of the replay. In kRebuild the first one decides: at the beginning (0, or 1) all is
  // forgotten and filled anew; later, the rebuild is in vain. In kVerify numbers before `last` are
  // skipped, and `last` itself tells whether it is the same engine.
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
      // The replay begins too late to compare: whether or not it is the same engine, something is
      // missing.
      if (number > *last) replay.late = hole = beginning_gone = true;
    }
    Fill(message);
    FinishIfReached(now);
  }

  // Held messages and those of the replay in the order of their numbers: the replay may bring what
  // was held as well, and then each applies once.
  void Fill(const Message& message) {
    while (!held.empty() && held.front().number < message.number) FillOne(PopHeld());
    FillOne(message);
  }

  // A hole inside a replay means that the server's buffer no longer has that part: it will not
  // come.
  void FillOne(const Message& message) {
    if (last && message.number <= *last) return;
    if (message.number != Next() && !CanBeFirst(message.number)) {
      replay.late = beginning_gone = true;
      Pass(message.number);
    }
    Apply(message);
  }

  // Ends the fill once the first held message follows directly. Without held messages only the
  // replay's own end does: more may come.
  void FinishIfReached(Time now) {
    if (mode != Mode::kFill) return;
    if (!held.empty() && held.front().number <= Next()) Finish(now);
  }

  // The server said that nothing more comes. Numbers up to the first live message are missing then
  // (`early`); the first held message is applied with its gap, so that the others follow it.
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

  // Back to live messages. Only a replay that began in time and reached them repairs the loss. A
  // hole that stays leads to a rebuild later, if the beginning can still be had.
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

  // A replay showed another incarnation behind the connection. Messages held since before the
  // connection are of the old one and are dropped, later ones are of the new one and stay.
  // Everything is asked for from 0.
  void NewIncarnation(Time now) {
    ++stats.restarts;
    DropHeld(std::min(replay.held_before, held.size()));
    last_live.reset();
    if (!held.empty()) last_live = held.back().number;
    Forget();
    Push(Kind::kLost);
    Ask(0, Mode::kFill, /*lost_told=*/true, now);
  }

  // The replay was silent or too long, or more live messages came than may be held back. The loss
  // stands; held messages apply.
  void GiveUp(Time now) {
    ++stats.replays_incomplete;
    silent = true;
    hole = hole || replay.lost_told;
    unverified = unverified || (mode == Mode::kVerify && replay.lost_told);
    EndReplay();
    ReleaseHeld(now);
    ScheduleRetry(now);
  }

  // At most `replay_tries` in a row without success. A rebuild is not tried once a replay began
  // behind the beginning: later ones would, too.
  void ScheduleRetry(Time now) {
    if (!options.can_replay || retry_at || tries >= options.replay_tries) return;
    if (hole && beginning_gone && !unverified) return;
    retry_at = now + options.replay_retry * (1 << std::min(tries, kBackoffDoublingsMax));
    ++tries;
  }

  // Verifies, rebuilds or asks for the next number, by what is open.
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

  // The connection is gone; what is still read came over it. A replay that runs is ended: its
  // answers could already be of another incarnation. Its loss stands for the next connection to
  // repair.
  void Disconnected(Time now) {
    gone = true;
    if (mode == Mode::kLive) return;
    const bool lost_told = replay.lost_told && !replay.late;
    const bool rebuild = mode == Mode::kRebuild;
    EndReplay();
    if (!rebuild) Await(lost_told, now);
  }

  // A connection came. The first one of an idle engine asks from 0, since an engine that has
  // nothing new says nothing. A later one cannot tell by itself whether the same engine is there:
  // kLost first, then a replay from `last` verifies. Without a replay endpoint the loss stands
  // until numbers prove the opposite (`TakeLive`).
  void Connected(bool current, Time now) {
    const bool first = !connected_before;
    connected_before = true;
    gone = !current;
    // A resumed tracker has heard no live message. From this connection on, a live number up to
    // `last` means another incarnation.
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
      // Nothing says of which incarnation they are; the replay has them if it is the same.
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

  // Time alone: an overdue replay is given up, a retry that is due is asked.
  void Tick(Time now) {
    if (mode != Mode::kLive) {
      const bool overdue = now - replay.heard_at > options.replay_timeout ||
                           now - replay.asked_at > options.replay_total;
      if (overdue) GiveUp(now);
    } else if (retry_at && now >= *retry_at && !gone) {
      Retry(now);
    }
  }

  // Begins every public call: payloads that the last call's actions pointed to go, actions are
  // appended to `actions`.
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

// A pause of ours is no silence of the server.
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

// `released` counts: a further call frees its memory.
bool StreamTracker::busy() const {
  return state_->mode != State::Mode::kLive || state_->retry_at || !state_->released.empty();
}

const TrackerStats& StreamTracker::stats() const {
  state_->stats.last = state_->last;
  state_->stats.replaying = state_->mode != State::Mode::kLive;
  return state_->stats;
}

}  // namespace kvatlas
