// Encoding and its two checks: by checksum without keys, by signature with keys. A process with
// keys takes signed entries alone, one without keys unsigned ones alone; the status says which of
// both is missing.

#include "indexer/transport/redis/redis_entry.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
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
constexpr char kSignedVersion = 2;          // by the cell's key
constexpr char kSignedByWorkerVersion = 3;  // by the worker's own
constexpr size_t kSignedHeaderBytes = 1 + kRecordMacBytes;
static_assert(std::endian::native == std::endian::little);

// The id is part of the sum: an entry that was copied to another id is damaged. The rotation keeps
// (epoch, seq) and (seq, epoch) apart.
uint64_t Checksum(std::string_view message, const RedisEntryId& id) {
  return XXH3_64bits_withSeed(message.data(), message.size(), id.epoch ^ std::rotl(id.seq, 32));
}

// The place for which an entry is signed. Cell and stream have their lengths before them, so that
// no two places give the same text.
std::string ContextOf(const RedisSeal& seal, const RedisEntryId& id) {
  return std::to_string(seal.cell.size()) + ":" + std::string(seal.cell) +
         std::to_string(seal.stream.size()) + ":" + std::string(seal.stream) +
         (seal.snapshot ? "s" : "l") + id.ToString();
}

absl::Status OtherVersion(std::string_view bytes) {
  return absl::DataLossError("version " + std::to_string(static_cast<unsigned char>(bytes[0])) +
                             " is not ours");
}

// Returns the message in the bytes.
absl::StatusOr<std::string_view> CheckedBySum(std::string_view bytes, const RedisEntryId& id) {
  if (bytes.size() < kHeaderBytes) return absl::DataLossError("too short for an entry");
  if (bytes[0] == kSignedVersion || bytes[0] == kSignedByWorkerVersion)
    return absl::DataLossError("it is signed, and this process has no key (log_key in the URL)");
  if (bytes[0] != kVersion) return OtherVersion(bytes);
  uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + 1, sizeof(sum));
  const std::string_view rest = bytes.substr(kHeaderBytes);
  if (sum != Checksum(rest, id)) return absl::DataLossError("the checksum is another");
  return rest;
}

absl::StatusOr<std::string_view> CheckedByKey(std::string_view bytes, const RedisEntryId& id,
                                              const RedisSeal& seal) {
  if (bytes.empty()) return absl::DataLossError("too short for an entry");
  if (bytes[0] == kVersion)
    return absl::UnauthenticatedError("it is not signed: its sender has no key (log_key)");
  const bool of_worker = bytes[0] == kSignedByWorkerVersion;
  if (bytes[0] != kSignedVersion && !of_worker) return OtherVersion(bytes);
  if (bytes.size() < kSignedHeaderBytes) return absl::DataLossError("too short for an entry");
  const std::string_view rest = bytes.substr(kSignedHeaderBytes);
  const RecordKeys::By by = of_worker ? RecordKeys::By::kWorker : RecordKeys::By::kCell;
  if (!seal.keys->Verify(by, RedisWorkerOf(seal.stream), ContextOf(seal, id), rest,
                         bytes.substr(1, kRecordMacBytes)))
    return absl::UnauthenticatedError("it was signed by no key of ours, or for another place");
  return rest;
}

}  // namespace

std::string EncodeRedisEntry(const SenderMessage& message, const RedisEntryId& id,
                             const RedisSeal& seal) {
  v1::SenderMessage wire;
  ToProto(message, &wire);
  const size_t header = seal.keys == nullptr ? kHeaderBytes : kSignedHeaderBytes;
  std::string bytes;
  bytes.reserve(header + wire.ByteSizeLong());
  bytes.push_back(seal.keys == nullptr ? kVersion : kSignedVersion);
  bytes.resize(header);
  wire.AppendToString(&bytes);
  const std::string_view rest = std::string_view(bytes).substr(header);
  if (seal.keys == nullptr) {
    const uint64_t sum = Checksum(rest, id);
    std::memcpy(bytes.data() + 1, &sum, sizeof(sum));
  } else {
    const RecordKeys::Signature signature =
        seal.keys->Sign(RedisWorkerOf(seal.stream), ContextOf(seal, id), rest);
    if (signature.by == RecordKeys::By::kWorker) bytes[0] = kSignedByWorkerVersion;
    std::memcpy(bytes.data() + 1, signature.mac.data(),
                std::min(signature.mac.size(), kRecordMacBytes));
  }
  return bytes;
}

absl::StatusOr<SenderMessage> DecodeRedisEntry(std::string_view bytes, const RedisEntryId& id,
                                               const RedisSeal& seal) {
  const absl::StatusOr<std::string_view> rest =
      seal.keys == nullptr ? CheckedBySum(bytes, id) : CheckedByKey(bytes, id, seal);
  if (!rest.ok()) return rest.status();
  v1::SenderMessage wire;
  if (!wire.ParseFromArray(rest->data(), static_cast<int>(rest->size()))) {
    return absl::DataLossError("not a message");
  }
  SenderMessage message;
  if (absl::Status status = FromProto(wire, &message); !status.ok()) return status;
  return message;
}

}  // namespace kvatlas
