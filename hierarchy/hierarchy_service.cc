// The gRPC service of a node: unary and streamed questions go through `Answer` (trace, metrics) and
// `Find`; the rest fills statistics and the metrics of cells that misbehave.

#include "hierarchy/hierarchy_service.h"

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/durations.h"
#include "indexer/base/ids.h"
#include "indexer/base/memory_budget.h"
#include "indexer/net/connection_watch.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/net/grpc_status.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/registry/refused_holders.h"
#include "indexer/security/visible_domain.h"
#include "indexer/telemetry/metric_families.h"
#include "indexer/telemetry/text_escape.h"
#include "indexer/telemetry/tracing/tracer.h"
#include "indexer/transport/holder_metrics.h"
#include "indexer/transport/holders_wire.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

// Bound of cells named in metrics: a name that was once exported stays, so that its counter does
// not vanish; further ones are left out.
constexpr size_t kFaultyCellsMax = 1024;

// The reserved label of nodes becomes the field `kind`; all other labels are passed on.
void FillCell(const FoundCell& found, v1::CellCoverage* cell) {
  ToProto(found.cell->id, cell->mutable_cell());
  cell->set_address(found.cell->address);
  cell->set_blocks_at_least(found.blocks_at_least);
  cell->set_blocks_below(found.blocks_below);
  cell->set_pending_blocks(found.pending_blocks);
  cell->set_trust(ToProto(found.trust));
  cell->set_age_ms(Milliseconds(found.age));
  if (found.load.has_value()) ToProto(*found.load, cell->mutable_load());
  for (const auto& [name, value] : found.cell->labels) {
    if (name != kKindLabel) (*cell->mutable_labels())[name] = value;
  }
  cell->set_kind(found.is_node ? v1::CELL_KIND_NODE : v1::CELL_KIND_LEAF);
  for (const std::string& address : found.other_addresses) cell->add_other_addresses(address);
}

// One parent of this node as /status and Stats have it.
void FillParent(const ParentStats& parent, v1::ParentStats* stats) {
  stats->set_address(parent.parent);
  ToProto(parent.domain, stats->mutable_domain());
  stats->set_connected(parent.connected);
  stats->set_at_rest(parent.at_rest);
  stats->set_waypoints_announced(parent.waypoints_announced);
  stats->set_waypoints_withdrawn(parent.waypoints_withdrawn);
  stats->set_bytes_sent(parent.bytes_sent);
  stats->set_last_batch(parent.last_batch);
  stats->set_acknowledged(parent.acknowledged);
  stats->set_waypoints_held(parent.waypoints_held);
  if (!parent.refusal.ok()) stats->set_refused(parent.refusal.ToString());
  stats->set_state(std::string(ConnectionStateName(ConnectionStateOf(parent.progress))));
  if (parent.progress.has_value()) stats->set_reason(std::string(parent.progress->message()));
}

// Counters of what cells' streams did wrong, by cell, domain and fault. A cell is named from its
// first fault on, with all of its faults, for as long as the registry knows it. Called by scrapes,
// one at a time.
class FaultyCells {
 public:
  explicit FaultyCells(const HolderRegistry* registry) : registry_(registry) {}

  // For `Metrics::OnText`: cells and domains come and go.
  void Append(std::string* text) {
    MetricFamilies families;
    // So that the family is there before the first fault.
    families.Declare([](MetricFamilies* to) { to->CountRenamed(kName, kHelp, "", 0); });
    for (const Domain& domain : registry_->Domains()) {
      const absl::StatusOr<DomainStats> stats = registry_->StatsOf(domain);
      if (!stats.ok()) continue;
      for (const HolderStats& cell : stats->holders) {
        const HolderId& id = cell.holder->id;
        Set(domain, id, "claimed_twice", cell.receiver.hellos_refused, &families);
        Set(domain, id, "gap", cell.receiver.gaps, &families);
        Set(domain, id, "digest_differs", cell.receiver.digests_different, &families);
        Set(domain, id, "never_repaired", cell.receiver.repairs_timed_out, &families);
        Set(domain, id, "floods", cell.receiver.sheds, &families);
      }
    }
    for (const RefusedHolder& refused : registry_->Refused())
      Set(refused.domain, refused.holder, "refused", refused.times, &families);
    families.AppendTo(text);
  }

 private:
  static constexpr char kName[] = "kvatlas_hierarchy_cell_faults_total";
  static constexpr char kHelp[] = "What a cell's streams did wrong since it was first heard.";

  void Set(const Domain& domain, const HolderId& id, const char* fault, uint64_t count,
           MetricFamilies* families) {
    const std::string name = ToString(id);
    if (!named_.contains(name)) {
      if (count == 0 || named_.size() >= kFaultyCellsMax) return;
      named_.insert(name);
    }
    families->CountRenamed(kName, kHelp,
                           MetricLabel("cell", name) + "," +
                               MetricLabel("domain", ToString(domain)) + "," +
                               MetricLabel("fault", fault),
                           static_cast<double>(count));
  }

  const HolderRegistry* const registry_;
  std::set<std::string> named_;
};

}  // namespace

HierarchyService::HierarchyService(Hierarchy* hierarchy, const CoverageReporter* reporter,
                                   Metrics* metrics)
    : hierarchy_(hierarchy),
      reporter_(reporter),
      security_(Security::OfProcess()),
      find_cells_(
          metrics->AddCounter("kvatlas_hierarchy_find_cells_total", "Questions for cells.")),
      find_cells_failed_(metrics->AddCounter("kvatlas_hierarchy_find_cells_failed_total",
                                             "Questions that were refused.")),
      find_cells_seconds_(metrics->AddHistogram("kvatlas_hierarchy_find_cells_seconds",
                                                "Time to answer a question for cells.")),
      told_(security_.get(), &hierarchy->registry()),
      streams_([this](const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
        return Answer({}, request, response);
      }) {
  SetMessageAllocatorFor_FindCells(&messages_);
  // The generated base class covers the unary method only; the streaming one is marked by its index
  // among the service's methods.
  constexpr int kFindCellsStream = 1;  // of the service's methods
  MarkMethodCallback(kFindCellsStream,
                     Streams::MethodHandler([this](grpc::CallbackServerContext* context) {
                       return OpenStream(context);
                     }));
  AddHolderMetrics(&hierarchy->registry(), "kvatlas_hierarchy", metrics);
  metrics->OnText([faulty = FaultyCells(&hierarchy->registry())](std::string* text) mutable {
    faulty.Append(text);
  });
}

// Answered at once on the calling thread.
grpc::ServerUnaryReactor* HierarchyService::FindCells(grpc::CallbackServerContext* context,
                                                      const v1::FindCellsRequest* request,
                                                      v1::FindCellsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::shared_ptr<const Identity> asker = IdentityOf(security_.get(), *context);
  reactor->Finish(ToGrpcStatus(Answer(*asker, *request, response)));
  return reactor;
}

HierarchyService::Streams::Reactor* HierarchyService::OpenStream(
    grpc::CallbackServerContext* context) {
  return told_.Open(
      &streams_, context,
      [this](const Identity& asker, const v1::FindCellsRequest& request,
             v1::FindCellsResponse* response) { return Answer(asker, request, response); });
}

// One question, traced and counted whether or not it was answered.
absl::Status HierarchyService::Answer(const Identity& asker, const v1::FindCellsRequest& request,
                                      v1::FindCellsResponse* response) {
  const Time started = Clock::Real().Now();
  Span span = Tracer::OfProcess()->BeginChild("FindCells", SpanKind::kServer,
                                              Tracer::ParentOf(request.traceparent()));
  absl::Status status = Find(asker, request, response);
  span.Set("node", hierarchy_->node());
  span.Set("blocks", int64_t{request.blocks()});
  span.Set("cells", int64_t{response->cells_size()});
  span.End(status);
  queries_.fetch_add(1, std::memory_order_relaxed);
  find_cells_.Increment();
  if (!status.ok()) find_cells_failed_.Increment();
  find_cells_seconds_.Observe(std::chrono::duration<double>(Clock::Real().Now() - started).count());
  return status;
}

// 1. The domain as this asker may see it; a hidden one is answered as an unknown one.
// 2. Under memory pressure long questions are refused.
// 3. `Hierarchy::FindCells`; then the cells are copied into the response, while `found` keeps the
//    infos that they point to. `waypoints` must live until then: the query has a view of it.
absl::Status HierarchyService::Find(const Identity& asker, const v1::FindCellsRequest& request,
                                    v1::FindCellsResponse* response) {
  FindCellsQuery query{.domain = {}, .waypoints = {}, .schedule = request.schedule()};
  Domain asked;
  if (absl::Status bad = FromProto(request.domain(), &asked); !bad.ok()) return bad;
  VisibleDomain visible = DomainVisibleTo(*security_, asker, asked);
  query.domain = std::move(visible.domain);
  const MemoryBudget* const memory = hierarchy_->registry().memory();
  if (absl::Status full = CheckMemoryForQuestion(memory, request.blocks()); !full.ok()) return full;
  std::vector<SequenceHash> waypoints;
  waypoints.reserve(static_cast<size_t>(request.waypoint_hashes_size()));
  for (uint64_t hash : request.waypoint_hashes()) waypoints.push_back(SequenceHash(hash));
  query.waypoints = waypoints;
  query.blocks = request.blocks();
  query.best = request.best();
  query.frontend = request.frontend();
  query.positions = std::span(request.positions().data(), request.positions().size());
  const absl::StatusOr<FoundCells> found = hierarchy_->FindCells(query);
  if (visible.hidden && absl::IsNotFound(found.status())) return NoSuchDomain(asked);
  if (!found.ok()) return found.status();
  response->set_block_size(found->block_size);
  response->mutable_cells()->Reserve(static_cast<int>(found->cells.size()));
  for (const FoundCell& cell : found->cells) FillCell(cell, response->add_cells());
  return absl::OkStatus();
}

grpc::Status HierarchyService::Dump(grpc::ServerContext* context, const v1::DumpRequest* request,
                                    grpc::ServerWriter<v1::DumpResponse>* writer) {
  return ToGrpcStatus(ServeDump(hierarchy_->registry(), context, *request, writer));
}

grpc::Status HierarchyService::Stats(grpc::ServerContext*, const v1::StatsRequest*,
                                     v1::StatsResponse* response) {
  FillNodeStats(response);
  return grpc::Status::OK;
}

// All domains, whatever the request names.
void HierarchyService::FillNodeStats(v1::StatsResponse* response) const {
  FillStats(hierarchy_->registry(), response);
  FillProcess(response);
  response->set_cell(hierarchy_->node());
  response->set_contract(hierarchy_->contract_id());
  response->set_schedule(hierarchy_->schedule_name());
  if (reporter_ != nullptr) {
    for (const ParentStats& parent : reporter_->Stats())
      FillParent(parent, response->add_parents());
  }
  response->set_queries(queries_.load(std::memory_order_relaxed));
}

v1::StatsResponse HierarchyService::NodeStats() const {
  v1::StatsResponse stats;
  FillNodeStats(&stats);
  return stats;
}

void HierarchyService::AddHttp(AdminHttp* http) {
  http->Handle("GET", "/status", [this](const HttpRequest&) { return StatusPage(NodeStats()); });
}

}  // namespace kvatlas
