#include "indexer/net/redis_client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// The states that the client reported, and a way to wait for them.
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

// However slow client and server are, no time runs out.
RedisOptions Patient(const std::string& url) {
  RedisOptions options = *ParseRedisUrl(url);
  options.connect_timeout = options.command_timeout = std::chrono::minutes(1);
  return options;
}

// Listens as a Redis, one connection after the other; `answer` makes the bytes that follow the
// bytes that came. None: it closes.
class ScriptedServer {
 public:
  using Answer = std::function<std::string(const std::string& came)>;

  // With `drips`, a byte at a time.
  explicit ScriptedServer(Answer answer, bool drips = false)
      : answer_(std::move(answer)), drips_(drips) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~ScriptedServer() {
    stopping_ = true;
    thread_.join();
    close(listener_);
  }

  RedisOptions options() const { return Patient("redis://127.0.0.1:" + std::to_string(port_)); }

 private:
  bool Readable(int fd) const {
    pollfd ready = {fd, POLLIN, 0};
    while (!stopping_) {
      if (poll(&ready, 1, 20) > 0) return true;
    }
    return false;
  }

  void Run() {
    while (Readable(listener_)) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      while (Readable(fd)) {
        std::string came(1 << 16, '\0');
        const ssize_t got = read(fd, came.data(), came.size());
        if (got <= 0) break;
        came.resize(static_cast<size_t>(got));
        const std::string says = answer_(came);
        if (says.empty() || !Send(fd, says)) break;
      }
      close(fd);
    }
  }

  // Until all of it is sent, or more comes.
  bool Send(int fd, const std::string& says) const {
    const size_t step = drips_ ? 1 : says.size();
    for (size_t i = 0; i < says.size(); i += step) {
      pollfd ready = {fd, POLLIN, 0};
      if (i > 0 && poll(&ready, 1, 2) != 0) return true;
      if (stopping_ || send(fd, says.data() + i, step, MSG_NOSIGNAL) < 0) return false;
    }
    return true;
  }

  const Answer answer_;
  const bool drips_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// Introduces itself as a Redis, and says `bytes` to all commands.
ScriptedServer::Answer Says(std::string bytes) {
  return [bytes = std::move(bytes)](const std::string& came) {
    return came.find("PING") != std::string::npos ? "+PONG\r\n" : bytes;
  };
}

RedisOptions OptionsOf(const RedisTestServer& server) { return Patient(server.url()); }

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
  for (const auto& [query, why] :
       {std::pair("", "?ca=FILE is missing"), std::pair("?ca=/no/such/file", "/no/such/file"),
        std::pair("?ca=/dev/null&cart=/x", "expected ?NAME=VALUE")}) {
    const absl::Status tls = ParseRedisUrl(std::string("rediss://u:secret@h:1") + query).status();
    EXPECT_EQ(tls.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tls.message()), HasSubstr(why));
    EXPECT_THAT(std::string(tls.message()), testing::Not(HasSubstr("secret")));
  }
  EXPECT_THAT(std::string(ParseRedisUrl("redis://h?ca=/x").status().message()),
              HasSubstr("rediss://"));
  EXPECT_THAT(std::string(ParseRedisUrl("redis://h?log_key=/no/such/key").status().message()),
              HasSubstr("/no/such/key"));
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
  RedisClient right(Patient("redis://:secret@" + host + "/3"), states.Fn());
  ASSERT_TRUE(right.Call({"SET", "k", "v"}).ok());
  RedisClient other(Patient("redis://default:secret@" + host));
  EXPECT_TRUE(other.Call({"GET", "k"})->is_nil()) << "another database";

  RedisClient wrong(Patient("redis://:guess@" + host));
  EXPECT_EQ(wrong.Call({"PING"}).status().code(), absl::StatusCode::kPermissionDenied);
  RedisClient none(Patient("redis://" + host));
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

TEST(RedisClientTest, WhatTheSocketDoesNotTakeIsSentLater) {
  RedisTestServer server;
  States states;
  RedisClient client(OptionsOf(server), states.Fn());
  states.Await(absl::StatusCode::kOk);
  server.Pause();
  Replies replies;
  constexpr int kCommands = 200;
  for (int i = 0; i < kCommands; ++i) {
    const std::string value(size_t{200} << 10, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(client.Send({"APPEND", "k", value}, replies.Fn()).ok());
  }
  server.Resume();
  const auto all = replies.Await(kCommands);
  for (int i = 0; i < kCommands; ++i) {
    ASSERT_TRUE(all[i].ok()) << all[i].status();
    EXPECT_EQ(all[i]->integer, int64_t{i + 1} * (200 << 10));
  }
  for (int i = 0; i < kCommands; i += 37) {
    const std::string at = std::to_string(i * (200 << 10));
    EXPECT_EQ(client.Call({"GETRANGE", "k", at, at})->text, std::string(1, 'a' + i % 26));
  }
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
  // The reader may reach the server only now, so the message is repeated until it has come.
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

// ---- A server that is not trusted ----

TEST(RedisGarbageTest, WhatIsNotRedisEndsTheConnectionAndSaysWhy) {
  const std::pair<const char*, const char*> kAnswers[] = {
      {"$-7\r\n", "length out of range"},
      {"HTTP/1.1 400 Bad Request\r\n\r\n", "not RESP2"},
      {"%1\r\n", "RESP3"},
      // Each of these ends the process where hiredis is compiled with its assertions, and otherwise
      // passes without an error.
      {"+OK\r\n+OK\r\n", "nothing had asked for"},
      {"+OK\r\n-ERR no\r\n", "nothing had asked for"},
      {"+OK\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", "nothing had asked for"},
      {">0\r\n", "RESP3"},
      {">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", "RESP3"},
  };
  for (const auto& [bytes, why] : kAnswers) {
    SCOPED_TRACE(bytes);
    ScriptedServer server(Says(bytes));
    States states;
    std::vector<std::string> whys;
    RedisClient client(server.options(), [&, fn = states.Fn()](const absl::Status& state) {
      if (!state.ok()) whys.push_back(std::string(state.message()));
      fn(state);
    });
    states.Await(absl::StatusCode::kOk);
    const absl::StatusOr<RedisReply> reply = client.Call({"GET", "k"});
    EXPECT_TRUE(reply.ok() || reply.status().code() == absl::StatusCode::kUnavailable);
    // It comes back.
    states.Await(absl::StatusCode::kUnavailable);
    states.Await(absl::StatusCode::kOk);
    client.Stop();
    EXPECT_THAT(whys.front(), HasSubstr(why));
  }
}

TEST(RedisGarbageTest, AServerThatDoesNotIntroduceItselfAsRedisIsNone) {
  // An echo: what is sent is RESP2, too.
  for (const ScriptedServer::Answer& answer :
       {ScriptedServer::Answer([](const std::string& came) { return came; }),
        ScriptedServer::Answer([](const std::string&) { return ":1\r\n"; })}) {
    ScriptedServer server(answer);
    States states;
    RedisClient client(server.options(), states.Fn());
    states.Await(absl::StatusCode::kUnavailable);
    states.Await(absl::StatusCode::kUnavailable);
    EXPECT_EQ(client.Stats().connects, 0u);
  }
}

TEST(RedisGarbageTest, AReplyThatIsTooLargeIsSaidToWhatAskedForItAlone) {
  RedisTestServer server;
  RedisOptions options = OptionsOf(server);
  options.reply_bytes_max = 1 << 20;
  States states;
  RedisClient client(options, states.Fn());
  states.Await(absl::StatusCode::kOk);
  ASSERT_TRUE(client.Call({"SET", "large", std::string(1 << 20, 'x')}).ok());
  Replies replies;
  ASSERT_TRUE(client.Send({"GET", "large"}, replies.Fn()).ok());
  ASSERT_TRUE(client.Send({"PING"}, replies.Fn()).ok());
  const auto both = replies.Await(2);
  EXPECT_EQ(both[0].status().code(), absl::StatusCode::kOutOfRange) << both[0].status();
  EXPECT_TRUE(both[1].ok() || both[1].status().code() == absl::StatusCode::kUnavailable);
  states.Await(absl::StatusCode::kOk);
  ASSERT_TRUE(
      client.SendBlocking({"GETRANGE", "large", "0", "-1"}, seconds(60), replies.Fn()).ok());
  EXPECT_EQ(replies.Await(3)[2].status().code(), absl::StatusCode::kOutOfRange);
}

TEST(RedisGarbageTest, AReplyThatDripsIsLate) {
  for (const bool drips_on : {false, true}) {
    ScriptedServer server(Says("$100000\r\nx" + std::string(drips_on ? 99999 : 0, 'x')), drips_on);
    RedisOptions options = server.options();
    options.command_timeout = milliseconds(100);
    States states;
    RedisClient client(options, states.Fn());
    states.Await(absl::StatusCode::kOk);
    EXPECT_EQ(client.Call({"GET", "k"}).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
}

// By default SIGPIPE ends a process that writes to what is closed.
TEST(RedisGarbageTest, AServerThatHangsUpWhileWeWriteEndsNoProcess) {
  const auto ignored = signal(SIGPIPE, SIG_DFL);
  ScriptedServer server(Says(""));
  States states;
  RedisClient client(server.options(), states.Fn());
  for (int i = 0; i < 20; ++i) {
    states.Await(absl::StatusCode::kOk);
    Replies replies;
    for (int k = 0; k < 8; ++k) {
      ASSERT_TRUE(client.Send({"SET", "k", std::string(1 << 20, 'x')}, replies.Fn()).ok());
    }
    for (const auto& reply : replies.Await(8)) {
      EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable) << reply.status();
    }
  }
  client.Stop();
  signal(SIGPIPE, ignored);
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
  RedisClient client(
      Patient("redis-sentinel://127.0.0.1:" + std::to_string(sentinel.port()) + "?master=main"),
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
  RedisClient client(
      Patient("redis-sentinel://127.0.0.1:" + std::to_string(sentinel.port()) + "?master=other"));
  const absl::Status status = client.Call({"PING"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvatlas
