// Rounds of questions on one thread (`Run` → `Round`: `AskNodes`, level by level, then
// `AskLeaves`), and the page made of what they found (`Get`). No question is asked with the mutex
// held.

#include "frontend/ui/fleet_watch.h"

#include <algorithm>

#include "frontend/ui/gathered_answers.h"

namespace kvatlas {
namespace {

constexpr size_t kAskedAtOnce = 64;
constexpr uint32_t kLateTimes = 2;  // then it is unreachable
constexpr int kFreshRounds = 3;
constexpr uint64_t kForgetAfterRounds = 150;  // five minutes, where a node does not answer

uint32_t MsSince(Time then, Time now) {
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - then).count();
  return static_cast<uint32_t>(std::max<int64_t>(0, ms));
}

int64_t UnixMs(const Clock& clock) { return static_cast<int64_t>(clock.WallNs() / 1'000'000); }

}  // namespace

// Refusing a connection is a statement; lateness counts only when it repeats. "refused": it is
// there, and does not tell us.
std::string FleetWatch::Peer::state() const {
  if (failed == 0) return answered.has_value() ? "fresh" : "asked";
  if (refused) return "refused";
  return gone || failed >= kLateTimes ? "unreachable" : "late";
}

FleetWatch::FleetWatch(FleetWatchOptions options, FleetSources sources, PeerAsker* asker,
                       const Clock* clock)
    : options_(options), sources_(std::move(sources)), asker_(asker), clock_(clock) {}

FleetWatch::~FleetWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void FleetWatch::Start() {
  thread_ = std::thread([this] { Run(); });
}

// Sleeps until a browser looks, then a round every `every`, measured from the end of the one
// before, so that slow rounds do not run into each other.
void FleetWatch::Run() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    const Time now = clock_->Now();
    const bool wanted = wanted_.has_value() && now - *wanted_ <= options_.wanted_for;
    const Duration left = ended_.has_value() ? *ended_ + options_.every - now : Duration(0);
    if (!wanted) {
      wake_.Wait(&mutex_);
    } else if (left > Duration(0)) {
      wake_.WaitFor(&mutex_, left);
    } else {
      mutex_.Unlock();
      Round();
      mutex_.Lock();
    }
  }
}

// Own cells are set each time: the configuration may have changed. They count as seen, so they are
// not forgotten.
void FleetWatch::Round() {
  uint64_t round;
  {
    MutexLock lock(&mutex_);
    round = ++rounds_;
    for (const auto& [name, address] : sources_.leaves()) {
      Cell& cell = cells_[name];
      cell.address = address;
      cell.seen = round;
    }
  }
  AskNodes(round);
  AskLeaves(round);
  MutexLock lock(&mutex_);
  ended_ = clock_->Now();
}

// Returns when each has answered, or is late: the asker keeps to the deadline.
std::vector<FleetWatch::Answer> FleetWatch::AskAll(const std::vector<Question>& questions) {
  GatheredAnswers<v1::StatsResponse> answers(questions.size());
  for (size_t i = 0; i < questions.size(); ++i)
    asker_->Ask(questions[i].what, questions[i].address, options_.deadline, answers.Slot(i));
  return answers.Wait();
}

// Asks nodes from the top down, level by level, `kAskedAtOnce` at a time. A node that several name
// is asked once; `nodes_max` bounds all of them. At the end, what was not met in this round is
// forgotten.
void FleetWatch::AskNodes(uint64_t round) {
  std::vector<Named> level;
  std::set<std::string> known;
  bool all_answered = true;
  for (std::string& address : sources_.nodes())
    if (known.insert(address).second)
      level.push_back({.address = std::move(address), .region = ""});
  while (!level.empty()) {
    std::vector<Named> lower;
    for (size_t from = 0; from < level.size(); from += kAskedAtOnce) {
      const size_t to = std::min(level.size(), from + kAskedAtOnce);
      std::vector<Question> questions;
      for (size_t i = from; i < to; ++i) questions.push_back({StatsOf::kNode, level[i].address});
      const std::vector<Answer> answers = AskAll(questions);
      MutexLock lock(&mutex_);
      for (size_t i = from; i < to; ++i) {
        all_answered &= answers[i - from].ok();
        TakeNode(level[i], answers[i - from], round, &lower);
      }
    }
    level.clear();
    for (Named& node : lower)
      if (known.size() < options_.nodes_max && known.insert(node.address).second)
        level.push_back(std::move(node));
  }
  MutexLock lock(&mutex_);
  Forget(round, all_answered);
  std::erase_if(nodes_, [&](const auto& node) { return !known.contains(node.first); });
  std::erase_if(peers_, [&](const auto& peer) {
    return peer.second.kind == "hierarchy" && !known.contains(peer.first);
  });
}

// Cells become known, nodes below go to `lower`. The region of a cell is the name of the highest
// node below the top that it is under, unless it says one itself.
void FleetWatch::TakeNode(const Named& node, const Answer& answer, uint64_t round,
                          std::vector<Named>* lower) {
  Peer& peer = Note("hierarchy", node.address, answer);
  if (!answer.ok()) return;
  peer.name = answer->cell();
  Node& kept = nodes_[node.address];
  kept.streams.clear();
  AppendStreams(*answer, &kept.streams);
  kept.streams_total = kept.streams.size();
  KeepWorst(kStreamsShown, &kept.streams);
  AppendModels(*answer, &models_);
  for (ReportedCell& reported : ReportedBy(*answer)) {
    if (reported.is_node) {
      const std::string& region = node.region.empty() ? reported.cell.name : node.region;
      lower->push_back({.address = reported.cell.address, .region = region});
      continue;
    }
    if (reported.cell.region.empty()) reported.cell.region = node.region;
    if (cells_.size() >= options_.cells_max && !cells_.contains(reported.cell.name)) continue;
    Cell& cell = cells_[reported.cell.name];
    // Several nodes may name a cell; the best state counts, as it does for routes.
    const bool first = cell.seen != round || !cell.is_reported;
    if (first || std::pair(reported.cell.health, reported.cell.age_ms) <
                     std::pair(cell.reported.health, cell.reported.age_ms)) {
      if (!reported.cell.address.empty()) cell.address = reported.cell.address;
      cell.reported = std::move(reported.cell);
    }
    cell.is_reported = true;
    cell.seen = round;
  }
}

// Keeps how the question went. The peer's earlier words stay.
FleetWatch::Peer& FleetWatch::Note(const std::string& kind, const std::string& address,
                                   const Answer& answer) {
  Peer& peer = peers_[address];
  peer.kind = kind;
  if (answer.ok()) {
    peer.answered = clock_->Now();
    peer.version = answer->process().version();
    peer.error.clear();
    peer.failed = 0;
    return peer;
  }
  ++peer.failed;
  peer.error = std::string(answer.status().message());
  peer.gone = absl::IsUnavailable(answer.status());
  peer.refused =
      absl::IsPermissionDenied(answer.status()) || absl::IsUnauthenticated(answer.status());
  return peer;
}

// Forgets cells that no node names any more: at once if all nodes were heard, otherwise after
// `kForgetAfterRounds`, since the silent node may be the one that names them.
void FleetWatch::Forget(uint64_t round, bool all_answered) {
  std::set<std::string> gone;
  std::erase_if(cells_, [&](const auto& named) {
    const Cell& cell = named.second;
    if (cell.seen == round || (!all_answered && cell.seen + kForgetAfterRounds > round))
      return false;
    gone.insert(cell.address);
    return true;
  });
  std::erase_if(peers_, [&](const auto& peer) {
    return peer.second.kind == "leaf" && gone.contains(peer.first);
  });
}

// The cells whose leaves are asked in this round: the one that is looked at, those never asked,
// then those asked longest ago. So every leaf's turn comes, however many there are.
std::vector<std::string> FleetWatch::NextLeaves() {
  std::vector<std::pair<Time, std::string>> order;
  for (const auto& [name, cell] : cells_) {
    if (cell.address.empty()) continue;
    order.emplace_back(
        name == wanted_cell_ ? Time::min() : cell.asked.value_or(Time::min() + Duration(1)), name);
  }
  const size_t count = std::min(order.size(), options_.leaves_per_round);
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end());
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(std::move(order[i].second));
  return names;
}

// `asked` is set before the answers come: a leaf that never answers must not be first in every
// round.
void FleetWatch::AskLeaves(uint64_t) {
  std::vector<std::string> names;
  std::vector<Question> questions;
  {
    MutexLock lock(&mutex_);
    names = NextLeaves();
    for (const std::string& name : names) {
      Cell& cell = cells_[name];
      cell.asked = clock_->Now();
      questions.push_back({StatsOf::kLeaf, cell.address});
    }
  }
  std::vector<Answer> answers = AskAll(questions);
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < names.size(); ++i) TakeLeaf(names[i], std::move(answers[i]));
}

// Workers are kept one by one up to `workers_max` in all cells; of a cell that exceeds it the sums
// alone stay.
void FleetWatch::TakeLeaf(const std::string& name, Answer answer) {
  Cell& cell = cells_[name];
  Note("leaf", cell.address, answer).name = name;
  if (!answer.ok()) return;
  cell.answered = clock_->Now();
  cell.streams.clear();
  AppendStreams(*answer, &cell.streams);
  cell.streams_total = cell.streams.size();
  KeepWorst(kStreamsShown, &cell.streams);
  AppendModels(*answer, &models_);
  cell.told = CellOf(*answer);
  size_t workers = 0;
  for (const auto& [other, known] : cells_)
    if (known.told.has_value()) workers += known.told->workers.size();
  if (workers > options_.workers_max) {
    cell.told->workers.clear();
    cell.told->workers.shrink_to_fit();
  } else {
    cell.told->workers_at_ms = UnixMs(*clock_);
  }
}

// Three sources, from the least to the most current: nodes' reports, the leaf's own words, and
// whether it answers. Health is the worse of the first two, unless the leaf is unreachable.
FleetCell FleetWatch::Shown(const std::string& name, const Cell& cell, int64_t now_ms) const {
  FleetCell shown = cell.reported;
  shown.name = name;
  shown.address = cell.address;
  if (!cell.is_reported) shown.health = FleetHealth::kUnknown;
  if (cell.told.has_value()) {
    const FleetCell& told = *cell.told;
    shown.version = told.version;
    shown.workers = told.workers;
    shown.workers_at_ms = told.workers_at_ms;
    shown.workers_count = told.workers_count;
    shown.workers_silent = told.workers_silent;
    shown.blocks = told.blocks;
    shown.load = told.load;
    if (!cell.is_reported) {
      shown.health = told.health;
      shown.age_ms = MsSince(*cell.answered, clock_->Now());
    } else {
      shown.health = std::max(shown.health, told.health);
    }
    // Workers grow older with the answer that told of them.
    const auto older =
        static_cast<uint32_t>(std::max<int64_t>(0, now_ms - told.workers_at_ms.value_or(now_ms)));
    for (FleetWorker& worker : shown.workers) worker.age_ms += older;
  }
  const auto peer = peers_.find(cell.address);
  if (peer == peers_.end() || peer->second.kind != "leaf") return shown;
  const std::string state = peer->second.state();
  if (state != "fresh" && state != "asked") shown.why = peer->second.error;
  if (state == "unreachable") {
    shown.health = FleetHealth::kUnreachable;
    const std::optional<Time> heard = cell.answered;
    shown.age_ms = heard.has_value() ? MsSince(*heard, clock_->Now()) : shown.age_ms;
  }
  return shown;
}

std::vector<std::pair<std::string, std::string>> FleetWatch::Leaves() {
  std::vector<std::pair<std::string, std::string>> leaves;
  MutexLock lock(&mutex_);
  for (const auto& [name, cell] : cells_) {
    const auto peer = peers_.find(cell.address);
    const bool gone = peer != peers_.end() && peer->second.state() == "unreachable";
    if (!cell.address.empty() && !gone) leaves.emplace_back(name, cell.address);
  }
  return leaves;
}

// Copies what is known, and wakes the thread: the first look at a page finds little, the next one
// what the round found.
FleetPage FleetWatch::Get(const std::string& name) {
  FleetPage fleet;
  fleet.now_ms = UnixMs(*clock_);
  MutexLock lock(&mutex_);
  const Time now = clock_->Now();
  fleet.fresh = ended_.has_value() && now - *ended_ <= kFreshRounds * options_.every;
  wanted_ = now;
  if (!name.empty()) wanted_cell_ = name;
  wake_.SignalAll();
  for (const auto& [cell_name, cell] : cells_) {
    fleet.cells.push_back(Shown(cell_name, cell, fleet.now_ms));
    fleet.streams.insert(fleet.streams.end(), cell.streams.begin(), cell.streams.end());
    fleet.streams_total += cell.streams_total;
  }
  for (const auto& [address, node] : nodes_) {
    fleet.streams.insert(fleet.streams.end(), node.streams.begin(), node.streams.end());
    fleet.streams_total += node.streams_total;
  }
  for (const auto& [address, peer] : peers_) {
    FleetPeer& shown = fleet.peers.emplace_back();
    shown.kind = peer.kind;
    shown.name = peer.name;
    shown.address = address;
    shown.version = peer.version;
    shown.state = peer.state();
    shown.error = peer.error;
    if (peer.answered.has_value()) shown.age_ms = MsSince(*peer.answered, now);
  }
  fleet.models = models_;
  return fleet;
}

}  // namespace kvatlas
