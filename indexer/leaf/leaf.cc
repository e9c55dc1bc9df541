// Assembles a leaf: the parts (`Leaf::Parts`), what is wired to what, the timer, and the order in
// which they start and stop. No part has logic of the index here; each is explained in its own
// header.
// Helpers first: one function makes the options of each part out of `LeafOptions`, and one fills
// each section of Leaf.Stats and /metrics that the parts do not fill themselves.

#include "indexer/leaf/leaf.h"

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/durations.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/mutex.h"
#include "indexer/checkpoint/checkpoint_http.h"
#include "indexer/checkpoint/checkpointer.h"
#include "indexer/checkpoint/replica_peers.h"
#include "indexer/compat/dynamo/http_api.h"
#include "indexer/compat/mooncake/mooncake_api.h"
#include "indexer/compat/sglang/kv_indexer_service.h"
#include "indexer/coverage/parent_refusals.h"
#include "indexer/engine_directory/engine_metrics.h"
#include "indexer/engine_directory/engine_stats.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/sglang_block_hash.h"
#include "indexer/leaf/http_sessions.h"
#include "indexer/leaf/leaf_service.h"
#include "indexer/leaf/sessions_service.h"
#include "indexer/net/connection_watch.h"
#include "indexer/net/grpc_server.h"
#include "indexer/net/http_server.h"
#include "indexer/net/redis_client.h"
#include "indexer/process/admin_http.h"
#include "indexer/process/flags.h"
#include "indexer/process/memory_watch.h"
#include "indexer/security/security.h"
#include "indexer/stream/validate.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/telemetry/text_escape.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/grpc_link.h"
#include "indexer/transport/holders_wire.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "indexer/transport/redis/redis_reader.h"
#include "indexer/transport/wire.h"
#include "indexer/ui/explain.h"
#include "indexer/ui/holder_page.h"
#include "indexer/ui/sessions.h"
#include "indexer/ui/ui_http.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {
namespace {

// The timer wakes every `kReportEvery` to send coverage to the parents; every `kReportsPerTick`th
// time, so each 200 ms, it also does the slower upkeep (`Parts::RunTimer`).
constexpr Duration kReportEvery = std::chrono::milliseconds(10);
constexpr int kReportsPerTick = 20;
// One message of an engine may take a sixteenth of the memory budget, but 1 MiB is allowed however
// small the budget is: shorter limits would refuse ordinary batches.
constexpr uint64_t kMessageShare = 16;
constexpr uint64_t kMessageBytesLeast = uint64_t{1} << 20;
// SGLang block hashes looked at per tick; bounds the time that `SweepNames` takes from the timer.
constexpr size_t kNamesSweptPerTick = 1 << 14;

// Refuses what no later step would name well: the leaf's own holder name and labels as its parents
// will check them, and the name of the index.
absl::Status Check(const LeafOptions& options) {
  absl::Status names = ValidateHolder({options.cell, 0, options.replica}, options.labels);
  if (!names.ok()) return names;
  // Makes an index of the least address space, only to learn whether the name exists: domains
  // reserve their own space later, and whether there is enough is not known here.
  IndexOptions index = options.registry.index;
  index.address_bytes_max = uint64_t{16} << 20;
  return MakeIndex(options.registry.index_name, index).status();
}

// The reporter says hello with a new epoch and instance id at each start, so that parents replace
// what an earlier process of this cell and replica reported.
CoverageReporterOptions ReporterOptions(const LeafOptions& options) {
  CoverageReporterOptions reporter;
  reporter.cell = {.name = options.cell, .rank = 0, .replica = options.replica};
  reporter.labels = options.labels;
  reporter.parents = options.parents;
  reporter.parents_may_come = options.parents_may_come;
  reporter.make_link = [](const std::string& parent) { return std::make_unique<GrpcLink>(parent); };
  reporter.contract_id = options.contract.Id();
  reporter.schedule = options.schedule;
  reporter.schedule_name = options.schedule->Name();
  reporter.on_refused = [](const ParentRefusal& refusal) { LogRefusal("schedule", refusal); };
  reporter.coverage = options.coverage;
  reporter.sender = options.sender;
  reporter.epoch = WallTimeNs();
  reporter.instance_id = RandomInstanceId();
  return reporter;
}

// Bounds one engine message by the memory budget: decoded, a message takes up to five times its
// bytes.
ZmqIngestOptions IngestOptions(const LeafOptions& options) {
  ZmqIngestOptions ingest = options.engines.ingest;
  if (options.memory_bytes_max == 0) return ingest;
  const uint64_t part = std::max(options.memory_bytes_max / kMessageShare, kMessageBytesLeast);
  ingest.message_bytes_max = std::min<uint64_t>(ingest.message_bytes_max, part);
  return ingest;
}

// The registry of a leaf takes streams of all positions (no schedule), and creates a coverage
// observer in the reporter for each domain. The reporter must outlive the registry: `Parts`
// declares it first.
HolderRegistryOptions RegistryOptions(const LeafOptions& options, const MemoryBudget* memory,
                                      CoverageReporter* reporter) {
  HolderRegistryOptions registry = options.registry;
  registry.index.memory = memory;
  registry.contract_id = options.contract.Id();
  registry.schedule = "";
  registry.index.keep_local_hashes = options.engines.local_hashes;
  registry.observe = [reporter](const Domain& domain, uint32_t block_size) {
    return reporter->AddDomain(domain, block_size);
  };
  registry.forget = [reporter](DomainObserver* coverage) { reporter->RemoveDomain(coverage); };
  return registry;
}

// Memory of the names that engines have for their blocks, over all ranks: the part "names" of the
// memory budget. Called by the memory watch; takes each worker's lock for a moment.
uint64_t NameBytes(const EngineDirectory& directory) {
  uint64_t bytes = 0;
  for (const EngineEntry& entry : directory.Registrations()) {
    const std::shared_ptr<const EngineWorker> worker = directory.WorkerOf(entry.instance);
    if (worker == nullptr) continue;
    for (const EngineRankStats& rank : worker->Stats().ranks) bytes += rank.alias_bytes;
  }
  return bytes;
}

// Null without --kv_indexer_model: then no interface asks by SGLang's block hashes, and none are
// kept.
std::unique_ptr<SglangBlockHashes> MakePageNames(const KvIndexerOptions& options) {
  return options.domain.has_value() ? SglangBlockHashes::Create(options.names) : nullptr;
}

// With peers or a checkpoint engines start hidden: they are in no answer until `OpenEngines`, since
// their names and stream positions may still be restored.
EngineDirectoryOptions DirectoryOptions(const LeafOptions& options, SglangBlockHashes* names,
                                        const MemoryBudget* memory) {
  EngineDirectoryOptions directory;
  directory.contract = options.contract;
  directory.worker = options.engines.worker;
  directory.worker.keep_local_hashes = options.engines.local_hashes;
  directory.worker.repair_timeout = options.registry.receiver.repair_timeout;
  directory.worker.page_names = names;
  directory.worker.memory = memory;
  directory.pages_of = options.kv_indexer.domain.value_or(Domain());
  directory.lease_ttl = options.registry.receiver.lease_ttl;
  directory.adopted_ttl = options.registry.sweep_after;
  directory.start_hidden =
      !options.engines.recovery.peers.empty() || !options.checkpoint.directory.empty();
  return directory;
}

// Null without --checkpoint_dir.
std::unique_ptr<Checkpointer> MakeCheckpointer(const LeafOptions& options, HolderRegistry* registry,
                                               EngineDirectory* directory, Metrics* metrics) {
  if (options.checkpoint.directory.empty()) return nullptr;
  CheckpointOptions checkpoint = options.checkpoint;
  checkpoint.cell = options.cell;
  checkpoint.replica = options.replica;
  checkpoint.contract = options.contract;
  return std::make_unique<Checkpointer>(std::move(checkpoint), registry, directory, metrics);
}

// The HTTP server carries Dynamo's interface beside the administrative paths: many idle clients
// keep connections, and 404 and 405 have no body, as there (`bare_errors`).
AdminHttpOptions HttpOptions(const LeafOptions& options) {
  AdminHttpOptions http;
  http.listen = options.http;
  http.program = "kvatlas-leaf";
  http.connections_max = 4096;
  http.idle_timeout = std::chrono::minutes(5);
  http.io_threads = options.http_api.io_threads;
  http.pool_threads = options.http_api.pool_threads;
  http.bare_errors = true;
  http.trace_id_header = options.http_api.trace_id_header;
  return http;
}

// Called at each scrape. Counters of the reader are copied as they are: it counts since it was
// made.
void SetRedisGauges(const RedisReaderStats& stats, Metrics* metrics) {
  const auto set = [&](const std::string& name, const char* help, uint64_t value) {
    metrics->AddGauge("kvatlas_leaf_redis_" + name, help).Set(static_cast<double>(value));
  };
  set("connected", "Redis is reached.", stats.connected ? 1 : 0);
  set("streams", "Streams known through Redis.", stats.streams);
  const auto total = [&](const std::string& name, const char* help, uint64_t value) {
    metrics->RaiseRenamed("kvatlas_leaf_redis_" + name + "_total", help,
                          static_cast<double>(value));
  };
  total("entries_read", "Entries of logs read.", stats.entries_read);
  total("bytes_read", "Their bytes, those of snapshots included.", stats.bytes_read);
  total("entries_damaged", "Entries skipped.", stats.entries_damaged);
  metrics
      ->AddCounter("kvatlas_leaf_redis_entries_forged_total",
                   "Of them, and of snapshots', those that no key of ours signed.")
      .RaiseTo(static_cast<double>(stats.entries_forged));
  total("replays", "Times that a log was read again.", stats.replays);
  total("snapshots_read", "Snapshots read.", stats.snapshots_read);
  total("losses", "Times that Redis was lost.", stats.losses);
}

void FillRedis(const RedisReaderStats& stats, v1::RedisStats* out) {
  out->set_connected(stats.connected);
  out->set_reason(std::string(stats.status.message()));
  out->set_writes_refused(std::string(stats.writes.message()));
  out->set_streams(stats.streams);
  out->set_streams_following(stats.streams_following);
}

void FillParents(const CoverageReporter& reporter, v1::StatsResponse* response) {
  for (const ParentStats& stats : reporter.Stats()) {
    v1::ParentStats* parent = response->add_parents();
    parent->set_address(stats.parent);
    ToProto(stats.domain, parent->mutable_domain());
    parent->set_connected(stats.connected);
    parent->set_at_rest(stats.at_rest);
    parent->set_waypoints_announced(stats.waypoints_announced);
    parent->set_waypoints_withdrawn(stats.waypoints_withdrawn);
    parent->set_bytes_sent(stats.bytes_sent);
    parent->set_last_batch(stats.last_batch);
    parent->set_acknowledged(stats.acknowledged);
    parent->set_waypoints_held(stats.waypoints_held);
    parent->set_waypoints_covered(stats.waypoints_covered);
    parent->set_waypoints_waiting(stats.waypoints_waiting);
    if (!stats.refusal.ok()) parent->set_refused(stats.refusal.ToString());
    parent->set_state(std::string(ConnectionStateName(ConnectionStateOf(stats.progress))));
    if (stats.progress.has_value()) parent->set_reason(std::string(stats.progress->message()));
  }
}

void FillCheckpoint(const CheckpointOptions& options, const CheckpointStats& stats,
                    v1::CheckpointStats* checkpoint) {
  checkpoint->set_directory(options.directory);
  checkpoint->set_written(stats.written);
  checkpoint->set_failed(stats.failed);
  if (!stats.last_error.ok()) checkpoint->set_last_error(stats.last_error.ToString());
  if (!stats.restore_error.ok())
    checkpoint->set_restore_error(std::string(stats.restore_error.message()));
  checkpoint->set_age_ms(stats.age.has_value() ? int64_t{Milliseconds(*stats.age)} : -1);
  checkpoint->set_bytes(stats.last.counts.bytes);
  checkpoint->set_every_ms(Milliseconds(options.every));
  checkpoint->set_free_bytes(stats.free_bytes.has_value() ? static_cast<int64_t>(*stats.free_bytes)
                                                          : -1);
}

// Coverage of each domain, once per domain: `Stats` has an entry per parent and domain, and the
// numbers of a domain are the same whichever parent they are sent to.
void AppendCoverageMetrics(const CoverageReporter& reporter, std::string* text) {
  struct Family {
    const char* name;
    const char* help;
    uint64_t ParentStats::* of;
  };
  constexpr Family kFamilies[] = {
      {"kvatlas_leaf_waypoints_covered", "Waypoints that workers hold.",
       &ParentStats::waypoints_covered},
      {"kvatlas_leaf_waypoints_announced", "Of these, told to parents.",
       &ParentStats::waypoints_held},
      {"kvatlas_leaf_waypoints_waiting", "Of these, kept back by the budget for coverage.",
       &ParentStats::waypoints_waiting},
  };
  std::map<Domain, ParentStats> by_domain;
  for (ParentStats& stats : reporter.Stats()) by_domain[stats.domain] = std::move(stats);
  for (const Family& family : kFamilies) {
    AppendGaugeHead(family.name, family.help, text);
    for (const auto& [domain, stats] : by_domain)
      AppendGauge(family.name, MetricLabel("domain", ToString(domain)),
                  std::to_string(stats.*family.of), text);
  }
}

}  // namespace

// All parts of a leaf, as members in the order of construction: a part comes after those that it
// uses, and is destroyed before them. Callbacks capture `this`, and parts are stopped by
// `Leaf::Stop` before any is destroyed.
// The constructor only wires: it registers services and routes, but starts no thread and opens no
// port. `Leaf::Start` does that.
// Lock order: `mutex` guards only the flags below and is held across no call into a part but
// `SetHealth`.
struct Leaf::Parts {
  explicit Parts(const LeafOptions& options)
      : says_no_workers(options.says_no_workers),
        waits_for_workers(options.engines.min_initial_workers > 0),
        named(options.engines.named),
        memory(options.memory_bytes_max, options.memory_meter),
        reporter(ReporterOptions(options)),
        registry(RegistryOptions(options, &memory, &reporter)),
        ingest(IngestOptions(options)),
        pages_of(options.kv_indexer.domain.value_or(Domain())),
        page_names(MakePageNames(options.kv_indexer)),
        directory(DirectoryOptions(options, page_names.get(), &memory), &registry, &ingest),
        checkpointer(MakeCheckpointer(options, &registry, &directory, &metrics)),
        peers(options.engines.recovery.peers),
        readiness({.workers_min = options.engines.min_initial_workers,
                   .workers = [this] { return Workers(); },
                   .unsettled = [this] { return Unsettled(); },
                   .ready_after = options.engines.ready_after}),
        service(
            {options.cell, options.replica, options.contract}, &registry,
            [this, checkpoint = options.checkpoint,
             schedule = options.schedule->Name()](v1::StatsResponse* response) {
              response->set_schedule(schedule);
              FillParents(reporter, response);
              FillEngines(directory, response);
              if (checkpointer != nullptr)
                FillCheckpoint(checkpoint, checkpointer->Stats(), response->mutable_checkpoint());
              if (redis != nullptr) FillRedis(redis->Stats(), response->mutable_redis());
            },
            &metrics),
        kv_indexer(
            options.kv_indexer, &registry, page_names.get(), [this] { return serving.load(); },
            &metrics),
        streams(&registry, {.cell = options.cell}),
        grpc({.listen = options.grpc}),
        http(HttpOptions(options), &metrics),
        api({.contract = options.contract,
             .cell = options.cell,
             .test_endpoints = options.http_api.test_endpoints,
             .access_log = options.http_api.access_log},
            {.registry = &registry,
             .directory = &directory,
             .peers = &peers,
             .ready = [this] { return Ready(); },
             .metrics = &metrics}),
        mooncake({.contract = options.contract,
                  .wrap_data = options.http_api.mooncake_data,
                  .cell = options.cell},
                 &registry, &directory) {
    // The parts that the memory watch reports; the budget itself compares the process's resident
    // bytes. The first `Tick` is here, so that the level is known before the first stream comes.
    memory.AddPart("index", [this] { return IndexBytes(registry); });
    memory.AddPart("names", [this] { return NameBytes(directory); });
    memory.AddPart("pending", [this] { return registry.PendingBytes(); });
    memory.AddPart("snapshots", [this] { return SnapshotBytes(registry); });
    memory.AddPart("bodies", [this] { return BodyBytes(); });
    memory_watch.Tick();
    grpc.Register(&service, "kvatlas.v1.Leaf");
    grpc.Register(streams.service(), "kvatlas.v1.Holdings");
    grpc.Register(&sessions, "kvatlas.v1.Sessions");
    grpc.Register(&kv_indexer, "kv_indexer.v1.KVIndexer");
    service.AddHttp(&http);
    AddSessionsHttp(&registry, &http);
    page = std::make_unique<Ui>(Pages(options), &http);
    AddCheckpointHttp(checkpointer.get(), &http);
    api.AddRoutes(http.server());
    // Mooncake's paths collide with Dynamo's (/register, /query), hence listeners of their own;
    // their health routes are those of the main listener.
    for (const Address& listen : options.http_api.mooncake) {
      mooncake_http.push_back(std::make_unique<HttpServer>(HttpServerOptions{.listen = listen}));
      http.health()->AddRoutes(mooncake_http.back().get());
      mooncake.AddRoutes(mooncake_http.back().get());
    }
    AddEngineMetrics(&directory, &metrics);
    metrics.OnText([this](std::string* text) {
      AppendCoverageMetrics(reporter, text);
      AppendParentMetrics(reporter.Stats(), "kvatlas_leaf", text);
    });
  }

  // The number that --min_initial_workers waits for: instances of engines that are listened to, and
  // publishers with a connection.
  uint64_t Workers() const {
    uint64_t workers = directory.instances();
    ForEachPublisher([&](const Domain&, const HolderStats&) { ++workers; });
    return workers;
  }

  // Workers that readiness waits for, at most `ready_after`:
  // * engines of the checkpoint (`EngineDirectory::Unsettled`). Their trust is not looked at: an
  //   engine that cannot replay stays degraded for as long as it is silent, which may be for ever;
  // * publishers of the checkpoint whose lease runs, until exact (masked ones are in no answer, so
  //   they are not counted);
  // * with --min_initial_workers, any other connected publisher that is not exact yet: its first
  //   snapshot may be under way.
  uint64_t Unsettled() {
    uint64_t unsettled = directory.Unsettled();
    for (const auto& [domain, publishers] : restored) {
      const absl::StatusOr<OverlapAnswer> all =
          registry.FindOverlaps(domain, {}, /*all_holders=*/true);
      if (!all.ok()) continue;  // forgotten since
      for (const HolderOverlap& holder : all->holders)
        unsettled += holder.trust != Trust::kExact && publishers.contains(holder.holder->id);
    }
    if (!waits_for_workers) return unsettled;
    ForEachPublisher([&](const Domain& domain, const HolderStats& publisher) {
      const auto known = restored.find(domain);
      if (known != restored.end() && known->second.contains(publisher.holder->id)) return;
      unsettled += publisher.trust != Trust::kExact;
    });
    return unsettled;
  }

  // Visits holders that a stream feeds and whose connection is up. Engines' ranks are fed in this
  // process, have no stream position and are left out.
  template <typename Visit>
  void ForEachPublisher(const Visit& visit) const {
    for (const Domain& domain : registry.Domains()) {
      const absl::StatusOr<DomainStats> stats = registry.StatsOf(domain);
      if (!stats.ok()) continue;  // forgotten since
      for (const HolderStats& holder : stats->holders) {
        const bool streams = registry.PositionOf(domain, holder.holder->id).has_value();
        if (holder.connected && streams) visit(domain, holder);
      }
    }
  }

  // The answer of /ready. Does not wait for the timer: `ServeWhenReady` sets the health of gRPC and
  // HTTP up to a tick later. While stopping, the reason is that of the health.
  Readiness Ready() {
    if (http.health()->health() == Health::kStopping) return http.health()->readiness();
    return readiness.Get();
  }

  // Puts holders of streams back, before gRPC listens: their leases run, and publishers that say
  // hello find their positions. An unreadable checkpoint is no error of the start: `readiness.Lost`
  // makes the leaf wait `ready_after` for workers that it does not know, and parents do not hear an
  // empty cell meanwhile. A directory that cannot be opened or is locked is an error.
  absl::Status RestoreCheckpoint() {
    if (checkpointer == nullptr) return absl::OkStatus();
    readiness.Recovering("restoring a checkpoint");
    if (absl::Status bad = checkpointer->Open(); !bad.ok()) return bad;
    const absl::Status status = checkpointer->Restore().status();
    if (!status.ok()) Log(LogLevel::kWarning, "starts without a checkpoint", {{"reason", status}});
    if (absl::IsDataLoss(status))
      readiness.Lost(absl::StrCat(status.message(),
                                  "; workers have --ready_after to come, and those that were "
                                  "registered over HTTP are to be registered again"));
    for (const Domain& domain : registry.Domains()) {
      const std::vector<HolderId> holders = registry.HoldersOf(domain);
      // Nothing else fed the registry yet, so every holder in it is one of the checkpoint's.
      restored[domain].insert(holders.begin(), holders.end());
    }
    return absl::OkStatus();
  }

  // Registers the checkpoint's engines, with names and stream positions. Not when a peer told
  // everything: a live replica's positions are younger.
  void RestoreEngines() {
    if (checkpointer == nullptr) return;
    const absl::Status status = checkpointer->RestoreEngines(named);
    if (!status.ok())
      Log(LogLevel::kWarning, "starts without the checkpoint's engines", {{"reason", status}});
  }

  // 1. `Register` what --workers names: sockets connect at once, messages wait behind the ingest's
  //    gate.
  // 2. Without peers: `RestoreEngines`, then `OpenEngines`, on this thread.
  // 3. With peers: `PeerRecovery::Run` on the thread `recovering`, since it waits for the network;
  //    if no peer tells everything, `RestoreEngines` on that thread; then `OpenEngines`. A
  //    cancelled recovery opens nothing: the leaf is stopping.
  absl::Status StartEngines(const LeafOptions& options) {
    for (const EngineRegistration& worker : options.engines.workers)
      if (absl::Status bad = directory.Register(worker); !bad.ok())
        return absl::InvalidArgumentError("--workers: " + std::string(bad.message()));
    if (options.engines.recovery.peers.empty()) {
      RestoreEngines();
      OpenEngines();
      return absl::OkStatus();
    }
    PeerRecoveryOptions from = options.engines.recovery;
    from.contract = options.contract;
    recovery = std::make_unique<PeerRecovery>(std::move(from), &directory, &readiness);
    recovering = std::thread([this] {
      const absl::Status status = recovery->Run();
      if (absl::IsCancelled(status)) return;
      if (!status.ok()) {
        Log(LogLevel::kWarning, "starts without a peer", {{"reason", status}});
        RestoreEngines();
      }
      OpenEngines();
    });
    return absl::OkStatus();
  }

  // Engines' messages flow from here on, and readiness counts `ready_after` from here. Checkpoints
  // are written only from here on: an earlier one would lack engines that are still to come back,
  // and hide the older checkpoint that has them.
  void OpenEngines() {
    directory.Open();
    readiness.Recovered();
    if (checkpointer != nullptr) checkpointer->Start();
    ServeWhenReady();
  }

  // The page explains prompts only on a loopback listener, or where --ui_explain asks for it: an
  // explanation costs a walk through whole holders, and shows what they hold.
  UiPages Pages(const LeafOptions& options) {
    const bool explains = options.http_api.ui_explain || IsLoopbackHost(options.http.host);
    return HolderPages(
        {.program = "kvatlas-leaf",
         .leaf = true,
         .name = options.cell,
         .stats = [this] { return service.AllStats(); },
         .queries = [this] { return service.queries(); },
         .explain =
             explains ? HttpHandler([this](const HttpRequest& r) { return Explain(r); }) : nullptr,
         .sessions = [this](const HttpRequest& r) { return Sessions(r); }},
        &registry);
  }

  // GET of the page.
  HttpResponse Sessions(const HttpRequest& request) {
    SessionsAnswer answer;
    v1::FindSessionsResponse found;
    if (absl::Status bad = sessions.FindFor(*request.identity, SessionsQuestion(request), &found);
        !bad.ok())
      return HttpError(bad);
    answer.cells.emplace_back(service.cell(), std::move(found));
    return {.body = SessionsJson(answer)};
  }

  // POST of the page: a leaf has no tokenizer, so text is refused and token ids are taken.
  HttpResponse Explain(const HttpRequest& request) {
    const absl::StatusOr<ExplainQuestion> question = ReadExplain(request.body);
    if (!question.ok()) return HttpError(question.status());
    if (question->tokens.empty())
      return HttpError(400, "a leaf makes no tokens of text: give token ids, or ask a frontend");
    v1::ExplainResponse found;
    if (absl::Status bad = service.ExplainTo(*request.identity, ToRequest(*question), &found);
        !bad.ok())
      return HttpError(bad);
    ExplainAnswer answer;
    answer.cells.emplace_back(service.cell(), std::move(found));
    return {.body = ExplainJson(*question, answer)};
  }

  uint64_t BodyBytes() {
    uint64_t bytes = http.server()->bodies_bytes();
    for (const auto& server : mooncake_http) bytes += server->bodies_bytes();
    return bytes;
  }

  // Sets gRPC's and HTTP's health to serving, once. Called by the timer and by `OpenEngines`. Under
  // `mutex`, so that it cannot overwrite the health of a leaf that `Stop` has begun to stop.
  void ServeWhenReady() {
    if (serving.load() || !readiness.Get().ready) return;
    MutexLock lock(&mutex);
    if (stopped || serving.exchange(true)) return;
    grpc.SetHealth(Health::kServing);
    http.SetHealth(Health::kServing);
  }

  // Begins to read the cell's logs in Redis, each from behind the position that the checkpoint
  // restored for its holder. Under a policy, a Redis without TLS beyond loopback is refused.
  absl::Status StartRedis(const LeafOptions& options) {
    if (!options.redis.has_value()) return absl::OkStatus();
    if (absl::Status bad = RedisClient::MayGoInClear(options.redis->redis); !bad.ok()) return bad;
    RedisLogOptions log = *options.redis;
    log.cell = options.cell;
    log.lease_ttl = options.registry.receiver.lease_ttl;
    const std::string name = options.replica.empty() ? options.cell : options.replica;
    redis = std::make_unique<RedisReader>(log, name, &registry);
    metrics.OnScrape([this] { SetRedisGauges(redis->Stats(), &metrics); });
    return absl::OkStatus();
  }

  // Afterwards the thread `recovering` is gone: it has opened the engines, or never will.
  void StopRecovery() {
    if (recovery != nullptr) recovery->Cancel();
    if (recovering.joinable()) recovering.join();
  }

  // Logs that no worker streams to this leaf and what to do about it: when the leaf is ready, and
  // once a minute while that lasts. The first time is no warning: workers may just be starting.
  void WatchWorkers() {
    const Time now = Clock::Real().Now();
    const bool none = directory.instances() == 0 && registry.Stats().streams_open == 0;
    if (!no_workers.Due(none && serving.load() && says_no_workers, now)) return;
    const std::string address = grpc.address().ToString();
    Log(std::exchange(no_workers_said, true) ? LogLevel::kWarning : LogLevel::kInfo,
        "no worker yet: this leaf answers that nothing is known",
        {{"engines",
          "--workers NAME=tcp://HOST:PORT, or POST /register on " + http.address().ToString()},
         {"publishers", "are to stream to " + address + ": leaves=" + address}});
  }

  // The thread `timer`, until `stopping`. Every 10 ms coverage goes to the parents; every 200 ms
  // leases, repairs, names and readiness are looked at. Parents hear nothing before
  // `readiness.MayReport`: of a cell's replicas the one heard last speaks for it, and a leaf that
  // still recovers would report an empty cell. Once reporting has begun it never stops.
  // No part is called with `mutex` held.
  void RunTimer() {
    bool reports = false;  // to its parents
    MutexLock lock(&mutex);
    for (int i = 0; !stopping; i = (i + 1) % kReportsPerTick) {
      mutex.Unlock();
      if (i == 0) {
        memory_watch.Tick();
        registry.Tick();
        directory.Tick();
        SweepNames();
        ServeWhenReady();
        WatchWorkers();
      }
      if (reports || (i == 0 && readiness.MayReport())) {
        reports = true;
        reporter.Tick();
      }
      mutex.Lock();
      if (!stopping) wake.WaitFor(&mutex, kReportEvery);
    }
  }

  // Drops some of the SGLang block hashes whose block no holder of the domain has any more.
  void SweepNames() {
    if (page_names != nullptr)
      page_names->Sweep(kNamesSweptPerTick,
                        [this](SequenceHash block) { return registry.MayHold(pages_of, block); });
  }

  void StopTimer() {
    {
      MutexLock lock(&mutex);
      stopping = true;
      wake.SignalAll();
    }
    if (timer.joinable()) timer.join();
  }

  Metrics metrics;
  const bool says_no_workers;
  const bool waits_for_workers;
  const NamedByFlags named;
  MemoryBudget memory;
  MemoryWatch memory_watch{&memory};  // of the timer
  EveryMinute no_workers;             // likewise
  bool no_workers_said = false;       // likewise
  CoverageReporter reporter;
  HolderRegistry registry;
  ZmqIngest ingest;
  const Domain pages_of;  // the domain of `page_names`
  const std::unique_ptr<SglangBlockHashes> page_names;
  EngineDirectory directory;
  std::unique_ptr<Checkpointer> checkpointer;
  Peers peers;
  std::map<Domain, std::set<HolderId>> restored;  // publishers; immutable after RestoreCheckpoint
  ReadinessGate readiness;
  LeafService service;
  SessionsService sessions{&registry};
  KvIndexerService kv_indexer;
  GrpcAcceptor streams;
  std::unique_ptr<RedisReader> redis;
  GrpcServer grpc;
  AdminHttp http;
  std::unique_ptr<Ui> page;
  HttpApi api;  // the server is stopped before it goes
  MooncakeApi mooncake;
  std::vector<std::unique_ptr<HttpServer>> mooncake_http;

  Mutex mutex;
  CondVar wake;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  std::atomic<bool> serving{false};
  // `recovery` and the threads are set in `Leaf::Start` before another thread may use them, and
  // joined in `Leaf::Stop`.
  std::unique_ptr<PeerRecovery> recovery;
  std::thread recovering;
  std::thread timer;
};

Leaf::Leaf(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Leaf::~Leaf() { Stop(Duration::zero()); }

// Every error names its flag (`OfFlag`), and the destructor of `leaf` stops what had started.
// 1. `Check`, then `Parts`: everything is made and wired, nothing runs.
// 2. HTTP starts first: probes can be answered (alive, not ready) during a long restore.
// 3. `RestoreCheckpoint`, before gRPC: a publisher that says hello must find its position, or it
//    would send a snapshot.
// 4. gRPC starts; its port, which may have been 0, becomes the address that the reporter tells
//    parents.
// 5. `StartEngines`, `StartRedis`: the other sources of streams.
// 6. The timer starts last: it ticks all of the above.
absl::StatusOr<std::unique_ptr<Leaf>> Leaf::Start(LeafOptions options) {
  if (absl::Status bad = Check(options); !bad.ok()) return bad;
  auto leaf = std::unique_ptr<Leaf>(new Leaf(std::make_unique<Parts>(options)));
  Parts& parts = *leaf->parts_;
  if (options.kv_indexer.domain.has_value() && parts.page_names == nullptr)
    return absl::ResourceExhaustedError("no address space for the KV indexer's names");
  if (!parts.ingest.status().ok()) return OfFlag("workers", parts.ingest.status());
  if (absl::Status status = parts.api.Open(); !status.ok()) return OfFlag("access_log", status);
  if (absl::Status status = parts.http.Start(); !status.ok()) return OfFlag("http", status);
  for (auto& server : parts.mooncake_http)
    if (absl::Status status = server->Start(); !status.ok()) return OfFlag("mooncake_http", status);
  if (absl::Status status = parts.RestoreCheckpoint(); !status.ok())
    return OfFlag("checkpoint_dir", status);
  if (absl::Status status = parts.grpc.Start(); !status.ok()) return OfFlag("grpc", status);
  parts.reporter.SetAddress(options.advertise.empty() ? parts.grpc.address().ToString()
                                                      : options.advertise);
  if (absl::Status status = parts.StartEngines(options); !status.ok()) return status;
  if (absl::Status status = parts.StartRedis(options); !status.ok()) return OfFlag("redis", status);
  parts.timer = std::thread([&parts] { parts.RunTimer(); });
  return leaf;
}

Address Leaf::grpc_address() const { return parts_->grpc.address(); }
Address Leaf::http_address() const { return parts_->http.address(); }
std::vector<Address> Leaf::mooncake_addresses() const {
  std::vector<Address> addresses;
  for (const auto& server : parts_->mooncake_http) addresses.push_back(server->address());
  return addresses;
}
const HolderRegistry& Leaf::registry() const { return parts_->registry; }
HolderRegistry& Leaf::registry() { return parts_->registry; }
void Leaf::CountQuery() { parts_->service.CountQuery(); }
EngineDirectory& Leaf::engines() { return parts_->directory; }
Readiness Leaf::readiness() { return parts_->Ready(); }
absl::StatusOr<CheckpointReport> Leaf::Checkpoint() {
  if (parts_->checkpointer == nullptr) return absl::NotFoundError("no directory for checkpoints");
  return parts_->checkpointer->WriteNow();
}
std::vector<ParentStats> Leaf::parents() const { return parts_->reporter.Stats(); }
absl::Status Leaf::SetParents(ShardMap parents) {
  return parts_->reporter.SetParents(std::move(parents));
}

void Leaf::SetNotReady() {
  parts_->http.SetHealth(Health::kStopping);
  parts_->grpc.SetHealth(Health::kStopping);
}
bool Leaf::live() const { return parts_->http.health()->deaf().empty(); }

// Idempotent by `stopped`; with a grace of 0 (destructor) no checkpoint is written and no call gets
// time.
// 1. `SetNotReady`: probes fail, so that no new traffic is sent here.
// 2. New streams and hellos are refused, workers' streams and the reading of Redis end: publishers'
//    holdings stand still.
// 3. `StopRecovery`, before the checkpointer: it decides whether engines were opened, and with that
//    whether a last checkpoint may be written.
// 4. The checkpointer ends, with a last checkpoint, and only then the ingest: the checkpoint takes
//    each engine's stream position from it.
// 5. The timer ends, so that the reporter is ticked no more; parents are told goodbye.
// 6. Running questions get the other half of the grace; HTTP ends last, so that /healthz answers
//    until then.
void Leaf::Stop(Duration grace) {
  Parts& parts = *parts_;
  {
    MutexLock lock(&parts.mutex);
    if (parts.stopped) return;
    parts.stopped = true;
  }
  SetNotReady();
  parts.registry.StopAccepting();
  parts.streams.Stop();
  if (parts.redis != nullptr) parts.redis->Stop();
  parts.StopRecovery();
  if (parts.checkpointer != nullptr)
    parts.checkpointer->Stop(/*write_last=*/grace > Duration::zero());
  parts.ingest.Stop();
  parts.StopTimer();
  parts.reporter.Stop(grace / 2);
  parts.service.Stop();
  parts.grpc.Stop(grace / 2);
  for (auto& server : parts.mooncake_http) server->Stop();
  parts.http.Stop();
}

}  // namespace kvatlas
