// The form of a message in Redis: version, checksum and the message as protobuf, and back.
//
// *Format*: byte 0: version (1). Bytes 1 to 8: XXH3-64 of the rest, seeded with the entry's id,
// little-endian. Rest: `kvatlas.v1.SenderMessage`. Another version is refused; fields that a reader
// does not know are ignored. With keys: version 2 (by the cell's key) or 3 (by the worker's own),
// bytes 1 to 32 an HMAC-SHA-256 (`record_keys.h`) of the rest for its cell, its stream, log or
// snapshot, and its id.
// *Truth*: what `Decode` returns is within all bounds (`wire.h`), was written whole and for this
// id. With keys it was written by one of us, for this stream, and by its worker where workers have
// keys of their own; without, any process that may write to Redis may have.
// *Threads*: pure functions. *Cost*: 8 bytes a block and about 40 an entry, 64 with keys; a copy of
// the hashes each way.

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_ENTRY_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_ENTRY_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "indexer/security/record_keys.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/redis/redis_keys.h"

namespace kvatlas {

inline constexpr char kRedisEntryField[] = "m";

// The keys with which an entry is signed, and the place for which.
struct RedisSeal {
  RecordKeys* keys = nullptr;  // null: a checksum alone
  std::string_view cell = {};
  std::string_view stream = {};  // `RedisStreamName`
  bool snapshot = false;         // else of the log, or its registration
};

std::string EncodeRedisEntry(const SenderMessage& message, const RedisEntryId& id,
                             const RedisSeal& seal = {});

// DATA_LOSS: not an entry of ours, damaged, or meant for another id. UNAUTHENTICATED: not signed,
// or by no key of ours, or for another place. INVALID_ARGUMENT: ours, and out of bounds.
absl::StatusOr<SenderMessage> DecodeRedisEntry(std::string_view bytes, const RedisEntryId& id,
                                               const RedisSeal& seal = {});

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_ENTRY_H_
