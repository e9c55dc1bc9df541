// Of one route: who may be chosen, what each would cost, and the choice.

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "frontend/route/route_observer.h"
#include "frontend/route/route_task.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

// When nothing says how long a queue is.
constexpr Duration kRetryAfterDefault = std::chrono::seconds(1);

LogLimiter& NobodyLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}
constexpr Duration kRetryAfterMin = std::chrono::milliseconds(100);
constexpr Duration kRetryAfterMax = std::chrono::seconds(30);

// What a silent worker held may be gone: it counts for its load only.
uint32_t OverlapOf(const WorkerFound& found, uint32_t reusable_max) {
  return found.trust == Trust::kStale ? 0 : std::min(found.blocks, reusable_max);
}

}  // namespace

// ---- Who may be chosen ----

WorkerFilter RouteTask::Filter() const {
  return {.tenant = input_.domain.tenant,
          .allowed_workers = input_.allowed_workers,
          .excluded_workers = input_.excluded_workers,
          .required_labels = &input_.required_labels,
          .draining = &shared_->draining,
          .overload = shared_->overload};
}

const Labels* RouteTask::CellLabels(const std::string& cell) const {
  const KnownCell* known = shared_->memory.FindCell(input_.domain, cell);
  return known == nullptr ? nullptr : &known->labels;
}

RouteTask::Standing RouteTask::StandingOf(const std::string& cell, const HolderId& worker) const {
  for (const CellWorker& tried : input_.tried) {
    if (tried.first == cell && tried.second == worker) return Standing::kTried;
  }
  const bool suspect =
      !shared_->suspects.empty() && shared_->suspects.Contains({cell, worker}, Now());
  return suspect ? Standing::kSuspect : Standing::kGood;
}

RouteTask::Choosable RouteTask::ChoosableOf(const std::string& cell, const WorkersAnswer& answer) {
  const WorkerFilter filter = Filter();
  const Labels* of_cell = CellLabels(cell);
  Choosable choosable;
  for (const WorkerFound& found : answer.workers) {
    const Labels* own = answer.LabelsOf(found.worker);
    const InFlight in_flight = shared_->memory.choices().To(cell, found.worker);
    const Fit fit = FitOf(filter, found.worker, own, of_cell, found.load, in_flight);
    const Role role = RoleOf(own, of_cell);
    receipt_.not_allowed += fit == Fit::kNotAllowed;
    if (fit == Fit::kOverloaded) {
      ++(role == Role::kDecode ? overloaded_decoders_ : receipt_.overloaded);
      least_excess_ = std::min(least_excess_, QueueExcess(filter.overload, found.load, in_flight));
    }
    if (fit != Fit::kFits) continue;
    Standing& best = role == Role::kDecode    ? choosable.decodes
                     : role == Role::kPrefill ? choosable.prefills
                                              : choosable.alone;
    best = std::min(best, StandingOf(cell, found.worker));
  }
  return choosable;
}

bool RouteTask::NobodyStandsBetterThanSuspected() const {
  if (suspected_.empty()) return false;
  Standing best = Standing::kNobody;
  for (const Answered& suspected : suspected_) best = std::min(best, suspected.choosable.best());
  WorkerFilter filter = Filter();
  filter.overload = {};
  for (const KnownWorker& known : shared_->memory.Workers(input_.domain)) {
    if (StandingOf(known.cell, known.worker) >= best) continue;
    const Labels* own = shared_->memory.LabelsOf(input_.domain, known.cell, known.worker);
    if (RoleOf(own, CellLabels(known.cell)) == Role::kDecode) continue;
    if (FitOf(filter, known.worker, own, CellLabels(known.cell), known.load, {}) == Fit::kFits)
      return false;
  }
  return true;
}

void RouteTask::LeaveTheBestStanding(Candidates* candidates) const {
  if (shared_->suspects.empty() && input_.tried.empty()) return;
  Standing best = Standing::kNobody;
  for (const CostCandidate& candidate : candidates->costs)
    best = std::min(best, StandingOf(candidate.cell, candidate.worker));
  Candidates others;
  for (size_t i = 0; i < candidates->costs.size(); ++i) {
    if (StandingOf(candidates->costs[i].cell, candidates->costs[i].worker) != best) continue;
    others.costs.push_back(candidates->costs[i]);
    others.details.push_back(candidates->details[i]);
    others.prefill_only.push_back(candidates->prefill_only[i]);
  }
  others.decoders = std::move(candidates->decoders);
  *candidates = std::move(others);
}

// ---- What a choice would cost ----

void RouteTask::LookForSibling() {
  const FrontendOptions& options = shared_->options;
  sent_ = {};
  if (!options.siblings_together) return;
  sent_ = shared_->memory.LastSentTo(input_.domain, waypoints_, Now());
  if (sent_.at + options.sibling_ttl <= Now() || sent_.worker.name.empty()) sent_ = {};
}

void RouteTask::LookWhetherShown(const std::string& cell, const WorkersAnswer& answer) {
  if (sent_.cell != cell) return;
  for (const WorkerFound& found : answer.workers) {
    if (found.worker != sent_.worker || found.blocks < BlocksOfSibling()) continue;
    shared_->memory.SentIsShown(input_.domain,
                                std::span<const SequenceHash>(waypoints_).first(sent_.waypoints),
                                found.worker);
    sent_ = {};
    return;
  }
}

uint32_t RouteTask::BlocksOfSibling() const {
  if (sent_.cell.empty()) return 0;
  return std::min(shared_->options.schedule->BlocksCovered(sent_.waypoints), ReusableMax());
}

CostInput RouteTask::InputFor(const Seen& seen) const {
  const InFlight in_flight = shared_->memory.choices().To(seen.cell, seen.worker);
  CostInput input = {.prompt_blocks = receipt_.blocks,
                     .overlap_blocks = seen.overlap,
                     .fetched = seen.fetched,
                     .load = seen.load,
                     .in_flight_blocks = in_flight.blocks,
                     .in_flight_requests = in_flight.requests,
                     .distance = seen.distance,
                     .expected_output_tokens = input_.expected_output_tokens,
                     .turn = shared_->memory.TurnOf(seen.cell, seen.worker)};
  if (session_.has_value())
    input.leaves_session = session_->first != seen.cell || session_->second != seen.worker;
  const uint32_t of_sibling = BlocksOfSibling();
  if (of_sibling <= seen.overlap) return input;
  if (sent_.cell == seen.cell && sent_.worker == seen.worker) {
    input.overlap_blocks = of_sibling;
  } else {
    input.duplicated_blocks = of_sibling - seen.overlap;
  }
  return input;
}

double RouteTask::BestCostOf(const WorkersAnswer& answer, const std::string& cell,
                             double distance) const {
  const WorkerFilter filter = Filter();
  const Labels* of_cell = CellLabels(cell);
  double best = std::numeric_limits<double>::infinity();
  for (const WorkerFound& found : answer.workers) {
    const Labels* own = answer.LabelsOf(found.worker);
    if (StandingOf(cell, found.worker) != Standing::kGood || RoleOf(own, of_cell) == Role::kDecode)
      continue;
    if (FitOf(filter, found.worker, own, of_cell, found.load,
              shared_->memory.choices().To(cell, found.worker)) != Fit::kFits)
      continue;
    const CostInput input = InputFor({.cell = cell,
                                      .worker = found.worker,
                                      .load = found.load,
                                      .overlap = OverlapOf(found, ReusableMax()),
                                      .fetched = found.fetched,
                                      .distance = distance});
    best = std::min(best, policy_->CostOf(input).total());
  }
  return best;
}

// Whoever prefills is of a cell that has somebody who stands well; whoever decodes, of any that answered.
RouteTask::Candidates RouteTask::AnsweredCandidates() const {
  Candidates candidates;
  for (const Answered& answered : answered_) AddAnswered(answered, /*prefills=*/true, &candidates);
  for (const Answered& answered : suspected_)
    AddAnswered(answered, /*prefills=*/false, &candidates);
  return candidates;
}

void RouteTask::AddAnswered(const Answered& answered, bool prefills, Candidates* candidates) const {
  const WorkerFilter filter = Filter();
  const Labels* of_cell = CellLabels(answered.cell);
  if (!prefills && answered.choosable.decodes == Standing::kNobody) return;
  for (const WorkerFound& found : answered.answer->workers) {
    const Labels* own = answered.answer->LabelsOf(found.worker);
    const Role role = RoleOf(own, of_cell);
    if (role != Role::kDecode && !prefills) continue;
    if (FitOf(filter, found.worker, own, of_cell, found.load,
              shared_->memory.choices().To(answered.cell, found.worker)) != Fit::kFits)
      continue;
    const uint32_t overlap = OverlapOf(found, ReusableMax());
    CostInput input = InputFor({.cell = answered.cell,
                                .worker = found.worker,
                                .load = found.load,
                                .overlap = overlap,
                                .fetched = found.fetched,
                                .distance = answered.distance});
    if (role == Role::kDecode) {
      candidates->decoders.push_back(
          {.cell = answered.cell, .worker = found.worker, .input = std::move(input)});
      continue;
    }
    candidates->costs.push_back(
        {.cell = answered.cell, .worker = found.worker, .input = std::move(input)});
    candidates->details.push_back({.worker = found.worker,
                                   .cell = answered.cell,
                                   .overlap_blocks = overlap,
                                   .trust = found.trust,
                                   .age_ms = found.age_ms,
                                   .fetched = found.fetched,
                                   .prefill_only = role == Role::kPrefill});
    candidates->prefill_only.push_back(role == Role::kPrefill);
  }
}

// By last known loads, which may be long over: nobody is left out for these.
RouteTask::Candidates RouteTask::RememberedCandidates() {
  Candidates candidates;
  WorkerFilter filter = Filter();
  filter.overload = {};
  for (const KnownWorker& known : shared_->memory.Workers(input_.domain)) {
    const Labels* of_cell = CellLabels(known.cell);
    const Labels* own = shared_->memory.LabelsOf(input_.domain, known.cell, known.worker);
    if (FitOf(filter, known.worker, own, of_cell, known.load, {}) != Fit::kFits) {
      ++receipt_.not_allowed;
      continue;
    }
    const Role role = RoleOf(own, of_cell);
    if (role == Role::kDecode) continue;
    candidates.costs.push_back(
        {.cell = known.cell,
         .worker = known.worker,
         .input = InputFor({.cell = known.cell,
                            .worker = known.worker,
                            .load = known.load,
                            .distance = of_cell == nullptr ? 0 : DistanceOf(*of_cell)})});
    candidates.details.push_back({.worker = known.worker,
                                  .cell = known.cell,
                                  .trust = Trust::kStale,
                                  .age_ms = MillisecondsSince(known.seen),
                                  .prefill_only = role == Role::kPrefill});
    candidates.prefill_only.push_back(role == Role::kPrefill);
  }
  return candidates;
}

// ---- The choice ----

// The choice and its place in flight are one step under the lock, so that of two siblings the second sees the first.
void RouteTask::Decide() {
  RouteResult result;
  bool chosen = false, wait = false;
  {
    MutexLock lock(&shared_->mutex);
    wait = answered_.empty() && receipt_.overloaded > 0;
    if (!wait) {
      chosen = Choose(&result);
      wait = !chosen && (no_room_to_decode_ || AllCameOver());
    }
    if (wait && TakeSuspects()) {
      chosen = Choose(&result);
      wait = !chosen;
    }
  }
  if (wait) return WaitOrReject();
  if (chosen) return Finish(std::move(result));
  Fail(NobodyError());
}

// Clients get no addresses: these are in the log.
absl::Status RouteTask::NobodyError() const {
  const std::string domain = ToString(input_.domain);
  if (unanswered_ > 0 || !some_answered_) {
    LogEvery(NobodyLog(), domain, LogLevel::kWarning, "no worker can be found",
             {{"domain", domain},
              {"unanswered", unanswered_},
              {"reason", receipt_.reason.empty() ? "nothing to ask" : receipt_.reason}});
    return WithRetryAfter(
        absl::UnavailableError("no worker of " + domain + " can be found now: " +
                               (unanswered_ > 0 ? std::to_string(unanswered_) +
                                                      " hierarchy nodes or leaves did not answer"
                                                : "no hierarchy node and no leaf is known")),
        kRetryAfterDefault);
  }
  if (LacksDecoder())
    return absl::NotFoundError("no worker of " + domain +
                               " decodes what others prefill, among those that answered");
  return absl::NotFoundError(receipt_.not_allowed > 0
                                 ? "no worker of " + domain + " that this request allows, of " +
                                       std::to_string(receipt_.not_allowed) + " seen"
                                 : "no worker of " + domain + " was ever seen");
}

// Nobody who stands well has room: whoever has some is tried before the route is refused. Not those that have already failed
// to take this very request.
bool RouteTask::TakeSuspects() {
  const bool any = std::any_of(suspected_.begin(), suspected_.end(), [](const Answered& answered) {
    return answered.choosable.best() == Standing::kSuspect;
  });
  if (!any) return false;
  answered_.swap(suspected_);
  rung_ = suspected_rung_;
  return true;
}

bool RouteTask::AllCameOver() {
  if (answered_.empty()) return false;
  receipt_.overloaded = receipt_.not_allowed = 0;
  Standing best = Standing::kNobody;
  for (const Answered& answered : answered_)
    best = std::min(best, ChoosableOf(answered.cell, *answered.answer).best());
  return best == Standing::kNobody && receipt_.overloaded > 0;
}

bool RouteTask::Choose(RouteResult* result) {
  shared_->stats.expired_choices += shared_->memory.choices().Expire(Now());
  // Everybody who answered is suspected, or was tried, and so is who else is remembered: then what they hold still counts.
  if (answered_.empty() && NobodyStandsBetterThanSuspected()) {
    answered_.swap(suspected_);
    rung_ = suspected_rung_;
  }
  if (answered_.empty()) rung_ = Fallback::kLoadOnly;
  LookForSibling();
  if (rung_ == Fallback::kLoadOnly) sent_ = {};
  Candidates candidates =
      rung_ == Fallback::kLoadOnly ? RememberedCandidates() : AnsweredCandidates();
  if (rung_ == Fallback::kLoadOnly) {
    for (const Answered& answered : suspected_)
      AddAnswered(answered, /*prefills=*/false, &candidates);
  }
  const auto& only = candidates.prefill_only;
  const bool split = std::find(only.begin(), only.end(), true) != only.end();
  // Who answered that they have no room, or have none since, are not chosen for what they once said.
  const bool over = overloaded_decoders_ > 0 || (DecoderAnswered() && candidates.decoders.empty());
  if (split && !over && !AnyStandsWell(candidates.decoders)) AddRememberedDecoders(&candidates);
  if (split) PairWithDecoders(&candidates);
  LeaveTheBestStanding(&candidates);
  const std::vector<RankedCandidate> ranked =
      kvatlas::Rank(*policy_, candidates.costs, PromptKey(*sequence_), kReceiptCandidatesMax);
  receipt_.candidates_considered = static_cast<uint32_t>(candidates.costs.size());
  for (const RankedCandidate& best : ranked) {
    receipt_.candidates.push_back(candidates.details[best.candidate]);
    receipt_.candidates.back().cost = best.cost;
  }
  no_room_to_decode_ = split && over && ranked.empty();
  if (ranked.empty()) return false;
  Remember(ranked.front(), candidates, result);
  return true;
}

void RouteTask::Remember(const RankedCandidate& best, const Candidates& candidates,
                         RouteResult* result) {
  const CostCandidate& chosen = candidates.costs[best.candidate];
  const uint32_t promised = candidates.details[best.candidate].overlap_blocks;
  result->decision_id = shared_->next_decision++;
  result->worker = chosen.worker;
  result->cell = chosen.cell;
  result->overlap_blocks = promised;
  result->url = shared_->UrlOf(input_.domain, chosen.cell, chosen.worker);
  NewChoice choice = {
      .cell = chosen.cell,
      .worker = chosen.worker,
      .blocks = receipt_.blocks - std::min(chosen.input.overlap_blocks, receipt_.blocks),
      .missing_position = promised,
      .load = chosen.input.load};
  if (promised < sequence_->size()) choice.missing_block = (*sequence_)[promised];
  if (candidates.prefill_only[best.candidate]) {
    const Decoder& decoder = *BestDecoder(candidates.decoders, chosen.cell);
    choice.decode = CellWorker(decoder.cell, decoder.worker);
    result->decode =
        DecodeChoice{.worker = decoder.worker,
                     .cell = decoder.cell,
                     .overlap_blocks = decoder.input.overlap_blocks,
                     .url = shared_->UrlOf(input_.domain, decoder.cell, decoder.worker)};
  }
  FleetMemory& memory = shared_->memory;
  memory.choices().Choose(result->decision_id, std::move(choice), Now());
  memory.Sent(input_.domain, waypoints_, chosen.cell, chosen.worker, Now());
  size_t shown = 0;
  while (shown < waypoints_.size() &&
         shared_->options.schedule->BlocksCovered(static_cast<uint32_t>(shown) + 1) <= promised)
    ++shown;
  memory.SentIsShown(input_.domain, std::span<const SequenceHash>(waypoints_).first(shown),
                     chosen.worker);
  shared_->sessions.Went(input_.domain, input_.session_id, {chosen.cell, chosen.worker}, Now());
  shared_->stats.routes += 1;
  memory.TookTurn(chosen.cell, chosen.worker, shared_->stats.routes);
  shared_->stats.by_fallback[static_cast<int>(rung_)] += 1;
}

void RouteTask::Finish(RouteResult result) {
  receipt_.fallback = rung_;
  receipt_.policy = policy_->Name();
  receipt_.queued_us = Microseconds(started_ - began_);
  if (rung_ == Fallback::kNone) receipt_.reason.clear();  // a leaf that failed is in its own row
  receipt_.total_us = Microseconds(Now() - began_);
  result.receipt = std::move(receipt_);
  if (RouteObserver* observer = shared_->options.observer; observer != nullptr) {
    observer->OnDecided({.input = input_,
                         .result = result,
                         .prompt = prompt_,
                         .contract = shared_->options.contract,
                         .at = Now()});
  }
  RouteInput input = input_;  // late answers still read it
  input.prepared = prompt_;
  result.routed = std::make_shared<const RoutedPrompt>(std::move(input));
  std::exchange(callback_, nullptr)(std::move(result));
}

void RouteTask::EndWaiting() { Fail(StoppedError()); }

void RouteTask::WaitOrReject() {
  const FrontendOptions& options = shared_->options;
  const Duration wait = input_.queue_wait.value_or(options.queue_wait);
  bool waits = shared_->timer != nullptr && Now() + options.queue_poll <= began_ + wait;
  bool stopped = false;
  {
    MutexLock lock(&shared_->mutex);
    stopped = waits && shared_->stopped;
    waits = waits && shared_->waiting.size() < options.queue_max;
    if (waits && !stopped) shared_->waiting.emplace(this, shared_from_this());
    if (!waits) ++shared_->stats.rejected;
  }
  if (stopped) return EndWaiting();
  if (waits) {
    shared_->timer->After(options.queue_poll, [self = shared_from_this()] {
      {
        MutexLock lock(&self->shared_->mutex);
        if (self->shared_->waiting.erase(self.get()) == 0) return;  // the frontend was stopped
      }
      self->Reset();
      self->started_ = self->Now();
      self->receipt_.blocks = static_cast<uint32_t>(self->sequence_->size());
      self->AskTop();
    });
    return;
  }
  const bool knows = least_excess_ > 0 && least_excess_ < UINT64_MAX;
  const auto blocks = static_cast<double>(knows ? least_excess_ : 0);
  const Duration ahead = knows
                             ? Duration(static_cast<int64_t>(std::min(
                                   blocks * static_cast<double>(options.prefill_per_block.count()),
                                   static_cast<double>(kRetryAfterMax.count()))))
                             : kRetryAfterDefault;
  Fail(OverloadedError("all " + std::to_string(receipt_.overloaded + overloaded_decoders_) +
                           " workers of " + ToString(input_.domain) +
                           " that answered are over their thresholds",
                       std::max(ahead, kRetryAfterMin)));
}

}  // namespace kvatlas
