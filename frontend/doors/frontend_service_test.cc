// The frontend over real gRPC: its service in front, hierarchy and leaves behind it that are told what to answer and are
// stopped one after the other.

#include "frontend/doors/frontend_service.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "frontend/peers/grpc_finders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/waypoints.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/service/grpc_server.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

class HierarchyStandIn : public v1::Hierarchy::Service {
 public:
  grpc::Status FindCells(grpc::ServerContext*, const v1::FindCellsRequest* request,
                         v1::FindCellsResponse* response) override {
    last_request = *request;
    *response = answer;
    return grpc::Status::OK;
  }
  v1::FindCellsResponse answer;
  v1::FindCellsRequest last_request;
};

class LeafStandIn : public v1::Leaf::Service {
 public:
  grpc::Status FindOverlaps(grpc::ServerContext*, const v1::FindOverlapsRequest* request,
                            v1::FindOverlapsResponse* response) override {
    last_request = *request;
    *response = answer;
    return grpc::Status::OK;
  }
  v1::FindOverlapsResponse answer;
  v1::FindOverlapsRequest last_request;
};

std::unique_ptr<GrpcServer> Serve(grpc::Service* service) {
  auto server = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = {"127.0.0.1", 0}});
  server->Register(service);
  EXPECT_TRUE(server->Start().ok());
  return server;
}

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
  std::string retry_after = {};
};

HttpAnswer Ask(boost::beast::http::verb verb, const Address& address, const std::string& path,
               const std::string& body) {
  namespace http = boost::beast::http;
  boost::asio::io_context io;
  boost::beast::tcp_stream stream(io);
  stream.connect({boost::asio::ip::make_address(address.host), address.port});
  http::request<http::string_body> request(verb, path, 11);
  request.set(http::field::host, "test");
  request.body() = body;
  request.prepare_payload();
  http::write(stream, request);
  boost::beast::flat_buffer buffer;
  http::response<http::string_body> response;
  http::read(stream, buffer, response);
  return {.status = response.result_int(),
          .body = response.body(),
          .retry_after = std::string(response[http::field::retry_after])};
}

HttpAnswer Post(const Address& address, const std::string& path, const std::string& body) {
  return Ask(boost::beast::http::verb::post, address, path, body);
}

HttpAnswer Get(const Address& address, const std::string& path) {
  return Ask(boost::beast::http::verb::get, address, path, "");
}

class FrontendServiceTest : public testing::Test {
 protected:
  // Two cells of two workers, "a" with the deeper prefix.
  void SetUp() override {
    hierarchy_server_ = Serve(&hierarchy_);
    for (const char* cell : {"a", "b"}) {
      leaf_servers_[cell] = Serve(&leaves_[cell]);
      const uint32_t depth = cell[0] == 'a' ? 40 : 16;
      v1::CellCoverage* coverage = hierarchy_.answer.add_cells();
      coverage->mutable_cell()->set_name(cell);
      coverage->set_address(leaf_servers_[cell]->address().ToString());
      coverage->set_blocks_at_least(depth);
      coverage->set_trust(v1::TRUST_EXACT);
      for (const char* worker : {"0", "1"}) {
        v1::WorkerOverlap* overlap = leaves_[cell].answer.add_workers();
        overlap->mutable_worker()->set_name(cell + std::string(worker));
        overlap->set_blocks(worker[0] == '0' ? depth : 0);
        overlap->set_trust(v1::TRUST_EXACT);
        overlap->mutable_load()->set_running_requests(worker[0] == '0' ? 5 : 1);
      }
      leaves_[cell].answer.set_block_size(16);
    }
    hierarchy_.answer.set_block_size(16);
    options_.hierarchies = {hierarchy_server_->address().ToString()};
    options_.deadline = std::chrono::seconds(20);
    options_.ask_ahead = 0;  // the stand-ins are read and changed between routes
  }

  void Start() {
    frontend_ =
        std::make_unique<Frontend>(options_, &cell_finder_, &overlap_finder_, &Clock::Real());
    service_ = std::make_unique<FrontendService>(frontend_.get(), &metrics_);
    server_ = Serve(service_.get());
    stub_ = v1::Frontend::NewStub(MakeChannel(server_->address().ToString()));
    http_ = std::make_unique<AdminHttp>(
        AdminHttpOptions{.listen = {"127.0.0.1", 0}, .program = "test"}, &metrics_);
    service_->AddHttp(http_.get());
    ASSERT_TRUE(http_->Start().ok());
  }

  static v1::RouteRequest Prompt(int blocks) {
    v1::RouteRequest request;
    request.mutable_domain()->set_model("m");
    for (int i = 1; i <= blocks; ++i) request.add_sequence_hashes(static_cast<uint64_t>(i) * 7919);
    request.set_prompt_tokens(static_cast<uint32_t>(blocks) * 16 + 1);
    return request;
  }
  grpc::Status Call(const v1::RouteRequest& request, v1::RouteResponse* response) {
    grpc::ClientContext context;
    return stub_->Route(&context, request, response);
  }
  // A choice that its worker has taken: nothing stays in flight.
  v1::RouteResponse Route(int blocks = 100) {
    v1::RouteResponse response;
    const grpc::Status status = Call(Prompt(blocks), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    frontend_->Report(response.decision_id(), {.accepted = true});
    return response;
  }

  HierarchyStandIn hierarchy_;
  std::map<std::string, LeafStandIn> leaves_;
  std::unique_ptr<GrpcServer> hierarchy_server_;
  std::map<std::string, std::unique_ptr<GrpcServer>> leaf_servers_;

  FrontendOptions options_;
  GrpcCellFinder cell_finder_;
  GrpcOverlapFinder overlap_finder_;
  Metrics metrics_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<FrontendService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Frontend::Stub> stub_;
  std::unique_ptr<AdminHttp> http_;
};

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

  const Address hierarchy_address = hierarchy_server_->address();
  hierarchy_server_->Stop(Duration(0));
  v1::RouteResponse route = Route();
  EXPECT_EQ(route.worker().name(), "a0");
  EXPECT_EQ(route.receipt().fallback(), v1::FALLBACK_LAST_GOOD_CELLS);
  EXPECT_THAT(route.receipt().reason(), HasSubstr("hierarchy " + hierarchy_address.ToString()));

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

  hierarchy_server_ = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = hierarchy_address});
  hierarchy_server_->Register(&hierarchy_);
  ASSERT_TRUE(hierarchy_server_->Start().ok());
  leaf_servers_["a"] = Serve(&leaves_["a"]);  // elsewhere than before
  hierarchy_.answer.mutable_cells(0)->set_address(leaf_servers_["a"]->address().ToString());
  // The channel comes back after its backoff.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
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

// A call that fails ends on a thread of gRPC's, which must not be the one to end the process's last channel.
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

// Of two workers the one that prefills and those that decode; a report over gRPC, then one over HTTP.
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

TEST_F(FrontendServiceTest, RoutesAndReportsOverHttp) {
  Start();
  const Address http = http_->address();
  std::vector<uint32_t> tokens(33, 5);
  const HttpAnswer answer =
      Post(http, "/route", nlohmann::json{{"model", "m"}, {"tokens", tokens}}.dump());
  EXPECT_EQ(answer.status, 200u) << answer.body;
  const nlohmann::json route = nlohmann::json::parse(answer.body);
  EXPECT_EQ(route["worker"]["name"].get<std::string>().size(), 2u);
  EXPECT_EQ(route["receipt"]["blocks"], 2);
  EXPECT_EQ(route["receipt"]["fallback"], "FALLBACK_NONE");
  EXPECT_EQ(Post(http, "/report",
                 nlohmann::json{{"decision_id", route["decision_id"]}, {"accepted", true}}.dump())
                .status,
            200u);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
  EXPECT_EQ(
      Post(http, "/route", R"({"model":"m","sequence_hashes":["18446744073709551615",3]})").status,
      200u);
}

TEST_F(FrontendServiceTest, WhoMayBeChosenIsSaidOverHttpToo) {
  Start();
  const Address http = http_->address();
  const auto worker = [&](nlohmann::json more) {
    more.update({{"model", "m"}, {"sequence_hashes", {7919, 2 * 7919}}});
    const HttpAnswer answer = Post(http, "/route", more.dump());
    EXPECT_EQ(answer.status, 200u) << answer.body;
    return answer.status == 200 ? nlohmann::json::parse(answer.body)["worker"]["name"] : "";
  };
  EXPECT_EQ(worker({{"allowed_workers", {"b0"}}}), "b0");
  EXPECT_EQ(worker({{"excluded_workers", {"a0", "a1", "b0"}}}), "b1");
  EXPECT_EQ(worker({{"allowed_workers", {"b0"}}, {"session_id", "s"}}), "b0");
  EXPECT_EQ(frontend_->stats().sessions, 1u);
  const HttpAnswer unknown = Post(
      http, "/route",
      R"({"model":"m","sequence_hashes":[1],"required_labels":{"zone":"x"},"queue_wait_ms":0})");
  EXPECT_EQ(unknown.status, 404u) << unknown.body;
}

TEST_F(FrontendServiceTest, AFleetOverItsThresholdsSaysWhenToComeAgain) {
  options_.overload.requests = 1;
  options_.queue_wait = Duration(0);
  Start();
  const HttpAnswer refused =
      Post(http_->address(), "/route", R"({"model":"m","sequence_hashes":[1]})");
  EXPECT_EQ(refused.status, 429u) << refused.body;
  EXPECT_EQ(refused.retry_after, "1");
  grpc::ClientContext context;
  v1::RouteResponse response;
  const grpc::Status status = stub_->Route(&context, Prompt(3), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto retry = metadata.find("retry-after-ms");
  ASSERT_NE(retry, metadata.end());
  EXPECT_EQ(std::string(retry->second.data(), retry->second.size()), "1000");
  grpc::ClientContext stream_context;
  const auto stream = stub_->RouteStream(&stream_context);
  v1::RouteStreamRequest question;
  question.set_id(9);
  *question.mutable_route() = Prompt(3);
  ASSERT_TRUE(stream->Write(question));
  v1::RouteStreamResponse answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.code(), static_cast<uint32_t>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  EXPECT_EQ(answer.retry_after_ms(), 1000u);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(frontend_->stats().rejected, 3u);
  // A prompt that is too long is nothing to come again with.
  const HttpAnswer large =
      Post(http_->address(), "/route",
           nlohmann::json{{"model", "m"}, {"sequence_hashes", std::vector<int>(70'000, 1)}}.dump());
  EXPECT_EQ(large.status, 413u) << large.body;
  EXPECT_EQ(large.retry_after, "");
}

TEST_F(FrontendServiceTest, ACellThatDoesNotDeliverIsNamedAndNoLongerAskedFirst) {
  leaves_["a"].answer.mutable_workers(0)->set_blocks(0);  // 40 blocks were promised
  options_.ask_cells = 1;
  Start();
  EXPECT_EQ(Route().receipt().cells(0).cell(), "a");
  int routes = 1;
  while (Route().receipt().cells(0).cell() == "a" && routes < 100) ++routes;
  EXPECT_LT(routes, 20) << "\"b\", with 16 blocks, is worth more by then";
  EXPECT_GT(routes, 1) << "once is no reason";
  const std::string metrics = metrics_.Text();
  const auto named = [&](const std::string& what) {
    return metrics.find(what) != std::string::npos;
  };
  const std::string broken = std::to_string(routes);
  EXPECT_TRUE(named("kvatlas_frontend_wrong_cells_total " + broken + "\n")) << metrics;
  EXPECT_TRUE(named("kvatlas_frontend_promises_total " + std::to_string(routes + 1) + "\n"));
  EXPECT_TRUE(named("kvatlas_frontend_cell_promises_broken_total{cell=\"a\"} " + broken + "\n"));
  EXPECT_FALSE(named("{cell=\"b\"}")) << "it has kept all of its promises";
  const nlohmann::json status = nlohmann::json::parse(Get(http_->address(), "/status").body);
  ASSERT_EQ(status["promises"].size(), 2u) << status;
  EXPECT_EQ(status["promises"][0]["cell"], "a");
  EXPECT_EQ(status["promises"][0]["broken"], routes);
  EXPECT_LT(status["promises"][0]["believed"], 0.75);
}

TEST_F(FrontendServiceTest, BadHttpBodiesAreRefused) {
  Start();
  for (const char* body :
       {"", "[]", "{", R"({"model":"m"})", R"({"tokens":[1]})", R"({"model":1,"tokens":[1]})",
        R"({"model":"m","tokens":[4294967296]})", R"({"model":"m","tokens":[-1]})",
        R"({"model":"m","tokens":"1"})", R"({"model":"m","tokens":[1],"deadline_ms":-1})",
        R"({"model":"m","sequence_hashes":["1x"]})",
        R"({"model":"m","tokens":[1],"allowed_workers":"w"})",
        R"({"model":"m","tokens":[1],"excluded_workers":[1]})",
        R"({"model":"m","tokens":[1],"required_labels":{"a":1}})",
        R"({"model":"m","tokens":[1],"queue_wait_ms":"soon"})",
        R"({"model":"m","tokens":[1],"sequence_hashes":[1]})"}) {
    EXPECT_EQ(Post(http_->address(), "/route", body).status, 400u) << body;
  }
  const std::string deep =
      R"({"model":"m","tokens":)" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  EXPECT_EQ(Post(http_->address(), "/route", deep).status, 400u);
  const std::string session(257, 's');
  EXPECT_EQ(Post(http_->address(), "/route",
                 R"({"model":"m","tokens":[1],"session_id":")" + session + R"("})")
                .status,
            400u);
  EXPECT_EQ(Post(http_->address(), "/report", R"({"accepted":true})").status, 400u);
}

TEST_F(FrontendServiceTest, FieldsThatAreMisspeltOrOfAnotherTypeAreNamed) {
  Start();
  const auto why = [this](const char* path, const std::string& body) {
    const HttpAnswer answer = Post(http_->address(), path, body);
    EXPECT_EQ(answer.status, 400u) << body;
    return answer.body;
  };
  EXPECT_THAT(why("/route", R"({"model":"m","tokens":[1],"sesion_id":"s"})"),
              HasSubstr("sesion_id is no field of /route; did you mean session_id?"));
  EXPECT_THAT(why("/report", R"({"decision_id":1,"acepted":true})"),
              HasSubstr("did you mean accepted?"));
  EXPECT_THAT(why("/report", R"({"decision_id":1,"accepted":"yes"})"),
              HasSubstr("accepted is neither true nor false"));
}

TEST_F(FrontendServiceTest, AReportOnADecisionThatWasNeverMadeIsNotFound) {
  Start();
  const Address http = http_->address();
  EXPECT_EQ(Post(http, "/report", R"({"decision_id":1,"accepted":true})").status, 404u);
  const HttpAnswer answer = Post(http, "/route", R"({"model":"m","tokens":[1,2,3]})");
  const std::string id = nlohmann::json::parse(answer.body)["decision_id"];
  EXPECT_EQ(Post(http, "/report", R"({"decision_id":")" + id + R"(","accepted":true})").status,
            200u);
  EXPECT_EQ(Post(http, "/report", R"({"decision_id":1,"accepted":true})").status, 404u);
  EXPECT_EQ(Post(http, "/report",
                 nlohmann::json{{"decision_id", std::stoull(id) + 1}, {"accepted", true}}.dump())
                .status,
            404u);
}

TEST_F(FrontendServiceTest, PromptTokensAreReadOverHttpToo) {
  Start();
  const HttpAnswer answer = Post(http_->address(), "/route",
                                 R"({"model":"m","sequence_hashes":[1],"prompt_tokens":"x"})");
  EXPECT_EQ(answer.status, 400u) << answer.body;
}

}  // namespace
}  // namespace kvatlas
