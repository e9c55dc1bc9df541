// An asynchronous client of Redis: commands go in from any thread without waiting, answers come
// back by callback.
//
//   Send ─▶ inbox ─▶ event loop ─▶ a pipelined connection per node ─▶ Redis
//                        └───────▶ a connection per blocking command
//
//   1. The loop connects to the first host that answers (or asks a sentinel for the master), says
//      AUTH and SELECT, and tells `on_state`. After a loss it comes back alone, with backoff.
//   2. Commands are pipelined, in the order of the calls, to the node that has their key: the first
//      one, until that one answers MOVED (Redis Cluster); ASK is followed once. A command is sent
//      at most once to a node that may execute it.
//   3. A command that is not answered in time ends its connection: what follows it would be
//      answered even later. So do bytes that are not RESP2, a reply that no command asked for, and
//      a reply that is too large.
//
// *Truth*: when `Send` returned OK the callback is called exactly once. Errors of Redis become
// statuses:
//   UNAVAILABLE          no connection, or it was lost (then the command may have been executed or not); LOADING,
//                        READONLY, CLUSTERDOWN and the like
//   OUT_OF_RANGE         the reply is larger than `reply_bytes_max` (it was executed); the connection was ended
//   DEADLINE_EXCEEDED    no answer in time (it may have been executed)
//   RESOURCE_EXHAUSTED   OOM, MISCONF (disk full): nothing changed; from `Send`: a bound was reached
//   PERMISSION_DENIED    NOAUTH, WRONGPASS, NOPERM
//   NOT_FOUND            NOSCRIPT, NOGROUP        INVALID_ARGUMENT   all other errors; the message is Redis' own
//   CANCELLED            the client was stopped
// Order: commands of one thread to one node are executed in order while no slot is being moved and
// no connection is lost.
// *Threads*: any. Callbacks and `on_state` run on the loop's thread, no lock held; they must not
// block, may `Send`, and must not stop or destroy the client.
// *Cost*: a lock and a wake-up per `Send`, less when many come at once; arguments are copied once.
// *Bounds*: `RedisOptions`. Host names are resolved on the loop's thread.
//
// Example:
//   absl::StatusOr<RedisOptions> options = ParseRedisUrl("redis://127.0.0.1:6379/0");
//   RedisClient client(*options);
//   absl::Status sent = client.Send({"SET", "key", "value"}, [](absl::StatusOr<RedisReply> reply) {
//   … });

#ifndef KVATLAS_INDEXER_NET_REDIS_CLIENT_H_
#define KVATLAS_INDEXER_NET_REDIS_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/net/redis_commands.h"
#include "indexer/net/redis_reply.h"
#include "indexer/net/redis_url.h"

namespace kvatlas {

struct RedisClientStats {
  uint64_t commands = 0;  // accepted
  uint64_t failed = 0;    // answered with a status other than OK
  uint64_t connects = 0;  // connections that became ready
  uint64_t redirections = 0;
  uint64_t bytes_sent = 0;  // of arguments
  size_t outstanding = 0;   // now
  bool connected = false;   // to the first node
};

class RedisClient : public RedisCommands {
 public:
  using StateFn = RedisStateFn;

  explicit RedisClient(RedisOptions options, StateFn on_state = {});
  ~RedisClient() override;

  // FAILED_PRECONDITION: the URL has no TLS and a host beyond loopback, and the process a policy
  // (`Security::MayGoInClear`).
  static absl::Status MayGoInClear(const RedisOptions& options);

  RedisClient(const RedisClient&) = delete;
  RedisClient& operator=(const RedisClient&) = delete;

  // Never blocks. RESOURCE_EXHAUSTED: too much is outstanding. INVALID_ARGUMENT: no arguments, or a
  // command that would change the connection for all others (AUTH, SELECT, SUBSCRIBE, MULTI, …).
  // Commands wait for a connection that is being made, and fail at once while there is none.
  absl::Status Send(RedisArgs args, RedisCallback callback) override;

  // The same for a command that blocks at the server for up to `block_for`, on a connection of its
  // own.
  absl::Status SendBlocking(RedisArgs args, Duration block_for, RedisCallback callback) override;

  // Calls `run` on the loop's thread, at the earliest after `delay`; never once the client is
  // stopped.
  void RunAfter(Duration delay, std::function<void()> run) override;

  // Sends and waits. Not from a callback.
  absl::StatusOr<RedisReply> Call(RedisArgs args);

  // Ends: every outstanding callback is called with CANCELLED before it returns. Idempotent.
  void Stop() override;

  size_t outstanding() const override { return Stats().outstanding; }
  bool connected() const;
  RedisClientStats Stats() const;
  const RedisOptions& options() const;

 private:
  class Loop;
  const std::unique_ptr<Loop> loop_;
};

// A `RedisConnectFn`.
std::unique_ptr<RedisCommands> ConnectRedis(const RedisOptions& options, RedisStateFn state);

// The key that decides which node of a cluster executes a command; empty when it has none.
std::string_view RedisKeyOf(const RedisArgs& args);
// A key's slot in a cluster, 0..16383: of what is between the first `{` and the next `}`, when that
// is not empty.
uint32_t RedisSlotOf(std::string_view key);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_REDIS_CLIENT_H_
