#include "tools/bench/hierarchy_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <utility>

#include "frontend/router/frontend.h"
#include "hierarchy/hierarchy.h"
#include "indexer/base/hash.h"
#include "tools/bench/hierarchy_bench_cell.h"
#include "tools/bench/hierarchy_bench_net.h"
#include "tools/testing/cluster/fleet.h"
#include "tools/testing/mock_engine/engine_model.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

const Domain kDomain{"bench", ""};
constexpr Duration kSettleMax = std::chrono::minutes(10);
constexpr Duration kHierarchyTick = std::chrono::milliseconds(200);
// What a prompt's user is told by: the first 512 tokens alone are the same in all of them.
constexpr size_t kUserIds = 2;

Duration FromMs(double ms) { return Duration(static_cast<int64_t>(ms * 1e6)); }

EngineOptions EngineOptionsOf(const HierarchyBenchOptions& options) {
  EngineOptions engine;
  engine.capacity_blocks = options.capacity;
  engine.block_size = kTokensPerHashId / options.split;
  return engine;
}

FleetOptions FleetOptionsOf(const HierarchyBenchOptions& options) {
  FleetOptions fleet;
  fleet.cells = options.cells;
  fleet.workers = options.workers;
  fleet.engine = EngineOptionsOf(options);
  fleet.weights.seed = options.seed;
  return fleet;
}

EngineRequest EngineRequestOf(uint64_t id, const TraceRequest& request,
                              std::vector<SequenceHash> blocks) {
  return {.id = id,
          .blocks = std::move(blocks),
          .prompt_tokens = request.input_tokens,
          .output_tokens = request.output_tokens};
}

// Timers of a network this slow: no timer gives up what is only on its way.
HolderRegistryOptions RegistryOptionsOf(const HierarchyBenchOptions& options, const Clock* clock,
                                        DomainObserver* observer) {
  HolderRegistryOptions registry;
  registry.index_name = options.index_name;
  registry.clock = clock;
  registry.maintain_steps_per_tick = 256;  // an hour passes in seconds
  registry.observe = [observer](const Domain&, uint32_t) { return observer; };
  const Duration round_trip = 2 * FromMs(options.delay_ms);
  registry.receiver.credit_batches = SenderOptions().window_batches;
  registry.receiver.retry_after += round_trip;
  registry.receiver.repair_timeout += 4 * round_trip;
  registry.receiver.lease_ttl += round_trip;
  return registry;
}

// The world of one run.
class World : private CellFinder, private OverlapFinder, private DomainObserver {
 public:
  World(const HierarchyBenchOptions& options, const WaypointSchedule* schedule)
      : options_(options),
        schedule_(*schedule),
        fleet_(FleetOptionsOf(options)),
        hierarchy_({.node = "bench",
                    .schedule = schedule,
                    .registry = RegistryOptionsOf(options, &simulation_.clock(), this)}),
        frontend_(FrontendOptionsOf(options, schedule), this, this, &simulation_.clock()),
        engine_due_(fleet_.workers(), EngineModel::kForever) {
    for (uint32_t cell = 0; cell < options.cells; ++cell) AddCell(cell);
    TickHierarchy();
    // Every cell has said hello before the first request.
    simulation_.RunUntil(simulation_.now() + seconds(1) + 8 * FromMs(options.delay_ms));
    start_ = simulation_.now();
  }

  HierarchyBenchResult Run(const std::vector<TraceRequest>& trace) {
    double time_ms = 0;
    for (size_t i = 0; i < trace.size(); ++i) {
      time_ms = std::max(time_ms, trace[i].timestamp_ms);
      simulation_.RunUntil(start_ + FromMs(time_ms));
      Serve(i, trace[i], time_ms);
    }
    return Finish();
  }

 private:
  static FrontendOptions FrontendOptionsOf(const HierarchyBenchOptions& options,
                                           const WaypointSchedule* schedule) {
    FrontendOptions frontend;
    frontend.hierarchies = {"hierarchy"};
    frontend.ask_cells = options.ask;
    frontend.block_size = kTokensPerHashId / options.split;
    frontend.weights.seed = options.seed;
    frontend.schedule = schedule;
    frontend.memory.doubt_half_life = FromMs(options.doubt_half_life_s * 1000);
    return frontend;
  }

  void AddCell(uint32_t number) {
    BenchCellOptions cell;
    cell.number = number;
    cell.workers = options_.workers;
    cell.domain = kDomain;
    cell.block_size = kTokensPerHashId / options_.split;
    cell.schedule = &schedule_;
    cell.coverage.withdraw_delay = FromMs(options_.withdraw_delay_ms);
    cell.coverage.waypoints_max = options_.budget;
    cell.sender.hello_timeout += 2 * FromMs(options_.delay_ms);
    cell.sender.digest_every = FromMs(options_.digest_every_s * 1000);
    cell.load_every = FromMs(options_.load_every_ms);
    cell.load_step = options_.load_step;
    cell.load_refresh = FromMs(options_.load_refresh_s * 1000);
    cell.network = {.delay = FromMs(options_.delay_ms),
                    .loss = options_.loss,
                    .partition_every = FromMs(options_.partition_every_s * 1000),
                    .partition_for = FromMs(options_.partition_for_s * 1000)};
    cell.report_every = FromMs(options_.report_every_ms);
    cell.seed = options_.seed;
    cells_.push_back(std::make_unique<BenchCell>(cell, &simulation_, &hierarchy_.registry(),
                                                 &network_,
                                                 [this, number] { delivering_ = number; }));
    cell_numbers_[cells_.back()->name()] = number;
    for (uint32_t i = 0; i < options_.workers; ++i)
      worker_numbers_[WorkerNameOf(number, i)] = number * options_.workers + i;
  }

  void TickHierarchy() {
    ticking_ = true;
    hierarchy_.registry().Tick();
    ticking_ = false;
    simulation_.After(kHierarchyTick, [this] { TickHierarchy(); });
  }

  // ---- A request ----

  void Serve(uint64_t id, const TraceRequest& request, double time_ms) {
    std::vector<SequenceHash> blocks = PromptBlocks(request, options_.split);
    const std::vector<SequenceHash> waypoints = schedule_.Select(blocks);
    for (uint32_t i = 0; i < waypoints.size(); ++i) ordinals_.emplace(waypoints[i], i);
    const bool compared = id % options_.best_every == 0;
    const uint32_t best = compared ? fleet_.Best(blocks).overlap_blocks : 0;
    std::optional<RouteResult> route;
    frontend_.RouteAsync({.domain = kDomain, .sequence_hashes = blocks},
                         [&route](absl::StatusOr<RouteResult> answer) {
                           if (answer.ok()) route = *std::move(answer);
                         });
    ++requests_;
    if (!route.has_value()) {
      ++failed_;
      return;
    }
    fallbacks_ += route->receipt.fallback != Fallback::kNone;
    const uint32_t worker = worker_numbers_.at(route->worker.name);
    const size_t prompt_blocks = blocks.size();
    const EngineArrival arrival =
        Submit(worker, time_ms, EngineRequestOf(id, request, std::move(blocks)));
    frontend_.Report(route->decision_id, {.accepted = true, .finished = false});
    if (arrival.too_long) {
      ++too_long_;
      return;
    }
    const std::vector<CellAsked>& asked = route->receipt.cells;
    wrong_cells_ += !asked.empty() && asked[0].best_blocks < asked[0].blocks_at_least;
    prompt_blocks_ += prompt_blocks;
    cached_blocks_ += arrival.cached_blocks;
    if (!compared) return;
    compared_blocks_ += prompt_blocks;
    compared_cached_ += arrival.cached_blocks;
    best_blocks_ += best;
    regret_.push_back(double(best) - double(arrival.cached_blocks));
  }

  EngineArrival Submit(uint32_t worker, double time_ms, EngineRequest request) {
    EngineStep step;
    const EngineArrival arrival = fleet_.engine(worker).Submit(time_ms, std::move(request), &step);
    AfterStep(worker, std::move(step));
    return arrival;
  }

  void AfterStep(uint32_t worker, EngineStep step) {
    EngineModel& engine = fleet_.engine(worker);
    cells_[worker / options_.workers]->OnStep(worker % options_.workers, std::move(step.events),
                                              engine.CurrentLoad());
    const std::optional<double> due = engine.NextEventMs();
    engine_due_[worker] = due.value_or(EngineModel::kForever);
    if (!due.has_value()) return;
    simulation_.At(start_ + FromMs(*due), [this, worker, at = *due] {
      if (engine_due_[worker] != at) return;
      EngineStep later;
      fleet_.engine(worker).AdvanceTo(at, &later);
      AfterStep(worker, std::move(later));
    });
  }

  // ---- What the frontend asks ----

  void FindCells(const std::string&, const CellQuestion& question, Duration,
                 CellFinder::Callback callback) override {
    const FindCellsQuery query{.domain = *question.domain,
                               .waypoints = question.waypoints,
                               .blocks = question.blocks,
                               .schedule = hierarchy_.schedule_name(),
                               .best = question.best};
    const Time asked = Clock::Real().Now();
    const absl::StatusOr<FoundCells> found = hierarchy_.FindCells(query);
    find_cells_us_.push_back(
        std::chrono::duration<double, std::micro>(Clock::Real().Now() - asked).count());
    if (!found.ok()) return callback(found.status());
    CellsAnswer answer{.cells = {}, .block_size = found->block_size};
    for (const FoundCell& cell : found->cells) {
      answer.cells.push_back({.cell = cell.cell->id.name,
                              .address = cell.cell->address,
                              .blocks_at_least = cell.blocks_at_least,
                              .blocks_below = cell.blocks_below,
                              .trust = cell.trust,
                              .load = cell.load});
    }
    callback(std::move(answer));
  }

  void FindOverlaps(const std::string& address, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    const uint32_t number = cell_numbers_.at(address);
    WorkersAnswer answer = cells_[number]->FindOverlaps(question.sequence);
    if (number < options_.liars)
      for (WorkerFound& worker : answer.workers) worker.blocks = 0;
    callback(std::move(answer));
  }

  // ---- What the hierarchy learns ----

  void OnChanged(HolderIndex, const ChangeLog::Part& changes, const Stored*) override {
    // A holder that is masked or swept tells of losses that no cell reported.
    if (ticking_) return;
    changes.ForEachBlock([&](SequenceHash block, Position, TierMask before, TierMask after) {
      if (before.empty() != after.empty())
        cells_[delivering_]->probe().Above(block, before.empty(), simulation_.now(),
                                           &staleness_ms_);
    });
  }
  void OnLoad(HolderIndex, const std::optional<Load>&) override {}

  // ---- The end ----

  HierarchyBenchResult Finish() {
    HierarchyBenchResult result;
    result.options = options_;
    result.requests = requests_;
    result.too_long = too_long_;
    result.fallbacks = fallbacks_ + failed_;
    result.cells = options_.cells;
    result.workers = options_.workers;
    const double asked = static_cast<double>(std::max<uint64_t>(requests_ - too_long_, 1));
    result.hit_rate.kvatlas = Share(cached_blocks_, prompt_blocks_);
    result.hit_rate.best_same_state = Share(best_blocks_, compared_blocks_);
    if (best_blocks_ > 0) result.of_best = Share(compared_cached_, best_blocks_);
    result.wrong_cell_rate = static_cast<double>(wrong_cells_) / asked;
    double regret = 0;
    for (double blocks : regret_) regret += blocks;
    if (!regret_.empty()) result.regret_blocks_mean = regret / static_cast<double>(regret_.size());
    result.regret_blocks_p99 = QuantileOf(&regret_, 0.99);
    AddTraffic(&result);
    AddHierarchy(&result);
    result.find_cells_us = {QuantileOf(&find_cells_us_, 0.5), QuantileOf(&find_cells_us_, 0.99)};
    result.staleness_ms = {QuantileOf(&staleness_ms_, 0.5), QuantileOf(&staleness_ms_, 0.99)};
    result.wrong_at_rest = WrongAtRest();
    return result;
  }

  // Everything runs to its end, and everybody is told.
  void Settle() {
    for (uint32_t worker = 0; worker < fleet_.workers(); ++worker) {
      EngineStep step;
      fleet_.engine(worker).AdvanceTo(EngineModel::kForever, &step);
      AfterStep(worker, std::move(step));
    }
    const Time give_up = simulation_.now() + kSettleMax + 100 * FromMs(options_.delay_ms);
    const auto at_rest = [](const auto& cell) { return cell->AtRest(); };
    do {
      simulation_.RunUntil(simulation_.now() + seconds(1));
    } while (simulation_.now() < give_up && !std::all_of(cells_.begin(), cells_.end(), at_rest));
    // What is masked is heard again.
    simulation_.RunUntil(simulation_.now() + SenderOptions().heartbeat_every +
                         2 * FromMs(options_.delay_ms));
  }

  uint64_t WrongAtRest() {
    Settle();
    uint64_t wrong = 0;
    for (uint32_t cell = 0; cell < options_.cells; ++cell) {
      absl::flat_hash_map<SequenceHash, uint32_t> covered;
      for (uint32_t i = 0; i < options_.workers; ++i) {
        for (SequenceHash block : fleet_.engine(cell * options_.workers + i).Contents()) {
          if (const auto at = ordinals_.find(block); at != ordinals_.end()) covered.insert(*at);
        }
      }
      uint64_t right = 0;
      for (const auto& [waypoint, ordinal] : ReportedBy(cell)) {
        const auto at = covered.find(waypoint);
        at != covered.end() && at->second == ordinal ? ++right : ++wrong;
      }
      if (options_.budget == 0) wrong += covered.size() - right;
    }
    return wrong;
  }

  std::vector<std::pair<SequenceHash, uint32_t>> ReportedBy(uint32_t cell) const {
    std::vector<std::pair<SequenceHash, uint32_t>> reported;
    const absl::StatusOr<HolderDump> dump = hierarchy_.registry().Dump(
        kDomain, {.name = cells_[cell]->name(), .rank = 0, .replica = ""});
    if (!dump.ok()) return reported;
    for (const Stored& run : dump->runs) {
      for (size_t i = 0; i < run.blocks.size(); ++i)
        reported.emplace_back(run.blocks[i], run.position + static_cast<uint32_t>(i));
    }
    return reported;
  }

  static double Share(uint64_t part, uint64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(whole, 1));
  }

  void AddTraffic(HierarchyBenchResult* result) const {
    CellTraffic sum;
    for (const auto& cell : cells_) {
      const CellTraffic traffic = cell->Traffic();
      sum.leaf_updates += traffic.leaf_updates;
      sum.leaf_bytes += traffic.leaf_bytes;
      sum.leaf_load_bytes += traffic.leaf_load_bytes;
      sum.updates += traffic.updates;
      sum.bytes += traffic.bytes;
      sum.snapshots += traffic.snapshots;
    }
    result->updates = sum.updates;
    result->bytes = sum.bytes;
    result->leaf_updates = sum.leaf_updates;
    result->leaf_bytes = sum.leaf_bytes;
    result->load_bytes = network_.load_bytes;
    result->leaf_load_bytes = sum.leaf_load_bytes;
    result->update_ratio = Share(sum.updates, sum.leaf_updates);
    result->bytes_ratio = Share(sum.bytes, sum.leaf_bytes);
    result->snapshots = sum.snapshots;
    result->messages_lost = network_.lost;
  }

  void AddHierarchy(HierarchyBenchResult* result) const {
    const absl::StatusOr<DomainStats> stats = hierarchy_.registry().StatsOf(kDomain);
    if (!stats.ok()) return;
    result->coverage = stats->index.holdings;
    result->hierarchy_bytes = stats->index.bytes;
    if (stats->index.holdings > 0) {
      result->hierarchy_bytes_per_coverage = Share(stats->index.bytes, stats->index.holdings);
    }
  }

  const HierarchyBenchOptions options_;
  const WaypointSchedule& schedule_;
  Simulation simulation_;
  Fleet fleet_;
  Hierarchy hierarchy_;
  NetworkStats network_;
  std::vector<std::unique_ptr<BenchCell>> cells_;
  absl::flat_hash_map<std::string, uint32_t> cell_numbers_;
  absl::flat_hash_map<std::string, uint32_t> worker_numbers_;
  absl::flat_hash_map<SequenceHash, uint32_t> ordinals_;  // of every waypoint of every prompt
  Frontend frontend_;
  Time start_{0};
  std::vector<double> engine_due_;  // in the engines' time
  uint32_t delivering_ = 0;         // whose message the hierarchy is being given
  bool ticking_ = false;            // the hierarchy's own timer is at work

  uint64_t requests_ = 0, failed_ = 0, fallbacks_ = 0, too_long_ = 0, wrong_cells_ = 0;
  uint64_t prompt_blocks_ = 0, cached_blocks_ = 0;
  uint64_t compared_blocks_ = 0, compared_cached_ = 0, best_blocks_ = 0;
  std::vector<double> regret_, find_cells_us_, staleness_ms_;
};

// A trace through models of engines; `choose` says which of `fleets` a request goes to, and which
// of its workers.
template <typename Choose>
double RunModels(const std::vector<TraceRequest>& trace, const HierarchyBenchOptions& options,
                 std::vector<Fleet>* fleets, Choose choose) {
  uint64_t cached = 0, blocks_of_all = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    std::vector<SequenceHash> blocks = PromptBlocks(trace[i], options.split);
    EngineStep ignored;
    for (Fleet& fleet : *fleets) fleet.AdvanceTo(trace[i].timestamp_ms, &ignored);
    const auto [fleet, worker] = choose(trace[i], blocks);
    const size_t count = blocks.size();
    const EngineArrival arrival = (*fleets)[fleet].engine(worker).Submit(
        trace[i].timestamp_ms, EngineRequestOf(i, trace[i], std::move(blocks)), &ignored);
    if (arrival.too_long) continue;
    blocks_of_all += count;
    cached += arrival.cached_blocks;
  }
  return double(cached) / double(std::max<uint64_t>(blocks_of_all, 1));
}

using FleetAndWorker = std::pair<size_t, uint32_t>;

double ExactGlobal(const std::vector<TraceRequest>& trace, const HierarchyBenchOptions& options) {
  std::vector<Fleet> fleets;
  fleets.emplace_back(FleetOptionsOf(options));
  return RunModels(trace, options, &fleets,
                   [&](const TraceRequest&, const std::vector<SequenceHash>& blocks) {
                     return FleetAndWorker(0, fleets[0].Best(blocks).worker);
                   });
}

double OneCell(const std::vector<TraceRequest>& trace, const HierarchyBenchOptions& options) {
  FleetOptions of_cell = FleetOptionsOf(options);
  of_cell.cells = 1;
  std::vector<Fleet> fleets;
  for (uint32_t cell = 0; cell < options.cells; ++cell) fleets.emplace_back(of_cell);
  return RunModels(trace, options, &fleets,
                   [&](const TraceRequest& request, const std::vector<SequenceHash>& blocks) {
                     const size_t ids = std::min(kUserIds, request.hash_ids.size());
                     const uint64_t user = Raw(blocks[ids * options.split - 1]);
                     const size_t cell = user % fleets.size();
                     return FleetAndWorker(cell, fleets[cell].Best(blocks).worker);
                   });
}

double Random(const std::vector<TraceRequest>& trace, const HierarchyBenchOptions& options) {
  std::vector<Fleet> fleets;
  fleets.emplace_back(FleetOptionsOf(options));
  std::mt19937_64 random(options.seed);
  return RunModels(
      trace, options, &fleets, [&](const TraceRequest&, const std::vector<SequenceHash>&) {
        return FleetAndWorker(0, static_cast<uint32_t>(random() % fleets[0].workers()));
      });
}

}  // namespace

std::optional<double> QuantileOf(std::vector<double>* values, double share) {
  if (values->empty()) return std::nullopt;
  const auto rank =
      static_cast<ptrdiff_t>(std::clamp(std::ceil(share * static_cast<double>(values->size())) - 1,
                                        0.0, static_cast<double>(values->size() - 1)));
  std::nth_element(values->begin(), values->begin() + rank, values->end());
  return (*values)[static_cast<size_t>(rank)];
}

absl::StatusOr<HierarchyBenchResult> RunHierarchyBench(const std::vector<TraceRequest>& trace,
                                                       const HierarchyBenchOptions& options) {
  absl::StatusOr<WaypointSchedule> schedule = WaypointSchedule::Parse(options.schedule);
  if (!schedule.ok()) return schedule.status();
  const Time started = Clock::Real().Now();
  HierarchyBenchResult result = std::make_unique<World>(options, &*schedule)->Run(trace);
  result.options.schedule = schedule->Name();
  result.seconds = std::chrono::duration<double>(Clock::Real().Now() - started).count();
  return result;
}

HitRates RunBaselines(const std::vector<TraceRequest>& trace,
                      const HierarchyBenchOptions& options) {
  HitRates rates;
  rates.exact_global = ExactGlobal(trace, options);
  rates.one_cell = OneCell(trace, options);
  rates.random = Random(trace, options);
  return rates;
}

}  // namespace kvatlas
