// The frontend over real gRPC: its service in front, hierarchy and leaves behind it that are told
// what to answer and are stopped one after the other.

#include "frontend/gateway/frontend_service.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/gateway/frontend_service_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/address.h"
#include "indexer/base/waypoints.h"
#include "indexer/net/grpc_channel.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

TEST_F(FrontendServiceTest, AsksTheHierarchyByWaypointsAndTheLeavesBySequenceHashes) {
  Start();
  const v1::RouteResponse route = Route(100);
  EXPECT_EQ(route.worker().name(), "a0");
  EXPECT_EQ(route.cell(), "a");
  EXPECT_EQ(route.overlap_blocks(), 40u);
  EXPECT_EQ(route.receipt().fallback(), v1::FALLBACK_NONE);
  EXPECT_EQ(route.receipt().cells_size(), 2);
  EXPECT_EQ(route.receipt().candidates_considered(), 4u);
  EXPECT_EQ(route.receipt().candidates(0).cost(),
            60 * options_.weights.prefill + 5 * options_.weights.decode);
  EXPECT_EQ(hierarchy_.last_request.waypoint_hashes_size(),
            static_cast<int>(WaypointSchedule::Standard().WaypointsIn(100)));
  EXPECT_EQ(hierarchy_.last_request.schedule(), WaypointSchedule::Standard().Name());
  EXPECT_EQ(hierarchy_.last_request.blocks(), 100u);
  EXPECT_EQ(leaves_["a"].last_request.sequence_hashes_size(), 100);
  EXPECT_TRUE(leaves_["a"].last_request.all_workers());
}

// Down the whole ladder, and up again.
TEST_F(FrontendServiceTest, StoppingEverythingOneByOneAlwaysYieldsAWorkerAndSaysWhy) {
  LeafStandIn own;
  own.answer.add_workers()->mutable_worker()->set_name("own0");
  std::unique_ptr<GrpcServer> own_server = Serve(&own);
  const Address own_address = own_server->address();
  options_.leaves = {{.cell = "own", .address = own_address.ToString()}};
  Start();
  EXPECT_EQ(Route().receipt().fallback(), v1::FALLBACK_NONE);

  hierarchy_server_->Stop(Duration(0));
  v1::RouteResponse route = Route();
  EXPECT_EQ(route.worker().name(), "a0");
  EXPECT_EQ(route.receipt().fallback(), v1::FALLBACK_LAST_GOOD_CELLS);
  EXPECT_THAT(route.receipt().reason(), HasSubstr("hierarchy " + hierarchy_address_.ToString()));

  leaf_servers_["a"]->Stop(Duration(0));
  route = Route();
  EXPECT_EQ(route.worker().name(), "b0");
  EXPECT_EQ(route.receipt().fallback(), v1::FALLBACK_LAST_GOOD_CELLS);
  EXPECT_THAT(route.receipt().reason(), HasSubstr("leaf a at"));

  leaf_servers_["b"]->Stop(Duration(0));
  route = Route();
  EXPECT_EQ(route.worker().name(), "own0");
  EXPECT_EQ(route.receipt().fallback(), v1::FALLBACK_OWN_CELL);

  own_server->Stop(Duration(0));
  route = Route();
  EXPECT_EQ(route.receipt().fallback(), v1::FALLBACK_LOAD_ONLY);
  EXPECT_NE(route.worker().name(), "");
  EXPECT_EQ(route.overlap_blocks(), 0u);
  EXPECT_THAT(route.receipt().reason(), HasSubstr("leaf own at"));

  hierarchy_server_ = Serve(&hierarchy_, hierarchy_address_);
  leaf_servers_["a"] = Serve(&leaves_["a"]);  // elsewhere than before
  hierarchy_.answer.mutable_cells(0)->set_address(leaf_servers_["a"]->address().ToString());
  // The channel comes back after its backoff.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  do {
    route = Route();
  } while (route.receipt().fallback() != v1::FALLBACK_NONE &&
           std::chrono::steady_clock::now() < give_up);
  EXPECT_EQ(route.receipt().fallback(), v1::FALLBACK_NONE);
  EXPECT_EQ(route.cell(), "a");
  EXPECT_THAT(metrics_.Text(), HasSubstr("kvatlas_frontend_routes_total{fallback=\"own_cell\"} 1"));
}

TEST_F(FrontendServiceTest, AnOutageIsUnavailable) {
  hierarchy_server_->Stop(Duration(0));
  Start();
  v1::RouteResponse response;
  const grpc::Status status = Call(Prompt(3), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("did not answer"));
}

TEST_F(FrontendServiceTest, BadQuestionsAreRefusedByField) {
  Start();
  v1::RouteResponse response;
  v1::RouteRequest request = Prompt(3);
  request.mutable_tokens()->add_ids(1);
  EXPECT_EQ(Call(request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Prompt(0);
  EXPECT_EQ(Call(request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Prompt(3);
  request.mutable_domain()->clear_model();
  EXPECT_THAT(Call(request, &response).error_message(), HasSubstr("domain.model"));
  request.mutable_domain()->set_model(std::string(257, 'x'));
  EXPECT_EQ(Call(request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Prompt(static_cast<int>(kRouteBlocksMax) + 1);
  EXPECT_EQ(Call(request, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Route().worker().name(), "a0");
}

// A call that fails ends on a thread of gRPC's, which must not be the one to end the process's last
// channel.
TEST(GrpcFindersTest, TheLastChannelOfAProcessEndsWithItsFinder) {
  const Domain domain = {.model = "m", .tenant = ""};
  for (int i = 0; i < 300; ++i) {
    std::promise<bool> answered;
    GrpcOverlapFinder finder;
    finder.FindOverlaps("127.0.0.1:1", {.domain = &domain, .sequence = {}},
                        std::chrono::seconds(20),
                        [&answered](const absl::StatusOr<WorkersAnswer>& answer) {
                          answered.set_value(answer.ok());
                        });
    EXPECT_FALSE(answered.get_future().get());
  }
}

TEST_F(FrontendServiceTest, AReportReleasesTheChoice) {
  Start();
  v1::RouteResponse route;
  ASSERT_TRUE(Call(Prompt(100), &route).ok());
  EXPECT_EQ(frontend_->stats().in_flight, 1u);
  grpc::ClientContext context;
  v1::ReportRequest report;
  report.set_decision_id(route.decision_id());
  report.set_accepted(true);
  v1::ReportResponse response;
  ASSERT_TRUE(stub_->Report(&context, report, &response).ok());
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

// A route with a worker that prefills and one that decodes; a report over gRPC, then one over HTTP.
TEST_F(FrontendServiceTest, AReportSaysWhichOfTwoWorkersWasNotReached) {
  for (auto& [cell, leaf] : leaves_) {
    leaf.answer.set_labels_version(1);
    for (v1::WorkerOverlap& worker : *leaf.answer.mutable_workers())
      (*worker.mutable_labels())["role"] =
          worker.worker().name().ends_with('0') ? "prefill" : "decode";
  }
  Start();
  v1::RouteResponse first;
  ASSERT_TRUE(Call(Prompt(100), &first).ok());
  EXPECT_EQ(first.worker().name(), "a0");
  EXPECT_EQ(first.decode().worker().name(), "a1") << "in its own cell";
  grpc::ClientContext context;
  v1::ReportRequest report;
  report.set_decision_id(first.decision_id());
  report.set_decode_unreachable(true);
  v1::ReportResponse response;
  ASSERT_TRUE(stub_->Report(&context, report, &response).ok());
  v1::RouteResponse second;
  ASSERT_TRUE(Call(Prompt(100), &second).ok());
  EXPECT_EQ(second.worker().name(), "a0");
  EXPECT_EQ(second.decode().worker().name(), "b1");
  const auto post = [&](uint64_t id, const char* what) {
    return Post(http_->address(), "/report",
                nlohmann::json{{"decision_id", id}, {what, true}}.dump())
        .status;
  };
  EXPECT_EQ(post(second.decision_id(), "unreachable"), 200u);
  EXPECT_EQ(frontend_->stats().suspects, 2u);
  v1::RouteResponse third;
  ASSERT_TRUE(Call(Prompt(100), &third).ok());
  EXPECT_EQ(third.worker().name(), "b0");
  EXPECT_EQ(third.decode().worker().name(), "b1");
  EXPECT_EQ(post(third.decision_id(), "decode_unreachable"), 200u);
  EXPECT_EQ(frontend_->stats().suspects, 3u);
  v1::RouteResponse fourth;
  ASSERT_TRUE(Call(Prompt(100), &fourth).ok());
  EXPECT_EQ(post(fourth.decision_id(), "abandoned"), 200u);
  EXPECT_EQ(frontend_->stats().suspects, 3u);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

}  // namespace
}  // namespace kvatlas
