// The number of shards of a cell's log. The first process writes it into Redis, all others have to
// agree: `AskForRedisShards`' two commands in this order, then `CheckRedisShards` of the second
// one's reply.
//
// A full Redis refuses the first one, and may lose the key later: a process that asks again sends
// both again.
//
// *Threads*: pure functions.

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_SHARDS_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_SHARDS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/net/redis_commands.h"
#include "indexer/net/redis_reply.h"

namespace kvatlas {

struct RedisShardsQuestion {
  RedisArgs write_if_absent;
  RedisArgs read;
};
RedisShardsQuestion AskForRedisShards(std::string_view cell, uint32_t shards);

// FAILED_PRECONDITION: another number; UNAVAILABLE: none yet, as Redis took none; or what Redis
// said.
absl::Status CheckRedisShards(const absl::StatusOr<RedisReply>& read, uint32_t shards);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_SHARDS_H_
