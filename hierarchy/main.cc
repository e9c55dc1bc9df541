// kvatlas-hierarchy: which cells hold this prompt, as a service.
// `Run` puts the parts together and stops them; `Server` is the main thread's loop: ticks, news for
// the parents, readiness and what is announced. Everything else runs on threads of gRPC and HTTP.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hierarchy/cells_gate.h"
#include "hierarchy/hierarchy.h"
#include "hierarchy/hierarchy_service.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/coverage/coverage_reporter.h"
#include "indexer/coverage/parent_refusals.h"
#include "indexer/discovery/announce_flag.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/found_nodes.h"
#include "indexer/discovery/service_record.h"
#include "indexer/index/index.h"
#include "indexer/net/connection_watch.h"
#include "indexer/net/grpc_server.h"
#include "indexer/process/admin_http.h"
#include "indexer/process/memory_watch.h"
#include "indexer/process/path_flag.h"
#include "indexer/process/service_main.h"
#include "indexer/registry/domain_observer.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/registry/peer_flags.h"
#include "indexer/registry/registry_summary.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/grpc_link.h"
#include "indexer/transport/holders_wire.h"
#include "indexer/ui/holder_page.h"
#include "indexer/ui/ui_http.h"

namespace kvatlas {
namespace {

// The main thread sends coverage to the parents each `kReportEvery`, and does the slower upkeep
// (`Server::Tick`) every `kReportsPerTick`th time, so each 200 ms.
constexpr Duration kReportEvery = std::chrono::milliseconds(20);
constexpr int kReportsPerTick = 10;
// The default bound of one replica of a cell: fifty times what a cell of 64 workers covers, about
// 100 MB.
constexpr uint64_t kWaypointsOfACellMax = 1 << 21;
// How often load and models are given to the announcer, and the file of cells is looked at.
constexpr Duration kAnnounceEvery = std::chrono::seconds(1);
constexpr Duration kKeepCellsEvery = std::chrono::seconds(2);

// The parsed command line; `Run` fills in the rest of `hierarchy` from it.
struct Flags {
  Address grpc{"127.0.0.1", 7420};
  Address http{"127.0.0.1", 8091};
  std::string replica;
  std::string advertise;
  std::string parents;
  std::string schedule = WaypointSchedule::Standard().Name();
  std::string parents_schedule;
  Duration parents_overlap = CoverageReporterOptions().parents_overlap;
  std::string shard;
  AnnounceFlag announce;
  std::string memory_budget;
  uint32_t index_shards = 1;
  CellsGateOptions gate;
  HierarchyOptions hierarchy;
};

void Declare(FlagSet& flags, Flags* f) {
  HolderRegistryOptions& r = f->hierarchy.registry;
  std::vector<std::string> indexes;
  for (std::string_view name : WholeIndexNames()) indexes.emplace_back(name);
  r.index_name = indexes.front();
  flags.Group("Addresses");
  flags.Add("grpc", &f->grpc, "address for gRPC").Listens();
  flags.Add("http", &f->http, "address for HTTP").Listens();
  flags.AddAddress("advertise", &f->advertise,
                   "gRPC address told to others; empty: that of --grpc");
  AddAnnounceFlags(flags, &f->announce);
  flags.Group("Node");
  flags.AddName("node", &f->hierarchy.node, "this node's name");
  flags.AddName("replica", &f->replica, "tells replicas of one node apart at its parents", true);
  flags
      .Add("parents", &f->parents,
           "hierarchy nodes above, told what the cells here cover together: HOST:PORT,… that each "
           "are told all of it, or NAME=HOST:PORT|HOST:PORT,… that share it, or @FILE with either, "
           "or dns:HOST:PORT, or k8s:SERVICE[.NAMESPACE][:PORT], or redis://HOST:PORT where they "
           "announce themselves")
      .List();
  flags.Add("schedule", &f->schedule, "waypoints that the cells here report");
  flags.Add("parents_schedule", &f->parents_schedule,
            "those of them that the parents are told of; empty: all");
  flags.Add("contract_seed", &f->hierarchy.contract.seed,
            "seed S of the hash contract, as in the leaves' --contract_seed");
  flags.AddName("shard", &f->shard, "announced as this shard of a level that is split", true);
  flags.Add("parents_overlap", &f->parents_overlap,
            "how long former parents are still told when --parents=@FILE changes");
  flags.Group("Index");
  flags.AddChoice("index", &r.index_name, "structure of the index", indexes);
  flags.Add(
      "index_shards", &f->index_shards,
      "indexes that share the cells of a domain, each with a writer of its own; more than 1 where "
      "several cores apply events at once",
      1, kIndexShardsMax);
  flags.Group("Leases");
  flags.Add("lease_ttl", &r.receiver.lease_ttl, "silence after which a cell is in no answer",
            std::chrono::milliseconds(100));
  flags.Add("sweep_after", &r.sweep_after, "further silence after which a cell is forgotten");
  flags.Add("repair_timeout", &r.receiver.repair_timeout,
            "how long unconfirmed coverage is kept after a gap");
  flags.Group("Readiness");
  flags.Add("cells_expected", &f->gate.cells_expected,
            "cells that have reported before this node says that it is ready");
  flags
      .Add("cells_file", &f->gate.file,
           "file where this node keeps the names of its cells: started again, it is ready when "
           "they have reported; empty: none")
      .Check(CheckFileToWrite);
  flags.Add("ready_after", &f->gate.ready_after, "how long cells are waited for");
  flags.Group("Limits");
  r.receiver.blocks_max = kWaypointsOfACellMax;
  flags.Add("cell_waypoints_max", &r.receiver.blocks_max,
            "waypoints of a cell's replica; more are refused, and it is degraded; 0: no limit");
  AddMemoryFlag(flags, &f->memory_budget);
  flags.Add("cells_max", &r.holders_max, "replicas of cells per domain", 1);
  flags.Add("domains_max", &r.domains_max, "models, of each tenant", 1);
  flags.Add("forget_domain_after", &r.forget_domain_after,
            "a model without cells is forgotten after so long, or when there are --domains_max");
  AddPeerFlags(flags, &r.peer,
               {.domains = "peer_domains_max",
                .holders = "peer_cells_max",
                .label_bytes = "peer_label_bytes_max"});
  flags.Example("kvatlas-hierarchy --node=top", "the one node above all leaves");
  flags.Example("kvatlas-hierarchy --node=row-1 --grpc=10.0.0.7:7420 --parents=10.0.0.9:7420",
                "a node between leaves and the top, which other machines reach");
}

// The schedules of this level and of the one above; immutable afterwards. Cells report ordinals of
// `here`, so what goes on to the parents is chosen by ordinal: `above_over_here` has the ordinals
// of `here` that are waypoints of `above`.
struct Levels {
  WaypointSchedule here = WaypointSchedule::Standard();
  WaypointSchedule above = WaypointSchedule::Standard();            // by position
  WaypointSchedule above_over_here = WaypointSchedule::Standard();  // by ordinal of `here`
};

// --parents_schedule must be a part of --schedule: a node knows its own waypoints alone.
absl::StatusOr<Levels> ReadLevels(const Flags& flags) {
  absl::StatusOr<WaypointSchedule> here = WaypointSchedule::Parse(flags.schedule);
  if (!here.ok()) return OfFlag("schedule", here.status());
  absl::StatusOr<WaypointSchedule> above = WaypointSchedule::Parse(
      flags.parents_schedule.empty() ? flags.schedule : flags.parents_schedule);
  if (!above.ok()) return OfFlag("parents_schedule", above.status());
  absl::StatusOr<WaypointSchedule> over = above->Over(*here);
  if (!over.ok()) return OfFlag("parents_schedule", over.status());
  return Levels{*std::move(here), *std::move(above), *std::move(over)};
}

// To its parents a node is a cell with a reserved label. Epoch and instance are new at each start,
// so parents replace what an earlier process reported.
CoverageReporterOptions ReporterOptions(const Flags& flags, const Levels& levels,
                                        const FoundNodes& parents) {
  CoverageReporterOptions options;
  options.cell = {.name = flags.hierarchy.node, .rank = 0, .replica = flags.replica};
  options.labels = {{kKindLabel, kKindNode}};
  options.parents = parents.map();
  options.parents_may_come = parents.finds();
  options.parents_overlap = flags.parents_overlap;
  options.make_link = [](const std::string& parent) { return std::make_unique<GrpcLink>(parent); };
  options.contract_id = flags.hierarchy.contract.Id();
  options.on_refused = [](const ParentRefusal& refusal) {
    LogRefusal("parents_schedule", refusal);
  };
  options.schedule = &levels.above_over_here;
  options.schedule_name = levels.above.Name();
  options.epoch = WallTimeNs();
  options.instance_id = RandomInstanceId();
  return options;
}

ServiceRecord RecordOf(const Flags& flags, const GrpcServer& grpc, const AdminHttp& http) {
  ServiceRecord record;
  record.kind = ServiceKind::kHierarchy;
  record.name = flags.hierarchy.node;
  record.replica = flags.replica;
  record.grpc = flags.advertise.empty() ? grpc.address().ToString() : flags.advertise;
  record.http = http.address().ToString();
  if (!flags.shard.empty()) record.labels = {{kShardLabel, flags.shard}};
  return record;
}

// Gives the announcer the models known here and the cells' load, summed up.
void Announce(const HolderRegistry& registry, Announcer* announcer) {
  RegistrySummary now = Summarize(registry);
  announcer->SetServes(std::move(now.models));
  announcer->SetLoad(now.load);
}

// Logs that no cell reports to this node and what to do about it, at the start and once a minute
// while that lasts; the first time is no warning.
class CellsWatch {
 public:
  explicit CellsWatch(std::string address) : address_(std::move(address)) {}
  void Tick(const HolderRegistry& registry) {
    if (!none_.Due(registry.Stats().streams_open == 0, Clock::Real().Now())) return;
    Log(std::exchange(said_, true) ? LogLevel::kWarning : LogLevel::kInfo,
        "no cell yet: this node answers that nothing is known",
        {{"leaves", "are to be started with --parents " + address_}});
  }

 private:
  const std::string address_;
  EveryMinute none_;
  bool said_ = false;
};

// The node's main thread. All members but the references are that thread's alone.
class Server {
 public:
  Server(ServiceMain& service, const Flags& flags, HolderRegistry& registry, MemoryBudget* memory,
         CoverageReporter& reporter, FoundNodes& parents, GrpcServer& grpc, AdminHttp& http)
      : service_(service),
        registry_(registry),
        memory_watch_(memory),
        reporter_(reporter),
        parents_(parents),
        grpc_(grpc),
        http_(http),
        gate_(flags.gate),
        cells_(flags.advertise.empty() ? grpc.address().ToString() : flags.advertise) {}

  // Until a signal: `Tick` every 200 ms, coverage to the parents every 20 ms once ready. The file
  // of cells is written a last time at the end, before streams are ended and cells would seem to
  // have left.
  void Serve(Announcer* announcer) {
    for (int i = 0; !service_.WaitForSignal(kReportEvery).has_value();
         i = (i + 1) % kReportsPerTick) {
      if (i == 0) Tick(announcer);
      // A node that still waits for its cells would report for them that they hold nothing.
      if (ready_) reporter_.Tick();
    }
    gate_.Keep(registry_);
  }

  // Sets the health of gRPC and HTTP until ready. Called once before the ready line, so that a node
  // which waits for nothing is ready with it.
  void LookAtReadiness() {
    if (ready_) return;
    gate_.Look(registry_);
    const Readiness now = gate_.Get();
    ready_ = now.ready;
    const Health health = ready_ ? Health::kServing : Health::kLoading;
    grpc_.SetHealth(health);
    http_.SetHealth(health, now.reason);
  }

 private:
  void Tick(Announcer* announcer) {
    memory_watch_.Tick();
    registry_.Tick();
    cells_.Tick(registry_);
    LookAtReadiness();
    if (std::optional<ShardMap> changed = parents_.Changed(); changed.has_value())
      (void)reporter_.SetParents(*std::move(changed));
    const Time now = Clock::Real().Now();
    if (announcer != nullptr && now >= announce_at_) {
      announce_at_ = now + kAnnounceEvery;
      Announce(registry_, announcer);
    }
    if (now >= keep_at_) {
      keep_at_ = now + kKeepCellsEvery;
      gate_.Keep(registry_);
    }
  }

  ServiceMain& service_;
  HolderRegistry& registry_;
  MemoryWatch memory_watch_;
  CoverageReporter& reporter_;
  FoundNodes& parents_;
  GrpcServer& grpc_;
  AdminHttp& http_;
  CellsGate gate_;
  CellsWatch cells_;
  bool ready_ = false;
  Time announce_at_{0};
  Time keep_at_{0};
};

// Start: 1. parts are made in the order of use (the reporter before the registry that tells it of
// domains); 2. gRPC, then HTTP; the port that gRPC got becomes the address told to parents; 3.
// readiness, announcement and the ready line; 4. `Server::Serve`.
// Stop: 1. the announcement is withdrawn and health is stopping, so that nothing new comes; 2.
// streams of cells end; 3. the parents are told goodbye; 4. running questions get the other half of
// the deadline; 5. HTTP.
int Run(ServiceMain& service, Flags& flags, const Levels& levels, FoundNodes& parents,
        uint64_t memory_bytes_max) {
  Metrics metrics;
  MemoryBudget memory(memory_bytes_max, MemoryMeter(memory_bytes_max));
  flags.hierarchy.registry.index.memory = &memory;
  CoverageReporter reporter(ReporterOptions(flags, levels, parents));
  flags.hierarchy.schedule = &levels.here;
  flags.hierarchy.registry.observe = [&](const Domain& domain, uint32_t block_size) {
    return reporter.AddDomain(domain, block_size);
  };
  flags.hierarchy.registry.forget = [&](DomainObserver* coverage) {
    reporter.RemoveDomain(coverage);
  };
  Hierarchy hierarchy(flags.hierarchy);
  memory.AddPart("index", [&] { return IndexBytes(hierarchy.registry()); });
  HierarchyService hierarchy_service(&hierarchy, &reporter, &metrics);
  metrics.OnText([&reporter](std::string* text) {
    AppendParentMetrics(reporter.Stats(), "kvatlas_hierarchy", text);
  });
  GrpcAcceptor streams(&hierarchy.registry(), {.verb = Verb::kReport});
  GrpcServer grpc({.listen = flags.grpc});
  grpc.Register(&hierarchy_service, "kvatlas.v1.Hierarchy");
  grpc.Register(streams.service(), "kvatlas.v1.Holdings");
  AdminHttp http({.listen = flags.http, .program = "kvatlas-hierarchy"}, &metrics);
  memory.AddPart("snapshots", [&] { return SnapshotBytes(hierarchy.registry()); });
  memory.AddPart("bodies", [&] { return http.server()->bodies_bytes(); });
  hierarchy_service.AddHttp(&http);
  const Ui page(HolderPages({.program = "kvatlas-hierarchy",
                             .leaf = false,
                             .name = flags.hierarchy.node,
                             .stats = [&] { return hierarchy_service.NodeStats(); },
                             .queries = [&] { return hierarchy_service.queries(); }},
                            &hierarchy.registry()),
                &http);
  if (absl::Status status = grpc.Start(); !status.ok()) return service.Fail(OfFlag("grpc", status));
  if (absl::Status status = http.Start(); !status.ok()) return service.Fail(OfFlag("http", status));
  reporter.SetAddress(flags.advertise.empty() ? grpc.address().ToString() : flags.advertise);
  Server server(service, flags, hierarchy.registry(), &memory, reporter, parents, grpc, http);
  server.LookAtReadiness();
  absl::StatusOr<std::unique_ptr<Announcer>> announcer =
      StartAnnouncing(flags.announce, RecordOf(flags, grpc, http));
  if (!announcer.ok()) return service.Fail(announcer.status());
  if (absl::Status status = service.Ready({{"grpc", grpc.address()}, {"http", http.address()}});
      !status.ok()) {
    return service.Fail(status);
  }
  service.OnStopSignal([&] {
    http.SetHealth(Health::kStopping);
    grpc.SetHealth(Health::kStopping);
  });
  service.OnWatchdog([&] { return http.health()->deaf().empty(); });
  server.Serve(announcer->get());
  if (*announcer != nullptr) (*announcer)->Stop();
  http.SetHealth(Health::kStopping);
  grpc.SetHealth(Health::kStopping);
  hierarchy.registry().StopAccepting();
  streams.Stop();  // so that the server need not wait for senders
  reporter.Stop(service.stop_deadline() / 2);
  hierarchy_service.Stop();
  grpc.Stop(service.stop_deadline() / 2);
  http.Stop();
  return 0;
}

// All flags are checked before anything is opened: `Checked` ends the process with --check, or on
// an error.
int Main(int argc, char** argv) {
  ServiceMain service("kvatlas-hierarchy", "Which cells hold this prompt, and how deep.");
  Flags flags;
  Declare(service.flags(), &flags);
  service.Start(argc, argv);
  HolderRegistryOptions& registry = flags.hierarchy.registry;
  registry.index_name = WithShards(registry.index_name, flags.index_shards);
  const absl::StatusOr<Levels> levels = ReadLevels(flags);
  const absl::StatusOr<uint64_t> memory_bytes_max = ReadMemoryFlag(flags.memory_budget);
  absl::Status bad = levels.status();
  if (bad.ok()) bad = FoundNodes::Check("--parents", flags.parents);
  if (bad.ok()) bad = memory_bytes_max.status();
  if (const std::optional<int> exit = service.Checked(bad)) return *exit;
  absl::StatusOr<FoundNodes> parents = FoundNodes::Read("--parents", flags.parents);
  if (!parents.ok()) return service.Fail(parents.status());
  return Run(service, flags, *levels, *parents, *memory_bytes_max);
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
