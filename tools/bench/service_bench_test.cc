// The parts of the service benchmark, and the whole against a real leaf.

#include "tools/bench/service_bench.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <msgpack.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tools/bench/service_bench_engines.h"
#include "tools/bench/service_bench_http.h"
#include "tools/bench/service_bench_query.h"

namespace kvatlas {
namespace {

// ---- Engines ----

using Fields = std::map<std::string, msgpack::object>;

// What a reader of one engine's frames knows: block by engine hash, with its tokens and parent.
struct Heard {
  struct Block {
    std::vector<TokenId> tokens;
    std::optional<uint64_t> parent;
  };
  std::map<uint64_t, Block> blocks;
  uint64_t stored = 0;
  uint64_t removed = 0;

  void Hear(const std::string& frame, uint32_t block_size) {
    const msgpack::object_handle batch = msgpack::unpack(frame.data(), frame.size());
    for (Fields fields : batch->via.array.ptr[1].as<std::vector<Fields>>()) {
      const auto hashes = fields["block_hashes"].as<std::vector<uint64_t>>();
      if (fields["type"].as<std::string>() == "BlockRemoved") {
        EXPECT_EQ(hashes.size(), 1u);  // as vLLM sends them
        EXPECT_EQ(blocks.erase(hashes.at(0)), 1u);
        ++removed;
        continue;
      }
      std::optional<uint64_t> parent;
      if (fields["parent_block_hash"].type != msgpack::type::NIL) {
        parent = fields["parent_block_hash"].as<uint64_t>();
        EXPECT_TRUE(blocks.contains(*parent));
      }
      const auto tokens = fields["token_ids"].as<std::vector<TokenId>>();
      ASSERT_EQ(tokens.size(), hashes.size() * block_size);
      for (size_t i = 0; i < hashes.size(); ++i) {
        const auto begin = tokens.begin() + static_cast<ptrdiff_t>(i * block_size);
        blocks[hashes[i]] = {{begin, begin + block_size}, parent};
        parent = hashes[i];
        ++stored;
      }
    }
  }
};

TEST(ServiceBenchEnginesTest, FramesSayExactlyWhatTheOutcomeSays) {
  constexpr uint32_t kBlockSize = 4;
  for (const uint64_t capacity : {uint64_t{0}, uint64_t{40}, uint64_t{64}}) {
    SCOPED_TRACE(capacity);
    std::mt19937_64 random(7);
    Heard heard;
    const EngineOutcome outcome =
        RunEngine({.block_size = kBlockSize,
                   .blocks = 500,
                   .capacity = capacity,
                   .sequence_blocks = 20,
                   .event_blocks = 8},
                  random, [&](const BenchStep& step) {
                    heard.Hear(FrameOf(step, kBlockSize), kBlockSize);
                    EXPECT_TRUE(capacity == 0 || heard.blocks.size() <= capacity);
                  });
    EXPECT_EQ(outcome.stored, 500u);
    EXPECT_EQ(heard.stored, outcome.stored);
    EXPECT_EQ(heard.removed, outcome.removed);
    EXPECT_EQ(heard.blocks.size(), outcome.held);
    EXPECT_EQ(outcome.held, capacity == 0 ? 500u : capacity);
    ASSERT_FALSE(outcome.prompts.empty());
    for (const HeldPrompt& held : outcome.prompts) {
      for (size_t i = 0; i < held.prompt.names.size(); ++i) {
        EXPECT_EQ(heard.blocks.contains(held.prompt.names[i]), i < held.blocks);
      }
    }
  }
}

TEST(ServiceBenchEnginesTest, PromptsAreNamedByTheContractWhenAsked) {
  std::mt19937_64 random(7);
  const BenchPrompt own = RandomPrompt(5, 16, BlockNames::kOwn, random);
  const BenchPrompt contract = MakePrompt(own.tokens, 16, BlockNames::kContract);
  EXPECT_EQ(own.blocks, SequenceHashes(LocalHashes(own.tokens, {.block_size = 16}, BlockSeed({}))));
  EXPECT_EQ(contract.blocks, own.blocks);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(contract.names[i], Raw(contract.blocks[i]));
    EXPECT_NE(own.names[i], Raw(own.blocks[i]));
  }
}

// ---- Questions ----

TEST(ServiceBenchQueryTest, HashesAreSignedInJson) {
  const std::vector<LocalHash> locals = {LocalHash{1}, LocalHash{~uint64_t{0}}};
  EXPECT_EQ(QueryByHashBody(locals), R"({"block_hashes":[1,-1],"model_name":"bench"})");
  const std::vector<TokenId> tokens = {1, 4294967295};
  EXPECT_EQ(QueryBody(tokens), R"({"token_ids":[1,4294967295],"model_name":"bench"})");
}

TEST(ServiceBenchQueryTest, ScoresAreReadOrRefused) {
  const HttpAnswer good{200, R"({"scores":{"1":{"0":512,"1":16},"2":{"0":0}},"frequencies":[]})"};
  EXPECT_EQ(*ScoresIn(good), (Scores{{"1", 528}, {"2", 0}}));
  for (const HttpAnswer& bad :
       {HttpAnswer{404, R"({"scores":{}})"}, HttpAnswer{200, ""}, HttpAnswer{200, "[1]"},
        HttpAnswer{200, R"({"scores":[]})"}, HttpAnswer{200, R"({"scores":{"1":2}})"},
        HttpAnswer{200, R"({"scores":{"1":{"0":-1}}})"}}) {
    EXPECT_FALSE(ScoresIn(bad).ok()) << bad.body;
  }
}

// ---- The load client ----

// Answers every request on every connection with what `say` makes of its number, in small pieces.
class Server {
 public:
  explicit Server(std::function<std::string(uint64_t)> say, size_t piece = 7)
      : say_(std::move(say)), piece_(piece), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    socklen_t size = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    address_ = {"127.0.0.1", ntohs(address.sin_port)};
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~Server() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    close(listener_);
  }

  const Address& address() const { return address_; }

 private:
  void Accept() {
    for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) {
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      threads_.emplace_back([this, fd] {
        Serve(fd);
        close(fd);
      });
    }
  }

  void Serve(int fd) {
    std::string in;
    char bytes[4096];
    for (ssize_t got; (got = recv(fd, bytes, sizeof(bytes), 0)) > 0;) {
      in.append(bytes, static_cast<size_t>(got));
      for (size_t at; (at = in.find("END")) != std::string::npos;) {
        in.erase(0, at + 3);
        const std::string answer = say_(answered_++);
        if (answer.empty()) return;
        for (size_t from = 0; from < answer.size(); from += piece_) {
          const size_t count = std::min(piece_, answer.size() - from);
          if (send(fd, answer.data() + from, count, MSG_NOSIGNAL) < 0) return;
        }
      }
    }
  }

  const std::function<std::string(uint64_t)> say_;
  const size_t piece_;
  const int listener_;
  Address address_;
  std::atomic<uint64_t> answered_{0};
  std::thread acceptor_;
  std::vector<std::thread> threads_;
};

std::string Answer(const std::string& status, size_t bytes) {
  return "HTTP/1.1 " + status + "\r\nContent-Type: x\r\nContent-Length: " + std::to_string(bytes) +
         "\r\n\r\n" + std::string(bytes, 'x');
}

TEST(ServiceBenchHttpTest, EveryAnswerIsCountedOnceHoweverItArrives) {
  for (const size_t piece : {size_t{3}, size_t{50}, size_t{1} << 20}) {
    Server server([](uint64_t n) { return Answer("200 OK", n % 300); }, piece);
    const std::vector<std::string> requests = {HttpPost(server.address(), "/q", "END"),
                                               HttpPost(server.address(), "/q", "longer END")};
    HttpLoad load({.to = server.address(), .connections = 4}, requests);
    ASSERT_TRUE(load.Connect().ok());
    HttpLoadResult result;
    while (result.answers == 0 && result.errors == 0) result = load.Run(0.05);
    EXPECT_EQ(result.answers, result.latencies.size());
    EXPECT_EQ(result.errors, 0u) << result.first_error;
  }
}

TEST(ServiceBenchHttpTest, OtherStatusesAndEndedConnectionsAreErrors) {
  Server server([](uint64_t n) {
    return n == 0 ? Answer("404 Not Found", 5) : n == 1 ? "" : Answer("200 OK", 5);
  });
  const std::vector<std::string> requests = {HttpPost(server.address(), "/q", "END")};
  HttpLoad load({.to = server.address(), .connections = 2}, requests);
  ASSERT_TRUE(load.Connect().ok());
  uint64_t errors = 0, answers = 0;
  bool said_why = false;
  for (int run = 0; run < 1200 && (errors < 2 || answers == 0); ++run) {
    const HttpLoadResult result = load.Run(0.05);
    errors += result.errors;
    answers += result.answers;
    said_why = said_why || !result.first_error.empty();
  }
  EXPECT_EQ(errors, 2u);
  EXPECT_TRUE(said_why);
  EXPECT_GT(answers, 0u);  // of the connection that is left
}

TEST(ServiceBenchHttpTest, LargeRequestsAndAnswersGoThrough) {
  Server server([](uint64_t) { return Answer("200 OK", 3 << 20); }, 1 << 16);
  HttpClient client(server.address());
  const absl::StatusOr<HttpAnswer> answer = client.Post("/q", std::string(5 << 20, 'x') + "END");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body.size(), size_t{3} << 20);
  const std::vector<std::string> requests = {
      HttpPost(server.address(), "/q", std::string(5 << 20, 'x') + "END")};
  HttpLoad load({.to = server.address(), .connections = 1}, requests);
  ASSERT_TRUE(load.Connect().ok());
  HttpLoadResult result;
  while (result.answers == 0 && result.errors == 0) result = load.Run(0.1);
  EXPECT_EQ(result.errors, 0u) << result.first_error;
}

TEST(ServiceBenchHttpTest, ARateIsNotExceeded) {
  Server server([](uint64_t) { return Answer("200 OK", 5); });
  const std::vector<std::string> requests = {HttpPost(server.address(), "/q", "END")};
  HttpLoad load({.to = server.address(), .connections = 4, .qps = 200}, requests);
  ASSERT_TRUE(load.Connect().ok());
  const HttpLoadResult result = load.Run(0.2);
  EXPECT_EQ(result.errors, 0u) << result.first_error;
  EXPECT_LE(result.answers, static_cast<uint64_t>(result.seconds * 200) + 1);
}

// ---- The whole ----

ServiceBenchOptions Small(const std::string& what) {
  ServiceBenchOptions options;
  options.what = what;
  options.leaf = "indexer/leaf/kvatlas-leaf";
  options.seconds = 0.1;
  options.warm_up_s = 0.05;
  options.workers = 3;
  options.prompts = 2;
  options.blocks = 40;
  options.connections = 2;
  options.ingest_blocks = 30000;
  options.capacity = 2000;
  options.sequence_blocks = 100;
  options.event_blocks = 32;
  return options;
}

// For longer, where the leaf waited for a processor so long that it answered nothing.
absl::StatusOr<ServiceBenchResult> RunUntilAnswered(ServiceBenchOptions options) {
  constexpr double kSecondsMax = 30;
  while (true) {
    absl::StatusOr<ServiceBenchResult> result = RunServiceBench(options);
    if (!result.ok() || result->qps.has_value() || result->errors > 0) return result;
    options.seconds *= 8;
    if (options.seconds > kSecondsMax) return absl::DeadlineExceededError("nothing was answered");
  }
}

void ExpectQueried(const ServiceBenchOptions& options) {
  const absl::StatusOr<ServiceBenchResult> result = RunUntilAnswered(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->errors, 0u) << result->first_error;
  EXPECT_GT(result->qps.value(), 0);
  EXPECT_GT(result->us->p50, 0);
  EXPECT_GT(result->leaf_cpu_us_per_query.value(), 0);
  EXPECT_GT(result->leaf_rss_bytes.value(), 0u);
  EXPECT_FALSE(result->blocks_per_s.has_value());
}

void ExpectIngested(const absl::StatusOr<ServiceBenchResult>& result, uint64_t removed = 24000,
                    uint64_t held = 6000) {
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->errors, 0u) << result->first_error;
  EXPECT_EQ(result->blocks_stored.value(), 30000u);
  EXPECT_EQ(result->blocks_removed.value(), removed);
  EXPECT_EQ(result->blocks_held.value(), held);
  EXPECT_GT(result->blocks_per_s.value(), 0);
  EXPECT_GT(result->leaf_cpu_ns_per_block.value(), 0);
  EXPECT_GT(result->checked.value(), 0u);
  EXPECT_EQ(result->wrong.value(), 0u);
  EXPECT_FALSE(result->qps.has_value());
}

TEST(ServiceBenchTest, QueriesOverGrpc) { ExpectQueried(Small("query_grpc")); }

TEST(ServiceBenchTest, QueriesOverHttp) {
  ServiceBenchOptions options = Small("query_http");
  ExpectQueried(options);
  options.tokens = 640;
  options.qps = 200;
  ExpectQueried(options);
  options.load = "grpc";
  ExpectQueried(options);
}

TEST(ServiceBenchTest, IngestOverZmq) {
  ServiceBenchOptions options = Small("ingest_zmq");
  // Engines are full when the clock begins to run: as much is evicted as is stored.
  const absl::StatusOr<ServiceBenchResult> steady = RunServiceBench(options);
  ExpectIngested(steady, 30000);
  ASSERT_TRUE(steady.ok());
  EXPECT_EQ(steady->workload, "steady");
  options.qps = 100000;
  const absl::StatusOr<ServiceBenchResult> paced = RunServiceBench(options);
  ExpectIngested(paced, 30000);
  ASSERT_TRUE(paced.ok());
  EXPECT_TRUE(paced->lag_ms.has_value());
}

TEST(ServiceBenchTest, ColdIngestStartsFromNothingAndEvictsNothing) {
  ServiceBenchOptions options = Small("ingest_zmq");
  options.cold = true;
  const absl::StatusOr<ServiceBenchResult> cold = RunServiceBench(options);
  ExpectIngested(cold, 0, 30000);
  ASSERT_TRUE(cold.ok());
  EXPECT_EQ(cold->workload, "cold");
}

// What is sent before the clock runs is in no figure: bytes and block ops are those of the measured
// frames alone.
TEST(ServiceBenchTest, TheWarmUpIsInNoFigure) {
  ServiceBenchOptions options = Small("ingest_zmq");
  options.lag_probes_per_s = 0;
  options.ingest_blocks = 300;  // far less than the 6,000 that are stored before
  const absl::StatusOr<ServiceBenchResult> result = RunServiceBench(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->errors, 0u) << result->first_error;
  EXPECT_EQ(result->blocks_stored.value(), 300u);
  EXPECT_EQ(result->blocks_removed.value(), 300u);
  EXPECT_EQ(result->blocks_held.value(), 6000u);
  // A removed block takes about 30 bytes of a frame and a stored one about 80, and the markers 1 of
  // 101 frames' worth.
  EXPECT_LT(result->bytes_per_block.value(), 200);
}

TEST(ServiceBenchTest, IngestOverGrpc) { ExpectIngested(RunServiceBench(Small("ingest_grpc"))); }

TEST(ServiceBenchTest, IngestThroughRedis) {
  ExpectIngested(RunServiceBench(Small("ingest_redis")));
}

TEST(ServiceBenchTest, WhatDoesNotFitTogetherIsRefused) {
  EXPECT_EQ(CheckServiceBench(Small("nonsense")).code(), absl::StatusCode::kInvalidArgument);
  ServiceBenchOptions foreign = Small("query_grpc");
  foreign.url = "http://127.0.0.1:1";
  EXPECT_EQ(CheckServiceBench(foreign).code(), absl::StatusCode::kInvalidArgument);
  ServiceBenchOptions cold = Small("query_http");
  cold.cold = true;
  EXPECT_EQ(CheckServiceBench(cold).code(), absl::StatusCode::kInvalidArgument);
  ServiceBenchOptions rate = Small("query_grpc");
  rate.qps = 100;
  EXPECT_EQ(CheckServiceBench(rate).code(), absl::StatusCode::kInvalidArgument);
  foreign.what = "query_http";
  foreign.load = "zmq";
  EXPECT_TRUE(CheckServiceBench(foreign).ok());
  EXPECT_EQ(RunServiceBench(foreign).status().code(), absl::StatusCode::kUnavailable);
}

TEST(ServiceBenchTest, WhatWasNotMeasuredIsNullInJson) {
  ServiceBenchResult result;
  result.what = "query_http";
  result.us = Percentiles{.p50 = 1, .p99 = 2, .p999 = 3, .max = 4, .mean = 1.5};
  const auto json = nlohmann::json::parse(ToJson(result));
  EXPECT_EQ(json["us"]["p99"], 2);
  EXPECT_TRUE(json["lag_ms"]["p99"].is_null());
  EXPECT_TRUE(json["blocks_per_s"].is_null());
  EXPECT_TRUE(json["leaf_cpu_s"].is_null());
  EXPECT_EQ(json["errors"], 0);
  EXPECT_NE(ToText(result).find("us.p99"), std::string::npos);
  EXPECT_EQ(ToText(result).find("lag_ms"), std::string::npos);
}

}  // namespace
}  // namespace kvatlas
