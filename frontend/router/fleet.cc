// The state that routes share. Sections: models and their memories, sessions and suspects, telling
// leaves of choices, routes that wait. Each part has a lock of its own; none is held while a finder
// or a callback of the caller runs, but `on_suspect_mutex_` (see `Suspect`).

#include "frontend/router/fleet.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/numbers.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// A line a minute and node. Leaked, so that it outlives routes that end while the process does.
LogLimiter& RefusalLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(60));
  return limiter;
}

// One policy for each model with weights of its own, and one under "" for all others. REQUIRES: the
// policy's name is known (`FrontendOptions::policy`).
std::map<std::string, std::shared_ptr<const Policy>> MakePolicies(
    const std::string& policy, const CostWeights& weights,
    const std::map<std::string, CostWeights>& model_weights) {
  std::map<std::string, std::shared_ptr<const Policy>> policies;
  for (const auto& [model, own] : model_weights) policies[model] = *MakePolicy(policy, own);
  policies[""] = *MakePolicy(policy, weights);
  return policies;
}

}  // namespace

std::string UrlOf(const Labels* labels, const std::map<std::string, std::string>& given,
                  const HolderId& worker) {
  if (labels != nullptr) {
    if (const auto url = labels->find(kUrlLabel); url != labels->end()) return url->second;
  }
  const auto url = given.find(worker.name);
  return url == given.end() ? "" : url->second;
}

uint32_t EngineRankOf(const HolderId& worker, const Labels* labels) {
  uint32_t first = 0;
  if (labels == nullptr) return worker.rank;
  const auto label = labels->find(kFirstRankLabel);
  if (label == labels->end() || !absl::SimpleAtoi(label->second, &first)) return worker.rank;
  // A label above the worker's rank is wrong; rank 0 of the engine is then as good a guess as any.
  return worker.rank - std::min(first, worker.rank);
}

// Decision ids begin at a random multiple of `kModelFleetsMax`, so that reports about an earlier
// process's decisions do not name choices of this one. `| 1` keeps the instance from being 0, which
// means "tells nothing".
FleetState::FleetState(FrontendOptions o, CellFinder* cells, OverlapFinder* overlaps,
                       const Clock* c, Timer* t)
    : options(std::move(o)),
      instance(RandomInstanceId() | 1),
      cell_finder(cells),
      overlap_finder(overlaps),
      clock(c),
      timer(t),
      hierarchies(options.hierarchies),
      leaves(options.leaves),
      draining(std::set<std::string>()),
      suspects(OutlierEjection(options.suspects)),
      overload(options.overload),
      engines(options.engines),
      policies_(MakePolicies(options.policy, options.weights, options.model_weights)),
      next_decision_((RandomInstanceId() / kModelFleetsMax + 1) * kModelFleetsMax),
      sessions_(options.sessions) {
  WriterLock lock(&models_mutex_);
  places_.push_back(std::make_unique<Place>());
  places_[0]->fleet = std::make_shared<ModelFleet>(options.memory, 0);
}

std::shared_ptr<const Policy> FleetState::PolicyOf(const std::string& model) const {
  const auto policies = policies_.Get();
  const auto own = policies->find(model);
  return own == policies->end() ? policies->at("") : own->second;
}

void FleetState::SetWeights(const CostWeights& weights,
                            const std::map<std::string, CostWeights>& model_weights) {
  policies_.Set(MakePolicies(options.policy, weights, model_weights));
}

// ---- Models ----

// The read path of every route: a shared lock and a look-up. `used` is atomic so that marking the
// use needs no more.
std::shared_ptr<ModelFleet> FleetState::Model(const std::string& model) {
  ReaderLock lock(&models_mutex_);
  const auto known = places_by_model_.find(model);
  const Place& place = *places_[known == places_by_model_.end() ? 0 : known->second];
  place.used.store(clock->Now().count(), std::memory_order_relaxed);
  return place.fleet;
}

// Gives the model a place of its own, once something was heard of it:
//   1. It has one already: the read path is enough.
//   2. Under the write lock it is looked up again, since another route may have been faster.
//   3. With all places taken, the model that was used longest ago loses its place. Place 0, of the
//      unknown models, stays.
// Routes that hold the old `ModelFleet` go on with it; reports by ids of that place then reach the
// new model's memory, which ignores them, as ids are never reused.
std::shared_ptr<ModelFleet> FleetState::KnownModel(const std::string& model) {
  std::shared_ptr<ModelFleet> known = Model(model);
  if (known->place != 0) return known;
  WriterLock lock(&models_mutex_);
  const auto [at, is_new] = places_by_model_.try_emplace(model, places_.size());
  if (!is_new) return places_[at->second]->fleet;
  if (places_.size() == kModelFleetsMax) {
    const auto oldest =
        std::min_element(places_.begin() + 1, places_.end(), [](const auto& a, const auto& b) {
          return a->used.load(std::memory_order_relaxed) < b->used.load(std::memory_order_relaxed);
        });
    places_by_model_.erase((*oldest)->model);
    places_by_model_[model] = static_cast<size_t>(oldest - places_.begin());
  } else {
    places_.push_back(std::make_unique<Place>());
  }
  const size_t place = places_by_model_[model];
  places_[place]->model = model;
  places_[place]->fleet = std::make_shared<ModelFleet>(options.memory, place);
  places_[place]->used.store(clock->Now().count(), std::memory_order_relaxed);
  return places_[place]->fleet;
}

std::vector<std::shared_ptr<ModelFleet>> FleetState::Models() const {
  std::vector<std::shared_ptr<ModelFleet>> models;
  ReaderLock lock(&models_mutex_);
  for (const auto& place : places_) models.push_back(place->fleet);
  return models;
}

// An id is a multiple of `kModelFleetsMax` plus the model's place (`NewDecision`).
std::shared_ptr<ModelFleet> FleetState::ModelOf(uint64_t decision_id) const {
  const size_t place = decision_id % kModelFleetsMax;
  ReaderLock lock(&models_mutex_);
  return place < places_.size() ? places_[place]->fleet : nullptr;
}

// Hashes the prompt and its other readings:
//   1. An input that is prepared already is left as it is, and must bring no second prompt.
//   2. The block size is the domain's as last heard, else the option's. A wrong guess costs a
//      second hashing (`Route::BeginWith`).
//   3. Readings without tokens become prompts without blocks; adapter, salt and the like are those
//      of the input.
// Tokens are moved out of the input, so a failure leaves it unusable.
absl::Status FleetState::Prepare(RouteInput* input) {
  if (input->prepared != nullptr) {
    if (input->tokens.empty() && input->sequence_hashes.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("two prompts: prepared, and tokens or sequence_hashes");
  }
  const std::shared_ptr<ModelFleet> model = Model(input->domain.model);
  uint32_t block_size = 0;
  {
    MutexLock lock(&model->mutex);
    block_size = model->memory.BlockSize(input->domain);
  }
  if (block_size == 0) block_size = options.block_size;
  for (Reading& reading : input->other_readings) {
    const bool unknown = reading.tokens.empty();
    absl::StatusOr<PreparedPrompt::Ptr> other =
        PreparedPrompt::Make({.tokens = std::exchange(reading.tokens, {}),
                              .items = std::exchange(reading.items, {}),
                              .is_beginning = reading.is_beginning,
                              .lora_name = input->lora_name,
                              .cache_salt = input->cache_salt,
                              .eagle = input->eagle,
                              .unknown = unknown,
                              .cache_not_read = input->cache_not_read},
                             block_size, options.contract, *options.schedule);
    if (!other.ok()) return other.status();
    reading.prepared = *std::move(other);
  }
  absl::StatusOr<PreparedPrompt::Ptr> prompt =
      PreparedPrompt::Make({.tokens = std::move(input->tokens),
                            .items = std::move(input->items),
                            .is_beginning = input->is_beginning,
                            .lora_name = input->lora_name,
                            .cache_salt = input->cache_salt,
                            .eagle = input->eagle,
                            .sequence_hashes = std::move(input->sequence_hashes),
                            .prompt_tokens = input->prompt_tokens,
                            .unknown = input->unknown_prompt,
                            .cache_not_read = input->cache_not_read},
                           block_size, options.contract, *options.schedule);
  if (!prompt.ok()) return prompt.status();
  input->tokens.clear();
  input->sequence_hashes.clear();
  input->prepared = *std::move(prompt);
  return absl::OkStatus();
}

// ---- Sessions, replicas, suspects ----

// Copied under the lock: the pointer of `Sessions::Find` is valid only until the next call.
std::optional<CellWorker> FleetState::SessionOf(const RouteInput& input) const {
  if (input.session_id.empty()) return std::nullopt;
  MutexLock lock(&sessions_mutex_);
  const CellWorker* worker = sessions_.Find(input.domain, input.session_id, clock->Now());
  return worker == nullptr ? std::nullopt : std::optional<CellWorker>(*worker);
}

void FleetState::SessionWent(const RouteInput& input, const CellWorker& worker) {
  if (input.session_id.empty()) return;
  MutexLock lock(&sessions_mutex_);
  sessions_.Went(input.domain, input.session_id, worker, clock->Now());
}

size_t FleetState::sessions() const {
  MutexLock lock(&sessions_mutex_);
  return sessions_.size();
}

std::string FleetState::PreferredReplica(const std::string& shard) const {
  MutexLock lock(&preferred_mutex_);
  const auto preferred = preferred_.find(shard);
  return preferred == preferred_.end() ? "" : preferred->second;
}

void FleetState::Prefer(const std::string& shard, const std::string& replica) {
  MutexLock lock(&preferred_mutex_);
  std::string& preferred = preferred_[shard];
  if (preferred != replica) preferred = replica;
}

// Evidence for and against workers, from one report. Accepting clears the prefiller. An answer that
// ended well clears the destination, unless another worker served it. Both flags of failure may be
// set at once. `Has` spares the copy of `Snapshot::Update` where there is nothing to clear, which
// is nearly always.
void FleetState::JudgeReached(const CellWorker& worker, const CellWorker& destination,
                              const RouteReport& report) {
  const bool served = report.finished && report.error.empty() && !report.served_by.has_value();
  const auto known = suspects.Get();
  if (report.accepted && known->Has(worker))
    suspects.Update([&](OutlierEjection* all) { all->Clear(worker); });
  if (served && known->Has(destination))
    suspects.Update([&](OutlierEjection* all) { all->Clear(destination); });
  if (report.unreachable) Suspect(worker);
  if (report.decode_unreachable) Suspect(destination);
}

// Tells leaves and hierarchy of a choice:
//   1. The leaves are noted under the decision, before any of them hears of it, so that `TellOver`
//      finds them.
//   2. Each leaf hears of the blocks; the finder answers nothing and may drop it.
//   3. The nodes of the top level hear of the waypoints among these blocks, as if the cell were a
//      worker, so that other frontends find the cell before its leaf has reported.
void FleetState::TellOfChoice(const Domain& domain, const std::string& cell,
                              const std::shared_ptr<const std::vector<std::string>>& leaves,
                              const Routed& routed, std::span<const SequenceHash> waypoints) {
  if (const std::shared_ptr<ModelFleet> model = ModelOf(routed.decision); model != nullptr) {
    MutexLock lock(&model->mutex);
    model->told.Add(routed.decision, {.domain = domain, .addresses = leaves}, clock->Now());
  }
  for (const std::string& leaf : *leaves) overlap_finder->Tell(leaf, domain, instance, routed);
  const size_t first = options.schedule->WaypointsIn(routed.first);
  if (waypoints.size() > first) {
    const Routed to_cell = {.decision = routed.decision,
                            .worker = {.name = cell, .rank = 0, .replica = ""},
                            .first = static_cast<Position>(first),
                            .blocks = waypoints.subspan(first),
                            .ttl = routed.ttl};
    for (const std::string& node : hierarchies.Get()->Addresses())
      cell_finder->TellCell(node, domain, instance, to_cell);
  }
}

// `Take` removes the note: a second end of the same decision tells no leaf.
void FleetState::TellOver(const RouteOver& over) {
  const std::shared_ptr<ModelFleet> model = ModelOf(over.decision);
  if (model == nullptr) return;
  std::optional<ToldLeaf> told;
  {
    MutexLock lock(&model->mutex);
    told = model->told.Take(over.decision);
  }
  if (!told.has_value()) return;
  for (const std::string& leaf : *told->addresses)
    overlap_finder->End(leaf, told->domain, instance, over);
  for (const std::string& node : hierarchies.Get()->Addresses())
    cell_finder->EndCell(node, told->domain, instance, over);
}

// Many requests fail at once when a worker dies. `Contains` comes first so that all but one of them
// copy nothing. `on_suspect_` is called under its lock: once `OnSuspect` returned, the callback
// before is not running any more. So the callback must not call `OnSuspect`.
void FleetState::Suspect(const CellWorker& worker) {
  const Time now = clock->Now();
  if (suspects.Get()->Contains(worker, now)) return;
  suspects.Update([&](OutlierEjection* all) { all->Suspect(worker, now); });
  MutexLock lock(&on_suspect_mutex_);
  if (on_suspect_ != nullptr) on_suspect_();
}

// FAILED_PRECONDITION from a node: its waypoint schedule does not fit this frontend's.
void FleetState::OnRefused(const std::string& node, const absl::Status& why) {
  LogEvery(RefusalLog(), node, LogLevel::kWarning, "a node refuses this frontend's questions",
           {{"node", node}, {"reason", why}});
  ++counts.refused_by_nodes;
}

// ---- Waiting ----

// `stopped_` is read and set under the lock, so that no route begins to wait after `Stop` has
// emptied the list.
FleetState::Waits FleetState::Wait(const std::shared_ptr<Route>& route) {
  MutexLock lock(&waiting_mutex_);
  if (stopped_) return Waits::kStopped;
  if (waiting_.size() >= options.queue_max) return Waits::kFull;
  waiting_.emplace(route.get(), route);
  return Waits::kWaits;
}

// The erasure decides which of the timer and `Stop` ends the route's waiting; the other one finds
// nothing.
bool FleetState::EndWait(const Route* route) {
  MutexLock lock(&waiting_mutex_);
  return waiting_.erase(route) > 0;
}

std::vector<std::shared_ptr<Route>> FleetState::Stop() {
  std::vector<std::shared_ptr<Route>> routes;
  MutexLock lock(&waiting_mutex_);
  stopped_.store(true, std::memory_order_release);
  for (auto& [key, route] : waiting_) routes.push_back(std::move(route));
  waiting_.clear();
  return routes;
}

size_t FleetState::waiting() const {
  MutexLock lock(&waiting_mutex_);
  return waiting_.size();
}

}  // namespace kvatlas
