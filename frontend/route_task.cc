#include "frontend/route_task.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "indexer/base/waypoints.h"

namespace kvatlas {
namespace {

// Of what is left, the part that hierarchies may use together, and a wave of leaves when others could follow it.
constexpr double kHierarchyShare = 0.4;
constexpr double kWaveShare = 0.6;
// A hop is not worth starting with less.
constexpr Duration kHopMin = std::chrono::microseconds(200);

Duration Share(Duration of, double share) {
  return Duration(static_cast<int64_t>(static_cast<double>(of.count()) * share));
}

uint64_t Microseconds(Duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

void AddReason(std::string* reason, const std::string& why) {
  if (why.empty()) return;
  if (!reason->empty()) *reason += "; ";
  *reason += why;
}

}  // namespace

RouteTask::RouteTask(std::shared_ptr<Frontend::Shared> shared, RouteInput input,
                     Frontend::Callback callback)
    : shared_(std::move(shared)), input_(std::move(input)), callback_(std::move(callback)) {}

void RouteTask::Start() {
  started_ = Now();
  deadline_ = input_.deadline > Duration(0) ? input_.deadline : shared_->options.deadline;
  if (absl::Status bad = CheckInput(); !bad.ok()) return Fail(std::move(bad));
  {
    MutexLock lock(&shared_->mutex);
    block_size_ = shared_->memory.BlockSize(input_.domain);
  }
  if (block_size_ == 0) block_size_ = shared_->options.block_size;
  if (!Hash()) {
    return Fail(absl::ResourceExhaustedError("a prompt has at most " +
                                             std::to_string(kRouteBlocksMax) + " blocks"));
  }
  AskHierarchy();
}

absl::Status RouteTask::CheckInput() const {
  if (input_.domain.model.empty()) return absl::InvalidArgumentError("no model");
  if (input_.tokens.empty() && input_.sequence_hashes.empty()) {
    return absl::InvalidArgumentError("no prompt: neither tokens nor sequence_hashes");
  }
  if (!input_.tokens.empty() && !input_.sequence_hashes.empty()) {
    return absl::InvalidArgumentError("two prompts: tokens and sequence_hashes");
  }
  return absl::OkStatus();
}

bool RouteTask::Hash() {
  if (input_.tokens.empty()) {
    if (input_.sequence_hashes.size() > kRouteBlocksMax) return false;
    sequence_ = input_.sequence_hashes;
  } else {
    const Blocking blocking{.block_size = block_size_, .eagle = input_.eagle};
    if (FullBlocks(input_.tokens.size(), blocking) > kRouteBlocksMax) return false;
    const HashContract& contract = shared_->options.contract;
    const uint64_t seed =
        BlockSeed({.lora_name = input_.lora_name, .cache_salt = input_.cache_salt}, contract);
    sequence_ = SequenceHashes(LocalHashes(input_.tokens, blocking, seed), contract);
  }
  waypoints_ = shared_->options.schedule->Select(sequence_);
  receipt_.blocks = static_cast<uint32_t>(sequence_.size());
  return true;
}

bool RouteTask::StartOver(uint32_t block_size) {
  if (block_size == 0) return false;
  {
    MutexLock lock(&shared_->mutex);
    shared_->memory.SetBlockSize(input_.domain, block_size, Now());
  }
  if (block_size == block_size_ || started_over_ || input_.tokens.empty()) return false;
  started_over_ = true;
  block_size_ = block_size;
  receipt_ = Receipt();
  targets_.clear();
  asked_addresses_.clear();
  answered_.clear();
  hierarchies_asked_ = 0;
  rung_ = Fallback::kNone;
  if (!Hash()) {
    Fail(absl::ResourceExhaustedError("a prompt has at most " + std::to_string(kRouteBlocksMax) +
                                      " blocks"));
  } else {
    AskHierarchy();
  }
  return true;
}

void RouteTask::AskHierarchy() {
  const std::vector<std::string>& hierarchies = shared_->options.hierarchies;
  const auto count = static_cast<uint32_t>(hierarchies.size());
  if (count == 0) return FallBack("no hierarchy configured");
  if (hierarchies_asked_ == count) return FallBack("");
  const Duration share = Share(started_ + deadline_ - started_, kHierarchyShare) / count;
  const Duration deadline = std::min(share, Left());
  if (deadline < kHopMin) return FallBack("no time left for a hierarchy");
  const uint32_t hierarchy =
      (shared_->preferred_hierarchy.load(std::memory_order_relaxed) + hierarchies_asked_) % count;
  ++hierarchies_asked_;
  step_started_ = Now();
  const CellQuestion question{.domain = &input_.domain,
                              .waypoints = waypoints_,
                              .blocks = static_cast<uint32_t>(sequence_.size()),
                              .best = shared_->options.cells_best,
                              .schedule = shared_->options.schedule};
  shared_->cell_finder->FindCells(
      hierarchies[hierarchy], question, deadline,
      [self = shared_from_this(), hierarchy](absl::StatusOr<CellsAnswer> answer) {
        self->OnCells(hierarchy, std::move(answer));
      });
}

void RouteTask::OnCells(uint32_t hierarchy, absl::StatusOr<CellsAnswer> answer) {
  receipt_.find_cells_us += Microseconds(Now() - step_started_);
  const bool helps = answer.ok() && !answer->cells.empty();
  if (!helps) {
    AddReason(&receipt_.reason, "hierarchy " + shared_->options.hierarchies[hierarchy] + ": " +
                                    (answer.ok() ? "knows no cell" : answer.status().ToString()));
    return AskHierarchy();
  }
  shared_->preferred_hierarchy.store(hierarchy, std::memory_order_relaxed);
  {
    MutexLock lock(&shared_->mutex);
    shared_->memory.SawCells(input_.domain, answer->cells, Now());
  }
  if (StartOver(answer->block_size)) return;
  rung_ = Fallback::kNone;
  receipt_.reason.clear();  // another replica answered: nothing was missing
  targets_ = RankFoundCells(answer->cells);
  AskNextCells();
}

void RouteTask::FallBack(const std::string& why) {
  AddReason(&receipt_.reason, why);
  rung_ = Fallback::kLastGoodCells;
  targets_ = RankKnownCells();
  AskNextCells();
}

double RouteTask::DistanceOf(const std::map<std::string, std::string>& labels) const {
  const std::string& zone = shared_->options.zone;
  const auto of_cell = labels.find("zone");
  if (zone.empty() || of_cell == labels.end() || of_cell->second == zone) return 0;
  return shared_->options.zone_distance;
}

uint32_t RouteTask::ExpectedBlocks(const std::string& cell, uint32_t reported,
                                   const SentTo& sent) const {
  if (sent.cell != cell) return reported;
  return std::max(reported, shared_->options.schedule->BlocksCovered(sent.waypoints));
}

// As the average worker of the cell would cost; the cell's figures are sums.
double RouteTask::ExpectedCost(const std::string& cell, const std::optional<Load>& load,
                               uint32_t overlap, double distance) const {
  const double workers = load.has_value() ? std::max<uint32_t>(load->workers, 1) : 1;
  const InFlight in_flight = shared_->memory.InFlightTo(cell);
  const Cost sum = CostOf({.prompt_blocks = receipt_.blocks,
                           .overlap_blocks = overlap,
                           .load = load,
                           .in_flight_blocks = in_flight.blocks,
                           .in_flight_requests = in_flight.requests,
                           .distance = distance},
                          shared_->options.weights);
  return sum.prefill + sum.distance + (sum.queue + sum.decode) / workers;
}

// Cheapest first, but the deepest cell is always among the first K: its average load says little about the one worker
// that has the prefix.
std::vector<RouteTask::Target> RouteTask::RankFoundCells(const std::vector<CellFound>& cells) {
  std::vector<Target> targets;
  MutexLock lock(&shared_->mutex);
  const SentTo sent = shared_->memory.LastSentTo(input_.domain, waypoints_, Now());
  for (const CellFound& found : cells) {
    if (found.address.empty()) continue;
    Target target{.asked = {.cell = found.cell,
                            .address = found.address,
                            .blocks_at_least = found.blocks_at_least,
                            .blocks_below = found.blocks_below,
                            .age_ms = found.age_ms},
                  .distance = DistanceOf(found.labels)};
    target.expected_blocks = ExpectedBlocks(found.cell, found.blocks_at_least, sent);
    target.cost = ExpectedCost(found.cell, found.load, target.expected_blocks, target.distance);
    targets.push_back(std::move(target));
  }
  std::stable_sort(targets.begin(), targets.end(), [](const Target& a, const Target& b) {
    return std::tie(a.cost, a.asked.cell) < std::tie(b.cost, b.asked.cell);
  });
  const auto deepest = std::max_element(
      targets.begin(), targets.end(),
      [](const Target& a, const Target& b) { return a.expected_blocks < b.expected_blocks; });
  const size_t asked = std::max<uint32_t>(shared_->options.ask_cells, 1);
  if (asked > 1 && deepest - targets.begin() >= static_cast<ptrdiff_t>(asked)) {
    std::rotate(targets.begin() + static_cast<ptrdiff_t>(asked) - 1, deepest, deepest + 1);
  }
  return targets;
}

std::vector<RouteTask::Target> RouteTask::RankKnownCells() {
  std::vector<Target> targets;
  MutexLock lock(&shared_->mutex);
  const SentTo sent = shared_->memory.LastSentTo(input_.domain, waypoints_, Now());
  for (const KnownCell& known : shared_->memory.Cells(input_.domain)) {
    if (known.address.empty()) continue;
    Target target{
        .asked = {.cell = known.cell,
                  .address = known.address,
                  .blocks_below = receipt_.blocks + 1,
                  .age_ms = static_cast<uint32_t>(Microseconds(Now() - known.seen) / 1000)},
        .distance = DistanceOf(known.labels)};
    target.expected_blocks = ExpectedBlocks(known.cell, 0, sent);
    target.cost = ExpectedCost(known.cell, known.load, target.expected_blocks, target.distance);
    targets.push_back(std::move(target));
  }
  std::stable_sort(targets.begin(), targets.end(),
                   [](const Target& a, const Target& b) { return a.cost < b.cost; });
  return targets;
}

std::vector<RouteTask::Target> RouteTask::ConfiguredTargets() const {
  std::vector<Target> targets;
  for (const ConfiguredLeaf& leaf : shared_->options.leaves) {
    targets.push_back(
        {.asked = {
             .cell = leaf.cell, .address = leaf.address, .blocks_below = receipt_.blocks + 1}});
  }
  return targets;
}

// The next targets that nobody asked in this route; empty when the rung has no more or enough were asked.
std::vector<RouteTask::Target> RouteTask::TakeTargets() {
  const FrontendOptions& options = shared_->options;
  const size_t at_once = std::max<uint32_t>(
      rung_ == Fallback::kNone ? options.ask_cells
                               : std::max(options.ask_cells_blind, options.ask_cells),
      1);
  std::vector<Target> taken;
  size_t i = 0;
  for (;
       i < targets_.size() && taken.size() < at_once && asked_addresses_.size() < options.asked_max;
       ++i) {
    if (asked_addresses_.insert(targets_[i].asked.address).second)
      taken.push_back(std::move(targets_[i]));
  }
  targets_.erase(targets_.begin(), targets_.begin() + static_cast<ptrdiff_t>(i));
  return taken;
}

// One step down the ladder; false at its end.
bool RouteTask::NextRung() {
  switch (rung_) {
    case Fallback::kNone:
      rung_ = Fallback::kLastGoodCells;
      targets_ = RankKnownCells();
      return true;
    case Fallback::kLastGoodCells:
      rung_ = Fallback::kOwnCell;
      targets_ = ConfiguredTargets();
      return true;
    default:
      rung_ = Fallback::kLoadOnly;
      return false;
  }
}

Duration RouteTask::WaveDeadline(bool more) const {
  return more ? Share(Left(), kWaveShare) : Left();
}

void RouteTask::AskNextCells() {
  std::vector<Target> targets = TakeTargets();
  while (targets.empty() && NextRung()) targets = TakeTargets();
  const Duration deadline = WaveDeadline(!targets_.empty() || rung_ < Fallback::kOwnCell);
  if (targets.empty()) return Decide();
  if (deadline < kHopMin) {
    AddReason(&receipt_.reason, "no time left for leaves");
    rung_ = Fallback::kLoadOnly;
    return Decide();
  }
  step_started_ = Now();
  std::vector<std::string> addresses;
  {
    MutexLock lock(&wave_mutex_);
    wave_.clear();
    wave_pending_ = targets.size();
    for (Target& target : targets) {
      addresses.push_back(target.asked.address);
      wave_.push_back({.target = std::move(target), .asked_at = step_started_});
    }
  }
  const OverlapQuestion question{.domain = &input_.domain, .sequence = sequence_};
  // The task may have gone on, and changed, as soon as the last question is out: nothing of it is read after that.
  const std::shared_ptr<Frontend::Shared> shared = shared_;
  const std::shared_ptr<RouteTask> self = shared_from_this();
  for (size_t i = 0; i < addresses.size(); ++i) {
    shared->overlap_finder->FindOverlaps(
        addresses[i], question, deadline,
        [self, i](absl::StatusOr<WorkersAnswer> answer) { self->OnWorkers(i, std::move(answer)); });
  }
}

void RouteTask::OnWorkers(size_t pending, absl::StatusOr<WorkersAnswer> answer) {
  {
    MutexLock lock(&wave_mutex_);
    wave_[pending].answer = std::move(answer);
    wave_[pending].answered_at = Now();
    if (--wave_pending_ > 0) return;
  }
  OnWave();
}

void RouteTask::OnWave() {
  receipt_.find_overlaps_us += Microseconds(Now() - step_started_);
  std::vector<Pending> wave;
  {
    MutexLock lock(&wave_mutex_);
    wave.swap(wave_);
  }
  uint32_t block_size = 0;
  for (Pending& pending : wave) {
    CellAsked& asked = pending.target.asked;
    asked.us = Microseconds(pending.answered_at - pending.asked_at);
    if (!pending.answer.ok()) {
      asked.error = pending.answer.status().ToString();
    } else {
      auto answer = std::make_shared<const WorkersAnswer>(*std::move(pending.answer));
      if (answer->block_size != 0) block_size = answer->block_size;
      for (const WorkerFound& worker : answer->workers)
        asked.best_blocks = std::max(asked.best_blocks, worker.blocks);
      {
        MutexLock lock(&shared_->mutex);
        shared_->memory.SawWorkers(input_.domain, asked.cell, answer, Now());
      }
      if (answer->workers.empty()) {
        asked.error = "no workers";
      } else {
        answered_.push_back(
            {.cell = asked.cell, .distance = pending.target.distance, .answer = std::move(answer)});
      }
    }
    if (!asked.error.empty()) {
      AddReason(&receipt_.reason,
                "leaf " + asked.cell + " at " + asked.address + ": " + asked.error);
    }
    receipt_.cells.push_back(std::move(asked));
  }
  if (StartOver(block_size)) return;
  if (answered_.empty()) return AskNextCells();
  Decide();
}

CostInput RouteTask::InputFor(const std::string& cell, const HolderId& worker,
                              const std::optional<Load>& load, uint32_t overlap,
                              double distance) const {
  const InFlight in_flight = shared_->memory.InFlightTo(cell, worker);
  return {.prompt_blocks = receipt_.blocks,
          .overlap_blocks = overlap,
          .load = load,
          .in_flight_blocks = in_flight.blocks,
          .in_flight_requests = in_flight.requests,
          .distance = distance};
}

std::vector<CostCandidate> RouteTask::AnsweredCandidates(std::vector<ReceiptCandidate>* details) {
  std::vector<CostCandidate> candidates;
  for (const Answered& answered : answered_) {
    for (const WorkerFound& found : answered.answer->workers) {
      // What a silent worker held may be gone: it counts for its load only.
      const uint32_t overlap =
          found.trust == Trust::kStale ? 0 : std::min(found.blocks, receipt_.blocks);
      candidates.push_back(
          {.cell = answered.cell,
           .worker = found.worker,
           .input = InputFor(answered.cell, found.worker, found.load, overlap, answered.distance)});
      details->push_back({.worker = found.worker,
                          .cell = answered.cell,
                          .overlap_blocks = overlap,
                          .trust = found.trust,
                          .age_ms = found.age_ms});
    }
  }
  return candidates;
}

std::vector<CostCandidate> RouteTask::RememberedCandidates(std::vector<ReceiptCandidate>* details) {
  std::vector<CostCandidate> candidates;
  for (const KnownWorker& known : shared_->memory.Workers(input_.domain)) {
    const KnownCell* cell = shared_->memory.FindCell(input_.domain, known.cell);
    const double distance = cell == nullptr ? 0 : DistanceOf(cell->labels);
    candidates.push_back({.cell = known.cell,
                          .worker = known.worker,
                          .input = InputFor(known.cell, known.worker, known.load, 0, distance)});
    details->push_back({.worker = known.worker,
                        .cell = known.cell,
                        .trust = Trust::kStale,
                        .age_ms = static_cast<uint32_t>(Microseconds(Now() - known.seen) / 1000)});
  }
  return candidates;
}

// The choice and its place in flight are one step under the lock, so that of two siblings the second sees the first.
void RouteTask::Decide() {
  RouteResult result;
  {
    MutexLock lock(&shared_->mutex);
    shared_->stats.expired_choices += shared_->memory.ExpireChoices(Now());
    if (answered_.empty()) rung_ = Fallback::kLoadOnly;
    std::vector<ReceiptCandidate> details;
    const std::vector<CostCandidate> candidates = rung_ == Fallback::kLoadOnly
                                                      ? RememberedCandidates(&details)
                                                      : AnsweredCandidates(&details);
    const std::vector<RankedCandidate> ranked = RankCandidates(
        candidates, shared_->options.weights, PromptKey(sequence_), kReceiptCandidatesMax);
    for (const RankedCandidate& best : ranked) {
      receipt_.candidates.push_back(std::move(details[best.candidate]));
      receipt_.candidates.back().cost = best.cost;
    }
    receipt_.candidates_considered = static_cast<uint32_t>(candidates.size());
    if (!ranked.empty()) {
      const ReceiptCandidate& chosen = receipt_.candidates.front();
      result.decision_id = shared_->next_decision++;
      result.worker = chosen.worker;
      result.cell = chosen.cell;
      result.overlap_blocks = chosen.overlap_blocks;
      shared_->memory.Choose(result.decision_id, chosen.cell, chosen.worker,
                             receipt_.blocks - chosen.overlap_blocks, Now());
      shared_->memory.Sent(input_.domain, waypoints_, chosen.cell, Now());
      shared_->stats.routes += 1;
      shared_->stats.by_fallback[static_cast<int>(rung_)] += 1;
    }
  }
  if (receipt_.candidates.empty()) {
    return Fail(absl::NotFoundError("no worker of " + ToString(input_.domain) + " was ever seen: " +
                                    (receipt_.reason.empty() ? "nobody to ask" : receipt_.reason)));
  }
  receipt_.fallback = rung_;
  if (rung_ == Fallback::kNone) receipt_.reason.clear();  // a leaf that failed is in its own row
  receipt_.total_us = Microseconds(Now() - started_);
  result.receipt = std::move(receipt_);
  std::exchange(callback_, nullptr)(std::move(result));
}

void RouteTask::Fail(absl::Status status) {
  {
    MutexLock lock(&shared_->mutex);
    shared_->stats.failed += 1;
  }
  std::exchange(callback_, nullptr)(std::move(status));
}

}  // namespace kvatlas
