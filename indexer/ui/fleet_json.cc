// The sentence at the top of the page (Judge), and the JSON of fleet.json, whose schema is in
// fleet.h.

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "indexer/base/version.h"
#include "indexer/ui/fleet.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kExactInADouble = uint64_t{1} << 53;
constexpr size_t kPointsInASentence = 2;
constexpr size_t kPointsShown = 32;

// JavaScript reads numbers as doubles, which are exact up to 2^53; larger counts are strings.
Json Count(uint64_t count) {
  if (count <= kExactInADouble) return count;
  return std::to_string(count);
}

std::string Plural(uint64_t count, const std::string& word) {
  return std::to_string(count) + " " + word + (count == 1 ? "" : "s");
}

std::string Ago(uint64_t ms) {
  if (ms < 1000) return std::to_string(ms) + " ms";
  if (ms < 120 * 1000) return std::to_string(ms / 1000) + " s";
  return std::to_string(ms / 60000) + " min";
}

// "cell b 12 s stale": the age where it is the trouble.
std::string PointOf(const FleetCell& cell) {
  std::string point = "cell " + cell.name + " ";
  switch (cell.health) {
    case FleetHealth::kUnreachable:
    case FleetHealth::kStale:
      point += Ago(cell.age_ms) + " ";
      break;
    default:
      break;
  }
  point += FleetHealthName(cell.health);
  return point;
}

// Sums over all cells.
struct Tally {
  uint64_t exact = 0, workers = 0, silent = 0, blocks = 0;
  FleetLoad load;
  std::vector<const FleetCell*> unwell;  // the worst first
};

// Cells that are not exact are sorted by state, then by age.
Tally TallyOf(const FleetPage& fleet) {
  Tally tally;
  for (const FleetCell& cell : fleet.cells) {
    tally.exact += cell.health == FleetHealth::kExact;
    tally.workers += cell.workers_count;
    tally.silent += cell.workers_silent;
    tally.blocks += cell.blocks;
    tally.load.used_blocks += cell.load.used_blocks;
    tally.load.free_blocks += cell.load.free_blocks;
    tally.load.running += cell.load.running;
    tally.load.waiting += cell.load.waiting;
    if (cell.health != FleetHealth::kExact) tally.unwell.push_back(&cell);
  }
  std::stable_sort(tally.unwell.begin(), tally.unwell.end(),
                   [](const FleetCell* a, const FleetCell* b) {
                     return std::pair(a->health, a->age_ms) > std::pair(b->health, b->age_ms);
                   });
  return tally;
}

// Whether this process is the whole fleet: its cell needs no name.
bool IsAlone(const FleetPage& fleet) {
  return fleet.cells.size() == 1 && !fleet.peers.empty() &&
         std::all_of(fleet.peers.begin(), fleet.peers.end(),
                     [](const FleetPeer& peer) { return peer.is_self; });
}

std::string NoneHeard(const Tally& tally) {
  if (tally.workers == 1) return "the only worker is silent, and in no answer";
  return "all " + Plural(tally.workers, "worker") + " are silent, and in no answer";
}

// "worker w3 of cell a silent for 12 s".
std::vector<std::string> SilentWorkers(const FleetPage& fleet) {
  std::vector<std::string> points;
  for (const FleetCell& cell : fleet.cells) {
    if (cell.health == FleetHealth::kUnreachable) continue;  // what is known of them is old
    for (const FleetWorker& worker : cell.workers) {
      if (!worker.masked && worker.connected) continue;
      if (points.size() == kPointsShown) return points;
      points.push_back("worker " + worker.name + (IsAlone(fleet) ? "" : " of cell " + cell.name) +
                       (worker.masked ? " silent for " : " disconnected, last heard ") +
                       Ago(worker.age_ms) + (worker.masked ? "" : " ago"));
    }
  }
  return points;
}

// Processes by version, this one included.
std::map<std::string, uint64_t> Versions(const FleetPage& fleet) {
  std::map<std::string, uint64_t> versions = {{kVersion, 1}};
  for (const FleetPeer& peer : fleet.peers)
    if (!peer.version.empty() && !peer.is_self) ++versions[peer.version];
  return versions;
}

// An array rather than an object: there may be `kTilesMax` of them in one answer.
Json TileOf(const FleetWorker& worker) {
  Json tile = {worker.name,      worker.rank,   FleetHealthName(worker.trust), worker.masked,
               worker.connected, worker.age_ms, Count(worker.blocks)};
  if (worker.load.has_value()) {
    for (const uint64_t value : {worker.load->used_blocks, worker.load->free_blocks,
                                 worker.load->running, worker.load->waiting})
      tile.push_back(Count(value));
  } else {
    for (const int unknown : {-1, -1, 0, 0}) tile.push_back(unknown);
  }
  return tile;
}

Json JsonOf(const FleetCell& cell, int64_t now_ms, bool with_tiles) {
  Json json = {{"name", cell.name},
               {"region", cell.region},
               {"state", FleetHealthName(cell.health)},
               {"age_ms", cell.age_ms},
               {"address", cell.address},
               {"replicas", cell.replicas},
               {"workers", Count(cell.workers_count)},
               {"workers_silent", Count(cell.workers_silent)},
               {"used_blocks", Count(cell.load.used_blocks)},
               {"free_blocks", Count(cell.load.free_blocks)},
               {"running", Count(cell.load.running)},
               {"waiting", Count(cell.load.waiting)},
               {"blocks", Count(cell.blocks)}};
  if (!cell.why.empty()) json["why"] = cell.why;
  if (!cell.version.empty()) json["version"] = cell.version;
  if (!cell.workers_at_ms.has_value()) return json;
  json["seen_ms"] = std::max<int64_t>(0, now_ms - *cell.workers_at_ms);
  if (!with_tiles) return json;
  json["tiles"] = Json::array();
  for (const FleetWorker& worker : cell.workers) json["tiles"].push_back(TileOf(worker));
  return json;
}

Json JsonOf(const FleetStream& stream) {
  Json json = {{"from", stream.from},
               {"to", stream.to},
               {"domain", stream.domain},
               {"state", stream.state},
               {"reason", stream.reason},
               {"trust", FleetHealthName(stream.trust)},
               {"masked", stream.masked},
               {"age_ms", stream.age_ms},
               {"behind", Count(stream.behind)},
               {"gaps", Count(stream.gaps)},
               {"snapshots", Count(stream.snapshots)},
               {"digests_different", Count(stream.digests_different)},
               {"refusals", Count(stream.refusals)},
               {"lost", Count(stream.lost)}};
  if (stream.lag_ms.has_value()) json["lag_ms"] = *stream.lag_ms;
  return json;
}

Json JsonOf(const FleetPeer& peer) {
  Json json = {{"kind", peer.kind},   {"name", peer.name},   {"address", peer.address},
               {"state", peer.state}, {"error", peer.error}, {"version", peer.version}};
  if (peer.age_ms.has_value()) json["age_ms"] = *peer.age_ms;
  return json;
}

// A state that is not in the list counts as the worst.
int Badness(const FleetPeer& peer) {
  constexpr std::string_view kStates[] = {"fresh", "asked", "late", "refused", "unreachable"};
  return static_cast<int>(std::find(std::begin(kStates), std::end(kStates), peer.state) -
                          std::begin(kStates));
}

// Names of workers may not be UTF-8; such bytes are replaced rather than refused.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

// 1. The points: lost nodes, cells that are not exact, silent workers, in this order, at most
//    `kPointsShown`.
// 2. The level: bad if no cell is exact or no worker is heard; warning if there is any point or
//    finding; good otherwise. Cells that were not asked yet make it unknown, not bad.
// 3. The sentence: how many cells are exact, then the first points, then how many more there are.
// 4. A process alone without workers is "unknown": nothing is wrong, but nothing is heard.
FleetVerdict Judge(const FleetPage& fleet) {
  FleetVerdict verdict;
  const Tally tally = TallyOf(fleet);
  const uint64_t cells = fleet.cells.size();
  bool lost_nodes = false;
  for (const FleetPeer& peer : fleet.peers) {
    if (peer.kind != "hierarchy" || peer.state != "unreachable") continue;
    lost_nodes = true;
    if (verdict.points.size() < kPointsShown)
      verdict.points.push_back("hierarchy node " + peer.address + " does not answer");
  }
  for (const FleetCell* cell : tally.unwell)
    if (verdict.points.size() < kPointsShown) verdict.points.push_back(PointOf(*cell));
  for (std::string& silent : SilentWorkers(fleet))
    if (verdict.points.size() < kPointsShown) verdict.points.push_back(std::move(silent));
  if (cells == 0) {
    verdict.level = lost_nodes ? "bad" : "unknown";
    verdict.text = fleet.fresh ? "no cell is known" : "asking the fleet";
  } else {
    const bool none_heard = tally.workers > 0 && tally.silent == tally.workers;
    verdict.text = none_heard ? NoneHeard(tally)
                   : tally.exact == cells
                       ? (IsAlone(fleet) ? "all is exact"
                          : cells == 1   ? "cell " + fleet.cells[0].name + " exact"
                                         : "all " + Plural(cells, "cell") + " exact")
                       : std::to_string(tally.exact) + " of " + Plural(cells, "cell") + " exact";
    verdict.level = tally.exact == 0 || none_heard                  ? "bad"
                    : !verdict.points.empty() || fleet.findings > 0 ? "warning"
                                                                    : "good";
    // Cells that were not asked yet are no trouble.
    if (tally.exact == 0 &&
        std::all_of(tally.unwell.begin(), tally.unwell.end(),
                    [](const auto* cell) { return cell->health == FleetHealth::kUnknown; }))
      verdict.level = "unknown";
  }
  const size_t told = std::min(verdict.points.size(), kPointsInASentence);
  for (size_t i = 0; i < told; ++i) verdict.text += "; " + verdict.points[i];
  if (verdict.points.size() > told)
    verdict.text += "; " + std::to_string(verdict.points.size() - told) + " more";
  if (verdict.points.empty() && cells > 0 && tally.workers > 0)
    verdict.text += ", " + Plural(tally.workers, "worker") + " heard";
  if (verdict.points.empty() && IsAlone(fleet) && tally.workers == 0 && tally.exact == 1) {
    verdict.level = "unknown";
    verdict.text = "no engine's events are heard";
  }
  if (fleet.findings > 0) verdict.text += "; " + Plural(fleet.findings, "finding");
  return verdict;
}

// All cells; their workers only if there are at most `kTilesMax` in all. Streams and peers are cut
// to the worst, with the totals beside them.
std::string FleetJson(const FleetPage& fleet) {
  const FleetVerdict verdict = Judge(fleet);
  const Tally tally = TallyOf(fleet);
  Json json = {
      {"program", fleet.program},
      {"kind", fleet.kind},
      {"name", fleet.name},
      {"version", kVersion},
      {"now_ms", fleet.now_ms},
      {"fresh", fleet.fresh},
      {"verdict", {{"level", verdict.level}, {"text", verdict.text}, {"points", verdict.points}}},
      {"totals",
       {{"cells", fleet.cells.size()},
        {"cells_exact", tally.exact},
        {"workers", Count(tally.workers)},
        {"workers_silent", Count(tally.silent)},
        {"blocks", Count(tally.blocks)},
        {"used_blocks", Count(tally.load.used_blocks)},
        {"free_blocks", Count(tally.load.free_blocks)},
        {"running", Count(tally.load.running)},
        {"waiting", Count(tally.load.waiting)}}},
      {"versions", Json::array()},
      {"cells", Json::array()},
      {"streams_total", std::max<uint64_t>(fleet.streams.size(), fleet.streams_total)},
      {"peers_total", fleet.peers.size()},
      {"models", fleet.models},
      {"decisions", fleet.decisions},
      {"explain", fleet.explain}};
  for (const auto& [version, processes] : Versions(fleet))
    json["versions"].push_back({{"version", version}, {"processes", processes}});
  size_t workers = 0;
  for (const FleetCell& cell : fleet.cells) workers += cell.workers.size();
  for (const FleetCell& cell : fleet.cells)
    json["cells"].push_back(JsonOf(cell, fleet.now_ms, workers <= kTilesMax));
  std::vector<FleetStream> streams = fleet.streams;
  KeepWorst(kStreamsShown, &streams);
  json["streams"] = Json::array();
  for (const FleetStream& stream : streams) json["streams"].push_back(JsonOf(stream));
  std::vector<const FleetPeer*> peers;
  for (const FleetPeer& peer : fleet.peers) peers.push_back(&peer);
  std::stable_sort(peers.begin(), peers.end(), [](const FleetPeer* a, const FleetPeer* b) {
    return Badness(*a) > Badness(*b);
  });
  if (peers.size() > kPeersShown) peers.resize(kPeersShown);
  json["peers"] = Json::array();
  for (const FleetPeer* peer : peers) json["peers"].push_back(JsonOf(*peer));
  json["findings"] = Json::parse(fleet.findings_json, nullptr, /*allow_exceptions=*/false);
  return Dump(json);
}

std::string CellJson(const FleetPage& fleet, const std::string& name) {
  for (const FleetCell& cell : fleet.cells) {
    if (cell.name != name) continue;
    return Dump({{"now_ms", fleet.now_ms},
                 {"cells", Json::array({JsonOf(cell, fleet.now_ms, /*with_tiles=*/true)})}});
  }
  return "";
}

}  // namespace kvatlas
