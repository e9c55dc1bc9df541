// Takes up what a replica or a checkpoint knew of engines. The order of a start:
//
// 1. The directory starts hidden, the ingest's gate is closed: engines of flags are registered,
//    their sockets receive.
// 2. `Adopt` for each instance of the snapshot, `EngineWorker::Restore` for its names, `ResumeFrom`
//    for its streams.
// 3. `Open` puts in doubt what no stream goes on from, opens the gate, and shows the holders; those
//    of a checkpoint only once their engine is heard (`awaited`).
// 4. `Unsettled` says how many instances readiness still waits for.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "indexer/base/mutex.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/engine_directory/engine_directory_state.h"

namespace kvatlas {

// Finds or makes the instance and marks it as restored. A domain that is still to learn its block
// size takes the snapshot's. The caller fills the worker.
absl::StatusOr<std::shared_ptr<EngineWorker>> EngineDirectory::Adopt(
    const EngineRegistration& registration, bool unconfirmed) {
  const Domain domain = DomainOf(registration.model, registration.group);
  const absl::StatusOr<InstancePtr> begun =
      state_->Begin(registration, domain, /*may_have_rank=*/true);
  if (!begun.ok()) return begun.status();
  // Restored names need ranks now: an instance that was to learn its block size gets the one that
  // it had.
  const bool says_size = registration.block_size != kBlockSizeAuto;
  if (says_size) (*begun)->worker->SetBlockSize(registration.block_size);
  MutexLock lock(&state_->mutex);
  if (InDomain& of = state_->domains[domain]; of.learns && says_size)
    state_->SetBlockSize(&of, registration.block_size);
  (*begun)->restored = true;
  (*begun)->unconfirmed = unconfirmed;
  (*begun)->adopted = state_->options.clock->Now();
  state_->Done(begun->get());
  return (*begun)->worker;
}

// The stream goes on from `position`: the rank is settled, nothing of it is in doubt at `Open`.
absl::Status EngineDirectory::ResumeFrom(const std::string& instance, uint32_t rank,
                                         const StreamPosition& position, bool earlier) {
  const absl::StatusOr<std::map<uint32_t, Listener>> listeners =
      state_->ListenersOf(instance, rank);
  if (!listeners.ok()) return listeners.status();
  absl::Status status = state_->ingest->ResumeFrom(listeners->at(rank).stream, position, earlier);
  if (!status.ok()) return status;
  MutexLock lock(&state_->mutex);
  if (const InstancePtr found = state_->Find(instance); found != nullptr) {
    found->settled.insert(rank);
    if (earlier) {
      found->awaited.insert(rank);
      found->resumed.insert(rank);
    }
  }
  return absl::OkStatus();
}

// Per stream the ingest keeps its lane out (`WithPosition`) while `visit` reads the worker. The
// listeners are a copy: a stream that was removed meanwhile is NOT_FOUND, and the caller begins
// again.
absl::Status EngineDirectory::Cut(
    const std::string& name,
    const std::function<void(std::optional<uint32_t>, std::optional<StreamPosition>,
                             const EngineWorker&)>& visit) const {
  InstancePtr instance;
  std::map<uint32_t, Listener> listeners;
  {
    MutexLock lock(&state_->mutex);
    instance = state_->Find(name);
    if (instance != nullptr) listeners = instance->listeners;
  }
  if (instance == nullptr) return absl::NotFoundError(InstanceText(name) + " not found");
  if (listeners.empty()) visit(std::nullopt, std::nullopt, *instance->worker);
  for (const auto& [rank, listener] : listeners) {
    absl::Status cut = state_->ingest->WithPosition(
        listener.stream,
        [&](std::optional<StreamPosition> position) { visit(rank, position, *instance->worker); });
    if (!cut.ok()) return cut;
  }
  return absl::OkStatus();
}

std::optional<EngineEntry> EngineDirectory::Find(const std::string& name) const {
  MutexLock lock(&state_->mutex);
  const InstancePtr instance = state_->Find(name);
  if (instance == nullptr) return std::nullopt;
  return state_->Describe(*instance, instance->listeners);
}

std::shared_ptr<const EngineWorker> EngineDirectory::WorkerOf(const std::string& name) const {
  MutexLock lock(&state_->mutex);
  const InstancePtr instance = state_->Find(name);
  return instance == nullptr ? nullptr : instance->worker;
}

// Looks at the instances of a checkpoint that were still behind at the last call. An instance is
// settled for good once none of its streams is behind and nothing that it restored is in doubt.
size_t EngineDirectory::Unsettled() {
  size_t unsettled = 0;
  for (const InstancePtr& instance : state_->All()) {
    std::map<uint32_t, Listener> listeners;
    std::set<uint32_t> resumed, awaited;
    Duration since_opened{0};
    {
      MutexLock lock(&state_->mutex);
      if (instance->resumed.empty()) continue;
      listeners = instance->listeners;
      resumed = instance->resumed;
      awaited = instance->awaited;
      if (state_->open) since_opened = state_->options.clock->Now() - state_->opened;
    }
    std::set<uint32_t> behind;
    for (const uint32_t rank : resumed) {
      const auto listener = listeners.find(rank);
      if (listener != listeners.end() &&
          state_->IsBehind(listener->second, awaited.contains(rank), since_opened))
        behind.insert(rank);
    }
    // A replay that began too late may have missed removals of blocks that the checkpoint had.
    const std::vector<EngineRankStats> ranks = instance->worker->Stats().ranks;
    const bool in_doubt = std::any_of(ranks.begin(), ranks.end(),
                                      [](const EngineRankStats& rank) { return rank.settling; });
    unsettled += in_doubt || !behind.empty();
    MutexLock lock(&state_->mutex);
    if (!in_doubt) instance->resumed = std::move(behind);
  }
  return unsettled;
}

size_t EngineDirectory::Unconnected() const {
  size_t unconnected = 0;
  for (const InstancePtr& instance : state_->All()) {
    std::map<uint32_t, Listener> listeners;
    {
      MutexLock lock(&state_->mutex);
      listeners = instance->listeners;
    }
    for (const auto& [rank, listener] : listeners) {
      const absl::StatusOr<ZmqStreamStats> stats = state_->ingest->Stats(listener.stream);
      unconnected += stats.ok() && !stats->connected && !listener.source.bind;
    }
  }
  return unconnected;
}

bool EngineDirectory::recovering() const {
  MutexLock lock(&state_->mutex);
  return state_->hidden;
}

// 1. Under the mutex, collect the restored ranks that nothing vouches for: no stream goes on from
//    where they were (`settled`). Where the source was `unconfirmed`, only ranks with a replay are
//    doubted, since only a replay tells better.
// 2. Without it, tell the workers: `Lost` where the rank has a stream, which a replay may repair,
//    `Doubt` where it has none.
// 3. Open the gate: from now on messages apply.
// 4. Show the holders. An instance with streams of a checkpoint that were not heard yet is masked
//    as a whole until `LookAt` decides rank by rank.
//
// Doubt comes before the gate: a message that is applied first would be in doubt with the rest.
void EngineDirectory::Open() {
  std::vector<std::tuple<InstancePtr, uint32_t, bool>> doubtful;
  {
    MutexLock lock(&state_->mutex);
    for (const auto& [name, instance] : state_->instances) {
      if (state_->open || !instance->restored) continue;
      for (uint32_t rank : instance->holders->ranks()) {
        const auto listener = instance->listeners.find(rank);
        const bool listens = listener != instance->listeners.end();
        // A rank without a stream of its own was named by batches of one of the others. It is
        // doubted only if none of those goes on from where it was.
        if (!listens && (instance->unconfirmed || !instance->settled.empty())) continue;
        const bool can_replay = listens && !listener->second.source.replay_endpoint.empty();
        if (!instance->settled.contains(rank) && (can_replay || !instance->unconfirmed))
          doubtful.push_back({instance, rank, listens});
      }
    }
  }
  for (const auto& [instance, rank, listens] : doubtful) {
    if (listens) {
      instance->worker->Lost(rank, state_->options.clock->Now());
    } else {
      instance->worker->Doubt(rank, state_->options.clock->Now());
    }
  }
  state_->ingest->OpenGate();
  MutexLock lock(&state_->mutex);
  if (!state_->open) state_->opened = state_->options.clock->Now();
  state_->open = true;
  state_->hidden = false;
  for (const auto& [name, instance] : state_->instances) {
    if (!instance->awaited.empty())
      for (uint32_t rank : instance->holders->ranks())
        instance->holders->SetAlive(rank, /*heard=*/false, /*alive=*/false);
    instance->holders->SetHidden(false);
  }
}

}  // namespace kvatlas
