#include "indexer/coverage/coverage_reporter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/coverage/coverage_test_util.h"
#include "indexer/coverage/parent_refusals.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Domain kLlama{"llama-70b", ""};
const Domain kQwen{"qwen-8b", ""};
constexpr HolderIndex kOne{1};
constexpr HolderIndex kTwo{2};
constexpr Duration kOverlap = seconds(20);
constexpr TierMask kNone;
constexpr TierMask kDevice(Tier::kDevice);

// A link in memory that moves messages when told, to a registry that can be away.
class MemoryLink : public SenderLink {
 public:
  // Takes itself out of `links` at its end.
  MemoryLink(HolderRegistry** registry, std::set<MemoryLink*>* links)
      : registry_(registry), links_(links) {}
  ~MemoryLink() override {
    Stop(Duration::zero());
    links_->erase(this);
  }

  void Start(SenderLinkObserver* observer) override { observer_ = observer; }
  bool Write(const SenderMessage& message) override {
    if (session_ == nullptr) return false;
    outbox_.push_back(message);
    return true;
  }
  void Reset() override { reset_ = true; }
  void Stop(std::chrono::nanoseconds) override {
    while (session_ != nullptr && !outbox_.empty()) Deliver();
    session_.reset();
    observer_ = nullptr;
  }

  bool Confirmed(BatchNumber) const override { return confirms; }
  bool confirms = true;  // that those behind it have what it acknowledges

  // Everything that can move moves.
  void Move() {
    if (observer_ == nullptr) return;
    if (*registry_ == nullptr || reset_) Disconnect();
    if (session_ == nullptr && *registry_ != nullptr) {
      reset_ = false;
      session_ =
          (*registry_)->Accept([this](ReceiverMessage m) { inbox_.push_back(std::move(m)); });
      observer_->OnConnected();
    }
    while (session_ != nullptr && (!outbox_.empty() || !inbox_.empty())) {
      if (!outbox_.empty()) Deliver();
      while (!inbox_.empty()) {
        const ReceiverMessage message = inbox_.front();
        inbox_.pop_front();
        observer_->OnMessage(message);
      }
    }
  }

 private:
  void Deliver() {
    SenderMessage message = std::move(outbox_.front());
    outbox_.pop_front();
    if (!session_->OnMessage(std::move(message)).ok()) reset_ = true;
  }
  void Disconnect() {
    if (session_ == nullptr) return;
    session_.reset();
    outbox_.clear();
    inbox_.clear();
    observer_->OnDisconnected(absl::UnavailableError("away"));
  }

  HolderRegistry** const registry_;
  std::set<MemoryLink*>* const links_;
  SenderLinkObserver* observer_ = nullptr;
  std::unique_ptr<ReceiverSession> session_;
  std::deque<SenderMessage> outbox_;
  std::deque<ReceiverMessage> inbox_;
  bool reset_ = false;
};

class CoverageReporterTest : public testing::Test {
 protected:
  static constexpr int kParents = 4;

  CoverageReporterTest() {
    for (int i = 0; i < kParents; ++i) Up(i);
    reporter_ = MakeReporter({"p:0", "p:1"});
  }
  ~CoverageReporterTest() override { reporter_.reset(); }

  std::unique_ptr<CoverageReporter> MakeReporter(ShardMap parents) {
    CoverageReporterOptions options;
    options.cell = {"cell-a", 0, "r1"};
    options.labels = {{"zone", "a"}};
    options.parents = std::move(parents);
    options.make_link = [this](const std::string& parent) {
      auto link = std::make_unique<MemoryLink>(&registries_[std::stoi(parent.substr(2))], &links_);
      links_.insert(link.get());
      return link;
    };
    options.contract_id = "contract";
    options.schedule = &schedule_;
    options.schedule_name = schedule_.Name();
    options.coverage.withdraw_delay = std::chrono::seconds(1);
    options.epoch = 5;
    options.instance_id = 6;
    options.on_refused = [this](const ParentRefusal& refusal) {
      refusals_.insert(refusal.parent + " of " + refusal.domain.model + " under " +
                       refusal.schedule + ": " + std::string(refusal.why.message()));
    };
    options.clock = &clock_;
    options.parents_overlap = kOverlap;
    auto reporter = std::make_unique<CoverageReporter>(options);
    reporter->SetAddress("leaf:1");
    return reporter;
  }

  void Up(int parent, const std::string& schedule = "") {
    HolderRegistryOptions options;
    options.contract_id = "contract";
    options.schedule = schedule.empty() ? schedule_.Name() : schedule;
    options.clock = &clock_;
    owned_[parent] = std::make_unique<HolderRegistry>(options);
    registries_[parent] = owned_[parent].get();
  }
  // As a process that is killed: the sessions end, then nothing is there.
  void Down(int parent) {
    registries_[parent] = nullptr;
    for (MemoryLink* link : links_) link->Move();
    owned_[parent].reset();
  }

  // Time passes at both ends, in steps of 20 ms.
  void Pass(Duration time) {
    for (Duration passed{0}; passed <= time; passed += milliseconds(20)) {
      clock_.Advance(milliseconds(20));
      reporter_->Tick();
      for (MemoryLink* link : links_) link->Move();
      for (HolderRegistry* registry : registries_) {
        if (registry != nullptr) registry->Tick();
      }
    }
  }

  // The waypoints that the parent knows of the cell, with their ordinals.
  std::map<SequenceHash, Position> Known(int parent, const Domain& domain = kLlama) {
    std::map<SequenceHash, Position> known;
    const auto dump = registries_[parent]->Dump(domain, {"cell-a", 0, "r1"});
    if (!dump.ok()) return known;
    for (const Stored& run : dump->runs) {
      for (size_t i = 0; i < run.blocks.size(); ++i) known[run.blocks[i]] = run.position + i;
    }
    return known;
  }

  bool AtRest() {
    for (const ParentStats& stats : reporter_->Stats()) {
      if (!stats.at_rest) return false;
    }
    return true;
  }

  const WaypointSchedule schedule_{{1}, 4};  // positions 1, 3, 7, 11 …
  ManualClock clock_;
  std::unique_ptr<HolderRegistry> owned_[kParents];
  HolderRegistry* registries_[kParents] = {};  // where "p:0" and so on lead
  std::set<MemoryLink*> links_;
  std::set<std::string> refusals_;
  std::unique_ptr<CoverageReporter> reporter_;
};

// Splits over shards: what is announced, and what of it a shard is to know.
class SplitTest : public CoverageReporterTest {
 protected:
  using Waypoints = std::map<SequenceHash, Position>;

  static ShardMap Map(absl::string_view text) { return *ShardMap::Parse(text); }

  void Start(absl::string_view map) {
    reporter_ = MakeReporter(Map(map));
    coverage_ = reporter_->AddDomain(kLlama, 16);
  }
  // Blocks from `first` on at all positions of a sequence.
  void Hold(uint64_t first, size_t blocks) {
    Stored run;
    for (uint64_t i = 0; i < blocks; ++i) run.blocks.push_back(SequenceHash{Scattered(first + i)});
    for (size_t i = 0; i < blocks; ++i)
      Tell(*coverage_, kOne, run.blocks[i], static_cast<Position>(i), kNone, kDevice, &run);
    for (size_t i = 0; i < blocks; ++i) {
      const auto at = static_cast<Position>(i);
      if (schedule_.IsWaypoint(at)) truth_[run.blocks[i]] = schedule_.WaypointsIn(at);
    }
  }
  void Drop(SequenceHash block) {
    const Position position = schedule_.PositionOf(truth_.at(block));
    Tell(*coverage_, kOne, block, position, kDevice, kNone, nullptr);
    truth_.erase(block);
  }
  // Hashes are random as real ones are.
  static uint64_t Scattered(uint64_t number) { return std::mt19937_64(number)(); }

  Waypoints PartOf(const ShardMap& map, size_t shard) const {
    Waypoints part;
    for (const auto& [block, ordinal] : truth_)
      if (map.Keeps(shard, ordinal, block)) part.emplace(block, ordinal);
    return part;
  }

  Coverage* coverage_ = nullptr;
  Waypoints truth_;
};

TEST_F(CoverageReporterTest, EveryParentLearnsWhatIsCoveredAndWhoSaysSo) {
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  EXPECT_FALSE(AtRest()) << "no stream yet";
  Tell(*coverage, kOne, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  coverage->OnLoad(kOne, Load{.running_requests = 3});
  coverage->OnLoad(kTwo, Load{.running_requests = 4});
  Pass(milliseconds(200));
  for (int parent = 0; parent < 2; ++parent) {
    EXPECT_EQ(Known(parent), (std::map<SequenceHash, Position>{{SequenceHash{70}, 2}}));
    const DomainStats stats = *registries_[parent]->StatsOf(kLlama);
    EXPECT_EQ(stats.holders[0].holder->address, "leaf:1");
    EXPECT_EQ(stats.holders[0].holder->labels[0].second, "a");
    EXPECT_EQ(stats.holders[0].load->running_requests, 7u);
    EXPECT_EQ(stats.holders[0].load->workers, 2u);
    EXPECT_EQ(stats.bytes_received, reporter_->Stats()[parent].bytes_sent);
  }
  EXPECT_TRUE(AtRest());
}

TEST_F(CoverageReporterTest, ALoadThatMattersGoesAtOnceAndAnotherLater) {
  const auto ahead = [this] {
    return (*registries_[0]->StatsOf(kLlama)).holders[0].load->waiting_prefill_blocks;
  };
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  coverage->OnLoad(kOne, Load{.waiting_prefill_blocks = 10});
  Pass(milliseconds(200));
  EXPECT_EQ(ahead(), 10u) << "the first is always told";
  coverage->OnLoad(kOne, Load{.waiting_prefill_blocks = 17});
  Pass(milliseconds(200));
  EXPECT_EQ(ahead(), 10u) << "7 blocks more change little";
  coverage->OnLoad(kOne, Load{.waiting_prefill_blocks = 18});
  Pass(milliseconds(200));
  EXPECT_EQ(ahead(), 18u);
  coverage->OnLoad(kOne, Load{.waiting_prefill_blocks = 20});
  Pass(milliseconds(200));
  EXPECT_EQ(ahead(), 18u);
  Pass(CoverageReporterOptions().load_refresh);
  EXPECT_EQ(ahead(), 20u) << "in the end all is known";
}

TEST_F(CoverageReporterTest, LostWaypointsAreWithdrawnAfterTheDelay) {
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  Tell(*coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Pass(milliseconds(200));
  Tell(*coverage, kOne, SequenceHash{30}, 3, kDevice, kNone, nullptr);
  Pass(milliseconds(800));
  EXPECT_EQ(Known(0).size(), 1u);
  EXPECT_FALSE(AtRest());
  Pass(milliseconds(400));
  EXPECT_TRUE(Known(0).empty());
  EXPECT_TRUE(AtRest());
  EXPECT_EQ(reporter_->Stats()[0].waypoints_withdrawn, 1u);
}

TEST_F(CoverageReporterTest, AParentWithAnotherScheduleIsNamedUntilItHasTheSame) {
  Down(1);
  Up(1, "every:7");
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  Tell(*coverage, kOne, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  Pass(seconds(1));
  EXPECT_EQ(refusals_,
            std::set<std::string>({"p:1 of llama-70b under early:1;every:4: waypoint schedule "
                                   "\"early:1;every:4\" is not ours, \"every:7\""}));
  EXPECT_EQ(Known(0).size(), 1u) << "the other parent is not troubled";
  const auto metric = [this] {
    std::string text;
    AppendParentMetrics(reporter_->Stats(), "leaf", &text);
    return text.substr(text.find("leaf_parent_refuses{"));
  };
  EXPECT_EQ(metric(),
            "leaf_parent_refuses{domain=\"llama-70b\",parent=\"p:0\"} 0\n"
            "leaf_parent_refuses{domain=\"llama-70b\",parent=\"p:1\"} 1\n");
  std::string all;
  AppendParentMetrics(reporter_->Stats(), "leaf", &all);
  EXPECT_NE(all.find("leaf_parent_connected{domain=\"llama-70b\",parent=\"p:0\"} 1\n"), all.npos)
      << all;
  Down(1);
  Up(1);
  Pass(seconds(40));
  EXPECT_EQ(Known(1), Known(0));
  EXPECT_EQ(metric().find(" 1\n"), std::string::npos) << metric();
  refusals_.clear();
  Pass(seconds(1));
  EXPECT_TRUE(refusals_.empty());
}

TEST_F(CoverageReporterTest, DomainsAreStreamsOfTheirOwn) {
  Coverage* llama = reporter_->AddDomain(kLlama, 16);
  Coverage* qwen = reporter_->AddDomain(kQwen, 32);
  Tell(*llama, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Tell(*qwen, kOne, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  Pass(milliseconds(200));
  EXPECT_EQ(Known(0, kLlama).count(SequenceHash{30}), 1u);
  EXPECT_EQ(Known(0, kQwen), (std::map<SequenceHash, Position>{{SequenceHash{70}, 2}}));
  EXPECT_EQ(*registries_[0]->BlockSizeOf(kQwen), 32u);
}

TEST_F(CoverageReporterTest, AParentThatComesBackEmptyIsToldEverything) {
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  Tell(*coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Pass(milliseconds(200));
  Down(0);
  Tell(*coverage, kOne, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  Pass(milliseconds(500));
  EXPECT_EQ(Known(1).size(), 2u) << "the other one is not held up";
  Up(0);
  Pass(seconds(5));
  EXPECT_EQ(Known(0), Known(1));
  EXPECT_TRUE(AtRest());
}

TEST_F(CoverageReporterTest, StoppingSaysGoodbye) {
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  Tell(*coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Pass(milliseconds(200));
  reporter_->Stop(seconds(1));
  EXPECT_TRUE(registries_[0]->HoldersOf(kLlama).empty());
  EXPECT_TRUE(registries_[1]->HoldersOf(kLlama).empty());
}

// A link that keeps what it acknowledges, such as one to a log in Redis.
TEST_F(CoverageReporterTest, IsNotAtRestBeforeThoseBehindTheLinkHaveItAll) {
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  Tell(*coverage, kOne, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  Pass(milliseconds(200));
  ASSERT_TRUE(AtRest());
  for (MemoryLink* link : links_) link->confirms = false;
  EXPECT_FALSE(AtRest());
}

// Else every model that ever was here costs a stream to each parent, here and there, for good.
TEST_F(CoverageReporterTest, ADomainThatIsRemovedLeavesItsParents) {
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  ASSERT_EQ(reporter_->AddDomain(kLlama, 16), coverage) << "it came again before it was removed";
  Pass(milliseconds(200));
  ASSERT_EQ(registries_[0]->HoldersOf(kLlama).size(), 1u);
  reporter_->RemoveDomain(coverage);
  Pass(milliseconds(200));
  EXPECT_EQ(registries_[0]->HoldersOf(kLlama).size(), 1u) << "it is used once more";
  reporter_->RemoveDomain(coverage);
  Pass(milliseconds(200));
  for (int parent = 0; parent < 2; ++parent)
    EXPECT_TRUE(registries_[parent]->HoldersOf(kLlama).empty());
  EXPECT_TRUE(reporter_->Stats().empty());
  coverage = reporter_->AddDomain(kLlama, 16);
  Tell(*coverage, kOne, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  Pass(milliseconds(200));
  EXPECT_EQ(Known(0).size(), 1u) << "and may come again";
}

TEST_F(CoverageReporterTest, WithoutParentsNothingIsKept) {
  CoverageReporter reporter({});
  EXPECT_FALSE(reporter.SetParents({"p:0"}).ok());
  EXPECT_EQ(reporter.AddDomain(kLlama, 16), nullptr);
  reporter.Tick();
  EXPECT_TRUE(reporter.Stats().empty());
}

// Random changes of several holders and parents that come and go, against a slow recount.
TEST_F(CoverageReporterTest, ParentsEqualARecountAtRest) {
  Coverage* coverage = reporter_->AddDomain(kLlama, 16);
  constexpr uint32_t kSeed = 20;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  std::set<std::pair<uint32_t, uint64_t>> held;
  for (int round = 0; round < 30; ++round) {
    const bool away = random() % 4 == 0;
    if (away) Down(0);
    for (int step = 0; step < 200; ++step) {
      const uint32_t holder = random() % 4;
      const uint64_t block = 1 + random() % 60;
      const bool had = held.contains({holder, block});
      Tell(*coverage, HolderIndex{holder}, SequenceHash{block}, static_cast<Position>(block),
           had ? kDevice : kNone, had ? kNone : kDevice, nullptr);
      had ? held.erase({holder, block}) : held.emplace(holder, block).second;
      if (step % 20 == 0) Pass(milliseconds(random() % 100));
    }
    if (away) Up(0);
    Pass(seconds(8));
    ASSERT_TRUE(AtRest()) << "round " << round;
    std::map<SequenceHash, Position> truth;
    for (const auto& [holder, block] : held) {
      const auto at = static_cast<Position>(block);
      if (schedule_.IsWaypoint(at)) truth[SequenceHash{block}] = schedule_.WaypointsIn(at);
    }
    ASSERT_EQ(Known(0), truth) << "round " << round;
    ASSERT_EQ(Known(1), truth) << "round " << round;
  }
}

TEST_F(SplitTest, EachShardIsToldItsPartAndReplicasTheSame) {
  Start("shallow=2,a=p:0|p:1,b=p:2");
  for (int i = 0; i < 20; ++i) Hold(1000 * i, 40);
  Pass(seconds(1));
  const ShardMap map = Map("shallow=2,a=p:0|p:1,b=p:2");
  EXPECT_EQ(Known(0), PartOf(map, 0));
  EXPECT_EQ(Known(1), PartOf(map, 0));
  EXPECT_EQ(Known(2), PartOf(map, 1));
  size_t both = 0;
  for (const auto& [block, ordinal] : Known(0)) both += Known(2).contains(block);
  EXPECT_EQ(both, 20u * 2) << "the shallow ones";
  EXPECT_EQ(Known(0).size() + Known(2).size(), truth_.size() + both);
  EXPECT_TRUE(AtRest());
  for (const ParentStats& stats : reporter_->Stats())
    EXPECT_EQ(stats.waypoints_here, PartOf(map, stats.shard == "a" ? 0 : 1).size());
}

TEST_F(SplitTest, AWithdrawalGoesToTheShardThatWasTold) {
  Start("shallow=1,a=p:0,b=p:2");
  Hold(0, 40);
  Pass(seconds(1));
  while (truth_.size() > 3) Drop(truth_.rbegin()->first);
  Pass(seconds(2));
  EXPECT_EQ(Known(0), PartOf(Map("shallow=1,a=p:0,b=p:2"), 0));
  EXPECT_EQ(Known(2), PartOf(Map("shallow=1,a=p:0,b=p:2"), 1));
}

TEST_F(SplitTest, ANewShardIsToldItsPartAndTheOthersForgetItAfterTheOverlap) {
  const ShardMap two = Map("shallow=1,a=p:0,b=p:1");
  const ShardMap three = Map("shallow=1,a=p:0,b=p:1,c=p:2");
  Start(two.ToString());
  for (int i = 0; i < 20; ++i) Hold(1000 * i, 40);
  Pass(seconds(1));
  ASSERT_TRUE(reporter_->SetParents(three).ok());
  Pass(seconds(1));
  EXPECT_EQ(Known(2), PartOf(three, 2));
  EXPECT_EQ(Known(0), PartOf(two, 0)) << "who asks by the former map still finds it";
  EXPECT_EQ(Known(1), PartOf(two, 1));
  EXPECT_FALSE(AtRest());
  Hold(70000, 40);  // news meanwhile goes where either map leads
  Pass(seconds(1));
  EXPECT_EQ(Known(0), PartOf(two, 0));
  EXPECT_EQ(Known(2), PartOf(three, 2));
  Pass(kOverlap);
  for (size_t shard = 0; shard < 3; ++shard)
    EXPECT_EQ(Known(static_cast<int>(shard)), PartOf(three, shard));
  EXPECT_TRUE(AtRest());
}

TEST_F(SplitTest, ALevelIsSplitAtRunTimeAndJoinedAgain) {
  Start("p:0");
  for (int i = 0; i < 10; ++i) Hold(1000 * i, 40);
  Pass(seconds(1));
  const ShardMap two = Map("shallow=1,a=p:1,b=p:2");
  ASSERT_TRUE(reporter_->SetParents(two).ok());
  Pass(seconds(1));
  EXPECT_EQ(Known(0), truth_) << "it goes on until the overlap is over";
  Pass(kOverlap);
  EXPECT_TRUE(registries_[0]->HoldersOf(kLlama).empty()) << "told goodbye";
  EXPECT_EQ(Known(1), PartOf(two, 0));
  EXPECT_EQ(Known(2), PartOf(two, 1));
  ASSERT_TRUE(reporter_->SetParents({"p:0"}).ok());
  Pass(kOverlap + seconds(1));
  EXPECT_EQ(Known(0), truth_);
  EXPECT_TRUE(registries_[1]->HoldersOf(kLlama).empty());
  EXPECT_FALSE(reporter_->SetParents(ShardMap()).ok());
}

// A parent that was away when it left, and so was never told goodbye, is named again: it takes the
// younger stream.
TEST_F(SplitTest, AParentThatWasNotToldGoodbyeTakesItsNextStream) {
  Start("p:0,p:1");
  Hold(0, 40);
  Pass(seconds(1));
  ASSERT_TRUE(reporter_->SetParents({"p:1"}).ok());
  HolderRegistry* const away = std::exchange(registries_[0], nullptr);  // unreachable, not dead
  Pass(kOverlap + seconds(1));
  registries_[0] = away;
  Hold(5000, 40);
  ASSERT_TRUE(reporter_->SetParents({"p:0", "p:1"}).ok());
  Pass(seconds(5));
  EXPECT_EQ(Known(0), truth_);
}

// Random contents, maps and parents that come and go, against the map applied to a recount.
TEST_F(SplitTest, ShardsEqualTheirPartsAtRestWhateverTheMapWas) {
  const char* maps[] = {"p:0,p:1", "shallow=1,a=p:0|p:1,b=p:2", "shallow=2,a=p:0,b=p:1,c=p:2,d=p:3",
                        "shallow=3,b=p:2|p:3,e=p:0", "shallow=2,a=p:3,b=p:1,c=p:2"};
  uint64_t sequences = 0;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::string map = maps[seed % std::size(maps)];
    truth_.clear();
    for (int parent = 0; parent < kParents; ++parent) {
      Down(parent);
      Up(parent);
    }
    Start(map);
    for (int round = 0; round < 12; ++round) {
      const int away = random() % 3 == 0 ? static_cast<int>(random() % kParents) : -1;
      if (away >= 0) Down(away);
      for (int step = 0; step < 10; ++step) {
        if (random() % 2 == 0 || truth_.size() < 5) {
          Hold(100000 + 64 * sequences++, random() % 60);  // a block has one position
        } else {
          for (int i = 0; i < 4 && !truth_.empty(); ++i)
            Drop(std::next(truth_.begin(), random() % truth_.size())->first);
        }
        if (random() % 4 == 0) {
          map = maps[random() % std::size(maps)];
          ASSERT_TRUE(reporter_->SetParents(Map(map)).ok());
        }
        Pass(milliseconds(random() % 3000));
      }
      if (away >= 0) Up(away);
      Pass(kOverlap + seconds(8));
      ASSERT_TRUE(AtRest()) << "round " << round;
      const ShardMap now = Map(map);
      for (size_t shard = 0; shard < now.shards().size(); ++shard) {
        for (const std::string& address : now.shards()[shard].addresses)
          ASSERT_EQ(Known(std::stoi(address.substr(2))), PartOf(now, shard))
              << "round " << round << ", " << map << ", " << address;
      }
    }
  }
}

}  // namespace
}  // namespace kvatlas
