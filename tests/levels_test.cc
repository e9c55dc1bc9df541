// Three levels as processes over real sockets: leaves, regions, a world that is split over shards,
// two replicas of each. Killing any one of them loses no request, and at rest every node's coverage
// is what the engines' contents imply; so it is when a shard is added while requests go on.
//
//   frontend ×2 ──▶ world a ×2, world b ×2 ──▶ region east ×2, west ×2 ──▶ leaf ×2 of a cell each ◀── 2 engines each

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_status.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/mock_engine/engine.grpc.pb.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kReady = seconds(60);
constexpr Duration kRest = seconds(60);
constexpr uint32_t kRouteDeadlineMs = 20'000;
const char* const kRegions[] = {"east", "west"};
constexpr int kReplicas = 2;
constexpr int kEnginesPerCell = 2;

// A part of the standard schedule: every other of the early ones, every second or so of the others.
WaypointSchedule WorldSchedule() {
  const WaypointSchedule& standard = WaypointSchedule::Standard();
  const WaypointSchedule world({standard.PositionOf(0), standard.PositionOf(2)}, 512);
  EXPECT_TRUE(world.Over(standard).ok());
  return world;
}

void Pause(Duration duration) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  never.WaitFor(&mutex, duration);
}

// What a holder covers: waypoints and their ordinals. By holder, "name@replica".
using Waypoints = std::map<uint64_t, uint32_t>;
using Coverage = std::map<std::string, Waypoints>;

// All the processes by name, such as "world-a-0", "region-east-1", "leaf-west-0", "engine-east-1",
// "frontend-0".
class Fleet {
 public:
  Fleet() : directory_(std::string(std::getenv("TEST_TMPDIR")) + "/levels") {
    std::system(("mkdir -p " + directory_).c_str());
    for (const char* shard : {"a", "b"}) AddShard(shard);
    WriteMap();
    for (const char* region : kRegions) AddRegion(region);
    StartSpawned();
    for (const char* region : kRegions) AddLeaves(region);
    StartSpawned();
    for (const char* region : kRegions) AddEngines(region);
    for (int i = 0; i < 2; ++i) {
      Add("frontend-" + std::to_string(i), "frontend/kvatlas-frontend",
          {"--http=127.0.0.1:0", "--hierarchy=@" + map_file(), "--block_size=16",
           "--hierarchy_schedule=" + WorldSchedule().Name()});
    }
    StartSpawned();
    for (int i = 0; i < 2; ++i) {
      channels_.push_back(MakeChannel(AddressOf("frontend-" + std::to_string(i))));
      frontends_.push_back(v1::Frontend::NewStub(channels_.back()));
    }
    for (const auto& [name, process] : processes_) {
      if (name.starts_with("engine"))
        engines_[name] = engine::v1::Engine::NewStub(MakeChannel(process->address("grpc")));
    }
  }

  // A third shard, while all goes on.
  void AddWorldShard(const std::string& shard) {
    AddShard(shard);
    WriteMap();
  }

  void Kill(const std::string& name) { processes_.at(name)->Kill(); }
  void Restart(const std::string& name) {
    const absl::Status status = processes_.at(name)->Start(kReady);
    ASSERT_TRUE(status.ok()) << status;
    // A gateway knows which of its frontends it reaches before it relies on one alone.
    for (const auto& channel : channels_)
      ASSERT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + seconds(30)));
  }
  std::vector<std::string> Names(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const auto& [name, process] : processes_)
      if (name.starts_with(prefix)) names.push_back(name);
    return names;
  }
  const ShardMap& world() const { return world_; }

  // From one frontend, or the other when that is dead; then the engine takes it.
  absl::StatusOr<v1::RouteResponse> Serve(const std::vector<uint64_t>& prompt) {
    absl::StatusOr<v1::RouteResponse> route = absl::UnknownError("not asked");
    for (size_t i = 0; i < frontends_.size() && !route.ok(); ++i) route = Route(i, prompt);
    if (!route.ok()) return route;
    engine::v1::SubmitRequest submit;
    submit.set_id(++requests_);
    for (uint64_t block : prompt) submit.add_blocks(block);
    submit.set_prompt_tokens(static_cast<uint32_t>(prompt.size() * 16));
    submit.set_output_tokens(1);
    engine::v1::StepResponse step;
    engine::v1::Engine::Stub& engine = *engines_.at(route->worker().name());
    {
      grpc::ClientContext context;
      Prepare(context);
      if (grpc::Status status = engine.Submit(&context, submit, &step); !status.ok())
        return FromGrpcStatus(status);
    }
    engine::v1::AdvanceRequest advance;
    advance.set_time_ms(std::numeric_limits<double>::infinity());
    grpc::ClientContext context;
    Prepare(context);
    if (grpc::Status status = engine.Advance(&context, advance, &step); !status.ok())
      return FromGrpcStatus(status);
    return route;
  }

  // Of the cell of a region: everything that any of its engines has.
  std::vector<uint64_t> ContentsOf(const std::string& region) {
    std::vector<uint64_t> contents;
    for (const std::string& name : Names("engine-" + region)) {
      engine::v1::ContentsResponse response;
      grpc::ClientContext context;
      Prepare(context);
      EXPECT_TRUE(engines_.at(name)->Contents(&context, {}, &response).ok()) << name;
      contents.insert(contents.end(), response.blocks().begin(), response.blocks().end());
    }
    return contents;
  }

  // As a node says itself.
  Coverage CoverageOf(const std::string& node) {
    auto stub = v1::Hierarchy::NewStub(MakeChannel(AddressOf(node)));
    grpc::ClientContext context;
    Prepare(context);
    v1::DumpRequest request;
    request.mutable_domain()->set_model("mock");
    auto reader = stub->Dump(&context, request);
    Coverage coverage;
    v1::DumpResponse dump;
    while (reader->Read(&dump)) {
      Waypoints& of = coverage[dump.worker().name() + "@" + dump.worker().replica()];
      for (const v1::Stored& run : dump.stored()) {
        for (int i = 0; i < run.blocks_size(); ++i)
          of[run.blocks(i)] = run.position() + static_cast<uint32_t>(i);
      }
    }
    (void)reader->Finish();
    return coverage;
  }

 private:
  static void Prepare(grpc::ClientContext& context) {
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + seconds(30));
  }

  absl::StatusOr<v1::RouteResponse> Route(size_t frontend, const std::vector<uint64_t>& prompt) {
    v1::RouteRequest request;
    request.mutable_domain()->set_model("mock");
    for (uint64_t block : prompt) request.add_sequence_hashes(block);
    request.set_deadline_ms(kRouteDeadlineMs);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + milliseconds(2 * kRouteDeadlineMs));
    v1::RouteResponse response;
    const grpc::Status status = frontends_[frontend]->Route(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  std::string map_file() const { return directory_ + "/world"; }
  // Whole, by rename, as it is to be done.
  void WriteMap() {
    std::string text;
    for (const std::string& shard : shards_) {
      text += (text.empty() ? "" : ",") + shard + "=" + AddressOf("world-" + shard + "-0") + "|" +
              AddressOf("world-" + shard + "-1");
    }
    world_ = *ShardMap::Parse(text);
    std::ofstream(map_file() + ".new") << text << "\n";
    ASSERT_EQ(std::rename((map_file() + ".new").c_str(), map_file().c_str()), 0);
  }

  void AddShard(const std::string& shard) {
    for (int i = 0; i < kReplicas; ++i) {
      Add("world-" + shard + "-" + std::to_string(i), "hierarchy/kvatlas-hierarchy",
          {"--http=127.0.0.1:0", "--node=world." + shard, "--replica=" + std::to_string(i),
           "--schedule=" + WorldSchedule().Name()});
    }
    shards_.push_back(shard);
    StartSpawned();
  }
  void AddRegion(const std::string& region) {
    for (int i = 0; i < kReplicas; ++i) {
      Add("region-" + region + "-" + std::to_string(i), "hierarchy/kvatlas-hierarchy",
          {"--http=127.0.0.1:0", "--node=" + region, "--replica=" + std::to_string(i),
           "--parents=@" + map_file(), "--parents_schedule=" + WorldSchedule().Name(),
           "--parents_overlap=3s"});
    }
  }
  void AddLeaves(const std::string& region) {
    const std::string parents =
        AddressOf("region-" + region + "-0") + "," + AddressOf("region-" + region + "-1");
    for (int i = 0; i < kReplicas; ++i) {
      Add("leaf-" + region + "-" + std::to_string(i), "indexer/leaf/kvatlas-leaf",
          {"--http=127.0.0.1:0", "--cell=cell-" + region, "--replica=" + std::to_string(i),
           "--parents=" + parents});
    }
  }
  void AddEngines(const std::string& region) {
    const std::string leaves =
        AddressOf("leaf-" + region + "-0") + "," + AddressOf("leaf-" + region + "-1");
    for (int i = 0; i < kEnginesPerCell; ++i) {
      const std::string name = "engine-" + region + "-" + std::to_string(i);
      Add(name, "tools/testing/mock_engine/mock_engine",
          {"--leaf=" + leaves, "--worker=" + name, "--capacity=700", "--block_size=16"});
    }
  }

  void Add(const std::string& name, const std::string& binary, std::vector<std::string> args) {
    args.insert(args.begin(), "--grpc=127.0.0.1:0");
    auto& process = processes_[name];
    process = std::make_unique<Process>(ProcessOptions{
        .name = name, .binary = binary, .args = args, .log = directory_ + "/" + name + ".log"});
    const absl::Status status = process->Spawn();
    ASSERT_TRUE(status.ok()) << status;
    spawned_.push_back(process.get());
  }
  void StartSpawned() {
    for (Process* process : spawned_) {
      const absl::Status status = process->WaitReady(kReady);
      ASSERT_TRUE(status.ok()) << status;
    }
    spawned_.clear();
  }
  std::string AddressOf(const std::string& name) const {
    return processes_.at(name)->address("grpc");
  }

  const std::string directory_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::vector<Process*> spawned_;
  std::vector<std::string> shards_;
  ShardMap world_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;  // to the frontends
  std::vector<std::unique_ptr<v1::Frontend::Stub>> frontends_;
  std::map<std::string, std::unique_ptr<engine::v1::Engine::Stub>> engines_;
  uint64_t requests_ = 0;
};

// Sessions that share a head, grow, and are sometimes replaced by new ones.
class Sessions {
 public:
  explicit Sessions(uint32_t seed) : random_(seed) {
    Grow(&head_, 40);
    sessions_.resize(8, head_);
  }

  const std::vector<uint64_t>& Next() {
    std::vector<uint64_t>& session = sessions_[random_() % sessions_.size()];
    if (session.size() > 500) session = head_;
    Grow(&session, 10 + random_() % 60);
    return session;
  }
  // Of a block that was ever in a prompt.
  uint32_t PositionOf(uint64_t block) const { return positions_.at(block); }

 private:
  void Grow(std::vector<uint64_t>* prompt, size_t blocks) {
    for (size_t i = 0; i < blocks; ++i) {
      prompt->push_back(random_());
      positions_[prompt->back()] = static_cast<uint32_t>(prompt->size() - 1);
    }
  }

  std::mt19937_64 random_;
  std::vector<uint64_t> head_;
  std::vector<std::vector<uint64_t>> sessions_;
  std::map<uint64_t, uint32_t> positions_;
};

class LevelsTest : public testing::Test {
 protected:
  // Nothing may be lost, and nothing has to be found without the full path: every level has another
  // replica.
  void ServeSome(int requests, const std::string& while_what) {
    for (int i = 0; i < requests; ++i) {
      const absl::StatusOr<v1::RouteResponse> route = fleet_.Serve(sessions_.Next());
      ASSERT_TRUE(route.ok()) << while_what << ": " << route.status();
      EXPECT_EQ(route->receipt().fallback(), v1::FALLBACK_NONE)
          << while_what << ": " << route->receipt().reason();
      EXPECT_GT(route->receipt().nodes_size(), 0) << while_what << ": no descent";
    }
  }

  // A frontend tries a node that it could not reach again after a second at most: one that came
  // back just before its other replica is killed may not be known yet. Until then requests find a
  // worker all the same.
  void AwaitFullPath(const std::string& while_what) {
    const Time until = Clock::Real().Now() + kRest;
    v1::Fallback fallback;
    do {
      const absl::StatusOr<v1::RouteResponse> route = fleet_.Serve(sessions_.Next());
      ASSERT_TRUE(route.ok()) << while_what << ": " << route.status();
      fallback = route->receipt().fallback();
    } while (fallback != v1::FALLBACK_NONE && Clock::Real().Now() < until);
  }

  // What every node is to have at rest, by its process's name without the replica.
  std::map<std::string, Coverage> Implied() {
    std::map<std::string, Coverage> implied;
    const WaypointSchedule& standard = WaypointSchedule::Standard();
    const WaypointSchedule at_world = WorldSchedule();
    for (const std::string region : kRegions) {
      Waypoints in_region, in_world;
      for (uint64_t block : fleet_.ContentsOf(region)) {
        const uint32_t position = sessions_.PositionOf(block);
        if (standard.IsWaypoint(position)) in_region[block] = standard.WaypointsIn(position);
        if (at_world.IsWaypoint(position)) in_world[block] = at_world.WaypointsIn(position);
      }
      for (int i = 0; i < kReplicas; ++i) {
        const std::string replica = "@" + std::to_string(i);
        implied["region-" + region]["cell-" + region + replica] = in_region;
        for (size_t shard = 0; shard < fleet_.world().shards().size(); ++shard) {
          Waypoints& part =
              implied["world-" + fleet_.world().shards()[shard].name][region + replica];
          for (const auto& [block, ordinal] : in_world)
            if (fleet_.world().Keeps(shard, ordinal, SequenceHash(block))) part[block] = ordinal;
        }
      }
    }
    return implied;
  }

  void ExpectCoverageAtRest(const std::string& after_what) {
    const std::map<std::string, Coverage> implied = Implied();
    const Time until = Clock::Real().Now() + kRest;
    for (const auto& [node, coverage] : implied) {
      for (int i = 0; i < kReplicas; ++i) {
        const std::string name = node + "-" + std::to_string(i);
        Coverage known = fleet_.CoverageOf(name);
        while (known != coverage && Clock::Real().Now() < until) {
          Pause(milliseconds(50));
          known = fleet_.CoverageOf(name);
        }
        EXPECT_EQ(known, coverage) << name << " " << after_what;
      }
    }
  }

  void KillEach(const std::string& kind) {
    for (const std::string& name : fleet_.Names(kind)) {
      fleet_.Kill(name);
      ASSERT_NO_FATAL_FAILURE(AwaitFullPath("without " + name));
      ServeSome(5, "without " + name);
      fleet_.Restart(name);
      ServeSome(2, "with a fresh " + name);
    }
    ExpectCoverageAtRest("after each " + kind + " was killed");
  }

  Sessions sessions_{1};
  Fleet fleet_;
};

TEST_F(LevelsTest, KillingAnyOneLosesNoRequestAndAtRestEveryNodeKnowsWhatTheEnginesHave) {
  // The first request finds a fleet whose levels may not have heard of one another.
  ASSERT_NO_FATAL_FAILURE(ExpectCoverageAtRest("at the start"));
  ServeSome(40, "warming up");
  ExpectCoverageAtRest("before any kill");
  for (auto& [node, coverage] : Implied())
    for (const auto& [holder, waypoints] : coverage) EXPECT_FALSE(waypoints.empty()) << node;
  for (const char* kind : {"world-", "region-", "leaf-", "frontend-"}) KillEach(kind);
}

TEST_F(LevelsTest, AShardIsAddedWhileRequestsGoOn) {
  ASSERT_NO_FATAL_FAILURE(ExpectCoverageAtRest("at the start"));
  ServeSome(40, "warming up");
  fleet_.AddWorldShard("c");
  ServeSome(40, "while a shard is new");
  ExpectCoverageAtRest("with a third shard");
  size_t at_new = 0;
  for (const auto& [region, waypoints] : fleet_.CoverageOf("world-c-0")) at_new += waypoints.size();
  EXPECT_GT(at_new, 0u);
}

}  // namespace
}  // namespace kvatlas
