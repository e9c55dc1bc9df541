// One `Of` for each message, called by `Validate`. The first field that is out of bounds decides;
// its name and value are in the status, which the other side's log shows. Nothing here looks at
// state: what is wrong only at this moment (a gap, an older epoch) is the state machines' concern.

#include "indexer/stream/validate.h"

#include <cmath>
#include <limits>
#include <string>
#include <variant>

#include "indexer/base/utf8.h"

namespace kvatlas {
namespace {

absl::Status Invalid(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(field + ": " + what);
}

absl::Status AtMost(const std::string& field, uint64_t value, uint64_t max) {
  if (value <= max) return absl::OkStatus();
  return Invalid(field, std::to_string(value) + " is above " + std::to_string(max));
}

absl::Status Text(const std::string& field, const std::string& text, bool may_be_empty) {
  if (text.empty() && !may_be_empty) return Invalid(field, "empty");
  if (text.size() > kHelloTextBytesMax) {
    return Invalid(field, std::to_string(text.size()) + " bytes, at most " +
                              std::to_string(kHelloTextBytesMax));
  }
  return IsUtf8(text) ? absl::OkStatus() : Invalid(field, "not UTF-8");
}

absl::Status OfTier(Tier tier) {
  return AtMost("tier", static_cast<uint64_t>(tier), static_cast<uint64_t>(kTiers - 1));
}

// `position` + blocks must fit a `Position`: the index computes the position of every block of a
// run.
absl::Status Of(const Stored& stored) {
  if (absl::Status status = OfTier(stored.tier); !status.ok()) return status;
  if (absl::Status status = AtMost("stored.blocks", stored.blocks.size(), kBatchBlocksMax);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = AtMost("stored.side", stored.side, kSideClassesMax); !status.ok())
    return status;
  if (stored.side != 0 && (stored.position != 0 || !stored.local_hashes.empty()))
    return Invalid("stored.side", "side blocks have no position and no local hashes");
  return AtMost("stored.position", uint64_t{stored.position} + stored.blocks.size(),
                std::numeric_limits<Position>::max());
}

absl::Status Of(const Removed& removed) {
  if (absl::Status status = OfTier(removed.tier); !status.ok()) return status;
  if (absl::Status status = AtMost("removed.side", removed.side, kSideClassesMax); !status.ok())
    return status;
  return AtMost("removed.blocks", removed.blocks.size(), kBatchBlocksMax);
}

absl::Status Of(const Cleared&) { return absl::OkStatus(); }

absl::Status Of(const std::optional<Load>& load) {
  return load.has_value() ? ValidateLoad(*load) : absl::OkStatus();
}

// Numbers have a maximum so that `number + 1`, which both ends compute, never wraps.
absl::Status Number(const std::string& field, BatchNumber number, BatchNumber min) {
  if (number < min) return Invalid(field, std::to_string(number));
  return AtMost(field, number, kBatchNumberMax);
}

absl::Status Texts(const Hello& hello) {
  absl::Status status = Text("contract_id", hello.contract_id, true);
  status.Update(Text("schedule", hello.schedule, true));
  status.Update(Text("address", hello.address, true));
  return status;
}

// Epoch 0 means "none" in `Refuse`, and `first_kept` may be one behind `last_sent`: nothing is kept
// then. Whether the epoch is ahead of the clock is `CheckEpoch`'s question.
absl::Status Of(const Hello& hello) {
  absl::Status texts = ValidateHolder(hello.holder, hello.labels);
  texts.Update(ValidateDomain(hello.domain));
  texts.Update(Texts(hello));
  if (!texts.ok()) return texts;
  if (hello.block_size == 0) return Invalid("block_size", "0");
  if (absl::Status status = AtMost("block_size", hello.block_size, kBlockSizeMax); !status.ok()) {
    return status;
  }
  if (hello.epoch == 0) return Invalid("epoch", "0");
  if (absl::Status status = AtMost("epoch", hello.epoch, kEpochMax); !status.ok()) return status;
  if (absl::Status status = Number("last_sent", hello.last_sent, 0); !status.ok()) return status;
  if (absl::Status status = Number("first_kept", hello.first_kept, 1); !status.ok()) return status;
  return AtMost("first_kept", hello.first_kept, hello.last_sent + 1);
}

absl::Status Of(const std::optional<CacheLayout>& layout) {
  return layout.has_value() ? ValidateLayout(*layout) : absl::OkStatus();
}

// Each event within its bounds, and all of them together within those of a batch.
absl::Status Of(const Batch& batch) {
  if (absl::Status status = Number("number", batch.number, 1); !status.ok()) return status;
  if (absl::Status status = AtMost("events", batch.events.size(), kBatchEventsMax); !status.ok()) {
    return status;
  }
  for (const Event& event : batch.events) {
    if (absl::Status status = Validate(event); !status.ok()) return status;
  }
  if (absl::Status status = AtMost("blocks", BlockCount(batch), kBatchBlocksMax); !status.ok()) {
    return status;
  }
  if (absl::Status status = Of(batch.layout); !status.ok()) return status;
  return Of(batch.load);
}

// The last part must have a digest: without it a receiver could not tell a broken snapshot from a
// whole one. `FinishSnapshot` relies on it.
absl::Status Of(const SnapshotPart& part) {
  if (absl::Status status = Number("as_of", part.as_of, 0); !status.ok()) return status;
  if (absl::Status status = AtMost("stored", part.stored.size(), kBatchEventsMax); !status.ok()) {
    return status;
  }
  size_t blocks = 0;
  for (const Stored& stored : part.stored) {
    if (absl::Status status = Of(stored); !status.ok()) return status;
    blocks += stored.blocks.size();
  }
  if (absl::Status status = AtMost("blocks", blocks, kBatchBlocksMax); !status.ok()) return status;
  if (part.last && !part.digest.has_value()) return Invalid("digest", "missing in the last part");
  if (absl::Status status = Of(part.layout); !status.ok()) return status;
  return Of(part.load);
}

absl::Status Of(const Heartbeat& heartbeat) { return Number("last_sent", heartbeat.last_sent, 0); }
absl::Status Of(const Goodbye&) { return absl::OkStatus(); }

// Batches begin at 1. A snapshot may be asked for without a number (0).
absl::Status Of(const Welcome& welcome) {
  return Number("next", welcome.next, welcome.snapshot ? 0 : 1);
}
absl::Status Of(const Refuse& refuse) {
  if (refuse.code == absl::StatusCode::kOk) return Invalid("code", "OK");
  return AtMost("epoch", refuse.epoch, kEpochMax);
}
absl::Status Of(const Ack& ack) { return Number("applied", ack.applied, 0); }
absl::Status Of(const Need& need) { return Number("next", need.next, need.snapshot ? 0 : 1); }

constexpr auto kOf = [](const auto& message) { return Of(message); };

}  // namespace

absl::Status ValidateHolder(const HolderId& holder, const HolderLabels& labels) {
  absl::Status status = Text("holder.name", holder.name, false);
  status.Update(Text("holder.replica", holder.replica, true));
  status.Update(AtMost("labels", labels.size(), kHelloLabelsMax));
  for (const auto& [key, value] : labels) {
    status.Update(Text("labels.key", key, false));
    status.Update(Text("labels.value", value, true));
  }
  return status;
}

absl::Status ValidateDomain(const Domain& domain) {
  absl::Status status = Text("domain.model", domain.model, false);
  status.Update(Text("domain.tenant", domain.tenant, true));
  return status;
}

// Whole hours in the message: the reader is to see at once whether a clock is off by a day or by
// years.
absl::Status CheckEpoch(Epoch epoch, uint64_t wall_ns) {
  constexpr uint64_t kHourNs = uint64_t{3600} * 1'000'000'000;
  constexpr uint64_t kHoursMax = kEpochAheadMax.count();
  if (epoch <= wall_ns || epoch - wall_ns <= kHoursMax * kHourNs) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "epoch " + std::to_string(epoch) + " is " + std::to_string((epoch - wall_ns) / kHourNs) +
      " hours ahead of the receiver's clock, at most " + std::to_string(kHoursMax) +
      " are taken: set the clocks right");
}

absl::Status ValidateLoad(const Load& load) {
  if (std::isfinite(load.tokens_per_s) && load.tokens_per_s >= 0) return absl::OkStatus();
  return Invalid("load.tokens_per_s", "not a number from 0");
}

// A side class without a block size would make every division in `Reusable` undefined; a chunk
// without a window has no chunks.
absl::Status ValidateLayout(const CacheLayout& layout) {
  if (layout.sides.size() > kSideClassesMax)
    return Invalid("layout.sides", "at most " + std::to_string(kSideClassesMax) + " classes");
  if (layout.has_main && layout.main.kind != CacheKind::kFull)
    return Invalid("layout.main.kind", "not full attention");
  if (!layout.has_main && layout.sides.empty()) return Invalid("layout", "no class");
  for (const CacheClass& side : layout.sides) {
    if (side.kind == CacheKind::kFull) return Invalid("layout.sides.kind", "full attention");
    if (side.block_size == 0 || side.block_size > kBlockSizeMax)
      return Invalid("layout.sides.block_size", std::to_string(side.block_size));
    if (side.kind == CacheKind::kChunk && side.window_tokens == 0)
      return Invalid("layout.sides.window_tokens", "0");
  }
  return AtMost("layout.main.block_size", layout.main.block_size, kBlockSizeMax);
}

absl::Status Validate(const Event& event) { return std::visit(kOf, event); }
absl::Status Validate(const SenderMessage& message) { return std::visit(kOf, message); }
absl::Status Validate(const ReceiverMessage& message) { return std::visit(kOf, message); }

}  // namespace kvatlas
