#include "tools/testing/cluster/policy_replay.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "frontend/router/policy/policy.h"

namespace kvatlas {
namespace {

// Sixteen users take turns; each prompt is the user's last one and 512 tokens more.
std::vector<TraceRequest> Conversations(size_t turns) {
  constexpr uint64_t kUsers = 16;
  std::vector<TraceRequest> trace;
  for (uint64_t turn = 0; turn < turns; ++turn) {
    for (uint64_t user = 0; user < kUsers; ++user) {
      TraceRequest request;
      request.timestamp_ms = static_cast<double>(turn * kUsers + user) * 100;
      for (uint64_t id = 0; id <= turn; ++id) request.hash_ids.push_back(1000 * (user + 1) + id);
      request.input_tokens = static_cast<uint32_t>(request.hash_ids.size()) * kTokensPerHashId;
      request.output_tokens = 10;
      trace.push_back(request);
    }
  }
  return trace;
}

PolicyReplayOptions Options(const std::string& policy, double load) {
  PolicyReplayOptions options;
  options.fleet.cells = 2;
  options.fleet.workers = 4;
  options.fleet.engine.capacity_blocks = 4096;
  options.fleet.engine.block_size = 64;
  options.fleet.policy = policy;
  options.load = load;
  return options;
}

TEST(PolicyReplayTest, EveryRequestIsServedUnderEveryPolicy) {
  const std::vector<TraceRequest> trace = Conversations(8);
  for (const std::string& policy : PolicyNames()) {
    const PolicyRun run = ReplayPolicy(trace, Options(policy, 0.6));
    EXPECT_EQ(run.policy, policy);
    EXPECT_EQ(run.requests, trace.size());
    EXPECT_EQ(run.too_long, 0u);
    EXPECT_EQ(run.prompt_blocks, 16u * 8 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8));
    EXPECT_GT(run.ttft_mean_ms, 0) << policy;
    EXPECT_LE(run.ttft_p50_ms, run.ttft_p90_ms) << policy;
    EXPECT_LE(run.ttft_p90_ms, run.ttft_p99_ms) << policy;
  }
}

TEST(PolicyReplayTest, TheSameOptionsGiveTheSameRun) {
  const std::vector<TraceRequest> trace = Conversations(6);
  const PolicyRun first = ReplayPolicy(trace, Options("kvatlas", 0.95));
  const PolicyRun second = ReplayPolicy(trace, Options("kvatlas", 0.95));
  EXPECT_EQ(first.cached_blocks, second.cached_blocks);
  EXPECT_EQ(first.ttft_mean_ms, second.ttft_mean_ms);
  EXPECT_EQ(first.ttft_p99_ms, second.ttft_p99_ms);
}

TEST(PolicyReplayTest, ConversationsComeBackToTheirWorkerUnlessTurnsDecide) {
  const std::vector<TraceRequest> trace = Conversations(8);
  const PolicyRun ours = ReplayPolicy(trace, Options("kvatlas", 0.6));
  // All but the newest 8 blocks of each prompt.
  EXPECT_EQ(ours.cached_blocks, 16u * 8 * (1 + 2 + 3 + 4 + 5 + 6 + 7));
  EXPECT_LT(ReplayPolicy(trace, Options("least_load", 0.6)).cached_blocks, ours.cached_blocks);
}

TEST(PolicyReplayTest, SessionsStayWhereTheyBeganUnderThePolicyOfSessions) {
  std::vector<TraceRequest> trace = Conversations(8);
  const PolicyRun without = ReplayPolicy(trace, Options("session", 0.6));
  for (size_t i = 0; i < trace.size(); ++i) trace[i].session_id = "user" + std::to_string(i % 16);
  const PolicyRun with = ReplayPolicy(trace, Options("session", 0.6));
  EXPECT_EQ(with.cached_blocks, 16u * 8 * (1 + 2 + 3 + 4 + 5 + 6 + 7));
  EXPECT_LT(without.cached_blocks, with.cached_blocks);
}

// All prompts begin alike, and requests come one at a time, so that every worker is always idle:
// the deepest overlap alone would send all of them to one worker, whose pool is an eighth of the
// fleet's.
TEST(PolicyReplayTest, AnIdleFleetUsesAllItsPools) {
  std::vector<TraceRequest> trace = Conversations(24);
  for (size_t i = 0; i < trace.size(); ++i) {
    trace[i].timestamp_ms = static_cast<double>(i) * 60'000;
    trace[i].hash_ids.insert(trace[i].hash_ids.begin(), 1);
    trace[i].input_tokens += kTokensPerHashId;
  }
  PolicyReplayOptions options = Options("kvatlas", 0);
  options.fleet.engine.capacity_blocks = 768;
  const uint64_t cached = ReplayPolicy(trace, options).cached_blocks;
  options.fleet.weights.crowding = 0;
  const uint64_t alone = ReplayPolicy(trace, options).cached_blocks;
  EXPECT_GT(cached, 2 * alone);
}

TEST(PolicyReplayTest, TurnsGoRound) {
  Fleet fleet(Options("round_robin", 0).fleet);
  std::vector<SequenceHash> prompt = {SequenceHash{1}};
  std::set<uint32_t> seen;
  std::vector<uint32_t> order;
  for (int i = 0; i < 16; ++i) {
    const uint32_t worker = fleet.Best(prompt).worker;
    fleet.Sent(worker, 0);
    seen.insert(worker);
    order.push_back(worker);
  }
  EXPECT_EQ(seen.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(order[i], order[i + 8]);
}

TEST(PolicyReplayTest, ArrivalsAreStretchedToTheLoad) {
  std::vector<TraceRequest> trace(2);
  trace[0].input_tokens = trace[1].input_tokens = 4000;
  trace[1].timestamp_ms = 100;
  // 8,000 tokens of 8,000 a second on two engines are half a second of work: at load 0.5 they take
  // one.
  EXPECT_DOUBLE_EQ(StretchForLoad(trace, 2, 8000, 0.5), 10);
  EXPECT_DOUBLE_EQ(StretchForLoad(trace, 2, 8000, 0), 1);
  EXPECT_DOUBLE_EQ(StretchForLoad({}, 2, 8000, 0.5), 1);
}

}  // namespace
}  // namespace kvatlas
