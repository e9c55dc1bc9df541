// A frontend's service over real gRPC and HTTP, before a hierarchy and leaves that are told what to
// answer.

#ifndef KVATLAS_FRONTEND_GATEWAY_FRONTEND_SERVICE_TEST_UTIL_H_
#define KVATLAS_FRONTEND_GATEWAY_FRONTEND_SERVICE_TEST_UTIL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/gateway/frontend_service.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/router/frontend.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/process/admin_http.h"
#include "indexer/telemetry/metrics.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {

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
    if (!model.empty() && request->domain().model() != model)
      return {grpc::StatusCode::NOT_FOUND, "no such domain"};
    last_request = *request;
    *response = answer;
    return grpc::Status::OK;
  }
  v1::FindOverlapsResponse answer;
  v1::FindOverlapsRequest last_request;
  std::string model;  // that it knows; empty: any
};

inline std::unique_ptr<GrpcServer> Serve(grpc::Service* service,
                                         const Address& listen = {"127.0.0.1", 0}) {
  auto server = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = listen});
  server->Register(service);
  EXPECT_TRUE(server->Start().ok());
  return server;
}

class FrontendServiceTest : public testing::Test {
 protected:
  struct HttpAnswer {
    unsigned status = 0;
    std::string body;
    std::string retry_after = {};
  };

  static HttpAnswer Ask(boost::beast::http::verb verb, const Address& address,
                        const std::string& path, const std::string& body) {
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

  static HttpAnswer Post(const Address& address, const std::string& path, const std::string& body) {
    return Ask(boost::beast::http::verb::post, address, path, body);
  }

  static HttpAnswer Get(const Address& address, const std::string& path) {
    return Ask(boost::beast::http::verb::get, address, path, "");
  }

  // Two cells of two workers, "a" with the deeper prefix.
  void SetUp() override {
    hierarchy_server_ = Serve(&hierarchy_, hierarchy_address_);
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
    options_.deadline = std::chrono::seconds(60);
    // However slow a test is, a suspect is one until its end.
    options_.suspects.ttl = options_.suspects.ttl_max = std::chrono::hours(1);
    options_.ask_ahead = 0;  // the stand-ins are read and changed between routes
  }

  // The observer of `frontend_`; null: none.
  virtual PromptRouter* MakeRouter() { return nullptr; }

  void Start() {
    frontend_ =
        std::make_unique<Frontend>(options_, &cell_finder_, &overlap_finder_, &Clock::Real());
    service_ = std::make_unique<FrontendService>(frontend_.get(), &metrics_, MakeRouter());
    server_ = Serve(service_.get());
    stub_ = v1::Frontend::NewStub(
        MakeChannel(server_->address().ToString(), {.connect_timeout = std::chrono::minutes(1)}));
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
  ReservedTestPorts held_;
  const Address hierarchy_address_ = held_.HoldAny();
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

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_FRONTEND_SERVICE_TEST_UTIL_H_
