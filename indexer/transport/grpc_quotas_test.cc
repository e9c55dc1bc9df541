// Limits on what the streams of an identity and a tenant may take of a process, at a real registry
// behind a real server.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/transport/grpc_security_test_util.h"

namespace kvatlas {
namespace {

// A relay for each quota, so that none is in the way of another.
constexpr char kRelays[] = R"(
  {"identity": "worker/a/streams", "allow": ["publish"], "holders": ["*"], "quota": {"streams": 2}},
  {"identity": "worker/a/connections", "allow": ["publish"], "holders": ["*"],
   "quota": {"connections": 2}},
  {"identity": "worker/a/hellos", "allow": ["publish"], "holders": ["*"],
   "quota": {"hellos_per_s": 0.001}},
  {"identity": "worker/a/domains", "allow": ["publish"], "holders": ["*"], "quota": {"domains": 2}},
  {"identity": "worker/a/holders", "allow": ["publish"], "holders": ["*"], "quota": {"holders": 2}},
  {"identity": "worker/a/labels", "allow": ["publish"], "holders": ["*"],
   "quota": {"label_bytes": 700}},
  {"identity": "worker/a/blocks", "allow": ["publish"], "holders": ["*"],
   "quota": {"blocks_per_s": 0.001}},
  {"identity": "worker/a/held", "allow": ["publish"], "holders": ["*"],
   "quota": {"blocks_per_holder": 10}},
  {"identity": "worker/a/pool", "allow": ["publish"], "holders": ["*"], "quota": {"pool_times": 2}},
  {"identity": "worker/*/*", "allow": ["publish"], "tenants": ["", "x"]},)";

struct WithRegistry {
  static HolderRegistryOptions Options() {
    HolderRegistryOptions options;
    options.contract_id = "c";
    return options;
  }
  HolderRegistry registry_{Options()};
};

class GrpcQuotasTest : protected WithRegistry, public GrpcSecurityFixture {
 protected:
  GrpcQuotasTest()
      : GrpcSecurityFixture(&registry_, kRelays, R"({"x": {"quota": {"holders": 1}}})") {}

  // Streams stay until the test ends.
  grpc::Status Connect(const std::string& identity, const Hello& hello) {
    std::shared_ptr<Security>& security = securities_[identity];
    if (security == nullptr) security = Start(identity);
    opened_.push_back(std::make_unique<Stream>());
    return Say(security, hello, opened_.back().get());
  }

  static Hello Of(const std::string& holder, const std::string& model = "m") {
    Hello hello = HelloOf(holder);
    hello.domain.model = model;
    return hello;
  }

  void ExpectRefused(const grpc::Status& status, const std::string& quota) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_NE(status.error_message().find(quota), std::string::npos) << status.error_message();
    EXPECT_TRUE(
        Await([&] { return Audit().find("the quota " + quota) != std::string::npos; }, kLong));
    std::string metrics;
    security_->AppendMetrics(&metrics);
    EXPECT_EQ(metrics.find("kvatlas_quota_refused_total{quota=\"" + quota + "\",of=\"worker\"} 0"),
              std::string::npos);
  }

  // Sends a batch of `blocks` blocks and, before them, a load.
  static void Send(Stream* stream, BatchNumber number, uint64_t blocks, std::optional<Load> load) {
    Batch batch;
    batch.number = number;
    batch.load = load;
    Stored stored{.tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = {}};
    for (uint64_t i = 0; i < blocks; ++i) stored.blocks.push_back(SequenceHash(number * 1000 + i));
    if (blocks > 0) batch.events.push_back(std::move(stored));
    v1::SenderMessage message;
    ToProto(SenderMessage(batch), &message);
    stream->call->Write(message);
  }

  std::map<std::string, std::shared_ptr<Security>> securities_;
  std::vector<std::unique_ptr<Stream>> opened_;
};

TEST_F(GrpcQuotasTest, EveryQuotaOfAHelloIsItsOwnAndOthersAreNotTouched) {
  const std::string labels(200, 'l');
  for (const std::string quota : {"streams", "connections", "domains", "holders", "label_bytes"}) {
    const std::string identity = "worker/a/" + (quota == "label_bytes" ? "labels" : quota);
    const auto hello = [&](int i) {
      Hello one =
          Of(quota + std::to_string(i), quota == "domains" ? quota + std::to_string(i) : "m");
      one.labels = {{"l", labels}};
      return one;
    };
    for (int i = 0; i < 2; ++i) {
      const grpc::Status status = Connect(identity, hello(i));
      EXPECT_TRUE(status.ok()) << quota << ": " << status.error_message();
    }
    ExpectRefused(Connect(identity, hello(2)), quota);
    EXPECT_TRUE(Connect("worker/a/" + quota + "9", hello(9)).ok()) << "of another identity";
  }
  EXPECT_TRUE(Connect("worker/a/hellos", Of("hellos0")).ok());
  ExpectRefused(Connect("worker/a/hellos", Of("hellos1")), "hellos_per_s");
}

TEST_F(GrpcQuotasTest, AHolderThatComesBackIsNotASecondOne) {
  for (int i = 0; i < 5; ++i) {
    const grpc::Status status = Connect("worker/a/holders", Of("h0"));
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_TRUE(Connect("worker/a/holders", Of("h1")).ok());
  ExpectRefused(Connect("worker/a/holders", Of("h2")), "holders");
}

TEST_F(GrpcQuotasTest, IdentitiesOfATenantShareItsQuota) {
  Hello first = Of("w1");
  first.domain.tenant = "x";
  EXPECT_TRUE(Connect("worker/a/w1", first).ok());
  Hello second = Of("w2");
  second.domain.tenant = "x";
  const grpc::Status status = Connect("worker/a/w2", second);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("this tenant"), std::string::npos)
      << status.error_message();
  EXPECT_TRUE(Connect("worker/a/w3", Of("w3")).ok()) << "of another tenant";
}

TEST_F(GrpcQuotasTest, BlocksOfASecondEndTheStream) {
  ASSERT_TRUE(Connect("worker/a/blocks", Of("b0")).ok());
  Stream* const stream = opened_.back().get();
  Send(stream, 1, 5, std::nullopt);
  Send(stream, 2, 5, std::nullopt);
  v1::ReceiverMessage reply;
  while (stream->call->Read(&reply)) {
  }
  ExpectRefused(stream->call->Finish(), "blocks_per_s");
}

TEST_F(GrpcQuotasTest, BlocksBeyondAHoldersQuotaOrPoolAreShed) {
  const auto blocks_of = [&](const std::string& holder) -> uint64_t {
    const absl::StatusOr<DomainStats> stats = registry_.StatsOf({"m", ""});
    if (!stats.ok()) return 0;
    for (const HolderStats& one : stats->holders) {
      if (one.holder->id.name == holder && one.receiver.batches_applied >= 2)
        return one.blocks + 1000 * one.receiver.sheds;
    }
    return 0;
  };
  ASSERT_TRUE(Connect("worker/a/held", Of("held")).ok());
  Send(opened_.back().get(), 1, 8, std::nullopt);
  Send(opened_.back().get(), 2, 8, std::nullopt);
  EXPECT_TRUE(Await([&] { return blocks_of("held") == 1008; }, kLong)) << blocks_of("held");
  ASSERT_TRUE(Connect("worker/a/pool", Of("pool")).ok());
  Send(opened_.back().get(), 1, 8, Load{.used_blocks = 3, .free_blocks = 3});
  Send(opened_.back().get(), 2, 8, std::nullopt);
  EXPECT_TRUE(Await([&] { return blocks_of("pool") == 1008; }, kLong)) << blocks_of("pool");
}

}  // namespace
}  // namespace kvatlas
