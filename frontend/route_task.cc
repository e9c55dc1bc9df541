#include "frontend/route_task.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "frontend/route_observer.h"
#include "indexer/base/waypoints.h"

namespace kvatlas {
namespace {

// Of what is left, the part that one level of hierarchies may use, and a wave of leaves when others could follow it.
constexpr double kHierarchyShare = 0.4;
constexpr double kWaveShare = 0.6;
// Levels below the top.
constexpr int kLevelsMax = 4;

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
  AskTop();
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
  std::vector<SequenceHash> sequence;
  if (input_.tokens.empty()) {
    if (input_.sequence_hashes.size() > kRouteBlocksMax) return false;
    sequence = input_.sequence_hashes;
  } else {
    const Blocking blocking{.block_size = block_size_, .eagle = input_.eagle};
    if (FullBlocks(input_.tokens.size(), blocking) > kRouteBlocksMax) return false;
    const HashContract& contract = shared_->options.contract;
    const uint64_t seed =
        BlockSeed({.lora_name = input_.lora_name, .cache_salt = input_.cache_salt}, contract);
    sequence = SequenceHashes(LocalHashes(input_.tokens, blocking, seed), contract);
  }
  waypoints_ = shared_->options.schedule->Select(sequence);
  receipt_.blocks = static_cast<uint32_t>(sequence.size());
  sequence_ = std::make_shared<const std::vector<SequenceHash>>(std::move(sequence));
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
  suspected_.clear();
  leaves_asked_ = 0;
  useful_leaves_ = 0;
  levels_ = 0;
  rung_ = Fallback::kNone;
  if (!Hash()) {
    Fail(absl::ResourceExhaustedError("a prompt has at most " + std::to_string(kRouteBlocksMax) +
                                      " blocks"));
  } else {
    AskTop();
  }
  return true;
}

// ---- The top of the hierarchy ----

void RouteTask::AskTop() {
  asked_other_shards_ = false;
  {
    MutexLock lock(&shared_->mutex);
    top_ = shared_->hierarchies;
  }
  if (top_->empty()) return FallBack("no hierarchy configured");
  const Duration budget = std::min(Share(deadline_, kHierarchyShare), Left());
  if (budget < kHopMin) return FallBack("no time left for a hierarchy");
  const NodeQuestions questions = TopQuestions();
  AskCells(questions, budget,
           [self = shared_from_this(), questions](std::vector<CellsOutcome> outcomes) {
             self->OnTop(questions, std::move(outcomes));
           });
}

RouteTask::NodeQuestions RouteTask::TopQuestions() const {
  const FrontendOptions& options = shared_->options;
  const bool own_schedule = top_->split() && options.hierarchy_schedule != nullptr;
  const WaypointSchedule& schedule = own_schedule ? *options.hierarchy_schedule : *options.schedule;
  NodeQuestions questions;
  for (ShardQuestion& question :
       PlanShards(*top_, schedule, own_schedule ? schedule.Select(*sequence_) : waypoints_,
                  PromptKey(*sequence_), std::max<uint32_t>(options.ask_shards, 1))) {
    const ShardMap::Shard& shard = top_->shards()[question.shard];
    questions.push_back(ToNodeQuestion(std::move(question), shard));
  }
  return questions;
}

std::shared_ptr<const RouteTask::NodeQuestion> RouteTask::ToNodeQuestion(
    ShardQuestion question, const ShardMap::Shard& shard) const {
  const FrontendOptions& options = shared_->options;
  auto node = std::make_shared<NodeQuestion>();
  node->name = shard.name;
  node->addresses = shard.addresses;
  node->waypoints = std::move(question.waypoints);
  node->positions = std::move(question.positions);
  node->schedule = top_->split() && options.hierarchy_schedule != nullptr
                       ? options.hierarchy_schedule
                       : options.schedule;
  node->blocks = receipt_.blocks;
  MutexLock lock(&shared_->mutex);
  const auto preferred = shared_->preferred.find(shard.name);
  if (preferred == shared_->preferred.end()) return node;
  const auto first = std::find(node->addresses.begin(), node->addresses.end(), preferred->second);
  if (first != node->addresses.end())
    std::rotate(node->addresses.begin(), first, node->addresses.end());
  return node;
}

void RouteTask::OnTop(const NodeQuestions& questions, std::vector<CellsOutcome> outcomes) {
  std::vector<ShardQuestion> asked(questions.size());
  std::vector<ShardAnswer> answers;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    asked[i].positions = questions[i]->positions;
    if (!outcomes[i].answer.ok()) {
      AddReasons("hierarchy", outcomes[i]);
      continue;
    }
    answers.push_back({.question = &asked[i], .answer = *std::move(outcomes[i].answer)});
    MutexLock lock(&shared_->mutex);
    std::string& preferred = shared_->preferred[questions[i]->name];
    if (preferred != outcomes[i].address) preferred = outcomes[i].address;
  }
  if (answers.empty()) {
    if (!AskOtherShards(questions)) FallBack("");
    return;
  }
  const CellsAnswer answer = MergeAnswers(std::move(answers));
  Remember(answer.cells, /*by=*/"");
  if (StartOver(answer.block_size)) return;
  rung_ = Fallback::kNone;
  receipt_.reason
      .clear();  // another replica or shard answered: what was missing is coverage at most
  targets_ = ToTargets(answer.cells);
  Rank(&targets_);
  AskNext();
}

// They are asked one after the other, as replicas of what all shards have.
bool RouteTask::AskOtherShards(const NodeQuestions& questions) {
  const Duration budget = std::min(Share(Left(), kHierarchyShare), Left());
  if (!top_->split() || asked_other_shards_ || budget < kHopMin) return false;
  asked_other_shards_ = true;
  ShardMap::Shard others;
  for (const ShardMap::Shard& shard : top_->shards()) {
    const bool asked = std::any_of(questions.begin(), questions.end(), [&](const auto& question) {
      return question->name == shard.name;
    });
    if (asked) continue;
    others.addresses.insert(others.addresses.end(), shard.addresses.begin(), shard.addresses.end());
  }
  if (others.addresses.empty()) return false;
  const WaypointSchedule& schedule = *questions[0]->schedule;
  NodeQuestions shallow = {ToNodeQuestion(
      ShallowQuestion(*top_, schedule, schedule.Select(*sequence_), /*shard=*/0), others)};
  AskCells(shallow, budget,
           [self = shared_from_this(), shallow](std::vector<CellsOutcome> outcomes) {
             self->OnTop(shallow, std::move(outcomes));
           });
  return true;
}

void RouteTask::FallBack(const std::string& why) {
  AddReason(&receipt_.reason, why);
  NextRung();
  AskNext();
}

// ---- Nodes ----

void RouteTask::AskCells(const NodeQuestions& questions, Duration budget,
                         std::function<void(std::vector<CellsOutcome> outcomes)> done) {
  step_started_ = Now();
  const Time until = step_started_ + budget;
  auto wave = std::make_shared<NodeWave>();
  {
    MutexLock lock(&wave->mutex);
    wave->outcomes.resize(questions.size());
    wave->pending = questions.size();
  }
  // The task may have gone on as soon as the last question is out: nothing of it is read after that.
  const std::shared_ptr<RouteTask> self = shared_from_this();
  const std::shared_ptr<Frontend::Shared> shared = shared_;
  const auto domain = std::make_shared<const Domain>(input_.domain);
  const auto then = std::make_shared<decltype(done)>(std::move(done));
  for (size_t i = 0; i < questions.size(); ++i) {
    FirstAnswer<CellsAnswer>::Start(
        {.addresses = questions[i]->addresses,
         .until = until,
         .hedge_after = shared->options.hedge_after,
         .clock = shared->clock,
         .timer = shared->timer},
        [shared, domain, question = questions[i]](const std::string& address, Duration deadline,
                                                  FirstAnswer<CellsAnswer>::Reply reply) {
          shared->cell_finder->FindCells(address,
                                         {.domain = domain.get(),
                                          .waypoints = question->waypoints,
                                          .blocks = question->blocks,
                                          .best = shared->options.cells_best,
                                          .schedule = question->schedule,
                                          .positions = question->positions},
                                         deadline, std::move(reply));
        },
        [](const CellsAnswer& answer) {
          return answer.cells.empty() ? absl::NotFoundError("knows no cell") : absl::OkStatus();
        },
        [self, wave, then, i](CellsOutcome outcome) {
          std::vector<CellsOutcome> outcomes;
          {
            MutexLock lock(&wave->mutex);
            wave->outcomes[i] = std::move(outcome);
            if (--wave->pending > 0) return;
            outcomes.swap(wave->outcomes);
          }
          self->receipt_.find_cells_us += Microseconds(self->Now() - self->step_started_);
          (*then)(std::move(outcomes));
        });
  }
}

void RouteTask::AddReasons(const std::string& what, const CellsOutcome& outcome) {
  AddReason(&receipt_.reason,
            what + " " + outcome.address + ": " + outcome.answer.status().ToString());
}

void RouteTask::Remember(const std::vector<CellFound>& cells, const std::string& by) {
  std::vector<CellFound> leaves;
  const bool mixed =
      std::any_of(cells.begin(), cells.end(), [](const CellFound& cell) { return cell.is_node; });
  if (mixed) {
    std::copy_if(cells.begin(), cells.end(), std::back_inserter(leaves),
                 [](const CellFound& cell) { return !cell.is_node; });
  }
  MutexLock lock(&shared_->mutex);
  shared_->memory.SawCells(input_.domain, mixed ? leaves : cells, Now());
  shared_->nodes.Saw(input_.domain, cells, by, Now());
}

void RouteTask::AskNodes(std::vector<Target> nodes, std::vector<Target> leaves) {
  ++levels_;
  const Duration budget = Share(Left(), kHierarchyShare);
  if (budget < kHopMin || levels_ > kLevelsMax) {
    AddReason(&receipt_.reason,
              levels_ > kLevelsMax ? "too many levels of nodes" : "no time left for nodes");
    std::erase_if(targets_, [](const Target& target) { return target.is_node; });
    targets_.insert(targets_.begin(), leaves.begin(), leaves.end());
    return AskNext();
  }
  NodeQuestions questions;
  for (const Target& node : nodes) {
    auto question = std::make_shared<NodeQuestion>();
    question->name = node.asked.cell;
    question->addresses = node.other_addresses;
    question->addresses.insert(question->addresses.begin(), node.asked.address);
    question->waypoints = waypoints_;
    question->schedule = shared_->options.schedule;
    question->blocks = receipt_.blocks;
    questions.push_back(std::move(question));
  }
  AskCells(questions, budget,
           [self = shared_from_this(), nodes = std::move(nodes),
            leaves = std::move(leaves)](std::vector<CellsOutcome> outcomes) mutable {
             self->OnNodes(std::move(nodes), std::move(leaves), std::move(outcomes));
           });
}

// Their cells take the place of the nodes; the nodes that were not asked come after them.
void RouteTask::OnNodes(std::vector<Target> nodes, std::vector<Target> leaves,
                        std::vector<CellsOutcome> outcomes) {
  std::vector<Target> found = std::move(leaves);
  uint32_t block_size = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    CellAsked& asked = nodes[i].asked;
    asked.us = Microseconds(Now() - step_started_);
    asked.address = outcomes[i].address;
    if (outcomes[i].answer.ok()) {
      const CellsAnswer& answer = *outcomes[i].answer;
      if (answer.block_size != 0) block_size = answer.block_size;
      Remember(answer.cells, asked.cell);
      for (Target& target : ToTargets(answer.cells)) {
        asked.best_blocks = std::max(asked.best_blocks, target.asked.blocks_at_least);
        found.push_back(std::move(target));
      }
    } else {
      asked.error = outcomes[i].answer.status().ToString();
      AddReasons("node " + asked.cell + " at", outcomes[i]);
    }
    receipt_.nodes.push_back(std::move(asked));
  }
  if (StartOver(block_size)) return;
  Rank(&found);
  for (Target& target : targets_) found.push_back(std::move(target));
  targets_ = std::move(found);
  AskNext();
}

// ---- The ladder ----

// One step down the ladder; false at its end.
bool RouteTask::NextRung() {
  levels_ = 0;
  switch (rung_) {
    case Fallback::kNone:
      rung_ = Fallback::kLastGoodCells;
      remembered_cells_ = false;
      targets_ = KnownNodeTargets();
      if (!targets_.empty()) return true;
      [[fallthrough]];
    case Fallback::kLastGoodCells:
      if (!std::exchange(remembered_cells_, true)) {
        targets_ = KnownCellTargets();
      } else {
        rung_ = Fallback::kOwnCell;
        targets_ = ConfiguredTargets();
      }
      return true;
    default:
      rung_ = Fallback::kLoadOnly;
      return false;
  }
}

// ---- Leaves ----

void RouteTask::AskNext() {
  std::vector<Target> targets = TakeTargets();
  // With an answer in hand nobody is asked who is only remembered.
  while (targets.empty() && answered_.empty() && NextRung()) targets = TakeTargets();
  if (targets.empty()) return Decide();
  std::vector<Target> nodes, leaves;
  for (Target& target : targets) (target.is_node ? nodes : leaves).push_back(std::move(target));
  if (nodes.empty()) return AskLeaves(std::move(leaves));
  for (const Target& leaf : leaves) asked_addresses_.erase(leaf.asked.address);
  AskNodes(std::move(nodes), std::move(leaves));
}

void RouteTask::AskLeaves(std::vector<Target> targets) {
  const bool more = !targets_.empty() || rung_ < Fallback::kOwnCell;
  const Duration deadline = more ? Share(Left(), kWaveShare) : Left();
  if (deadline < kHopMin) {
    AddReason(&receipt_.reason, "no time left for leaves");
    rung_ = Fallback::kLoadOnly;
    return Decide();
  }
  step_started_ = Now();
  leaves_asked_ += targets.size();
  auto wave = std::make_shared<LeafWave>();
  wave->sequence = sequence_;
  wave->domain = std::make_shared<const Domain>(input_.domain);
  {
    MutexLock lock(&wave->mutex);
    for (Target& target : targets) {
      wave->leaves.emplace_back();
      wave->leaves.back().target = std::move(target);
    }
  }
  // The task may have gone on, and changed, as soon as the last question is out, or before, when the others cannot win: only
  // the wave is read.
  const std::shared_ptr<RouteTask> self = shared_from_this();
  const size_t count = targets.size();
  const Time until = step_started_ + deadline;
  for (size_t i = 0; i < count; ++i) AskLeaf(wave, i, until);
}

void RouteTask::AskLeaf(const std::shared_ptr<LeafWave>& wave, size_t leaf, Time until) {
  FirstAnswerOptions options{.addresses = {},
                             .until = until,
                             .hedge_after = shared_->options.hedge_after,
                             .clock = shared_->clock,
                             .timer = shared_->timer};
  {
    MutexLock lock(&wave->mutex);
    if (wave->closed) return;
    const Target& target = wave->leaves[leaf].target;
    options.addresses = target.other_addresses;
    options.addresses.insert(options.addresses.begin(), target.asked.address);
  }
  FirstAnswer<WorkersAnswer>::Start(
      std::move(options),
      [shared = shared_, wave](const std::string& address, Duration deadline,
                               FirstAnswer<WorkersAnswer>::Reply reply) {
        shared->overlap_finder->FindOverlaps(
            address, {.domain = wave->domain.get(), .sequence = *wave->sequence}, deadline,
            std::move(reply));
      },
      [](const WorkersAnswer& answer) {
        return answer.workers.empty() ? absl::NotFoundError("no workers") : absl::OkStatus();
      },
      [self = shared_from_this(), wave, leaf](WorkersOutcome outcome) {
        self->OnWorkers(wave, leaf, std::move(outcome));
      });
}

void RouteTask::OnWorkers(const std::shared_ptr<LeafWave>& wave, size_t leaf,
                          WorkersOutcome outcome) {
  std::vector<Pending> leaves;
  {
    MutexLock lock(&wave->mutex);
    if (wave->closed) return;
    Pending& pending = wave->leaves[leaf];
    pending.outcome = std::move(outcome);
    pending.answered = true;
    pending.answered_at = Now();
    if (WorthWaiting(*wave)) return;
    wave->closed = true;
    leaves.swap(wave->leaves);
  }
  OnWave(std::move(leaves));
}

bool RouteTask::WorthWaiting(const LeafWave& wave) const {
  std::optional<double> cheapest;
  double best_of_late = 0;
  bool late = false;
  for (const Pending& leaf : wave.leaves) {
    if (!leaf.answered) {
      best_of_late = late ? std::min(best_of_late, leaf.target.best_cost) : leaf.target.best_cost;
      late = true;
    } else if (leaf.outcome.answer.ok()) {
      MutexLock lock(&shared_->mutex);
      const double cost =
          BestCostOf(*leaf.outcome.answer, leaf.target.asked.cell, leaf.target.distance);
      cheapest = std::min(cheapest.value_or(cost), cost);
    }
  }
  return late && (!cheapest.has_value() || best_of_late < *cheapest);
}

double RouteTask::BestCostOf(const WorkersAnswer& answer, const std::string& cell,
                             double distance) const {
  double best = std::numeric_limits<double>::infinity();
  for (const WorkerFound& found : answer.workers) {
    if (StandingOf(cell, found.worker) != Standing::kGood) continue;
    const uint32_t overlap =
        found.trust == Trust::kStale ? 0 : std::min(found.blocks, receipt_.blocks);
    const CostInput input = InputFor(cell, found.worker, found.load, overlap, distance);
    best = std::min(best, CostOf(input, shared_->options.weights).total());
  }
  return best;
}

void RouteTask::OnWave(std::vector<Pending> leaves) {
  receipt_.find_overlaps_us += Microseconds(Now() - step_started_);
  uint32_t block_size = 0;
  for (Pending& leaf : leaves) {
    const uint32_t named = TakeAnswer(std::move(leaf));
    if (named != 0) block_size = named;
  }
  if (StartOver(block_size)) return;
  if (answered_.empty() || NextCanWin()) return AskNext();
  Decide();
}

uint32_t RouteTask::TakeAnswer(Pending leaf) {
  CellAsked& asked = leaf.target.asked;
  asked.us = Microseconds((leaf.answered ? leaf.answered_at : Now()) - step_started_);
  uint32_t block_size = 0;
  if (!leaf.answered) {
    asked.error = "late, and could not win any more";
  } else if (!leaf.outcome.answer.ok()) {
    asked.address = leaf.outcome.address;
    asked.error = leaf.outcome.answer.status().ToString();
    AddReason(&receipt_.reason, "leaf " + asked.cell + " at " + asked.address + ": " + asked.error);
  } else {
    asked.address = leaf.outcome.address;
    auto answer = std::make_shared<const WorkersAnswer>(*std::move(leaf.outcome.answer));
    block_size = answer->block_size;
    for (const WorkerFound& worker : answer->workers)
      asked.best_blocks = std::max(asked.best_blocks, worker.blocks);
    bool live = false;
    {
      MutexLock lock(&shared_->mutex);
      live = BestStanding(asked.cell, *answer) == Standing::kGood;
      shared_->memory.SawWorkers(input_.domain, asked.cell, answer, Now());
      shared_->memory.Promised(input_.domain, asked.cell, asked.blocks_at_least, asked.best_blocks,
                               Now());
    }
    if (live) ++useful_leaves_;
    if (!live) AddReason(&receipt_.reason, "cell " + asked.cell + " has no worker that is alive");
    if (!live && suspected_.empty()) suspected_rung_ = rung_;
    (live ? answered_ : suspected_)
        .push_back(
            {.cell = asked.cell, .distance = leaf.target.distance, .answer = std::move(answer)});
  }
  receipt_.cells.push_back(std::move(asked));
  return block_size;
}

bool RouteTask::NextCanWin() const {
  if (rung_ != Fallback::kNone || useful_leaves_ >= AtOnce()) return false;
  if (leaves_asked_ >= shared_->options.asked_max || Share(Left(), kWaveShare) < kHopMin)
    return false;
  const double to_beat = ToBeat();
  return std::any_of(targets_.begin(), targets_.end(),
                     [&](const Target& target) { return target.best_cost < to_beat; });
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
                        .age_ms = MillisecondsSince(known.seen)});
  }
  return candidates;
}

RouteTask::Standing RouteTask::StandingOf(const std::string& cell, const HolderId& worker) const {
  for (const CellWorker& tried : input_.tried) {
    if (tried.first == cell && tried.second == worker) return Standing::kTried;
  }
  const bool suspect =
      !shared_->suspects.empty() && shared_->suspects.Contains({cell, worker}, Now());
  return suspect ? Standing::kSuspect : Standing::kGood;
}

RouteTask::Standing RouteTask::BestStanding(const std::string& cell,
                                            const WorkersAnswer& answer) const {
  Standing best = Standing::kNobody;
  for (const WorkerFound& found : answer.workers)
    best = std::min(best, StandingOf(cell, found.worker));
  return best;
}

bool RouteTask::NobodyStandsBetterThanSuspected() const {
  if (suspected_.empty()) return false;
  Standing best = Standing::kNobody;
  for (const Answered& suspected : suspected_)
    best = std::min(best, BestStanding(suspected.cell, *suspected.answer));
  for (const KnownWorker& known : shared_->memory.Workers(input_.domain)) {
    if (StandingOf(known.cell, known.worker) < best) return false;
  }
  return true;
}

void RouteTask::LeaveTheBestStanding(std::vector<CostCandidate>* candidates,
                                     std::vector<ReceiptCandidate>* details) const {
  if (shared_->suspects.empty() && input_.tried.empty()) return;
  Standing best = Standing::kNobody;
  for (const CostCandidate& candidate : *candidates)
    best = std::min(best, StandingOf(candidate.cell, candidate.worker));
  std::vector<CostCandidate> others;
  std::vector<ReceiptCandidate> their_details;
  for (size_t i = 0; i < candidates->size(); ++i) {
    if (StandingOf((*candidates)[i].cell, (*candidates)[i].worker) != best) continue;
    others.push_back((*candidates)[i]);
    their_details.push_back((*details)[i]);
  }
  candidates->swap(others);
  details->swap(their_details);
}

// The choice and its place in flight are one step under the lock, so that of two siblings the second sees the first.
void RouteTask::Decide() {
  RouteResult result;
  {
    MutexLock lock(&shared_->mutex);
    shared_->stats.expired_choices += shared_->memory.ExpireChoices(Now());
    // Everybody who answered is suspected, or was tried, and so is who else is remembered: then what they hold still counts.
    if (answered_.empty() && NobodyStandsBetterThanSuspected()) {
      answered_.swap(suspected_);
      rung_ = suspected_rung_;
    }
    if (answered_.empty()) rung_ = Fallback::kLoadOnly;
    std::vector<ReceiptCandidate> details;
    std::vector<CostCandidate> candidates = rung_ == Fallback::kLoadOnly
                                                ? RememberedCandidates(&details)
                                                : AnsweredCandidates(&details);
    LeaveTheBestStanding(&candidates, &details);
    const std::vector<RankedCandidate> ranked = RankCandidates(
        candidates, shared_->options.weights, PromptKey(*sequence_), kReceiptCandidatesMax);
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
      result.url = shared_->UrlOf(input_.domain, chosen.cell, chosen.worker);
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
  if (RouteObserver* observer = shared_->options.observer; observer != nullptr) {
    observer->OnDecided({.input = input_,
                         .result = result,
                         .sequence = sequence_,
                         .block_size = block_size_,
                         .contract = shared_->options.contract,
                         .at = Now()});
  }
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
