// From the answers of leaves and nodes to cells, workers and streams; the verdict and the JSON are
// in fleet_json.cc. Pure functions: every conversion reads one `StatsResponse`.

#include "indexer/ui/fleet.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace kvatlas {
namespace {

// Labels by which a cell says where it is; the first that it has counts.
constexpr std::string_view kRegionLabels[] = {"region", "zone"};
// As `hierarchy/hierarchy.h` has them.
constexpr char kKindLabel[] = "kvatlas.kind";
constexpr char kKindNode[] = "node";

FleetHealth HealthOf(v1::Trust trust) {
  switch (trust) {
    case v1::TRUST_EXACT:
      return FleetHealth::kExact;
    case v1::TRUST_DEGRADED:
      return FleetHealth::kDegraded;
    case v1::TRUST_STALE:
      return FleetHealth::kStale;
    default:
      return FleetHealth::kUnknown;
  }
}

FleetLoad LoadOf(const v1::Load& load) {
  return {.used_blocks = load.used_blocks(),
          .free_blocks = load.free_blocks(),
          .running = load.running_requests(),
          .waiting = load.waiting_requests()};
}

void Add(const FleetLoad& more, FleetLoad* load) {
  load->used_blocks += more.used_blocks;
  load->free_blocks += more.free_blocks;
  load->running += more.running;
  load->waiting += more.waiting;
}

// A label, or the cluster of a name "cluster/cell"; empty: neither.
std::string RegionOf(const v1::HolderStats& holder) {
  for (const std::string_view label : kRegionLabels) {
    const auto found = holder.labels().find(std::string(label));
    if (found != holder.labels().end()) return found->second;
  }
  const std::string& name = holder.holder().name();
  const size_t slash = name.find('/');
  return slash == std::string::npos ? "" : name.substr(0, slash);
}

std::string DomainName(const v1::Domain& domain) {
  return domain.tenant().empty() ? domain.model() : domain.model() + " of " + domain.tenant();
}

std::string HolderName(const v1::Holder& holder) {
  std::string name = holder.name();
  if (holder.rank() != 0) name += "." + std::to_string(holder.rank());
  if (!holder.replica().empty()) name += "@" + holder.replica();
  return name;
}

FleetWorker WorkerOf(const v1::HolderStats& stats) {
  FleetWorker worker;
  worker.name = stats.holder().name();
  worker.rank = stats.holder().rank();
  worker.trust = HealthOf(stats.trust());
  worker.masked = stats.masked();
  worker.connected = stats.connected();
  worker.age_ms = stats.age_ms();
  worker.blocks = stats.blocks();
  if (stats.has_load()) worker.load = LoadOf(stats.load());
  return worker;
}

// A worker that is in several domains is one tile: the worst of its states, the sum of its blocks.
// Its load is the worker's as a whole and counts once.
void Merge(FleetWorker more, FleetWorker* worker) {
  worker->trust = std::max(worker->trust, more.trust);
  worker->masked |= more.masked;
  worker->connected &= more.connected;
  worker->age_ms = std::max(worker->age_ms, more.age_ms);
  worker->blocks += more.blocks;
  if (!worker->load.has_value()) worker->load = more.load;
}

// A stream from a worker to the leaf. Figures of the engine's events exist only where the leaf
// listens to an engine itself.
FleetStream StreamOf(const v1::DomainStats& domain, const v1::HolderStats& stats, std::string to) {
  FleetStream stream;
  stream.from = HolderName(stats.holder());
  stream.to = std::move(to);
  stream.domain = DomainName(domain.domain());
  stream.state = stats.state();
  stream.reason = stats.reason();
  stream.trust = HealthOf(stats.trust());
  stream.masked = stats.masked();
  stream.age_ms = stats.age_ms();
  stream.gaps = stats.gaps();
  stream.snapshots = stats.snapshots();
  stream.digests_different = stats.digests_different();
  stream.refusals = stats.refusals();
  if (!stats.has_engine()) return stream;
  stream.lag_ms = stats.engine().lag_ms();
  stream.lost = stats.engine().messages_lost();
  for (const auto& [reason, count] : stats.engine().refused()) stream.refusals += count;
  if (stream.reason.empty()) stream.reason = stats.engine().last_refusal();
  return stream;
}

// A stream of coverage from the leaf to a parent. The parent's refusal is a better reason than the
// state of the connection.
FleetStream StreamOf(const v1::ParentStats& parent, std::string from) {
  FleetStream stream;
  stream.from = std::move(from);
  stream.to = parent.address();
  stream.domain = DomainName(parent.domain());
  stream.state = parent.state();
  stream.reason = parent.refused().empty() ? parent.reason() : parent.refused();
  stream.behind = parent.waypoints_waiting();
  stream.refusals = parent.refused().empty() ? 0 : 1;
  if (!parent.connected()) stream.trust = FleetHealth::kStale;
  return stream;
}

}  // namespace

std::string_view FleetHealthName(FleetHealth health) {
  constexpr std::string_view kNames[] = {"exact", "unknown", "degraded", "stale", "unreachable"};
  return kNames[static_cast<size_t>(health)];
}

// Weights that keep the kinds of trouble apart: not connected or masked before not exact, before
// differences and refusals, before losses, before lag.
double FleetStream::badness() const {
  double bad = 0;
  if (state != "connected" && !state.empty()) bad += 1e9;
  if (masked) bad += 1e9;
  if (trust != FleetHealth::kExact) bad += 1e8;
  bad += 1e4 * static_cast<double>(digests_different + refusals);
  bad += 1e3 * static_cast<double>(gaps + lost) + static_cast<double>(behind);
  return bad + 10 * static_cast<double>(snapshots) + lag_ms.value_or(0) + 1e-3 * age_ms;
}

// The leaf's own cell. Workers are merged over domains by name, rank and replica. Masked workers do
// not make a cell worse: they are in no answer.
FleetCell CellOf(const v1::StatsResponse& leaf) {
  FleetCell cell;
  cell.name = leaf.cell();
  cell.version = leaf.process().version();
  cell.health = FleetHealth::kExact;
  std::map<std::tuple<std::string, uint32_t, std::string>, size_t> known;
  for (const v1::DomainStats& domain : leaf.domains()) {
    cell.blocks += domain.blocks();
    for (const v1::HolderStats& stats : domain.holder_stats()) {
      const v1::Holder& id = stats.holder();
      const auto [place, is_new] =
          known.try_emplace({id.name(), id.rank(), id.replica()}, cell.workers.size());
      if (is_new) {
        cell.workers.push_back(WorkerOf(stats));
      } else {
        Merge(WorkerOf(stats), &cell.workers[place->second]);
      }
    }
  }
  for (const FleetWorker& worker : cell.workers) {
    if (worker.load.has_value()) Add(*worker.load, &cell.load);
    cell.workers_silent += worker.masked || !worker.connected;
    if (!worker.masked) cell.health = std::max(cell.health, worker.trust);
  }
  cell.workers_count = cell.workers.size();
  return cell;
}

void AppendStreams(const v1::StatsResponse& leaf, std::vector<FleetStream>* streams) {
  for (const v1::DomainStats& domain : leaf.domains())
    for (const v1::HolderStats& stats : domain.holder_stats())
      streams->push_back(StreamOf(domain, stats, leaf.cell()));
  for (const v1::ParentStats& parent : leaf.parents())
    streams->push_back(StreamOf(parent, leaf.cell()));
  for (const v1::RefusedStream& refused : leaf.refused()) {
    FleetStream stream;
    stream.from = HolderName(refused.holder());
    stream.to = leaf.cell();
    stream.domain = DomainName(refused.domain());
    stream.state = "refused";
    stream.reason = refused.reason();
    stream.refusals = refused.times();
    stream.trust = FleetHealth::kUnknown;
    streams->push_back(std::move(stream));
  }
}

void KeepWorst(size_t max, std::vector<FleetStream>* streams) {
  std::stable_sort(
      streams->begin(), streams->end(),
      [](const FleetStream& a, const FleetStream& b) { return a.badness() > b.badness(); });
  if (streams->size() > max) streams->resize(max);
}

void AppendModels(const v1::StatsResponse& leaf, std::set<std::string>* models) {
  for (const v1::DomainStats& domain : leaf.domains()) models->insert(domain.domain().model());
}

// Merges what each replica of a cell reports over all domains, worst state first. Then the best
// replica stands for the cell, as in an answer: the healthiest, and of equal ones the one heard
// last. Sums are of that replica alone.
std::vector<ReportedCell> ReportedBy(const v1::StatsResponse& node) {
  std::map<std::string, std::map<std::string, ReportedCell>> replicas;  // by cell and replica
  for (const v1::DomainStats& domain : node.domains()) {
    for (const v1::HolderStats& stats : domain.holder_stats()) {
      const auto [place, is_new] =
          replicas[stats.holder().name()].try_emplace(stats.holder().replica());
      ReportedCell& reported = place->second;
      FleetCell& cell = reported.cell;
      if (is_new) {
        cell.name = stats.holder().name();
        cell.address = stats.address();
        cell.region = RegionOf(stats);
        cell.health = FleetHealth::kExact;
        const auto kind = stats.labels().find(kKindLabel);
        reported.is_node = kind != stats.labels().end() && kind->second == kKindNode;
      }
      cell.health =
          std::max(cell.health, stats.masked() ? FleetHealth::kStale : HealthOf(stats.trust()));
      cell.age_ms = std::max(cell.age_ms, stats.age_ms());
      if (!stats.has_load()) continue;
      // Workers and pools are the cell's, not the domain's: the largest figure counts, once.
      cell.workers_count = std::max<uint64_t>(cell.workers_count, stats.load().workers());
      const FleetLoad load = LoadOf(stats.load());
      if (load.used_blocks + load.free_blocks >= cell.load.used_blocks + cell.load.free_blocks)
        cell.load = load;
    }
  }
  std::vector<ReportedCell> cells;
  for (auto& [name, of_cell] : replicas) {
    auto best = std::min_element(of_cell.begin(), of_cell.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second.cell.health, a.second.cell.age_ms) <
             std::pair(b.second.cell.health, b.second.cell.age_ms);
    });
    best->second.cell.replicas = static_cast<uint32_t>(of_cell.size());
    cells.push_back(std::move(best->second));
  }
  return cells;
}

}  // namespace kvatlas
