#include "tests/long_simulation.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "hierarchy/hierarchy.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"
#include "indexer/base/waypoints.h"
#include "indexer/coverage/coverage_reporter.h"
#include "indexer/index/random_trie.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/sender_pump.h"
#include "tests/mortal_acceptor.h"
#include "tests/simulated_network.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr uint32_t kBlockSize = 16;
constexpr Duration kStep = milliseconds(100);
constexpr Duration kRestMax = minutes(10);

const Domain& TheDomain() {
  static const Domain domain{"simulated", ""};
  return domain;
}

// A process's own clock: the simulation's, and ahead of it by what it was suspended.
class ProcessClock : public Clock {
 public:
  explicit ProcessClock(const Clock* of) : of_(*of) {}
  Time Now() const override { return of_.Now() + ahead_; }
  void Jump(Duration by) { ahead_ += by; }

 private:
  const Clock& of_;
  Duration ahead_{0};
};

// What a round has drawn, the same for all of its processes.
struct World {
  explicit World(uint64_t seed)
      : random(seed),
        trie({.seed = seed,
              .blocks = 1000 + static_cast<uint32_t>(Below(9000)),
              .shape = OneIn(2) ? Shape::kLongRuns : Shape::kMixed}),
        schedule({}, 1 + static_cast<uint32_t>(Below(16))) {
    for (uint32_t block = 0; block < trie.size(); ++block) number_of[trie.hash(block)] = block;
    network.delay = milliseconds(Below(200));
    network.loss = OneIn(2) ? 0 : 0.002 * static_cast<double>(Below(10));
    if (OneIn(2)) {
      network.partition_every = seconds(10 + Below(60));
      network.partition_for = seconds(1 + Below(20));
    }
    sender.window_batches = 16 << Below(7);
    coverage.withdraw_delay = milliseconds(OneIn(2) ? 0 : Below(1000));
    coverage.cold_after = std::chrono::hours(1000);
  }

  uint64_t Below(uint64_t n) { return random() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  std::mt19937_64 random;
  const RandomTrie trie;
  absl::flat_hash_map<SequenceHash, uint32_t> number_of;
  const WaypointSchedule schedule;
  Simulation simulation;
  NetworkOptions network;
  uint64_t messages_lost = 0;
  SenderOptions sender;
  CoverageOptions coverage;
  uint64_t numbers = 0;  // epochs, instances, seeds of links
  RoundResult result;

  std::unique_ptr<SenderLink> LinkTo(StreamAcceptor* acceptor) {
    return std::make_unique<SimulatedLink>(&simulation, acceptor, network, ++numbers,
                                           &messages_lost);
  }
};

// An engine and the publisher in it.
class Worker {
 public:
  Worker(World* world, std::string name, StreamAcceptor* leaf)
      : world_(*world),
        name_(std::move(name)),
        leaf_(leaf),
        clock_(&world->simulation.clock()),
        tiers_(world->trie.size(), 0) {
    Start();
  }
  ~Worker() { End(); }

  // The engine is killed, and its blocks are gone; or only the publisher, which is then told
  // everything anew.
  void Restart(bool with_engine) {
    End();
    if (with_engine) std::fill(tiers_.begin(), tiers_.end(), 0);
    resident_ = ResidentSet();
    Start();
    std::vector<uint32_t> one(1);
    for (one[0] = 0; one[0] < tiers_.size(); ++one[0])
      for (int tier = 0; tier < kTiers; ++tier)
        if ((tiers_[one[0]] >> tier & 1) != 0) Tell(RunOf(one, static_cast<Tier>(tier)));
  }

  // Something that an engine does.
  void Work() {
    if (world_.OneIn(20'000)) {
      std::fill(tiers_.begin(), tiers_.end(), 0);
      return Tell(Cleared{});
    }
    const Tier tier = world_.OneIn(4) ? Tier::kHost : Tier::kDevice;
    const uint8_t bit = TierMask(tier).bits();
    // A piece of a sequence, which ends somewhere.
    std::vector<uint32_t>& piece = piece_;
    piece.clear();
    uint32_t block = static_cast<uint32_t>(world_.Below(world_.trie.size()));
    for (uint64_t left = 1 + world_.Below(48); left > 0 && block != RandomTrie::kNone; --left) {
      piece.push_back(block);
      block = world_.trie.parent(block);
    }
    if (world_.OneIn(2)) {
      Removed removed{.tier = tier, .blocks = {}};
      for (uint32_t each : piece) {
        tiers_[each] &= static_cast<uint8_t>(~bit);
        removed.blocks.push_back(world_.trie.hash(each));
      }
      return Tell(removed);
    }
    std::reverse(piece.begin(), piece.end());
    for (uint32_t each : piece) tiers_[each] |= bit;
    Tell(RunOf(piece, tier));
  }

  void Tick() { pump_->Tick(); }
  void JumpClock(Duration by) { clock_.Jump(by); }
  bool AtRest() const { return pump_->AtRest(); }
  absl::Status status() const { return pump_->status().ok() ? pump_->refusal() : pump_->status(); }
  HolderId id() const { return {.name = name_, .rank = 0, .replica = ""}; }
  std::vector<uint8_t>& tiers() { return tiers_; }

 private:
  Stored RunOf(std::span<const uint32_t> blocks, Tier tier) const {
    return {.tier = tier,
            .position = world_.trie.position(blocks.front()),
            .parent = world_.trie.parent_hash(blocks.front()),
            .blocks = world_.trie.hashes(blocks)};
  }

  void Tell(const Event& event) {
    MutexLock lock(&resident_mutex_);
    const std::vector<Event> changes = resident_.Apply(event);
    for (const Event& change : changes) world_.result.events += BlockCount(change);
    if (!changes.empty()) pump_->Append(changes, std::nullopt);
  }

  void Start() {
    SenderIdentity identity;
    identity.holder = id();
    identity.domain = TheDomain();
    identity.block_size = kBlockSize;
    identity.contract_id = HashContract().Id();
    identity.epoch = ++world_.numbers;
    identity.instance_id = ++world_.numbers;
    pump_ = std::make_unique<SenderPump>(world_.sender, identity, &resident_, &resident_mutex_,
                                         world_.LinkTo(leaf_), &clock_);
    pump_->Start();
  }

  void End() {
    const SenderStats stats = pump_->stats();
    world_.result.snapshots += stats.snapshots_sent;
    world_.result.batches_dropped += stats.batches_dropped;
    pump_.reset();
  }

  World& world_;
  const std::string name_;
  StreamAcceptor* const leaf_;
  ProcessClock clock_;
  std::vector<uint8_t> tiers_;  // the truth
  std::vector<uint32_t> piece_;
  Mutex resident_mutex_;
  ResidentSet resident_;
  std::unique_ptr<SenderPump> pump_;
};

// A leaf: at one address, one process after the other.
class Leaf {
 public:
  Leaf(World* world, std::string name, StreamAcceptor* node)
      : world_(*world), name_(std::move(name)), node_(node), clock_(&world->simulation.clock()) {
    Start();
  }

  void Restart() {
    door_.Kill();
    registry_.reset();
    reporter_.reset();
    Start();
  }

  void Tick() {
    registry_->Tick();
    reporter_->Tick();
  }

  StreamAcceptor* door() { return &door_; }
  HolderRegistry& registry() { return *registry_; }
  void JumpClock(Duration by) { clock_.Jump(by); }
  HolderId id() const { return {.name = name_, .rank = 0, .replica = ""}; }

  bool AtRest() const {
    for (const ParentStats& parent : reporter_->Stats())
      if (!parent.at_rest) return false;
    return true;
  }

 private:
  void Start() {
    CoverageReporterOptions reporter;
    reporter.cell = id();
    reporter.address = name_;
    reporter.parents = ShardMap(std::vector<std::string>{"node"});
    reporter.make_link = [this](const std::string&) { return world_.LinkTo(node_); };
    reporter.contract_id = HashContract().Id();
    reporter.schedule = &world_.schedule;
    reporter.schedule_name = world_.schedule.Name();
    reporter.coverage = world_.coverage;
    reporter.sender.window_batches = world_.sender.window_batches;
    reporter.epoch = ++world_.numbers;
    reporter.instance_id = ++world_.numbers;
    reporter.clock = &clock_;
    reporter_ = std::make_unique<CoverageReporter>(reporter);
    HolderRegistryOptions registry;
    registry.contract_id = HashContract().Id();
    registry.clock = &clock_;
    registry.observe = [of = reporter_.get()](const Domain& domain, uint32_t block_size) {
      return of->AddDomain(domain, block_size);
    };
    registry_ = std::make_unique<HolderRegistry>(registry);
    door_.SetAcceptor(registry_.get());
  }

  World& world_;
  const std::string name_;
  StreamAcceptor* const node_;
  ProcessClock clock_;
  MortalAcceptor door_;
  std::unique_ptr<CoverageReporter> reporter_;
  std::unique_ptr<HolderRegistry> registry_;  // told to the reporter until it goes
};

// A hierarchy node, likewise.
class Node {
 public:
  explicit Node(World* world) : world_(*world), clock_(&world->simulation.clock()) { Start(); }

  void Restart() {
    door_.Kill();
    hierarchy_.reset();
    Start();
  }
  void Tick() { hierarchy_->registry().Tick(); }
  void JumpClock(Duration by) { clock_.Jump(by); }
  StreamAcceptor* door() { return &door_; }
  Hierarchy& hierarchy() { return *hierarchy_; }

 private:
  void Start() {
    HierarchyOptions options{.node = "node", .schedule = &world_.schedule, .registry = {}};
    options.registry.clock = &clock_;
    hierarchy_ = std::make_unique<Hierarchy>(options);
    door_.SetAcceptor(&hierarchy_->registry());
  }

  World& world_;
  ProcessClock clock_;
  MortalAcceptor door_;
  std::unique_ptr<Hierarchy> hierarchy_;
};

struct Cell {
  std::unique_ptr<Leaf> leaf;
  std::vector<std::unique_ptr<Worker>> workers;
};

class Round {
 public:
  explicit Round(const RoundOptions& options)
      : options_(options), world_(options.seed), node_(&world_) {
    cells_.resize(1 + world_.Below(2));
    for (size_t c = 0; c < cells_.size(); ++c) {
      const std::string name = absl::StrCat("cell-", c);
      cells_[c].leaf = std::make_unique<Leaf>(&world_, name, node_.door());
      for (uint64_t left = 2 + world_.Below(7); left > 0; --left)
        cells_[c].workers.push_back(std::make_unique<Worker>(
            &world_, absl::StrCat(name, "-worker-", left), cells_[c].leaf->door()));
    }
  }

  RoundResult Run() {
    while (world_.result.events < options_.events) {
      for (Cell& cell : cells_)
        for (auto& worker : cell.workers)
          for (uint64_t left = world_.Below(20); left > 0; --left) worker->Work();
      Disturb();
      Pass(kStep);
    }
    Rest();
    if (world_.result.error.empty()) Compare();
    cells_.clear();  // the senders add what they counted
    world_.result.messages_lost = world_.messages_lost;
    return world_.result;
  }

 private:
  void Pass(Duration time) {
    world_.simulation.RunUntil(world_.simulation.now() + time);
    for (Cell& cell : cells_) {
      for (auto& worker : cell.workers) worker->Tick();
      cell.leaf->Tick();
    }
    node_.Tick();
  }

  // Some of it about every ten seconds.
  void Disturb() {
    if (!world_.OneIn(100)) return;
    Cell& cell = cells_[world_.Below(cells_.size())];
    Worker& worker = *cell.workers[world_.Below(cell.workers.size())];
    const Duration jump = milliseconds(world_.Below(world_.OneIn(2) ? 20'000 : 600'000));
    const uint64_t what = world_.Below(10);
    world_.result.kills += what < 7;
    world_.result.clock_jumps += what >= 7;
    switch (what) {
      case 0:
      case 1:
        return worker.Restart(/*with_engine=*/true);
      case 2:
      case 3:
        return worker.Restart(/*with_engine=*/false);
      case 4:
      case 5:
        return cell.leaf->Restart();
      case 6:
        return node_.Restart();
      case 7:
        return worker.JumpClock(jump);
      case 8:
        return cell.leaf->JumpClock(jump);
      default:
        return node_.JumpClock(jump);
    }
  }

  bool AtRest() const {
    for (const Cell& cell : cells_) {
      if (!cell.leaf->AtRest()) return false;
      for (const auto& worker : cell.workers)
        if (!worker->AtRest()) return false;
    }
    return true;
  }

  // Who has something to say still, and why it cannot.
  std::string Restless() const {
    std::string who;
    for (const Cell& cell : cells_) {
      if (!cell.leaf->AtRest()) absl::StrAppend(&who, ToString(cell.leaf->id()), " ");
      for (const auto& worker : cell.workers)
        if (!worker->AtRest())
          absl::StrAppend(&who, ToString(worker->id()), " (", worker->status().ToString(), ") ");
    }
    return who;
  }

  // The faults are over. First longer than leases, digests and repairs take; then to a moment when
  // nothing is under way.
  void Rest() {
    world_.simulation.CalmDown();
    const Time calm_from = world_.simulation.now();
    while (world_.simulation.now() - calm_from < minutes(2) || !AtRest()) {
      Pass(kStep);
      if (world_.simulation.now() - calm_from < kRestMax) continue;
      world_.result.error = absl::StrCat("not at rest after ten minutes: ", Restless());
      return;
    }
  }

  void Compare() {
    if (options_.plant_errors) {
      std::vector<uint8_t>& tiers = cells_[0].workers[0]->tiers();
      const auto first = [&](bool held) {
        return std::find_if(tiers.begin(), tiers.end(),
                            [&](uint8_t in) { return ((in & 1) != 0) == held; });
      };
      const auto held = first(true), absent = first(false);
      if (held != tiers.end()) *held ^= 1;
      if (absent != tiers.end()) *absent ^= 1;
    }
    for (Cell& cell : cells_) {
      std::vector<uint8_t> covered(world_.trie.size(), 0);
      for (auto& worker : cell.workers) {
        CompareHolder(cell.leaf->registry(), worker->id(), worker->tiers(), /*ordinals=*/false);
        for (uint32_t block = 0; block < covered.size(); ++block)
          if (TierMask(worker->tiers()[block]).Intersects(world_.coverage.tiers) &&
              world_.schedule.IsWaypoint(world_.trie.position(block)))
            covered[block] = TierMask(Tier::kDevice).bits();
      }
      CompareHolder(node_.hierarchy().registry(), cell.leaf->id(), covered, /*ordinals=*/true);
    }
  }

  // `ordinals`: positions count waypoints, not blocks.
  void CompareHolder(const HolderRegistry& registry, const HolderId& id,
                     const std::vector<uint8_t>& truth, bool ordinals) {
    RoundResult& result = world_.result;
    const absl::StatusOr<HolderDump> dump = registry.Dump(TheDomain(), id);
    if (!dump.ok() || dump->trust != Trust::kExact) {
      result.error =
          absl::StrCat(ToString(id), dump.ok() ? " is not exact at rest" : " is unknown");
      return;
    }
    std::vector<uint8_t> told(truth.size(), 0);
    for (const Stored& run : dump->runs) {
      for (size_t i = 0; i < run.blocks.size(); ++i) {
        const auto block = world_.number_of.find(run.blocks[i]);
        if (block == world_.number_of.end()) {
          ++result.over;
          continue;
        }
        told[block->second] |= TierMask(run.tier).bits();
        const Position position = world_.trie.position(block->second);
        const Position expected =
            ordinals ? world_.schedule.WaypointsIn(position + 1) - 1 : position;
        if (run.position + i != expected)
          result.error = absl::StrCat(ToString(id), " has a block at a wrong position");
      }
    }
    for (size_t block = 0; block < truth.size(); ++block) {
      ++result.compared;
      result.over += (told[block] & ~truth[block]) != 0;
      result.under += (truth[block] & ~told[block]) != 0;
    }
  }

  const RoundOptions options_;
  World world_;
  Node node_;
  std::vector<Cell> cells_;
};

}  // namespace

RoundResult& RoundResult::operator+=(RoundResult other) {
  const auto mine = Counts(), more = other.Counts();
  for (size_t i = 0; i < mine.size(); ++i) *mine[i] += *more[i];
  if (error.empty()) error = other.error;
  return *this;
}

RoundResult RunRound(const RoundOptions& options) { return Round(options).Run(); }

}  // namespace kvatlas
