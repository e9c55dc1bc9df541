// The relay's tables and threads. An `Instance` is one engine: a worker that reads its events,
// listeners (its registered streams), and ranks (what leaves are told of it). Events go from the
// ingest's threads through the worker into the ranks without the relay's `mutex`; that guards the
// tables alone.

#include "publisher/relay/relay.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/found_leaves.h"
#include "indexer/kv_events/registered_worker.h"
#include "indexer/net/connection_watch.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_url.h"
#include "indexer/stream/link.h"
#include "indexer/stream/validate.h"
#include "indexer/telemetry/log.h"
#include "indexer/transport/grpc_link.h"
#include "indexer/transport/redis/redis_link.h"

namespace kvatlas {
namespace {

// For heartbeats of ranks, and for leaves that come and go, engines' connections and timeouts of
// workers.
constexpr Duration kTickEvery = std::chrono::milliseconds(100);
constexpr Duration kLookEvery = std::chrono::milliseconds(100);

using RankPtr = std::shared_ptr<RelayRank>;

struct Listener {
  EngineRegistration of;
  ZmqStreamId stream = 0;
};

// The ranks of an instance: those registered, and those that only a batch named. Shared with the
// callbacks of the worker.
class Ranks {
 public:
  std::map<uint32_t, RankPtr> All() const {
    MutexLock lock(&mutex_);
    return ranks_;
  }
  // Null: there is none. The caller stops the rank, without this lock.
  RankPtr Take(uint32_t rank) {
    MutexLock lock(&mutex_);
    const auto it = ranks_.find(rank);
    if (it == ranks_.end()) return nullptr;
    RankPtr taken = std::move(it->second);
    ranks_.erase(it);
    return taken;
  }
  // `make` runs under the lock, so that no rank is made twice; it may refuse.
  absl::StatusOr<RankPtr> FindOrAdd(uint32_t rank,
                                    const std::function<absl::StatusOr<RankPtr>()>& make) {
    MutexLock lock(&mutex_);
    const auto it = ranks_.find(rank);
    if (it != ranks_.end()) return it->second;
    absl::StatusOr<RankPtr> made = make();
    if (made.ok()) ranks_[rank] = *made;
    return made;
  }

 private:
  mutable Mutex mutex_;  // after a worker's
  std::map<uint32_t, RankPtr> ranks_ ABSL_GUARDED_BY(mutex_);
};

// One engine, by its name. Immutable but for the fields with a comment of their own.
struct Instance {
  EngineRegistration of;  // the first one
  Domain domain;
  std::atomic<uint32_t> block_size{0};  // 0: not learned yet (`kBlockSizeAuto`)
  std::shared_ptr<Ranks> ranks = std::make_shared<Ranks>();
  std::shared_ptr<EngineWorker> worker;
  std::map<uint32_t, Listener> listeners;  // guarded by the relay's mutex
  std::map<uint32_t, std::string> urls;    // likewise; of ranks that say one
  bool look_ahead_told = false;            // of the thread that looks
};
using InstancePtr = std::shared_ptr<Instance>;

// The state of one engine's stream, as `RelayRank::SetStream` takes it.
struct StreamState {
  bool heard = false;
  bool settled = false;
  bool certain = false;
};

// Settled: no replay is under way, and none is to come. With a replay endpoint the first one is
// only over once it was asked for, or a message made it needless.
StreamState StateOf(const ZmqStreamStats& stats, bool can_replay) {
  const TrackerStats& tracker = stats.tracker;
  StreamState state;
  state.heard = stats.connected;
  state.certain = tracker.last.has_value() || tracker.replays_complete > 0;
  const bool asked = tracker.replays_asked > 0 || tracker.last.has_value();
  state.settled = !tracker.replaying && (!can_replay || asked);
  return state;
}

// The name of the log among the leaves; empty: there is none.
std::string LogName(const RelayOptions& options) {
  if (!options.redis.has_value()) return "";
  return RedisHosts(options.redis->redis);
}

using Labels = std::vector<std::pair<std::string, std::string>>;

// The labels of a rank: those of all, its own, and the url where its requests go.
Labels LabelsOf(EngineRegistration registration, const std::string& url, Labels labels) {
  registration.url = url;
  for (auto& label : LabelsOf(registration)) labels.push_back(std::move(label));
  return labels;
}

absl::Status CheckNames(const EngineRegistration& registration, const Domain& domain,
                        const Labels& labels) {
  const bool learns = registration.block_size == kBlockSizeAuto;
  if (!learns && (registration.block_size == 0 || registration.block_size > kBlockSizeMax))
    return absl::InvalidArgumentError("block_size: 1 to 65536 tokens, or auto");
  absl::Status names = ValidateHolder({registration.instance, registration.rank, ""},
                                      LabelsOf(registration, registration.url, labels));
  names.Update(ValidateDomain(domain));
  return names;
}

}  // namespace

// Lock order: `register_mutex`; a worker's own, then `Ranks`, then a rank's, then `flush_mutex`.
// `mutex` is taken inside of a worker's and of `Ranks`' lock (`LearnBlockSize`, `MakeRank`), so no
// worker, ingest, `Ranks` or rank is called with it held.
struct Relay::State {
  State(RelayOptions given, std::unique_ptr<FoundLeaves> found_in)
      : options(std::move(given)),
        budget(options.blocks_max),
        found(std::move(found_in)),
        ingest(options.ingest) {
    if (!options.make_link) {
      options.make_link = [this](const std::string& leaf,
                                 const SenderIdentity&) -> std::unique_ptr<SenderLink> {
        if (leaf == LogName(options)) return std::make_unique<RedisLink>(*options.redis);
        return std::make_unique<GrpcLink>(leaf);
      };
    }
    options.labels.emplace_back("via", "relay");
    SetLeaves(found->addresses());
  }

  // ---- Leaves ----

  // Sets the addresses of leaves, and the log as one of them.
  void SetLeaves(std::vector<std::string> addresses) ABSL_LOCKS_EXCLUDED(mutex) {
    if (options.redis.has_value()) addresses.push_back(LogName(options));
    MutexLock lock(&mutex);
    leaves = std::move(addresses);
  }
  std::vector<std::string> Leaves() const ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    return leaves;
  }

  // ---- Instances ----

  InstancePtr Find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    const auto it = instances.find(name);
    return it == instances.end() ? nullptr : it->second;
  }

  std::vector<InstancePtr> All() const ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    std::vector<InstancePtr> all;
    for (const auto& [name, instance] : instances) all.push_back(instance);
    return all;
  }

  std::map<uint32_t, Listener> ListenersOf(const Instance& instance) const
      ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    return instance.listeners;
  }

  // The url of a rank; of one that only a batch named, that of the instance.
  std::string UrlOf(const Instance& instance, uint32_t rank) const ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    const auto own = instance.urls.find(rank);
    return own == instance.urls.end() ? instance.of.url : own->second;
  }

  // A rank whose deleter counts it down: streams and statistics may hold it for a while after it
  // was taken out of its instance.
  absl::StatusOr<RankPtr> MakeRank(const Instance& instance, uint32_t rank) {
    if (ranks.load() >= options.ranks_max)
      return absl::ResourceExhaustedError("too many ranks: " + std::to_string(options.ranks_max));
    ranks.fetch_add(1);
    RelayRankOptions of{
        .identity = {.holder = {instance.of.instance, rank, ""},
                     .domain = instance.domain,
                     .block_size = instance.block_size.load(),
                     .contract_id = options.contract.Id(),
                     .schedule = "",
                     .address = "",
                     .labels = LabelsOf(instance.of, UrlOf(instance, rank), options.labels),
                     .epoch = 0,
                     .instance_id = 0},
        .sender = options.sender,
        .leaves = Leaves(),
        .make_link = options.make_link,
        .lease_ttl = options.lease_ttl,
        .budget = &budget,
        .wake = [this](RankPtr rank) { Wake(std::move(rank)); },
        .clock = options.clock};
    return RankPtr(new RelayRank(std::move(of)), [this](RelayRank* gone) {
      delete gone;
      ranks.fetch_sub(1);
    });
  }

  // An instance with its worker, in no table yet. The worker's callbacks point into the instance
  // and the relay, which both outlive the worker's streams.
  InstancePtr Make(const EngineRegistration& registration, const Domain& domain) {
    auto instance = std::make_shared<Instance>();
    instance->of = registration;
    instance->domain = domain;
    EngineWorkerOptions worker = options.worker;
    SetRegistered(registration, &worker);
    worker.store_tiers = {};  // the relay's holders have them
    if (registration.block_size != kBlockSizeAuto) instance->block_size = registration.block_size;
    worker.block_size = instance->block_size.load();
    // As below: it belongs to the instance.
    worker.learn_block_size = [this, of = instance.get()](uint32_t found) {
      return LearnBlockSize(of, found);
    };
    worker.contract = options.contract;
    worker.keep_local_hashes = false;
    worker.resolve = [this, domain, self = registration.instance](const EngineBlockHash& hash) {
      return Resolve(domain, self, hash);
    };
    // The worker belongs to the instance: it must not keep that alive.
    instance->worker = std::make_shared<EngineWorker>(
        std::move(worker),
        [this, of = instance.get()](uint32_t rank)
            -> absl::StatusOr<std::shared_ptr<HoldingsWriter>> { return AddRank(*of, rank); });
    return instance;
  }

  absl::StatusOr<RankPtr> AddRank(const Instance& instance, uint32_t rank) {
    return instance.ranks->FindOrAdd(rank, [&] { return MakeRank(instance, rank); });
  }

  // The size of the instance's blocks, learnt from its first stored block. The first instance of a
  // domain that says or learns a size decides for all of the domain. Called by workers, with their
  // lock.
  uint32_t LearnBlockSize(Instance* instance, uint32_t found) ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    for (const auto& [name, other] : instances)
      if (other->domain == instance->domain && other->block_size.load() != 0)
        found = other->block_size.load();
    instance->block_size = found;
    return found;
  }

  // The block that another instance of the domain holds under a name: engines that share a cache
  // name blocks that others stored. Called by workers, without their lock.
  std::optional<KnownBlock> Resolve(const Domain& domain, const std::string& asker,
                                    const EngineBlockHash& hash) const {
    for (const InstancePtr& instance : All()) {
      if (!(instance->domain == domain) || instance->of.instance == asker) continue;
      if (std::optional<KnownBlock> known = instance->worker->Find(hash)) return known;
    }
    return std::nullopt;
  }

  // Whether the registration may be made; `instance` is the one of that name, or null.
  absl::Status Fits(const EngineRegistration& registration, const Domain& domain,
                    const Instance* instance) const ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    if (instance != nullptr && !(instance->domain == domain))
      return absl::AlreadyExistsError(InstanceText(registration.instance) +
                                      " is already registered for " + DomainText(instance->domain));
    if (instance != nullptr && instance->listeners.contains(registration.rank))
      return absl::AlreadyExistsError(RankText(registration.instance, registration.rank) +
                                      " already registered");
    for (const auto& [name, other] : instances) {
      const uint32_t size = other->block_size.load();
      if (!(other->domain == domain) || size == 0 || registration.block_size == kBlockSizeAuto ||
          size == registration.block_size)
        continue;
      return absl::AlreadyExistsError("block_size mismatch for " + DomainText(domain) +
                                      ": existing=" + std::to_string(size) +
                                      ", requested=" + std::to_string(registration.block_size));
    }
    if (instance == nullptr && instances.size() >= options.instances_max)
      return absl::ResourceExhaustedError("too many instances: " +
                                          std::to_string(options.instances_max));
    return absl::OkStatus();
  }

  absl::Status Register(const EngineRegistration& registration);
  void EndRank(const Instance& instance, uint32_t rank, bool goodbye, Duration flush_for);

  // ---- Time ----

  // One signal for a list that was empty: the flusher takes all of it `batch_age` later.
  void Wake(RankPtr rank) {
    MutexLock lock(&flush_mutex);
    due.push_back(std::move(rank));
    if (due.size() == 1) flush_wake.Signal();
  }

  void RunFlush();
  void RunLook();
  void WatchEngines(Time now) ABSL_LOCKS_EXCLUDED(mutex);
  void LookAt(const Instance& instance, Time now);

  RelayOptions options;
  BlockBudget budget;
  std::atomic<uint32_t> ranks{0};

  Mutex flush_mutex;
  CondVar flush_wake;
  std::vector<RankPtr> due ABSL_GUARDED_BY(flush_mutex);  // to be flushed
  bool stopping ABSL_GUARDED_BY(flush_mutex) = false;
  CondVar look_wake;  // stopping

  Mutex register_mutex;
  mutable Mutex mutex;
  std::map<std::string, InstancePtr, InstanceLess> instances ABSL_GUARDED_BY(mutex);
  std::vector<std::string> leaves ABSL_GUARDED_BY(mutex);

  std::unique_ptr<FoundLeaves> found;  // the looker's
  EveryMinute no_engines, no_leaves;   // likewise
  std::atomic<bool> was_ready{false};
  std::atomic<bool> stopped{false};
  ZmqIngest ingest;  // its lanes call what is above
  std::thread flusher;
  std::thread looker;
};

// ---- Registrations ----

// Registers one engine's stream:
// 1. Checks of names, addresses and bounds, before anything is made.
// 2. A new instance is made, or the known one gets a further rank.
// 3. The rank is made, if the block size is known.
// 4. The ingest opens the stream; from here on events may come.
// 5. The tables get the listener and, if new, the instance.
// A failure of step 4 undoes step 3. `register_mutex` keeps two registrations of one name apart.
absl::Status Relay::State::Register(const EngineRegistration& registration) {
  const Domain domain = DomainOf(registration.model, registration.group);
  if (absl::Status bad = CheckRegistration(registration, ingest.addresses()); !bad.ok()) return bad;
  if (absl::Status bad = CheckNames(registration, domain, options.labels); !bad.ok()) return bad;
  MutexLock one_at_a_time(&register_mutex);
  InstancePtr instance = Find(registration.instance);
  if (absl::Status bad = Fits(registration, domain, instance.get()); !bad.ok()) return bad;
  const bool is_new = instance == nullptr;
  if (is_new) instance = Make(registration, domain);
  if (!registration.url.empty()) {
    MutexLock lock(&mutex);
    instance->urls[registration.rank] = registration.url;
  }
  // A rank whose block size is not known is made at its first stored block: a leaf needs the size
  // in the stream's first message.
  if (instance->block_size.load() != 0)
    if (absl::StatusOr<RankPtr> rank = AddRank(*instance, registration.rank); !rank.ok())
      return rank.status();
  const absl::StatusOr<ZmqStreamId> stream = ingest.Add(SourceOf(registration), instance->worker);
  if (!stream.ok()) {
    EndRank(*instance, registration.rank, /*goodbye=*/true, Duration(0));
    return stream.status();
  }
  MutexLock lock(&mutex);
  instance->listeners[registration.rank] = {registration, *stream};
  instances[registration.instance] = instance;
  return absl::OkStatus();
}

// REQUIRES: no stream brings events of the rank any more, or none yet.
void Relay::State::EndRank(const Instance& instance, uint32_t rank, bool goodbye,
                           Duration flush_for) {
  const RankPtr gone = instance.ranks->Take(rank);
  instance.worker->RemoveRank(rank);
  if (gone != nullptr) gone->Stop(goodbye, flush_for);
}

absl::Status Relay::Register(const EngineRegistration& registration) {
  if (state_->stopped.load()) return absl::UnavailableError("the relay is stopping");
  return state_->Register(registration);
}

// 1. The tables forget the listeners, and the instance with its last one.
// 2. The ingest ends the streams: no event comes after that.
// 3. The ranks say goodbye, one after the other, each for at most `goodbye_for`. With the instance
//    go also ranks that only batches named.
absl::Status Relay::Unregister(const std::string& name, const std::string& model,
                               const std::optional<std::string>& group,
                               std::optional<uint32_t> rank) {
  State& state = *state_;
  MutexLock one_at_a_time(&state.register_mutex);
  const InstancePtr instance = state.Find(name);
  if (instance == nullptr) return absl::NotFoundError(InstanceText(name) + " not found");
  const Domain& domain = instance->domain;
  if (domain.model != model || (group.has_value() && !(domain == DomainOf(model, *group))))
    return absl::NotFoundError(InstanceText(name) + " is registered for " + DomainText(domain));
  std::map<uint32_t, Listener> ended;
  bool all = false;
  {
    MutexLock lock(&state.mutex);
    if (!rank.has_value()) {
      ended.swap(instance->listeners);
    } else if (auto found = instance->listeners.extract(*rank)) {
      ended.insert(std::move(found));
    } else {
      return absl::NotFoundError(RankText(name, *rank) + " not found");
    }
    // A rank that is registered again without a url has none.
    for (const auto& [number, unused] : ended) instance->urls.erase(number);
    all = instance->listeners.empty();
    if (all) state.instances.erase(name);
  }
  for (const auto& [number, listener] : ended) state.ingest.Remove(listener.stream);
  if (all) {
    for (const auto& [number, unused] : instance->ranks->All())
      state.EndRank(*instance, number, /*goodbye=*/true, state.options.goodbye_for);
  } else {
    for (const auto& [number, unused] : ended)
      state.EndRank(*instance, number, /*goodbye=*/true, state.options.goodbye_for);
  }
  return absl::OkStatus();
}

// ---- What it tells ----

// Not one cut: each instance and each rank is read for itself.
std::vector<RelayInstance> Relay::Instances() const {
  std::vector<RelayInstance> told;
  for (const InstancePtr& instance : state_->All()) {
    RelayInstance& of = told.emplace_back();
    of.name = instance->of.instance;
    of.domain = instance->domain;
    of.block_size = instance->block_size.load();
    for (const auto& [rank, listener] : state_->ListenersOf(*instance)) {
      absl::StatusOr<ZmqStreamStats> stats = state_->ingest.Stats(listener.stream);
      if (stats.ok()) of.listeners.push_back({listener.of, *std::move(stats)});
    }
    of.worker = instance->worker->Stats();
    for (const auto& [number, rank] : instance->ranks->All()) of.ranks.push_back(rank->Stats());
  }
  return told;
}

void Relay::ForEachDump(const std::optional<Domain>& domain, const std::string& name,
                        const std::function<bool(const RelayRankDump&)>& visit) const {
  for (const InstancePtr& instance : state_->All()) {
    if (domain.has_value() && !(instance->domain == *domain)) continue;
    if (!name.empty() && instance->of.instance != name) continue;
    for (const auto& [number, rank] : instance->ranks->All())
      if (!visit(rank->Dump())) return;
  }
}

// Once ready, always ready: an engine that goes away later does not take the relay out of service.
Readiness Relay::readiness() const {
  if (state_->was_ready.load()) return {.ready = true, .reason = {}};
  uint64_t offered = 0;
  for (const InstancePtr& instance : state_->All())
    for (const auto& [number, rank] : instance->ranks->All()) offered += rank->ever_offered();
  const uint32_t wanted = state_->options.min_initial_workers;
  if (offered < wanted)
    return {.ready = false,
            .reason = std::to_string(offered) + " of " + std::to_string(wanted) + " workers"};
  state_->was_ready = true;
  return {.ready = true, .reason = {}};
}

const RelayOptions& Relay::options() const { return state_->options; }
std::vector<std::string> Relay::leaves() const { return state_->Leaves(); }
uint64_t Relay::blocks_held() const { return state_->budget.used(); }

// ---- Time ----

// The flusher: writes to leaves `batch_age` after the first change, so that batches grow under
// load, and ticks the streams. `flush_mutex` is not held while it calls ranks.
void Relay::State::RunFlush() {
  MutexLock lock(&flush_mutex);
  Time tick_at = Clock::Real().Now() + kTickEvery;
  while (!stopping) {
    if (due.empty()) {
      const Time now = Clock::Real().Now();
      if (now < tick_at) flush_wake.WaitFor(&flush_mutex, tick_at - now);
    } else {
      // Only a stop signals while ranks are due.
      flush_wake.WaitFor(&flush_mutex, options.batch_age);
    }
    const std::vector<RankPtr> now_due = std::exchange(due, {});
    const bool tick = Clock::Real().Now() >= tick_at;
    flush_mutex.Unlock();
    for (const RankPtr& rank : now_due) rank->Flush();
    if (tick) {
      for (const InstancePtr& instance : All())
        for (const auto& [number, rank] : instance->ranks->All()) rank->Tick();
      tick_at = Clock::Real().Now() + kTickEvery;
    }
    flush_mutex.Lock();
  }
}

// The looker, every `kLookEvery`: leaves that come and go, timeouts of workers, and the state of
// each engine's stream for its ranks.
void Relay::State::RunLook() {
  MutexLock lock(&flush_mutex);
  while (!stopping) {
    flush_mutex.Unlock();
    const Time now = options.clock->Now();
    if (std::optional<std::vector<std::string>> others = found->Changed(); others.has_value())
      SetLeaves(*std::move(others));
    const std::vector<std::string> leaves_now = Leaves();
    for (const InstancePtr& instance : All()) {
      instance->worker->Tick(now);
      if (instance->worker->look_aheads() != 0 && !std::exchange(instance->look_ahead_told, true)) {
        Log(LogLevel::kWarning, "engine's hashes look ahead: leaves are to be asked for such",
            {{"worker", instance->of.instance}});
      }
      for (const auto& [number, rank] : instance->ranks->All()) rank->SetLeaves(leaves_now);
      LookAt(*instance, now);
    }
    WatchEngines(now);
    flush_mutex.Lock();
    if (!stopping) look_wake.WaitFor(&flush_mutex, kLookEvery);
  }
}

// Reminders in the log, at most one a minute each.
void Relay::State::WatchEngines(Time now) {
  if (no_engines.Due(All().empty(), now))
    Log(LogLevel::kWarning, "no engine yet: there is nothing to tell leaves of",
        {{"hint", "--workers NAME=tcp://HOST:PORT, or POST /register"}});
  if (no_leaves.Due(Leaves().empty(), now))
    Log(LogLevel::kWarning, "no leaf is told",
        {{"hint", "none was found yet where --leaves looks; or set it to HOST:PORT of a leaf"}});
}

// Tells each rank how its stream is. `any` is the state of the instance's streams together.
void Relay::State::LookAt(const Instance& instance, Time now) {
  StreamState any;
  std::map<uint32_t, StreamState> of;
  for (const auto& [number, listener] : ListenersOf(instance)) {
    const absl::StatusOr<ZmqStreamStats> stats = ingest.Stats(listener.stream);
    if (!stats.ok()) continue;
    const StreamState state = StateOf(*stats, !listener.of.replay_endpoint.empty());
    of[number] = state;
    any.heard = any.heard || state.heard;
    any.settled = any.settled || state.settled;
    any.certain = any.certain || state.certain;
  }
  // Ranks that only batches named come by any of its streams.
  for (const auto& [number, rank] : instance.ranks->All()) {
    const auto own = of.find(number);
    const StreamState& state = own == of.end() ? any : own->second;
    rank->SetStream(state.heard, state.settled, state.certain, now);
  }
}

// ---- Start and stop ----

Relay::Relay(std::unique_ptr<State> state) : state_(std::move(state)) {}

Relay::~Relay() { Stop(/*goodbye=*/false, Duration(0)); }

// 1. Options are checked, and the search for leaves is opened, without waiting for its first
//    answer.
// 2. Engines of the flags are registered; the first that cannot be ends the start.
// 3. The gate of the ingest opens: no event was read before, so that the order of registrations
//    does not matter.
// 4. The two threads start.
absl::StatusOr<std::unique_ptr<Relay>> Relay::Start(RelayOptions options) {
  if (options.leaves.empty() && !options.redis.has_value())
    return absl::InvalidArgumentError("leaves: none, and no log in Redis");
  if (std::set(options.leaves.begin(), options.leaves.end()).size() != options.leaves.size())
    return absl::InvalidArgumentError("leaves: one is named twice");
  if (options.redis.has_value()) {
    absl::Status may = RedisClient::MayGoInClear(options.redis->redis);
    if (!may.ok()) return absl::Status(may.code(), "redis: " + std::string(may.message()));
  }
  DirectoryOptions look;
  look.first_answer = Duration(0);
  look.poll_every = options.find_every;
  look.refresh = 5 * options.find_every;
  auto found = FoundLeaves::Open(options.leaves, options.cell, std::move(look));
  if (!found.ok())
    return absl::InvalidArgumentError("leaves: " + std::string(found.status().message()));
  const std::vector<EngineRegistration> workers = options.workers;
  auto relay = std::unique_ptr<Relay>(
      new Relay(std::make_unique<State>(std::move(options), *std::move(found))));
  State& state = *relay->state_;
  if (absl::Status bad = ValidateHolder({"relay", 0, ""}, state.options.labels); !bad.ok())
    return bad;
  for (const EngineRegistration& worker : workers)
    if (absl::Status bad = state.Register(worker); !bad.ok()) return bad;
  state.ingest.OpenGate();
  state.flusher = std::thread([&state] { state.RunFlush(); });
  state.looker = std::thread([&state] { state.RunLook(); });
  return relay;
}

// 1. No more events: registrations end, and the ingest stops.
// 2. No thread offers or writes any more: flusher and looker are joined.
// 3. What is due goes out, rank by rank, within `flush_for` together.
void Relay::Stop(bool goodbye, Duration flush_for) {
  State& state = *state_;
  if (state.stopped.exchange(true)) return;
  {
    MutexLock one_at_a_time(&state.register_mutex);
    state.ingest.Stop();
  }
  {
    MutexLock lock(&state.flush_mutex);
    state.stopping = true;
    state.flush_wake.SignalAll();
    state.look_wake.SignalAll();
  }
  if (state.flusher.joinable()) state.flusher.join();
  if (state.looker.joinable()) state.looker.join();
  state.found.reset();
  const Time until = Clock::Real().Now() + flush_for;
  for (const InstancePtr& instance : state.All()) {
    for (const auto& [number, rank] : instance->ranks->All()) {
      rank->Flush();
      rank->Stop(goodbye, std::max(Duration(0), until - Clock::Real().Now()));
    }
  }
}

}  // namespace kvatlas
