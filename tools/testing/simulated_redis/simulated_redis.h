// What would Redis answer? The commands and scripts that the log uses, on a database in memory and
// in a test's own time.
//
// *Place*: simulations; `simulated_redis_test` holds it against a real redis-server.
// *Truth*: one command at a time, as Redis does. An approximate trim (`~`) removes whole nodes
// (`SetNodeEntries`) only. Of a blocking command it says what is there now; who waits is not its
// business. Scripts are known by their text, not run.
// *Threads*: none.

#ifndef KVATLAS_TOOLS_TESTING_SIMULATED_REDIS_SIMULATED_REDIS_H_
#define KVATLAS_TOOLS_TESTING_SIMULATED_REDIS_SIMULATED_REDIS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/net/redis_commands.h"
#include "indexer/net/redis_reply.h"

namespace kvatlas {

class SimulatedRedis {
 public:
  using Id = std::pair<uint64_t, uint64_t>;
  using Fields = std::vector<std::string>;
  struct Value {
    std::optional<std::string> text;                         // a string
    std::optional<std::map<std::string, std::string>> hash;  // or a hash
    std::map<Id, Fields> entries;                            // or a stream
    Id last{0, 0};
    std::optional<Time> expires;
  };
  using Database = std::map<std::string, Value>;

  explicit SimulatedRedis(const Clock* clock) : clock_(clock) {}

  // Statuses as `RedisClient` makes them of Redis' errors. REQUIRES: a command that the log uses.
  absl::StatusOr<RedisReply> Execute(const RedisArgs& args);

  // ---- What the test says ----

  const Database& database() const { return database_; }
  // As it came back from its disk, or from a replica that was behind.
  void Load(Database database) { database_ = std::move(database); }
  std::vector<std::string> Keys() const;
  void Evict(const std::string& key) { database_.erase(key); }
  // Commands that may need memory are refused beyond; nothing: no limit.
  void SetBytesMax(std::optional<size_t> bytes) { bytes_max_ = bytes; }
  size_t Bytes() const;
  void SetNodeEntries(size_t entries) { node_entries_ = entries; }
  // The server's clock, which need not be anybody else's, and may go back.
  void SetClockOffset(Duration offset) { offset_ = offset; }

 private:
  using Reply = absl::StatusOr<RedisReply>;

  Time Now() const { return clock_->Now() + offset_; }
  Value* Find(const std::string& key);
  bool Full() const { return bytes_max_.has_value() && Bytes() > *bytes_max_; }

  Reply Xadd(const RedisArgs& args);
  Reply Append(Value* stream, const std::string& id, Fields fields);
  void Trim(Value* stream, const std::string& how, bool about, const std::string& bound);
  Reply Xtrim(const RedisArgs& args);
  Reply Range(const RedisArgs& args, bool reverse);
  Reply Xread(const RedisArgs& args);
  bool Expire(const std::string& key, const std::string& ms);
  RedisReply Delete(const RedisArgs& args);

  Reply Eval(const RedisArgs& args);
  Reply Hello(const RedisArgs& keys, const RedisArgs& args);
  Reply Heartbeat(const RedisArgs& keys, const RedisArgs& args);
  Reply Goodbye(const RedisArgs& keys, const RedisArgs& args);
  Reply Open(const RedisArgs& keys, const RedisArgs& args);
  void News(const std::string& key, const std::string& max, Fields fields);

  const Clock* const clock_;
  Duration offset_{0};
  std::optional<size_t> bytes_max_;
  size_t node_entries_ = 1;
  Database database_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SIMULATED_REDIS_SIMULATED_REDIS_H_
