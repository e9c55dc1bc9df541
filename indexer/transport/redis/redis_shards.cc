#include "indexer/transport/redis/redis_shards.h"

#include <string>

#include "indexer/transport/redis/redis_keys.h"

namespace kvatlas {

// SETNX decides between processes that start at once; GET then shows all of them the same.
RedisShardsQuestion AskForRedisShards(std::string_view cell, uint32_t shards) {
  const std::string key = RedisShardsKey(cell);
  return {{"SETNX", key, std::to_string(shards)}, {"GET", key}};
}

absl::Status CheckRedisShards(const absl::StatusOr<RedisReply>& read, uint32_t shards) {
  if (!read.ok()) return read.status();
  if (read->is_nil()) {
    return absl::UnavailableError("redis did not take the cell's number of shards");
  }
  if (read->text == std::to_string(shards)) return absl::OkStatus();
  return absl::FailedPreconditionError("the cell has " + read->text + " shards in Redis, not " +
                                       std::to_string(shards));
}

}  // namespace kvatlas
