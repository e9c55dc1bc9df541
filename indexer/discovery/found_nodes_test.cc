#include "indexer/discovery/found_nodes.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/discovery/announcer.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

ServiceRecord Node(const std::string& name, const std::string& grpc,
                   const std::string& shard = "") {
  ServiceRecord record;
  record.kind = ServiceKind::kHierarchy;
  record.name = name;
  record.grpc = grpc;
  if (!shard.empty()) record.labels = {{kShardLabel, shard}};
  return record;
}

std::unique_ptr<Announcer> Announce(const RedisTestServer& server, ServiceRecord record) {
  AnnouncerOptions options;
  options.redis = server.url();
  auto announcer = Announcer::Start(options, std::move(record));
  EXPECT_TRUE(announcer.ok()) << announcer.status();
  return *std::move(announcer);
}

std::string WaitForChange(FoundNodes* nodes) {
  std::optional<ShardMap> map;
  while (!map.has_value()) map = nodes->Changed();
  return map->ToString();
}

TEST(FoundNodesTest, GivenOnesAreReadAsMaps) {
  EXPECT_EQ(FoundNodes::Read("--parents", "a:1,b:2")->map().ToString(), "a:1,b:2");
  const auto shards = FoundNodes::Read("--parents", "x=a:1|b:2,y=c:3");
  EXPECT_EQ(shards->map().shards().size(), 2u);
  EXPECT_FALSE(shards->finds());
  EXPECT_TRUE(FoundNodes::Read("--parents", "")->map().empty());
}

TEST(FoundNodesTest, NamesTheFlagAtFault) {
  for (const char* value : {"nowhere", "dns:nowhere", "h:1,redis:/x", "a:1,dns:b"}) {
    const auto nodes = FoundNodes::Read("--parents", value);
    ASSERT_FALSE(nodes.ok()) << value;
    EXPECT_THAT(std::string(nodes.status().message()), HasSubstr("--parents"));
  }
}

TEST(FoundNodesTest, ALevelIsReplicasOrShardsNotBoth) {
  EXPECT_EQ(LevelOf({Node("n", "a:1"), Node("m", "b:1")})->ToString(), "a:1,b:1");
  const auto shards =
      LevelOf({Node("n", "a:1", "x"), Node("m", "b:1", "y"), Node("o", "c:1", "x")});
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ(*shards, *ShardMap::Parse("x=a:1|c:1,y=b:1"));
  EXPECT_FALSE(LevelOf({Node("n", "a:1", "x"), Node("m", "b:1")}).ok());
}

TEST(FoundNodesTest, NodesByDnsNameAreReplicas) {
  DirectoryOptions options;
  options.first_answer = std::chrono::minutes(1);
  options.resolve = [](const std::string&) {
    return std::vector<std::string>{"10.0.0.1", "10.0.0.2"};
  };
  auto nodes = FoundNodes::Read("--parents", "dns:hierarchy:7420,h:1", options);
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_TRUE(nodes->finds());
  EXPECT_EQ(nodes->map().ToString(), "10.0.0.1:7420,10.0.0.2:7420,h:1");
  EXPECT_FALSE(nodes->Changed().has_value());
}

TEST(FoundNodesTest, NodesThatAnnounceThemselvesComeAndGoButNeverAllOfThem) {
  RedisTestServer server;
  DirectoryOptions options;
  options.poll_every = std::chrono::milliseconds(10);
  auto nodes = FoundNodes::Read("--parents", server.url(), options);
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_TRUE(nodes->finds());
  EXPECT_TRUE(nodes->map().empty());
  auto a = Announce(server, Node("a", "a:1"));
  EXPECT_EQ(WaitForChange(&*nodes), "a:1");
  auto b = Announce(server, Node("b", "b:1"));
  EXPECT_EQ(WaitForChange(&*nodes), "a:1,b:1");
  a->Stop();
  EXPECT_EQ(WaitForChange(&*nodes), "b:1");
  b->Stop();
  auto c = Announce(server, Node("c", "c:1"));
  EXPECT_EQ(WaitForChange(&*nodes), "c:1");
}

}  // namespace
}  // namespace kvatlas
