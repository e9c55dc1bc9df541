// How does a message lie in Redis? Version, checksum and the message as protobuf, and back.
//
// *Format*: byte 0: version (1). Bytes 1 to 8: XXH3-64 of the rest, seeded with the entry's id, little-endian. Rest:
// `kvatlas.v1.SenderMessage`. Another version is refused; fields that a reader does not know are ignored.
// *Truth*: what `Decode` returns is within all bounds (`wire.h`), was written whole, for this id, and by one of us.
// *Threads*: pure functions. *Cost*: 8 bytes a block and about 40 an entry; a copy of the hashes each way.

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_ENTRY_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_ENTRY_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/redis/redis_keys.h"

namespace kvatlas {

inline constexpr char kRedisEntryField[] = "m";

std::string EncodeRedisEntry(const SenderMessage& message, const RedisEntryId& id);

// DATA_LOSS: not an entry of ours, damaged, or meant for another id. INVALID_ARGUMENT: ours, and out of bounds.
absl::StatusOr<SenderMessage> DecodeRedisEntry(std::string_view bytes, const RedisEntryId& id);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_ENTRY_H_
