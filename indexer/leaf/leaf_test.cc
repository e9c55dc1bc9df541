// A leaf over real gRPC: workers' streams in, questions answered, coverage arriving at a parent.

#include "indexer/leaf/leaf.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/waypoints.h"
#include "indexer/coverage/coverage.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/net/http_fetch.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/grpc_link.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Domain kLlama{"llama-70b", "tenant-a"};
constexpr Duration kPatience = seconds(60);

// Waits for a change that other threads or processes make, by polling as an operator would.
bool Eventually(const std::function<bool()>& condition) {
  const Clock& clock = Clock::Real();
  Mutex mutex;
  CondVar never;
  for (const Time end = clock.Now() + kPatience; clock.Now() < end;) {
    if (condition()) return true;
    MutexLock lock(&mutex);
    never.WaitFor(&mutex, milliseconds(5));
  }
  return condition();
}

std::vector<TokenId> Tokens(size_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<LocalHash> Locals(size_t blocks, TokenId first = 0) {
  return LocalHashes(Tokens(blocks * 16, first), {.block_size = 16}, BlockSeed({}));
}

std::vector<SequenceHash> Sequence(size_t blocks, TokenId first = 0) {
  return SequenceHashes(Locals(blocks, first));
}

// A worker with the stream's real sending end.
class Worker {
 public:
  Worker(const std::string& name, const Address& leaf, uint32_t block_size = 16,
         const std::string& contract_id = HashContract().Id(),
         std::vector<std::pair<std::string, std::string>> labels = {})
      : pump_({},
              {.holder = {name, 0, ""},
               .domain = kLlama,
               .block_size = block_size,
               .contract_id = contract_id,
               .schedule = "",
               .address = "",
               .labels = std::move(labels),
               .epoch = WallTimeNs(),
               .instance_id = RandomInstanceId()},
              &resident_, &mutex_, std::make_unique<GrpcLink>(leaf.ToString()), &Clock::Real()),
        timer_([this] { Run(); }) {
    pump_.Start();
  }
  ~Worker() {
    {
      MutexLock lock(&timer_mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    timer_.join();
    pump_.Stop(/*goodbye=*/true, seconds(1));
  }

  void Send(const Event& event, const std::optional<Load>& load = std::nullopt) {
    {
      MutexLock lock(&mutex_);
      pump_.Append(resident_.Apply(event), load);
    }
    pump_.Flush();
  }
  void Store(std::vector<SequenceHash> blocks, const std::optional<Load>& load = std::nullopt) {
    Send(
        Stored{
            .tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = std::move(blocks)},
        load);
  }
  bool AtRest() { return pump_.WaitAtRest(kPatience); }
  bool welcomed() const { return pump_.welcomed(); }
  uint64_t refused() const { return pump_.stats().refused; }

 private:
  void Run() {
    MutexLock lock(&timer_mutex_);
    while (!stopping_) {
      timer_mutex_.Unlock();
      pump_.Tick();
      timer_mutex_.Lock();
      if (!stopping_) wake_.WaitFor(&timer_mutex_, milliseconds(50));
    }
  }

  Mutex mutex_;
  ResidentSet resident_;
  SenderPump pump_;
  Mutex timer_mutex_;
  CondVar wake_;
  bool stopping_ = false;
  std::thread timer_;
};

// A parent: a registry of cells behind real gRPC.
class Parent {
 public:
  explicit Parent(const Address& listen = {"127.0.0.1", 0})
      : registry_(Options()), streams_(&registry_), grpc_(GrpcServerOptions{.listen = listen}) {
    grpc_.Register(streams_.service(), "kvatlas.v1.Holdings");
    EXPECT_TRUE(grpc_.Start().ok());
  }
  ~Parent() {
    streams_.Stop();
    grpc_.Stop(seconds(1));
  }
  std::string address() const { return grpc_.address().ToString(); }
  const HolderRegistry& registry() const { return registry_; }

  // Waypoints of the prompt that the cell covers; -1: it is unknown.
  int Covered(const std::string& cell, const std::vector<SequenceHash>& sequence) const {
    const std::vector<SequenceHash> waypoints = WaypointSchedule::Standard().Select(sequence);
    const auto answer = registry_.FindOverlaps(kLlama, {.blocks = waypoints}, /*all_holders=*/true);
    if (!answer.ok()) return -1;
    for (const HolderOverlap& overlap : answer->holders) {
      if (overlap.holder->id.name == cell) return static_cast<int>(overlap.blocks);
    }
    return -1;
  }

 private:
  static HolderRegistryOptions Options() {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    options.schedule = WaypointSchedule::Standard().Name();
    options.receiver.lease_ttl = std::chrono::hours(1);  // however slow a leaf is
    return options;
  }
  HolderRegistry registry_;
  GrpcAcceptor streams_;
  GrpcServer grpc_;
};

class LeafTest : public testing::Test {
 protected:
  void StartLeaf(std::vector<std::string> parents = {}, const Address& grpc = {"127.0.0.1", 0}) {
    LeafOptions options;
    options.cell = cell_;
    options.replica = "r1";
    options.grpc = grpc;
    options.http = {"127.0.0.1", 0};
    options.parents = std::move(parents);
    options.coverage = coverage_;
    options.registry.receiver.lease_ttl = std::chrono::hours(1);  // however slow a worker is
    options.engines.min_initial_workers = workers_min_;
    options.engines.ready_after = std::chrono::hours(1);
    options.memory_bytes_max = 1000;
    options.memory_meter = [this] { return memory_used_.load(); };
    absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(options);
    ASSERT_TRUE(leaf.ok()) << leaf.status();
    leaf_ = *std::move(leaf);
    stub_ = v1::Leaf::NewStub(
        MakeChannel(leaf_->grpc_address().ToString(), {.connect_timeout = kPatience}));
  }

  static v1::FindOverlapsRequest Ask(const std::vector<SequenceHash>& sequence) {
    v1::FindOverlapsRequest request;
    request.mutable_domain()->set_model(kLlama.model);
    request.mutable_domain()->set_tenant(kLlama.tenant);
    for (SequenceHash hash : sequence) request.add_sequence_hashes(Raw(hash));
    return request;
  }

  grpc::Status Find(const v1::FindOverlapsRequest& request, v1::FindOverlapsResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    return stub_->FindOverlaps(&context, request, response);
  }

  // "w1:5 w0:3", in the order of the answer.
  std::string Found(const v1::FindOverlapsRequest& request) {
    v1::FindOverlapsResponse response;
    const grpc::Status status = Find(request, &response);
    if (!status.ok()) return status.error_message();
    std::string text;
    for (const v1::WorkerOverlap& worker : response.workers()) {
      text += (text.empty() ? "" : " ") + worker.worker().name() + ":" +
              std::to_string(worker.blocks());
    }
    return text;
  }

  grpc::StatusCode CodeOf(const v1::FindOverlapsRequest& request) {
    v1::FindOverlapsResponse response;
    return Find(request, &response).error_code();
  }

  grpc::StatusCode DumpCode() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const auto reader = stub_->Dump(&context, v1::DumpRequest());
    for (v1::DumpResponse response; reader->Read(&response);) {
    }
    return reader->Finish().error_code();
  }

  std::string Get(const std::string& path) {
    HttpFetch fetch;
    EXPECT_EQ(*fetch.Get("http://" + leaf_->http_address().ToString(), path), 200);
    return *fetch.ReadAll(1 << 20);
  }

  int StatusOf(const std::string& path) {
    HttpFetch fetch;
    return fetch.Get("http://" + leaf_->http_address().ToString(), path).value_or(0);
  }

  // The budget is 1,000 bytes, of which so much is used from now on.
  void UseMemory(uint64_t bytes, const std::string& level) {
    memory_used_.store(bytes);
    EXPECT_TRUE(Eventually([&] {
      return Get("/status").find("\"level\":\"" + level + "\"") != std::string::npos;
    })) << Get("/status");
  }

  std::atomic<uint64_t> memory_used_{0};
  CoverageOptions coverage_{.withdraw_delay = milliseconds(20)};
  uint32_t workers_min_ = 0;
  std::string cell_ = "cell-a";
  std::unique_ptr<Leaf> leaf_;
  std::unique_ptr<v1::Leaf::Stub> stub_;
};

TEST_F(LeafTest, WorkersAreFoundDeepestFirstHoweverThePromptIsGiven) {
  StartLeaf();
  Worker w0("w0", leaf_->grpc_address());
  Worker w1("w1", leaf_->grpc_address());
  w0.Store(Sequence(3));
  w1.Store(Sequence(5), Load{.running_requests = 7});
  ASSERT_TRUE(w0.AtRest());
  ASSERT_TRUE(w1.AtRest());
  EXPECT_EQ(Found(Ask(Sequence(8))), "w1:5 w0:3");

  v1::FindOverlapsRequest by_locals = Ask({});
  for (LocalHash hash : Locals(8)) by_locals.add_local_hashes(Raw(hash));
  EXPECT_EQ(Found(by_locals), "w1:5 w0:3");

  v1::FindOverlapsRequest by_tokens = Ask({});
  for (TokenId token : Tokens(8 * 16 + 5)) by_tokens.mutable_tokens()->add_ids(token);
  v1::FindOverlapsResponse response;
  ASSERT_TRUE(Find(by_tokens, &response).ok());
  EXPECT_EQ(response.blocks(), 8u);
  EXPECT_EQ(response.block_size(), 16u);
  ASSERT_EQ(response.workers_size(), 2);
  EXPECT_EQ(response.workers(0).load().running_requests(), 7u);
  EXPECT_EQ(response.workers(0).trust(), v1::TRUST_EXACT);
  EXPECT_FALSE(response.workers(1).has_load());
  by_tokens.mutable_tokens()->set_cache_salt("other");
  EXPECT_EQ(Found(by_tokens), "");
}

TEST_F(LeafTest, TheBestAndAllCanBeAskedFor) {
  StartLeaf();
  Worker w0("w0", leaf_->grpc_address());
  Worker w1("w1", leaf_->grpc_address());
  Worker w2("w2", leaf_->grpc_address());
  w0.Store(Sequence(3));
  w1.Store(Sequence(5));
  w2.Store(Sequence(4, /*first=*/1000));
  for (Worker* worker : {&w0, &w1, &w2}) ASSERT_TRUE(worker->AtRest());
  v1::FindOverlapsRequest request = Ask(Sequence(8));
  request.set_best(1);
  EXPECT_EQ(Found(request), "w1:5");
  request.set_all_workers(true);
  request.set_best(0);
  EXPECT_EQ(Found(request), "w1:5 w0:3 w2:0");
}

TEST_F(LeafTest, LabelsAreToldToWhomDoesNotKnowThemYet) {
  StartLeaf();
  Worker w0("w0", leaf_->grpc_address(), 16, HashContract().Id(), {{"url", "http://e:1"}});
  Worker w1("w1", leaf_->grpc_address());
  w0.Store(Sequence(3));
  w1.Store(Sequence(2));
  for (Worker* worker : {&w0, &w1}) ASSERT_TRUE(worker->AtRest());
  v1::FindOverlapsRequest request = Ask(Sequence(8));
  v1::FindOverlapsResponse response;
  ASSERT_TRUE(Find(request, &response).ok());
  EXPECT_TRUE(response.workers(0).labels().empty());  // not asked for
  EXPECT_EQ(response.labels_version(), 0u);
  request.set_labels(true);
  ASSERT_TRUE(Find(request, &response).ok());
  EXPECT_EQ(response.workers(0).labels().at("url"), "http://e:1");
  EXPECT_TRUE(response.workers(1).labels().empty());
  EXPECT_NE(response.labels_version(), 0u);
  request.set_labels_version(response.labels_version());
  ASSERT_TRUE(Find(request, &response).ok());
  EXPECT_TRUE(response.workers(0).labels().empty());
  EXPECT_EQ(response.labels_version(), request.labels_version());
  // Another worker with a label: everything again.
  Worker w2("w2", leaf_->grpc_address(), 16, HashContract().Id(), {{"url", "http://e:2"}});
  w2.Store(Sequence(4));
  ASSERT_TRUE(w2.AtRest());
  ASSERT_TRUE(Find(request, &response).ok());
  EXPECT_EQ(response.workers(0).labels().at("url"), "http://e:2");
  EXPECT_EQ(response.workers(1).labels().at("url"), "http://e:1");
}

TEST_F(LeafTest, TiersCanBeAskedFor) {
  StartLeaf();
  Worker w0("w0", leaf_->grpc_address());
  w0.Store(Sequence(4));
  w0.Send(Removed{.tier = Tier::kDevice, .blocks = {Sequence(3)[2]}});
  ASSERT_TRUE(w0.AtRest());
  EXPECT_EQ(Found(Ask(Sequence(8))), "w0:2") << "a hole";
  w0.Send(Stored{
      .tier = Tier::kHost, .position = 2, .parent = Sequence(2)[1], .blocks = {Sequence(3)[2]}});
  ASSERT_TRUE(w0.AtRest());
  EXPECT_EQ(Found(Ask(Sequence(8))), "w0:4") << "the deeper one counts again";
  v1::FindOverlapsRequest device = Ask(Sequence(8));
  device.set_tiers(TierMask(Tier::kDevice).bits());
  EXPECT_EQ(Found(device), "w0:2");
}

TEST_F(LeafTest, WhatWouldHaveToBeFetchedIsToldTierByTier) {
  StartLeaf();
  Worker w0("w0", leaf_->grpc_address());
  Worker w1("w1", leaf_->grpc_address());
  const std::vector<SequenceHash> prompt = Sequence(9);
  w0.Store(Sequence(2));
  w1.Store(Sequence(3));
  const auto store = [&](Tier tier, Position from, Position to) {
    w0.Send(Stored{.tier = tier,
                   .position = from,
                   .parent = prompt[from - 1],
                   .blocks = {prompt.begin() + from, prompt.begin() + to}});
  };
  store(Tier::kHost, 2, 5);
  store(Tier::kDisk, 5, 6);
  store(Tier::kExternal, 6, 8);
  ASSERT_TRUE(w0.AtRest() && w1.AtRest());
  v1::FindOverlapsRequest request = Ask(prompt);
  v1::FindOverlapsResponse response;
  ASSERT_TRUE(Find(request, &response).ok());
  EXPECT_EQ(response.workers(0).host_blocks(), 0u) << "not asked for";
  request.set_by_tier(true);
  ASSERT_TRUE(Find(request, &response).ok());
  ASSERT_EQ(response.workers_size(), 2);
  EXPECT_EQ(response.workers(0).blocks(), 8u);
  EXPECT_EQ(response.workers(0).host_blocks(), 3u);
  EXPECT_EQ(response.workers(0).disk_blocks(), 1u);
  EXPECT_EQ(response.workers(0).external_blocks(), 2u);
  EXPECT_EQ(response.workers(1).blocks(), 3u);
  EXPECT_EQ(response.workers(1).host_blocks() + response.workers(1).disk_blocks() +
                response.workers(1).external_blocks(),
            0u);
}

TEST_F(LeafTest, APromptWithoutAFullBlockIsAskedForLoadsAlone) {
  StartLeaf();
  Worker w0("w0", leaf_->grpc_address());
  Worker w1("w1", leaf_->grpc_address());
  w0.Store(Sequence(3));
  w1.Store(Sequence(1), Load{.running_requests = 7});
  ASSERT_TRUE(w0.AtRest() && w1.AtRest());
  v1::FindOverlapsRequest request = Ask({});
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_tokens()->add_ids(1);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_all_workers(true);
  v1::FindOverlapsResponse response;
  ASSERT_TRUE(Find(request, &response).ok());
  EXPECT_EQ(response.blocks(), 0u);
  EXPECT_GT(response.block_size(), 0u);
  ASSERT_EQ(response.workers_size(), 2);
  EXPECT_EQ(response.workers(1).load().running_requests(), 7u);
  request.clear_tokens();
  EXPECT_EQ(Found(request), "w0:0 w1:0");
}

TEST_F(LeafTest, BadQuestionsHaveTheirStatuses) {
  StartLeaf();
  EXPECT_EQ(CodeOf(Ask(Sequence(1))), grpc::StatusCode::NOT_FOUND);
  Worker w0("w0", leaf_->grpc_address());
  w0.Store(Sequence(3));
  ASSERT_TRUE(w0.AtRest());
  EXPECT_EQ(CodeOf(Ask({})), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(Ask(std::vector<SequenceHash>(65537, SequenceHash{1}))),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(CodeOf(Ask(std::vector<SequenceHash>(65536, SequenceHash{1}))), grpc::StatusCode::OK);
  v1::FindOverlapsRequest two = Ask(Sequence(1));
  two.add_local_hashes(1);
  EXPECT_EQ(CodeOf(two), grpc::StatusCode::INVALID_ARGUMENT);
  v1::FindOverlapsRequest no_model = Ask(Sequence(1));
  no_model.mutable_domain()->clear_model();
  EXPECT_EQ(CodeOf(no_model), grpc::StatusCode::INVALID_ARGUMENT);
  v1::FindOverlapsRequest tier = Ask(Sequence(1));
  tier.set_tiers(1 << 10);
  EXPECT_EQ(CodeOf(tier), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(LeafTest, ContradictingStreamsAreRefusedAndOthersGoOn) {
  StartLeaf();
  Worker good("good", leaf_->grpc_address());
  good.Store(Sequence(3));
  ASSERT_TRUE(good.AtRest());
  Worker size("size", leaf_->grpc_address(), /*block_size=*/32);
  Worker contract("contract", leaf_->grpc_address(), 16, "xxh3-chain-1:42");
  EXPECT_TRUE(Eventually([&] { return leaf_->registry().Stats().streams_refused >= 2; }));
  EXPECT_TRUE(Eventually([&] { return size.refused() > 0 && contract.refused() > 0; }));
  EXPECT_FALSE(size.welcomed());
  good.Store(Sequence(6));
  ASSERT_TRUE(good.AtRest());
  EXPECT_EQ(Found(Ask(Sequence(8))), "good:6");
}

TEST_F(LeafTest, ADumpHasEverythingAndStatsCountIt) {
  StartLeaf();
  Worker w0("w0", leaf_->grpc_address());
  w0.Store(Sequence(100));
  ASSERT_TRUE(w0.AtRest());
  grpc::ClientContext context;
  v1::DumpRequest request;
  auto reader = stub_->Dump(&context, request);
  v1::DumpResponse response;
  std::vector<SequenceHash> blocks;
  bool last = false;
  while (reader->Read(&response)) {
    EXPECT_EQ(response.worker().name(), "w0");
    last = response.last_of_worker();
    for (const v1::Stored& stored : response.stored()) {
      for (uint64_t hash : stored.blocks()) blocks.push_back(SequenceHash{hash});
    }
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(last);
  EXPECT_EQ(blocks, Sequence(100));

  grpc::ClientContext stats_context;
  v1::StatsResponse stats;
  ASSERT_TRUE(stub_->Stats(&stats_context, {}, &stats).ok());
  EXPECT_EQ(stats.cell(), "cell-a");
  ASSERT_EQ(stats.domains_size(), 1);
  EXPECT_EQ(stats.domains(0).blocks(), 100u);
  EXPECT_EQ(stats.domains(0).blocks_stored(), 100u);
  EXPECT_GE(stats.domains(0).bytes_received(), 800u);
  EXPECT_EQ(stats.streams_open(), 1u);
}

TEST_F(LeafTest, CoverageReachesTheParentAndIsWithdrawn) {
  Parent parent;
  StartLeaf({parent.address()});
  const std::vector<SequenceHash> sequence = Sequence(200);
  const int all = static_cast<int>(WaypointSchedule::Standard().WaypointsIn(200));
  ASSERT_GT(all, 2);
  {
    Worker w0("w0", leaf_->grpc_address());
    w0.Store(sequence, Load{.running_requests = 4, .workers = 1});
    ASSERT_TRUE(w0.AtRest());
    EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-a", sequence) == all; }));
    EXPECT_TRUE(Eventually([&] { return leaf_->parents()[0].at_rest; }));
    EXPECT_TRUE(Eventually([&] {
      const auto stats = parent.registry().StatsOf(kLlama);
      return stats.ok() && stats->holders[0].load.has_value() &&
             stats->holders[0].load->running_requests == 4;
    }));
    const DomainStats stats = *parent.registry().StatsOf(kLlama);
    EXPECT_EQ(stats.holders[0].holder->id, (HolderId{"cell-a", 0, "r1"}));
    EXPECT_EQ(stats.holders[0].holder->address, leaf_->grpc_address().ToString());
    EXPECT_EQ(stats.blocks_stored, static_cast<uint64_t>(all));
    // The leaf may have said something since.
    EXPECT_TRUE(Eventually([&] {
      return parent.registry().StatsOf(kLlama)->bytes_received == leaf_->parents()[0].bytes_sent;
    }));
    w0.Send(Removed{.tier = Tier::kDevice, .blocks = {sequence.begin() + 100, sequence.end()}});
    const int left = static_cast<int>(WaypointSchedule::Standard().WaypointsIn(100));
    EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-a", sequence) == left; }));
  }
  // The worker said goodbye.
  EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-a", sequence) == 0; }));
  leaf_->Stop(seconds(2));
  EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-a", sequence) == -1; }));
}

// Otherwise a leaf without its workers would speak for its cell, beside a replica that has all of
// them.
TEST_F(LeafTest, ALeafThatWaitsForWorkersTellsItsParentsNothing) {
  Parent parent;
  workers_min_ = 2;
  StartLeaf({parent.address()});
  const std::vector<SequenceHash> sequence = Sequence(200);
  Worker w0("w0", leaf_->grpc_address());
  w0.Store(sequence);
  ASSERT_TRUE(w0.AtRest());
  EXPECT_EQ(Found(Ask(sequence)), "w0:200");
  // A leaf that started later was heard by now, so this one would have been too.
  const std::unique_ptr<Leaf> first = std::move(leaf_);
  workers_min_ = 0;
  cell_ = "cell-b";
  StartLeaf({parent.address()});
  Worker other("w0", leaf_->grpc_address());
  other.Store(sequence);
  const int all = static_cast<int>(WaypointSchedule::Standard().WaypointsIn(200));
  EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-b", sequence) == all; }));
  EXPECT_EQ(parent.Covered("cell-a", sequence), -1);

  Worker w1("w1", first->grpc_address());
  EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-a", sequence) == all; }));
}

TEST_F(LeafTest, ABudgetForCoverageBindsAndIsSeen) {
  Parent parent;
  coverage_.waypoints_max = 2;
  StartLeaf({parent.address()});
  const std::vector<SequenceHash> sequence = Sequence(200);
  const int all = static_cast<int>(WaypointSchedule::Standard().WaypointsIn(200));
  ASSERT_GT(all, 2);
  Worker w0("w0", leaf_->grpc_address());
  w0.Store(sequence, Load{});
  ASSERT_TRUE(w0.AtRest());
  ASSERT_TRUE(Eventually([&] {
    const auto parents = leaf_->parents();  // none before the domain is there
    return !parents.empty() && parents[0].at_rest && parent.Covered("cell-a", sequence) == 2;
  }));
  const std::string status = Get("/status"), metrics = Get("/metrics");
  const std::string of = "{domain=\"" + ToString(kLlama) + "\"} ";
  const auto check = [&](const std::string& name, const std::string& metric, int value) {
    const std::string number = std::to_string(value);
    EXPECT_NE(status.find("\"" + name + "\":\"" + number + "\""), std::string::npos) << status;
    EXPECT_NE(metrics.find(metric + of + number + "\n"), std::string::npos) << metrics;
  };
  check("waypoints_held", "kvatlas_leaf_waypoints_announced", 2);
  check("waypoints_covered", "kvatlas_leaf_waypoints_covered", all);
  check("waypoints_waiting", "kvatlas_leaf_waypoints_waiting", all - 2);
}

TEST_F(LeafTest, ALeafThatComesBackIsToldEverythingAgainAndSoIsItsParent) {
  Parent parent;
  ReservedTestPorts held;
  const Address address = held.HoldAny();
  StartLeaf({parent.address()}, address);
  const std::vector<SequenceHash> sequence = Sequence(200);
  const int all = static_cast<int>(WaypointSchedule::Standard().WaypointsIn(200));
  Worker w0("w0", leaf_->grpc_address());
  Worker w1("w1", leaf_->grpc_address());
  w0.Store(sequence);
  w1.Store(Sequence(7));
  ASSERT_TRUE(w0.AtRest());
  ASSERT_TRUE(w1.AtRest());
  EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-a", sequence) == all; }));
  leaf_.reset();
  StartLeaf({parent.address()}, address);
  EXPECT_TRUE(Eventually([&] { return Found(Ask(sequence)) == "w0:200 w1:7"; }));
  EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-a", sequence) == all; }));
  w1.Store(Sequence(9));
  ASSERT_TRUE(w1.AtRest());
  EXPECT_EQ(Found(Ask(sequence)), "w0:200 w1:9");
}

TEST_F(LeafTest, AParentThatIsLateGetsEverythingWhenItComes) {
  ReservedTestPorts held;
  const Address address = held.HoldAny();
  StartLeaf({address.ToString()});
  const std::vector<SequenceHash> sequence = Sequence(100);
  Worker w0("w0", leaf_->grpc_address());
  w0.Store(sequence);
  ASSERT_TRUE(w0.AtRest());
  EXPECT_EQ(Found(Ask(sequence)), "w0:100") << "a missing parent changes nothing";
  EXPECT_FALSE(leaf_->parents()[0].at_rest);
  Parent parent(address);
  const int all = static_cast<int>(WaypointSchedule::Standard().WaypointsIn(100));
  EXPECT_TRUE(Eventually([&] { return parent.Covered("cell-a", sequence) == all; }));
}

TEST_F(LeafTest, AsMemoryFillsLessIsTakenAndSmallQuestionsAreAlwaysAnswered) {
  StartLeaf();
  Worker w0("w0", leaf_->grpc_address());
  w0.Store(Sequence(3));
  ASSERT_TRUE(w0.AtRest());
  const v1::FindOverlapsRequest small = Ask(Sequence(200));
  v1::FindOverlapsResponse response;

  // Heads of sequences, and a worker that lost a tail is degraded.
  UseMemory(850, "tight");
  w0.Store(Sequence(100));
  EXPECT_TRUE(Eventually([&] { return Found(small) == "w0:64"; })) << Found(small);
  ASSERT_TRUE(Find(small, &response).ok());
  EXPECT_EQ(response.workers(0).trust(), v1::TRUST_DEGRADED);

  UseMemory(910, "full");
  const uint64_t refused = leaf_->registry().Stats().streams_refused;
  Worker w1("w1", leaf_->grpc_address());
  EXPECT_TRUE(Eventually([&] { return leaf_->registry().Stats().streams_refused > refused; }));
  EXPECT_FALSE(w1.welcomed());
  EXPECT_EQ(leaf_->registry().HoldersOf(kLlama).size(), 1u);
  EXPECT_EQ(DumpCode(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(StatusOf("/snapshot"), 503);
  EXPECT_EQ(CodeOf(Ask(Sequence(2000))), grpc::StatusCode::OK);

  UseMemory(960, "critical");
  EXPECT_EQ(CodeOf(Ask(Sequence(2000))), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Found(small), "w0:64");
  EXPECT_EQ(StatusOf("/healthz"), 200);
  EXPECT_NE(Get("/metrics").find("kvatlas_leaf_memory_used_bytes 960"), std::string::npos);
  EXPECT_NE(Get("/metrics").find("kvatlas_leaf_memory_part_bytes{part=\"index\"}"),
            std::string::npos);

  // With room again, the refused worker connects and the refused blocks are asked for.
  UseMemory(0, "ample");
  EXPECT_TRUE(w1.AtRest());
  EXPECT_EQ(DumpCode(), grpc::StatusCode::OK);
  EXPECT_EQ(StatusOf("/snapshot"), 200);
  EXPECT_EQ(CodeOf(Ask(Sequence(2000))), grpc::StatusCode::OK);
}

// A sender that says hello in the middle of a stream and sends no snapshot.
class HelloAlone : public SenderLinkObserver {
 public:
  explicit HelloAlone(const Address& leaf) : link_(leaf.ToString()) { link_.Start(this); }
  ~HelloAlone() override { link_.Stop(Duration(0)); }

  void OnConnected() override {
    link_.Write(Hello{.holder = {"w", 0, ""},
                      .domain = kLlama,
                      .block_size = 16,
                      .contract_id = HashContract().Id(),
                      .schedule = "",
                      .epoch = WallTimeNs(),
                      .instance_id = RandomInstanceId(),
                      .first_kept = 5,
                      .last_sent = 7,
                      .starting = true,
                      .address = "",
                      .labels = {}});
  }
  void OnDisconnected(const absl::Status&) override {}
  void OnMessage(ReceiverMessage) override {}
  void OnWritable() override {}

 private:
  GrpcLink link_;
};

TEST_F(LeafTest, AWorkerThatWasWaitedForCountsOnceItIsCaughtUpWith) {
  workers_min_ = 1;
  StartLeaf();
  {
    HelloAlone early(leaf_->grpc_address());
    EXPECT_TRUE(Eventually([&] {
      return leaf_->readiness().reason == "1 workers are not caught up with";
    })) << leaf_->readiness().reason;
    EXPECT_FALSE(leaf_->readiness().ready);
  }
  Worker whole("w", leaf_->grpc_address());
  whole.Store(Sequence(2));
  EXPECT_TRUE(Eventually([&] { return leaf_->readiness().ready; })) << leaf_->readiness().reason;
}

TEST_F(LeafTest, APortInUseIsNamed) {
  StartLeaf();
  LeafOptions options;
  options.grpc = leaf_->grpc_address();
  options.http = {"127.0.0.1", 0};
  const auto second = Leaf::Start(options);
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_NE(second.status().ToString().find(std::to_string(options.grpc.port)), std::string::npos);
}

}  // namespace
}  // namespace kvatlas
