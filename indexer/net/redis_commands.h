// The interface to Redis: commands in, answers by callback. Implemented by `RedisClient`, and in
// tests by a simulation of client, network and server under simulated time.
//
// *Truth*, *Threads*, *Bounds*: as `redis_client.h` says.

#ifndef KVATLAS_INDEXER_NET_REDIS_COMMANDS_H_
#define KVATLAS_INDEXER_NET_REDIS_COMMANDS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/net/redis_reply.h"
#include "indexer/net/redis_url.h"

namespace kvatlas {

using RedisArgs = std::vector<std::string>;
using RedisCallback = std::function<void(absl::StatusOr<RedisReply> reply)>;
// Called with OK when the first node is ready (again), and with the reason after each loss and
// failed attempt.
using RedisStateFn = std::function<void(const absl::Status& state)>;

class RedisCommands {
 public:
  virtual ~RedisCommands() = default;
  virtual absl::Status Send(RedisArgs args, RedisCallback callback) = 0;
  virtual absl::Status SendBlocking(RedisArgs args, Duration block_for, RedisCallback callback) = 0;
  virtual void RunAfter(Duration delay, std::function<void()> run) = 0;
  virtual void Stop() = 0;
  // Commands sent and not answered.
  virtual size_t outstanding() const = 0;
};

// Connects; `state` may be called before it returns.
using RedisConnectFn =
    std::function<std::unique_ptr<RedisCommands>(const RedisOptions& options, RedisStateFn state)>;

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_REDIS_COMMANDS_H_
