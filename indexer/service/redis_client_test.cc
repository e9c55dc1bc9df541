#include "indexer/service/redis_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/service/redis_test_server.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// What the client told of its state, and a way to wait for it.
class States {
 public:
  RedisClient::StateFn Fn() {
    return [this](const absl::Status& state) {
      MutexLock lock(&mutex_);
      states_.push_back(state);
      changed_.SignalAll();
    };
  }

  // The next state of this code.
  void Await(absl::StatusCode code) {
    MutexLock lock(&mutex_);
    while (true) {
      for (; seen_ < states_.size(); ++seen_) {
        if (states_[seen_].code() == code) return static_cast<void>(++seen_);
      }
      changed_.Wait(&mutex_);
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<absl::Status> states_ ABSL_GUARDED_BY(mutex_);
  size_t seen_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Replies in the order in which they came.
class Replies {
 public:
  RedisCallback Fn() {
    return [this](absl::StatusOr<RedisReply> reply) {
      MutexLock lock(&mutex_);
      replies_.push_back(std::move(reply));
      changed_.SignalAll();
    };
  }
  std::vector<absl::StatusOr<RedisReply>> Await(size_t count) {
    MutexLock lock(&mutex_);
    while (replies_.size() < count) changed_.Wait(&mutex_);
    return replies_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<absl::StatusOr<RedisReply>> replies_ ABSL_GUARDED_BY(mutex_);
};

RedisOptions OptionsOf(const RedisTestServer& server) { return *ParseRedisUrl(server.url()); }

TEST(RedisUrlTest, SaysWhereAndAsWhom) {
  const auto options = ParseRedisUrl("redis://bob:p%40ss@h1:7000,[::1]:7001,h3/5");
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_EQ(options->hosts.size(), 3u);
  EXPECT_EQ(options->hosts[0].ToString(), "h1:7000");
  EXPECT_EQ(options->hosts[1].ToString(), "[::1]:7001");
  EXPECT_EQ(options->hosts[2].ToString(), "h3:6379");
  EXPECT_EQ(options->user, "bob");
  EXPECT_EQ(options->password, "p@ss");
  EXPECT_EQ(options->database, 5);
  EXPECT_EQ(ParseRedisUrl("redis://:only@h")->password, "only");
  EXPECT_EQ(ParseRedisUrl("redis://:only@h")->user, "");
}

TEST(RedisUrlTest, NamesTheMasterThatSentinelsKnow) {
  const auto options = ParseRedisUrl("redis-sentinel://a,b:26380/2?master=main");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->hosts[0].ToString(), "a:26379");
  EXPECT_EQ(options->hosts[1].ToString(), "b:26380");
  EXPECT_EQ(options->sentinel_master, "main");
  EXPECT_EQ(options->database, 2);
}

TEST(RedisUrlTest, RefusesWhatItCannotDoAndKeepsThePasswordToItself) {
  for (const char* url :
       {"", "h:1", "http://h:1", "redis://", "redis://h:0", "redis://h:x", "redis://h/x",
        "redis://h/-1", "redis://h?master=m", "redis-sentinel://h",
        "redis-sentinel://h?master=", "redis://u:%zz@h", "redis://h:1,", "redis://h:99999"}) {
    EXPECT_EQ(ParseRedisUrl(url).status().code(), absl::StatusCode::kInvalidArgument) << url;
  }
  const absl::Status tls = ParseRedisUrl("rediss://u:secret@h:1").status();
  EXPECT_THAT(std::string(tls.message()), HasSubstr("TLS is not supported"));
  EXPECT_THAT(std::string(tls.message()), testing::Not(HasSubstr("secret")));
}

TEST(RedisSlotTest, IsOfTheTagInBraces) {
  EXPECT_EQ(RedisSlotOf("123456789"), 12739u);  // the specification's own example
  EXPECT_EQ(RedisSlotOf("a{user1}b"), RedisSlotOf("user1"));
  EXPECT_EQ(RedisSlotOf("{}x"), RedisSlotOf("{}x"));
  EXPECT_NE(RedisSlotOf("{}x"), RedisSlotOf("{}y"));
  EXPECT_EQ(RedisKeyOf({"xread", "COUNT", "1", "STREAMS", "k1", "k2", "0", "0"}), "k1");
  EXPECT_EQ(RedisKeyOf({"EVAL", "return 1", "1", "k"}), "k");
  EXPECT_EQ(RedisKeyOf({"EVAL", "return 1", "0", "k"}), "");
  EXPECT_EQ(RedisKeyOf({"PING"}), "");
  EXPECT_EQ(RedisKeyOf({"XINFO", "STREAM", "k"}), "k");
}

TEST(RedisClientTest, AnswersInOrder) {
  RedisTestServer server;
  RedisClient client(OptionsOf(server));
  Replies replies;
  constexpr int kCommands = 2000;
  for (int i = 0; i < kCommands; ++i) {
    ASSERT_TRUE(client.Send({"RPUSH", "list", std::to_string(i)}, replies.Fn()).ok());
  }
  const auto all = replies.Await(kCommands);
  for (int i = 0; i < kCommands; ++i) {
    ASSERT_TRUE(all[i].ok()) << all[i].status();
    EXPECT_EQ(all[i]->integer, i + 1);
  }
  EXPECT_EQ(client.Stats().outstanding, 0u);
}

TEST(RedisClientTest, CarriesBytesOfAnyKindAndNestedReplies) {
  RedisTestServer server;
  RedisClient client(OptionsOf(server));
  std::string bytes;
  for (int i = 0; i < (1 << 20); ++i) bytes.push_back(static_cast<char>(i * 7));
  ASSERT_TRUE(client.Call({"SET", "k", bytes}).ok());
  const auto back = client.Call({"GET", "k"});
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(back->is_string());
  EXPECT_TRUE(back->text == bytes);
  EXPECT_TRUE(client.Call({"GET", "none"})->is_nil());
  const auto nested = client.Call({"EVAL", "return {1,{'a',false},redis.status_reply('S')}", "0"});
  ASSERT_TRUE(nested.ok());
  ASSERT_EQ(nested->elements.size(), 3u);
  EXPECT_EQ(nested->elements[0].integer, 1);
  EXPECT_EQ(nested->elements[1].elements[0].text, "a");
  EXPECT_TRUE(nested->elements[1].elements[1].is_nil());
  EXPECT_EQ(nested->elements[2].kind, RedisReply::Kind::kStatus);
}

TEST(RedisClientTest, ErrorsBecomeStatuses) {
  RedisTestServer server({"maxmemory 1mb", "maxmemory-policy noeviction"});
  RedisClient client(OptionsOf(server));
  EXPECT_EQ(client.Call({"NOSUCH"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.Call({"EVALSHA", std::string(40, 'a'), "0"}).status().code(),
            absl::StatusCode::kNotFound);
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = client.Call({"SET", "k" + std::to_string(i), std::string(1 << 16, 'x')}).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("OOM"));
}

TEST(RedisClientTest, RefusesWhatWouldChangeTheConnectionForOthers) {
  RedisTestServer server;
  RedisClient client(OptionsOf(server));
  for (const char* name : {"SUBSCRIBE", "multi", "SELECT", "AUTH", "MONITOR"}) {
    EXPECT_EQ(client.Call({name, "x"}).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(client.Send({}, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RedisClientTest, SaysWhoItIsAndInWhichDatabase) {
  RedisTestServer server({"requirepass secret"});
  States states;
  const std::string host = "127.0.0.1:" + std::to_string(server.port());
  RedisClient right(*ParseRedisUrl("redis://:secret@" + host + "/3"), states.Fn());
  ASSERT_TRUE(right.Call({"SET", "k", "v"}).ok());
  RedisClient other(*ParseRedisUrl("redis://default:secret@" + host));
  EXPECT_TRUE(other.Call({"GET", "k"})->is_nil()) << "another database";

  RedisClient wrong(*ParseRedisUrl("redis://:guess@" + host));
  EXPECT_EQ(wrong.Call({"PING"}).status().code(), absl::StatusCode::kPermissionDenied);
  RedisClient none(*ParseRedisUrl("redis://" + host));
  EXPECT_EQ(none.Call({"PING"}).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(RedisClientTest, ComesBackAfterTheServer) {
  RedisTestServer server;
  States states;
  RedisClient client(OptionsOf(server), states.Fn());
  states.Await(absl::StatusCode::kOk);
  server.Kill();
  states.Await(absl::StatusCode::kUnavailable);
  EXPECT_EQ(client.Call({"PING"}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(client.connected());
  server.Start();
  states.Await(absl::StatusCode::kOk);
  EXPECT_TRUE(client.Call({"PING"}).ok());
}

TEST(RedisClientTest, TakesTheNextHostWhenOneIsAway) {
  RedisTestServer away;
  RedisTestServer there;
  away.Kill();
  RedisOptions options = OptionsOf(away);
  options.hosts.push_back(OptionsOf(there).hosts[0]);
  States states;
  RedisClient client(options, states.Fn());
  states.Await(absl::StatusCode::kOk);
  EXPECT_TRUE(client.Call({"PING"}).ok());
}

TEST(RedisClientTest, AnAnswerThatIsLateEndsTheConnection) {
  RedisTestServer server;
  RedisOptions options = OptionsOf(server);
  options.command_timeout = milliseconds(200);
  options.connect_timeout = milliseconds(200);
  States states;
  RedisClient client(options, states.Fn());
  states.Await(absl::StatusCode::kOk);
  server.Pause();
  EXPECT_EQ(client.Call({"PING"}).status().code(), absl::StatusCode::kDeadlineExceeded);
  states.Await(absl::StatusCode::kDeadlineExceeded);
  server.Resume();
  states.Await(absl::StatusCode::kOk);
}

TEST(RedisClientTest, WhatIsOutstandingHasABound) {
  RedisTestServer server;
  RedisOptions options = OptionsOf(server);
  options.outstanding_max = 10;
  States states;
  RedisClient client(options, states.Fn());
  states.Await(absl::StatusCode::kOk);
  server.Pause();
  Replies replies;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(client.Send({"PING"}, replies.Fn()).ok());
  EXPECT_EQ(client.Send({"PING"}, replies.Fn()).code(), absl::StatusCode::kResourceExhausted);
  server.Resume();
  for (const auto& reply : replies.Await(10)) EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(client.Call({"PING"}).ok());
}

TEST(RedisClientTest, ABlockingCommandHoldsUpNobody) {
  RedisTestServer server;
  RedisClient client(OptionsOf(server));
  Replies blocked;
  ASSERT_TRUE(
      client
          .SendBlocking({"XREAD", "BLOCK", "60000", "STREAMS", "s", "$"}, seconds(60), blocked.Fn())
          .ok());
  Replies second;
  ASSERT_TRUE(client.SendBlocking({"BLPOP", "list", "60"}, seconds(60), second.Fn()).ok());
  ASSERT_TRUE(client.Call({"PING"}).ok());
  // The reader may come to the server only now, so that it is told until it has heard.
  ASSERT_TRUE(client.Call({"RPUSH", "list", "x"}).ok());
  EXPECT_TRUE(second.Await(1)[0].ok());
  while (client.Stats().outstanding > 0) {
    ASSERT_TRUE(client.Call({"XADD", "s", "*", "k", "v"}).ok());
  }
  const auto read = blocked.Await(1)[0];
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->elements[0].elements[0].text, "s");
}

TEST(RedisClientTest, StopAnswersWhatIsOutstanding) {
  RedisTestServer server;
  RedisClient client(OptionsOf(server));
  Replies replies;
  ASSERT_TRUE(client.SendBlocking({"BLPOP", "l", "0"}, seconds(600), replies.Fn()).ok());
  server.Pause();
  ASSERT_TRUE(client.Send({"PING"}, replies.Fn()).ok());
  client.Stop();
  for (const auto& reply : replies.Await(2)) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kCancelled) << reply.status();
  }
  EXPECT_EQ(client.Send({"PING"}, {}).code(), absl::StatusCode::kCancelled);
}

// ---- More than one server ----

// The port of a node's bus is 10,000 above its own.
std::unique_ptr<RedisTestServer> ClusterNode() {
  constexpr uint16_t kPortMax = 55000;
  while (true) {
    auto node = std::make_unique<RedisTestServer>(std::vector<std::string>{"cluster-enabled yes"});
    if (node->port() < kPortMax) return node;
  }
}

TEST(RedisClusterTest, CommandsFollowTheirKeys) {
  const auto a = ClusterNode();
  const auto b = ClusterNode();
  RedisClient to_a(OptionsOf(*a));
  RedisClient to_b(OptionsOf(*b));
  ASSERT_TRUE(to_a.Call({"CLUSTER", "ADDSLOTSRANGE", "0", "8191"}).ok());
  ASSERT_TRUE(to_b.Call({"CLUSTER", "ADDSLOTSRANGE", "8192", "16383"}).ok());
  ASSERT_TRUE(to_a.Call({"CLUSTER", "MEET", "127.0.0.1", std::to_string(b->port())}).ok());
  for (RedisClient* client : {&to_a, &to_b}) {
    while (client->Call({"CLUSTER", "INFO"})->text.find("cluster_state:ok") == std::string::npos) {
    }
  }
  RedisClient client(OptionsOf(*a));
  for (int i = 0; i < 200; ++i) {
    const std::string key = "key" + std::to_string(i);
    const auto set = client.Call({"SET", key, std::to_string(i)});
    ASSERT_TRUE(set.ok()) << set.status();
  }
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(client.Call({"GET", "key" + std::to_string(i)})->text, std::to_string(i));
  }
  EXPECT_GT(client.Stats().redirections, 0u);
  EXPECT_LE(client.Stats().redirections, 200u) << "a slot that moved is remembered";
  EXPECT_GT(to_b.Call({"DBSIZE"})->integer, 0);

  // A blocking command goes to the node that has its key, too.
  for (const char* key : {"left", "right", "up", "down"}) {
    Replies replies;
    ASSERT_TRUE(client.Call({"RPUSH", key, "x"}).ok());
    ASSERT_TRUE(client.SendBlocking({"BLPOP", key, "60"}, seconds(60), replies.Fn()).ok());
    EXPECT_TRUE(replies.Await(1)[0].ok()) << replies.Await(1)[0].status();
  }
}

TEST(RedisSentinelTest, TheMasterIsFoundAndFollowed) {
  RedisTestServer first;
  RedisTestServer second;
  RedisTestServer sentinel(
      {"sentinel monitor main 127.0.0.1 " + std::to_string(first.port()) + " 1"});
  States states;
  RedisClient client(*ParseRedisUrl("redis-sentinel://127.0.0.1:" +
                                    std::to_string(sentinel.port()) + "?master=main"),
                     states.Fn());
  ASSERT_TRUE(client.Call({"SET", "who", "first"}).ok());
  EXPECT_EQ(RedisClient(OptionsOf(first)).Call({"GET", "who"})->text, "first");

  // Another one is the master now.
  RedisClient to_sentinel(OptionsOf(sentinel));
  ASSERT_TRUE(to_sentinel.Call({"SENTINEL", "REMOVE", "main"}).ok());
  ASSERT_TRUE(
      to_sentinel
          .Call({"SENTINEL", "MONITOR", "main", "127.0.0.1", std::to_string(second.port()), "1"})
          .ok());
  first.Kill();
  states.Await(absl::StatusCode::kUnavailable);
  states.Await(absl::StatusCode::kOk);
  ASSERT_TRUE(client.Call({"SET", "who", "second"}).ok());
  EXPECT_EQ(RedisClient(OptionsOf(second)).Call({"GET", "who"})->text, "second");
}

TEST(RedisSentinelTest, ANameThatNobodyKnowsIsSaid) {
  RedisTestServer server;
  RedisTestServer sentinel(
      {"sentinel monitor main 127.0.0.1 " + std::to_string(server.port()) + " 1"});
  RedisClient client(*ParseRedisUrl(
      "redis-sentinel://127.0.0.1:" + std::to_string(sentinel.port()) + "?master=other"));
  const absl::Status status = client.Call({"PING"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvatlas
