// GET /status of `FrontendService`: its configuration, its counts, and the fleet as last seen. The
// lists of cells, engines and promises are bounded.

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "frontend/gateway/frontend_service.h"
#include "indexer/base/durations.h"
#include "indexer/process/process_facts.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr size_t kPromisesShown = 64;  // of cells, the worst first
constexpr size_t kCellsShown = 4096;
constexpr size_t kEnginesShown = 4096;

// Cells and workers as last seen: where they are asked, and whether that works.
void AddFleet(const Frontend& frontend, Json* json) {
  Json& cells = (*json)["cells"] = Json::array();
  for (const SeenCell& seen : frontend.Cells(kCellsShown)) {
    cells.push_back({{"model", seen.domain.model},
                     {"tenant", seen.domain.tenant},
                     {"cell", seen.cell},
                     {"address", seen.address},
                     {"seen_ms", Milliseconds<int64_t>(seen.seen)},
                     {"answered_ms", nullptr},
                     {"workers", seen.workers}});
    if (seen.answered.has_value())
      cells.back()["answered_ms"] = Milliseconds<int64_t>(*seen.answered);
  }
  Json& engines = (*json)["engines"] = Json::array();
  for (const KnownEngine& engine : frontend.Engines(kEnginesShown)) {
    engines.push_back({{"model", engine.domain.model},
                       {"tenant", engine.domain.tenant},
                       {"cell", engine.cell},
                       {"worker", engine.worker.name},
                       {"rank", engine.worker.rank},
                       {"url", WithoutSecrets(engine.url)},
                       {"state", engine.suspect ? "unreachable" : "not suspected"}});
  }
}

}  // namespace

// Not synchronized: before serving.
void FrontendService::AddStatus(std::string name, std::function<std::string()> json) {
  status_sections_.emplace_back(std::move(name), std::move(json));
}

// Sections of other parts (`AddStatus`) come last.
HttpResponse FrontendService::HttpStatus() const {
  const FrontendOptions& options = frontend_->options();
  const FrontendStats stats = frontend_->stats();
  Json json;
  if (const ProcessFacts facts = FactsOfProcess(); !facts.program.empty())
    json["process"] = Json::parse(ProcessFactsJson(facts), nullptr, /*allow_exceptions=*/false);
  json["contract"] = options.contract.Id();
  json["schedule"] = options.schedule->Name();
  json["hierarchies"] = frontend_->hierarchies().Addresses();
  json["leaves"] = Json::array();
  for (const ConfiguredLeaf& leaf : frontend_->leaves())
    json["leaves"].push_back(leaf.cell + "=" + leaf.address);
  json["ask_cells"] = options.ask_cells;
  json["deadline_ms"] = std::chrono::duration<double, std::milli>(options.deadline).count();
  json["routes"] = stats.routes;
  json["failed"] = stats.failed;
  for (int fallback = 0; fallback < kFallbacks; ++fallback) {
    json["by_fallback"][std::string(ToString(static_cast<Fallback>(fallback)))] =
        stats.by_fallback[fallback];
  }
  json["in_flight"] = stats.in_flight;
  json["expired_choices"] = stats.expired_choices;
  json["asked_ahead"] = stats.asked_ahead;
  json["asked_ahead_used"] = stats.asked_ahead_used;
  json["refused_by_nodes"] = stats.refused_by_nodes;
  json["cells_remembered"] = stats.cells;
  json["workers_remembered"] = stats.workers;
  json["promises"] = Json::array();
  for (const CellPromises& of : frontend_->promises(kPromisesShown)) {
    json["promises"].push_back({{"cell", of.cell},
                                {"promises", of.promises},
                                {"broken", of.broken},
                                {"believed", of.believed}});
  }
  AddFleet(*frontend_, &json);
  for (const auto& [name, section] : status_sections_)
    json[name] = Json::parse(section(), nullptr, /*allow_exceptions=*/false);
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace kvatlas
