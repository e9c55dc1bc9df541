// Everything at once, in 512 MiB of address space: nothing dies, and what there is no room for is
// refused.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/stream/messages.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tests/hostile/attacker.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

constexpr uint64_t kAddresses = uint64_t{512} << 20;
constexpr char kModel[] = "model";
// Long enough for memory to go back to the system.
constexpr uint32_t kWatched = 200;

class AddressesTest : public testing::TestWithParam<const char*> {
 protected:
  static std::string Program() { return GetParam(); }

  // Nothing sends the worker's heartbeats.
  static std::vector<std::string> LeaseArgs() {
    if (Program() == kFrontend) return {};
    return {"--lease_ttl=10m"};
  }

  void SetUp() override {
    siege_ = std::make_unique<Siege>(
        SiegeOptions{.program = Program(), .args = LeaseArgs(), .addresses_max = kAddresses});
    ASSERT_TRUE(siege_->ok());
    channel_ = MakeChannel(siege_->grpc().ToString());
    if (Program() == kFrontend) return;
    worker_ = std::make_unique<Attacker>(channel_, HelloOf(Program(), "worker", kModel));
    ASSERT_TRUE(worker_->welcomed()) << worker_->refusal().error_message();
  }

  // A question of the kind that this process is there for.
  void ExpectAnswers() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (Program() == kLeaf) {
      v1::FindOverlapsRequest request;
      v1::FindOverlapsResponse response;
      request.mutable_domain()->set_model(kModel);
      request.add_sequence_hashes(1);
      request.set_all_workers(true);
      const grpc::Status status =
          v1::Leaf::NewStub(channel_)->FindOverlaps(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(response.workers_size(), 1);
    } else if (Program() == kHierarchy) {
      v1::FindCellsRequest request;
      v1::FindCellsResponse response;
      request.mutable_domain()->set_model(kModel);
      request.set_schedule(HelloOf(kHierarchy, "", "").schedule);
      const grpc::Status status =
          v1::Hierarchy::NewStub(channel_)->FindCells(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(response.cells_size(), 1);
    } else {
      v1::RouteRequest request;
      v1::RouteResponse response;
      request.mutable_domain()->set_model(kModel);
      for (uint32_t token = 0; token < 64; ++token) request.mutable_tokens()->add_ids(token);
      const grpc::Status status =
          v1::Frontend::NewStub(channel_)->Route(&context, request, &response);
      // Its leaf knows no worker, or was too busy to say so in time.
      EXPECT_TRUE(status.error_code() == grpc::StatusCode::NOT_FOUND ||
                  status.error_code() == grpc::StatusCode::UNAVAILABLE)
          << status.error_code() << " " << status.error_message();
      EXPECT_THAT(status.error_message(),
                  testing::HasSubstr(status.error_code() == grpc::StatusCode::NOT_FOUND
                                         ? "The model `model` does not exist."
                                         : "no worker of model"));
    }
  }

  void ExpectUnharmed() {
    ExpectAnswers();
    siege_->ExpectUnharmed();
  }

  std::unique_ptr<Siege> siege_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Attacker> worker_;
};

TEST_P(AddressesTest, ItStartsAndAnswers) { ExpectUnharmed(); }

TEST_P(AddressesTest, SilentConnections) {
  const std::vector<RawSocket> grpc = OpenMany(siege_->grpc(), 1100);
  const std::vector<RawSocket> http = OpenMany(siege_->http(), 1100);
  siege_->Watch(20);
  ExpectUnharmed();
}

TEST_P(AddressesTest, BodiesThatAreSentButForTheirLastByte) {
  {
    std::vector<RawSocket> sockets = OpenMany(siege_->http(), 100);
    const std::string body((8 << 20) - 1, ' ');
    int whole = 0;
    for (RawSocket& socket : sockets) {
      whole += socket.Send("POST " + std::string(Program() == kFrontend ? "/route" : "/query") +
                           " HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                           "Content-Length: 8388608\r\n\r\n") &&
               socket.Send(body);
    }
    siege_->Watch(20);
    const std::string metrics =
        HttpGet(siege_->http(), "/metrics", std::chrono::seconds(60)).value_or("");
    const std::string part = "_memory_part_bytes{part=\"bodies\"} ";
    const size_t at = metrics.find(part);
    ASSERT_NE(at, std::string::npos);
    const double bytes = std::stod(metrics.substr(at + part.size()));
    // A hierarchy takes no bodies.
    if (Program() != kHierarchy) {
      EXPECT_GT(bytes, 1 << 20);
    }
    EXPECT_LE(bytes, kAddresses / 8 + (8 << 20));
    std::cout << whole << " bodies taken, memory " << (siege_->RssBytes() >> 20) << " MiB\n";
  }
  siege_->Watch(kWatched);
  ExpectUnharmed();
}

// A call that blocks a thread each, were there as many.
TEST_P(AddressesTest, CallsOfEveryKindAtOnce) {
  std::vector<RawSocket> sockets;
  sockets.reserve(16);
  for (const char* const method :
       {"/kvatlas.v1.Leaf/FindOverlaps", "/kvatlas.v1.Leaf/Dump", "/kvatlas.v1.Leaf/Stats",
        "/kvatlas.v1.Hierarchy/FindCells", "/kvatlas.v1.Hierarchy/Dump",
        "/kvatlas.v1.Hierarchy/Stats", "/kvatlas.v1.Frontend/Route",
        "/kvatlas.v1.Frontend/RouteStream", "/kvatlas.v1.Holdings/Stream"}) {
    sockets.emplace_back(siege_->grpc());
    sockets.back().Send(H2Hello() + H2Acknowledge());
    std::string calls;
    for (uint32_t call = 0; call < 500; ++call)
      calls += H2ShortRequest(2 * call + 1, method, call == 0) +
               H2Frame(0, 1, 2 * call + 1, std::string(5, '\0'));
    sockets.back().SendSome(calls);
  }
  siege_->Watch(20);
  sockets.clear();
  siege_->Watch(kWatched);
  ExpectUnharmed();
}

TEST_P(AddressesTest, ModelsBeyondAllAddressesAreRefused) {
  if (Program() == kFrontend) GTEST_SKIP() << "it has no models of its own";
  int refused = 0;
  for (int i = 0; i < 250; ++i) {
    const Attacker one(channel_, HelloOf(Program(), "worker", "model-" + std::to_string(i)));
    if (one.welcomed()) continue;
    ++refused;
    EXPECT_EQ(one.refusal().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
        << one.refusal().error_message();
  }
  EXPECT_GT(refused, 0);
  ExpectUnharmed();
}

TEST_P(AddressesTest, BlocksBeyondAllAddressesAreRefused) {
  if (Program() == kFrontend) GTEST_SKIP() << "it has no blocks of its own";
  uint64_t first = 1;
  for (uint64_t number = 1; number <= 500; ++number) {
    Stored run{.blocks = {}};
    for (uint64_t i = 0; i < kBatchBlocksMax; ++i) run.blocks.push_back(SequenceHash{first++});
    if (!worker_->Say(Batch{.number = number, .events = {run}, .load = {}, .digest = {}})) break;
  }
  siege_->Watch(20);
  if (Program() == kLeaf) {
    grpc::ClientContext context;
    v1::FindOverlapsRequest request;
    v1::FindOverlapsResponse response;
    request.mutable_domain()->set_model(kModel);
    request.add_sequence_hashes(1);
    ASSERT_TRUE(v1::Leaf::NewStub(channel_)->FindOverlaps(&context, request, &response).ok());
    ASSERT_EQ(response.workers_size(), 1);
    EXPECT_EQ(response.workers(0).trust(), v1::TRUST_DEGRADED);
  }
  const std::string status =
      HttpGet(siege_->http(), "/status", std::chrono::seconds(60)).value_or("");
  EXPECT_EQ(HttpStatusIn(status), 200);
  EXPECT_TRUE(siege_->Alive()) << siege_->LogTail();
  EXPECT_EQ(siege_->NewGrpcConnectionFails(), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(All, AddressesTest, testing::Values(kLeaf, kHierarchy, kFrontend),
                         [](const auto& info) {
                           const std::string program = info.param;
                           return program.substr(program.find('-') + 1);
                         });

}  // namespace
}  // namespace kvatlas
