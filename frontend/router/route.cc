// The steps of one route. A try runs Begin → AskHierarchy → AskNext → AskLeaves → Conclude →
// Decide; each step ends by asking peers or by calling the next one, so exactly one step is under
// way at any time and no member needs a lock. `try_` holds all that belongs to one try. `MakeTry`
// replaces it; callbacks of the old try cannot arrive then, since a try is replaced only in the
// step that handles its last outstanding answer. Late answers end in the stages (`FirstAnswer`,
// `LeafWave`), never here.

#include "frontend/router/route.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "frontend/router/decoder_search.h"
#include "frontend/router/route_observer.h"
#include "frontend/router/route_result.h"

namespace kvatlas {
namespace {

// In a fleet where some workers prefill and others decode the hierarchy names all of its cells so
// often, not its best alone.
constexpr Duration kListCellsEvery = std::chrono::seconds(10);

// The prompts of the other readings: of the input as `FleetState::Prepare` left it,
std::vector<PreparedPrompt::Ptr> OthersOf(const RouteInput& input) {
  std::vector<PreparedPrompt::Ptr> others;
  for (const Reading& reading : input.other_readings) others.push_back(reading.prepared);
  return others;
}

// and of a try, whose block size may differ from the input's.
std::vector<PreparedPrompt::Ptr> OthersOf(const RouteRequest& request) {
  return request.readings == nullptr ? std::vector<PreparedPrompt::Ptr>()
                                     : request.readings->others();
}

// The input as the observer gets it: tokenizer and reason are those of the reading that the chosen
// worker's engine uses. The copy has no tokens, since `Prepare` has moved them into the prompt.
std::shared_ptr<const RouteInput> AsRead(const std::shared_ptr<const RouteInput>& input,
                                         size_t reading) {
  if (reading == 0) return input;
  auto as_read = std::make_shared<RouteInput>(*input);
  as_read->tokenizer = input->other_readings[reading - 1].tokenizer;
  as_read->no_tokens = input->other_readings[reading - 1].no_tokens;
  return as_read;
}

}  // namespace

// Names are sorted here, because `WorkerFit` looks them up for every worker by binary search.
Route::Route(std::shared_ptr<FleetState> fleet, RouteInput input, Frontend::Callback callback)
    : fleet_(std::move(fleet)), began_(fleet_->clock->Now()), callback_(std::move(callback)) {
  std::sort(input.allowed_workers.begin(), input.allowed_workers.end());
  std::sort(input.excluded_workers.begin(), input.excluded_workers.end());
  input_ = std::make_shared<const RouteInput>(std::move(input));
}

// ---- A try ----

// Checks in the order of their cost, and before any peer is asked: names, hashing of the prompt
// (`Prepare` moves the tokens out of the input), whether the frontend stops, and memory for the
// answers. A failure calls back from here, in the caller's thread.
void Route::Start() {
  RouteInput input = *input_;
  if (absl::Status bad = CheckNames(input.domain, input.session_id); !bad.ok())
    return Fail(std::move(bad));
  if (absl::Status bad = fleet_->Prepare(&input); !bad.ok()) return Fail(std::move(bad));
  if (fleet_->stopped()) return Fail(StoppedError());
  absl::Status full =
      CheckMemoryForQuestion(fleet_->options.memory_budget, input.prepared->blocks());
  if (!full.ok()) return Fail(std::move(full));
  input_ = std::make_shared<const RouteInput>(std::move(input));
  Begin(input_->prepared, OthersOf(*input_));
}

// Chooses among the candidates of an earlier route, within `route_again_ttl` of it:
//   1. A try is made without asking anything; it exists for its request and its receipt.
//   2. `ChooseAndCount` with `only_good`: only a worker that stands well and that a leaf answered
//      for.
//   3. No such worker, or the route is too old: a whole route (`Start`), which reuses the hashed
//      prompt.
void Route::Again(const RoutedPrompt& routed) {
  if (fleet_->stopped()) return Fail(StoppedError());
  if (routed.at + fleet_->options.route_again_ttl > began_) {
    MakeTry(input_->prepared, OthersOf(*input_));
    try_->receipt = routed.receipt;
    Committed committed =
        ChooseAndCount(*try_->request, routed.cells, {.only_good = true, .engines = false});
    if (committed.choice.verdict == Verdict::kChosen)
      return Finish(std::move(committed), routed.cells);
  }
  Start();
}

// A try takes its own pointers to all that may be set while it runs (policy, thresholds, engines),
// so that all of its steps see the same. The deadline begins here and not at the route's start: a
// try after a wait for room has the whole of it.
void Route::MakeTry(PreparedPrompt::Ptr prompt, std::vector<PreparedPrompt::Ptr> others) {
  tried_since_ = fleet_->clock->Now();
  const FrontendOptions& options = fleet_->options;
  const Duration deadline = input_->deadline > Duration(0) ? input_->deadline : options.deadline;
  const std::shared_ptr<const std::map<std::string, std::string>> engines = fleet_->engines.Get();
  auto request = std::make_shared<const RouteRequest>(
      RouteRequest{.fleet = fleet_,
                   .input = input_,
                   .policy = fleet_->PolicyOf(input_->domain.model),
                   .overload = fleet_->overload.Get(),
                   .engines = engines,
                   .prompt = prompt,
                   .readings = Readings::Of(input_, prompt, std::move(others), engines),
                   .session = fleet_->SessionOf(*input_),
                   .until = tried_since_ + deadline});
  const bool hierarchy = !fleet_->hierarchies.Get()->empty();
  CellSearch search(request, hierarchy ? SourcesAfterHierarchy() : SourcesWithoutHierarchy());
  try_ = std::make_unique<Try>(Try{.request = request, .search = std::move(search)});
  try_->receipt.blocks = request->prompt->blocks();
}

// The first try, and every later one. Without a hierarchy the configured leaves are the first
// source of the search.
void Route::Begin(PreparedPrompt::Ptr prompt, std::vector<PreparedPrompt::Ptr> others) {
  MakeTry(std::move(prompt), std::move(others));
  if (fleet_->hierarchies.Get()->empty()) return AskNext();
  AskHierarchy();
}

// A prompt is hashed before any peer was asked, in blocks of the size that was last heard of. When
// an answer names another one:
//   1. The fleet's memory takes it, for the next prompts.
//   2. If this prompt differs in it, all readings are hashed again, and a new try begins.
//   3. It happens once a route: peers that contradict each other could keep it going for ever.
bool Route::BeginWith(uint32_t block_size) {
  // The peer did not say.
  if (block_size == 0) return false;
  const PreparedPrompt::Ptr prompt = try_->request->prompt;
  const std::shared_ptr<ModelFleet> model = try_->request->KnownModel();
  {
    MutexLock lock(&model->mutex);
    if (model->memory.BlockSize(input_->domain) != block_size)
      model->memory.SetBlockSize(input_->domain, block_size, fleet_->clock->Now());
  }
  if (began_with_block_size_ || !prompt->DiffersIn(block_size)) return false;
  began_with_block_size_ = true;
  absl::StatusOr<PreparedPrompt::Ptr> other = prompt->InBlocksOf(block_size);
  std::vector<PreparedPrompt::Ptr> others = OthersOf(*try_->request);
  for (PreparedPrompt::Ptr& reading : others) {
    if (!other.ok()) break;
    absl::StatusOr<PreparedPrompt::Ptr> rehashed = reading->InBlocksOf(block_size);
    if (rehashed.ok()) {
      reading = *std::move(rehashed);
    } else {
      other = rehashed.status();
    }
  }
  if (other.ok()) {
    Begin(*std::move(other), std::move(others));
  } else {
    Fail(other.status());
  }
  return true;
}

// ---- The hierarchy ----

// Asks the hierarchy, and at the same time the leaves that it will probably name
// (`SpeculativeLookup`): `AskLeaves` takes their answers when they turn out to be wanted; the
// others are dropped. Too little time for a hop is no failure: the search goes on with its sources,
// and the receipt says so.
void Route::AskHierarchy() {
  const RequestPtr request = try_->request;
  const Duration budget = Share(request->Left(), kHierarchyShare);
  if (budget < kHopMin) {
    AddReason("no time left for a hierarchy");
    return AskNext();
  }
  // 0 asks for all cells. `ListsCells` is true only in a domain where some workers only prefill or
  // only decode: its cells with decoders hold few prefixes and would never be among the best.
  try_->cells_wanted = ListsCells(kListCellsEvery) ? 0 : fleet_->options.cells_best;
  try_->ahead = SpeculativeLookup::Guess(request);
  AskTop(request, try_->cells_wanted, budget,
         [self = shared_from_this()](TopAnswer top) { self->OnTop(std::move(top)); });
}

bool Route::ListsCells(Duration every) {
  const std::shared_ptr<ModelFleet> model = try_->request->Model();
  MutexLock lock(&model->mutex);
  return model->memory.IsDue(input_->domain, FleetMemory::Errand::kListCells, every,
                             fleet_->clock->Now());
}

// The failures of some replicas or shards go to the receipt even if others answered; `OnTop` clears
// them again then.
void Route::Note(const TopAnswer& top) {
  try_->receipt.find_cells_us += top.us;
  for (const CellsOutcome& failure : top.failures) AddFailure("hierarchy", failure);
}

// No answer: the search was not started, so `AskNext` finds no target and goes to the first source
// behind the hierarchy.
void Route::OnTop(TopAnswer top) {
  Note(top);
  if (!top.answer.has_value()) return AskNext();
  try_->said.some_answered = true;
  if (BeginWith(top.answer->block_size)) return;
  // Another replica or shard answered: what was missing is coverage at most.
  try_->receipt.reason.clear();
  const std::vector<CellFound>& cells = top.answer->cells;
  // As many cells as were asked for: the node may know more.
  try_->cells_left_out = try_->cells_wanted > 0 && cells.size() >= try_->cells_wanted;
  try_->search.Start(TargetsOf(*try_->request, cells));
  AskNext();
}

// ---- Nodes and leaves ----

// One round of the search:
//   1. `CellSearch::Take` names the next targets; sources are opened while it names none and
//      nothing was found.
//   2. No target: the search is over (`Conclude`).
//   3. Nodes among them are asked alone. The leaves of this round go back to the search unasked,
//      since a cell below a node may turn out to be better.
//   4. Otherwise all are leaves; `AddDecoders` may put cells with decoders beside them, in the same
//      wave.
void Route::AskNext() {
  const Answers& answers = try_->answers;
  std::vector<Target> targets = try_->search.Take(answers);
  // With a good answer in hand no further source is asked (`target.h` has their order). Nor with
  // workers that are over their thresholds alone: they live, and further sources know no better.
  while (targets.empty() && !answers.any_good() && answers.overloaded() == 0 &&
         try_->search.NextSource())
    targets = try_->search.Take(answers);
  if (targets.empty()) return Conclude();
  std::vector<Target> nodes, leaves;
  for (Target& target : targets) (target.is_node ? nodes : leaves).push_back(std::move(target));
  if (!nodes.empty()) {
    try_->search.Untake(leaves);
    return AskNodes(std::move(nodes), std::move(leaves));
  }
  AddDecoders(*try_->request, answers, &try_->search, &leaves);
  AskLeaves(std::move(leaves));
}

// `leaves` are not asked here; they travel through the question so that `OnNodes` can put them
// back. The number of levels is bounded because nodes name nodes: two that name each other would
// otherwise be asked until the deadline.
void Route::AskNodes(std::vector<Target> nodes, std::vector<Target> leaves) {
  const RequestPtr request = try_->request;
  const bool too_many = !try_->search.GoDown();
  const Duration budget = Share(request->Left(), kHierarchyShare);
  if (too_many || budget < kHopMin) {
    AddReason(too_many ? "too many levels of nodes" : "no time left for nodes");
    try_->search.DropNodes();
    try_->search.Insert(std::move(leaves));
    return AskNext();
  }
  const Time began = request->Now();
  kvatlas::AskNodes(request, nodes, try_->cells_wanted, budget,
                    [self = shared_from_this(), nodes, leaves = std::move(leaves),
                     began](std::vector<CellsOutcome> outcomes) mutable {
                      self->OnNodes(std::move(nodes), std::move(leaves), began,
                                    std::move(outcomes));
                    });
}

// The cells that the nodes named take the nodes' places in the search. `leaves` were taken with the
// nodes and are not asked yet: they go back with these cells, since one of these may be better. A
// node that failed is dropped; its cells may still come from a later source.
void Route::OnNodes(std::vector<Target> nodes, std::vector<Target> leaves, Time began,
                    std::vector<CellsOutcome> outcomes) {
  const uint64_t us = Microseconds(fleet_->clock->Now() - began);
  try_->receipt.find_cells_us += us;
  std::vector<Target> found = std::move(leaves);
  uint32_t block_size = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    CellAsked& asked = nodes[i].asked;
    asked.us = us;
    asked.address = outcomes[i].address;
    if (outcomes[i].answer.ok()) {
      if (outcomes[i].answer->block_size != 0) block_size = outcomes[i].answer->block_size;
      for (Target& target : TargetsOf(*try_->request, outcomes[i].answer->cells)) {
        asked.best_blocks = std::max(asked.best_blocks, target.asked.blocks_at_least);
        found.push_back(std::move(target));
      }
    } else {
      asked.error = outcomes[i].answer.status().ToString();
      AddFailure("node " + asked.cell + " at", outcomes[i]);
    }
    try_->receipt.nodes.push_back(std::move(asked));
  }
  if (BeginWith(block_size)) return;
  try_->search.Insert(std::move(found));
  AskNext();
}

// A wave may use all of the time that is left only if the search has nothing behind it; otherwise a
// share, so that another wave can follow. Without time the choice is made among the answers at
// hand.
void Route::AskLeaves(std::vector<Target> leaves) {
  const Duration left = try_->request->Left();
  const Duration budget = try_->search.more() ? Share(left, kWaveShare) : left;
  if (budget < kHopMin) {
    AddReason("no time left for leaves");
    return Decide();
  }
  try_->search.CountAsked(leaves);
  const Time began = fleet_->clock->Now();
  kvatlas::AskLeaves(try_->request, std::move(leaves),
                     {.fallback = try_->search.fallback(), .budget = budget, .ahead = try_->ahead},
                     [self = shared_from_this(), began](std::vector<AskedLeaf> asked) {
                       self->OnLeaves(began, std::move(asked));
                     });
}

// After each wave:
//   1. Answers go to the candidates, failures to the receipt and to `said`. A leaf that was merely
//      not waited for is no reason for a fallback, but counts as unanswered.
//   2. An answer with another block size begins a new try (`BeginWith`).
//   3. Without a good worker, or while a cell that was not asked could still cost less than the
//      cheapest worker found (`CellSearch::NextCanWin`), the next cells are asked.
//   4. Otherwise the search is over.
void Route::OnLeaves(Time began, std::vector<AskedLeaf> leaves) {
  try_->receipt.find_overlaps_us += Microseconds(fleet_->clock->Now() - began);
  uint32_t block_size = 0;
  for (AskedLeaf& leaf : leaves) {
    const CellAsked& asked = leaf.target.asked;
    if (leaf.found.has_value()) {
      try_->said.some_answered = true;
      const CellStanding& standing = leaf.found->standing;
      if (standing.best() != Standing::kGood && standing.decodes != Standing::kGood)
        AddReason("cell " + asked.cell + " has no worker that may be chosen");
      const uint32_t named = leaf.found->cell->answer->block_size;
      if (named != 0) block_size = named;
      try_->answers.Add(*std::move(leaf.found));
    } else {
      try_->said.CountFailure(leaf.failure);
      if (leaf.answered)
        AddReason("leaf " + asked.cell + " at " + asked.address + ": " + asked.error);
    }
    try_->receipt.cells.push_back(std::move(leaf.target.asked));
  }
  if (BeginWith(block_size)) return;
  if (!try_->answers.any_good() || try_->search.NextCanWin(try_->answers)) return AskNext();
  Conclude();
}

// ---- Decoders ----

// The end of the search by cost. A decoder is looked for only here, so that no cell is asked for
// one in vain while a worker that does both may still turn up.
void Route::Conclude() {
  if (try_->answers.lacks_decoder() && AskForDecoders()) return;
  Decide();
}

// Workers were found that only prefill, and none that decodes. In this order:
//   1. Cells that are known to have decoders and were not asked.
//   2. Once a route, all cells of the hierarchy, if it named only its best: decoders hold no
//      prefixes and are never among those.
//   3. False: no cell is left to ask.
bool Route::AskForDecoders() {
  const RequestPtr request = try_->request;
  std::vector<Target> targets = TakeForDecoders(*request, try_->answers, &try_->search);
  if (targets.empty()) {
    const Duration budget = Share(request->Left(), kHierarchyShare);
    // `exchange` makes this once a try: the whole list cannot become longer by asking again.
    const bool all = !try_->answers.any_alone() && std::exchange(try_->cells_left_out, false) &&
                     !fleet_->hierarchies.Get()->empty() && try_->search.room() > 0 &&
                     budget >= kHopMin;
    if (!all) return false;
    try_->cells_wanted = 0;
    AskTop(request, /*best=*/0, budget,
           [self = shared_from_this()](TopAnswer top) { self->OnAllCells(std::move(top)); });
  } else if (targets.front().is_node) {
    AskNodes(std::move(targets), {});
  } else {
    AskLeaves(std::move(targets));
  }
  return true;
}

// The whole list replaces the targets: the cells that were asked already are known to the search by
// address and name, so `TakeForDecoders` skips them. An answer that fails leaves the targets as
// they are.
void Route::OnAllCells(TopAnswer top) {
  Note(top);
  if (top.answer.has_value()) {
    ListsCells(Duration(0));  // just now
    try_->search.Replace(TargetsOf(*try_->request, top.answer->cells));
  }
  Conclude();
}

// ---- The choice ----

// The only step that chooses. It may be reached with no answer at all; `ChooseAndCount` then looks
// at remembered workers and the engines of the options. Routes that only learn stop before any
// worker is counted.
void Route::Decide() {
  if (input_->only_learns) return FinishLearning();
  // The fleet answered, has told of other models, and knows none of this name: no engine is tried
  // with it.
  const bool unknown =
      try_->said.unanswered == 0 && try_->said.some_answered && fleet_->knows_models();
  Committed committed =
      ChooseAndCount(*try_->request, try_->answers.cells(), {.engines = !unknown});
  switch (committed.choice.verdict) {
    case Verdict::kChosen:
      return Finish(std::move(committed), try_->answers.cells());
    case Verdict::kOverloaded:
      return WaitOrReject(committed.choice);
    default:
      try_->said.reason = try_->receipt.reason;
      return Fail(NoWorkerError(input_->domain, committed.choice, try_->answers.lacks_decoder(),
                                try_->said));
  }
}

// A worker is chosen and counted in flight already. Order of what follows:
//   1. The session's place is noted, for the session's next request.
//   2. `RoutedPrompt` keeps the candidates, with all readings hashed, for `Again`. `cells` are
//      shared, not copied.
//   3. The leaves hear of the choice (`Tell`).
//   4. The observer hears of it, so that it knows the decision before any report on it.
//   5. The callback, last: it may report, or destroy whatever holds the frontend.
void Route::Finish(Committed committed, const std::vector<CandidateCellPtr>& cells) {
  const RouteRequest& request = *try_->request;
  const Time now = request.Now();
  const ChosenWorker& worker = *committed.choice.worker;
  fleet_->SessionWent(*input_, CellWorker(worker.cell->cell, worker.id()));
  RouteInput input = *input_;
  input.prepared = request.prompt;
  for (size_t i = 1; i < request.readings_count(); ++i)
    input.other_readings[i - 1].prepared = request.readings->prompt(i);
  const PreparedPrompt::Ptr prompt =
      request.readings == nullptr ? request.prompt : request.readings->prompt(worker.reading());
  // The receipt is copied here, before the choice's candidates are added to it.
  auto routed = std::make_shared<const RoutedPrompt>(std::move(input), cells, try_->receipt, now);
  Tell(committed, *prompt);
  RouteResult result = ResultOf(request, std::move(committed), std::move(try_->receipt));
  result.receipt.queued_us = Microseconds(tried_since_ - began_);
  result.receipt.total_us = Microseconds(now - began_);
  if (RouteObserver* observer = request.options().observer; observer != nullptr) {
    const std::shared_ptr<const RouteInput> as_read = AsRead(input_, result.reading);
    observer->OnDecided({.input = *as_read,
                         .result = result,
                         .prompt = prompt,
                         .contract = request.options().contract,
                         .at = now});
  }
  result.routed = std::move(routed);
  std::exchange(callback_, nullptr)(std::move(result));
}

// Tells the chosen cell's leaves, and the hierarchy, which blocks the worker is about to compute.
// Called before the caller has the choice, since the caller may report the end at once, and an end
// must not overtake its beginning. The blocks begin behind what the worker has or already has on
// its way (`CostInput::overlap_blocks`), and are at most `kRoutedBlocksMax`; `parent` joins them to
// the prefix. Null `leaves`: the choice came from memory, or `tell_leaves` is off.
void Route::Tell(const Committed& committed, const PreparedPrompt& prompt) {
  const ChosenWorker& worker = *committed.choice.worker;
  if (worker.cell->leaves == nullptr) return;
  const std::vector<SequenceHash>& sequence = prompt.sequence();
  const size_t first = std::min<size_t>(worker.input.overlap_blocks, sequence.size());
  const size_t count = std::min<size_t>(sequence.size() - first, kRoutedBlocksMax);
  fleet_->TellOfChoice(input_->domain, worker.cell->cell, worker.cell->leaves,
                       {.decision = committed.decision_id,
                        .worker = worker.id(),
                        .first = static_cast<Position>(first),
                        .blocks = std::span(sequence).subspan(first, count),
                        .parent = first == 0 ? kNoParent : sequence[first - 1],
                        .session = SessionHash(input_->session_id)},
                       prompt.waypoints());
}

// A route with `only_learns`: a single cell that answered is success, and the result is empty.
void Route::FinishLearning() {
  if (try_->answers.cells().empty())
    return Fail(NoWorkerError(input_->domain, {}, /*lacks_decoder=*/false, try_->said));
  std::exchange(callback_, nullptr)(RouteResult());
}

// Called by `Frontend::Stop` for routes that it took out of the waiting ones; the timer's callback
// then finds the route gone (`EndWait` is false) and does nothing, so the caller hears once.
void Route::EndWaiting() { Fail(StoppedError()); }

// Every worker that may be chosen is over its thresholds. While the time to wait has room for
// another poll, the route waits `queue_poll` and begins a whole new try, with the prompt as it is
// hashed now; there is no queue order among waiting routes. Otherwise, without a timer, or with
// `queue_max` routes waiting: RESOURCE_EXHAUSTED with a time to come again.
void Route::WaitOrReject(const Choice& choice) {
  const FrontendOptions& options = fleet_->options;
  const Duration wait = input_->queue_wait.value_or(options.queue_wait);
  const bool may_wait =
      fleet_->timer != nullptr && fleet_->clock->Now() + options.queue_poll <= began_ + wait;
  const FleetState::Waits waits =
      may_wait ? fleet_->Wait(shared_from_this()) : FleetState::Waits::kFull;
  if (waits == FleetState::Waits::kStopped) return EndWaiting();
  if (waits == FleetState::Waits::kWaits) {
    fleet_->timer->After(options.queue_poll, [self = shared_from_this()] {
      if (!self->fleet_->EndWait(self.get())) return;
      const RequestPtr request = self->try_->request;
      self->Begin(request->prompt, OthersOf(*request));
    });
    return;
  }
  ++fleet_->counts.rejected;
  Fail(OverloadedError(input_->domain, choice, options));
}

// ---- Failures ----

// The reasons of a try, joined; `ResultOf` drops them when the choice was made without a fallback.
void Route::AddReason(const std::string& why) {
  std::string& reason = try_->receipt.reason;
  reason += (reason.empty() ? "" : "; ") + why;
}

void Route::AddFailure(const std::string& what, const CellsOutcome& outcome) {
  AddReason(what + " " + outcome.address + ": " + outcome.answer.status().ToString());
  try_->said.CountFailure(outcome.answer.status());
}

// The end without a worker. `exchange` leaves an empty callback behind: a second end would crash
// instead of calling twice.
void Route::Fail(absl::Status status) {
  if (!input_->only_learns) ++fleet_->counts.failed;
  std::exchange(callback_, nullptr)(std::move(status));
}

}  // namespace kvatlas
