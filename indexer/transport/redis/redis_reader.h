// Hears a leaf's workers through Redis: finds the logs of its cell, reads them all, and feeds each
// into a session of its acceptor, as README.md describes it.
//
//   logs ══ XREAD, one per shard ══▶ RedisClient ─▶ reader's thread ─▶ ReceiverSession per stream ─▶ StreamReceiver
//      ◀══ acks, needs, refusals ══════════════════════╯
//
// *Truth*: a receiver gets every batch of an epoch in order, whatever the reader missed: what the
// log does not have is healed by a snapshot. Progress is told back once per round of reading.
// *Threads*: its own, for everything but sockets; `Stats` from any. Replies of sessions may come
// from any.
// *Cost*: per round a command per shard, with a key per stream. Entries are copied three times.
// *Bounds*: `RedisLogOptions::streams_max`; a round brings about 1,024 entries, fewer where those
// exceed `RedisOptions::reply_bytes_max`, a page of a snapshot 8 parts, at most 64 streams are
// being opened at a time.
// *Lifetime*: the acceptor outlives the reader. `Stop` tells senders not to wait for it; its
// sessions end.
//
// Example:
//   RedisReader reader({.redis = *ParseRedisUrl(url), .cell = "cell-a"}, "leaf-0", &registry);

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_READER_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_READER_H_

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

struct RedisReaderStats {
  bool connected = false;
  absl::Status status;   // not OK: why nothing is read
  absl::Status writes;   // not OK: why Redis took nothing of what was last written there
  uint64_t streams = 0;  // known now
  uint64_t streams_following = 0;
  uint64_t rounds = 0;            // of reading
  uint64_t rounds_too_large = 0;  // asked for again with fewer entries, by a new connection
  uint64_t entries_read = 0;      // of logs
  uint64_t bytes_read = 0;        // of entries, snapshots included
  uint64_t entries_damaged = 0;   // skipped: foreign, damaged, out of bounds, or forged
  uint64_t entries_forged = 0;    // not signed by a key of ours, for that place; also of snapshots
  uint64_t replays = 0;
  uint64_t snapshots_read = 0;
  uint64_t snapshots_asked = 0;
  uint64_t streams_refused = 0;  // by the acceptor
  uint64_t losses = 0;           // of Redis
};

class RedisReader {
 public:
  // `name` tells the readers of a cell apart in what flows back; a number that no other process has
  // is added to it.
  RedisReader(const RedisLogOptions& options, const std::string& name, StreamAcceptor* acceptor,
              const Clock* clock = &Clock::Real());
  // Through `connect` instead of sockets, and without a thread: the owner calls `Step`.
  RedisReader(const RedisLogOptions& options, const std::string& name, StreamAcceptor* acceptor,
              const Clock* clock, const RedisConnectFn& connect);
  ~RedisReader();

  RedisReader(const RedisReader&) = delete;
  RedisReader& operator=(const RedisReader&) = delete;

  // Idempotent.
  void Stop();

  // Does what is due now. REQUIRES: it has no thread.
  void Step();

  RedisReaderStats Stats() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_READER_H_
