#include "frontend/route/frontend.h"

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "frontend/route/route_observer.h"
#include "frontend/route/route_task.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

// The policy named in `options`, of each model that has weights of its own, and of all others by "".
std::shared_ptr<const std::map<std::string, std::shared_ptr<const Policy>>> MakePolicies(
    const FrontendOptions& options, const CostWeights& weights,
    const std::map<std::string, CostWeights>& model_weights) {
  auto policies = std::make_shared<std::map<std::string, std::shared_ptr<const Policy>>>();
  for (const auto& [model, own] : model_weights)
    (*policies)[model] = *MakePolicy(options.policy, own);
  (*policies)[""] = *MakePolicy(options.policy, weights);
  return policies;
}

LogLimiter& RefusalLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(60));
  return limiter;
}

}  // namespace

// Ids of an earlier process must not name choices of this one: the upper half is random.
Frontend::Shared::Shared(FrontendOptions o, CellFinder* cells, OverlapFinder* overlaps,
                         const Clock* c, Timer* t)
    : options(std::move(o)),
      cell_finder(cells),
      overlap_finder(overlaps),
      clock(c),
      timer(t),
      hierarchies(std::make_shared<const ShardMap>(options.hierarchies)),
      leaves(options.leaves),
      memory(options.memory),
      suspects(options.suspects),
      sessions(options.sessions),
      next_decision((RandomInstanceId() << 32) | 1),
      overload(options.overload),
      engines(options.engines),
      policies(MakePolicies(options, options.weights, options.model_weights)) {}

std::shared_ptr<const Policy> Frontend::Shared::PolicyOf(const std::string& model) const {
  MutexLock lock(&leaves_mutex);
  const auto own = policies->find(model);
  return own == policies->end() ? policies->at("") : own->second;
}

absl::Status CheckNames(const Domain& domain, const std::string& session_id) {
  if (domain.model.empty()) return absl::InvalidArgumentError("domain.model is empty");
  if (domain.model.size() > kDomainNameBytesMax || domain.tenant.size() > kDomainNameBytesMax)
    return absl::InvalidArgumentError("domain: a name has at most 256 bytes");
  if (session_id.size() > kSessionIdBytesMax)
    return absl::InvalidArgumentError("session_id: at most 256 bytes");
  return absl::OkStatus();
}

absl::Status StoppedError() { return absl::UnavailableError("the frontend is stopping"); }

namespace {
constexpr char kRetryAfterUrl[] = "kvatlas.io/retry_after_ms";
}

absl::Status OverloadedError(const std::string& message, Duration retry_after) {
  return WithRetryAfter(absl::ResourceExhaustedError(message), retry_after);
}

absl::Status WithRetryAfter(absl::Status status, Duration retry_after) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(retry_after).count();
  const std::string text = std::to_string(ms);
  // By way of a view: the template that takes strings has a name in clang that a library built by gcc lacks.
  status.SetPayload(kRetryAfterUrl, absl::Cord(absl::string_view(text)));
  return status;
}

std::optional<Duration> RetryAfter(const absl::Status& refused) {
  const absl::optional<absl::Cord> payload = refused.GetPayload(kRetryAfterUrl);
  int64_t ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ms)) return std::nullopt;
  return std::chrono::milliseconds(ms);
}

Frontend::Frontend(FrontendOptions options, CellFinder* cell_finder, OverlapFinder* overlap_finder,
                   const Clock* clock, Timer* timer)
    : shared_(std::make_shared<Shared>(std::move(options), cell_finder, overlap_finder, clock,
                                       timer)) {}

Frontend::~Frontend() { Stop(); }

void Frontend::Stop() {
  std::map<const RouteTask*, std::shared_ptr<RouteTask>> waiting;
  {
    MutexLock lock(&shared_->mutex);
    shared_->stopped = true;
    waiting.swap(shared_->waiting);
  }
  for (const auto& [key, task] : waiting) task->EndWaiting();
}

void Frontend::RouteAsync(RouteInput input, Callback callback) {
  std::make_shared<RouteTask>(shared_, std::move(input), std::move(callback))->Start();
}

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

absl::Status Frontend::Shared::Prepare(RouteInput* input) {
  if (input->prepared != nullptr) {
    if (input->tokens.empty() && input->sequence_hashes.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("two prompts: prepared, and tokens or sequence_hashes");
  }
  uint32_t block_size = 0;
  {
    MutexLock lock(&mutex);
    block_size = memory.BlockSize(input->domain);
  }
  absl::StatusOr<PreparedPrompt::Ptr> prompt = PreparedPrompt::Make(
      {.tokens = std::move(input->tokens),
       .lora_name = input->lora_name,
       .cache_salt = input->cache_salt,
       .eagle = input->eagle,
       .sequence_hashes = std::move(input->sequence_hashes),
       .prompt_tokens = input->prompt_tokens},
      block_size == 0 ? options.block_size : block_size, options.contract, *options.schedule);
  if (!prompt.ok()) return prompt.status();
  input->tokens.clear();
  input->sequence_hashes.clear();
  input->prepared = *std::move(prompt);
  return absl::OkStatus();
}

absl::Status Frontend::Prepare(RouteInput* input) const { return shared_->Prepare(input); }

void Frontend::RouteAgain(std::shared_ptr<const RoutedPrompt> routed, std::vector<CellWorker> tried,
                          Duration deadline, Callback callback) {
  RouteInput input = routed->input();
  input.tried = std::move(tried);
  input.deadline = deadline;
  RouteAsync(std::move(input), std::move(callback));
}

void Frontend::Report(uint64_t decision_id, const RouteReport& report) {
  const bool over = report.finished || report.abandoned || report.unreachable ||
                    report.decode_unreachable || !report.error.empty();
  if (report.accepted || over) {
    MutexLock lock(&shared_->mutex);
    InFlightChoices& choices = shared_->memory.choices();
    if (const std::optional<CellWorker> worker = choices.WorkerOf(decision_id))
      shared_->JudgeReached(*worker, *choices.TakerOf(decision_id), report);
    over ? choices.Release(decision_id) : choices.ReleasePrefill(decision_id);
  }
  if (RouteObserver* observer = shared_->options.observer; observer != nullptr) {
    observer->OnReported(decision_id, report, shared_->clock->Now());
  }
}

void Frontend::Shared::JudgeReached(const CellWorker& worker, const CellWorker& taker,
                                    const RouteReport& report) {
  const Time now = clock->Now();
  if (report.accepted) suspects.Clear(worker);
  const bool served = report.finished && report.error.empty() && !report.served_by.has_value();
  if (served) suspects.Clear(taker);
  if (report.unreachable) suspects.Suspect(worker, now);
  if (report.decode_unreachable) suspects.Suspect(taker, now);
}

void Frontend::Shared::OnRefused(const std::string& node, const absl::Status& why) {
  LogEvery(RefusalLog(), node, LogLevel::kWarning, "a node refuses this frontend's questions",
           {{"node", node}, {"reason", why}});
  MutexLock lock(&mutex);
  ++stats.refused_by_nodes;
}

std::string Frontend::Shared::UrlOf(const Domain& domain, const std::string& cell,
                                    const HolderId& worker) const {
  if (const Labels* labels = memory.LabelsOf(domain, cell, worker)) {
    if (const auto url = labels->find(kUrlLabel); url != labels->end()) return url->second;
  }
  const auto given = engines.find(worker.name);
  return given == engines.end() ? "" : given->second;
}

void Frontend::Avoid(const std::string& cell, const HolderId& worker) {
  MutexLock lock(&shared_->mutex);
  shared_->suspects.Suspect({cell, worker}, shared_->clock->Now());
}

std::vector<KnownEngine> Frontend::Engines(size_t engines_max) const {
  MutexLock lock(&shared_->mutex);
  const Time now = shared_->clock->Now();
  std::vector<KnownEngine> engines;
  std::vector<KnownEngine> suspects;
  for (const Domain& domain : shared_->memory.Domains()) {
    for (const KnownWorker& known : shared_->memory.Workers(domain)) {
      std::string url = shared_->UrlOf(domain, known.cell, known.worker);
      if (url.empty()) continue;
      const bool suspect = shared_->suspects.Contains({known.cell, known.worker}, now);
      (suspect ? suspects : engines)
          .push_back({.domain = domain,
                      .cell = known.cell,
                      .worker = known.worker,
                      .url = std::move(url),
                      .suspect = suspect});
    }
  }
  // Before any answer, who was given is all there is.
  if (engines.empty() && suspects.empty()) {
    for (const auto& [name, url] : shared_->engines)
      engines.push_back({.domain = {}, .cell = "", .worker = {name, 0, ""}, .url = url});
  }
  engines.insert(engines.end(), suspects.begin(), suspects.end());
  if (engines.size() > engines_max) engines.resize(engines_max);
  return engines;
}

std::vector<Domain> Frontend::Domains() const {
  MutexLock lock(&shared_->mutex);
  return shared_->memory.Domains();
}

void Frontend::SetHierarchies(ShardMap hierarchies) {
  auto map = std::make_shared<const ShardMap>(std::move(hierarchies));
  MutexLock lock(&shared_->mutex);
  shared_->hierarchies = std::move(map);
}

bool Frontend::HasUpstreams() const {
  {
    MutexLock lock(&shared_->mutex);
    if (!shared_->hierarchies->empty()) return true;
  }
  return !shared_->Leaves().empty();
}

ShardMap Frontend::hierarchies() const {
  MutexLock lock(&shared_->mutex);
  return *shared_->hierarchies;
}

void Frontend::SetLeaves(std::vector<ConfiguredLeaf> leaves) {
  MutexLock lock(&shared_->leaves_mutex);
  shared_->leaves = std::move(leaves);
}

std::vector<ConfiguredLeaf> Frontend::leaves() const { return shared_->Leaves(); }

void Frontend::SetDraining(std::set<std::string> workers) {
  MutexLock lock(&shared_->mutex);
  shared_->draining = std::move(workers);
}

std::set<std::string> Frontend::draining() const {
  MutexLock lock(&shared_->mutex);
  return shared_->draining;
}

void Frontend::SetWeights(const CostWeights& weights,
                          const std::map<std::string, CostWeights>& model_weights) {
  auto policies = MakePolicies(shared_->options, weights, model_weights);
  MutexLock lock(&shared_->leaves_mutex);
  shared_->policies = std::move(policies);
}

void Frontend::SetOverload(const OverloadThresholds& overload) {
  MutexLock lock(&shared_->mutex);
  shared_->overload = overload;
}

void Frontend::SetEngines(std::map<std::string, std::string> engines) {
  MutexLock lock(&shared_->mutex);
  shared_->engines = std::move(engines);
}

FrontendStats Frontend::stats() const {
  MutexLock lock(&shared_->mutex);
  FrontendStats stats = shared_->stats;
  stats.in_flight = shared_->memory.choices().size();
  stats.waiting = shared_->waiting.size();
  stats.sessions = shared_->sessions.size();
  stats.cells = shared_->memory.cells();
  stats.workers = shared_->memory.workers();
  stats.suspects = shared_->suspects.Count(shared_->clock->Now());
  return stats;
}

std::vector<CellPromises> Frontend::promises(size_t cells_max) const {
  MutexLock lock(&shared_->mutex);
  return shared_->memory.Promises(cells_max, shared_->clock->Now());
}

const FrontendOptions& Frontend::options() const { return shared_->options; }

}  // namespace kvatlas
