#include "indexer/engines/stream_tracker.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

namespace kvatlas {
namespace {

// An engine that restarted while nobody was connected is not found at exactly the next number beyond this one.
constexpr uint64_t kUnlikelyCoincidence = 1 << 16;
constexpr uint32_t kBackoffDoublingsMax = 6;

uint64_t Fingerprint(std::string_view payload) {
  return XXH3_64bits(payload.data(), payload.size());
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

  struct Held {
    uint64_t number;
    std::string payload;
  };

  explicit State(const TrackerOptions& options) : options(options) {}

  // ---- What is done ----

  void Push(Kind kind) { out->push_back({.kind = kind}); }

  void Apply(uint64_t number, std::string_view payload) {
    out->push_back({.kind = Kind::kApply, .number = number, .payload = payload});
    last = number;
    fingerprint = Fingerprint(payload);
    unverified = false;
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

  void EndReplay() {
    mode = Mode::kLive;
    Push(Kind::kEndReplay);
  }

  // ---- What is known ----

  uint64_t Next() const { return last ? *last + 1 : 0; }

  bool CanAsk(Time now) const {
    return options.can_replay && !silent && !(quiet_until && now < *quiet_until);
  }

  // The first number of an engine, when it is not 0.
  bool IsFirst(uint64_t number, Time now) const {
    return !last && number == 1 && (nothing_before || !CanAsk(now));
  }

  bool IsRepeat(uint64_t number, std::string_view payload) const {
    if (last == number) return fingerprint == Fingerprint(payload);
    return !held.empty() && held.back().number == number && held.back().payload == payload;
  }

  // ---- Live messages ----

  // One live message in its turn, no replay holding it back. kAsked: it is to be held back for the replay asked for.
  Step TakeLive(uint64_t number, std::string_view payload, Time now) {
    if (last && number <= *last) {
      if (number == *last && fingerprint != Fingerprint(payload)) {
        return TakeRestart(number, payload, now);
      }
      ++stats.duplicates;
      return Step::kDone;
    }
    if (number != Next() && !IsFirst(number, now)) {
      ++stats.gaps;
      if (CanAsk(now)) {
        Push(Kind::kLost);
        Ask(Next(), Mode::kFill, /*lost_told=*/true, now);
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
    Apply(number, payload);
    return Step::kDone;
  }

  // `number` is the first that was seen of a new incarnation.
  Step TakeRestart(uint64_t number, std::string_view payload, Time now) {
    ++stats.restarts;
    if (mode != Mode::kLive) EndReplay();
    Forget();
    tries = 0;
    retry_at.reset();
    const Step step = TakeLive(number, payload, now);
    if (step == Step::kAsked) quiet_until = now + options.replay_retry;
    return step;
  }

  void Forget() {
    Push(Kind::kRestarted);
    last.reset();
    fingerprint = 0;
    hole = unverified = nothing_before = false;
  }

  void Hold(uint64_t number, std::string_view payload, Time now) {
    held.push_back({number, std::string(payload)});
    stats.held_bytes += payload.size();
    if (held.size() > options.held_messages_max || stats.held_bytes > options.held_bytes_max) {
      GiveUp(now);
    }
  }

  // The oldest message held back: its bytes stay until the next call.
  std::pair<uint64_t, std::string_view> PopHeld() {
    released.push_back(std::move(held.front().payload));
    const uint64_t number = held.front().number;
    held.pop_front();
    stats.held_bytes -= released.back().size();
    return {number, released.back()};
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
      const auto [number, payload] = PopHeld();
      if (TakeLive(number, payload, now) == Step::kDone) continue;
      stats.held_bytes += payload.size();
      held.push_front({number, std::move(released.back())});
      released.pop_back();
    }
  }

  void Live(uint64_t number, std::string_view payload, Time now) {
    ++stats.messages;
    if (last_live && number <= *last_live) {
      if (IsRepeat(number, payload)) {
        ++stats.duplicates;
        return;
      }
      DropHeld(held.size());
      last_live = number;
      if (TakeRestart(number, payload, now) == Step::kAsked) Hold(number, payload, now);
      return;
    }
    last_live = number;
    if (mode == Mode::kFill && number == 0 && !last && held.empty()) {
      EndReplay();  // the very first message: there was nothing to be replayed
      if (replay.lost_told) Push(Kind::kRepaired);
    } else if ((mode == Mode::kFill || mode == Mode::kVerify) && silent) {
      EndReplay();  // asked again in the background, and still silent: nothing waits for that
    }
    if (mode == Mode::kLive || mode == Mode::kRebuild) {
      if (TakeLive(number, payload, now) == Step::kAsked) Hold(number, payload, now);
      return;
    }
    Hold(number, payload, now);
    if (mode == Mode::kFill && replay.answered) FinishIfReached(now);
  }

  // ---- Replay ----

  void Replayed(uint64_t number, std::string_view payload, Time now) {
    if (mode == Mode::kLive) return;
    ++stats.replayed;
    replay.heard_at = now;
    replay.answered = true;
    silent = false;
    if (mode == Mode::kRebuild) {
      if (number > 1) {  // it does not reach back to the beginning either
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
      if (number == *last && fingerprint != Fingerprint(payload)) {
        NewIncarnation(now);
        return;
      }
    }
    Fill(number, payload);
    FinishIfReached(now);
  }

  void Fill(uint64_t number, std::string_view payload) {
    while (!held.empty() && held.front().number < number) {
      const auto [live_number, live_payload] = PopHeld();
      FillOne(live_number, live_payload);
    }
    FillOne(number, payload);
  }

  void FillOne(uint64_t number, std::string_view payload) {
    if (last && number <= *last) return;
    if (number != Next() && !(number == 1 && !last)) {
      replay.late = true;
      Pass(number);
    }
    Apply(number, payload);
  }

  // Is there nothing more that only a replay can bring?
  void FinishIfReached(Time now) {
    if (mode != Mode::kFill) return;
    if (!held.empty() && held.front().number <= Next()) Finish(now);
  }

  void ReplayEnded(Time now) {
    if (mode == Mode::kLive) return;
    silent = false;
    if (mode == Mode::kRebuild) {
      ++stats.replays_incomplete;
      EndReplay();
      return;
    }
    if (mode == Mode::kVerify) {  // it never published what we had from it
      NewIncarnation(now);
      return;
    }
    nothing_before = !last;
    const uint64_t wanted = !held.empty() ? held.front().number : last_live ? *last_live + 1 : 0;
    if (wanted > Next() && !(nothing_before && wanted == 1)) {
      replay.early = true;
      hole = true;
      if (!held.empty()) {
        const auto [number, payload] = PopHeld();
        Pass(number);
        Apply(number, payload);
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
      if (!replay.late) ScheduleRetry(now);
    }
    unverified = false;
    ReleaseHeld(now);
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

  void Connected(Time now) {
    const bool first = !connected_before;
    connected_before = true;
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
    bool lost_told = mode != Mode::kLive && replay.lost_told;
    if (last && !first && !lost_told) {
      Push(Kind::kLost);
      lost_told = true;
    }
    if (last) {
      Ask(*last, Mode::kVerify, lost_told, now);
    } else {
      Ask(0, Mode::kFill, lost_told, now);
    }
    replay.held_before = held.size();
  }

  void Tick(Time now) {
    if (mode != Mode::kLive) {
      const bool overdue = now - replay.heard_at > options.replay_timeout ||
                           now - replay.asked_at > options.replay_total;
      if (overdue) GiveUp(now);
    } else if (retry_at && now >= *retry_at) {
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
  bool hole = false;            // something was passed over since the last restart
  bool unverified = false;      // reconnected, and nothing has shown yet that it is the same engine
  bool nothing_before = false;  // a replay from 0 was empty: the first number is what comes first
  bool connected_before = false;

  Mode mode = Mode::kLive;
  struct Replay {
    Time asked_at{0};
    Time heard_at{0};
    bool lost_told = false;  // a Lost stands that this replay repairs
    bool answered = false;
    bool late = false;       // began later than asked, or had holes
    bool early = false;      // ended before the live messages
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
  state_->Live(number, payload, now);
}

void StreamTracker::OnReplayed(uint64_t number, std::string_view payload, Time now,
                               std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->Replayed(number, payload, now);
}

void StreamTracker::OnReplayEnd(Time now, std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->ReplayEnded(now);
}

void StreamTracker::OnConnected(Time now, std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->Connected(now);
}

void StreamTracker::Tick(Time now, std::vector<Action>* actions) {
  state_->Begin(actions);
  state_->Tick(now);
}

void StreamTracker::OnResumed(Time now) {
  state_->replay.heard_at = now;
  state_->replay.asked_at = now;
}

void StreamTracker::Resume(const StreamPosition& position) {
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
