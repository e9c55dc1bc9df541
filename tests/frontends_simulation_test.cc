// Many frontends before one cell, in one thread and by seed: prompts with common beginnings go
// through any of them, what they tell the leaf's replicas is lost, late or comes twice, engines
// fail, replicas begin anew.
//
//   frontend 0 ─╮ asks    ╭─ replica 0 ─╮  events, later
//   frontend 1 ─┼────────▶│             │◀────────────── engines: a set of blocks each
//   frontend 2 ─╯ tells ~ ╰─ replica 1 ─╯
//
// A failure prints its seed; KVATLAS_SIMULATION_SEED=n runs only that one,
// KVATLAS_SIMULATION_SEEDS=n that many.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/serve/lookup_clients/in_process_lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Domain kModel{"llama", ""};
constexpr uint32_t kBlockSize = 16;
constexpr size_t kReplicas = 2;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

struct Faults {
  double lost = 0;  // of what is told
  double late = 0;  // by up to a second
  double twice = 0;
  double fails = 0;     // requests that their engine does not take
  double restarts = 0;  // of a replica, a step
};

class Fleet : public CellFinder, public OverlapFinder {
 public:
  Fleet(uint64_t seed, size_t frontends, size_t engines, const Faults& faults, bool tell = true)
      : random_(seed), faults_(faults), held_(engines) {
    clock_.Advance(seconds(1000));
    for (size_t replica = 0; replica < kReplicas; ++replica) Restart(replica);
    for (size_t i = 0; i < frontends; ++i) {
      FrontendOptions options{.hierarchies = {"hierarchy"}, .tell_leaves = tell};
      options.weights.seed = 7;  // of all of them
      frontends_.push_back(std::make_unique<Frontend>(options, this, this, &clock_));
    }
  }

  size_t Below(size_t bound) { return static_cast<size_t>(random_() % bound); }
  bool Chance(double share) { return static_cast<double>(random_() >> 11) * 0x1p-53 < share; }

  // A request through some frontend; the engine computes what it lacks within `compute`, and
  // announces it then.
  void Send(size_t frontend, const std::vector<SequenceHash>& prompt, Duration compute) {
    const absl::StatusOr<RouteResult> routed =
        frontends_[frontend]->Route({.domain = kModel, .sequence_hashes = prompt});
    ASSERT_TRUE(routed.ok()) << routed.status();
    const size_t engine = std::stoul(routed->worker.name);
    const std::set<uint64_t>& held = held_[engine];
    uint32_t truth = 0;
    while (truth < prompt.size() && held.contains(Raw(prompt[truth]))) ++truth;
    ASSERT_LE(routed->overlap_blocks, truth) << "promised what no engine had announced";
    const uint64_t decision = routed->decision_id;
    if (Chance(faults_.fails)) {
      frontends_[frontend]->Report(decision, {.abandoned = true, .unreachable = Below(2) == 0});
      return;
    }
    // What the engine computes already for a request before this one, it does not compute twice.
    for (size_t i = truth; i < prompt.size(); ++i)
      computed_ += computing_[engine].insert(Raw(prompt[i])).second;
    At(clock_.Now() + compute, [this, frontend, engine, prompt, decision] {
      for (SequenceHash block : prompt) {
        held_[engine].insert(Raw(block));
        computing_[engine].erase(Raw(block));
      }
      stored_[engine].push_back(prompt);
      for (auto& replica : replicas_)
        ASSERT_TRUE(replica.holders[engine]->Apply(Stored{.blocks = prompt}).ok());
      frontends_[frontend]->Report(decision, {.accepted = true, .finished = true});
    });
  }

  void Pass(Duration time) {
    const Time until = clock_.Now() + time;
    while (!due_.empty() && due_.begin()->first <= until) {
      auto next = due_.extract(due_.begin());
      clock_.Advance(std::max(Duration(0), next.key() - clock_.Now()));
      next.mapped()();
    }
    clock_.Advance(until - clock_.Now());
    for (auto& replica : replicas_) replica.registry->Tick();
    if (Chance(faults_.restarts)) Restart(Below(kReplicas));
  }

  PendingStats PendingAt(size_t replica) const {
    return replicas_[replica].registry->StatsOf(kModel)->pending;
  }
  uint64_t computed() const { return computed_; }
  size_t frontends() const { return frontends_.size(); }
  const Frontend& frontend(size_t i) const { return *frontends_[i]; }

  // ---- What frontends ask and tell ----

  void FindCells(const std::string&, const CellQuestion& question, Duration,
                 CellFinder::Callback callback) override {
    const size_t first = Below(kReplicas);
    callback(CellsAnswer{.cells = {{.cell = "cell",
                                    .address = std::to_string(first),
                                    .blocks_below = question.blocks + 1,
                                    .other_addresses = {std::to_string(1 - first)}}},
                         .block_size = kBlockSize});
  }

  void FindOverlaps(const std::string& leaf, const OverlapQuestion& question, Duration deadline,
                    OverlapFinder::Callback callback) override {
    replicas_[std::stoul(leaf)].finder->FindOverlaps(leaf, question, deadline, std::move(callback));
  }

  void Tell(const std::string& leaf, const Domain& domain, uint64_t frontend,
            const Routed& routed) override {
    std::vector<SequenceHash> blocks(routed.blocks.begin(), routed.blocks.end());
    Deliver([this, leaf, domain, frontend, told = routed, blocks = std::move(blocks)]() mutable {
      told.blocks = blocks;
      replicas_[std::stoul(leaf)].finder->Tell(leaf, domain, frontend, told);
    });
  }

  void End(const std::string& leaf, const Domain& domain, uint64_t frontend,
           const RouteOver& over) override {
    Deliver([this, leaf, domain, frontend, over] {
      replicas_[std::stoul(leaf)].finder->End(leaf, domain, frontend, over);
    });
  }

 private:
  struct Replica {
    std::unique_ptr<HolderRegistry> registry;
    std::vector<std::unique_ptr<HolderHandle>> holders;
    std::unique_ptr<InProcessOverlapFinder> finder;
  };

  void At(Time when, std::function<void()> what) { due_.emplace(when, std::move(what)); }

  void Deliver(std::function<void()> what) {
    if (Chance(faults_.lost)) return;
    if (Chance(faults_.twice)) At(clock_.Now() + milliseconds(Below(1000)), what);
    if (Chance(faults_.late)) return At(clock_.Now() + milliseconds(Below(1000)), std::move(what));
    what();
  }

  // It knows what engines hold, as by their snapshots, and nothing of what was told.
  void Restart(size_t which) {
    Replica& replica = replicas_[which];
    replica.finder = nullptr;
    replica.holders.clear();
    HolderRegistryOptions options;
    options.contract_id = "xxh3-chain-1:1337";
    options.clock = &clock_;
    replica.registry = std::make_unique<HolderRegistry>(options);
    for (size_t engine = 0; engine < held_.size(); ++engine) {
      replica.holders.push_back(*replica.registry->AddLocal(
          kModel, kBlockSize,
          {.id = {std::to_string(engine), 0, ""}, .address = "", .labels = {}}));
      for (const std::vector<SequenceHash>& prompt : stored_[engine])
        ASSERT_TRUE(replica.holders.back()->Apply(Stored{.blocks = prompt}).ok());
    }
    replica.finder = std::make_unique<InProcessOverlapFinder>(
        std::to_string(which), replica.registry.get(), nullptr, &clock_);
  }

  std::mt19937_64 random_;
  const Faults faults_;
  ManualClock clock_;
  std::vector<std::set<uint64_t>> held_;
  std::map<size_t, std::set<uint64_t>> computing_;
  std::map<size_t, std::vector<std::vector<SequenceHash>>> stored_;  // by engine
  Replica replicas_[kReplicas];
  std::multimap<Time, std::function<void()>> due_;
  uint64_t computed_ = 0;
  std::vector<std::unique_ptr<Frontend>> frontends_;
};

// Prompt `own` of family `family`, whose first `common` blocks are the family's.
std::vector<SequenceHash> Prompt(uint64_t family, size_t common, uint64_t own, size_t blocks) {
  std::vector<SequenceHash> prompt;
  for (size_t i = 0; i < blocks; ++i)
    prompt.push_back(SequenceHash{family << 48 | (i < common ? 0 : (own + 1) << 20) | (i + 1)});
  return prompt;
}

void RunChaos(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto share = [&](double most) {
    return most * static_cast<double>(random() % 1000) / 1000;
  };
  const Faults faults = {.lost = share(0.5),
                         .late = share(0.5),
                         .twice = share(0.3),
                         .fails = share(0.3),
                         .restarts = share(0.02)};
  Fleet fleet(seed, 1 + random() % 8, 1 + random() % 12, faults);
  for (int step = 0; step < 150; ++step) {
    const uint64_t family = random() % 6;
    const size_t blocks = 1 + random() % 200;
    const size_t siblings = random() % 4 == 0 ? 1 + random() % 8 : 1;
    for (size_t i = 0; i < siblings; ++i) {
      fleet.Send(random() % fleet.frontends(),
                 Prompt(family, random() % (blocks + 1) / 8 * 8, random() % 50, blocks),
                 milliseconds(random() % 4000));
      if (testing::Test::HasFatalFailure()) return;
    }
    fleet.Pass(milliseconds(random() % 300));
  }
  fleet.Pass(seconds(60));
  fleet.Pass(seconds(1));
  for (size_t replica = 0; replica < kReplicas; ++replica) {
    const PendingStats rest = fleet.PendingAt(replica);
    EXPECT_EQ(rest.blocks, 0u);
    EXPECT_EQ(rest.requests, 0u);
    EXPECT_EQ(rest.bytes, 0u);
    const PendingCounts& counts = rest.counts;
    EXPECT_EQ(counts.told, counts.confirmed + counts.failed + counts.contradicted +
                               counts.timed_out + counts.dropped);
  }
}

TEST(FrontendsSimulationTest, NothingIsPromisedThatNoEngineAnnouncedAndMemoryReturnsToNothing) {
  const uint64_t only = FromEnvironment("KVATLAS_SIMULATION_SEED", 0);
  const uint64_t seeds = FromEnvironment("KVATLAS_SIMULATION_SEEDS", 40);
  for (uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : seeds); ++seed) {
    SCOPED_TRACE("KVATLAS_SIMULATION_SEED=" + std::to_string(seed));
    RunChaos(seed);
    if (testing::Test::HasFailure()) return;
  }
}

// Blocks computed by a fan-out of `siblings` over all frontends; each comes a moment after the one
// before.
uint64_t ComputedByFanOut(uint64_t seed, size_t siblings, bool tell) {
  Fleet fleet(seed, 8, 12, {}, tell);
  std::mt19937_64 random(seed);
  // Some load, so that workers differ.
  for (int i = 0; i < 20; ++i) {
    fleet.Send(random() % 8, Prompt(1 + random() % 5, 32, random() % 100, 64 + random() % 64),
               milliseconds(50 + random() % 3000));
    fleet.Pass(milliseconds(random() % 100));
  }
  const uint64_t before = fleet.computed();
  for (size_t i = 0; i < siblings; ++i) {
    fleet.Send(i % 8, Prompt(9, 1000, i, 1010), seconds(4));
    fleet.Pass(milliseconds(50));
  }
  return fleet.computed() - before;
}

TEST(FrontendsSimulationTest, AFanOutThroughEightFrontendsComputesItsBeginningOnce) {
  for (uint64_t seed = 1; seed <= FromEnvironment("KVATLAS_SIMULATION_SEEDS", 30); ++seed) {
    for (const size_t siblings : {4, 8, 32}) {
      SCOPED_TRACE(std::to_string(siblings) + " siblings, seed " + std::to_string(seed));
      ASSERT_EQ(ComputedByFanOut(seed, siblings, /*tell=*/true), 1000 + siblings * 10);
    }
  }
}

TEST(FrontendsSimulationTest, WithoutTellingEachFrontendIsBlindToTheOthers) {
  uint64_t computed = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) computed += ComputedByFanOut(seed, 8, /*tell=*/false);
  EXPECT_GT(computed, 20u * 1500);
}

}  // namespace
}  // namespace kvatlas
