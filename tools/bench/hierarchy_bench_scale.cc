#include "tools/bench/hierarchy_bench_scale.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "hierarchy/hierarchy.h"
#include "indexer/base/hash.h"
#include "indexer/stream/link.h"
#include "tools/bench/hierarchy_bench_synthetic.h"

namespace kvatlas {
namespace {

// As at 5,000 a second.
constexpr uint64_t kQuestionsPerTick = 1000;
constexpr uint64_t kTicksOfUpkeep = 1500;  // five minutes of them

using Waypoints = std::vector<SequenceHash>;

class CellStream {
 public:
  CellStream(Hierarchy* hierarchy, const std::string& name)
      : session_(hierarchy->registry().Accept([](ReceiverMessage) {})) {
    hello_.holder = {.name = name, .rank = 0, .replica = ""};
    hello_.domain = SyntheticCells::domain();
    hello_.block_size = 16;
    hello_.contract_id = HashContract().Id();
    hello_.schedule = hierarchy->schedule_name();
    hello_.epoch = 1;
    hello_.instance_id = 1;
    hello_.starting = true;
    hello_.address = name;
  }

  absl::Status Hello() { return session_->OnMessage(hello_); }
  absl::Status Send(std::vector<Event> events, const std::optional<Load>& load) {
    return session_->OnMessage(
        Batch{.number = ++number_, .events = std::move(events), .load = load, .digest = {}});
  }
  absl::Status Send(SnapshotPart part) { return session_->OnMessage(std::move(part)); }

 private:
  const std::unique_ptr<ReceiverSession> session_;
  kvatlas::Hello hello_;
  BatchNumber number_ = 0;
};

class ScaleBench {
 public:
  explicit ScaleBench(const ScaleOptions& options)
      : options_(options), made_(options.waypoints, options.seed), hierarchy_(HierarchyOf()) {}

  absl::StatusOr<HierarchyBenchResult> Run() {
    for (uint32_t cell = 0; cell < options_.cells; ++cell) {
      if (absl::Status bad = AddCell(); !bad.ok()) return bad;
    }
    HierarchyBenchResult result;
    result.workload = "synthetic cells";
    result.cells = options_.cells;
    result.options.cells = options_.cells;
    result.options.seed = options_.seed;
    std::vector<double> us;
    Ask(std::max<uint64_t>(options_.questions / 10, kQuestionsPerTick), nullptr, &us);  // warm
    us.clear();
    Ask(options_.questions, nullptr, &us);
    result.find_cells_us = {QuantileOf(&us, 0.5), QuantileOf(&us, 0.99)};
    if (absl::Status bad = Weigh(&result.hierarchy_bytes_per_coverage, &result); !bad.ok())
      return bad;
    const Time tended = Clock::Real().Now();
    for (uint64_t i = 0; i < kTicksOfUpkeep; ++i) hierarchy_.registry().Tick();
    const Duration took = (Clock::Real().Now() - tended) / kTicksOfUpkeep;
    result.tick_us = std::chrono::duration<double, std::micro>(took).count();
    if (absl::Status bad = Weigh(&result.hierarchy_bytes_tended, &result); !bad.ok()) return bad;
    if (options_.snapshot_waypoints > 0) {
      if (absl::Status bad = InstallSnapshot(&result); !bad.ok()) return bad;
    }
    return result;
  }

 private:
  // Cells say nothing while they are asked for.
  static HierarchyOptions HierarchyOf() {
    HierarchyOptions options{.node = "scale", .registry = {}};
    options.registry.receiver.lease_ttl = std::chrono::hours(1);
    return options;
  }

  absl::Status AddCell() {
    SyntheticCell made = made_.Next();
    cells_.push_back(std::make_unique<CellStream>(&hierarchy_, made.name));
    CellStream& cell = *cells_.back();
    if (absl::Status bad = cell.Hello(); !bad.ok()) return bad;
    std::vector<Event> events;
    for (Event& event : made.events) {
      events.push_back(std::move(event));
      if (events.size() < 512) continue;
      if (absl::Status bad = cell.Send(std::exchange(events, {}), made.load); !bad.ok()) return bad;
    }
    return cell.Send(std::move(events), made.load);
  }

  // So many questions, or until `stop`.
  void Ask(uint64_t questions, const std::atomic<bool>* stop, std::vector<double>* us) {
    const WaypointSchedule& schedule = WaypointSchedule::Standard();
    std::mt19937_64 random(options_.seed + 1);
    for (uint64_t i = 0; i < questions && (stop == nullptr || !stop->load()); ++i) {
      if (i % kQuestionsPerTick == kQuestionsPerTick - 1) hierarchy_.registry().Tick();
      const Waypoints waypoints = made_.Question(&random);
      const FindCellsQuery query{
          .domain = SyntheticCells::domain(),
          .waypoints = waypoints,
          .blocks = schedule.BlocksCovered(static_cast<uint32_t>(waypoints.size())),
          .schedule = hierarchy_.schedule_name(),
          .best = options_.best};
      const Time asked = Clock::Real().Now();
      const absl::StatusOr<FoundCells> found = hierarchy_.FindCells(query);
      us->push_back(std::chrono::duration<double, std::micro>(Clock::Real().Now() - asked).count());
      if (!found.ok() || found->cells.empty()) us->pop_back();
    }
  }

  // What the index has for a (cell, waypoint) pair.
  absl::Status Weigh(std::optional<double>* bytes, HierarchyBenchResult* result) const {
    const absl::StatusOr<DomainStats> stats =
        hierarchy_.registry().StatsOf(SyntheticCells::domain());
    if (!stats.ok()) return stats.status();
    result->coverage = stats->index.holdings;
    result->hierarchy_bytes = stats->index.bytes;
    *bytes = double(stats->index.bytes) / double(std::max<uint64_t>(stats->index.holdings, 1));
    return absl::OkStatus();
  }

  absl::Status InstallSnapshot(HierarchyBenchResult* result) {
    cells_.push_back(std::make_unique<CellStream>(&hierarchy_, "new"));
    CellStream& cell = *cells_.back();
    if (absl::Status bad = cell.Hello(); !bad.ok()) return bad;
    const std::vector<SnapshotPart> parts = Snapshot();
    std::atomic<bool> stop{false};
    std::vector<double> us;
    Ask(kQuestionsPerTick, nullptr, &us);  // no question since the index's last upkeep
    us.clear();
    std::thread asker([&] { Ask(UINT64_MAX, &stop, &us); });
    const Time begun = Clock::Real().Now();
    absl::Status status;
    for (const SnapshotPart& part : parts) {
      if (status = cell.Send(part); !status.ok()) break;
    }
    const Duration took = Clock::Real().Now() - begun;
    stop.store(true);
    asker.join();
    if (!status.ok()) return status;
    result->snapshot_ms = std::chrono::duration<double, std::milli>(took).count();
    result->snapshot_queries = static_cast<double>(us.size());
    result->find_cells_us_during_snapshot_p99 = QuantileOf(&us, 0.99);
    return absl::OkStatus();
  }

  std::vector<SnapshotPart> Snapshot() const {
    std::vector<SnapshotPart> parts;
    SnapshotPart part{.snapshot_id = 1,
                      .as_of = 0,
                      .part = 0,
                      .last = false,
                      .stored = {},
                      .load = {},
                      .digest = {}};
    Digest digest;
    uint32_t in_part = 0;
    for (uint64_t i = 0; i * SyntheticCells::kTailWaypoints < options_.snapshot_waypoints; ++i) {
      Waypoints tail = SyntheticCells::TailOf(i + (uint64_t{1} << 41));
      for (SequenceHash waypoint : tail) digest.Add(Tier::kDevice, waypoint);
      part.stored.push_back({.tier = Tier::kDevice,
                             .position = SyntheticCells::kTailOrdinal,
                             .parent = kNoParent,
                             .blocks = std::move(tail)});
      in_part += SyntheticCells::kTailWaypoints;
      if (in_part + SyntheticCells::kTailWaypoints <= kBatchBlocksMax) continue;
      parts.push_back(part);
      part.stored.clear();
      in_part = 0;
      ++part.part;
    }
    part.last = true;
    part.load = Load{};
    part.digest = digest;
    parts.push_back(part);
    return parts;
  }

  const ScaleOptions options_;
  SyntheticCells made_;
  Hierarchy hierarchy_;
  std::vector<std::unique_ptr<CellStream>> cells_;
};

}  // namespace

absl::StatusOr<HierarchyBenchResult> RunScaleBench(const ScaleOptions& options) {
  const Time started = Clock::Real().Now();
  absl::StatusOr<HierarchyBenchResult> result = std::make_unique<ScaleBench>(options)->Run();
  if (result.ok())
    result->seconds = std::chrono::duration<double>(Clock::Real().Now() - started).count();
  return result;
}

}  // namespace kvatlas
