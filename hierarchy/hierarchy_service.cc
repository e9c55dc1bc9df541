#include "hierarchy/hierarchy_service.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/service/grpc_status.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

uint32_t Milliseconds(Duration age) {
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, std::numeric_limits<uint32_t>::max()));
}

void FillCell(const FoundCell& found, v1::CellCoverage* cell) {
  ToProto(found.cell->id, cell->mutable_cell());
  cell->set_address(found.cell->address);
  cell->set_blocks_at_least(found.blocks_at_least);
  cell->set_blocks_below(found.blocks_below);
  cell->set_trust(ToProto(found.trust));
  cell->set_age_ms(Milliseconds(found.age));
  if (found.load.has_value()) ToProto(*found.load, cell->mutable_load());
  for (const auto& [name, value] : found.cell->labels) (*cell->mutable_labels())[name] = value;
}

void FillHolder(const HolderStats& holder, v1::HolderStats* stats) {
  ToProto(holder.holder->id, stats->mutable_holder());
  stats->set_epoch(holder.epoch);
  stats->set_applied(holder.applied);
  stats->set_trust(ToProto(holder.trust));
  stats->set_age_ms(Milliseconds(holder.age));
  stats->set_masked(holder.masked);
  stats->set_blocks(holder.blocks);
  if (holder.load.has_value()) ToProto(*holder.load, stats->mutable_load());
}

void FillDomain(const DomainStats& domain, v1::DomainStats* stats) {
  ToProto(domain.domain, stats->mutable_domain());
  stats->set_block_size(domain.block_size);
  stats->set_holders(domain.index.holders);
  stats->set_blocks(domain.index.blocks);
  stats->set_holdings(domain.index.holdings);
  stats->set_index_bytes(domain.index.bytes);
  stats->set_blocks_stored(domain.blocks_stored);
  stats->set_blocks_removed(domain.blocks_removed);
  stats->set_batches(domain.batches);
  stats->set_bytes_received(domain.bytes_received);
  stats->set_gaps(domain.gaps);
  stats->set_snapshots(domain.snapshots);
  stats->set_digests_equal(domain.digests_equal);
  stats->set_digests_different(domain.digests_different);
  for (const HolderStats& holder : domain.holders) FillHolder(holder, stats->add_holder_stats());
}

}  // namespace

HierarchyService::HierarchyService(Hierarchy* hierarchy, Metrics* metrics)
    : hierarchy_(hierarchy),
      metrics_(metrics),
      find_cells_(
          metrics->AddCounter("kvatlas_hierarchy_find_cells_total", "Questions for cells.")),
      find_cells_failed_(metrics->AddCounter("kvatlas_hierarchy_find_cells_failed_total",
                                             "Questions that were refused.")),
      find_cells_seconds_(metrics->AddHistogram("kvatlas_hierarchy_find_cells_seconds",
                                                "Time to answer a question for cells.")) {
  metrics->OnScrape([this] { RefreshGauges(); });
}

grpc::ServerUnaryReactor* HierarchyService::FindCells(grpc::CallbackServerContext* context,
                                                      const v1::FindCellsRequest* request,
                                                      v1::FindCellsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Time started = Clock::Real().Now();
  const grpc::Status status = Find(*request, response);
  queries_.fetch_add(1, std::memory_order_relaxed);
  find_cells_.Increment();
  if (!status.ok()) find_cells_failed_.Increment();
  find_cells_seconds_.Observe(std::chrono::duration<double>(Clock::Real().Now() - started).count());
  reactor->Finish(status);
  return reactor;
}

grpc::Status HierarchyService::Find(const v1::FindCellsRequest& request,
                                    v1::FindCellsResponse* response) {
  FindCellsQuery query{.domain = {}, .waypoints = {}, .schedule = request.schedule()};
  if (absl::Status bad = FromProto(request.domain(), &query.domain); !bad.ok())
    return ToGrpcStatus(bad);
  std::vector<SequenceHash> waypoints;
  waypoints.reserve(static_cast<size_t>(request.waypoint_hashes_size()));
  for (uint64_t hash : request.waypoint_hashes()) waypoints.push_back(SequenceHash(hash));
  query.waypoints = waypoints;
  query.blocks = request.blocks();
  query.best = request.best();
  const absl::StatusOr<FoundCells> found = hierarchy_->FindCells(query);
  if (!found.ok()) return ToGrpcStatus(found.status());
  response->set_block_size(found->block_size);
  response->mutable_cells()->Reserve(static_cast<int>(found->cells.size()));
  for (const FoundCell& cell : found->cells) FillCell(cell, response->add_cells());
  return grpc::Status::OK;
}

grpc::Status HierarchyService::Dump(grpc::ServerContext* context, const v1::DumpRequest* request,
                                    grpc::ServerWriter<v1::DumpResponse>* writer) {
  std::vector<Domain> domains = hierarchy_->registry().Domains();
  if (request->has_domain()) {
    Domain domain;
    if (absl::Status bad = FromProto(request->domain(), &domain); !bad.ok())
      return ToGrpcStatus(bad);
    if (std::find(domains.begin(), domains.end(), domain) == domains.end()) {
      return ToGrpcStatus(
          absl::NotFoundError("domain " + ToString(domain) + " was never announced"));
    }
    domains = {domain};
  }
  for (const Domain& domain : domains) {
    if (absl::Status status = DumpDomain(domain, request->worker(), context, writer);
        !status.ok()) {
      return ToGrpcStatus(status);
    }
  }
  return grpc::Status::OK;
}

// A message per run, so that none is large; the last of a cell has no run.
absl::Status HierarchyService::DumpDomain(const Domain& domain, const std::string& worker,
                                          grpc::ServerContext* context,
                                          grpc::ServerWriter<v1::DumpResponse>* writer) const {
  for (const HolderId& holder : hierarchy_->registry().HoldersOf(domain)) {
    if (!worker.empty() && holder.name != worker) continue;
    const absl::StatusOr<HolderDump> dump = hierarchy_->registry().Dump(domain, holder);
    if (!dump.ok()) continue;  // gone meanwhile
    v1::DumpResponse response;
    ToProto(domain, response.mutable_domain());
    ToProto(holder, response.mutable_worker());
    response.set_applied(dump->applied);
    response.set_trust(ToProto(dump->trust));
    for (const Stored& run : dump->runs) {
      response.clear_stored();
      ToProto(run, response.add_stored());
      if (context->IsCancelled() || !writer->Write(response))
        return absl::CancelledError("the asker has gone");
    }
    response.clear_stored();
    response.set_last_of_worker(true);
    if (!writer->Write(response)) return absl::CancelledError("the asker has gone");
  }
  return absl::OkStatus();
}

grpc::Status HierarchyService::Stats(grpc::ServerContext*, const v1::StatsRequest*,
                                     v1::StatsResponse* response) {
  FillStats(response);
  return grpc::Status::OK;
}

void HierarchyService::FillStats(v1::StatsResponse* response) const {
  response->set_cell(hierarchy_->node());
  response->set_streams_open(hierarchy_->registry().Stats().streams_open);
  response->set_queries(queries_.load(std::memory_order_relaxed));
  for (const Domain& domain : hierarchy_->registry().Domains()) {
    const absl::StatusOr<DomainStats> stats = hierarchy_->registry().StatsOf(domain);
    if (stats.ok()) FillDomain(*stats, response->add_domains());
  }
}

void HierarchyService::RefreshGauges() {
  const RegistryStats registry = hierarchy_->registry().Stats();
  metrics_->AddGauge("kvatlas_hierarchy_streams_open", "Connections of cells.")
      .Set(static_cast<double>(registry.streams_open));
  metrics_->AddGauge("kvatlas_hierarchy_streams_refused", "Hellos refused since the start.")
      .Set(static_cast<double>(registry.streams_refused));
  metrics_->AddGauge("kvatlas_hierarchy_cells_expired", "Leases that ran out since the start.")
      .Set(static_cast<double>(registry.holders_expired));
  for (const Domain& domain : hierarchy_->registry().Domains()) {
    const absl::StatusOr<DomainStats> stats = hierarchy_->registry().StatsOf(domain);
    if (!stats.ok()) continue;
    const MetricLabels labels = {{"domain", ToString(domain)}};
    metrics_->AddGauge("kvatlas_hierarchy_holders", "Replicas of cells known.", labels)
        .Set(static_cast<double>(stats->index.holders));
    metrics_->AddGauge("kvatlas_hierarchy_waypoints", "Distinct waypoints covered.", labels)
        .Set(static_cast<double>(stats->index.blocks));
    metrics_->AddGauge("kvatlas_hierarchy_index_bytes", "Memory of the index.", labels)
        .Set(static_cast<double>(stats->index.bytes));
  }
}

void HierarchyService::AddHttp(AdminHttp* http) {
  http->Handle("GET", "/status", [this](const HttpRequest&) {
    v1::StatsResponse stats;
    FillStats(&stats);
    google::protobuf::util::JsonPrintOptions options;
    options.always_print_primitive_fields = true;
    options.preserve_proto_field_names = true;
    HttpResponse response;
    if (!google::protobuf::util::MessageToJsonString(stats, &response.body, options).ok()) {
      return HttpError(500, "the statistics are not printable as JSON");
    }
    return response;
  });
}

}  // namespace kvatlas
