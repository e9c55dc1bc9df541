// Set takes a new state and logs the change, SayChange bounds the records per minute, and SayAgain
// repeats a state that lasts. Everything happens within Set and Tick, under the mutex; no thread
// waits for a minute to pass.

#include "indexer/net/connection_watch.h"

#include <array>
#include <utility>

namespace kvatlas {
namespace {

// In whole seconds: "3m", "12s".
Duration Seconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration);
}

}  // namespace

std::string_view ConnectionStateName(ConnectionState state) {
  constexpr std::array<std::string_view, 4> kNames = {"connecting", "connected", "unreachable",
                                                      "refused"};
  return kNames[static_cast<size_t>(state)];
}

ConnectionState ConnectionStateOf(const std::optional<absl::Status>& how) {
  if (!how.has_value()) return ConnectionState::kConnecting;
  if (how->ok()) return ConnectionState::kConnected;
  return absl::IsUnavailable(*how) ? ConnectionState::kUnreachable : ConnectionState::kRefused;
}

std::string ConnectionStatus::ToString() const {
  const std::string name(ConnectionStateName(state));
  return reason.empty() ? name : name + ": " + reason;
}

// `next_` stays when the condition ends, so a condition that comes and goes is reported once a
// minute too.
bool EveryMinute::Due(bool holds, Time now) {
  if (!holds || (next_.has_value() && now < *next_)) return false;
  next_ = now + kSaidAgainAfter;
  return true;
}

ConnectionWatch::ConnectionWatch(std::string_view what, std::string endpoint,
                                 std::vector<LogField> who, const Clock* clock)
    : what_(what), endpoint_(std::move(endpoint)), who_(std::move(who)), clock_(clock) {
  MutexLock lock(&mutex_);
  since_ = not_connected_since_ = clock_->Now();
  again_at_ = minute_ends_ = since_ + kSaidAgainAfter;
}

// 1. Keeps the reason; a connected one has none.
// 2. The same state is no change: only SayAgain may speak. A refusal with another reason is one.
// 3. A change restarts the minute of SayAgain and is logged by SayChange.
// `ever_` is set last: SayChange calls the first success "connected", later ones "connected again".
void ConnectionWatch::Set(ConnectionState state, std::string_view reason) {
  MutexLock lock(&mutex_);
  const Time now = clock_->Now();
  const bool other_refusal = state == ConnectionState::kRefused && reason_ != reason;
  reason_ = state == ConnectionState::kConnected ? std::string_view() : reason;
  if (state == state_ && !other_refusal) return SayAgain(now);
  const ConnectionState before = std::exchange(state_, state);
  if (before == ConnectionState::kConnected) not_connected_since_ = now;
  if (before != state_) since_ = now;
  again_at_ = now + kSaidAgainAfter;
  SayChange(before, now);
  ever_ = ever_ || state == ConnectionState::kConnected;
}

void ConnectionWatch::Set(const std::optional<absl::Status>& how) {
  const absl::string_view why = how.has_value() ? how->message() : absl::string_view();
  Set(ConnectionStateOf(how), {why.data(), why.size()});
}

void ConnectionWatch::Tick() {
  MutexLock lock(&mutex_);
  SayAgain(clock_->Now());
}

ConnectionStatus ConnectionWatch::Get() const {
  MutexLock lock(&mutex_);
  ConnectionStatus status{
      .state = state_, .reason = {}, .since = clock_->Now() - since_, .ever = ever_};
  if (state_ == ConnectionState::kConnected) return status;
  if (state_ == ConnectionState::kConnecting && reason_.empty()) return status;
  status.reason = reason_.empty() ? endpoint_ : endpoint_ + ": " + reason_;
  return status;
}

std::string_view ConnectionWatch::ChangeName(ConnectionState before) const {
  if (state_ == ConnectionState::kConnected) return ever_ ? "connected again" : "connected";
  if (state_ == ConnectionState::kRefused) return "refused";
  return before == ConnectionState::kConnected ? "connection lost" : ConnectionStateName(state_);
}

// One record, with the fields of `who_` for context. `changes` says how many records were left out
// before it.
void ConnectionWatch::Say(std::string_view event, std::vector<LogField> more) {
  std::vector<LogField> fields = {{"connection", what_}};
  fields.insert(fields.end(), who_.begin(), who_.end());
  fields.emplace_back("endpoint", endpoint_);
  if (!reason_.empty()) fields.emplace_back("reason", reason_);
  fields.insert(fields.end(), more.begin(), more.end());
  if (unsaid_ > 0) fields.emplace_back("changes", std::exchange(unsaid_, 0));
  LogLevel level = LogLevel::kWarning;
  if (state_ == ConnectionState::kConnected) level = LogLevel::kInfo;
  if (state_ == ConnectionState::kRefused) level = LogLevel::kError;
  LogAll(level, event, fields);
}

void ConnectionWatch::SayChange(ConnectionState before, Time now) {
  // Connecting again after a failed attempt is no news: the next outcome, or SayAgain, is.
  if (state_ == ConnectionState::kConnecting && before != ConnectionState::kConnected) return;
  if (now >= minute_ends_) {
    minute_ends_ = now + kSaidAgainAfter;
    changes_ = 0;
  }
  if (++changes_ > kChangesPerMinute) {
    ++unsaid_;
    return;
  }
  std::vector<LogField> more;
  const Duration away = Seconds(now - not_connected_since_);
  if (state_ == ConnectionState::kConnected && away > Duration(0)) more.emplace_back("after", away);
  Say(ChangeName(before), std::move(more));
}

void ConnectionWatch::SayAgain(Time now) {
  if (now < again_at_ || (state_ == ConnectionState::kConnected && unsaid_ == 0)) return;
  again_at_ = now + kSaidAgainAfter;
  if (state_ == ConnectionState::kConnected) return Say("connected again", {});
  constexpr std::array<std::string_view, 4> kAgain = {"still connecting", "", "still unreachable",
                                                      "still refused"};
  Say(kAgain[static_cast<size_t>(state_)], {{"for", Seconds(now - not_connected_since_)}});
}

}  // namespace kvatlas
