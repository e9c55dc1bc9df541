// Our additions to Dynamo's interface, and Mooncake's interface: over real sockets, with a real
// engine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/leaf/http_transcript_test_util.h"
#include "indexer/leaf/leaf.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPrompt[] = "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]";

// Blocks of four tokens from `first_token` on; pairs for EAGLE.
std::string Store(const std::vector<uint64_t>& hashes, std::optional<uint64_t> parent,
                  uint32_t first_token, const std::string& medium, bool pairs = false) {
  MsgpackWriter writer;
  writer.Map(6).Text("type").Text("BlockStored").Text("block_hashes").Array(hashes.size());
  for (const uint64_t hash : hashes) writer.Unsigned(hash);
  writer.Text("parent_block_hash");
  parent.has_value() ? writer.Unsigned(*parent) : writer.Nil();
  writer.Text("token_ids").Array(hashes.size() * 4);
  for (uint32_t i = 0; i < hashes.size() * 4; ++i) {
    const uint32_t token = first_token + i;
    pairs ? writer.Array(2).Unsigned(token).Unsigned(token + 1) : writer.Unsigned(token);
  }
  writer.Text("block_size").Unsigned(4).Text("medium").Text(medium);
  return writer.bytes();
}

std::string Batch(const std::vector<std::string>& events) {
  MsgpackWriter writer;
  writer.Array(3).Float(1.5).Array(events.size());
  for (const std::string& event : events) writer.Raw(event);
  writer.Unsigned(0);
  return writer.bytes();
}

class HttpApiTest : public ::testing::Test {
 protected:
  void StartLeaf(LeafOptions options = {}) {
    options.grpc = {"127.0.0.1", 0};
    options.http = {"127.0.0.1", 0};
    options.http_api.mooncake = {{"127.0.0.1", 0}};
    absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(std::move(options));
    ASSERT_TRUE(leaf.ok()) << leaf.status();
    leaf_ = *std::move(leaf);
    client_ = std::make_unique<HttpTestClient>(leaf_->http_address());
    mooncake_ = std::make_unique<HttpTestClient>(leaf_->mooncake_addresses()[0]);
  }

  void Register(const std::string& instance) {
    EngineRegistration registration;
    registration.instance = instance;
    registration.model = "m";
    registration.block_size = 4;
    registration.endpoint = engine_.endpoint();
    registration.engine_type = "vLLM";
    ASSERT_TRUE(leaf_->engines().Register(registration).ok());
    engine_.WaitForSubscribers();
  }

  void Publish(const std::string& instance, const std::vector<std::string>& events) {
    engine_.Publish(Batch(events));
    ++batches_;
    const auto applied = [&] {
      for (const EngineEntry& entry : leaf_->engines().List()) {
        if (entry.instance == instance && entry.worker.batches == batches_) return true;
      }
      return false;
    };
    ASSERT_TRUE(Await(applied, std::chrono::seconds(60)))
        << "batch " << batches_ << " of " << instance;
  }

  json Ask(const std::string& target, const std::string& body) {
    const HttpAnswerText answer = client_->Post(target, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }

  ZmqTestEngine engine_{{}};
  uint64_t batches_ = 0;
  std::unique_ptr<Leaf> leaf_;
  std::unique_ptr<HttpTestClient> client_;
  std::unique_ptr<HttpTestClient> mooncake_;
};

// A reader that looked for each key among those before would take some 10^10 steps.
TEST_F(HttpApiTest, ManyKeysAreReadInOnePass) {
  StartLeaf();
  std::string body = R"({"model_name":"m","model":"m","token_ids":[1],"block_hashes":[1])";
  for (int i = 0; i < 100'000; ++i) body += ",\"k" + std::to_string(i) + "\":{\"a\":1}";
  body += '}';
  for (const char* path :
       {"/query", "/query_by_hash", "/explain", "/register", "/unregister", "/dump"})
    EXPECT_GE(client_->Post(path, body).status, 200) << path;
  for (const char* path : {"/query", "/register", "/unregister"})
    EXPECT_GE(mooncake_->Post(path, body).status, 200) << path;
}

TEST_F(HttpApiTest, DetailTellsEveryTierWithTrustAndAge) {
  StartLeaf();
  Register("7");
  Publish("7", {Store({1, 2}, std::nullopt, 0, "GPU"), Store({3}, 2, 8, "CPU"),
                Store({11}, std::nullopt, 0, "DISK")});
  const std::string query = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  const json answer = Ask("/query?detail=1", query);
  EXPECT_EQ(answer["scores"], json::parse(R"({"7":{"0":8}})"));
  const json& rank = answer["detail"]["7"]["0"];
  EXPECT_EQ(rank["device"], 8);
  EXPECT_EQ(rank["host"], 0);  // alone it begins behind a hole
  EXPECT_EQ(rank["disk"], 4);
  EXPECT_EQ(rank["external"], 0);
  EXPECT_EQ(rank["any"], 12);
  EXPECT_EQ(rank["trust"], "exact");
  EXPECT_GE(rank["age_ms"], 0);
  EXPECT_FALSE(Ask("/query", query).contains("detail"));
}

// Hybrid models of SGLang 0.5.23, whose events tell of full attention alone.
TEST_F(HttpApiTest, AHybridThatTellsOfFullAttentionAloneIsAnsweredAsDegraded) {
  StartLeaf();
  const HttpAnswerText answer = client_->Post(
      "/register",
      R"({"instance_id":7,"endpoint":")" + engine_.endpoint() +
          R"(","model_name":"m","block_size":4,"engine_type":"SGLang","hybrid":true})");
  ASSERT_EQ(answer.status, 201) << answer.body;
  engine_.WaitForSubscribers();
  Publish("7", {Store({1, 2}, std::nullopt, 0, "GPU")});
  const std::string query = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  const json rank = Ask("/query?detail=1", query)["detail"]["7"]["0"];
  EXPECT_EQ(rank["device"], 8);
  EXPECT_EQ(rank["trust"], "degraded");
}

// Chunks of two blocks in host memory, and a cache there that evicts without a word.
TEST_F(HttpApiTest, WhatARegistrationSaysOfTiersBesideTheDeviceCounts) {
  StartLeaf();
  const auto registered = [&](const std::string& more) {
    return client_
        ->Post("/register", R"({"instance_id":7,"endpoint":")" + engine_.endpoint() +
                                R"(","model_name":"m","block_size":4,)" + more + "}")
        .status;
  };
  EXPECT_EQ(registered(R"("silent_tiers":"device")"), 400);
  ASSERT_EQ(registered(R"("offload_chunk_tokens":8,"silent_tiers":"host")"), 201);
  engine_.WaitForSubscribers();
  Publish("7", {Store({1}, std::nullopt, 0, "CPU")});
  const std::string query = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  json rank = Ask("/query?detail=1", query)["detail"]["7"]["0"];
  EXPECT_EQ(rank["any"], 0);
  EXPECT_EQ(rank["trust"], "degraded");
  Publish("7", {Store({2}, 1, 4, "CPU")});
  rank = Ask("/query?detail=1", query)["detail"]["7"]["0"];
  EXPECT_EQ(rank["any"], 8);
}

// Chunks of two blocks: what host memory has alone is not loaded behind a part that is on the
// device.
TEST_F(HttpApiTest, LessThanAChunkIsNotLoadedBehindTheDevice) {
  StartLeaf();
  ASSERT_EQ(
      client_
          ->Post("/register", R"({"instance_id":7,"endpoint":")" + engine_.endpoint() +
                                  R"(","model_name":"m","block_size":4,"offload_chunk_tokens":8})")
          .status,
      201);
  engine_.WaitForSubscribers();
  Publish("7", {Store({1}, std::nullopt, 0, "GPU"), Store({1, 2}, std::nullopt, 0, "CPU")});
  const std::string query = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  const json rank = Ask("/query?detail=1", query)["detail"]["7"]["0"];
  EXPECT_EQ(rank["device"], 4);
  EXPECT_EQ(rank["host"], 8) << "alone";
  EXPECT_EQ(rank["any"], 4);
}

// A folder that two engines share: one wrote, the other can load it.
TEST_F(HttpApiTest, WhatOneEngineAnnouncesOfASharedStoreTheOtherCanLoad) {
  StartLeaf();
  ZmqTestEngine reader({});
  const auto registered = [&](int instance, const std::string& endpoint, const std::string& more) {
    return client_
        ->Post("/register", R"({"instance_id":)" + std::to_string(instance) + R"(,"endpoint":")" +
                                endpoint + R"(","model_name":"m","block_size":4)" + more + "}")
        .status;
  };
  EXPECT_EQ(registered(7, engine_.endpoint(), R"(,"store_tiers":"disk")"), 400) << "of no store";
  ASSERT_EQ(registered(7, engine_.endpoint(), R"(,"store":"files")"), 201);
  ASSERT_EQ(registered(8, reader.endpoint(), R"(,"store":"files")"), 201);
  engine_.WaitForSubscribers();
  Publish("7",
          {Store({1, 2}, std::nullopt, 0, "GPU"), Store({1, 2, 3}, std::nullopt, 0, "STORAGE")});
  const std::string query = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  json answer = Ask("/query?detail=1", query);
  EXPECT_EQ(answer["scores"], json::parse(R"({"7":{"0":8}})"));
  json rank = answer["detail"]["7"]["0"];
  EXPECT_EQ(rank["any"], 8) << "its own";
  EXPECT_EQ(rank["trust"], "exact");
  EXPECT_EQ(rank["loadable"], 12);
  EXPECT_EQ(rank["loadable_trust"], "degraded");
  rank = answer["detail"]["8"]["0"];
  EXPECT_EQ(rank["any"], 0);
  EXPECT_EQ(rank["loadable"], 12);
  EXPECT_EQ(answer["detail"].size(), 2u) << "the store is no worker";
  // The files stay when the engine's own cache is cleared, and when it is gone.
  MsgpackWriter cleared;
  cleared.Array(1).Text("AllBlocksCleared");
  Publish("7", {cleared.bytes()});
  rank = Ask("/query?detail=1", query)["detail"]["7"]["0"];
  EXPECT_EQ(rank["any"], 0);
  EXPECT_EQ(rank["loadable"], 12);
  ASSERT_EQ(client_->Post("/unregister", R"({"instance_id":7,"model_name":"m"})").status, 200);
  EXPECT_EQ(Ask("/query?detail=1", query)["detail"]["8"]["0"]["loadable"], 12);
  ASSERT_EQ(client_->Post("/unregister", R"({"instance_id":8,"model_name":"m"})").status, 200);
  EXPECT_EQ(client_->Post("/query", query).status, 404) << "and the store with the last one";
}

// A store that publishes its own holdings, as Mooncake's does: a stream without requests.
TEST_F(HttpApiTest, AStreamMayBeTheStoresOwn) {
  StartLeaf();
  ZmqTestEngine reader({});
  const auto registered = [&](int instance, const std::string& endpoint, const std::string& more) {
    return client_
        ->Post("/register", R"({"instance_id":)" + std::to_string(instance) + R"(,"endpoint":")" +
                                endpoint + R"(","model_name":"m","block_size":4,"store":"s")" +
                                more + "}")
        .status;
  };
  ASSERT_EQ(registered(7, engine_.endpoint(), R"(,"store_tiers":"all")"), 201);
  ASSERT_EQ(registered(8, reader.endpoint(), ""), 201);
  engine_.WaitForSubscribers();
  Publish("7", {Store({1, 2}, std::nullopt, 0, "CPU")});
  const std::string query = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  const json answer = Ask("/query?detail=1", query);
  EXPECT_EQ(answer["detail"].size(), 1u);
  EXPECT_EQ(answer["detail"]["8"]["0"]["loadable"], 8);
  EXPECT_EQ(answer["detail"]["8"]["0"]["any"], 0);
}

TEST_F(HttpApiTest, LowerTiersAloneAreInstancesWithoutAScore) {
  StartLeaf();
  Register("7");
  Publish("7", {Store({1}, std::nullopt, 0, "CPU")});
  EXPECT_EQ(
      Ask("/query", std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}"),
      json::parse(
          R"({"scores":{},"frequencies":[],"instances":{"7":{"longest_matched":4,"gpu":0,"dp":{"0":0},"cpu":4,"disk":4}}})"));
}

TEST_F(HttpApiTest, BatchIsAnsweredAsEachQueryAlone) {
  StartLeaf();
  Register("7");
  Publish("7", {Store({1, 2}, std::nullopt, 0, "GPU")});
  const std::string good = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  const std::string unknown = R"({"model_name":"k","token_ids":[1]})";
  const json answers =
      Ask("/query", "{\"queries\":[" + good + "," + unknown + "," + good + "]}")["answers"];
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0], Ask("/query", good));
  EXPECT_EQ(
      answers[1],
      json::parse(R"({"error":"no indexer for model=k routing_group=default","status":404})"));
  EXPECT_EQ(answers[2], answers[0]);
  EXPECT_EQ(Ask("/query_by_hash", "{\"queries\":[]}"), json::parse(R"({"answers":[]})"));
  EXPECT_EQ(client_->Post("/query", "{\"queries\":[{}]}").status, 422);
}

TEST_F(HttpApiTest, ManyQueriesInOneRequestComeInPieces) {
  StartLeaf();
  Register("7");
  Publish("7", {Store({1, 2}, std::nullopt, 0, "GPU")});
  std::string body = "{\"queries\":[";
  for (int i = 0; i < 4096; ++i) {
    body += std::string(i > 0 ? "," : "") + R"({"model_name":"m","token_ids":)" + kPrompt + "}";
  }
  const HttpAnswerText answer = client_->Post("/query", body + "]}");
  EXPECT_EQ(answer.headers.at("transfer-encoding"), "chunked");
  const json answers = json::parse(answer.body)["answers"];
  ASSERT_EQ(answers.size(), 4096u);
  EXPECT_EQ(answers[0]["scores"], json::parse(R"({"7":{"0":8}})"));
  EXPECT_EQ(answers[4095], answers[0]);
}

TEST_F(HttpApiTest, ExplainSaysWhoHasWhatAndWhereTheHoleIs) {
  StartLeaf();
  Register("7");
  Publish("7", {Store({1, 2, 3}, std::nullopt, 0, "GPU"), Store({4}, 3, 12, "CPU")});
  MsgpackWriter removal;
  removal.Map(2).Text("type").Text("BlockRemoved").Text("block_hashes").Array(1).Unsigned(2);
  Publish("7", {removal.bytes()});
  const std::string query = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  const json answer = Ask("/explain", query);
  EXPECT_EQ(answer["blocks"], 4);
  EXPECT_EQ(answer["contract"], "xxh3-chain-1:1337");
  EXPECT_EQ(answer["diverges_at"], 1);
  ASSERT_EQ(answer["path"].size(), 2u);
  EXPECT_EQ(answer["path"][0]["local_hash"], "9143094415614847814");
  EXPECT_EQ(answer["path"][0]["holders"],
            json::parse(R"([{"instance":"7","rank":0,"tiers":["device"]}])"));
  EXPECT_EQ(answer["path"][1]["holders"], json::array());
  EXPECT_EQ(answer["ranks"][0]["first_hole"], 1);
  EXPECT_EQ(answer["ranks"][0]["blocks_behind_hole"], 2);
  EXPECT_EQ(Ask("/explain?blocks=1", query)["path"].size(), 1u);
  EXPECT_EQ(client_->Post("/explain", R"({"model_name":"k","token_ids":[1]})").status, 404);
}

TEST_F(HttpApiTest, ExplainShowsTheCacheClassesOfAHybridWorkerAsStrips) {
  StartLeaf();
  Register("7");
  const std::string query =
      R"({"model_name":"m","token_ids":)" + json(HybridTokens(7)).dump() + "}";
  engine_.Publish(HybridPromptPayload());
  json rank;
  ASSERT_TRUE(Eventually([&] {
    const json answer = json::parse(client_->Post("/explain", query).body);
    if (!answer.contains("ranks") || answer["ranks"].empty()) return false;
    rank = answer["ranks"][0];
    return rank["blocks"]["any"] == 4;
  }));
  EXPECT_EQ(rank["blocks"]["held"], 6);
  EXPECT_EQ(rank["ended_by"], "state");
  EXPECT_EQ(rank["classes"],
            json::parse(R"([{"class":"main","block_size":4,"held":"######.","accepts":6},)"
                        R"({"class":"window:8","block_size":4,"held":"..###..","accepts":5},)"
                        R"({"class":"state","block_size":4,"held":"...#...","accepts":4}])"));
}

TEST_F(HttpApiTest, LookAheadPairsAreFoundByTokens) {
  StartLeaf();
  Register("7");
  Publish("7", {Store({1, 2}, std::nullopt, 0, "GPU", /*pairs=*/true)});
  const std::string query = std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}";
  EXPECT_EQ(Ask("/query", query)["scores"], json::parse(R"({"7":{"0":8}})"));
  EXPECT_EQ(Ask("/explain", query)["look_ahead"], true);
}

TEST_F(HttpApiTest, ModelsMayHaveColonsAndPromptsAHundredThousandTokens) {
  StartLeaf();
  EXPECT_EQ(client_
                ->Post("/register", R"({"instance_id":9,"endpoint":")" + engine_.endpoint() +
                                        R"(","model_name":"org:m","block_size":16})")
                .status,
            201);
  std::string body = R"({"model_name":"org:m","token_ids":[0)";
  for (int i = 1; i < 100'000; ++i) body += "," + std::to_string(i);
  EXPECT_EQ(Ask("/query", body + "]}")["scores"], json::object());
  EXPECT_THAT(client_->Get("/dump").body, HasSubstr("\"org:m:default\""));
}

TEST_F(HttpApiTest, ABlockSizeMayBeAuto) {
  StartLeaf();
  const auto with = [&](const std::string& size) {
    return client_->Post("/register", R"({"instance_id":9,"endpoint":")" + engine_.endpoint() +
                                          R"(","model_name":"m","block_size":)" + size + "}");
  };
  EXPECT_THAT(with("\"automatic\"").body, HasSubstr("expected a number of tokens or"));
  EXPECT_NE(with("4294967295").status, 201);
  EXPECT_EQ(with("\"auto\"").status, 201);
  EXPECT_EQ(json::parse(client_->Get("/workers").body)[0]["instance_id"], 9);
  EXPECT_EQ(
      Ask("/query", std::string(R"({"model_name":"m","token_ids":)") + kPrompt + "}")["scores"],
      json::object());
}

TEST_F(HttpApiTest, ReadyOnceTheWorkersAreThere) {
  LeafOptions options;
  options.engines.min_initial_workers = 1;
  StartLeaf(options);
  EXPECT_EQ(client_->Get("/health").status, 200);
  const HttpAnswerText waiting = client_->Get("/ready");
  EXPECT_EQ(waiting.status, 503);
  EXPECT_THAT(waiting.body, HasSubstr("\"reason\":\"0 of 1 workers\""));
  Register("7");
  EXPECT_EQ(client_->Get("/ready").body, "{\"ready\":true}");
}

TEST_F(HttpApiTest, RequestsAreCountedUnderTheNamesOfTheField) {
  StartLeaf();
  client_->Post("/query", "{}");
  client_->Get("/query");
  client_->Get("/peers");
  const HttpAnswerText metrics = client_->Get("/metrics");
  EXPECT_EQ(metrics.headers.at("content-type"), "text/plain; version=0.0.4");
  for (const char* line :
       {"dynamo_kvindexer_requests_total{endpoint=\"/query\",method=\"POST\"} 1\n",
        "dynamo_kvindexer_requests_total{endpoint=\"/query\",method=\"GET\"} 1\n",
        "dynamo_kvindexer_errors_total{endpoint=\"/query\",status_class=\"4xx\"} 2\n",
        "dynamo_kvindexer_request_duration_seconds_count{endpoint=\"/peers\"} 1\n",
        "dynamo_kvindexer_request_duration_seconds_bucket{endpoint=\"/peers\",le=\"0.0001\"}",
        "dynamo_kvindexer_models 0\n", "dynamo_kvindexer_listeners{status=\"active\"} 0\n"}) {
    EXPECT_THAT(metrics.body, HasSubstr(line));
  }
}

TEST_F(HttpApiTest, AccessLogHasALinePerRequestAndIsReopened) {
  const std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/access.log";
  const auto read = [](const std::string& name) {
    std::ifstream in(name);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  };
  LeafOptions options;
  options.http_api.access_log = file;
  StartLeaf(options);
  client_->Ask("POST", "/query", {{"content-type", "application/json"}, {"X-Trace-Id", "t\"7"}},
               R"({"model_name":"m","token_ids":[]})");
  const json line = json::parse(read(file));
  EXPECT_EQ(line["trace_id"], "t\"7");
  EXPECT_EQ(line["method"], "POST");
  EXPECT_EQ(line["path"], "/query");
  EXPECT_EQ(line["model"], "m");
  EXPECT_EQ(line["status"], 404);
  EXPECT_GE(line["duration_ms"], 0);
  ASSERT_EQ(std::rename(file.c_str(), (file + ".1").c_str()), 0);
  EXPECT_EQ(client_->Post("/reopen_logs", "").status, 200);
  client_->Get("/peers");
  EXPECT_THAT(read(file), HasSubstr("\"/peers\""));
  EXPECT_THAT(read(file), Not(HasSubstr("\"/query\"")));
}

// As on a full disk.
TEST_F(HttpApiTest, AnAccessLogThatTakesNoMoreGoesOnWithWholeLines) {
  const std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/full.log";
  LeafOptions options;
  options.http_api.access_log = file;
  StartLeaf(options);
  signal(SIGXFSZ, SIG_IGN);
  rlimit unbounded = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unbounded), 0);
  rlimit bounded = unbounded;
  bounded.rlim_cur = 300;  // within a line
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &bounded), 0);
  for (int i = 0; i < 5; ++i) client_->Get("/peers");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unbounded), 0);
  client_->Get("/workers");
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(json::parse(lines.back())["path"], "/workers");
  EXPECT_TRUE(json::parse(lines[lines.size() - 2], nullptr, false).is_discarded());
  EXPECT_EQ(json::parse(lines.front())["path"], "/peers");
}

TEST_F(HttpApiTest, WorkersSayWhatIsKnownOfThem) {
  StartLeaf();
  Register("7");
  Register("pod-a");
  Publish("7", {Store({1}, std::nullopt, 0, "GPU")});
  const json workers = json::parse(client_->Get("/workers?detail=1").body);
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[0]["instance_id"], 7);
  EXPECT_EQ(workers[0]["ranks"]["0"]["device_blocks"], 1);
  EXPECT_EQ(workers[0]["ranks"]["0"]["trust"], "exact");
  EXPECT_EQ(workers[0]["listeners"]["0"]["last_sequence"], 0);
  EXPECT_EQ(workers[1]["instance_id"], "pod-a");
}

// ---- Mooncake ----

TEST_F(HttpApiTest, MooncakeRegistersAsksAndUnregisters) {
  StartLeaf();
  const HttpAnswerText registered = mooncake_->Post(
      "/register", R"({"endpoint":")" + engine_.endpoint() +
                       R"(","type":"vLLM","modelname":"m","lora_name":null,"tenant_id":"t",
                          "instance_id":"pod-1","block_size":4,"dp_rank":0,"additionalsalt":""})");
  EXPECT_EQ(json::parse(registered.body),
            json::parse(R"({"status":"registered successfully","instance_id":"pod-1"})"));
  engine_.WaitForSubscribers();
  Publish("pod-1", {Store({1, 2}, std::nullopt, 0, "GPU"), Store({3}, 2, 8, "CPU"),
                    Store({11}, std::nullopt, 0, "DISK")});
  const std::string query =
      std::string(R"({"model":"m","tenant_id":"t","block_size":4,"token_ids":)") + kPrompt + "}";
  const json expected = json::parse(
      R"({"t":{"pod-1":{"longest_matched":12,"GPU":8,"DP":{"0":12},"CPU":0,"DISK":4}}})");
  EXPECT_EQ(json::parse(mooncake_->Post("/query", query).body), expected);
  EXPECT_EQ(json::parse(mooncake_->Post("/query?data=1", query).body)["data"], expected);
  // The first block's sequence hash is its local hash.
  EXPECT_EQ(json::parse(mooncake_
                            ->Post("/query_by_hash",
                                   R"({"model":"m","tenant_id":"t","instance_id":"pod-1",)"
                                   R"("block_size":4,"seq_hashes":[9143094415614847814]})")
                            .body)["t"]["pod-1"]["longest_matched"],
            4);
  // Another tenant, another model, another instance: nothing.
  for (const char* other :
       {R"({"model":"m","token_ids":[0,1,2,3]})",
        R"({"model":"k","tenant_id":"t","token_ids":[1]})",
        R"({"model":"m","tenant_id":"t","instance_id":"pod-2","token_ids":[0,1,2,3]})"}) {
    const HttpAnswerText answer = mooncake_->Post("/query", other);
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(json::parse(answer.body).begin().value(), json::object()) << other;
  }
  EXPECT_EQ(
      mooncake_
          ->Post("/query", R"({"model":"m","tenant_id":"t","block_size":8,"token_ids":[0,1,2,3]})")
          .status,
      400);
  const json view = json::parse(mooncake_->Get("/global_view").body)["data"]["m"]["t"];
  EXPECT_EQ(view["block_size"], 4);
  EXPECT_EQ(view["instances"]["pod-1"]["type"], "vLLM");
  EXPECT_EQ(view["instances"]["pod-1"]["DP"]["0"]["endpoint"], engine_.endpoint());
  // Dynamo's interface sees the same engine.
  EXPECT_EQ(json::parse(client_->Get("/workers").body)[0]["routing_group"], "t");
  EXPECT_EQ(
      json::parse(
          mooncake_->Post("/unregister", R"({"instance_id":"pod-1","tenant_id":"t","dp_rank":0})")
              .body),
      json::parse(R"({"status":"unregistered successfully","removed_instances":["pod-1|t|0"]})"));
  EXPECT_EQ(mooncake_->Post("/unregister", R"({"instance_id":"pod-1","tenant_id":"t"})").status,
            404);
}

// --workers may name instances by texts.
TEST_F(HttpApiTest, AWorkerWhoseNameIsNoNumberIsUnregistered) {
  StartLeaf();
  EngineRegistration registration;
  registration.instance = "w1";
  registration.model = "m";
  registration.block_size = 4;
  registration.endpoint = engine_.endpoint();
  ASSERT_TRUE(leaf_->engines().Register(registration).ok());
  const auto unregister = [&](const std::string& instance) {
    const HttpAnswerText answer =
        client_->Post("/unregister", R"({"instance_id":)" + instance + R"(,"model_name":"m"})");
    return std::to_string(answer.status) + " " + answer.body;
  };
  EXPECT_EQ(unregister(R"("w2")"), R"(404 {"error":"instance w2 not found"})");
  EXPECT_EQ(unregister(R"("w1")"), R"(200 {"status":"ok"})");
  // Numbers are numbers, as Dynamo has them.
  for (const std::string text : {"7", ""})
    EXPECT_THAT(unregister("\"" + text + "\""),
                HasSubstr("instance_id: invalid type: string \"" + text + "\", expected u64"));
}

TEST_F(HttpApiTest, LongQuestionsComeLaterAtBothDoorsWhileMemoryIsCritical) {
  const auto used = std::make_shared<std::atomic<uint64_t>>(0);
  LeafOptions options;
  options.memory_bytes_max = 1000;
  options.memory_meter = [used] { return used->load(); };
  StartLeaf(std::move(options));
  used->store(960);
  ASSERT_TRUE(Await(
      [&] {
        return client_->Get("/status").body.find("\"level\":\"critical\"") != std::string::npos;
      },
      std::chrono::seconds(60)));
  const auto query = [](size_t tokens) {
    std::string body = R"({"model_name":"m","model":"m","token_ids":[1)";
    for (size_t i = 1; i < tokens; ++i) body += ",1";
    return body + "]}";
  };
  for (HttpTestClient* door : {client_.get(), mooncake_.get()}) {
    EXPECT_NE(door->Post("/query", query(100)).status, 503);
    const HttpAnswerText refused = door->Post("/query", query(65 << 10));
    EXPECT_EQ(refused.status, 503);
    EXPECT_THAT(refused.body, HasSubstr("large questions"));
    EXPECT_EQ(refused.headers.count("retry-after"), 1u) << refused.body;
  }
}

TEST_F(HttpApiTest, MooncakeRefusesWhatItCannotRead) {
  StartLeaf();
  EXPECT_EQ(mooncake_->Post("/query", "{").status, 400);
  EXPECT_THAT(mooncake_->Post("/register", "{}").body, HasSubstr("missing field `endpoint`"));
  EXPECT_EQ(mooncake_
                ->Post("/register",
                       R"({"endpoint":"nonsense","modelname":"m","instance_id":1,"block_size":4})")
                .status,
            400);
}

}  // namespace
}  // namespace kvatlas
