// kvatlas-leaf: the index of one cell, as a service.
// Declare… names the flags and where each is stored, Finish… turns texts into values after parsing
// (all errors name their flag), and `Main` starts the leaf and what looks for its peers: parents,
// pods of engines, engines that dial in, and the announcement of this leaf.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/checkpoint/checkpointer.h"
#include "indexer/compat/dynamo/http_api.h"
#include "indexer/compat/sglang/kv_indexer.h"
#include "indexer/discovery/announce_flag.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/found_nodes.h"
#include "indexer/discovery/service_record.h"
#include "indexer/engine_directory/dialed_workers.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/engine_directory/found_workers.h"
#include "indexer/index/index.h"
#include "indexer/kv_events/engine_flags.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/worker_flags.h"
#include "indexer/leaf/leaf.h"
#include "indexer/net/http_fetch.h"
#include "indexer/net/redis_url.h"
#include "indexer/process/flags.h"
#include "indexer/process/memory_watch.h"
#include "indexer/process/path_flag.h"
#include "indexer/process/service_main.h"
#include "indexer/registry/peer_flags.h"
#include "indexer/registry/registry_summary.h"
#include "indexer/stream/validate.h"
#include "indexer/transport/redis/redis_log_options.h"

namespace kvatlas {
namespace {

// How often `Serve` looks whether the list of parents changed, and renews what is announced.
constexpr Duration kLookAtFilesEvery = std::chrono::milliseconds(500);

// The parsed command line. Lives as long as `Main`: the leaf's options point into it (`schedule`,
// `topics`, `dialed`).
struct Flags {
  LeafOptions leaf;
  std::string parents;
  std::string schedule_name = WaypointSchedule::Standard().Name();
  WaypointSchedule schedule = WaypointSchedule::Standard();
  std::vector<std::string> labels;  // NAME=VALUE
  // --workers and the flags that go with it; `Finish` splits its entries.
  EngineFlags engines;
  // Entries of --workers that name no engine but where engines are found: pods of Kubernetes, and
  // sockets that engines connect to.
  std::vector<PodWorkers> pods;
  std::vector<DialedEntry> dialed;
  DialedTopics topics;  // their topics
  std::string redis;
  uint32_t redis_shards = 1;
  std::string kv_indexer_model;
  std::string answer = "reusable";
  std::string memory_budget;
  uint32_t index_shards = 1;
  AnnounceFlag announce;
};

// Flags are declared by group; `flags.Group` may come back to an earlier group.
void DeclareEngines(FlagSet& flags, Flags* f) {
  LeafEngineOptions& engines = f->leaf.engines;
  flags.Group("Engines");
  f->engines.found_prefixes = {"k8s:", "kv@="};
  f->engines.Declare(
      flags,
      "engines to listen to, k8s:NAMESPACE/LABEL=VALUE[;model=M][;http=PORT] for the "
      "pods of these labels, or");
  flags.Group("Recovery");
  flags.Add("peers", &engines.recovery.peers,
            "URLs of replicas, or of Dynamo's indexers, to recover from at the start");
  flags.Add("peer_timeout", &engines.recovery.peer_timeout,
            "what a peer has for telling all that it knows, before the next one is asked",
            std::chrono::seconds(1));
  flags.Add("peer_workers_max", &engines.recovery.workers_max,
            "worker ranks that are taken over from a peer; one with more is not recovered from", 1);
  flags.Add("min_initial_workers", &engines.min_initial_workers,
            "workers to wait for before this leaf says that it is ready");
  flags.Add("ready_after", &engines.ready_after,
            "how long workers that came back hold readiness back until they are caught up with");
  flags.Group("Engines");
  flags.Add("local_hashes", &engines.local_hashes,
            "keep what /dump needs, 8 bytes more for each block");
  flags.Add("ingest_threads", &engines.ingest.io_threads, "threads of ZeroMQ", 1, 64);
  flags.Add("decode_threads", &engines.ingest.decode_threads,
            "threads that decode and apply engines' events; 0: as many as cores, at most 8", 0,
            256);
  flags.Add("replay_timeout", &engines.ingest.tracker.replay_timeout,
            "silence after which an engine's replay is given up");
  flags.Add("orphan_ttl", &engines.worker.orphan_ttl,
            "how long an engine's block waits for its parent");
}

void DeclareHttp(FlagSet& flags, LeafHttpOptions* http_api) {
  LeafHttpOptions& http = *http_api;
  http.test_endpoints = TestEndpointsFromEnvironment();
  flags.Group("HTTP");
  flags.Add("http_threads", &http.io_threads, "threads that answer queries over HTTP", 1, 256);
  flags.Add("http_pool_threads", &http.pool_threads, "threads for longer HTTP requests", 1, 256);
  flags.Add("test_endpoints", &http.test_endpoints,
            "pausing and resuming of listeners over HTTP (or KVATLAS_TEST_ENDPOINTS=1)");
  flags.Add("ui_explain", &http.ui_explain,
            "the page shows where a prompt is cached also where --http is beyond loopback");
  flags.Add("access_log", &http.access_log, "file for a line of JSON per request; empty: none")
      .Check(CheckFileToWrite);
  flags.Add("trace_id_header", &http.trace_id_header, "header whose value the access log names");
  flags
      .Add("mooncake_http", &http.mooncake,
           "addresses where Mooncake's interface is served too; its port is 13333")
      .Listens();
  flags.Add("mooncake_data", &http.mooncake_data, "its answers are wrapped in {\"data\":…}");
}

void DeclareKvIndexer(FlagSet& flags, Flags* f) {
  KvIndexerOptions& kv_indexer = f->leaf.kv_indexer;
  flags.Group("Index");
  flags.AddChoice("answer", &f->answer,
                  "what an answer promises of hybrid models: blocks that can be reused, or those "
                  "that full attention holds",
                  {"reusable", "held"});
  flags.Group("SGLang");
  flags
      .Add("kv_indexer_model", &f->kv_indexer_model,
           "MODEL[=TENANT] that kv_indexer.v1.KVIndexer answers for, SGLang's interface on the "
           "gRPC port; empty: none, and no memory for names of pages")
      .Check([](const std::string& model) { return ParseKvIndexerModel(model).status(); });
  flags.Add("kv_indexer_names", &kv_indexer.names.names_max,
            "pages of that model whose names are kept", 1u, uint64_t{1} << 31);
  flags.Add("kv_indexer_disk", &kv_indexer.counts_disk,
            "its answers count blocks on disk, not those on device and host alone");
  flags.Add("kv_indexer_in_flight", &kv_indexer.in_flight_max,
            "prefix queries at once, beyond which it refuses", 1);
}

void DeclareRedis(FlagSet& flags, Flags* f) {
  flags.Group("Redis");
  flags
      .Add("redis", &f->redis,
           "URL of the Redis with the logs of this cell's workers, redis://HOST:PORT or @FILE; "
           "empty: none")
      .Check([](const std::string& url) { return ParseRedisUrl(url).status(); });
  flags.Add("redis_shards", &f->redis_shards,
            "shards of this cell's logs, the same for its workers", 1u, kRedisShardsMax);
}

void DeclareCheckpoints(FlagSet& flags, CheckpointOptions* checkpoint) {
  flags.Group("Recovery");
  flags
      .Add("checkpoint_dir", &checkpoint->directory,
           "directory where this leaf alone keeps what it holds; empty: nowhere")
      .Check(CheckDirectoryToWrite);
  flags.Add("checkpoint_every", &checkpoint->every, "time between checkpoints",
            std::chrono::milliseconds(100));
  flags.Add("checkpoint_keep", &checkpoint->keep, "checkpoints to keep", 1, 1000);
}

void Declare(FlagSet& flags, Flags* f) {
  LeafOptions& leaf = f->leaf;
  HolderRegistryOptions& registry = leaf.registry;
  std::vector<std::string> indexes;
  for (std::string_view name : WholeIndexNames()) indexes.emplace_back(name);
  registry.index_name = indexes.front();
  flags.Group("Addresses");
  flags.Add("grpc", &leaf.grpc, "address for gRPC").Listens();
  flags.Add("http", &leaf.http, "address for HTTP").Listens();
  flags.AddAddress("advertise", &leaf.advertise,
                   "gRPC address told to others; empty: that of --grpc");
  AddAnnounceFlags(flags, &f->announce);
  flags.Group("Cell");
  flags.AddName("cell", &leaf.cell, "name of this cell");
  flags.AddName("replica", &leaf.replica, "tells replicas of one cell apart", true);
  flags.Add("labels", &f->labels, "NAME=VALUE,… told to parents, such as zone=a");
  flags
      .Add("parents", &f->parents,
           "hierarchy nodes, told which waypoints this cell covers: HOST:PORT,… that each are told "
           "all of it, or NAME=HOST:PORT|HOST:PORT,… that share it, or @FILE with either, or "
           "dns:HOST:PORT, or k8s:SERVICE[.NAMESPACE][:PORT], or redis://HOST:PORT where they "
           "announce themselves")
      .List();
  flags
      .Add("schedule", &f->schedule_name,
           "waypoints that parents are told, as in their --schedule and the frontends'")
      .Check([](const std::string& name) { return WaypointSchedule::Parse(name).status(); });
  flags.Group("Index");
  flags.AddChoice("index", &registry.index_name, "structure of the index", indexes);
  flags.Add("index_shards", &f->index_shards,
            "indexes that share the workers of a domain, each with a writer of its own; more than "
            "1 where "
            "several cores apply events at once",
            1, kIndexShardsMax);
  flags.Add("contract_seed", &leaf.contract.seed, "seed S of the hash contract");
  flags.Group("Leases");
  flags.Add("lease_ttl", &registry.receiver.lease_ttl,
            "silence after which a worker is in no answer", std::chrono::milliseconds(100));
  flags.Add("sweep_after", &registry.sweep_after, "further silence after which it is forgotten");
  flags.Add("repair_timeout", &registry.receiver.repair_timeout,
            "how long unconfirmed blocks are kept after a gap");
  flags.Group("Limits");
  AddMemoryFlag(flags, &f->memory_budget);
  flags.Add("max_snapshot_blocks", &registry.receiver.snapshot_blocks_max,
            "blocks that one worker's snapshot may name; one with more is dropped", 1);
  flags.Add("max_blocks", &registry.index.blocks_max, "distinct blocks per domain; 0: no limit");
  flags.Add("max_bytes", &registry.index.bytes_max,
            "memory of a domain's index, in bytes (atlas); 0: no limit");
  flags.Add("pending_bytes", &registry.pending.bytes_max,
            "memory of a domain for prompts that frontends said they sent; 0: none is remembered");
  flags.Add("max_workers", &registry.holders_max, "worker ranks per domain", 1);
  flags.Add("max_domains", &registry.domains_max, "models, of each tenant", 1);
  flags.Add("forget_domain_after", &registry.forget_domain_after,
            "a model without workers is forgotten after so long, or when there are --max_domains");
  AddPeerFlags(flags, &registry.peer,
               {.domains = "max_domains_per_peer",
                .holders = "max_workers_per_peer",
                .label_bytes = "max_label_bytes_per_peer"});
  flags.Group("Coverage");
  flags.Add("withdraw_delay", &leaf.coverage.withdraw_delay,
            "how long a lost waypoint is still reported as covered");
  flags.Add("max_waypoints", &leaf.coverage.waypoints_max,
            "waypoints reported per domain; 0: no limit");
  flags.Add("max_waypoint_bytes", &leaf.coverage.bytes_max,
            "memory that they may take at a parent, in bytes; 0: no limit");
  flags.Add("waypoint_updates_per_s", &leaf.coverage.updates_per_s,
            "waypoints announced and withdrawn in a second, per domain; 0: no limit");
  flags.Add("waypoints_cold_after", &leaf.coverage.cold_after,
            "unwritten for so long, they are the first to go when there are too many");
}

// The leaf's Redis options from --redis and --redis_shards; none without --redis.
absl::Status FinishRedis(Flags* flags) {
  if (flags->redis.empty()) return absl::OkStatus();
  absl::StatusOr<RedisOptions> redis = ParseRedisUrl(flags->redis);
  if (!redis.ok()) {
    return OfFlag("redis", redis.status());
  }
  RedisLogOptions log;
  log.redis = *std::move(redis);
  log.shards = flags->redis_shards;
  flags->leaf.redis = std::move(log);
  return absl::OkStatus();
}

absl::Status FinishKvIndexer(Flags* flags) {
  flags->leaf.registry.answer_held = flags->answer == "held";
  if (flags->kv_indexer_model.empty()) return absl::OkStatus();
  absl::StatusOr<Domain> domain = ParseKvIndexerModel(flags->kv_indexer_model);
  if (!domain.ok()) {
    return OfFlag("kv_indexer_model", domain.status());
  }
  flags->leaf.kv_indexer.domain = *std::move(domain);
  return absl::OkStatus();
}

// `LeafOptions::schedule` points to the schedule in `flags`, which outlives the leaf.
absl::Status FinishSchedule(Flags* flags) {
  absl::StatusOr<WaypointSchedule> schedule = WaypointSchedule::Parse(flags->schedule_name);
  if (!schedule.ok()) {
    return OfFlag("schedule", schedule.status());
  }
  flags->schedule = *std::move(schedule);
  flags->leaf.schedule = &flags->schedule;
  return absl::OkStatus();
}

// Runs once, before anything starts. Order matters in one place: the dialed entries are parsed
// before `named` is made of them, and their shared sockets are added to the ingest's options before
// the leaf copies those.
absl::Status Finish(Flags* flags) {
  const absl::StatusOr<uint64_t> memory = ReadMemoryFlag(flags->memory_budget);
  if (!memory.ok()) return memory.status();
  flags->leaf.memory_bytes_max = *memory;
  flags->leaf.memory_meter = MemoryMeter(*memory);
  flags->leaf.registry.index_name =
      WithShards(flags->leaf.registry.index_name, flags->index_shards);
  if (absl::Status bad = FinishRedis(flags); !bad.ok()) return bad;
  if (absl::Status bad = FinishSchedule(flags); !bad.ok()) return bad;
  if (absl::Status bad = FinishKvIndexer(flags); !bad.ok()) return bad;
  auto workers = flags->engines.Workers();
  if (!workers.ok()) return workers.status();
  flags->leaf.engines.workers = *std::move(workers);
  // Entries of --workers that are places to look: sockets for engines that dial in, or pods.
  for (const std::string& entry : flags->engines.Found()) {
    if (DialedEntry::IsEntry(entry)) {
      auto dialed = DialedEntry::Parse(entry, flags->engines.of_all);
      if (!dialed.ok()) return OfFlag("workers", dialed.status());
      for (const std::string& endpoint : dialed->endpoints)
        flags->leaf.engines.ingest.shared.push_back(flags->topics.Socket(endpoint));
      flags->dialed.push_back(*std::move(dialed));
      continue;
    }
    auto pods = PodWorkers::Parse(entry, flags->engines.of_all);
    if (!pods.ok()) return OfFlag("workers", pods.status());
    flags->pods.push_back(*std::move(pods));
  }
  for (const std::string& peer : flags->leaf.engines.recovery.peers)
    if (absl::Status bad = HttpUrl::Parse(peer).status(); !bad.ok()) return OfFlag("peers", bad);
  // Engines that dialed in are registered by their topics while the leaf runs, so flags do not list
  // them. This tells a checkpoint which of its engines the flags still stand for.
  if (!flags->dialed.empty()) {
    flags->leaf.engines.named = [flags](const EngineEntry&, const EngineListener& listener) {
      return std::any_of(flags->dialed.begin(), flags->dialed.end(),
                         [&](const DialedEntry& entry) { return entry.Names(listener); });
    };
  }
  if (absl::Status bad = flags->engines.ReadInto(&flags->leaf.engines.ingest); !bad.ok())
    return bad;
  auto read = ReadLabels(flags->labels);
  if (!read.ok()) return read.status();
  flags->leaf.labels = *std::move(read);
  absl::Status labels = ValidateHolder({flags->leaf.cell, 0, ""}, flags->leaf.labels);
  return labels.ok() ? labels : OfFlag("labels", labels);
}

// This leaf's record for others in Redis; models and load are added in `Serve`.
ServiceRecord RecordOf(const LeafOptions& options, const Leaf& leaf) {
  ServiceRecord record;
  record.kind = ServiceKind::kLeaf;
  record.name = options.cell;
  record.replica = options.replica;
  record.grpc = options.advertise.empty() ? leaf.grpc_address().ToString() : options.advertise;
  record.http = leaf.http_address().ToString();
  record.labels = options.labels;
  return record;
}

// The main thread, until SIGTERM or SIGINT: gives the leaf other parents when the directory finds
// them, and tells the announcer which models are held here and how busy the workers are.
void Serve(ServiceMain& service, Leaf& leaf, FoundNodes& parents, Announcer* announcer) {
  while (!service.WaitForSignal(kLookAtFilesEvery).has_value()) {
    if (std::optional<ShardMap> changed = parents.Changed(); changed.has_value())
      (void)leaf.SetParents(*std::move(changed));
    if (announcer == nullptr) continue;
    RegistrySummary now = Summarize(leaf.registry());
    announcer->SetServes(std::move(now.models));
    announcer->SetLoad(now.load);
  }
  if (announcer != nullptr) announcer->Stop();
}

// On SIGHUP, --workers as the file says now. Two steps: everything is parsed first, and only when
// all reloaded flags are right the commit runs. Engines that are gone from the list, or listed
// otherwise, are unregistered, and new ones registered.
absl::StatusOr<FlagSet::Commit> PrepareWorkers(const Flags& flags, EngineDirectory* directory,
                                               std::vector<EngineRegistration>* workers) {
  auto parsed = flags.engines.Workers();
  if (!parsed.ok()) return parsed.status();
  return FlagSet::Commit([directory, workers, after = *std::move(parsed)] {
    ChangeWorkers(ChangesOf(*workers, after), directory);
    *workers = after;
  });
}

void AddExamples(FlagSet& flags) {
  flags.Example("kvatlas-leaf --cell=a --parents=127.0.0.1:7420",
                "a cell whose engines have publishers, below a hierarchy node");
  flags.Example("kvatlas-leaf --workers='0=tcp://127.0.0.1:5557' --model_name=m --block_size=16",
                "listens to the KV events of a vLLM engine");
  flags.Example("kvatlas-leaf --workers='k8s:llm/app=vllm;model=m;block_size=auto'",
                "listens to the pods of a Deployment of vLLM");
  flags.Example("kvatlas-leaf --config=leaf.toml --check",
                "what a file says, before it counts; SIGHUP reads it again");
}

// 1. Flags are declared and read; `Checked` ends the process here with --check or on an error.
// 2. Parents are looked for (at most `DirectoryOptions::first_answer`), then `Leaf::Start`.
// 3. Finders of engines and the announcer start once the leaf has its ports.
// 4. The ready line is printed, then signals are handled until `Serve` returns.
// 5. Finders end before the leaf stops, since they register engines in it. On the signal itself the
//    leaf is already not ready (`OnStopSignal`), so that probes see it at once.
int Main(int argc, char** argv) {
  ServiceMain service("kvatlas-leaf", "Which workers of this cell hold how much of a prompt.");
  Flags flags;
  Declare(service.flags(), &flags);
  DeclareEngines(service.flags(), &flags);
  DeclareHttp(service.flags(), &flags.leaf.http_api);
  DeclareKvIndexer(service.flags(), &flags);
  DeclareRedis(service.flags(), &flags);
  DeclareCheckpoints(service.flags(), &flags.leaf.checkpoint);
  AddExamples(service.flags());
  service.Start(argc, argv);
  absl::Status bad = FoundNodes::Check("--parents", flags.parents);
  if (bad.ok()) bad = Finish(&flags);
  if (const std::optional<int> exit = service.Checked(bad)) return *exit;
  absl::StatusOr<FoundNodes> parents = FoundNodes::Read("--parents", flags.parents);
  if (!parents.ok()) return service.Fail(parents.status());
  flags.leaf.parents = parents->map();
  flags.leaf.parents_may_come = parents->finds();
  absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(flags.leaf);
  if (!leaf.ok()) return service.Fail(leaf.status());
  absl::StatusOr<std::unique_ptr<FoundWorkers>> found =
      FoundWorkers::Start(flags.pods, &(*leaf)->engines(), flags.leaf.engines.ingest.addresses);
  if (!found.ok()) return service.Fail(found.status());
  auto dialed = std::make_unique<DialedWorkers>(flags.dialed, &flags.topics, &(*leaf)->engines());
  absl::StatusOr<std::unique_ptr<Announcer>> announcer =
      StartAnnouncing(flags.announce, RecordOf(flags.leaf, **leaf));
  if (!announcer.ok()) return service.Fail(announcer.status());
  if (*announcer != nullptr && flags.parents.empty()) {
    Log(LogLevel::kInfo, "no parents: no hierarchy hears of this cell",
        {{"hint", "--parents HOST:PORT of a kvatlas-hierarchy, where there are several cells"}});
  }
  // Ports as they are now: a flag may have said 0.
  std::vector<std::pair<std::string, Address>> listening = {{"grpc", (*leaf)->grpc_address()},
                                                            {"http", (*leaf)->http_address()}};
  for (const Address& mooncake : (*leaf)->mooncake_addresses())
    listening.emplace_back("mooncake", mooncake);
  if (absl::Status status = service.Ready(listening); !status.ok()) return service.Fail(status);
  service.flags().OnReload({"workers", "model_name", "routing_group", "block_size"},
                           [&, engines = &(*leaf)->engines()] {
                             return PrepareWorkers(flags, engines, &flags.leaf.engines.workers);
                           });
  service.OnStopSignal([&] { (*leaf)->SetNotReady(); });
  service.OnWatchdog([&] { return (*leaf)->live(); });
  Serve(service, **leaf, *parents, announcer->get());
  found->reset();
  dialed.reset();
  (*leaf)->Stop(service.stop_deadline());
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
