// The class that callers see: each method goes to `FleetState` or makes a `Route`. Methods that
// list what is known take one model's lock after the other, never two at once, so a list is no
// snapshot of one moment.

#include "frontend/router/frontend.h"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "frontend/router/fleet.h"
#include "frontend/router/route.h"
#include "frontend/router/route_observer.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {
Frontend::Frontend(FrontendOptions options, CellFinder* cell_finder, OverlapFinder* overlap_finder,
                   const Clock* clock, Timer* timer)
    : fleet_(std::make_shared<FleetState>(std::move(options), cell_finder, overlap_finder, clock,
                                          timer)) {}

Frontend::~Frontend() { Stop(); }

void Frontend::Stop() {
  for (const std::shared_ptr<kvatlas::Route>& route : fleet_->Stop()) route->EndWaiting();
}

// ---- Routes ----

// `Route` is also a method here, so the class needs its namespace.
namespace {

// Puts a span around the route: questions to peers become its children by `input->trace`. Where the
// trace is not recorded the callback is returned as it is, which costs nothing.
Frontend::Callback Traced(const char* name, RouteInput* input, Frontend::Callback callback) {
  Span begun = Tracer::OfProcess()->BeginChild(name, SpanKind::kInternal, input->trace);
  if (!begun.recorded()) return callback;
  input->trace = begun.context();
  begun.Set("model", input->domain.model);
  return [span = std::make_shared<Span>(std::move(begun)),
          callback = std::move(callback)](absl::StatusOr<RouteResult> result) {
    if (result.ok()) {
      span->Set("worker", result->worker.name);
      span->Set("cell", result->cell);
      span->Set("blocks", int64_t{result->receipt.blocks});
      span->Set("overlap_blocks", int64_t{result->overlap_blocks});
      span->Set("fallback", ToString(result->receipt.fallback));
    }
    span->End(result.status());
    callback(std::move(result));
  };
}

}  // namespace

void Frontend::RouteAsync(RouteInput input, Callback callback) {
  callback = Traced("route", &input, std::move(callback));
  std::make_shared<kvatlas::Route>(fleet_, std::move(input), std::move(callback))->Start();
}

// Blocks the calling thread; a thread that delivers the finders' answers would wait for itself.
absl::StatusOr<RouteResult> Frontend::Route(RouteInput input) {
  // Shared with the callback, which may still be returning from `Signal` when the waiter is gone.
  struct Waiter {
    Mutex mutex;
    CondVar done;
    std::optional<absl::StatusOr<RouteResult>> result ABSL_GUARDED_BY(mutex);
  };
  auto waiter = std::make_shared<Waiter>();
  RouteAsync(std::move(input), [waiter](absl::StatusOr<RouteResult> result) {
    MutexLock lock(&waiter->mutex);
    waiter->result.emplace(std::move(result));
    waiter->done.Signal();
  });
  MutexLock lock(&waiter->mutex);
  while (!waiter->result.has_value()) waiter->done.Wait(&waiter->mutex);
  return *std::move(waiter->result);
}

absl::Status Frontend::Prepare(RouteInput* input) const { return fleet_->Prepare(input); }

// `routed->input` has the prepared prompt in the place of tokens, so the copy is small.
void Frontend::RouteAgain(std::shared_ptr<const RoutedPrompt> routed, std::vector<CellWorker> tried,
                          Duration deadline, Callback callback) {
  RouteInput input = routed->input;
  input.tried = std::move(tried);
  input.deadline = deadline;
  callback = Traced("route again", &input, std::move(callback));
  std::make_shared<kvatlas::Route>(fleet_, std::move(input), std::move(callback))->Again(*routed);
}

// ---- What became of them ----

// A report ends a choice (`over`), or says that the worker has it (`accepted`):
//   1. Under the model's lock the workers are looked up before the release, which forgets them.
//   2. The workers reached or not reached are judged (`JudgeReached`), for a choice that was still
//      known.
//   3. At the end, leaves and hierarchy hear of it, with the engine's figure where there is one.
//   4. The observer hears every report, also of unknown ids: it keeps decisions longer than the
//      memory does.
// No lock is held in 2 to 4.
void Frontend::Report(uint64_t decision_id, const RouteReport& report) {
  const bool over = report.finished || report.abandoned || report.unreachable ||
                    report.decode_unreachable || !report.error.empty();
  const std::shared_ptr<ModelFleet> model = fleet_->ModelOf(decision_id);
  if (model != nullptr && (report.accepted || over)) {
    std::optional<CellWorker> worker, destination;
    {
      MutexLock lock(&model->mutex);
      worker = model->memory.choices().WorkerOf(decision_id);
      destination = model->memory.choices().DestinationOf(decision_id);
      over ? model->memory.choices().Release(decision_id)
           : model->memory.choices().ReleasePrefill(decision_id);
    }
    if (worker.has_value()) fleet_->JudgeReached(*worker, *destination, report);
    if (over) {
      fleet_->TellOver({.decision = decision_id,
                        .failed = !report.finished || !report.error.empty(),
                        .cached_tokens = report.cached_tokens});
    }
  }
  if (RouteObserver* observer = fleet_->options.observer; observer != nullptr)
    observer->OnReported(decision_id, report, fleet_->clock->Now());
}

void Frontend::Avoid(const std::string& cell, const HolderId& worker) {
  fleet_->Suspect({cell, worker});
}

// A suspect is a cell and a worker, without a domain; its address is looked for in all models,
// since an engine's workers may be known under any of them.
std::vector<KnownEngine> Frontend::SuspectEngines() const {
  const std::vector<CellWorker> all = fleet_->suspects.Get()->All(fleet_->clock->Now());
  if (all.empty()) return {};
  const auto given = fleet_->engines.Get();
  const std::vector<std::shared_ptr<ModelFleet>> models = fleet_->Models();
  std::vector<KnownEngine> suspects;
  for (const auto& [cell, worker] : all) {
    std::string url;
    for (const std::shared_ptr<ModelFleet>& model : models) {
      MutexLock lock(&model->mutex);
      for (const Domain& domain : model->memory.Domains()) {
        if (!url.empty()) break;
        const Labels* labels = model->memory.LabelsOf(domain, cell, worker);
        if (labels != nullptr) url = UrlOf(labels, *given, worker);
      }
    }
    if (url.empty()) url = UrlOf(nullptr, *given, worker);
    suspects.push_back(
        {.domain = {}, .cell = cell, .worker = worker, .url = std::move(url), .suspect = true});
  }
  return suspects;
}

void Frontend::KeepAvoiding(const std::vector<KnownEngine>& engines) {
  const Time now = fleet_->clock->Now();
  fleet_->suspects.Update([&](OutlierEjection* all) {
    for (const KnownEngine& engine : engines) all->Keep({engine.cell, engine.worker}, now);
  });
}

void Frontend::OnSuspect(std::function<void()> call) { fleet_->OnSuspect(std::move(call)); }

// ---- What is known ----

// Workers with an address, the suspects last, cut after both were gathered: which ones fall away
// when there are more than `engines_max` depends on the order of models and domains alone.
std::vector<KnownEngine> Frontend::Engines(size_t engines_max) const {
  const Time now = fleet_->clock->Now();
  const std::shared_ptr<const OutlierEjection> suspects = fleet_->suspects.Get();
  const auto engines_given = fleet_->engines.Get();
  const std::map<std::string, std::string>& given = *engines_given;
  std::vector<KnownEngine> engines, suspected;
  std::set<std::string> seen;
  for (const std::shared_ptr<ModelFleet>& model : fleet_->Models()) {
    MutexLock lock(&model->mutex);
    for (const Domain& domain : model->memory.Domains()) {
      for (const KnownWorker& known : model->memory.Workers(domain)) {
        const Labels* labels = model->memory.LabelsOf(domain, known.cell, known.worker);
        std::string url = UrlOf(labels, given, known.worker);
        if (url.empty()) continue;
        seen.insert(known.worker.name);
        const bool suspect = suspects->Contains({known.cell, known.worker}, now);
        (suspect ? suspected : engines)
            .push_back({.domain = domain,
                        .cell = known.cell,
                        .worker = known.worker,
                        .url = std::move(url),
                        .suspect = suspect});
      }
    }
  }
  // Engines of the options that no leaf has named: of models that were not asked for yet.
  for (const auto& [name, url] : given) {
    if (seen.contains(name)) continue;
    const HolderId worker = {name, 0, ""};
    const bool suspect = suspects->Contains({"", worker}, now);
    (suspect ? suspected : engines)
        .push_back({.domain = {}, .cell = "", .worker = worker, .url = url, .suspect = suspect});
  }
  engines.insert(engines.end(), suspected.begin(), suspected.end());
  if (engines.size() > engines_max) engines.resize(engines_max);
  return engines;
}

// A cell may be listed once for each domain.
std::vector<SeenCell> Frontend::Cells(size_t cells_max) const {
  const Time now = fleet_->clock->Now();
  std::vector<SeenCell> seen;
  for (const std::shared_ptr<ModelFleet>& model : fleet_->Models()) {
    MutexLock lock(&model->mutex);
    for (const Domain& domain : model->memory.Domains()) {
      std::map<std::string, size_t> workers;
      for (const KnownAnswer& known : model->memory.Answers(domain))
        workers[known.cell] = known.answer->workers.size();
      for (const KnownCell& known : model->memory.Cells(domain)) {
        if (seen.size() == cells_max) return seen;
        SeenCell cell = {.domain = domain,
                         .cell = known.cell,
                         .address = known.address,
                         .seen = now - known.seen};
        if (const auto answered = model->memory.Answered(domain, known.cell); answered.has_value())
          cell.answered = now - *answered;
        if (const auto of = workers.find(known.cell); of != workers.end())
          cell.workers = of->second;
        seen.push_back(std::move(cell));
      }
    }
  }
  return seen;
}

std::vector<Domain> Frontend::Domains() const {
  std::vector<Domain> all;
  for (const std::shared_ptr<ModelFleet>& model : fleet_->Models()) {
    MutexLock lock(&model->mutex);
    for (Domain& domain : model->memory.Domains()) all.push_back(std::move(domain));
  }
  return all;
}

FrontendStats Frontend::stats() const {
  const FleetState::Counts& counts = fleet_->counts;
  FrontendStats stats{.routes = counts.routes,
                      .failed = counts.failed,
                      .expired_choices = counts.expired_choices,
                      .asked_ahead = counts.asked_ahead,
                      .asked_ahead_used = counts.asked_ahead_used,
                      .prompt_blocks = counts.prompt_blocks,
                      .chosen_blocks = counts.chosen_blocks,
                      .best_blocks = counts.best_blocks,
                      .refused_by_nodes = counts.refused_by_nodes,
                      .rejected = counts.rejected,
                      .waiting = fleet_->waiting(),
                      .sessions = fleet_->sessions(),
                      .suspects = fleet_->suspects.Get()->Count(fleet_->clock->Now())};
  for (int i = 0; i < kFallbacks; ++i) stats.by_fallback[i] = counts.by_fallback[i];
  for (const std::shared_ptr<ModelFleet>& model : fleet_->Models()) {
    MutexLock lock(&model->mutex);
    stats.in_flight += model->memory.choices().size();
    stats.cells += model->memory.cells();
    stats.workers += model->memory.workers();
  }
  return stats;
}

// The worst `cells_max` of each model contain the worst of all.
std::vector<CellPromises> Frontend::promises(size_t cells_max) const {
  std::vector<CellPromises> all;
  for (const std::shared_ptr<ModelFleet>& model : fleet_->Models()) {
    MutexLock lock(&model->mutex);
    for (CellPromises& cell : model->memory.Promises(cells_max, fleet_->clock->Now()))
      all.push_back(std::move(cell));
  }
  SortPromises(cells_max, &all);
  return all;
}

// ---- Settings ----

void Frontend::SetHierarchies(ShardMap hierarchies) {
  fleet_->hierarchies.Set(std::move(hierarchies));
}

ShardMap Frontend::hierarchies() const { return *fleet_->hierarchies.Get(); }

void Frontend::SetLeaves(std::vector<ConfiguredLeaf> leaves) {
  fleet_->leaves.Set(std::move(leaves));
}

std::vector<ConfiguredLeaf> Frontend::leaves() const { return *fleet_->leaves.Get(); }

bool Frontend::Knows(const Domain& domain) const {
  if (!fleet_->Knows(domain.model)) return false;
  const std::shared_ptr<ModelFleet> model = fleet_->Model(domain.model);
  MutexLock lock(&model->mutex);
  return model->memory.Knows(domain);
}

bool Frontend::HasUpstreams() const {
  return !fleet_->hierarchies.Get()->empty() || !fleet_->leaves.Get()->empty();
}

void Frontend::SetDraining(std::set<std::string> workers) {
  fleet_->draining.Set(std::move(workers));
}

std::set<std::string> Frontend::draining() const { return *fleet_->draining.Get(); }

void Frontend::SetWeights(const CostWeights& weights,
                          const std::map<std::string, CostWeights>& model_weights) {
  fleet_->SetWeights(weights, model_weights);
}

void Frontend::SetOverload(const OverloadThresholds& overload) { fleet_->overload.Set(overload); }

void Frontend::SetEngines(std::map<std::string, std::string> engines) {
  fleet_->engines.Set(std::move(engines));
}

void Frontend::Forget(const std::set<std::string>& workers) {
  for (const std::shared_ptr<ModelFleet>& model : fleet_->Models()) {
    MutexLock lock(&model->mutex);
    model->memory.Forget(workers);
  }
}

const FrontendOptions& Frontend::options() const { return fleet_->options; }

}  // namespace kvatlas
