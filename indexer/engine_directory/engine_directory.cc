// Registering, listing and removing engines, and the tick. Their shared state and its locks are in
// `engine_directory_state.h`; restart and replicas are in `engine_directory_recovery.cc`.

#include "indexer/engine_directory/engine_directory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/engine_directory/engine_directory_state.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

void AddCounts(const EngineWorkerStats& from, EngineWorkerStats* to) {
  to->batches += from.batches;
  to->events += from.events;
  to->stores += from.stores;
  to->removes += from.removes;
  to->blocks_stored += from.blocks_stored;
  to->blocks_removed += from.blocks_removed;
  to->clears += from.clears;
  to->copies += from.copies;
  to->linked += from.linked;
  for (size_t i = 0; i < from.refused.size(); ++i) to->refused[i] += from.refused[i];
}

EngineDirectory::EngineDirectory(EngineDirectoryOptions options, HolderRegistry* registry,
                                 ZmqIngest* ingest)
    : state_(std::make_unique<State>(std::move(options), registry, ingest)) {}

// Streams end here: the ingest outlives the directory, and its lanes would go on to call workers
// whose `resolve` points here.
EngineDirectory::~EngineDirectory() {
  for (const InstancePtr& instance : state_->All())
    for (const auto& [rank, listener] : instance->listeners)
      state_->ingest->Remove(listener.stream);
}

// ---- Register and unregister ----

// 1. Check the texts, before any lock.
// 2. `Begin`: the instance, found or made, is marked busy, so that other changes of it wait.
// 3. An instance that a peer restored, registered after `Open`: nothing connects what it holds with
//    the stream that begins now, and it is in doubt.
// 4. `Listen`: the rank's holder, then its stream, outside the mutex.
// 5. The listener is entered. On failure an instance that has no other listener, and was not
//    restored, ends again.
absl::Status EngineDirectory::Register(const EngineRegistration& registration) {
  if (absl::Status bad = CheckRegistration(registration, state_->ingest->addresses()); !bad.ok())
    return bad;
  const Domain domain = DomainOf(registration.model, registration.group);
  const absl::StatusOr<InstancePtr> begun =
      state_->Begin(registration, domain, /*may_have_rank=*/false);
  if (!begun.ok()) {
    static LogLimiter limiter(std::chrono::seconds(10));
    LogEvery(limiter, registration.instance, LogLevel::kError, "registration of an engine refused",
             {{"worker", registration.instance},
              {"rank", registration.rank},
              {"endpoint", registration.endpoint},
              {"reason", begun.status()}});
    return begun.status();
  }
  const InstancePtr& instance = *begun;
  // Step 3: what a peer said of the rank is old by now.
  if (instance->restored && state_->IsOpen() && !instance->settled.contains(registration.rank))
    instance->worker->Lost(registration.rank, state_->options.clock->Now());
  absl::StatusOr<Listener> listener = state_->Listen(*instance, registration);
  {
    MutexLock lock(&state_->mutex);
    if (listener.ok()) {
      instance->listeners[registration.rank] = *std::move(listener);
      if (state_->open) instance->settled.insert(registration.rank);
    }
    if (!instance->listeners.empty() || instance->restored) {
      state_->Done(instance.get());
      return listener.status();
    }
  }
  state_->End(instance, {}, /*all=*/true);
  return listener.status();
}

// Under the mutex the listeners are taken out of the instance, which is marked busy; `End` then
// removes the streams, which may wait for their lanes. With the last listener the instance ends.
absl::Status EngineDirectory::Unregister(const std::string& name, const std::string& model,
                                         const std::optional<std::string>& group,
                                         std::optional<uint32_t> rank) {
  InstancePtr instance;
  std::map<uint32_t, Listener> listeners;
  bool all = false;
  {
    MutexLock lock(&state_->mutex);
    instance = state_->FindIdle(name);
    if (instance == nullptr) return absl::NotFoundError(InstanceText(name) + " not found");
    const Domain& domain = instance->domain;
    if (domain.model != model || (group.has_value() && !(domain == DomainOf(model, *group)))) {
      return absl::NotFoundError(InstanceText(name) + " is registered for " + DomainText(domain));
    }
    if (!rank.has_value() || !group.has_value()) {
      listeners.swap(instance->listeners);
    } else {
      const auto it = instance->listeners.find(*rank);
      if (it == instance->listeners.end())
        return absl::NotFoundError(RankText(name, *rank) + " not found");
      listeners.insert(instance->listeners.extract(it));
    }
    all = instance->listeners.empty();
    instance->busy = true;
  }
  state_->End(instance, listeners, all);
  return absl::OkStatus();
}

// ---- What there is ----

// Statistics are read without the mutex, since the worker's lock comes before it. An instance whose
// stream went away meanwhile is left out.
std::vector<EngineEntry> EngineDirectory::List(std::optional<std::string_view> model,
                                               std::optional<std::string_view> group) const {
  std::vector<std::pair<InstancePtr, std::map<uint32_t, Listener>>> found;
  {
    MutexLock lock(&state_->mutex);
    for (const auto& [name, instance] : state_->instances) {
      if (instance->listeners.empty()) continue;
      if (model.has_value() && instance->domain.model != *model) continue;
      if (group.has_value() && GroupOf(instance->domain) != *group) continue;
      found.emplace_back(instance, instance->listeners);
    }
  }
  std::vector<EngineEntry> entries;
  entries.reserve(found.size());
  for (const auto& [instance, listeners] : found) {
    EngineEntry entry = state_->Describe(*instance, listeners);
    if (state_->FillStats(*instance, listeners, &entry)) entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<EngineEntry> EngineDirectory::Registrations() const {
  MutexLock lock(&state_->mutex);
  std::vector<EngineEntry> entries;
  entries.reserve(state_->instances.size());
  for (const auto& [name, instance] : state_->instances) {
    // An instance without a block size holds nothing: its source registers it again.
    if (instance->block_size == kBlockSizeAuto) continue;
    entries.push_back(state_->Describe(*instance, instance->listeners));
  }
  return entries;
}

EngineWorkerStats EngineDirectory::GoneStats() const {
  MutexLock lock(&state_->mutex);
  return state_->gone;
}

absl::Status EngineDirectory::Pause(const std::string& instance, std::optional<uint32_t> rank) {
  return state_->PauseOrResume(instance, rank, /*pause=*/true);
}

absl::Status EngineDirectory::Resume(const std::string& instance, std::optional<uint32_t> rank) {
  return state_->PauseOrResume(instance, rank, /*pause=*/false);
}

void EngineDirectory::SetLoad(const std::string& instance, uint32_t rank, const Load& load) {
  InstancePtr of;
  {
    MutexLock lock(&state_->mutex);
    of = state_->Find(instance);
  }
  if (of != nullptr) of->holders->SetLoad(rank, load);
}

std::optional<uint32_t> EngineDirectory::BlockSizeOf(const Domain& domain) const {
  MutexLock lock(&state_->mutex);
  const auto it = state_->domains.find(domain);
  if (it == state_->domains.end()) return std::nullopt;
  return it->second.block_size;
}

std::vector<Domain> EngineDirectory::Domains() const {
  MutexLock lock(&state_->mutex);
  std::vector<Domain> domains;
  for (const auto& [domain, of] : state_->domains) domains.push_back(domain);
  std::sort(domains.begin(), domains.end());
  return domains;
}

// Under the mutex: `look_aheads` takes no lock of the worker.
uint32_t EngineDirectory::LookAheads(const Domain& domain) const {
  MutexLock lock(&state_->mutex);
  const auto it = state_->domains.find(domain);
  uint32_t all = 0;
  if (it == state_->domains.end()) return all;
  for (const InstancePtr& of : it->second.instances) all |= of->worker->look_aheads();
  return all;
}

void EngineDirectory::ForEachAlias(
    const Domain& domain,
    const std::function<void(const std::string& instance, const EngineAlias&)>& visit) const {
  for (const InstancePtr& instance : state_->All()) {
    if (!(instance->domain == domain)) continue;
    instance->worker->ForEachAlias(
        [&](const EngineAlias& alias) { visit(instance->of.instance, alias); });
  }
}

size_t EngineDirectory::instances() const {
  MutexLock lock(&state_->mutex);
  return static_cast<size_t>(
      std::count_if(state_->instances.begin(), state_->instances.end(),
                    [](const auto& of) { return !of.second->listeners.empty(); }));
}

// ---- Time ----

// One tick at a time (`tick_mutex`): `look_at` and `gone_since` of instances belong to it. Each
// instance is looked at every `look_every`, or at the next tick where `LookAt` says so.
void EngineDirectory::Tick() {
  MutexLock ticking(&state_->tick_mutex);
  const Time now = state_->options.clock->Now();
  for (const InstancePtr& instance : state_->All()) {
    if (instance->look_at > now) continue;
    instance->look_at = now + state_->look_every;
    instance->worker->Tick(now);
    state_->LookAt(instance, now);
  }
}

}  // namespace kvatlas
