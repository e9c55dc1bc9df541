// Does the simulated Redis answer as the real one? The same random commands to both; a failure
// prints its seed.

#include "tools/testing/simulated_redis/simulated_redis.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_reply.h"
#include "indexer/net/redis_url.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/redis/redis_scripts.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

// Two streams of one shard, small numbers and few epochs, so that everything meets everything.
class Commands {
 public:
  explicit Commands(uint64_t seed) : random_(seed) {}

  RedisArgs Next() {
    const RedisStreamKeys& keys = keys_[Below(2)];
    const std::string& key = Below(2) == 0 ? keys.log : keys.snap;
    switch (Below(18)) {
      case 0:
        return {"SETNX", "shards", Number()};
      case 1:
        return {"GET", "shards"};
      case 2:
        return {"HGET", keys.streams, Name(keys)};
      case 3:
        return {"HGETALL", keys.streams};
      case 4:
        return {"PEXPIRE", key, "3600000"};
      case 5:
        return {"XTRIM", key, "MINID", Id()};
      case 6:
        return {Below(2) == 0 ? "UNLINK" : "DEL", key};
      case 7:
        return {"XRANGE", key, Id(), "+", "COUNT", Number()};
      case 8:
        return {"XREVRANGE", key, "+", "-", "COUNT", "1"};
      case 9:
        return {"XREAD", "COUNT", "2", "BLOCK", "1", "STREAMS", keys.log, keys.snap, Id(), Id()};
      case 10:
      case 11:
        return Hello(keys, Below(10) == 0 ? kFarEpoch : epoch_);
      case 12:
        return Eval(kRedisHeartbeatScript, keys,
                    {Name(keys), Owner(), std::to_string(epoch_), Number(), "3600000", "5",
                     Below(3) == 0 ? "hello again" : ""});
      case 13:
        return Eval(kRedisGoodbyeScript, keys,
                    {Name(keys), Owner(), std::to_string(epoch_), "5", "bye"});
      case 14:
        return {"EVAL", kRedisOpenScript, "2", keys.log, keys.streams, Name(keys)};
      case 15:
        return {"XADD", keys.back, "MAXLEN", "~", "3", "*", "k", "a", "n", Number()};
      case 16:
        if (Below(10) == 0) ++epoch_;
        if (Below(20) == 0)
          return {"XADD", key, std::to_string(kFarEpoch) + "-" + Number(), "m", Number()};
        return {"XADD", key, Id(), "m", Number()};
      default:
        return {"XADD", key, "NOMKSTREAM", "MINID", "~", Id(), Id(), "m", Number()};
    }
  }

 private:
  static constexpr Epoch kFarEpoch = 9'000'000'000'000'000'000;  // in the year 2255

  RedisArgs Hello(const RedisStreamKeys& keys, Epoch epoch) {
    const std::string instance = RedisHex(Below(2)), hello = "hello" + Number();
    const std::string disbelieved = Disbelieved(keys);
    last_registration_[&keys - &keys_[0]] = RedisPadded(epoch) + instance + hello;
    return Eval(kRedisHelloScript, keys,
                {Name(keys), RedisPadded(epoch), instance, hello, std::to_string(epoch), "3600000",
                 "5", RedisPadded(Below(12)), RedisPadded(epoch), "10000", disbelieved});
  }

  uint64_t Below(uint64_t limit) { return random_() % limit; }
  std::string Number() { return std::to_string(1 + Below(9)); }
  std::string Id() { return std::to_string(epoch_) + "-" + std::to_string(1 + Below(12)); }
  // Most often nothing; else what may be there, or that nothing is.
  std::string Disbelieved(const RedisStreamKeys& keys) {
    switch (Below(6)) {
      case 0:
        return "-";
      case 1:
        return last_registration_[&keys - &keys_[0]];
      default:
        return "";
    }
  }
  std::string Owner() { return RedisPadded(epoch_) + RedisHex(Below(2)); }
  std::string Name(const RedisStreamKeys& keys) { return &keys == &keys_[0] ? "a" : "b"; }
  static RedisArgs Eval(const char* script, const RedisStreamKeys& keys, const RedisArgs& args) {
    RedisArgs all = {"EVAL", script, "5", keys.streams, keys.news, keys.log, keys.snap, keys.back};
    all.insert(all.end(), args.begin(), args.end());
    return all;
  }

  std::mt19937_64 random_;
  const RedisStreamKeys keys_[2] = {{"tag", "a"}, {"tag", "b"}};
  std::string last_registration_[2];
  Epoch epoch_ = 7;
};

// Ids that were made of the server's clock are only said to be there: halves of 13 digits.
std::string Text(const RedisReply& reply) {
  if (reply.is_nil()) return "nil";
  if (reply.kind == RedisReply::Kind::kInteger) return std::to_string(reply.integer);
  if (!reply.is_array())
    return reply.text.find('-') >= 13 && reply.text.find('-') < 20 ? "ID" : reply.text;
  std::string told = "[";
  for (const RedisReply& element : reply.elements) told += Text(element) + " ";
  return told + "]";
}

// The order of a hash's fields is not specified.
std::string Text(const RedisArgs& command, const absl::StatusOr<RedisReply>& reply) {
  if (!reply.ok()) return absl::StatusCodeToString(reply.status().code());
  if (command[0] != "HGETALL" || reply->elements.size() != 4 ||
      reply->elements[0].text < reply->elements[2].text) {
    return Text(*reply);
  }
  RedisReply ordered = *reply;
  std::swap(ordered.elements[0], ordered.elements[2]);
  std::swap(ordered.elements[1], ordered.elements[3]);
  return Text(ordered);
}

std::string TextOf(const RedisArgs& command) {
  std::string text;
  for (const std::string& arg : command) text += arg.size() > 100 ? "script " : arg + " ";
  return text;
}

TEST(SimulatedRedisTest, AnswersAsARealOneDoes) {
  // One entry a node, so that an approximate trim is an exact one.
  RedisTestServer server({"stream-node-max-entries 1"});
  RedisClient real(*ParseRedisUrl(server.url()));
  const char* only = std::getenv("KVATLAS_SIMULATION_SEED");
  const uint64_t first = only == nullptr ? 1 : std::strtoull(only, nullptr, 10);
  for (uint64_t seed = first; seed < first + (only == nullptr ? 20 : 1); ++seed) {
    SCOPED_TRACE("KVATLAS_SIMULATION_SEED=" + std::to_string(seed));
    ASSERT_TRUE(real.Call({"FLUSHALL"}).ok());
    ManualClock clock;
    clock.Advance(std::chrono::hours(24 * 365 * 50));  // 13 digits of ms, as today's
    SimulatedRedis simulated(&clock);
    Commands commands(seed);
    for (int i = 0; i < 300; ++i) {
      const RedisArgs command = commands.Next();
      const std::string expected = Text(command, real.Call(command));
      ASSERT_EQ(Text(command, simulated.Execute(command)), expected)
          << "command " << i << ": " << TextOf(command);
      clock.Advance(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace
}  // namespace kvatlas
