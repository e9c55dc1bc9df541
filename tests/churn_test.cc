// Does a leaf keep anything of workers, streams and connections that came and went? Rounds of them,
// each with names of its own.
//
// Once the first rounds have filled what has a bound, the leaf's heap and all that it counts must
// be the same after as many again. With TEST_CHURN_ROUNDS of them there is a line for each twenty:
//   bazel test -c opt --test_env=TEST_CHURN_ROUNDS=2000 --test_output=streamed //tests:churn_test

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/hash.h"
#include "indexer/net/grpc_channel.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "publisher/publisher.h"
#include "tests/hostile/raw_socket.h"
#include "tests/soak.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);
constexpr int kWorkers = 24;  // a round
constexpr char kHeap[] = "process_heap_in_use_bytes";
// Of twelve rounds: less than a kilobyte for each worker, its stream and its connections.
constexpr double kHeapGrowthMax = 256 << 10;
constexpr size_t kBlocks = 32;

class ChurnTest : public testing::Test {
 protected:
  ChurnTest()
      : leaf_({.name = "leaf",
               .binary = "indexer/leaf/kvatlas-leaf",
               .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--lease_ttl=300ms",
                        "--sweep_after=100ms", "--forget_domain_after=100ms",
                        "--exit_with_parent=true"},
               .log = std::string(std::getenv("TEST_TMPDIR")) + "/leaf.log"}) {
    const absl::Status started = leaf_.Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
    http_ = *Address::Parse(leaf_.address("http"));
  }

  // Workers come by streams and by registrations, and go with and without a word; questions over
  // connections of their own.
  void Round(int number) {
    std::vector<std::unique_ptr<Publisher>> publishers;
    std::vector<TokenId> tokens(16 * kBlocks);
    std::iota(tokens.begin(), tokens.end(), static_cast<TokenId>(number) * 1000);
    std::vector<EngineHash> names(kBlocks);
    std::iota(names.begin(), names.end(), 1000 * static_cast<EngineHash>(number));
    for (int i = 0; i < kWorkers; ++i) {
      auto publisher = Publisher::Create({.leaves = {leaf_.address("grpc")},
                                          .worker = absl::StrCat("w-", number, "-", i),
                                          .domain = {Model(number), "t"},
                                          .block_size = 16});
      ASSERT_TRUE(publisher.ok()) << publisher.status();
      (*publisher)->Stored(Tier::kDevice, names, std::nullopt, tokens);
      publishers.push_back(*std::move(publisher));
    }
    const std::string engine =
        absl::StrCat(R"({"instance_id":)", number, R"(,"model_name":")", Model(-number),
                     R"(","block_size":16,"endpoint":")", engine_.endpoint(), "\"}");
    EXPECT_EQ(HttpStatusIn(HttpPost(http_, "/register", engine, kLong)), 201);
    for (const auto& publisher : publishers) EXPECT_TRUE(publisher->WaitAcknowledged(kLong));
    for (int i = 0; i < kWorkers; ++i) {
      const auto stub =
          v1::Leaf::NewStub(MakeChannel(leaf_.address("grpc"), {.own_connection = true}));
      grpc::ClientContext context;
      v1::FindOverlapsRequest request;
      request.mutable_domain()->set_model(Model(number));
      request.mutable_domain()->set_tenant("t");
      for (const TokenId token : tokens) request.mutable_tokens()->add_ids(token);
      v1::FindOverlapsResponse response;
      EXPECT_TRUE(stub->FindOverlaps(&context, request, &response).ok());
      RawSocket half(http_);
      half.Send("POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Le");
    }
    for (int i = 0; i < kWorkers; ++i)
      publishers[static_cast<size_t>(i)]->Stop(/*goodbye=*/i % 2 == 0);
    EXPECT_EQ(HttpStatusIn(HttpPost(http_, "/unregister",
                                    absl::StrCat(R"({"instance_id":)", number, R"(,"model_name":")",
                                                 Model(-number), "\"}"),
                                    kLong)),
              200);
  }

  static std::string Model(int number) { return absl::StrCat("m", number); }

  // Gauges that count what there is, by name and labels.
  std::map<std::string, double> Counted() const {
    std::map<std::string, double> counted;
    std::set<std::string> gauges;
    std::istringstream lines(HttpGet(http_, "/metrics", kLong).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.starts_with("# TYPE ") && line.ends_with(" gauge"))
        gauges.insert(line.substr(7, line.size() - 13));
      const size_t space = line.rfind(' ');
      if (line.starts_with('#') || space == std::string::npos) continue;
      if (!gauges.contains(line.substr(0, line.find_first_of("{ ")))) continue;
      counted[line.substr(0, space)] = std::atof(line.c_str() + space);
    }
    return counted;
  }

  std::map<std::string, double> AtRest();
  // Workers and models.
  bool HasGone() const {
    const std::map<std::string, double> counted = Counted();
    return !counted.empty() && std::none_of(counted.begin(), counted.end(), [](const auto& one) {
      return one.first.find("domain=") != std::string::npos;
    });
  }

  Process leaf_;
  Address http_;
  ZmqTestEngine engine_{{}};
};

// Waits until all of a round has gone; the least that the heap has of some looks, since gRPC's
// calls are freed by and by.
std::map<std::string, double> ChurnTest::AtRest() {
  EXPECT_TRUE(Await([&] { return HasGone(); }, kLong));
  std::map<std::string, double> at_rest = Counted();
  for (int look = 0; look < 5; ++look) {
    std::map<std::string, double> now = Counted();
    now[kHeap] = std::min(now[kHeap], at_rest[kHeap]);
    at_rest = std::move(now);
  }
  return at_rest;
}

TEST_F(ChurnTest, WhatCameAndWentLeavesNothing) {
  const char* const given = std::getenv("TEST_CHURN_ROUNDS");
  const int rounds = given == nullptr ? 12 : std::atoi(given);
  int number = 0;
  const auto churn = [&] {
    for (int i = 0; i < rounds; ++i) {
      Round(++number);
      if (given == nullptr || number % 20 != 0) continue;
      const auto level = LevelOf(leaf_.pid());
      ASSERT_TRUE(level.ok());
      std::printf("round %d: %.1f MB, heap %.1f KB, %lu threads, %lu descriptors\n", number,
                  static_cast<double>(level->memory_bytes) / 1e6, AtRest()[kHeap] / 1e3,
                  level->threads, level->descriptors);
      std::fflush(stdout);
    }
  };
  churn();
  std::map<std::string, double> before = AtRest();
  churn();
  std::map<std::string, double> after = AtRest();
  EXPECT_LE(after[kHeap], before[kHeap] + kHeapGrowthMax);
  EXPECT_LE(after["process_open_fds"], before["process_open_fds"] + 2);
  std::vector<std::string> come;  // lines of metrics, of what is there no more
  for (const auto& [name, value] : after)
    if (!before.contains(name)) come.push_back(name);
  EXPECT_THAT(come, testing::IsEmpty());
}

}  // namespace
}  // namespace kvatlas
