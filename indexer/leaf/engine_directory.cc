#include "indexer/leaf/engine_directory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "indexer/base/mutex.h"
#include "indexer/leaf/rank_holders.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

struct Listener {
  ZmqSource source;
  ZmqStreamId stream = 0;
};

// One instance. What it is does not change; what it listens to is guarded by the directory.
struct Instance {
  EngineRegistration of;  // the first one
  Domain domain;
  std::shared_ptr<EngineWorker> worker;
  std::shared_ptr<RankHolders> holders;

  // Guarded by the directory's mutex.
  std::atomic<uint32_t> block_size{0};  // `kBlockSizeAuto`: the domain does not know it yet
  std::map<uint32_t, Listener> listeners;
  bool busy = false;         // someone registers or removes it, outside the mutex
  bool restored = false;     // a peer told what it holds, at `adopted`
  bool unconfirmed = false;  // and knew no positions
  Time adopted{0};
  std::set<uint32_t>
      settled;  // ranks whose stream goes on from where that peer was, or was heard since
  std::set<uint32_t> awaited;  // restored from an earlier time, and in no answer before it is heard

  // Of `Tick` alone.
  Time look_at{0};
  std::map<uint32_t, Time> gone_since;  // streams that are not connected
};
using InstancePtr = std::shared_ptr<Instance>;

struct InDomain {
  uint32_t block_size = 0;
  bool learns = false;  // its size is not known yet; holders stand under `kProvisionalBlockSize`
  std::vector<InstancePtr> instances;
};

// Of holders whose engine has not said its block size: they are there, so that requests may be sent to them, and hold nothing.
constexpr uint32_t kProvisionalBlockSize = 16;

// Of a worker that has several: the worst, or else the least ready.
ListenerStatus Worst(const std::vector<EngineListener>& listeners) {
  const auto any = [&](ListenerStatus status) {
    return std::any_of(listeners.begin(), listeners.end(),
                       [&](const EngineListener& of) { return of.stream.status == status; });
  };
  for (ListenerStatus status :
       {ListenerStatus::kFailed, ListenerStatus::kPending, ListenerStatus::kActive})
    if (any(status)) return status;
  return ListenerStatus::kPaused;
}

}  // namespace

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

// A change of an instance marks it busy and works outside the mutex, so that a removal that waits for a stream
// holds up its own instance alone; other changes of the same instance wait. A domain lives as long as instances are
// listed under it, busy ones included, so that one cannot be dropped under a registration.
//
// Lock order: `mutex`, then `RankHolders`, the ingest, the registry; a worker's own before `RankHolders` too. A worker
// is never called with `mutex` held.
struct EngineDirectory::State {
  State(EngineDirectoryOptions given, HolderRegistry* registry, ZmqIngest* ingest)
      : options(std::move(given)),
        registry(registry),
        ingest(ingest),
        hidden(options.start_hidden) {}

  // ---- Under the mutex ----

  InstancePtr FindIdle(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (;;) {
      const auto it = instances.find(name);
      if (it == instances.end()) return nullptr;
      if (!it->second->busy) return it->second;
      changed.Wait(&mutex);
    }
  }

  InstancePtr Find(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto it = instances.find(name);
    return it == instances.end() ? nullptr : it->second;
  }

  std::optional<uint32_t> BlockSizeOf(const Domain& domain) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto it = domains.find(domain);
    if (it != domains.end() && it->second.learns) return std::nullopt;
    if (it != domains.end()) return it->second.block_size;
    const absl::StatusOr<uint32_t> known = registry->BlockSizeOf(domain);
    if (known.ok() && !registry->HoldersOf(domain).empty()) return *known;
    return std::nullopt;
  }

  absl::Status Mismatch(const Domain& domain, uint32_t existing, uint32_t requested) const {
    return absl::AlreadyExistsError("block_size mismatch for " + DomainText(domain) +
                                    ": existing=" + std::to_string(existing) +
                                    ", requested=" + std::to_string(requested));
  }

  // Whether the instance may be this: `instance` is what there is of that name, or null.
  absl::Status Fits(const EngineRegistration& registration, const Domain& domain,
                    const Instance* instance) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (instance != nullptr && !(instance->domain == domain)) {
      return absl::AlreadyExistsError(InstanceText(registration.instance) +
                                      " is already registered for " + DomainText(instance->domain));
    }
    const std::optional<uint32_t> block_size = BlockSizeOf(domain);
    if (block_size.has_value() && registration.block_size != kBlockSizeAuto &&
        *block_size != registration.block_size)
      return Mismatch(domain, *block_size, registration.block_size);
    if (instance == nullptr && instances.size() >= options.instances_max)
      return absl::ResourceExhaustedError("too many instances: " +
                                          std::to_string(options.instances_max));
    return absl::OkStatus();
  }

  void List(const InstancePtr& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    instances[instance->of.instance] = instance;
    InDomain& domain = domains[instance->domain];
    domain.instances.push_back(instance);
    const uint32_t size = instance->block_size;
    if (size == kBlockSizeAuto) {
      domain.learns = true;
    } else if (domain.learns) {
      SetBlockSize(&domain, size);
    } else {
      domain.block_size = size;
    }
  }

  // Of a domain that did not know it.
  void SetBlockSize(InDomain* domain, uint32_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    domain->block_size = size;
    domain->learns = false;
    std::vector<InstancePtr> learning;
    for (const InstancePtr& instance : domain->instances)
      if (instance->block_size == kBlockSizeAuto) learning.push_back(instance);
    for (const InstancePtr& instance : learning) instance->holders->Drop();
    for (const InstancePtr& instance : learning) {
      instance->block_size = size;
      instance->holders->AddAgain(size);
    }
  }

  // Called by a worker, with its lock: its engine has stored blocks of `found` tokens.
  uint32_t LearnBlockSize(const Domain& name, const std::string& instance, uint32_t found)
      ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    const auto it = domains.find(name);
    if (it == domains.end()) return found;  // it has just gone
    if (it->second.learns) {
      SetBlockSize(&it->second, found);
      Log(LogLevel::kInfo, "block size learned",
          {{"worker", instance}, {"domain", ToString(name)}, {"block_size", found}});
    }
    return it->second.block_size;
  }

  void Unlist(const InstancePtr& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    instances.erase(instance->of.instance);
    const auto it = domains.find(instance->domain);
    std::vector<InstancePtr>& of = it->second.instances;
    of.erase(std::find(of.begin(), of.end(), instance));
    if (!of.empty()) return;
    domains.erase(it);
    registry->DropDomain(instance->domain);
  }

  void Done(Instance* instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    instance->busy = false;
    changed.SignalAll();
  }

  std::vector<InstancePtr> All() const {
    MutexLock lock(&mutex);
    std::vector<InstancePtr> all;
    all.reserve(instances.size());
    for (const auto& [name, instance] : instances) all.push_back(instance);
    return all;
  }

  // ---- Outside it ----

  InstancePtr Make(const EngineRegistration& registration, const Domain& domain, bool hide)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    auto instance = std::make_shared<Instance>();
    instance->of = registration;
    instance->block_size = registration.block_size;
    if (registration.block_size == kBlockSizeAuto)
      instance->block_size = BlockSizeOf(domain).value_or(kBlockSizeAuto);
    const bool learns = instance->block_size == kBlockSizeAuto;
    instance->domain = domain;
    instance->busy = true;
    instance->holders = std::make_shared<RankHolders>(
        registry, domain, learns ? kProvisionalBlockSize : instance->block_size.load(),
        registration.instance, hide, registration.url);
    EngineWorkerOptions worker = options.worker;
    worker.name = registration.instance;
    worker.block_size = learns ? 0 : instance->block_size.load();
    if (learns) {
      worker.learn_block_size = [this, domain, self = registration.instance](uint32_t found) {
        return LearnBlockSize(domain, self, found);
      };
    }
    worker.contract = options.contract;
    worker.lora_name = registration.lora_name;
    worker.additional_salt = registration.additional_salt;
    worker.image_token = registration.image_token;
    worker.counts_copies = registration.counts_copies;
    worker.drops_last = ParseEagleDrop(registration.eagle_drop).value_or(std::nullopt);
    worker.chunk_tokens = registration.chunk_tokens;
    worker.window_tokens = registration.window_tokens;
    worker.hybrid = registration.hybrid;
    if (!(domain == options.pages_of)) worker.page_names = nullptr;
    worker.is_sglang =
        absl::EqualsIgnoreCase(absl::string_view(registration.engine_type), "sglang");
    worker.resolve = [this, domain, self = registration.instance](const EngineBlockHash& hash) {
      return Resolve(domain, self, hash);
    };
    instance->worker = std::make_shared<EngineWorker>(
        std::move(worker),
        [holders = instance->holders](uint32_t rank) { return holders->MakeSink(rank); });
    return instance;
  }

  // What another instance of the domain holds under a name. Called by workers, without their lock.
  std::optional<KnownBlock> Resolve(const Domain& domain, const std::string& asker,
                                    const EngineBlockHash& hash) const {
    std::vector<std::shared_ptr<EngineWorker>> workers;
    {
      MutexLock lock(&mutex);
      const auto it = domains.find(domain);
      if (it == domains.end()) return std::nullopt;
      for (const InstancePtr& instance : it->second.instances)
        if (instance->of.instance != asker) workers.push_back(instance->worker);
    }
    for (const std::shared_ptr<EngineWorker>& worker : workers)
      if (std::optional<KnownBlock> known = worker->Find(hash); known.has_value()) return known;
    return std::nullopt;
  }

  // The instance, found or made, busy with us.
  absl::StatusOr<InstancePtr> Begin(const EngineRegistration& registration, const Domain& domain,
                                    bool may_have_rank) {
    MutexLock lock(&mutex);
    InstancePtr instance = FindIdle(registration.instance);
    if (absl::Status bad = Fits(registration, domain, instance.get()); !bad.ok()) return bad;
    if (instance == nullptr) {
      instance = Make(registration, domain, hidden);
      List(instance);
    } else if (!may_have_rank && instance->listeners.contains(registration.rank)) {
      return absl::AlreadyExistsError(RankText(registration.instance, registration.rank) +
                                      " already registered");
    }
    instance->busy = true;
    return instance;
  }

  // The holder and the stream of one rank.
  absl::StatusOr<Listener> Listen(const Instance& instance, const EngineRegistration& of) {
    if (instance.block_size != 0) {
      absl::Status held = instance.holders->Add(of.rank);
      if (absl::IsFailedPrecondition(held)) {
        const absl::StatusOr<uint32_t> size = registry->BlockSizeOf(instance.domain);
        if (size.ok()) held = Mismatch(instance.domain, *size, instance.block_size);
      }
      if (!held.ok()) return held;
    }
    Listener listener{.source = SourceOf(of)};
    const absl::StatusOr<ZmqStreamId> stream = ingest->Add(listener.source, instance.worker);
    if (!stream.ok()) {
      instance.holders->Remove(of.rank);
      return stream.status();
    }
    listener.stream = *stream;
    return listener;
  }

  // What the instance had, gone from index and memory. REQUIRES: busy with us, without listeners.
  void Forget(const Instance& instance) {
    const std::vector<uint32_t> ranks = instance.holders->ranks();
    instance.holders->RemoveAll();
    for (uint32_t rank : ranks) instance.worker->RemoveRank(rank);
  }

  // Ends these streams, and with `all` the instance. REQUIRES: busy with us, and its listeners are these no more.
  void End(const InstancePtr& instance, const std::map<uint32_t, Listener>& listeners, bool all) {
    for (const auto& [rank, listener] : listeners) ingest->Remove(listener.stream);
    if (all) {
      Forget(*instance);
      const EngineWorkerStats stats = instance->worker->Stats();
      MutexLock lock(&mutex);
      AddCounts(stats, &gone);
      Unlist(instance);
      Done(instance.get());
      return;
    }
    // Ranks that their batches named go with them: those are no longer listened to.
    for (const auto& [stream, listener] : listeners) {
      for (uint32_t rank : instance->worker->RemoveStream(stream, options.clock->Now())) {
        if (Listens(*instance, rank)) continue;
        instance->holders->Remove(rank);
        instance->worker->RemoveRank(rank);
      }
    }
    MutexLock lock(&mutex);
    Done(instance.get());
  }

  bool Listens(const Instance& instance, uint32_t rank) const {
    MutexLock lock(&mutex);
    return instance.listeners.contains(rank);
  }

  EngineEntry Describe(const Instance& instance,
                       const std::map<uint32_t, Listener>& listeners) const {
    EngineEntry entry{
        .instance = instance.of.instance,
        .domain = instance.domain,
        .block_size = instance.block_size == kBlockSizeAuto ? 0 : instance.block_size.load(),
        .source = instance.of.source,
        .engine_type = instance.of.engine_type,
        .lora_name = instance.of.lora_name,
        .image_token = instance.of.image_token,
        .counts_copies = instance.of.counts_copies,
        .eagle_drop = instance.of.eagle_drop,
        .chunk_tokens = instance.of.chunk_tokens,
        .window_tokens = instance.of.window_tokens,
        .hybrid = instance.of.hybrid,
        .additional_salt = instance.of.additional_salt,
        .url = instance.of.url,
        .listeners = {},
        .worker = {}};
    for (const auto& [rank, listener] : listeners) {
      entry.listeners.push_back({.rank = rank,
                                 .endpoint = listener.source.endpoint,
                                 .replay_endpoint = listener.source.replay_endpoint,
                                 .topic = listener.source.topic,
                                 .server_key = listener.source.server_key,
                                 .bind = listener.source.bind,
                                 .from_flags = listener.source.from_flags,
                                 .stream = {}});
    }
    return entry;
  }

  // False: a stream went away meanwhile.
  bool FillStats(const Instance& instance, const std::map<uint32_t, Listener>& listeners,
                 EngineEntry* entry) const {
    for (EngineListener& listener : entry->listeners) {
      absl::StatusOr<ZmqStreamStats> stats = ingest->Stats(listeners.at(listener.rank).stream);
      if (!stats.ok()) return false;
      listener.stream = *std::move(stats);
    }
    entry->status = Worst(entry->listeners);
    entry->worker = instance.worker->Stats();
    return true;
  }

  // The streams that a pause or a resume is about.
  absl::StatusOr<std::map<uint32_t, Listener>> ListenersOf(const std::string& name,
                                                           std::optional<uint32_t> rank) const {
    MutexLock lock(&mutex);
    const InstancePtr instance = Find(name);
    if (instance == nullptr || instance->listeners.empty())
      return absl::NotFoundError(InstanceText(name) + " not found");
    if (!rank.has_value()) return instance->listeners;
    const auto it = instance->listeners.find(*rank);
    if (it == instance->listeners.end())
      return absl::NotFoundError(RankText(name, *rank) + " not found");
    return std::map<uint32_t, Listener>{*it};
  }

  // All of them or, when one cannot, none.
  absl::Status PauseOrResume(const std::string& name, std::optional<uint32_t> rank, bool pause) {
    const absl::StatusOr<std::map<uint32_t, Listener>> listeners = ListenersOf(name, rank);
    if (!listeners.ok()) return listeners.status();
    for (const auto& [number, listener] : *listeners) {
      const absl::StatusOr<ZmqStreamStats> stats = ingest->Stats(listener.stream);
      if (!stats.ok()) return absl::NotFoundError(RankText(name, number) + " not found");
      const bool can = pause ? stats->status == ListenerStatus::kPending ||
                                   stats->status == ListenerStatus::kActive
                             : stats->status == ListenerStatus::kPaused ||
                                   stats->status == ListenerStatus::kFailed;
      if (can) continue;
      return absl::FailedPreconditionError(RankText(name, number) + " cannot be " +
                                           (pause ? "paused" : "resumed") + " from status " +
                                           std::string(ListenerStatusName(stats->status)));
    }
    for (const auto& [number, listener] : *listeners) {
      absl::Status status =
          pause ? ingest->Pause(listener.stream) : ingest->Resume(listener.stream);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  bool IsOpen() const {
    MutexLock lock(&mutex);
    return open;
  }

  // Which of its ranks are alive, and is it to be forgotten?
  void LookAt(const InstancePtr& instance, Time now) {
    std::map<uint32_t, Listener> listeners;
    std::set<uint32_t> awaited;
    bool forget = false;
    {
      MutexLock lock(&mutex);
      // It may have gone since `Tick` took it from the list: who forgets it again takes its namesake away.
      if (instance->busy || Find(instance->of.instance) != instance) return;
      listeners = instance->listeners;
      awaited = instance->awaited;
      forget = listeners.empty() && open && now - instance->adopted > options.adopted_ttl;
      instance->busy = forget;
    }
    if (forget) return End(instance, {}, /*all=*/true);
    bool any_heard = listeners.empty(), any_alive = listeners.empty();
    for (const auto& [rank, listener] : listeners) {
      const absl::StatusOr<ZmqStreamStats> stats = ingest->Stats(listener.stream);
      if ((!stats.ok() || stats->arrived) && awaited.erase(rank) > 0) {
        MutexLock lock(&mutex);
        instance->awaited.erase(rank);
      }
      const bool is_awaited = awaited.contains(rank);
      // Who does not read does not hear.
      const bool reads = !stats.ok() || stats->status == ListenerStatus::kActive ||
                         stats->status == ListenerStatus::kPending;
      const bool heard = !stats.ok() || (stats->connected && reads && !is_awaited);
      const bool alive = heard || (!is_awaited && !GoneForLong(&instance->gone_since, rank, now));
      if (heard) instance->gone_since.erase(rank);
      if (!stats.ok() || stats->connection.ever) {
        instance->holders->SetReached(rank);
      } else {
        instance->look_at = now;  // soon again
      }
      instance->holders->SetAlive(rank, heard, alive);
      any_heard = any_heard || heard;
      any_alive = any_alive || alive;
    }
    // Ranks that only batches named come by any of its streams; those of a peer's dump by none.
    any_alive = any_alive && awaited.empty();
    for (uint32_t rank : instance->holders->ranks())
      if (!listeners.contains(rank)) instance->holders->SetAlive(rank, any_heard, any_alive);
  }

  bool GoneForLong(std::map<uint32_t, Time>* gone_since, uint32_t rank, Time now) const {
    return now - gone_since->try_emplace(rank, now).first->second > options.lease_ttl;
  }

  const EngineDirectoryOptions options;
  // A tenth of the lease, so that it is kept about that exactly.
  const Duration look_every = std::clamp<Duration>(
      options.lease_ttl / 10, std::chrono::milliseconds(50), std::chrono::seconds(1));
  HolderRegistry* const registry;
  ZmqIngest* const ingest;

  Mutex tick_mutex;  // before all others
  mutable Mutex mutex;
  CondVar changed;  // an instance is no longer busy, or gone
  std::map<std::string, InstancePtr, InstanceLess> instances ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<Domain, InDomain> domains ABSL_GUARDED_BY(mutex);
  bool hidden ABSL_GUARDED_BY(mutex);
  bool open ABSL_GUARDED_BY(mutex) = false;
  EngineWorkerStats gone ABSL_GUARDED_BY(mutex);
};

EngineDirectory::EngineDirectory(EngineDirectoryOptions options, HolderRegistry* registry,
                                 ZmqIngest* ingest)
    : state_(std::make_unique<State>(std::move(options), registry, ingest)) {}

EngineDirectory::~EngineDirectory() {
  for (const InstancePtr& instance : state_->All())
    for (const auto& [rank, listener] : instance->listeners)
      state_->ingest->Remove(listener.stream);
}

// ---- Register and unregister ----

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
  // What a peer told of it is old by now.
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
    // An instance that holds nothing yet, and under no size, is registered again by its source.
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

bool EngineDirectory::HasEagle(const Domain& domain) const {
  MutexLock lock(&state_->mutex);
  const auto it = state_->domains.find(domain);
  return it != state_->domains.end() &&
         std::any_of(it->second.instances.begin(), it->second.instances.end(),
                     [](const InstancePtr& of) { return of->worker->eagle(); });
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

// ---- Between replicas ----

absl::StatusOr<std::shared_ptr<EngineWorker>> EngineDirectory::Adopt(
    const EngineRegistration& registration, bool unconfirmed) {
  const Domain domain = DomainOf(registration.model, registration.group);
  const absl::StatusOr<InstancePtr> begun =
      state_->Begin(registration, domain, /*may_have_rank=*/true);
  if (!begun.ok()) return begun.status();
  MutexLock lock(&state_->mutex);
  (*begun)->restored = true;
  (*begun)->unconfirmed = unconfirmed;
  (*begun)->adopted = state_->options.clock->Now();
  state_->Done(begun->get());
  return (*begun)->worker;
}

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
    if (earlier) found->awaited.insert(rank);
  }
  return absl::OkStatus();
}

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

std::shared_ptr<const EngineWorker> EngineDirectory::WorkerOf(const std::string& name) const {
  MutexLock lock(&state_->mutex);
  const InstancePtr instance = state_->Find(name);
  return instance == nullptr ? nullptr : instance->worker;
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

void EngineDirectory::Open() {
  std::vector<std::tuple<InstancePtr, uint32_t, bool>> doubtful;
  {
    MutexLock lock(&state_->mutex);
    for (const auto& [name, instance] : state_->instances) {
      if (state_->open || !instance->restored) continue;
      for (uint32_t rank : instance->holders->ranks()) {
        const auto listener = instance->listeners.find(rank);
        const bool listens = listener != instance->listeners.end();
        // A rank that only batches named came with one of the streams: of one that does not go on below.
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
  state_->open = true;
  state_->hidden = false;
  for (const auto& [name, instance] : state_->instances) {
    if (!instance->awaited.empty())
      for (uint32_t rank : instance->holders->ranks())
        instance->holders->SetAlive(rank, /*heard=*/false, /*alive=*/false);
    instance->holders->SetHidden(false);
  }
}

// ---- Time ----

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
