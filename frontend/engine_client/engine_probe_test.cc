#include "frontend/engine_client/engine_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

using ::testing::ElementsAre;

TEST(EngineProbeTest, AdaptersComeAfterTheEnginesOwnModel) {
  const auto models = ReadModels(
      R"({"object":"list","data":[{"id":"pirate","parent":"llama"},{"id":"llama","root":"meta/llama","parent":null}]})");
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->size(), 2u);
  EXPECT_EQ((*models)[0].id, "llama");
  EXPECT_EQ((*models)[0].root, "meta/llama");
  EXPECT_EQ((*models)[1].parent, "llama");
}

TEST(EngineProbeTest, AListOfModelsSaysWhatTheEngineIs) {
  const auto kind = [](const std::string& owner) {
    return KindOf(*ReadModels(R"({"data":[{"id":"m","owned_by":")" + owner + R"("}]})"));
  };
  EXPECT_EQ(kind("vllm"), kVllm);
  EXPECT_EQ(kind("sglang"), kSglang);
  EXPECT_EQ(kind("another"), "");
}

TEST(EngineProbeTest, SglangSaysItsParsers) {
  EngineFacts facts;
  ReadServerInfo(R"({"tp_size":1,"reasoning_parser":"qwen3","tool_call_parser":null})", &facts);
  EXPECT_EQ(facts.reasoning_parser, "qwen3");
  EXPECT_EQ(facts.tool_call_parser, "");
}

TEST(EngineProbeTest, WhatIsNoListOfModelsIsRefused) {
  for (const char* body :
       {"", "[]", "{}", R"({"data":{}})", R"({"data":[]})", R"({"data":[{"id":3}]})"})
    EXPECT_FALSE(ReadModels(body).ok()) << body;
}

TEST(EngineProbeTest, AModelWithAVeryLongNameIsNotSeen) {
  const auto models = ReadModels(R"({"data":[{"id":")" + std::string(kModelIdBytesMax + 1, 'm') +
                                 R"("},{"id":"llama"}]})");
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->size(), 1u);
  EXPECT_EQ((*models)[0].id, "llama");
}

TEST(EngineProbeTest, LoadsOfVllmComePerRank) {
  EngineFacts facts;
  ReadMetrics(
      "# HELP x y\n"
      "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n"
      "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 5.0\n"
      "vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 2.0\n"
      "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.25\n"
      "vllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n"
      "process_cpu_seconds_total 4\n",
      &facts);
  EXPECT_EQ(facts.kind, kVllm);
  EXPECT_THAT(facts.ranks, ElementsAre(0, 1));
  EXPECT_EQ(facts.block_size, 32u);
  EXPECT_EQ(facts.loads[0].running_requests, 3u);
  EXPECT_EQ(facts.loads[1].running_requests, 5u);
  EXPECT_EQ(facts.loads[1].waiting_requests, 2u);
  EXPECT_EQ(facts.loads[1].used_blocks, 250u);
  EXPECT_EQ(facts.loads[1].free_blocks, 750u);
}

// vLLM's hybrid and external load balancing: a server has some of a deployment's ranks, by the
// deployment's numbers.
TEST(EngineProbeTest, RanksOfAPartOfADeploymentAreThoseThatAreThere) {
  EngineFacts hybrid, external, nameless;
  ReadMetrics(
      "vllm:num_requests_running{engine=\"2\"} 1\nvllm:num_requests_running{engine=\"3\"} 4\n",
      &hybrid);
  EXPECT_THAT(hybrid.ranks, ElementsAre(2, 3));
  EXPECT_EQ(hybrid.loads.size(), 2u);
  ReadMetrics("vllm:of_the_server 1\nvllm:num_requests_running{engine=\"3\"} 4\n", &external);
  EXPECT_THAT(external.ranks, ElementsAre(3));
  EXPECT_EQ(external.loads.size(), 1u) << "a line without a rank makes none";
  ReadMetrics("vllm:num_requests_running 4\n", &nameless);
  EXPECT_THAT(nameless.ranks, ElementsAre(0));
  EXPECT_EQ(nameless.loads[0].running_requests, 4u);
}

// Its ranks begin to speak one after the other.
TEST(EngineProbeTest, RanksOfSglangCountFromZero) {
  EngineFacts facts;
  ReadMetrics("sglang:num_running_reqs{dp_rank=\"1\"} 7\n", &facts);
  EXPECT_THAT(facts.ranks, ElementsAre(0, 1));
}

TEST(EngineProbeTest, RanksOutOfReasonAreNotSeen) {
  EngineFacts metrics, info;
  ReadMetrics("vllm:num_requests_running{engine=\"3999999999\"} 1\n", &metrics);
  EXPECT_TRUE(metrics.ranks.empty());
  ReadServerInfo(R"({"dp_size":3999999999})", &info);
  EXPECT_EQ(info.ranks.size(), kEngineRanksMax);
}

// As SGLang 0.5.23 answers.
TEST(EngineProbeTest, SglangSaysWhereItPublishesEvents) {
  EngineFacts sglang;
  ReadServerInfo(
      R"({"page_size":1,"dp_size":2,"kv_event_sources":[{"dp_rank":0,"endpoint":"tcp://127.0.0.1:6000","topic":"t","block_size":1},)"
      R"({"dp_rank":1,"endpoint":"tcp://127.0.0.1:6001","topic":"","block_size":1,"replay_endpoint":"tcp://127.0.0.1:7001"},7]})",
      &sglang);
  ASSERT_TRUE(sglang.kv_sources.has_value());
  ASSERT_EQ(sglang.kv_sources->size(), 2u);
  EXPECT_EQ(sglang.kv_sources->at(0), (KvEventSource{"tcp://127.0.0.1:6000", "", "t"}));
  EXPECT_EQ(sglang.kv_sources->at(1),
            (KvEventSource{"tcp://127.0.0.1:6001", "tcp://127.0.0.1:7001"}));
}

TEST(EngineProbeTest, EnginesSayTheirStart) {
  EngineFacts vllm, sglang;
  ReadMetrics("process_start_time_seconds 1.75e+09\nvllm:num_requests_running 1\n", &vllm);
  EXPECT_EQ(vllm.start, "1.75e+09");
  ReadServerInfo(R"({"dp_size":1,"startup_time":12.25})", &sglang);
  EXPECT_EQ(sglang.start, "12.25");
}

TEST(EngineProbeTest, SglangSaysWhetherItsModelIsAHybrid) {
  const auto is_hybrid = [](const std::string& more) {
    EngineFacts facts;
    ReadServerInfo(R"({"version":"0.5.23","dp_size":1,"page_size":1)" + more + "}", &facts);
    return facts.hybrid;
  };
  EXPECT_FALSE(is_hybrid(""));
  EXPECT_FALSE(is_hybrid(R"(,"uses_mamba_radix_cache":false)"));
  EXPECT_TRUE(is_hybrid(R"(,"uses_mamba_radix_cache":true)"));
  EXPECT_FALSE(is_hybrid(R"(,"internal_states":[{"memory_usage":{"token_capacity_swa":null}}])"));
  EXPECT_TRUE(is_hybrid(R"(,"internal_states":[{"memory_usage":{"token_capacity_swa":4096}}])"));
  for (const char* odd : {R"(,"uses_mamba_radix_cache":1)", R"(,"internal_states":7)",
                          R"(,"internal_states":[7,{"memory_usage":[]}])"})
    EXPECT_FALSE(is_hybrid(odd)) << odd;
}

TEST(EngineProbeTest, SglangSaysRanksAndPageSizeInItsServerInfo) {
  EngineFacts facts;
  ReadServerInfo(R"({"version":"0.5.23","dp_size":4,"tp_size":2,"page_size":64})", &facts);
  EXPECT_EQ(facts.Title(), "SGLang 0.5.23");
  EXPECT_THAT(facts.ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(facts.block_size, 64u);
  ReadMetrics("sglang:num_running_reqs{dp_rank=\"3\"} 7\nsglang:num_queue_reqs{dp_rank=\"3\"} 1\n",
              &facts);
  EXPECT_EQ(facts.loads[3].running_requests, 7u);
  EXPECT_EQ(facts.loads[3].waiting_requests, 1u);
}

TEST(EngineProbeTest, EnginesSayHowTheyWereStarted) {
  EngineFacts vllm;
  ReadMetrics(
      "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\"} 1.0\n"
      "vllm:prompt_tokens_total{engine=\"0\"} 100\nvllm:prompt_tokens_total{engine=\"1\"} 20\n",
      &vllm);
  EXPECT_EQ(vllm.prefix_caching, false);
  EXPECT_EQ(vllm.prompt_tokens, 120u);
  EXPECT_FALSE(vllm.kv_events.has_value()) << "vLLM does not say";

  EngineFacts off, on, silent;
  ReadServerInfo(R"({"page_size":1,"disable_radix_cache":true,"kv_events_config":null})", &off);
  EXPECT_EQ(off.prefix_caching, false);
  EXPECT_EQ(off.kv_events, false);
  ReadServerInfo(
      R"({"page_size":1,"kv_events_config":"{\"publisher\":\"zmq\",\"replay_endpoint\":\"tcp://*:1\"}"})",
      &on);
  EXPECT_EQ(on.kv_events, true);
  EXPECT_EQ(on.kv_replay, true);
  ReadServerInfo(R"({"page_size":1})", &silent);
  EXPECT_FALSE(silent.kv_events.has_value());
}

TEST(EngineProbeTest, AnOddLineOfMetricsIsPassedOver) {
  EngineFacts facts;
  ReadMetrics(
      "vllm:\nvllm:num_requests_running\nvllm:x{ 3\n{}\n\nvllm:num_requests_running{engine=\"",
      &facts);
  EXPECT_LE(facts.loads.size(), 1u);
}

}  // namespace
}  // namespace kvatlas
