#include "indexer/kv_events/kv_event_sources.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

// As vLLM 0.33 answers.
TEST(KvEventSourcesTest, AnEngineSaysWhereEachRankPublishes) {
  const auto sources = ReadKvEventSources(
      R"({"2":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:6002","replay_endpoint":"tcp://*:7002",)"
      R"("buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv"},)"
      R"("3":{"endpoint":"tcp://*:6003","replay_endpoint":null,"topic":""},"x":{"endpoint":"tcp://*:1"},"4":7})");
  ASSERT_TRUE(sources.has_value());
  EXPECT_EQ(*sources,
            (KvEventSources{{2, {"tcp://*:6002", "tcp://*:7002", "kv"}}, {3, {"tcp://*:6003"}}}));
  EXPECT_EQ(ReadKvEventSources("{}"), KvEventSources());
  EXPECT_FALSE(ReadKvEventSources("[]").has_value());
  EXPECT_FALSE(ReadKvEventSources("not found").has_value());
}

TEST(KvEventSourcesTest, OnlyThePortOfAnEndpointCounts) {
  EXPECT_EQ(EndpointAt("10.0.0.7", "tcp://*:6000"), "tcp://10.0.0.7:6000");
  EXPECT_EQ(EndpointAt("fd00::1", "tcp://127.0.0.1:6000"), "tcp://[fd00::1]:6000");
  for (const char* none : {"ipc:///tmp/x", "inproc://x", "tcp://*:0", "tcp://*:x", "tcp://", ""})
    EXPECT_EQ(EndpointAt("10.0.0.7", none), "") << none;
}

}  // namespace
}  // namespace kvatlas
