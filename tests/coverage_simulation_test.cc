// Is what a hierarchy says of its cells true? Random engines, leaves and hierarchy nodes under
// random faults, by seed: lost messages, delays, partitions beyond the lease, leaves and nodes that
// are killed and come back, leaves that go on after a younger one took their place, workers that
// are masked; random schedules, delays and budgets.
//
//   engines ─▶ HolderRegistry ─▶ CoverageReporter ══ SimulatedLink ══▶ Hierarchy (two of them) ─▶ FindCells
//        └───▶ reference index ─▶ what was covered, and when ─────────── compared ─────────────────╯
//
// While all this happens: an answer that calls itself exact says no more, and no less, than what
// its cell covered at some instant within the answer's age (and what the network and the leaf's
// timer take). At rest: a node knows what the reference indexes imply; with a budget, the part of
// it that the policy prefers.
//
// A failure prints its seed; KVATLAS_SIMULATION_SEED=n runs only that one,
// KVATLAS_SIMULATION_SEEDS=n that many.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "hierarchy/hierarchy.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/base/waypoints.h"
#include "indexer/coverage/coverage.h"
#include "indexer/coverage/coverage_reporter.h"
#include "indexer/index/index.h"
#include "indexer/index/random_trie.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/receiver.h"
#include "indexer/stream/sender.h"
#include "indexer/telemetry/log.h"
#include "tests/mortal_acceptor.h"
#include "tests/simulated_network.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Domain kDomain{"simulated", ""};
constexpr uint32_t kBlockSize = 16;
constexpr Duration kStep = milliseconds(100);
constexpr Duration kNodeTick = milliseconds(200);
// After the faults, for sweeps, leases and repairs to be over, and for one that was replaced to
// look again.
constexpr Duration kRestMax = std::chrono::minutes(15);

using Waypoints = std::map<SequenceHash, uint32_t>;  // with their ordinals

// What one leaf's workers cover, by the reference index, now and at every instant before.
class Truth {
 public:
  Truth(const WaypointSchedule& schedule, TierMask tiers, uint32_t workers, const Clock& clock)
      : schedule_(schedule),
        tiers_(tiers),
        clock_(clock),
        index_(*MakeIndex("reference", {})),
        masked_(workers, false) {
    for (uint32_t worker = 0; worker < workers; ++worker)
      EXPECT_EQ(Raw(*index_->AddHolder()), worker);
  }

  void Apply(uint32_t worker, const Event& event) {
    ChangeLog changes;
    EXPECT_TRUE(index_->Apply(HolderIndex{worker}, event, &changes).ok());
    if (masked_[worker]) return;
    changes.ForEachBlock(
        [&](SequenceHash block, Position position, TierMask before, TierMask after) {
          Count(block, position, before, true);
          Count(block, position, after, false);
        });
  }

  void SetMasked(uint32_t worker, bool masked) {
    if (masked_[worker] == masked) return;
    masked_[worker] = masked;
    for (const Holding& holding : index_->HoldingsOf(HolderIndex{worker}))
      Count(holding.block, holding.position, holding.tiers, masked);
  }

  // The leaf is no more.
  void End() { ended_ = clock_.Now(); }
  bool EndedBefore(Time when) const { return ended_.has_value() && *ended_ < when; }

  Waypoints Covered() const {
    Waypoints covered;
    for (const auto& [waypoint, of] : waypoints_)
      if (of.holders > 0) covered[waypoint] = of.ordinal;
    return covered;
  }

  // Whether it was (not) covered at some instant since `from`.
  bool WasCovered(SequenceHash waypoint, bool covered, Time from) const {
    if (IsCovered(waypoint) == covered) return true;
    for (auto change = changes_.rbegin(); change != changes_.rend() && change->at >= from; ++change)
      if (change->waypoint == waypoint) return true;
    return false;
  }

  // Whether of these the first `depth`, and not the next one, were covered at one instant since
  // `from`.
  bool HadDepth(const std::vector<SequenceHash>& waypoints, uint32_t depth, Time from) const {
    std::map<SequenceHash, bool> then;
    for (SequenceHash waypoint : waypoints) then[waypoint] = IsCovered(waypoint);
    const auto is_it = [&] {
      uint32_t reached = 0;
      while (reached < waypoints.size() && then[waypoints[reached]]) ++reached;
      return reached == depth;
    };
    if (is_it()) return true;
    for (auto change = changes_.rbegin(); change != changes_.rend() && change->at >= from;
         ++change) {
      const auto at = then.find(change->waypoint);
      if (at == then.end()) continue;
      at->second = !change->covered;
      if (is_it()) return true;
    }
    return false;
  }

 private:
  struct OfWaypoint {
    uint32_t holders = 0;
    uint32_t ordinal = 0;
  };
  struct Change {
    Time at;
    SequenceHash waypoint;
    bool covered;
  };

  void Count(SequenceHash block, Position position, TierMask in, bool lost) {
    if (!schedule_.IsWaypoint(position) || !in.Intersects(tiers_)) return;
    OfWaypoint& of = waypoints_[block];
    of.ordinal = schedule_.WaypointsIn(position + 1) - 1;
    of.holders += lost ? -1 : 1;
    if (of.holders == (lost ? 0 : 1)) changes_.push_back({clock_.Now(), block, !lost});
  }

  bool IsCovered(SequenceHash waypoint) const {
    const auto at = waypoints_.find(waypoint);
    return at != waypoints_.end() && at->second.holders > 0;
  }

  const WaypointSchedule& schedule_;
  const TierMask tiers_;
  const Clock& clock_;
  const std::unique_ptr<Index> index_;
  std::vector<bool> masked_;
  std::map<SequenceHash, OfWaypoint> waypoints_;
  std::vector<Change> changes_;  // in order
  std::optional<Time> ended_;
};

// A hierarchy node that can be killed.
class Node : public MortalAcceptor {
 public:
  explicit Node(const HierarchyOptions& options) : options_(options) { Start(); }

  void Restart() {
    Kill();
    hierarchy_.reset();
    Start();
  }

  Hierarchy& hierarchy() { return *hierarchy_; }

 private:
  void Start() {
    hierarchy_ = std::make_unique<Hierarchy>(options_);
    SetAcceptor(&hierarchy_->registry());
  }

  const HierarchyOptions options_;
  std::unique_ptr<Hierarchy> hierarchy_;
};

// What all leaves of a run have in common.
struct Setting {
  std::unique_ptr<WaypointSchedule> schedule;
  CoverageOptions coverage;
  uint32_t workers = 1;  // of a cell
  Duration report_every{0};
  NetworkOptions network;
  // From a change at a leaf until a node may know of it.
  Duration slack() const {
    return network.delay + report_every + coverage.withdraw_delay + milliseconds(1);
  }
};

// What a replica was in one node's answers.
struct Sighting {
  // When it was exact again, and before, where it was not in between.
  struct Doubt {
    Time again_at{0};
    Time before{0};
  };
  Time exact_at{0};           // last
  std::vector<Doubt> doubts;  // in order
};

// One incarnation of a leaf: a replica of a cell.
class LeafProcess {
 public:
  LeafProcess(const Setting& setting, HolderId id, Epoch epoch, uint64_t seed,
              Simulation* simulation, const std::map<std::string, Node*>& nodes)
      : setting_(setting),
        simulation_(*simulation),
        truth_(std::make_shared<Truth>(*setting.schedule, setting.coverage.tiers, setting.workers,
                                       simulation->clock())),
        reporter_(ReporterOptions(setting, std::move(id), epoch, seed, simulation, nodes)),
        registry_(RegistryOptions()) {
    for (uint32_t worker = 0; worker < setting.workers; ++worker) {
      HolderInfo info{.id = {.name = "w" + std::to_string(worker), .rank = 0, .replica = ""},
                      .address = "",
                      .labels = {}};
      workers_.push_back(*registry_.AddLocal(kDomain, kBlockSize, std::move(info)));
    }
    Tick();
  }

  void Apply(uint32_t worker, const Event& event) {
    EXPECT_TRUE(workers_[worker]->Apply(event).ok());
    truth_->Apply(worker, event);
  }
  void SetMasked(uint32_t worker, bool masked) {
    workers_[worker]->SetMasked(masked);
    truth_->SetMasked(worker, masked);
  }
  void SetLoad(uint32_t worker, const Load& load) { workers_[worker]->SetLoad(load); }

  bool AtRest() const {
    for (const ParentStats& parent : reporter_.Stats())
      if (!parent.at_rest) return false;
    return true;
  }
  bool Replaced() const {
    for (const ParentStats& parent : reporter_.Stats())
      if (parent.sender.replaced == 0) return false;
    return true;
  }
  void Goodbye() { reporter_.Stop(Duration(0)); }

  const std::shared_ptr<Truth>& truth() { return truth_; }

 private:
  static CoverageReporterOptions ReporterOptions(const Setting& setting, HolderId id, Epoch epoch,
                                                 uint64_t seed, Simulation* simulation,
                                                 const std::map<std::string, Node*>& nodes) {
    CoverageReporterOptions reporter;
    reporter.address = ToString(id);
    reporter.cell = std::move(id);
    std::vector<std::string> parents;
    for (const auto& [name, node] : nodes) parents.push_back(name);
    reporter.parents = decltype(reporter.parents)(std::move(parents));
    reporter.make_link = [=, &setting](const std::string& parent) -> std::unique_ptr<SenderLink> {
      return std::make_unique<SimulatedLink>(simulation, nodes.at(parent), setting.network,
                                             Xxh3(parent, seed));
    };
    reporter.contract_id = HashContract().Id();
    reporter.schedule = setting.schedule.get();
    reporter.schedule_name = setting.schedule->Name();
    reporter.coverage = setting.coverage;
    reporter.sender.window_batches = 16;  // so that snapshots are needed
    reporter.epoch = epoch;
    reporter.instance_id = seed;
    reporter.clock = &simulation->clock();
    return reporter;
  }

  HolderRegistryOptions RegistryOptions() {
    HolderRegistryOptions registry;
    registry.contract_id = HashContract().Id();
    registry.clock = &simulation_.clock();
    registry.observe = [this](const Domain& domain, uint32_t block_size) {
      return reporter_.AddDomain(domain, block_size);
    };
    return registry;
  }

  void Tick() {
    reporter_.Tick();
    simulation_.After(setting_.report_every, [self = std::weak_ptr<LeafProcess*>(self_)] {
      if (const auto leaf = self.lock(); leaf != nullptr) (*leaf)->Tick();
    });
  }

  const Setting& setting_;
  Simulation& simulation_;
  const std::shared_ptr<Truth> truth_;  // outlives it
  CoverageReporter reporter_;
  HolderRegistry registry_;
  std::vector<std::unique_ptr<HolderHandle>> workers_;
  const std::shared_ptr<LeafProcess*> self_ = std::make_shared<LeafProcess*>(this);
};

// What an engine really has: tier and block (its number in the trie).
using Engine = std::set<std::pair<Tier, uint32_t>>;

class CoverageSimulation {
 public:
  explicit CoverageSimulation(uint64_t seed)
      : seed_(seed),
        random_(seed),
        trie_({.seed = seed,
               .blocks = 40 + static_cast<uint32_t>(Below(120)),
               .shape = Below(2) == 0 ? Shape::kLongRuns : Shape::kMixed}) {
    setting_.schedule = std::make_unique<WaypointSchedule>(RandomSchedule());
    setting_.workers = 1 + static_cast<uint32_t>(Below(3));
    setting_.report_every = milliseconds(10 + Below(40));
    CoverageOptions& coverage = setting_.coverage;
    coverage.withdraw_delay = milliseconds(Below(2) == 0 ? 0 : Below(1000));
    coverage.cold_after = std::chrono::hours(1000);
    if (Below(4) == 0) coverage.waypoints_max = 1 + Below(12);
    if (Below(4) == 0) coverage.updates_per_s = 2 + static_cast<uint32_t>(Below(50));
    steps_ = 200 + static_cast<int>(Below(600));
    NetworkOptions& network = setting_.network;
    network.delay = milliseconds(Below(300));
    network.loss = Below(2) == 0 ? 0 : 0.01 * static_cast<double>(Below(25));
    if (Below(2) == 0) {
      network.partition_every = seconds(5 + Below(30));
      network.partition_for = seconds(1 + Below(20));  // some beyond the lease
    }
    simulation_.At(simulation_.now() + steps_ * kStep, [this] { simulation_.CalmDown(); });
    HierarchyOptions node{.node = "node", .schedule = setting_.schedule.get(), .registry = {}};
    node.registry.clock = &simulation_.clock();
    node.registry.sweep_after = seconds(5 + Below(20));
    lease_ttl_ = node.registry.receiver.lease_ttl;
    for (const char* name : {"a:1", "b:1"}) {
      nodes_.push_back(std::make_unique<Node>(node));
      by_name_[name] = nodes_.back().get();
    }
    TickNodes();
    cells_.resize(1 + Below(3));
    for (size_t cell = 0; cell < cells_.size(); ++cell) {
      cells_[cell].engines.resize(setting_.workers);
      cells_[cell].replicas.resize(1 + Below(2));
      for (size_t replica = 0; replica < cells_[cell].replicas.size(); ++replica)
        StartLeaf(cell, replica);
    }
  }

  void Run() {
    for (int step = 0; step < steps_ && !Failed(); ++step) {
      for (uint64_t i = Below(4); i > 0; --i) Work();
      Disturb();
      simulation_.RunUntil(simulation_.now() + kStep - milliseconds(Below(20)));
      for (const auto& node : nodes_) Ask(node.get());
    }
    Rest();
  }

 private:
  struct Replica {
    std::unique_ptr<LeafProcess> leaf;  // null: down
    // Who does not know yet that another took its place.
    std::vector<std::unique_ptr<LeafProcess>> before;
    std::vector<std::shared_ptr<Truth>> told;  // of all its incarnations
  };
  struct Cell {
    std::vector<Engine> engines;
    std::vector<Replica> replicas;
  };

  static bool Failed() { return testing::Test::HasFailure(); }
  uint64_t Below(uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_); }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  WaypointSchedule RandomSchedule() {
    std::vector<Position> early;
    for (Position at = 0; at < 12; ++at)
      if (OneIn(5)) early.push_back(at);
    return WaypointSchedule(std::move(early), 1 + static_cast<uint32_t>(Below(8)));
  }

  void TickNodes() {
    for (const auto& node : nodes_) node->hierarchy().registry().Tick();
    simulation_.After(kNodeTick, [this] { TickNodes(); });
  }

  static HolderId IdOf(size_t cell, size_t replica) {
    return {.name = "cell-" + std::to_string(cell), .rank = 0, .replica = std::to_string(replica)};
  }

  // ---- What engines and leaves do ----

  // A new incarnation, told at once what the engines have.
  void StartLeaf(size_t cell, size_t replica) {
    Replica& of = cells_[cell].replicas[replica];
    of.leaf = std::make_unique<LeafProcess>(setting_, IdOf(cell, replica), ++epoch_,
                                            ++seeds_ * 1000 + seed_, &simulation_, by_name_);
    of.told.push_back(of.leaf->truth());
    for (uint32_t worker = 0; worker < setting_.workers; ++worker) {
      for (const auto& [tier, block] : cells_[cell].engines[worker])
        of.leaf->Apply(worker, RunOf({block}, tier));
    }
  }

  Stored RunOf(const std::vector<uint32_t>& blocks, Tier tier) const {
    return {.tier = tier,
            .position = trie_.position(blocks.front()),
            .parent = trie_.parent_hash(blocks.front()),
            .blocks = trie_.hashes(blocks)};
  }

  void Tell(size_t cell, uint32_t worker, const Event& event) {
    for (Replica& replica : cells_[cell].replicas)
      if (replica.leaf != nullptr) replica.leaf->Apply(worker, event);
  }

  Tier RandomTier() {
    constexpr Tier kTiersDrawn[] = {Tier::kDevice, Tier::kDevice, Tier::kHost, Tier::kDisk};
    return kTiersDrawn[Below(4)];
  }

  void Work() {
    const size_t cell = Below(cells_.size());
    const auto worker = static_cast<uint32_t>(Below(setting_.workers));
    Engine& engine = cells_[cell].engines[worker];
    if (OneIn(60)) {
      engine.clear();
      return Tell(cell, worker, Cleared{});
    }
    if (OneIn(3)) {
      Removed removed{.tier = RandomTier(), .blocks = {}};
      for (uint64_t i = 1 + Below(8); i > 0; --i) {
        const auto block = static_cast<uint32_t>(Below(trie_.size()));
        engine.erase({removed.tier, block});
        removed.blocks.push_back(trie_.hash(block));
      }
      return Tell(cell, worker, removed);
    }
    std::vector<uint32_t> path = RandomPath();
    path.erase(path.begin(),
               path.begin() + static_cast<ptrdiff_t>(OneIn(2) ? 0 : Below(path.size())));
    const Tier tier = RandomTier();
    for (uint32_t block : path) engine.insert({tier, block});
    Tell(cell, worker, RunOf(path, tier));
    Replica& told = cells_[cell].replicas[Below(cells_[cell].replicas.size())];
    if (told.leaf != nullptr && OneIn(4))
      told.leaf->SetLoad(worker, Load{.running_requests = static_cast<uint32_t>(Below(100))});
  }

  std::vector<uint32_t> RandomPath() {
    std::vector<uint32_t> path = trie_.PathTo(static_cast<uint32_t>(Below(trie_.size())));
    trie_.Descend(&path, Below(20));
    return path;
  }

  // ---- What goes wrong ----

  void Disturb() {
    const size_t cell = Below(cells_.size());
    const size_t number = Below(cells_[cell].replicas.size());
    Replica& replica = cells_[cell].replicas[number];
    if (OneIn(150)) nodes_[Below(nodes_.size())]->Restart();
    if (replica.leaf == nullptr) {
      if (OneIn(30)) StartLeaf(cell, number);
    } else if (OneIn(150)) {
      EndLeaf(&replica, /*goodbye=*/OneIn(2));
    } else if (OneIn(100) && replica.leaf->AtRest()) {
      // Another takes its place, and it does not know. (One that no node has welcomed yet might
      // take it back.)
      replica.before.push_back(std::move(replica.leaf));
      StartLeaf(cell, number);
    } else if (OneIn(60)) {
      replica.leaf->SetMasked(static_cast<uint32_t>(Below(setting_.workers)), OneIn(2));
    }
  }

  // What it told is remembered: nodes may still answer with it.
  static void EndLeaf(Replica* replica, bool goodbye) {
    replica->leaf->truth()->End();
    if (goodbye) replica->leaf->Goodbye();
    replica->leaf.reset();
  }

  // ---- What is asked ----

  void Ask(Node* node) {
    const std::vector<SequenceHash> prompt = trie_.hashes(RandomPath());
    const std::vector<SequenceHash> waypoints = setting_.schedule->Select(prompt);
    const absl::StatusOr<FoundCells> found =
        node->hierarchy().FindCells({.domain = kDomain,
                                     .waypoints = waypoints,
                                     .blocks = static_cast<uint32_t>(prompt.size()),
                                     .schedule = setting_.schedule->Name()});
    if (absl::IsNotFound(found.status())) return;  // a node that has heard no cell yet
    ASSERT_TRUE(found.ok()) << found.status();
    for (const FoundCell& cell : found->cells)
      Check(node, cell, waypoints, static_cast<uint32_t>(prompt.size()));
  }

  void Check(const Node* node, const FoundCell& found, const std::vector<SequenceHash>& waypoints,
             uint32_t blocks) {
    const WaypointSchedule& schedule = *setting_.schedule;
    EXPECT_LT(found.age, lease_ttl_);
    const uint32_t depth = schedule.WaypointsIn(found.blocks_at_least);
    ASSERT_EQ(found.blocks_at_least, schedule.BlocksCovered(depth));
    ASSERT_EQ(found.blocks_below, std::min(schedule.PositionOf(depth), blocks) + 1);
    if (found.trust != Trust::kExact) return;
    ++checked_;
    if (setting_.coverage.updates_per_s != 0) return;  // which delays, as told to
    const Time from = OldestOf(node, found) - setting_.slack();
    for (const auto& truth : ReplicaOf(found.cell->id).told)
      if (!truth->EndedBefore(from) && Contains(*truth, waypoints, depth, from)) return;
    ADD_FAILURE() << ToString(found.cell->id) << " covers " << depth << " of " << waypoints.size()
                  << " waypoints at " << simulation_.now().count() << ", says an answer of age "
                  << found.age.count() << "; no such coverage since " << from.count();
  }

  // The instant that an exact answer is of, or before. Where single messages are lost within a
  // connection, as no transport of ours does, the end of a replay may be lost too, and nothing
  // tells before the next message that is heard: what was repaired is then as it was when what was
  // missing was heard of.
  Time OldestOf(const Node* node, const FoundCell& found) {
    Sighting& seen = sightings_[{node, ToString(found.cell->id)}];
    const Time now = simulation_.now();
    if (now - seen.exact_at > 2 * kStep) seen.doubts.push_back({now, seen.exact_at});
    seen.exact_at = now;
    Time of = now - found.age;
    if (setting_.network.loss == 0) return of;
    // A replay that was asked for again meanwhile says nothing new.
    const Duration repeats = ReceiverOptions().retry_after + 2 * setting_.network.delay;
    for (auto doubt = seen.doubts.rbegin();
         doubt != seen.doubts.rend() && of <= doubt->again_at + repeats; ++doubt)
      of = std::min(of, doubt->before);
    return of - 2 * kStep;  // it may have been in doubt between two sightings
  }

  bool Contains(const Truth& truth, const std::vector<SequenceHash>& waypoints, uint32_t depth,
                Time from) const {
    const CoverageOptions& coverage = setting_.coverage;
    const bool budget = coverage.waypoints_max != 0;
    // What is announced is what was covered at the last tick.
    if (!budget && coverage.withdraw_delay == Duration(0))
      return truth.HadDepth(waypoints, depth, from);
    // What is withdrawn later than the next is announced is a mixture; each part of it was true.
    for (uint32_t i = 0; i < depth; ++i)
      if (!truth.WasCovered(waypoints[i], true, from)) return false;
    return budget || depth == waypoints.size() || truth.WasCovered(waypoints[depth], false, from);
  }

  Replica& ReplicaOf(const HolderId& id) {
    for (size_t cell = 0; cell < cells_.size(); ++cell)
      for (size_t replica = 0; replica < cells_[cell].replicas.size(); ++replica)
        if (IdOf(cell, replica) == id) return cells_[cell].replicas[replica];
    ADD_FAILURE() << "no process is " << ToString(id);
    std::abort();
  }

  // ---- The end ----

  void Rest() {
    for (size_t cell = 0; cell < cells_.size(); ++cell)
      for (size_t replica = 0; replica < cells_[cell].replicas.size(); ++replica)
        if (cells_[cell].replicas[replica].leaf == nullptr) StartLeaf(cell, replica);
    // Those whose place another took have been told, and end: each of two that run under one name
    // takes the place whenever the other was silent for a lease.
    simulation_.RunUntil(simulation_.now() + std::chrono::minutes(1));
    for (Cell& cell : cells_)
      for (Replica& replica : cell.replicas) {
        for (const auto& before : replica.before)
          EXPECT_TRUE(before->Replaced()) << "it was told that a younger one took its place";
        replica.before.clear();
      }
    const Time give_up = simulation_.now() + kRestMax;
    do {
      simulation_.RunUntil(simulation_.now() + seconds(1));
    } while (!AtRest() && simulation_.now() < give_up);
    ASSERT_TRUE(AtRest());
    // What was masked is heard again, and what is gone is swept.
    simulation_.RunUntil(simulation_.now() + std::chrono::minutes(1));
    for (size_t cell = 0; cell < cells_.size(); ++cell)
      for (size_t replica = 0; replica < cells_[cell].replicas.size(); ++replica)
        for (const auto& node : nodes_)
          Compare(cells_[cell].replicas[replica].leaf->truth()->Covered(),
                  ReportedAt(&node->hierarchy(), IdOf(cell, replica)));
    for (int i = 0; i < 50 && !Failed(); ++i)
      for (const auto& node : nodes_) AskAtRest(&node->hierarchy());
    EXPECT_GT(checked_, 0u);
  }

  bool AtRest() const {
    for (const Cell& cell : cells_)
      for (const Replica& replica : cell.replicas)
        if (!replica.leaf->AtRest()) return false;
    return true;
  }

  Waypoints ReportedAt(Hierarchy* hierarchy, const HolderId& id) {
    Waypoints reported;
    const absl::StatusOr<HolderDump> dump = hierarchy->registry().Dump(kDomain, id);
    EXPECT_TRUE(dump.ok()) << dump.status();
    if (!dump.ok()) return reported;
    EXPECT_EQ(dump->trust, Trust::kExact);
    for (const Stored& run : dump->runs)
      for (size_t i = 0; i < run.blocks.size(); ++i)
        reported[run.blocks[i]] = run.position + static_cast<uint32_t>(i);
    return reported;
  }

  void Compare(const Waypoints& covered, const Waypoints& reported) {
    const uint64_t budget = setting_.coverage.waypoints_max;
    if (budget == 0) {
      EXPECT_EQ(reported, covered);
      return;
    }
    EXPECT_EQ(reported.size(), std::min<size_t>(budget, covered.size()));
    // All are warm: the shallower go first.
    uint32_t deepest = 0, shallowest_left = UINT32_MAX;
    for (const auto& [waypoint, ordinal] : covered)
      if (!reported.contains(waypoint)) shallowest_left = std::min(shallowest_left, ordinal);
    for (const auto& [waypoint, ordinal] : reported) {
      const auto at = covered.find(waypoint);
      ASSERT_NE(at, covered.end()) << "nothing is reported that is not there";
      EXPECT_EQ(at->second, ordinal);
      deepest = std::max(deepest, ordinal);
    }
    EXPECT_LE(deepest, shallowest_left);
  }

  // Of the cells' replicas one speaks, and all say the same but for a budget's ties.
  void AskAtRest(Hierarchy* hierarchy) {
    const std::vector<SequenceHash> prompt = trie_.hashes(RandomPath());
    const std::vector<SequenceHash> waypoints = setting_.schedule->Select(prompt);
    const absl::StatusOr<FoundCells> found =
        hierarchy->FindCells({.domain = kDomain,
                              .waypoints = waypoints,
                              .blocks = static_cast<uint32_t>(prompt.size()),
                              .schedule = setting_.schedule->Name()});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->cells.size(), cells_.size());
    for (const FoundCell& cell : found->cells) {
      const Waypoints reported = ReportedAt(hierarchy, cell.cell->id);
      uint32_t depth = 0;
      while (depth < waypoints.size() && reported.contains(waypoints[depth])) ++depth;
      EXPECT_EQ(cell.blocks_at_least, setting_.schedule->BlocksCovered(depth));
      EXPECT_EQ(cell.trust, Trust::kExact);
    }
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  const RandomTrie trie_;
  Simulation simulation_;
  Setting setting_;
  Duration lease_ttl_{0};
  int steps_ = 0;
  uint64_t epoch_ = 0, seeds_ = 0, checked_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<std::string, Node*> by_name_;
  std::map<std::pair<const Node*, std::string>, Sighting> sightings_;
  std::vector<Cell> cells_;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(CoverageSimulationTest, WhatAHierarchySaysIsTrueWhileThingsFailAndCompleteAtRest) {
  const uint64_t only = FromEnvironment("KVATLAS_SIMULATION_SEED", 0);
  const uint64_t seeds = FromEnvironment("KVATLAS_SIMULATION_SEEDS", 100);
  ConfigureLog({.component = "coverage_simulation_test", .level_min = LogLevel::kError});
  for (uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : seeds); ++seed) {
    SCOPED_TRACE("KVATLAS_SIMULATION_SEED=" + std::to_string(seed));
    CoverageSimulation(seed).Run();
    if (testing::Test::HasFailure()) return;
    // For who waits for thousands.
    if (seed % 500 == 0) {
      std::printf("%llu of %llu seeds\n", static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(seeds));
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace kvatlas
