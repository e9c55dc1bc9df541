// The node over real gRPC: streams of waypoints come in through the real link, questions through a
// stub.

#include "hierarchy/hierarchy_service.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/address.h"
#include "indexer/base/hash.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/mutex.h"
#include "indexer/coverage/coverage_reporter.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/grpc_link.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

std::vector<SequenceHash> Waypoints(size_t count) {
  std::vector<SequenceHash> hashes;
  for (size_t i = 0; i < count; ++i) hashes.push_back(SequenceHash(1000 + i));
  return hashes;
}

// A node with its server; `clock` decides about leases.
struct Node {
  explicit Node(const Clock* clock, Address listen = {"127.0.0.1", 0},
                CoverageReporter* to_parents = nullptr, const MemoryBudget* memory = nullptr)
      : hierarchy(Options(clock, to_parents, memory)),
        service(&hierarchy, to_parents, &metrics),
        streams(&hierarchy.registry()),
        server(GrpcServerOptions{.listen = listen}) {
    server.Register(&service);
    server.Register(streams.service());
    EXPECT_TRUE(server.Start().ok());
  }
  ~Node() {
    streams.Stop();
    server.Stop(Duration(0));
  }
  static HierarchyOptions Options(const Clock* clock, CoverageReporter* to_parents,
                                  const MemoryBudget* memory) {
    HierarchyOptions options{.node = "n", .registry = {}};
    options.registry.index.memory = memory;
    options.registry.clock = clock;
    if (to_parents != nullptr) {
      options.registry.observe = [to_parents](const Domain& domain, uint32_t block_size) {
        return to_parents->AddDomain(domain, block_size);
      };
    }
    return options;
  }

  Metrics metrics;
  Hierarchy hierarchy;
  HierarchyService service;
  GrpcAcceptor streams;
  GrpcServer server;
};

// A leaf as its parent sees it.
class Reporter {
 public:
  Reporter(const std::string& cell, const Address& parent, const Clock* clock)
      : pump_(SenderOptions(), Identity(cell), &resident_, &mutex_,
              std::make_unique<GrpcLink>(parent.ToString()), clock) {
    pump_.Start();
  }
  ~Reporter() { pump_.Stop(/*goodbye=*/false, Duration(0)); }

  void Cover(size_t waypoints) {
    Stored stored;
    stored.blocks = Waypoints(waypoints);
    {
      MutexLock lock(&mutex_);
      pump_.Append(resident_.Apply(stored), Load{.running_requests = 3, .workers = 8});
    }
    pump_.Flush();
  }
  bool WaitAtRest() {
    const auto give_up = std::chrono::steady_clock::now() + seconds(60);
    do {
      pump_.Tick();
      if (pump_.WaitAtRest(std::chrono::milliseconds(50))) return true;
    } while (std::chrono::steady_clock::now() < give_up);
    return false;
  }
  void Tick() { pump_.Tick(); }

 private:
  static SenderIdentity Identity(const std::string& cell) {
    SenderIdentity identity;
    identity.holder = {.name = cell, .rank = 0, .replica = "r0"};
    identity.domain = {"m", ""};
    identity.block_size = 16;
    identity.contract_id = HashContract().Id();
    identity.schedule = WaypointSchedule::Standard().Name();
    identity.address = cell + ":7410";
    identity.labels = {{"zone", "z"}};
    identity.epoch = 1;
    identity.instance_id = 1;
    return identity;
  }

  Mutex mutex_;
  ResidentSet resident_;
  SenderPump pump_;
};

class HierarchyServiceTest : public testing::Test {
 protected:
  HierarchyServiceTest() : node_(std::make_unique<Node>(&clock_, address_)) {
    stub_ = v1::Hierarchy::NewStub(MakeChannel(node_->server.address().ToString()));
  }

  static v1::FindCellsRequest Question(uint32_t blocks) {
    v1::FindCellsRequest request;
    request.mutable_domain()->set_model("m");
    for (SequenceHash hash : Waypoints(WaypointSchedule::Standard().WaypointsIn(blocks))) {
      request.add_waypoint_hashes(Raw(hash));
    }
    request.set_blocks(blocks);
    request.set_schedule(WaypointSchedule::Standard().Name());
    return request;
  }
  grpc::Status Find(const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    return stub_->FindCells(&context, request, response);
  }

  ManualClock clock_;  // no lease runs out
  ReservedTestPorts held_;
  const Address address_ = held_.HoldAny();
  std::unique_ptr<Node> node_;
  std::unique_ptr<v1::Hierarchy::Stub> stub_;
};

TEST_F(HierarchyServiceTest, WhatLeavesReportIsAnswered) {
  Reporter a("a", node_->server.address(), &Clock::Real());
  Reporter b("b", node_->server.address(), &Clock::Real());
  a.Cover(1);
  b.Cover(4);
  ASSERT_TRUE(a.WaitAtRest());
  ASSERT_TRUE(b.WaitAtRest());
  v1::FindCellsResponse response;
  ASSERT_TRUE(Find(Question(190), &response).ok());
  EXPECT_EQ(response.block_size(), 16u);
  ASSERT_EQ(response.cells_size(), 2);
  EXPECT_EQ(response.cells(0).cell().name(), "b");
  EXPECT_EQ(response.cells(0).address(), "b:7410");
  EXPECT_EQ(response.cells(0).blocks_at_least(), WaypointSchedule::Standard().BlocksCovered(4));
  EXPECT_EQ(response.cells(0).blocks_below(),
            std::min(WaypointSchedule::Standard().BlocksCovered(5), 190u + 1));
  EXPECT_EQ(response.cells(0).kind(), v1::CELL_KIND_LEAF);
  EXPECT_EQ(response.cells(0).trust(), v1::TRUST_EXACT);
  EXPECT_EQ(response.cells(0).load().workers(), 8u);
  EXPECT_EQ(response.cells(0).labels().at("zone"), "z");
  EXPECT_EQ(response.cells(1).cell().name(), "a");
}

TEST_F(HierarchyServiceTest, WhileMemoryIsCriticalLargeQuestionsAreRefused) {
  uint64_t used = 10;
  MemoryBudget memory(100, [&] { return used; });
  memory.Measure();
  node_ = std::make_unique<Node>(&clock_, Address{"127.0.0.1", 0}, nullptr, &memory);
  stub_ = v1::Hierarchy::NewStub(MakeChannel(node_->server.address().ToString()));
  Reporter a("a", node_->server.address(), &Clock::Real());
  a.Cover(1);
  ASSERT_TRUE(a.WaitAtRest());
  used = 96;
  memory.Measure();
  v1::FindCellsResponse response;
  const grpc::Status refused = Find(Question(1025), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("--memory_budget"));
  EXPECT_TRUE(Find(Question(1024), &response).ok());
  used = 90;
  memory.Measure();
  EXPECT_TRUE(Find(Question(1025), &response).ok());
}

TEST_F(HierarchyServiceTest, AfterARestartLeavesTellEverythingAgain) {
  const Address address = node_->server.address();
  Reporter a("a", address, &Clock::Real());
  a.Cover(4);
  ASSERT_TRUE(a.WaitAtRest());
  node_ = nullptr;
  node_ = std::make_unique<Node>(&clock_, address);
  v1::FindCellsResponse response;
  const auto give_up = std::chrono::steady_clock::now() + seconds(60);
  while (response.cells_size() == 0 && std::chrono::steady_clock::now() < give_up) {
    (void)a.WaitAtRest();
    const grpc::Status status = Find(Question(190), &response);
    // UNAVAILABLE: the channel had not noticed yet that its connection to the first node was gone.
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::NOT_FOUND ||
                status.error_code() == grpc::StatusCode::UNAVAILABLE)
        << status.error_message();
  }
  ASSERT_EQ(response.cells_size(), 1);
  ASSERT_TRUE(a.WaitAtRest());
  ASSERT_TRUE(Find(Question(190), &response).ok());
  EXPECT_EQ(response.cells(0).blocks_at_least(), WaypointSchedule::Standard().BlocksCovered(4));
}

TEST_F(HierarchyServiceTest, BadQuestionsAreRefused) {
  Reporter a("a", node_->server.address(), &Clock::Real());
  a.Cover(1);
  ASSERT_TRUE(a.WaitAtRest());
  v1::FindCellsResponse response;
  v1::FindCellsRequest request = Question(190);
  request.set_schedule("every:7");
  EXPECT_EQ(Find(request, &response).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  request = Question(190);
  request.add_waypoint_hashes(1);
  EXPECT_EQ(Find(request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Question(190);
  request.set_blocks(kFindCellsBlocksMax + 1);
  EXPECT_EQ(Find(request, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  request = Question(190);
  request.mutable_domain()->set_model("other");
  EXPECT_EQ(Find(request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  request.mutable_domain()->clear_model();
  EXPECT_EQ(Find(request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(Find(Question(0), &response).ok());
}

TEST_F(HierarchyServiceTest, DumpAndStatsShowWhatWasReported) {
  Reporter a("a", node_->server.address(), &Clock::Real());
  a.Cover(5);
  ASSERT_TRUE(a.WaitAtRest());

  grpc::ClientContext dump_context;
  v1::DumpRequest request;
  request.set_worker("a");
  std::unique_ptr<grpc::ClientReader<v1::DumpResponse>> reader =
      stub_->Dump(&dump_context, request);
  int waypoints = 0;
  bool last = false;
  v1::DumpResponse dump;
  while (reader->Read(&dump)) {
    for (const v1::Stored& run : dump.stored()) waypoints += run.blocks_size();
    last = dump.last_of_worker();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(waypoints, 5);
  EXPECT_TRUE(last);

  grpc::ClientContext context;
  v1::StatsResponse stats;
  ASSERT_TRUE(stub_->Stats(&context, v1::StatsRequest(), &stats).ok());
  EXPECT_EQ(stats.cell(), "n");
  ASSERT_EQ(stats.domains_size(), 1);
  EXPECT_EQ(stats.domains(0).holders(), 1u);
  EXPECT_EQ(stats.domains(0).blocks(), 5u);
  EXPECT_EQ(stats.streams_open(), 1u);
  ASSERT_EQ(stats.domains(0).holder_stats_size(), 1);
  EXPECT_EQ(stats.domains(0).holder_stats(0).address(), "a:7410");
  EXPECT_EQ(stats.domains(0).holder_stats(0).labels().at("zone"), "z");
  EXPECT_THAT(node_->metrics.Text(), HasSubstr("kvatlas_hierarchy_blocks{domain=\"m\"} 5"));
}

TEST_F(HierarchyServiceTest, ANodeTellsItsParentWhatItsCellsCoverTogether) {
  CoverageReporterOptions options;
  options.cell = {.name = "lower", .rank = 0, .replica = ""};
  options.address = "lower:7420";
  options.parents = {node_->server.address().ToString()};
  options.make_link = [](const std::string& parent) { return std::make_unique<GrpcLink>(parent); };
  options.contract_id = HashContract().Id();
  options.schedule = &OrdinalSchedule();
  options.epoch = 1;
  CoverageReporter reporter(options);
  Node lower(&clock_, {"127.0.0.1", 0}, &reporter);
  Reporter a("a", lower.server.address(), &Clock::Real());
  Reporter b("b", lower.server.address(), &Clock::Real());
  a.Cover(2);
  b.Cover(4);
  ASSERT_TRUE(a.WaitAtRest());
  ASSERT_TRUE(b.WaitAtRest());

  const uint32_t wanted = WaypointSchedule::Standard().BlocksCovered(4);
  v1::FindCellsResponse response;
  const auto give_up = std::chrono::steady_clock::now() + seconds(60);
  do {
    reporter.Tick();
    (void)Find(Question(190), &response);
  } while ((response.cells_size() == 0 || response.cells(0).blocks_at_least() != wanted ||
            response.cells(0).load().running_requests() != 6) &&
           std::chrono::steady_clock::now() < give_up);
  ASSERT_EQ(response.cells_size(), 1);
  EXPECT_EQ(response.cells(0).cell().name(), "lower");
  EXPECT_EQ(response.cells(0).address(), "lower:7420");
  EXPECT_EQ(response.cells(0).blocks_at_least(), wanted);
  EXPECT_EQ(response.cells(0).load().running_requests(), 6u);
  EXPECT_EQ(response.block_size(), 16u);
  reporter.Stop(seconds(1));
}

}  // namespace
}  // namespace kvatlas
