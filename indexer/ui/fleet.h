// The state of the fleet behind the map, the table of streams and the sentence at the top of the
// page, made from what leaves and hierarchy nodes report about themselves.
//
//   Leaf.Stats ──▶ AddLeaf ─╮
//   Hierarchy.Stats ▶ AddNode ┴▶ FleetPage ──▶ Judge ──▶ FleetJson (all cells), CellJson (one, with all its workers)
//
// *Truth*: as old as the answers it is made of; each cell and peer says how old. A process that was
// not asked, or has not answered, is shown as such, never taken for healthy.
// *Threads*: none. *Cost*: linear in workers; the JSON of 4,096 cells some 1 MB.
// *Bounds*: `kTilesMax` workers are in the JSON of the whole, then cells without their workers;
// `kStreamsShown` streams and `kPeersShown` peers, the worst first.
//
// *Format* of fleet.json. A count beyond 2^53 is a string of digits. Absent: not known.
//   {"program":"kvatlas-frontend", "kind":"frontend", "name":"127.0.0.1:7430", "version":"0.1.0",
//    "now_ms":1700000000000, "fresh":true,                    false: the first answers are not there yet
//    "verdict":{"level":"good|warning|bad|unknown", "text":"3 of 4 cells exact; cell b 12 s stale", "points":["…"]},
//    "versions":[{"version":"0.1.0","processes":5}],
//    "totals":{"cells":4,"cells_exact":3,"workers":32,"workers_silent":1,"blocks":…,"used_blocks":…,"free_blocks":…,
//              "running":…,"waiting":…},
//    "cells":[{"name":"a","region":"eu","state":"exact|degraded|stale|unreachable|unknown","why":"","age_ms":12,
//              "seen_ms":900,                                 since its leaf reported its workers; absent: never
//              "address":"…","replicas":2,"version":"0.1.0","workers":8,"workers_silent":0,"used_blocks":…,"free_blocks":…,
//              "running":…,"waiting":…,"blocks":…,
//              "tiles":[["w0",0,"exact",false,true,37,900,100,1000,2,0], …]}],   absent: more than are shown at once
//                       name, rank, trust, masked, connected, age_ms, blocks, used, free (-1: unknown), running, waiting
//    "streams":[{"from":"w0","to":"a","domain":"m","state":"connected","reason":"","trust":"exact","masked":false,"age_ms":3,
//                "lag_ms":1.5,"behind":0,"gaps":0,"snapshots":0,"digests_different":0,"refusals":0,"lost":0}],
//    "streams_total":40,
//    "peers":[{"kind":"leaf","name":"a","address":"…","state":"fresh|late|refused|unreachable|asked","age_ms":900,"error":"","version":""}],
//    "peers_total":5,
//    "models":["m"], "findings":[…], "decisions":true, "explain":false}

#ifndef KVATLAS_INDEXER_UI_FLEET_H_
#define KVATLAS_INDEXER_UI_FLEET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

inline constexpr size_t kTilesMax = 2048;
inline constexpr size_t kStreamsShown = 64;
inline constexpr size_t kPeersShown = 64;

// The worst last.
enum class FleetHealth { kExact, kUnknown, kDegraded, kStale, kUnreachable };
std::string_view FleetHealthName(FleetHealth health);

struct FleetLoad {
  uint64_t used_blocks = 0;
  uint64_t free_blocks = 0;
  uint64_t running = 0;
  uint64_t waiting = 0;
};

struct FleetWorker {
  std::string name;
  uint32_t rank = 0;
  FleetHealth trust = FleetHealth::kExact;  // the worst of its domains
  bool masked = false;                      // in no answer: its lease ran out
  bool connected = true;
  uint32_t age_ms = 0;
  uint64_t blocks = 0;
  std::optional<FleetLoad> load;
};

struct FleetCell {
  std::string name;
  std::string region;
  std::string address;
  std::string version;
  FleetHealth health = FleetHealth::kUnknown;
  std::string why;      // it is not exact
  uint32_t age_ms = 0;  // since it was last heard
  uint32_t replicas = 1;
  std::optional<int64_t> workers_at_ms;  // Unix time, of `workers`; nothing: only sums are known
  std::vector<FleetWorker> workers;
  uint64_t workers_count = 0;
  uint64_t workers_silent = 0;  // in no answer, or not connected
  uint64_t blocks = 0;
  FleetLoad load;
};

struct FleetStream {
  std::string from, to, domain;
  std::string state, reason;
  FleetHealth trust = FleetHealth::kExact;
  bool masked = false;
  uint32_t age_ms = 0;
  std::optional<double> lag_ms;  // from the engine's clock to applied
  uint64_t behind = 0;           // of coverage: waypoints that are kept back
  uint64_t gaps = 0, snapshots = 0, digests_different = 0, refusals = 0, lost = 0;

  // The order of the list, worst first: present trouble before past trouble.
  double badness() const;
};

struct FleetPeer {
  std::string kind = {};
  std::string name = {};
  std::string address = {};
  std::string version = {};
  std::string state = "asked";  // or "fresh", "late", "refused", "unreachable"
  std::string error = {};
  std::optional<uint32_t> age_ms = {};  // of what is known of it
  bool is_self = false;                 // a part of the process whose page this is
};

struct FleetVerdict {
  std::string level;  // "good", "warning", "bad", "unknown"
  std::string text;
  std::vector<std::string> points;  // all that is not well, a clause each
};

struct FleetPage {
  std::string program, kind, name;
  int64_t now_ms = 0;
  bool fresh = true;
  std::vector<FleetCell> cells;
  std::vector<FleetStream> streams;
  uint64_t streams_total = 0;  // more than `streams`, where only the worst of each process are kept
  std::vector<FleetPeer> peers;
  std::set<std::string> models;
  std::string findings_json = "[]";
  size_t findings = 0;
  bool decisions = false;  // /decisions is there
  bool explain = false;    // /ui/explain is there
};

// The report of one leaf: its cell, its workers, its streams from workers and to parents.
FleetCell CellOf(const v1::StatsResponse& leaf);
void AppendStreams(const v1::StatsResponse& leaf, std::vector<FleetStream>* streams);
// Keeps the worst so many, the worst first.
void KeepWorst(size_t max, std::vector<FleetStream>* streams);
void AppendModels(const v1::StatsResponse& leaf, std::set<std::string>* models);

// The cells and lower nodes that report to a node.
struct ReportedCell {
  FleetCell cell;  // without workers
  bool is_node = false;
};
std::vector<ReportedCell> ReportedBy(const v1::StatsResponse& node);

// "3 of 4 cells exact; cell b 12 s stale".
FleetVerdict Judge(const FleetPage& fleet);

std::string FleetJson(const FleetPage& fleet);
// {"now_ms":…,"cells":[…]} of that cell, with all its workers; empty: there is none of that name.
std::string CellJson(const FleetPage& fleet, const std::string& cell);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_UI_FLEET_H_
