// Options of both ends of a log in Redis, and its bounds.

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LOG_OPTIONS_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LOG_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "indexer/base/clock.h"
#include "indexer/net/redis_url.h"

namespace kvatlas {

inline constexpr uint32_t kRedisShardsMax = 1024;

struct RedisLogOptions {
  RedisOptions redis;
  std::string cell = "cell";
  uint32_t shards = 1;  // the same for all processes of the cell

  // Bounds of a stream's log, as its sender keeps it. The first that is reached trims it.
  uint64_t log_entries_max = 1 << 16;
  uint64_t log_bytes_max = 64 << 20;
  Duration log_age_max = std::chrono::hours(1);
  Duration log_ttl = std::chrono::hours(1);  // after the sender's last sign of life

  // For the sender.
  uint64_t credit_batches = 256;  // that Redis has not acknowledged
  size_t buffer_bytes_max = 8 << 20;
  Duration look_every =
      std::chrono::seconds(3);  // that log and registration are still its own, while batches flow
  Duration reader_ttl = std::chrono::seconds(10);  // silence after which a reader is not waited for

  // For the reader.
  Duration lease_ttl =
      std::chrono::seconds(10);  // that senders have to be heard after Redis was away
  Duration find_every = std::chrono::seconds(10);  // all registrations are looked at
  Duration hello_retry = std::chrono::seconds(5);  // after a refusal
  size_t streams_max = 1 << 16;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LOG_OPTIONS_H_
