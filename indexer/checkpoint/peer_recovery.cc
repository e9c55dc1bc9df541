// Recovery from a peer, in `PeerRecovery::State::From`. `Registrar` collects the peer's
// registrations, `EngineRestorer` takes the names of its snapshot, `DumpRestorer` those of a dump.
// Everything runs on the thread in `Run`; `Cancel` reaches the fetch in progress and the sleeps
// through `mutex`.

#include "indexer/checkpoint/peer_recovery.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "indexer/base/mutex.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/checkpoint/engine_restore.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// Bounds of a /workers answer that is parsed as a whole text: bytes, and keys of one worker.
constexpr size_t kWorkersBytesMax = 16 << 20;
constexpr uint64_t kWorkerKeysMax = 1 << 16;
// How often it is looked whether the engines' sockets are connected.
constexpr Duration kLookEvery = std::chrono::milliseconds(10);
// A peer gives two snapshots at a time and answers 503 beyond: it is asked again for a minute.
constexpr uint32_t kBusyTries = 30;
constexpr Duration kBusyWait = std::chrono::seconds(2);

// For a peer that tells of more ranks than are taken over.
absl::Status TooManyWorkers(uint32_t workers_max) {
  return absl::ResourceExhaustedError("it tells of more than " + std::to_string(workers_max) +
                                      " workers; --peer_workers_max allows more");
}

// Collects instances and registers nothing before all of them were read: a peer that is refused or
// breaks off then has opened no sockets. An instance without listeners counts as one worker.
class Registrar : public SnapshotVisitor {
 public:
  Registrar(EngineDirectory* directory, uint32_t workers_max)
      : directory_(directory), workers_max_(workers_max) {}

  absl::Status OnInstance(const EngineEntry& entry) override {
    workers_ += std::max<size_t>(entry.listeners.size(), 1);
    if (workers_ > workers_max_) return TooManyWorkers(workers_max_);
    entries_.push_back(entry);
    return absl::OkStatus();
  }
  // Sockets connect and subscribe from here on; their messages wait behind the directory's gate.
  void Register() const {
    for (const EngineEntry& entry : entries_) RegisterEngines(directory_, entry);
  }
  absl::Status OnName(const EngineEntry&, const EngineAlias&) override { return absl::OkStatus(); }
  absl::Status OnRank(const EngineEntry&, const EngineRankMark&) override {
    return absl::OkStatus();
  }
  absl::Status OnPosition(const EngineEntry&, uint32_t,
                          const std::optional<StreamPosition>&) override {
    return absl::OkStatus();
  }

 private:
  EngineDirectory* const directory_;
  const uint32_t workers_max_;
  uint64_t workers_ = 0;
  std::vector<EngineEntry> entries_;
};

// Blocks of a Dynamo dump. A domain whose block size is not ours is skipped: its hashes mean other
// tokens.
class DumpRestorer : public DumpVisitor {
 public:
  DumpRestorer(EngineDirectory* directory, uint32_t workers_max)
      : directory_(directory), restored_(directory, EngineRestorer::Source::kDump, workers_max) {}

  absl::Status OnDomain(const Domain& domain, uint32_t block_size) override {
    block_size_ = block_size;
    const std::optional<uint32_t> known = directory_->BlockSizeOf(domain);
    skip_ = known.has_value() && *known != block_size;
    if (skip_ && skipped_++ == 0)
      Log(LogLevel::kWarning, "a peer's domain has another block size",
          {{"domain", ToString(domain)}, {"ours", *known}, {"theirs", block_size}});
    return absl::OkStatus();
  }

  absl::Status OnBlock(const Domain& domain, const std::string& instance,
                       const EngineAlias& alias) override {
    if (skip_) return absl::OkStatus();
    entry_.instance = instance;
    entry_.domain = domain;
    entry_.block_size = block_size_;
    entry_.source = "zmq";
    return restored_.Restore(entry_, alias);
  }

  const EngineRestorer& restored() const { return restored_; }

 private:
  EngineDirectory* const directory_;
  EngineRestorer restored_;
  EngineEntry entry_;
  uint32_t block_size_ = 0;
  bool skip_ = false;
  uint64_t skipped_ = 0;
};

std::string TextOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_unsigned()) return std::to_string(value.get<uint64_t>());
  return "";
}

// One worker of a /workers answer, as Dynamo's indexer or a leaf writes it; nothing: another form,
// which is skipped. Its rank is the key of its endpoint.
std::optional<EngineEntry> WorkerEntry(const Json& worker) {
  if (!worker.is_object()) return std::nullopt;
  const auto field = [&](const char* name) { return worker.value(name, Json()); };
  EngineEntry entry;
  entry.instance = TextOf(field("instance_id"));
  entry.domain = DomainOf(TextOf(field("model_name")), TextOf(field("routing_group")));
  const Json block_size = field("block_size");
  const Json endpoints = field("endpoints");
  if (entry.instance.empty() || !block_size.is_number_unsigned() || !endpoints.is_object() ||
      block_size.get<uint64_t>() > UINT32_MAX)
    return std::nullopt;
  entry.block_size = block_size.get<uint32_t>();
  entry.source = "zmq";
  for (const auto& [rank, endpoint] : endpoints.items()) {
    EngineListener listener;
    if (!absl::SimpleAtoi(rank, &listener.rank)) return std::nullopt;
    listener.endpoint = TextOf(endpoint);
    entry.listeners.push_back(std::move(listener));
  }
  return entry;
}

}  // namespace

struct PeerRecovery::State {
  State(PeerRecoveryOptions given, EngineDirectory* directory, ReadinessGate* readiness)
      : options(std::move(given)),
        directory(directory),
        readiness(readiness),
        // The registrations of --workers: `StartOver` returns to them.
        own(directory->Registrations()) {}

  // Waits for `duration`. False: `Cancel` was called.
  bool Sleep(Duration duration) {
    MutexLock lock(&mutex);
    const Time until = Clock::Real().Now() + duration;
    while (!cancelled) {
      const Duration left = until - Clock::Real().Now();
      if (left <= Duration::zero()) return true;
      wake.WaitFor(&mutex, left);
    }
    return false;
  }

  // `running` is the fetch that `Cancel` ends. It is set and cleared under `mutex`, so it never
  // points to a fetch that is gone.
  absl::Status Begin(HttpFetch* fetch) {
    MutexLock lock(&mutex);
    if (cancelled) return absl::CancelledError("recovery was cancelled");
    running = fetch;
    return absl::OkStatus();
  }
  void End() {
    MutexLock lock(&mutex);
    running = nullptr;
  }

  // Asks `peer` for `path` and runs `take` on the body of a 200. Never takes longer than what is
  // left of `peer_until`. NOT_FOUND: the peer has no such path. RESOURCE_EXHAUSTED: 503, it may be
  // asked again later. Others: `take`'s or the connection's.
  absl::Status Fetch(const std::string& peer, const char* path,
                     const std::function<absl::Status(HttpFetch*)>& take) {
    HttpFetchOptions within = options.fetch;
    within.total_timeout = std::min(within.total_timeout, peer_until - Clock::Real().Now());
    HttpFetch fetch(within);
    absl::Status status = Begin(&fetch);
    if (!status.ok()) return status;
    const absl::StatusOr<int> answered = fetch.Get(peer, path);
    if (!answered.ok()) {
      status = answered.status();
    } else if (*answered == 404) {
      status = absl::NotFoundError(std::string(path) + " is unknown there");
    } else if (*answered == 503) {
      status = absl::ResourceExhaustedError(std::string(path) + " was answered with 503");
    } else if (*answered != 200) {
      status = absl::UnavailableError(std::string(path) + " was answered with " +
                                      std::to_string(*answered));
    } else {
      status = take(&fetch);
    }
    End();
    return status;
  }

  // Everything from one peer, or the reason why not:
  // 1. /snapshot?names=0, the registrations alone; a peer without that path is taken for Dynamo's
  //    indexer: /workers (`LearnWorkers`).
  // 2. `Registrar::Register`: from now on sockets receive, and nothing that engines say is lost.
  // 3. `WaitForEngines`: a snapshot that is fetched afterwards is younger than the subscriptions,
  //    so behind its positions nothing is missing.
  // 4. `RestoreSnapshot` or `RestoreDump`.
  absl::Status From(const std::string& peer) {
    peer_until = Clock::Real().Now() + options.peer_timeout;
    Registrar registrar(directory, options.workers_max);
    absl::Status known = Fetch(peer, "/snapshot?names=0", [&](HttpFetch* fetch) {
      return ReadReplicaSnapshot(options.contract, fetch->Body(), &registrar).status();
    });
    const bool is_ours = !absl::IsNotFound(known);
    if (!is_ours)
      known = Fetch(peer, "/workers",
                    [&](HttpFetch* fetch) { return LearnWorkers(fetch, &registrar); });
    if (!known.ok()) return known;
    registrar.Register();
    if (absl::Status cancelled = WaitForEngines(); !cancelled.ok()) return cancelled;
    return is_ours ? RestoreSnapshot(peer) : RestoreDump(peer);
  }

  // Parses /workers with a callback that keeps one worker at a time: a document of the whole text
  // may take 30 times its size. The callback returns whether the parser keeps the value.
  // Depth 0 is the list, 1 the workers, 2 their fields, 3 the fields of `endpoints` and
  // `listeners`. Objects below are dropped, and keys of one worker are counted against
  // `kWorkerKeysMax`. A finished worker is given to `registrar` and dropped. After an error
  // (`status`) everything is dropped until the text ends.
  absl::Status LearnWorkers(HttpFetch* fetch, Registrar* registrar) {
    const absl::StatusOr<std::string> text = fetch->ReadAll(kWorkersBytesMax);
    if (!text.ok()) return text.status();
    absl::Status status;
    uint64_t keys = 0;  // of one worker
    // [ { worker's keys: { endpoints, listeners } } ]
    const auto keep = [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth == 0) return true;
      if (!status.ok() || event == Json::parse_event_t::array_start) return false;
      if (event == Json::parse_event_t::object_start) {
        if (depth == 1) keys = 0;
        return depth <= 2;
      }
      if (event == Json::parse_event_t::key && depth <= 3 && ++keys > kWorkerKeysMax)
        status = absl::ResourceExhaustedError("it tells of a worker with over " +
                                              std::to_string(kWorkerKeysMax) + " ranks and fields");
      if (depth > 1) return status.ok();
      if (event == Json::parse_event_t::object_end)
        if (const std::optional<EngineEntry> entry = WorkerEntry(parsed); entry.has_value())
          status = registrar->OnInstance(*entry);
      return false;
    };
    const Json workers = Json::parse(*text, keep, /*allow_exceptions=*/false);
    if (!status.ok()) return status;
    if (!workers.is_array()) return absl::InvalidArgumentError("/workers is no list");
    return absl::OkStatus();
  }

  // Waits until all sockets are connected, at most `connect_wait`: a dead engine must not hold the
  // start up. Then `settle_wait`, since ZeroMQ says that a socket is connected before its
  // subscription has arrived at the engine. CANCELLED.
  absl::Status WaitForEngines() {
    const Time until = Clock::Real().Now() + options.connect_wait;
    while (directory->Unconnected() > 0 && Clock::Real().Now() < until)
      if (!Sleep(kLookEvery)) break;
    return Sleep(options.settle_wait) ? absl::OkStatus()
                                      : absl::CancelledError("recovery was cancelled");
  }

  absl::Status RestoreSnapshot(const std::string& peer) {
    EngineRestorer restorer(directory, EngineRestorer::Source::kReplica, options.workers_max);
    absl::Status status;
    // True once a body began. Before, RESOURCE_EXHAUSTED means 503 and is tried again; after, it is
    // a bound that the body exceeded, and is final.
    bool given = false;
    for (uint32_t i = 0; i < kBusyTries; ++i) {
      status = Fetch(peer, "/snapshot", [&](HttpFetch* fetch) {
        given = true;
        return ReadReplicaSnapshot(options.contract, fetch->Body(), &restorer).status();
      });
      if (given || !absl::IsResourceExhausted(status) || !Sleep(kBusyWait)) break;
    }
    return Finish(peer, restorer, status);
  }

  absl::Status RestoreDump(const std::string& peer) {
    DumpRestorer restorer(directory, options.workers_max);
    absl::Status status = Fetch(peer, "/dump", [&](HttpFetch* fetch) {
      return ReadDump({.contract = options.contract}, fetch->Body(), &restorer).status();
    });
    return Finish(peer, restorer.restored(), status);
  }

  // Restored names become visible to the index only when the reading succeeded as a whole.
  static absl::Status Finish(const std::string& peer, const EngineRestorer& restored,
                             const absl::Status& read) {
    if (!read.ok()) return read;
    restored.Finish();
    Log(LogLevel::kInfo, "recovered from a peer",
        {{"peer", peer}, {"names", restored.restored()}, {"refused", restored.refused()}});
    return absl::OkStatus();
  }

  // Forgets all that a peer told before it broke off, by registering this leaf's own engines anew:
  // names that were restored go with the instances.
  void StartOver() {
    for (const EngineEntry& entry : directory->Registrations())
      (void)directory->Unregister(entry.instance, entry.domain.model, std::nullopt, std::nullopt);
    for (const EngineEntry& entry : own) RegisterEngines(directory, entry);
  }

  const PeerRecoveryOptions options;
  EngineDirectory* const directory;
  ReadinessGate* const readiness;
  const std::vector<EngineEntry> own;
  Time peer_until{0};  // of the peer that is asked; of the thread in `Run`

  Mutex mutex;
  CondVar wake;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  HttpFetch* running ABSL_GUARDED_BY(mutex) = nullptr;
};

PeerRecovery::PeerRecovery(PeerRecoveryOptions options, EngineDirectory* directory,
                           ReadinessGate* readiness)
    : state_(std::make_unique<State>(std::move(options), directory, readiness)) {}
PeerRecovery::~PeerRecovery() = default;

// Asks the peers in their order, in rounds with a pause between: all replicas of a cell may be
// starting at once, and the first of them to be ready serves the others.
absl::Status PeerRecovery::Run() {
  State& state = *state_;
  for (uint32_t round = 0; round < state.options.rounds; ++round) {
    if (round > 0 && !state.Sleep(state.options.round_wait)) break;
    for (const std::string& peer : state.options.peers) {
      state.readiness->Recovering("recovering from " + peer);
      const absl::Status status = state.From(peer);
      if (status.ok() || absl::IsCancelled(status)) return status;
      Log(LogLevel::kWarning, "a peer cannot be recovered from",
          {{"peer", peer}, {"reason", status}});
      state.StartOver();
    }
  }
  return absl::UnavailableError("no peer could be recovered from");
}

void PeerRecovery::Cancel() {
  MutexLock lock(&state_->mutex);
  state_->cancelled = true;
  if (state_->running != nullptr) state_->running->Cancel();
  state_->wake.SignalAll();
}

}  // namespace kvatlas
