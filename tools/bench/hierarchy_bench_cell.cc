#include "tools/bench/hierarchy_bench_cell.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "indexer/base/hash.h"
#include "indexer/stream/message_size.h"
#include "tools/testing/cluster/fleet.h"

namespace kvatlas {
namespace {

// A leaf's timer ticks all the time; here only when something is due, and this often for heartbeats
// and digests.
constexpr Duration kIdleTick = std::chrono::seconds(1);

}  // namespace

void StalenessProbe::Below(SequenceHash waypoint, bool gained, Time now) {
  Seen& seen = seen_[waypoint];
  if (gained) {
    if (seen.holders++ == 0) seen.since = now;
  } else if (seen.holders > 0) {
    --seen.holders;
    ForgetIfGone(waypoint);
  }
}

void StalenessProbe::Above(SequenceHash waypoint, bool gained, Time now, std::vector<double>* ms) {
  Seen& seen = seen_[waypoint];
  seen.above = gained;
  if (gained && seen.holders > 0)
    ms->push_back(std::chrono::duration<double, std::milli>(now - seen.since).count());
  ForgetIfGone(waypoint);
}

void StalenessProbe::ForgetIfGone(SequenceHash waypoint) {
  const auto it = seen_.find(waypoint);
  if (!it->second.above && it->second.holders == 0) seen_.erase(it);
}

BenchCell::BenchCell(const BenchCellOptions& options, Simulation* simulation,
                     StreamAcceptor* hierarchy, NetworkStats* network,
                     std::function<void()> delivering)
    : options_(options),
      name_(CellNameOf(options.number)),
      simulation_(*simulation),
      reporter_(ReporterOptions(hierarchy, network, std::move(delivering))),
      coverage_(reporter_.AddDomain(options.domain, options.block_size)),
      registry_(RegistryOptions()),
      loads_(options.workers),
      batches_(options.workers),
      digests_(options.workers),
      digest_due_(options.workers, simulation->now() + SenderOptions().digest_every),
      beat_(simulation->now() +
            Duration(static_cast<int64_t>(Xxh3(name_, options.seed) %
                                          static_cast<uint64_t>(options.report_every.count())))),
      self_(std::make_shared<BenchCell*>(this)) {
  for (uint32_t worker = 0; worker < options.workers; ++worker) {
    HolderInfo info{.id = {.name = WorkerNameOf(options.number, worker), .rank = 0, .replica = ""},
                    .address = "",
                    .labels = {}};
    workers_.push_back(*registry_.AddLocal(options.domain, options.block_size, std::move(info)));
    workers_.back()->SetLoad(loads_[worker]);
  }
  Wake();
}

BenchCell::~BenchCell() { *self_ = nullptr; }

CoverageReporterOptions BenchCell::ReporterOptions(StreamAcceptor* hierarchy, NetworkStats* network,
                                                   std::function<void()> delivering) {
  CoverageReporterOptions reporter;
  reporter.cell = {.name = name_, .rank = 0, .replica = ""};
  reporter.address = name_;
  reporter.parents = {"hierarchy"};
  reporter.make_link = [this, hierarchy, network, delivering](const std::string&) {
    return std::make_unique<SimulatedLink>(&simulation_, hierarchy, options_.network,
                                           Xxh3(name_, options_.seed), network, delivering);
  };
  reporter.contract_id = HashContract().Id();
  reporter.schedule = options_.schedule;
  reporter.schedule_name = options_.schedule->Name();
  reporter.coverage = options_.coverage;
  reporter.sender = options_.sender;
  reporter.load_every = options_.load_every;
  reporter.load_step = options_.load_step;
  reporter.load_refresh = options_.load_refresh;
  reporter.epoch = 1;
  reporter.instance_id = options_.number + 1;
  reporter.clock = &simulation_.clock();
  return reporter;
}

HolderRegistryOptions BenchCell::RegistryOptions() {
  HolderRegistryOptions registry;
  registry.contract_id = HashContract().Id();
  registry.clock = &simulation_.clock();
  registry.observe = [this](const Domain&, uint32_t) -> DomainObserver* { return this; };
  return registry;
}

void BenchCell::OnChanged(HolderIndex holder, const ChangeLog::Part& changes,
                          const Stored* stored) {
  coverage_->OnChanged(holder, changes, stored);
  changes.ForEachBlock([&](SequenceHash block, Position position, TierMask before, TierMask after) {
    if (before.empty() != after.empty() && options_.schedule->IsWaypoint(position))
      probe_.Below(block, before.empty(), simulation_.now());
  });
}

void BenchCell::OnLoad(HolderIndex holder, const std::optional<Load>& load) {
  coverage_->OnLoad(holder, load);
  load_changed_ = true;
}

void BenchCell::OnStep(uint32_t worker, std::vector<Event> events, const Load& load) {
  HolderHandle& holder = *workers_[worker];
  Batch batch{
      .number = batches_[worker] + 1, .events = std::move(events), .load = {}, .digest = {}};
  if (load != loads_[worker]) {
    loads_[worker] = load;
    batch.load = load;
    holder.SetLoad(load);
  }
  CountDigests(worker);
  if (batch.events.empty() && !batch.load.has_value()) return;
  ++batches_[worker];
  for (const Event& event : batch.events) {
    if (const Stored* stored = std::get_if<Stored>(&event)) {
      for (SequenceHash block : stored->blocks) digests_[worker].Add(stored->tier, block);
    } else if (const Removed* removed = std::get_if<Removed>(&event)) {
      for (SequenceHash block : removed->blocks) digests_[worker].Subtract(removed->tier, block);
    }
    holder.Apply(event).IgnoreError();  // it is never shed: there is no bound
    traffic_.leaf_updates += BlockCount(event);
  }
  traffic_.leaf_load_bytes += LoadBytes(batch);
  traffic_.leaf_bytes += HoldingsBytes(std::move(batch));
  Wake();
}

// A publisher's stream carries one every so often, whether anything happens or not.
void BenchCell::CountDigests(uint32_t worker) {
  const Duration every = SenderOptions().digest_every;
  for (; digest_due_[worker] <= simulation_.now(); digest_due_[worker] += every) {
    traffic_.leaf_bytes += HoldingsBytes(
        Batch{.number = ++batches_[worker], .events = {}, .load = {}, .digest = digests_[worker]});
  }
}

void BenchCell::Wake() {
  const int64_t every = options_.report_every.count();
  const int64_t beats = (simulation_.now() - beat_).count() / every + 1;
  WakeAt(beat_ + Duration(std::max<int64_t>(beats, 0) * every));
}

void BenchCell::WakeAt(Time when) {
  if (wake_at_ > simulation_.now() && wake_at_ <= when) return;
  wake_at_ = when;
  simulation_.At(when, [self = self_, when] {
    if (*self != nullptr && (*self)->wake_at_ == when) (*self)->Tick();
  });
}

void BenchCell::Tick() {
  const Time now = simulation_.now();
  wake_at_ = Time(0);
  reporter_.Tick();
  if (const std::optional<Time> due = coverage_->NextDue();
      due.has_value() && *due <= now + kIdleTick) {
    const int64_t every = options_.report_every.count();
    const int64_t beats = (std::max(*due, now + Duration(1)) - beat_).count();
    WakeAt(beat_ + Duration((beats + every - 1) / every * every));
  } else {
    WakeAt(now + kIdleTick);
  }
  // Its reporter may keep a load for later.
  if (std::exchange(load_changed_, false)) {
    WakeAt(now + options_.load_every);
    load_refresh_at_ = now + options_.load_refresh;
  } else if (load_refresh_at_ > now) {
    WakeAt(load_refresh_at_);
  }
}

WorkersAnswer BenchCell::FindOverlaps(std::span<const SequenceHash> sequence) const {
  WorkersAnswer answer{.workers = {}, .block_size = options_.block_size};
  absl::StatusOr<OverlapAnswer> found =
      registry_.FindOverlaps(options_.domain, {.blocks = sequence}, /*all_holders=*/true);
  if (!found.ok()) return answer;
  for (const HolderOverlap& overlap : found->holders) {
    answer.workers.push_back({.worker = overlap.holder->id,
                              .blocks = overlap.blocks,
                              .trust = overlap.trust,
                              .load = overlap.load});
  }
  return answer;
}

CellTraffic BenchCell::Traffic() const {
  CellTraffic traffic = traffic_;
  for (const ParentStats& parent : reporter_.Stats()) {
    traffic.updates += parent.waypoints_announced + parent.waypoints_withdrawn;
    traffic.bytes += parent.bytes_sent;
    traffic.held += parent.waypoints_held;
    traffic.snapshots += parent.sender.snapshots_sent;
  }
  traffic.covered = coverage_->Stats().covered;
  return traffic;
}

bool BenchCell::AtRest() const {
  for (const ParentStats& parent : reporter_.Stats())
    if (!parent.at_rest) return false;
  return true;
}

}  // namespace kvatlas
