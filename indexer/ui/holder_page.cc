// The page of a leaf or a node about itself: charts from its registry, and the fleet's state from
// its own `Stats`.

#include "indexer/ui/holder_page.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"

namespace kvatlas {
namespace {

int64_t UnixMs() { return static_cast<int64_t>(WallTimeNs() / 1'000'000); }

// SampleOf has the values in this order of series.
std::vector<ChartSpec> Charts(bool leaf) {
  const std::string holders = leaf ? "Workers" : "Cells";
  const std::string blocks = leaf ? "blocks" : "waypoints";
  return {
      {.id = "questions",
       .title = "Questions",
       .unit = "1/s",
       .about = leaf ? "Questions which workers hold a prompt, by all ways but HTTP."
                     : "Questions which cells hold a prompt.",
       .series = {{.key = "queries", .label = "answered", .rate = true}}},
      {.id = "changes",
       .title = leaf ? "Blocks changed" : "Waypoints changed",
       .unit = "1/s",
       .about = "What streams told: " + blocks + " stored and removed.",
       .series = {{.key = "stored", .label = "stored", .rate = true},
                  {.key = "removed", .label = "removed", .rate = true}}},
      {.id = "holders",
       .title = holders,
       .unit = "",
       .about = holders + " in answers, and those that are in none because their lease ran out.",
       .stacked = true,
       .series = {{.key = "heard", .label = "heard"}, {.key = "silent", .label = "silent"}}},
      {.id = "held",
       .title = leaf ? "Blocks held" : "Waypoints covered",
       .unit = "",
       .about = "Distinct " + blocks + " in the index.",
       .series = {{.key = "blocks", .label = "distinct"}}},
  };
}

// Sums over domains, once a second. A domain that is forgotten makes a counter smaller, which the
// ring takes for a reset.
std::vector<double> SampleOf(const HolderRegistry& registry, uint64_t queries) {
  uint64_t stored = 0, removed = 0, heard = 0, silent = 0, blocks = 0;
  for (const Domain& domain : registry.Domains()) {
    const absl::StatusOr<DomainStats> stats = registry.StatsOf(domain);
    if (!stats.ok()) continue;  // forgotten meanwhile
    stored += stats->blocks_stored;
    removed += stats->blocks_removed;
    blocks += stats->index.blocks;
    for (const HolderStats& holder : stats->holders) ++(holder.masked ? silent : heard);
  }
  std::vector<double> sample;
  for (const uint64_t value : {queries, stored, removed, heard, silent, blocks})
    sample.push_back(static_cast<double>(value));
  return sample;
}

}  // namespace

// A leaf is one cell with its workers; a node has the cells that report to it, without workers.
FleetPage PageOf(const HolderPageOptions& options, const v1::StatsResponse& stats) {
  FleetPage fleet;
  fleet.program = options.program;
  fleet.kind = options.leaf ? "leaf" : "hierarchy";
  fleet.name = options.name;
  fleet.now_ms = UnixMs();
  fleet.explain = options.explain != nullptr;
  AppendStreams(stats, &fleet.streams);
  AppendModels(stats, &fleet.models);
  if (options.leaf) {
    fleet.cells.push_back(CellOf(stats));
    fleet.cells.back().workers_at_ms = fleet.now_ms;
    return fleet;
  }
  for (ReportedCell& reported : ReportedBy(stats)) fleet.cells.push_back(std::move(reported.cell));
  return fleet;
}

UiPages HolderPages(HolderPageOptions options, const HolderRegistry* registry) {
  const auto shared = std::make_shared<const HolderPageOptions>(std::move(options));
  return {.charts = Charts(shared->leaf),
          .sample = [shared, registry] { return SampleOf(*registry, shared->queries()); },
          .fleet =
              [shared](const std::string& cell) {
                const FleetPage fleet = PageOf(*shared, shared->stats());
                return cell.empty() ? FleetJson(fleet) : CellJson(fleet, cell);
              },
          .explain = shared->explain,
          .sessions = shared->sessions};
}

}  // namespace kvatlas
