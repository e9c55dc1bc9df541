// Of one route: who decodes what others prefill, and who is asked for it?
//
// Who prefills and who decodes may be in different cells, and coverage says nothing of a decoder: it is worth having without
// any block of the prompt. So cells that decode are looked for on their own, as long as somebody who only prefills could be
// chosen and no decoder has answered:
//
//   1. `AddDecoders`             the best cell that is known to decode, in the same wave as cells that are known not to
//   2. `TakeDecodeCells`       after that wave: the others that are known to
//   3. `TakeCellsThatMayDecode`  those of which nobody knows it, several at once; not while somebody who does both was found
//   4. `AskForAllCells`          the hierarchy had named its best cells alone
// and now and then cells of which nobody knows it, beside 1., so that new ones are found. At last
//
//   5. `AddRememberedDecoders`   nobody who stands well answered: by last known loads; the suspected too, as `PairWithDecoders`
//                                takes the best standing
//
// The first cell with a decoder is enough.

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

#include "frontend/route/route_task.h"

namespace kvatlas {
namespace {

// So long a cell that answered is not asked for decoders again when it had none, and the load of its decoders is believed.
constexpr Duration kRolesFresh = std::chrono::seconds(1);
// So often cells are asked, beside those that are known to decode, of which it was not heard for so long; so many at once.
constexpr Duration kExploreEvery = std::chrono::seconds(1);
constexpr Duration kRolesKnown = std::chrono::seconds(10);
constexpr size_t kExploredAtOnce = 2;

// What a request waits for in a cell, by what is known of the cell alone.
double CellDecodeCost(double requests, double workers, double distance,
                      const CostWeights& weights) {
  return weights.distance * distance + weights.decode * requests / std::max(workers, 1.0);
}

}  // namespace

// ---- Whom to ask ----

void RouteTask::Conclude() {
  if (LacksDecoder() && AskForDecoders()) return;
  Decide();
}

bool RouteTask::LacksDecoder() const {
  const bool split = std::any_of(answered_.begin(), answered_.end(), [](const Answered& answered) {
    return answered.choosable.prefills == Standing::kGood;
  });
  return split && !DecoderAnswered();
}

bool RouteTask::DecoderAnswered() const {
  const auto decodes = [](const Answered& answered) {
    return answered.choosable.decodes == Standing::kGood;
  };
  return std::any_of(answered_.begin(), answered_.end(), decodes) ||
         std::any_of(suspected_.begin(), suspected_.end(), decodes);
}

bool RouteTask::HasDecoder(const WorkersAnswer& answer, const std::string& cell) const {
  const WorkerFilter filter = Filter();
  const Labels* of_cell = CellLabels(cell);
  for (const WorkerFound& found : answer.workers) {
    const Labels* own = answer.LabelsOf(found.worker);
    if (RoleOf(own, of_cell) == Role::kDecode &&
        StandingOf(cell, found.worker) == Standing::kGood &&
        FitOf(filter, found.worker, own, of_cell, found.load,
              shared_->memory.choices().To(cell, found.worker)) == Fit::kFits)
      return true;
  }
  return false;
}

CellRoles RouteTask::RolesIn(const Target& leaf, const WorkersAnswer& answer) const {
  const std::string& cell = leaf.asked.cell;
  const Labels* of_cell = CellLabels(cell);
  CellRoles roles;
  for (const WorkerFound& found : answer.workers) {
    const Role role = RoleOf(answer.LabelsOf(found.worker), of_cell);
    roles.alone = roles.alone || role == Role::kBoth;
    roles.prefills = roles.prefills || role == Role::kPrefill;
    if (role != Role::kDecode) continue;
    ++roles.decoders;
    if (found.load.has_value())
      roles.decoder_requests +=
          uint64_t{found.load->running_requests} + found.load->waiting_requests;
  }
  roles.cell = cell;
  roles.address = leaf.asked.address;
  roles.distance = leaf.distance;
  return roles;
}

void RouteTask::OnLateDecoders(const Target& leaf, WorkersOutcome outcome) {
  if (!outcome.answer.ok()) return ForgetRoles(leaf.asked.cell);
  Target answered = leaf;
  answered.asked.address = outcome.address;
  auto answer = std::make_shared<const WorkersAnswer>(*std::move(outcome.answer));
  MutexLock lock(&shared_->mutex);
  shared_->memory.SawRoles(input_.domain, RolesIn(answered, *answer), Now());
  shared_->memory.SawWorkers(input_.domain, leaf.asked.cell, std::move(answer), Now());
}

bool RouteTask::AskForDecoders() {
  const FrontendOptions& options = shared_->options;
  if (leaves_asked_ >= options.asked_max || Share(Left(), kWaveShare) < kHopMin) return false;
  const size_t room = options.asked_max - leaves_asked_;
  const bool alone = std::any_of(answered_.begin(), answered_.end(), [](const Answered& answered) {
    return answered.choosable.alone == Standing::kGood;
  });
  std::vector<Target> targets;
  {
    MutexLock lock(&shared_->mutex);
    targets = TakeDecodeCells(std::min<size_t>(room, std::max(options.ask_cells, 1u)));
    if (targets.empty() && !alone) {
      targets = TakeCellsThatMayDecode(
          std::min<size_t>(room, std::max({options.ask_cells_blind, options.ask_cells, 1u})),
          kRolesFresh, /*nodes=*/true);
    }
  }
  if (targets.empty() && !alone && cells_left_out_) return AskForAllCells();
  if (targets.empty()) return false;
  if (targets.front().is_node) {
    AskNodes(std::move(targets), {});
  } else {
    AskLeaves(std::move(targets));
  }
  return true;
}

void RouteTask::AddDecoders(std::vector<Target>* leaves) {
  if (DecoderAnswered() || leaves_asked_ + leaves->size() >= shared_->options.asked_max) return;
  MutexLock lock(&shared_->mutex);
  bool prefill = false;
  for (const Target& leaf : *leaves) {
    const CellRoles* roles = shared_->memory.RolesOf(input_.domain, leaf.asked.cell);
    if (roles != nullptr && roles->decoders > 0) return;
    prefill = prefill || (roles != nullptr && roles->prefills);
  }
  if (!prefill) return;
  const size_t room = shared_->options.asked_max - leaves_asked_ - leaves->size();
  std::vector<Target> decode = TakeDecodeCells(1);
  std::vector<Target> explored;
  // Roles change, and cells come: without this, whoever decodes first would decode for ever.
  if (!decode.empty() && room > decode.size() &&
      shared_->memory.IsDue(input_.domain, FleetMemory::Errand::kExploreCells, kExploreEvery,
                            Now())) {
    explored = TakeCellsThatMayDecode(std::min(room - decode.size(), kExploredAtOnce), kRolesKnown,
                                      /*nodes=*/false);
  }
  for (Target& target : explored) leaves->push_back(std::move(target));
  for (Target& target : decode) leaves->push_back(std::move(target));
}

void RouteTask::ForgetRoles(const std::string& cell) {
  MutexLock lock(&shared_->mutex);
  shared_->memory.SawRoles(input_.domain, {.cell = cell, .address = ""}, Now());
}

bool RouteTask::WasAsked(const Target& target) const {
  return asked_addresses_.contains(target.asked.address) ||
         std::any_of(receipt_.cells.begin(), receipt_.cells.end(),
                     [&](const CellAsked& asked) { return asked.cell == target.asked.cell; });
}

RouteTask::Target RouteTask::TakeTarget(const CellRoles& roles) {
  const auto named = std::find_if(targets_.begin(), targets_.end(), [&](const Target& target) {
    return !target.is_node && target.asked.cell == roles.cell;
  });
  Target target;
  if (named != targets_.end()) {
    target = std::move(*named);
    targets_.erase(named);
  } else {
    target.asked = {
        .cell = roles.cell, .address = roles.address, .blocks_below = receipt_.blocks + 1};
    target.distance = roles.distance;
  }
  target.for_decoders = true;
  return target;
}

std::vector<RouteTask::Target> RouteTask::TakeDecodeCells(size_t cells_max) {
  std::vector<std::tuple<double, std::string, CellRoles>> cells;
  for (CellRoles& roles : shared_->memory.DecodeCells(input_.domain)) {
    // What was heard longer ago says nothing any more; without this, a cell that once was busy would never be asked again.
    const bool fresh = roles.seen + kRolesFresh > Now();
    const double requests = (fresh ? static_cast<double>(roles.decoder_requests) : 0) +
                            shared_->memory.choices().To(roles.cell).requests;
    const double cost =
        CellDecodeCost(requests, roles.decoders, roles.distance, policy_->weights());
    std::string name = roles.cell;
    cells.emplace_back(cost, std::move(name), std::move(roles));
  }
  std::sort(cells.begin(), cells.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });
  std::vector<Target> taken;
  for (const auto& [cost, name, roles] : cells) {
    if (taken.size() == cells_max) break;
    Target target = TakeTarget(roles);
    if (WasAsked(target)) continue;
    asked_addresses_.insert(target.asked.address);
    taken.push_back(std::move(target));
  }
  return taken;
}

// Leaves before nodes, so that the levels below are looked through only when the cells at hand have none.
std::vector<RouteTask::Target> RouteTask::TakeCellsThatMayDecode(size_t cells_max, Duration fresh,
                                                                 bool nodes) {
  struct Ranked {
    bool is_node = false;
    bool says_so = false;  // the cell's own label
    double cost = 0;
    size_t target = 0;
  };
  std::vector<Ranked> ranked;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Target& target = targets_[i];
    const std::string& cell = target.asked.cell;
    if ((target.is_node && !nodes) || WasAsked(target)) continue;
    const std::optional<Time> answered = shared_->memory.Answered(input_.domain, cell);
    if (!target.is_node && answered.has_value() && *answered + fresh > Now()) continue;
    const KnownCell* known = shared_->memory.FindCell(input_.domain, cell);
    double requests = shared_->memory.choices().To(cell).requests;
    double workers = 1;
    if (known != nullptr && known->load.has_value()) {
      requests +=
          static_cast<double>(known->load->running_requests) + known->load->waiting_requests;
      workers = known->load->workers;
    }
    ranked.push_back(
        {.is_node = target.is_node,
         .says_so = known != nullptr && RoleOf(nullptr, &known->labels) == Role::kDecode,
         .cost = CellDecodeCost(requests, workers, target.distance, policy_->weights()),
         .target = i});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    return std::tuple(a.is_node, !a.says_so, a.cost) < std::tuple(b.is_node, !b.says_so, b.cost);
  });
  std::vector<Target> taken;
  for (const Ranked& rank : ranked) {
    if (taken.size() == cells_max || rank.is_node != ranked.front().is_node) break;
    Target& target = targets_[rank.target];
    if (!asked_addresses_.insert(target.asked.address).second) continue;
    taken.push_back(std::move(target));
    taken.back().for_decoders = !rank.is_node;
    target.asked.address.clear();
  }
  std::erase_if(targets_, [](const Target& target) { return target.asked.address.empty(); });
  return taken;
}

bool RouteTask::AskForAllCells() {
  const Duration budget = Share(Left(), kHierarchyShare);
  if (top_ == nullptr || top_->empty() || budget < kHopMin) return false;
  cells_wanted_ = 0;
  cells_left_out_ = false;
  const NodeQuestions questions = TopQuestions();
  AskCells(questions, budget,
           [self = shared_from_this(), questions](std::vector<CellsOutcome> outcomes) {
             self->OnAllCells(questions, std::move(outcomes));
           });
  return true;
}

void RouteTask::OnAllCells(const NodeQuestions& questions, std::vector<CellsOutcome> outcomes) {
  std::vector<ShardQuestion> asked(questions.size());
  std::vector<ShardAnswer> answers;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    asked[i].positions = questions[i]->positions;
    if (outcomes[i].answer.ok())
      answers.push_back({.question = &asked[i], .answer = *std::move(outcomes[i].answer)});
    else
      AddReasons("hierarchy", outcomes[i]);
  }
  if (!answers.empty()) {
    {
      MutexLock lock(&shared_->mutex);
      shared_->memory.IsDue(input_.domain, FleetMemory::Errand::kListCells, Duration(0), Now());
    }
    const CellsAnswer answer = MergeAnswers(std::move(answers));
    Remember(answer.cells, /*by=*/"");
    targets_ = ToTargets(answer.cells);
  }
  Conclude();
}

// ---- Whom to choose ----

void RouteTask::AddRememberedDecoders(Candidates* candidates) const {
  WorkerFilter filter = Filter();
  filter.overload = {};
  for (const KnownWorker& known : shared_->memory.Workers(input_.domain)) {
    const Labels* of_cell = CellLabels(known.cell);
    const Labels* own = shared_->memory.LabelsOf(input_.domain, known.cell, known.worker);
    if (RoleOf(own, of_cell) != Role::kDecode ||
        FitOf(filter, known.worker, own, of_cell, known.load, {}) != Fit::kFits)
      continue;
    candidates->decoders.push_back(
        {.cell = known.cell,
         .worker = known.worker,
         .input = InputFor({.cell = known.cell,
                            .worker = known.worker,
                            .load = known.load,
                            .distance = of_cell == nullptr ? 0 : DistanceOf(*of_cell)})});
  }
}

bool RouteTask::AnyStandsWell(const std::vector<Decoder>& decoders) const {
  for (const Decoder& decoder : decoders) {
    if (StandingOf(decoder.cell, decoder.worker) == Standing::kGood) return true;
  }
  return false;
}

const RouteTask::Decoder* RouteTask::BestDecoder(const std::vector<Decoder>& decoders,
                                                 const std::string& cell) const {
  const Decoder* best = nullptr;
  double least = 0;
  for (const Decoder& decoder : decoders) {
    const double cost =
        DecodeElsewhereCost(decoder.input, /*far=*/decoder.cell != cell, policy_->weights());
    const bool better = best == nullptr || std::tie(cost, decoder.cell, decoder.worker) <
                                               std::tie(least, best->cell, best->worker);
    if (!better) continue;
    best = &decoder;
    least = cost;
  }
  return best;
}

void RouteTask::PairWithDecoders(Candidates* candidates) const {
  std::map<std::string, double> transfer;  // by the cell of who prefills
  Candidates paired;
  Standing best = Standing::kNobody;
  for (const Decoder& decoder : candidates->decoders)
    best = std::min(best, StandingOf(decoder.cell, decoder.worker));
  for (Decoder& decoder : candidates->decoders) {
    if (StandingOf(decoder.cell, decoder.worker) == best)
      paired.decoders.push_back(std::move(decoder));
  }
  for (size_t i = 0; i < candidates->costs.size(); ++i) {
    CostCandidate& candidate = candidates->costs[i];
    if (candidates->prefill_only[i]) {
      const auto known = transfer.find(candidate.cell);
      const Decoder* decoder =
          known == transfer.end() ? BestDecoder(paired.decoders, candidate.cell) : nullptr;
      if (known == transfer.end() && decoder == nullptr) continue;
      const double cost = known != transfer.end()
                              ? known->second
                              : DecodeElsewhereCost(decoder->input, decoder->cell != candidate.cell,
                                                    policy_->weights());
      transfer[candidate.cell] = cost;
      candidate.input.transfer = cost;
    }
    paired.costs.push_back(std::move(candidate));
    paired.details.push_back(std::move(candidates->details[i]));
    paired.prefill_only.push_back(candidates->prefill_only[i]);
  }
  *candidates = std::move(paired);
}

}  // namespace kvatlas
