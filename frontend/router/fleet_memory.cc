// The fleet as last seen, by domain, and what was sent there since. All maps of a domain go when
// the domain is the one touched longest ago (`Touch`). Turns and choices in flight are by cell and
// not by domain, because tenants and adapters share workers. No method locks: the owner
// (`ModelFleet`) does. Evictions search linearly; they happen only at a bound.

#include "frontend/router/fleet_memory.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>

#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// A cell's share of kept promises is an exponential average: the latest promise weighs
// `kLatestPromise`, so half of the share is of the last five. Down to `kBelievedInFull` promises
// are believed in full, since a rare miss is normal churn.
constexpr double kLatestPromise = 1.0 / 8;
constexpr double kBelievedInFull = 0.75;

// A line a minute and cell.
LogLimiter& PromiseLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(60));
  return limiter;
}

template <typename Map>
// REQUIRES: the map is not empty.
auto Oldest(Map& map) {
  return std::min_element(map.begin(), map.end(), [](const auto& a, const auto& b) {
    return a.second.seen < b.second.seen;
  });
}

}  // namespace

void SortPromises(size_t cells_max, std::vector<CellPromises>* cells) {
  const size_t shown = std::min(cells_max, cells->size());
  std::partial_sort(cells->begin(), cells->begin() + static_cast<ptrdiff_t>(shown), cells->end(),
                    [](const CellPromises& a, const CellPromises& b) {
                      return std::tuple(a.believed >= kBelievedInFull, b.broken, a.cell) <
                             std::tuple(b.believed >= kBelievedInFull, a.broken, b.cell);
                    });
  cells->resize(shown);
}

// The domain's entry for writing, made if needed. Readers use `domains_.find`, so that a question
// about an unknown domain neither makes an entry nor evicts one.
FleetMemory::OfDomain& FleetMemory::Touch(const Domain& domain, Time now) {
  if (!domains_.contains(domain) && domains_.size() >= options_.domains_max) {
    domains_.erase(std::min_element(
        domains_.begin(), domains_.end(),
        [](const auto& a, const auto& b) { return a.second.touched < b.second.touched; }));
  }
  OfDomain& of_domain = domains_[domain];
  of_domain.touched = now;
  return of_domain;
}

// Takes cells that a hierarchy named. Strings and labels are assigned only where they differ: this
// runs in every route, and cells rarely change. Labels are shared with candidates, so they are
// replaced and never written to.
void FleetMemory::SawCells(const Domain& domain, std::span<const CellFound> cells, Time now) {
  OfDomain& of_domain = Touch(domain, now);
  for (const CellFound& found : cells) {
    KnownCell& known = of_domain.cells[found.cell];
    if (known.cell.empty()) known.cell = found.cell;
    if (known.address != found.address) known.address = found.address;
    known.load = found.load;
    known.seen = now;
    if (found.labels.empty()) {
      known.labels = nullptr;
    } else if (known.labels == nullptr || *known.labels != found.labels) {
      known.labels = std::make_shared<const Labels>(found.labels);
    }
  }
  while (of_domain.cells.size() > options_.cells_max)
    of_domain.cells.erase(Oldest(of_domain.cells));
}

void FleetMemory::SawWorkers(const Domain& domain, const std::string& cell,
                             std::shared_ptr<const WorkersAnswer> answer, Time now) {
  OfDomain& of_domain = Touch(domain, now);
  CellWorkers& of_cell = of_domain.workers[cell];
  of_domain.worker_count += answer->workers.size();
  if (of_cell.answer != nullptr) of_domain.worker_count -= of_cell.answer->workers.size();
  of_cell = {.answer = std::move(answer), .seen = now};
  // The answer just taken has the newest `seen`, and one entry always stays, so it is never the one
  // that goes.
  while (of_domain.worker_count > options_.workers_max && of_domain.workers.size() > 1) {
    const auto oldest = Oldest(of_domain.workers);
    of_domain.worker_count -= oldest->second.answer->workers.size();
    of_domain.workers.erase(oldest);
  }
}

// Answers are immutable and shared with routes: one that names such a worker is replaced by a copy
// without it.
void FleetMemory::Forget(const std::set<std::string>& names) {
  const auto is_one = [&](const WorkerFound& found) { return names.contains(found.worker.name); };
  for (auto& [domain, of_domain] : domains_) {
    for (auto& [cell, of_cell] : of_domain.workers) {
      const std::vector<WorkerFound>& known = of_cell.answer->workers;
      if (std::none_of(known.begin(), known.end(), is_one)) continue;
      auto rest = std::make_shared<WorkersAnswer>(*of_cell.answer);
      of_domain.worker_count -= std::erase_if(rest->workers, is_one);
      of_cell.answer = std::move(rest);
    }
  }
}

// A cell without roles has no entry, so that `has_roles` is false in a fleet without any, and its
// routes look no further.
void FleetMemory::SawRoles(const Domain& domain, CellRoles roles, Time now) {
  auto& known = Touch(domain, now).roles;
  if (!roles.prefills && roles.decoders == 0) {
    if (!known.empty()) known.erase(roles.cell);
    return;
  }
  roles.seen = now;
  CellRoles& of_cell = known[roles.cell];
  of_cell = std::move(roles);
  while (known.size() > options_.cells_max) known.erase(Oldest(known));
}

const CellRoles* FleetMemory::RolesOf(const Domain& domain, const std::string& cell) const {
  const auto of = domains_.find(domain);
  if (of == domains_.end() || of->second.roles.empty()) return nullptr;
  const auto found = of->second.roles.find(cell);
  return found == of->second.roles.end() ? nullptr : &found->second;
}

std::vector<CellRoles> FleetMemory::DecodeCells(const Domain& domain) const {
  std::vector<CellRoles> cells;
  const auto of = domains_.find(domain);
  if (of == domains_.end()) return cells;
  for (const auto& [name, roles] : of->second.roles) {
    if (roles.decoders > 0) cells.push_back(roles);
  }
  return cells;
}

bool FleetMemory::has_roles(const Domain& domain) const {
  const auto of = domains_.find(domain);
  return of != domains_.end() && !of->second.roles.empty();
}

// Test and set in one call, under the owner's lock: of routes at the same time one gets true.
bool FleetMemory::IsDue(const Domain& domain, Errand errand, Duration every, Time now) {
  if (!has_roles(domain)) return false;
  OfDomain& of = Touch(domain, now);
  std::optional<Time>& last = errand == Errand::kListCells ? of.listed : of.explored;
  if (last.has_value() && *last + every > now) return false;
  last = now;
  return true;
}

std::optional<Time> FleetMemory::Answered(const Domain& domain, const std::string& cell) const {
  const auto of = domains_.find(domain);
  if (of == domains_.end()) return std::nullopt;
  const auto found = of->second.workers.find(cell);
  if (found == of->second.workers.end()) return std::nullopt;
  return found->second.seen;
}

std::vector<KnownCell> FleetMemory::Cells(const Domain& domain) const {
  std::vector<KnownCell> cells;
  const auto found = domains_.find(domain);
  if (found == domains_.end()) return cells;
  for (const auto& [name, cell] : found->second.cells) cells.push_back(cell);
  std::stable_sort(cells.begin(), cells.end(),
                   [](const KnownCell& a, const KnownCell& b) { return a.seen > b.seen; });
  return cells;
}

std::vector<KnownWorker> FleetMemory::Workers(const Domain& domain) const {
  std::vector<KnownWorker> workers;
  const auto found = domains_.find(domain);
  if (found == domains_.end()) return workers;
  for (const auto& [cell, of_cell] : found->second.workers) {
    for (const WorkerFound& worker : of_cell.answer->workers) {
      workers.push_back(
          {.cell = cell, .worker = worker.worker, .load = worker.load, .seen = of_cell.seen});
    }
  }
  return workers;
}

// Cells and workers are kept apart: a leaf may be configured that no hierarchy names, and then has
// no labels here.
std::vector<KnownAnswer> FleetMemory::Answers(const Domain& domain) const {
  std::vector<KnownAnswer> answers;
  const auto found = domains_.find(domain);
  if (found == domains_.end()) return answers;
  for (const auto& [cell, of_cell] : found->second.workers) {
    const auto known = found->second.cells.find(cell);
    answers.push_back({.cell = cell, .answer = of_cell.answer, .seen = of_cell.seen});
    if (known != found->second.cells.end()) answers.back().labels = known->second.labels;
  }
  return answers;
}

// Runs for each candidate cell under the model's lock, so it looks up the cell once in each map,
// and returns an empty list where nothing was sent to the cell.
std::vector<WorkerNow> FleetMemory::Now(const Domain& domain, const std::string& cell,
                                        std::span<const WorkerFound> workers, bool turns) const {
  const std::vector<InFlight> in_flight = choices_.To(cell, workers);
  const auto turns_of = turns_.find(cell);
  if (in_flight.empty() && turns_of == turns_.end()) return {};
  const auto crowding_of = recently_stored_.CrowdingAmong(FleetWorkers(domain));
  std::vector<WorkerNow> now(workers.size());
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!in_flight.empty()) now[i].in_flight = in_flight[i];
    if (turns_of == turns_.end()) continue;
    const auto turn = turns_of->second.find(workers[i].worker);
    if (turn == turns_of->second.end()) continue;
    if (turns) now[i].turn = turn->second.turn;
    now[i].crowding = crowding_of(turn->second.stored);
  }
  return now;
}

const KnownCell* FleetMemory::FindCell(const Domain& domain, const std::string& cell) const {
  const auto found = domains_.find(domain);
  if (found == domains_.end()) return nullptr;
  const auto at = found->second.cells.find(cell);
  return at == found->second.cells.end() ? nullptr : &at->second;
}

uint32_t FleetMemory::BlockSize(const Domain& domain) const {
  const auto found = domains_.find(domain);
  return found == domains_.end() ? 0 : found->second.block_size;
}

void FleetMemory::SetBlockSize(const Domain& domain, uint32_t block_size, Time now) {
  Touch(domain, now).block_size = block_size;
}

bool FleetMemory::Knows(const Domain& domain) const { return domains_.contains(domain); }

std::vector<Domain> FleetMemory::Domains() const {
  std::vector<Domain> domains;
  domains.reserve(domains_.size());
  for (const auto& [domain, of] : domains_) domains.push_back(domain);
  return domains;
}

const Labels* FleetMemory::LabelsOf(const Domain& domain, const std::string& cell,
                                    const HolderId& worker) const {
  const auto of = domains_.find(domain);
  if (of == domains_.end()) return nullptr;
  const auto found = of->second.workers.find(cell);
  return found == of->second.workers.end() ? nullptr : found->second.answer->LabelsOf(worker);
}

// `knows` spares the look-up per worker while nothing is in flight to the cell.
size_t FleetMemory::ShownBy(const std::string& cell, const WorkersAnswer& answer,
                            std::span<const SequenceHash> sequence, Time now) {
  size_t shown = 0;
  if (!choices_.knows(cell)) return shown;
  for (const WorkerFound& found : answer.workers) shown += choices_.Saw(cell, found, sequence, now);
  return shown;
}

// At least 1: it divides.
size_t FleetMemory::FleetWorkers(const Domain& domain) const {
  const auto found = domains_.find(domain);
  const size_t known = found == domains_.end() ? 0 : found->second.worker_count;
  return std::max({known, turns_count_, size_t{1}});
}

// Beyond the bound all turns are forgotten together with the sums that fade against each other;
// every worker then counts as one that was sent nothing.
void FleetMemory::TookTurn(const Domain& domain, const std::string& cell, const HolderId& worker,
                           uint64_t turn, uint64_t blocks) {
  if (turns_count_ >= options_.workers_max) {
    turns_.clear();
    turns_count_ = 0;
    recently_stored_ = {};
  }
  const auto [at, is_new] = turns_[cell].try_emplace(worker);
  turns_count_ += is_new;
  at->second.turn = turn;
  recently_stored_.Store(static_cast<double>(blocks), FleetWorkers(domain), &at->second.stored);
}

uint64_t FleetMemory::TurnOf(const std::string& cell, const HolderId& worker) const {
  const auto of_cell = turns_.find(cell);
  if (of_cell == turns_.end()) return 0;
  const auto found = of_cell->second.find(worker);
  return found == of_cell->second.end() ? 0 : found->second.turn;
}

// A waypoint that was sent before takes the new place but keeps its age in `sent_by_age`, so the
// two containers always have the same keys and each waypoint is in the queue once.
void FleetMemory::Sent(const Domain& domain, std::span<const SequenceHash> waypoints,
                       const std::string& cell, const HolderId& worker, Time now) {
  if (waypoints.empty()) return;
  OfDomain& of = Touch(domain, now);
  for (SequenceHash waypoint : waypoints) {
    const auto [at, is_new] = of.sent.try_emplace(waypoint);
    at->second = {.cell = cell, .worker = worker, .at = now};
    if (is_new) of.sent_by_age.push_back(waypoint);
  }
  while (of.sent.size() > options_.sent_max) {
    of.sent.erase(of.sent_by_age.front());
    of.sent_by_age.pop_front();
  }
}

// Only the worker is cleared: the cell stays a hint until `sent_ttl`, because the hierarchy hears
// of it later than the leaf.
void FleetMemory::SentIsShown(const Domain& domain, std::span<const SequenceHash> waypoints,
                              const HolderId& worker) {
  const auto of = domains_.find(domain);
  if (of == domains_.end()) return;
  for (SequenceHash waypoint : waypoints) {
    const auto found = of->second.sent.find(waypoint);
    if (found != of->second.sent.end() && found->second.worker == worker) found->second.worker = {};
  }
}

// Deepest first, so that the first hit is the answer: O(waypoints) look-ups.
SentTo FleetMemory::LastSentTo(const Domain& domain, std::span<const SequenceHash> waypoints,
                               Time now) const {
  const auto of = domains_.find(domain);
  if (of == domains_.end()) return {};
  for (size_t depth = waypoints.size(); depth > 0; --depth) {
    const auto found = of->second.sent.find(waypoints[depth - 1]);
    if (found != of->second.sent.end() && found->second.at + options_.sent_ttl > now) {
      return {.cell = found->second.cell,
              .worker = found->second.worker,
              .waypoints = static_cast<uint32_t>(depth),
              .at = found->second.at};
    }
  }
  return {};
}

// The share as of now: the doubt (1 - share) halves every `doubt_half_life` since the last promise.
double FleetMemory::ShareOf(const Kept& kept, Time now) const {
  if (options_.doubt_half_life <= Duration(0)) return 1;
  const double half_lives = std::chrono::duration<double>(now - kept.seen) /
                            std::chrono::duration<double>(options_.doubt_half_life);
  return 1 - (1 - kept.share) * std::exp2(-std::max(half_lives, 0.0));
}

// Takes one promise into the average. Delivering more than promised counts as all of it. Crossing
// the line downwards is logged.
void FleetMemory::Promised(const Domain& domain, const std::string& cell, uint32_t promised,
                           uint32_t had, Time now) {
  if (promised == 0) return;
  auto& promises = Touch(domain, now).promises;
  Kept& kept = promises[cell];
  const double before = ShareOf(kept, now);
  const double delivered = std::min(had, promised) / static_cast<double>(promised);
  kept.share = before + (delivered - before) * kLatestPromise;
  kept.seen = now;
  ++kept.promises;
  kept.broken += had < promised;
  if (kept.share < kBelievedInFull && before >= kBelievedInFull) {
    LogEvery(PromiseLog(), cell, LogLevel::kWarning, "cell has less than it reports",
             {{"cell", cell},
              {"domain", ToString(domain)},
              {"promises", kept.promises},
              {"broken", kept.broken}});
  }
  while (promises.size() > options_.cells_max) promises.erase(Oldest(promises));
}

uint32_t FleetMemory::Believed(const Domain& domain, const std::string& cell, uint32_t promised,
                               Time now) const {
  const auto found = domains_.find(domain);
  if (found == domains_.end()) return promised;
  const auto kept = found->second.promises.find(cell);
  if (kept == found->second.promises.end()) return promised;
  const double share = ShareOf(kept->second, now);
  return share >= kBelievedInFull ? promised : static_cast<uint32_t>(promised * share);
}

std::vector<CellPromises> FleetMemory::Promises(size_t cells_max, Time now) const {
  std::vector<CellPromises> all;
  for (const auto& [domain, of_domain] : domains_) {
    for (const auto& [cell, kept] : of_domain.promises) {
      all.push_back({.cell = cell,
                     .promises = kept.promises,
                     .broken = kept.broken,
                     .believed = ShareOf(kept, now)});
    }
  }
  SortPromises(cells_max, &all);
  return all;
}

size_t FleetMemory::workers() const {
  size_t n = 0;
  for (const auto& [domain, of_domain] : domains_) {
    n += of_domain.worker_count;
  }
  return n;
}

size_t FleetMemory::cells(const Domain& domain) const {
  const auto of_domain = domains_.find(domain);
  return of_domain == domains_.end() ? 0 : of_domain->second.cells.size();
}

size_t FleetMemory::cells() const {
  size_t n = 0;
  for (const auto& [domain, of_domain] : domains_) n += of_domain.cells.size();
  return n;
}

}  // namespace kvatlas
