// The sizes are computed, not measured: transports in this process serialize nothing, and metrics
// must not depend on the transport. Each `Size` mirrors one message of
// `proto/kvatlas/v1`; `//indexer/transport:message_size_test` compares the two.

#include "indexer/stream/message_size.h"

#include <bit>
#include <cstdint>

namespace kvatlas {
namespace {

// All field numbers of these messages are below 16: a tag is one byte.
constexpr size_t kTag = 1;

size_t Varint(uint64_t value) { return (std::bit_width(value | 1) + 6) / 7; }

// proto3: a scalar of 0 is not written.
size_t UintField(uint64_t value) { return value == 0 ? 0 : kTag + Varint(value); }
size_t FixedField(uint64_t value) { return value == 0 ? 0 : kTag + 8; }
size_t DoubleField(double value) { return std::bit_cast<uint64_t>(value) == 0 ? 0 : kTag + 8; }
size_t MessageField(size_t bytes) { return kTag + Varint(bytes) + bytes; }
size_t HashesField(size_t count) { return count == 0 ? 0 : MessageField(8 * count); }

size_t Size(const Stored& stored) {
  return UintField(static_cast<uint64_t>(stored.tier)) + UintField(stored.position) +
         FixedField(Raw(stored.parent)) + HashesField(stored.blocks.size()) +
         UintField(stored.side);
}

size_t Size(const Removed& removed) {
  return UintField(static_cast<uint64_t>(removed.tier)) + HashesField(removed.blocks.size()) +
         UintField(removed.side);
}

size_t Size(const Cleared& cleared) { return UintField(cleared.tiers.bits()); }

size_t Size(const Event& event) {
  return MessageField(std::visit([](const auto& kind) { return Size(kind); }, event));
}

size_t Size(const Load& load) {
  return UintField(load.running_requests) + UintField(load.waiting_requests) +
         UintField(load.used_blocks) + UintField(load.free_blocks) +
         UintField(load.waiting_prefill_blocks) + DoubleField(load.tokens_per_s) +
         UintField(load.workers);
}

// A tier without blocks is written as an empty message, since tiers are told apart by their place.
size_t Size(const Digest& digest) {
  size_t bytes = 0;
  for (const Digest::OfTier& tier : digest.tiers) {
    bytes += MessageField(UintField(tier.blocks) + FixedField(tier.sum));
  }
  return bytes;
}

size_t Size(const CacheClass& of) {
  return UintField(static_cast<uint64_t>(of.kind)) + UintField(of.block_size) +
         UintField(of.window_tokens) + UintField(of.drops_last);
}

size_t Size(const CacheLayout& layout) {
  size_t bytes = layout.has_main ? MessageField(Size(layout.main)) : 0;
  for (const CacheClass& side : layout.sides) bytes += MessageField(Size(side));
  return bytes;
}

// An optional message that is there is written even if it is empty.
template <typename T>
size_t OptionalField(const std::optional<T>& value) {
  return value.has_value() ? MessageField(Size(*value)) : 0;
}

size_t Size(const Batch& batch) {
  size_t bytes = UintField(batch.number) + OptionalField(batch.load) + OptionalField(batch.digest) +
                 UintField(batch.degraded) + OptionalField(batch.layout);
  for (const Event& event : batch.events) bytes += MessageField(Size(event));
  return bytes;
}

size_t Size(const SnapshotPart& part) {
  size_t bytes = UintField(part.snapshot_id) + UintField(part.as_of) + UintField(part.part) +
                 UintField(part.last) + OptionalField(part.load) + OptionalField(part.digest) +
                 UintField(part.degraded) + OptionalField(part.layout);
  for (const Stored& stored : part.stored) bytes += MessageField(Size(stored));
  return bytes;
}

}  // namespace

size_t HoldingsBytes(const SenderMessage& message) {
  if (const Batch* batch = std::get_if<Batch>(&message)) return MessageField(Size(*batch));
  if (const SnapshotPart* part = std::get_if<SnapshotPart>(&message)) {
    return MessageField(Size(*part));
  }
  return 0;
}

}  // namespace kvatlas
