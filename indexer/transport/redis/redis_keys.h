// The names of a stream's keys and ids in Redis. See README.md.
//
// *Threads*: pure functions.

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_KEYS_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_KEYS_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "indexer/base/domain.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// Low bits of an id's second half: the part of a snapshot.
inline constexpr int kRedisPartBits = 20;
inline constexpr uint64_t kRedisPartsMax = uint64_t{1} << kRedisPartBits;
inline constexpr BatchNumber kRedisNumberMax = (uint64_t{1} << (64 - kRedisPartBits)) - 1;

// The id of an entry of a log or a snapshot.
struct RedisEntryId {
  Epoch epoch = 0;
  uint64_t seq = 0;

  static RedisEntryId Of(Epoch epoch, BatchNumber number, uint64_t part = 0) {
    return {epoch, number << kRedisPartBits | part};
  }
  // The largest id before batch `number`.
  static RedisEntryId Before(Epoch epoch, BatchNumber number) {
    return {epoch, (number << kRedisPartBits) - 1};
  }
  // The id for which a goodbye is signed: no entry of a log has it.
  static RedisEntryId Last(Epoch epoch) { return {epoch, ~uint64_t{0}}; }
  static std::optional<RedisEntryId> Parse(std::string_view text);

  BatchNumber number() const { return seq >> kRedisPartBits; }
  uint64_t part() const { return seq & (kRedisPartsMax - 1); }
  std::string ToString() const { return std::to_string(epoch) + "-" + std::to_string(seq); }

  friend auto operator<=>(const RedisEntryId&, const RedisEntryId&) = default;
};

// A stream's name inside its cell: readable, and another one for every (holder, domain).
std::string RedisStreamName(const HolderId& holder, const Domain& domain);

// The holder's name in it.
std::string RedisWorkerOf(std::string_view stream_name);

uint32_t RedisShardOf(std::string_view stream_name, uint32_t shards);

// "{kvatlas:CELL:SHARD}", in which braces and the like are escaped.
std::string RedisTag(std::string_view cell, uint32_t shard);
std::string RedisShardsKey(std::string_view cell);

struct RedisStreamKeys {
  RedisStreamKeys(std::string_view tag, std::string_view stream_name);

  std::string streams, news;    // of the shard
  std::string log, snap, back;  // of the stream
};

// A registration begins with its owner: padded epoch and instance.
inline constexpr size_t kRedisOwnerBytes = 36;

// 20 digits, so that text compares as the number does, also in Lua, which has no 64-bit integers.
std::string RedisPadded(uint64_t number);
// 16 hexadecimal digits.
std::string RedisHex(uint64_t number);
std::optional<uint64_t> ParseUint64(std::string_view text, int base = 10);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_KEYS_H_
