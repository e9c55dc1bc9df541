#include "indexer/checkpoint/peer_recovery.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/checkpoint/engine_restore.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr size_t kWorkersBytesMax = 16 << 20;
constexpr uint64_t kWorkerKeysMax = 1 << 16;
constexpr Duration kLookEvery = std::chrono::milliseconds(10);
// A peer that has others to tell is asked again.
constexpr uint32_t kBusyTries = 30;
constexpr Duration kBusyWait = std::chrono::seconds(2);

// Of a peer with more than it may have.
absl::Status TooManyWorkers(uint32_t workers_max) {
  return absl::ResourceExhaustedError("it tells of more than " + std::to_string(workers_max) +
                                      " workers; --peer_workers_max allows more");
}

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
  // All that it was told, once it is known that they are not too many.
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

// One worker of a /workers answer; nothing: of another form.
std::optional<EngineEntry> WorkerEntry(const Json& worker) {
  if (!worker.is_object()) return std::nullopt;
  const auto field = [&](const char* name) { return worker.value(name, Json()); };
  EngineEntry entry;
  entry.instance = TextOf(field("instance_id"));
  entry.domain = DomainOf(TextOf(field("model_name")), TextOf(field("routing_group")));
  const Json block_size = field("block_size");
  const Json endpoints = field("endpoints");
  if (entry.instance.empty() || !block_size.is_number_unsigned() || !endpoints.is_object())
    return std::nullopt;
  entry.block_size = block_size.get<uint32_t>();
  entry.source = "zmq";
  for (const auto& [rank, endpoint] : endpoints.items()) {
    EngineListener listener;
    listener.rank = static_cast<uint32_t>(std::strtoul(rank.c_str(), nullptr, 10));
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
        own(directory->Registrations()) {}

  // False: cancelled.
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

  // A fetch that `Cancel` ends too.
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

  // Runs `take` on the body of what `peer` answers; NOT_FOUND: it has no such path.
  // RESOURCE_EXHAUSTED: not now.
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

  // Everything from one peer, or a reason.
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

  // Worker by worker: a document of the whole text may take 30 times its size.
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
    // It is ready, since it told which engines it listens to, and gives two of these at a time.
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

  static absl::Status Finish(const std::string& peer, const EngineRestorer& restored,
                             const absl::Status& read) {
    if (!read.ok()) return read;
    restored.Finish();
    Log(LogLevel::kInfo, "recovered from a peer",
        {{"peer", peer}, {"names", restored.restored()}, {"refused", restored.refused()}});
    return absl::OkStatus();
  }

  // As it was before the peer that broke off.
  void StartOver() {
    for (const EngineEntry& entry : directory->Registrations())
      (void)directory->Unregister(entry.instance, entry.domain.model, std::nullopt, std::nullopt);
    for (const EngineEntry& entry : own) RegisterEngines(directory, entry);
  }

  const PeerRecoveryOptions options;
  EngineDirectory* const directory;
  ReadinessGate* const readiness;
  const std::vector<EngineEntry> own;
  Time peer_until{0};  // the end of the one that is asked; of the thread in `Run`

  Mutex mutex;
  CondVar wake;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  HttpFetch* running ABSL_GUARDED_BY(mutex) = nullptr;
};

PeerRecovery::PeerRecovery(PeerRecoveryOptions options, EngineDirectory* directory,
                           ReadinessGate* readiness)
    : state_(std::make_unique<State>(std::move(options), directory, readiness)) {}
PeerRecovery::~PeerRecovery() = default;

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
