// The parts of a page: charts and their samples, the fleet as JSON, and explanations of prompts.

#include "frontend/ui/frontend_page.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "frontend/accuracy/finding.h"
#include "frontend/router/receipt.h"
#include "indexer/base/clock.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// The limits are the page's; `/diagnosis` shows all.
constexpr size_t kFindingsShown = 16;
constexpr size_t kEvidenceShown = 8;

// The series of all charts, in this order, are the values of `SampleOf`.
std::vector<ChartSpec> Charts() {
  return {
      {.id = "routes",
       .title = "Routes",
       .unit = "1/s",
       .about = "Routes a second by how far the answer had to fall, and those that ended without a "
                "worker.",
       .stacked = true,
       .series = {{.key = "none", .label = "direct", .rate = true},
                  {.key = "last_good_cells", .label = "last good cells", .rate = true},
                  {.key = "own_cell", .label = "own cell", .rate = true},
                  {.key = "load_only", .label = "load only", .rate = true},
                  {.key = "failed", .label = "failed", .rate = true}}},
      {.id = "hits",
       .title = "Blocks from cache",
       .unit = "share",
       .about = "Share of the prompts' blocks that the chosen worker has, and the best candidate, "
                "in 15 seconds.",
       .series = {{.key = "hit_chosen", .label = "at the chosen worker"},
                  {.key = "hit_best", .label = "best available"}}},
      {.id = "latency",
       .title = "Time to route",
       .unit = "ms",
       .about = "From question to choice, half of the routes and 99 of 100, in 15 seconds.",
       .series = {{.key = "p50", .label = "p50"}, {.key = "p99", .label = "p99"}}},
      {.id = "flight",
       .title = "In flight",
       .unit = "",
       .about = "Choices not yet reported on, and routes that wait for a worker.",
       .series = {{.key = "in_flight", .label = "choices"},
                  {.key = "waiting", .label = "waiting for a worker"}}},
  };
}

// One value per series, in the order of `Charts`. Counters that only rise become rates in the page.
std::vector<double> SampleOf(const Frontend& frontend, RouteTally* tally) {
  const FrontendStats stats = frontend.stats();
  std::vector<double> sample;
  for (const uint64_t routes : stats.by_fallback) sample.push_back(static_cast<double>(routes));
  sample.push_back(static_cast<double>(stats.failed));
  const RouteTally::Figures figures = tally->Take();
  for (const double value : {figures.hit_chosen, figures.hit_best, figures.p50_ms, figures.p99_ms})
    sample.push_back(value);
  sample.push_back(static_cast<double>(stats.in_flight));
  sample.push_back(static_cast<double>(stats.waiting));
  return sample;
}

// Short: the page shows a line or two for each.
Json JsonOf(const KnownFinding& known) {
  const Finding& finding = known.finding;
  Json json = {{"cause", CauseName(finding.cause)},
               {"meaning", CauseMeaning(finding.cause)},
               {"remedy", RemedyOf(finding)},
               {"confidence", finding.confidence},
               {"cell", finding.cell},
               {"worker", finding.worker.name},
               {"evidence", Json::array()}};
  for (const std::string& line : finding.evidence)
    if (json["evidence"].size() < kEvidenceShown) json["evidence"].push_back(line);
  return json;
}

// Counts all findings and shows the first ones, the most certain.
void AddFindings(const Truth& truth, FleetPage* fleet) {
  Json json = Json::array();
  const std::vector<KnownFinding> findings = truth.findings();
  for (const KnownFinding& known : findings)
    if (json.size() < kFindingsShown) json.push_back(JsonOf(known));
  fleet->findings = findings.size();
  fleet->findings_json = json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// With `cell` the details of one cell alone. Getting the page is what keeps the rounds going.
std::string FleetOf(const FrontendPageOptions& options, const std::string& cell) {
  FleetPage fleet = options.watch->Get(cell);
  if (!cell.empty()) return CellJson(fleet, cell);
  fleet.program = options.program;
  for (FleetPeer& peer : fleet.peers)
    peer.is_self = !options.own_leaf.empty() && peer.address == options.own_leaf;
  fleet.kind = "frontend";
  fleet.name = options.name();
  fleet.decisions = true;
  fleet.explain = options.explainer != nullptr;
  AddFindings(*options.truth, &fleet);
  return FleetJson(fleet);
}

}  // namespace

// Asked at each round, so that changes of the configuration are seen.
FleetSources SourcesOf(const Frontend* frontend) {
  return {.nodes = [frontend] { return frontend->hierarchies().Addresses(); },
          .leaves =
              [frontend] {
                std::vector<std::pair<std::string, std::string>> leaves;
                for (const ConfiguredLeaf& leaf : frontend->leaves())
                  leaves.emplace_back(leaf.cell, leaf.address);
                return leaves;
              }};
}

// The options are shared by the functions, which live as long as the page's server.
UiPages FrontendPages(FrontendPageOptions options) {
  const auto shared = std::make_shared<const FrontendPageOptions>(std::move(options));
  return {.charts = Charts(),
          .sample = [shared] { return SampleOf(*shared->frontend, shared->tally); },
          .fleet = [shared](const std::string& cell) { return FleetOf(*shared, cell); },
          .explain = shared->explainer == nullptr
                         ? nullptr
                         : HttpHandler([explainer = shared->explainer](const HttpRequest& request) {
                             return explainer->Answer(request);
                           }),
          .sessions = shared->sessions == nullptr
                          ? nullptr
                          : HttpHandler([finder = shared->sessions](const HttpRequest& request) {
                              return finder->Answer(request);
                            })};
}

}  // namespace kvatlas
