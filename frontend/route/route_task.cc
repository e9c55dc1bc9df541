#include "frontend/route/route_task.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "frontend/route/route_observer.h"
#include "indexer/base/waypoints.h"

namespace kvatlas {
namespace {

// In a fleet where some prefill and others decode the hierarchy names all of its cells so often, not its best alone.
constexpr Duration kListCellsEvery = std::chrono::seconds(10);
// Levels below the top.
constexpr int kLevelsMax = 4;

void AddReason(std::string* reason, const std::string& why) {
  if (why.empty()) return;
  if (!reason->empty()) *reason += "; ";
  *reason += why;
}

}  // namespace

RouteTask::RouteTask(std::shared_ptr<Frontend::Shared> shared, RouteInput input,
                     Frontend::Callback callback)
    : shared_(std::move(shared)),
      input_(std::move(input)),
      policy_(shared_->PolicyOf(input_.domain.model)),
      callback_(std::move(callback)) {
  // They are looked up for every worker, under the lock.
  std::sort(input_.allowed_workers.begin(), input_.allowed_workers.end());
  std::sort(input_.excluded_workers.begin(), input_.excluded_workers.end());
}

void RouteTask::Start() {
  began_ = started_ = Now();
  deadline_ = input_.deadline > Duration(0) ? input_.deadline : shared_->options.deadline;
  Reset();
  if (absl::Status bad = Prepare(); !bad.ok()) return Fail(std::move(bad));
  bool stopped = false;
  {
    MutexLock lock(&shared_->mutex);
    stopped = shared_->stopped;
    if (const CellWorker* worker =
            shared_->sessions.Find(input_.domain, input_.session_id, started_))
      session_ = *worker;
  }
  if (stopped) return Fail(StoppedError());
  absl::Status full = CheckMemoryForQuestion(shared_->options.memory_budget, receipt_.blocks);
  if (!full.ok()) return Fail(std::move(full));
  AskTop();
}

absl::Status RouteTask::Prepare() {
  if (absl::Status bad = CheckNames(input_.domain, input_.session_id); !bad.ok()) return bad;
  if (absl::Status bad = shared_->Prepare(&input_); !bad.ok()) return bad;
  SetPrompt(input_.prepared);
  return absl::OkStatus();
}

void RouteTask::SetPrompt(PreparedPrompt::Ptr prompt) {
  prompt_ = std::move(prompt);
  waypoints_ = prompt_->waypoints();
  receipt_.blocks = prompt_->blocks();
  sequence_ = std::shared_ptr<const std::vector<SequenceHash>>(prompt_, &prompt_->sequence());
  reusable_sequence_ = std::make_shared<const std::vector<SequenceHash>>(
      prompt_->reusable().begin(), prompt_->reusable().end());
}

void RouteTask::Reset() {
  receipt_ = Receipt();
  targets_.clear();
  asked_addresses_.clear();
  answered_.clear();
  suspected_.clear();
  least_excess_ = UINT64_MAX;
  overloaded_decoders_ = 0;
  no_room_to_decode_ = false;
  cells_wanted_ = shared_->options.cells_best;
  cells_left_out_ = false;
  leaves_asked_ = 0;
  useful_leaves_ = 0;
  coverage_overstates_ = false;
  unanswered_ = 0;
  some_answered_ = false;
  levels_ = 0;
  rung_ = Fallback::kNone;
}

bool RouteTask::StartOver(uint32_t block_size) {
  if (block_size == 0) return false;
  {
    MutexLock lock(&shared_->mutex);
    shared_->memory.SetBlockSize(input_.domain, block_size, Now());
  }
  if (started_over_ || !prompt_->DiffersIn(block_size)) return false;
  started_over_ = true;
  Reset();
  absl::StatusOr<PreparedPrompt::Ptr> prompt = prompt_->InBlocksOf(block_size);
  if (prompt.ok()) {
    SetPrompt(*std::move(prompt));
    AskTop();
  } else {
    Fail(prompt.status());
  }
  return true;
}

// ---- The top of the hierarchy ----

void RouteTask::AskTop() {
  asked_other_shards_ = false;
  {
    MutexLock lock(&shared_->mutex);
    top_ = shared_->hierarchies;
    if (shared_->memory.IsDue(input_.domain, FleetMemory::Errand::kListCells, kListCellsEvery,
                              Now()))
      cells_wanted_ = 0;
    LookForSibling();
  }
  if (top_->empty()) return FallBack("no hierarchy configured");
  const Duration budget = std::min(Share(deadline_, kHierarchyShare), Left());
  if (budget < kHopMin) return FallBack("no time left for a hierarchy");
  AskAhead();
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
  node->best = cells_wanted_;
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
  some_answered_ = true;
  const CellsAnswer answer = MergeAnswers(std::move(answers));
  Remember(answer.cells, /*by=*/"");
  if (StartOver(answer.block_size)) return;
  rung_ = Fallback::kNone;
  receipt_.reason
      .clear();  // another replica or shard answered: what was missing is coverage at most
  cells_left_out_ = cells_wanted_ > 0 && answer.cells.size() >= cells_wanted_;
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
          shared->cell_finder->FindCells(
              address,
              {.domain = domain.get(),
               .waypoints = question->waypoints,
               .blocks = question->blocks,
               .best = question->best,
               .schedule = question->schedule,
               .positions = question->positions},
              deadline,
              [shared, address, reply = std::move(reply)](absl::StatusOr<CellsAnswer> answer) {
                if (absl::IsFailedPrecondition(answer.status()))
                  shared->OnRefused(address, answer.status());
                reply(std::move(answer));
              });
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
  CountFailure(outcome.answer.status());
}

void RouteTask::CountFailure(const absl::Status& why) {
  if (absl::IsNotFound(why)) {
    some_answered_ = true;
  } else {
    ++unanswered_;
  }
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
    question->best = cells_wanted_;
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
  // Whoever is over the thresholds is at least alive: what is remembered knows nobody better.
  while (targets.empty() && answered_.empty() && receipt_.overloaded == 0 && NextRung())
    targets = TakeTargets();
  if (targets.empty()) return Conclude();
  std::vector<Target> nodes, leaves;
  for (Target& target : targets) (target.is_node ? nodes : leaves).push_back(std::move(target));
  if (nodes.empty()) {
    AddDecoders(&leaves);
    return AskLeaves(std::move(leaves));
  }
  for (const Target& leaf : leaves) asked_addresses_.erase(leaf.asked.address);
  AskNodes(std::move(nodes), std::move(leaves));
}

void RouteTask::AskAhead() {
  ahead_ = nullptr;
  const Duration deadline = Share(Left(), kWaveShare);  // before that of any wave that follows
  if (shared_->options.ask_ahead == 0 || !policy_->bounded_by_coverage() || deadline < kHopMin)
    return;
  std::vector<std::string> leaves;
  {
    MutexLock lock(&shared_->mutex);
    leaves = GuessedLeaves();
    shared_->stats.asked_ahead += leaves.size();
  }
  if (leaves.empty()) return;
  ahead_ = std::make_shared<AskedAhead>(input_.domain, reusable_sequence_);
  for (const std::string& leaf : leaves) ahead_->Ask(shared_->overlap_finder, leaf, deadline);
}

std::vector<std::string> RouteTask::GuessedLeaves() const {
  std::vector<std::string> leaves;
  if (shared_->memory.cells(input_.domain) <= shared_->options.ask_ahead) {
    for (KnownCell& cell : shared_->memory.Cells(input_.domain))
      leaves.push_back(std::move(cell.address));
  } else {
    const SentTo sent = shared_->memory.LastSentTo(input_.domain, waypoints_, Now());
    const KnownCell* lately = shared_->memory.FindCell(input_.domain, sent.cell);
    const bool most =
        sent.waypoints == waypoints_.size() ||
        shared_->options.schedule->BlocksCovered(sent.waypoints) >= receipt_.blocks / 2;
    if (lately != nullptr && most) leaves.push_back(lately->address);
    const KnownCell* of_session =
        session_.has_value() ? shared_->memory.FindCell(input_.domain, session_->first) : nullptr;
    if (of_session != nullptr && of_session != lately) leaves.push_back(of_session->address);
  }
  std::erase(leaves, "");
  if (leaves.size() > shared_->options.ask_ahead) leaves.resize(shared_->options.ask_ahead);
  return leaves;
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
  wave->sequence = reusable_sequence_;
  wave->domain = std::make_shared<const Domain>(input_.domain);
  wave->ahead = ahead_;
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
  std::shared_ptr<const Target> for_decoders;
  {
    MutexLock lock(&wave->mutex);
    if (wave->closed) return;
    const Target& target = wave->leaves[leaf].target;
    if (target.for_decoders) for_decoders = std::make_shared<const Target>(target);
    options.addresses = target.other_addresses;
    options.addresses.insert(options.addresses.begin(), target.asked.address);
  }
  FirstAnswer<WorkersAnswer>::Start(
      std::move(options),
      [shared = shared_, wave](const std::string& address, Duration deadline,
                               FirstAnswer<WorkersAnswer>::Reply reply) {
        if (wave->ahead != nullptr && wave->ahead->Take(address, reply)) {
          MutexLock lock(&shared->mutex);
          ++shared->stats.asked_ahead_used;
          return;
        }
        shared->overlap_finder->FindOverlaps(
            address, {.domain = wave->domain.get(), .sequence = *wave->sequence}, deadline,
            std::move(reply));
      },
      [](const WorkersAnswer& answer) {
        return answer.workers.empty() ? absl::NotFoundError("no workers") : absl::OkStatus();
      },
      [self = shared_from_this(), wave, leaf, for_decoders](WorkersOutcome outcome) {
        if (self->OnWorkers(wave, leaf, &outcome) || for_decoders == nullptr) return;
        self->OnLateDecoders(*for_decoders, std::move(outcome));
      });
}

bool RouteTask::OnWorkers(const std::shared_ptr<LeafWave>& wave, size_t leaf,
                          WorkersOutcome* outcome) {
  std::vector<Pending> leaves;
  {
    MutexLock lock(&wave->mutex);
    if (wave->closed) return false;
    Pending& pending = wave->leaves[leaf];
    pending.outcome = std::move(*outcome);
    pending.answered = true;
    pending.answered_at = Now();
    if (WorthWaiting(*wave)) return true;
    wave->closed = true;
    leaves.swap(wave->leaves);
  }
  OnWave(std::move(leaves));
  return true;
}

bool RouteTask::WorthWaiting(const LeafWave& wave) const {
  std::optional<double> cheapest;
  double best_of_late = 0;
  bool late = false, decoders_late = false, decoders_found = false;
  for (const Pending& leaf : wave.leaves) {
    if (!leaf.answered && leaf.target.for_decoders) {
      decoders_late = true;
    } else if (!leaf.answered) {
      best_of_late = late ? std::min(best_of_late, leaf.target.best_cost) : leaf.target.best_cost;
      late = true;
    } else if (leaf.outcome.answer.ok()) {
      MutexLock lock(&shared_->mutex);
      const double cost =
          BestCostOf(*leaf.outcome.answer, leaf.target.asked.cell, leaf.target.distance);
      cheapest = std::min(cheapest.value_or(cost), cost);
      decoders_found = decoders_found || HasDecoder(*leaf.outcome.answer, leaf.target.asked.cell);
    }
  }
  if (decoders_late && !decoders_found) return true;
  return late && (!cheapest.has_value() || best_of_late < *cheapest);
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
  Conclude();
}

uint32_t RouteTask::TakeAnswer(Pending leaf) {
  CellAsked& asked = leaf.target.asked;
  asked.us = Microseconds((leaf.answered ? leaf.answered_at : Now()) - step_started_);
  uint32_t block_size = 0;
  if (!leaf.answered) {
    asked.error = "late, and could not win any more";
    ++unanswered_;
  } else if (!leaf.outcome.answer.ok()) {
    asked.address = leaf.outcome.address;
    asked.error = leaf.outcome.answer.status().ToString();
    CountFailure(leaf.outcome.answer.status());
    AddReason(&receipt_.reason, "leaf " + asked.cell + " at " + asked.address + ": " + asked.error);
    if (leaf.target.for_decoders) ForgetRoles(asked.cell);
  } else {
    asked.address = leaf.outcome.address;
    some_answered_ = true;
    auto answer = std::make_shared<const WorkersAnswer>(*std::move(leaf.outcome.answer));
    block_size = answer->block_size;
    uint32_t best_held = 0;
    for (const WorkerFound& worker : answer->workers) {
      asked.best_blocks = std::max(asked.best_blocks, worker.blocks);
      best_held = std::max({best_held, worker.blocks, worker.held});
    }
    coverage_overstates_ = coverage_overstates_ || best_held > asked.best_blocks;
    Choosable choosable;
    {
      MutexLock lock(&shared_->mutex);
      shared_->memory.ShownBy(asked.cell, *answer, *sequence_, Now());
      LookWhetherShown(asked.cell, *answer);
      choosable = ChoosableOf(asked.cell, *answer);
      shared_->memory.SawWorkers(input_.domain, asked.cell, answer, Now());
      shared_->memory.SawRoles(input_.domain, RolesIn(leaf.target, *answer), Now());
      shared_->memory.Promised(input_.domain, asked.cell,
                               std::min(asked.blocks_at_least, ReusableMax()), best_held, Now());
    }
    const bool live = choosable.best() == Standing::kGood;
    if (live) ++useful_leaves_;
    if (!live && choosable.decodes != Standing::kGood)
      AddReason(&receipt_.reason, "cell " + asked.cell + " has no worker that may be chosen");
    if (!live && suspected_.empty()) suspected_rung_ = rung_;
    (live ? answered_ : suspected_)
        .push_back({.cell = asked.cell,
                    .distance = leaf.target.distance,
                    .answer = std::move(answer),
                    .choosable = choosable});
  }
  receipt_.cells.push_back(std::move(asked));
  return block_size;
}

bool RouteTask::NextCanWin() const {
  if (rung_ != Fallback::kNone || useful_leaves_ >= UsefulLeavesMax()) return false;
  if (leaves_asked_ >= shared_->options.asked_max || Share(Left(), kWaveShare) < kHopMin)
    return false;
  const double to_beat = ToBeat();
  return std::any_of(targets_.begin(), targets_.end(),
                     [&](const Target& target) { return target.best_cost < to_beat; });
}

void RouteTask::Fail(absl::Status status) {
  {
    MutexLock lock(&shared_->mutex);
    shared_->stats.failed += 1;
  }
  std::exchange(callback_, nullptr)(std::move(status));
}

}  // namespace kvatlas
