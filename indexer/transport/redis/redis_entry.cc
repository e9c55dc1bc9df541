#include "indexer/transport/redis/redis_entry.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.pb.h"

namespace kvatlas {
namespace {

constexpr char kVersion = 1;
constexpr size_t kHeaderBytes = 1 + sizeof(uint64_t);
static_assert(std::endian::native == std::endian::little);

uint64_t Checksum(std::string_view message, const RedisEntryId& id) {
  return XXH3_64bits_withSeed(message.data(), message.size(), id.epoch ^ std::rotl(id.seq, 32));
}

}  // namespace

std::string EncodeRedisEntry(const SenderMessage& message, const RedisEntryId& id) {
  v1::SenderMessage wire;
  ToProto(message, &wire);
  std::string bytes;
  bytes.reserve(kHeaderBytes + wire.ByteSizeLong());
  bytes.push_back(kVersion);
  bytes.resize(kHeaderBytes);
  wire.AppendToString(&bytes);
  const uint64_t sum = Checksum(std::string_view(bytes).substr(kHeaderBytes), id);
  std::memcpy(bytes.data() + 1, &sum, sizeof(sum));
  return bytes;
}

absl::StatusOr<SenderMessage> DecodeRedisEntry(std::string_view bytes, const RedisEntryId& id) {
  if (bytes.size() < kHeaderBytes) return absl::DataLossError("too short for an entry");
  if (bytes[0] != kVersion) {
    return absl::DataLossError("version " + std::to_string(static_cast<unsigned char>(bytes[0])) +
                               " is not ours");
  }
  uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + 1, sizeof(sum));
  const std::string_view rest = bytes.substr(kHeaderBytes);
  if (sum != Checksum(rest, id)) return absl::DataLossError("the checksum is another");
  v1::SenderMessage wire;
  if (!wire.ParseFromArray(rest.data(), static_cast<int>(rest.size()))) {
    return absl::DataLossError("not a message");
  }
  SenderMessage message;
  if (absl::Status status = FromProto(wire, &message); !status.ok()) return status;
  return message;
}

}  // namespace kvatlas
