// Puts a sender's stream into Redis: a `SenderLink` for which Redis plays the receiver, as
// README.md describes it.
//
// *Truth*: an acknowledgement says that Redis has the batch; `Confirmed` says that every reader
// that is there has applied it, and that there is one. A sender is fenced by epoch at its hello and
// by Redis itself at every batch.
// *Threads*: any; observers are called from the Redis client's thread, with no lock held. `Stop`
// must not be called from an observer.
// *Bounds*: what Redis has not acknowledged, by `credit_batches` and `buffer_bytes_max`; the log,
// by entries, bytes and age, whichever comes first. A snapshot has at most 2^20 parts.
// *Cost*: a connection for commands and one that waits for what flows back; a thread.
//
// Example:
//   auto link = std::make_unique<RedisLink>(RedisLogOptions{.redis = *ParseRedisUrl(url), .cell =
//   "cell-a"});
//   SenderPump pump(options, identity, &resident, &resident_mutex, std::move(link),
//   &Clock::Real());

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LINK_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LINK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/net/redis_commands.h"
#include "indexer/stream/link.h"
#include "indexer/transport/redis/redis_log_options.h"

namespace kvatlas {

struct RedisLinkStats {
  uint64_t entries_written = 0;  // acknowledged by Redis: batches, parts, markers
  uint64_t bytes_written = 0;    // arguments of all commands
  uint64_t snapshots_written = 0;
  uint64_t snapshots_asked = 0;  // by readers, and passed on
  uint64_t refusals = 0;         // by readers
  uint64_t losses = 0;           // connections that ended
  uint64_t readers = 0;          // heard of within `reader_ttl`
  absl::Status last_loss;        // why
  std::string last_refusal;      // empty: none, or that reader takes the stream by now
};

class RedisLink : public SenderLink {
 public:
  explicit RedisLink(const RedisLogOptions& options);
  // With another clock, and through `connect` instead of sockets.
  RedisLink(const RedisLogOptions& options, const Clock* clock, RedisConnectFn connect);
  // Stop(0).
  ~RedisLink() override;

  void Start(SenderLinkObserver* observer) override;
  bool Write(const SenderMessage& message) override;
  void Reset() override;
  void Stop(std::chrono::nanoseconds flush_for) override;
  bool Confirmed(BatchNumber number) const override;

  RedisLinkStats Stats() const;

 private:
  class Core;
  const std::unique_ptr<Core> core_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LINK_H_
