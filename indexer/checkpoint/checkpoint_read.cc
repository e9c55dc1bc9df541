// Reads the format of `checkpoint_file.h` from untrusted bytes. `RecordReader` gives checked
// records, Take… functions turn payloads into values or refuse them, and `Pass` walks the file in
// order. `ReadCheckpoint` runs two passes: one that only checks, one that tells the visitor.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/checkpoint/checkpoint_bytes.h"
#include "indexer/checkpoint/checkpoint_file.h"
#include "indexer/checkpoint/checkpoint_records.h"
#include "indexer/stream/validate.h"

namespace kvatlas {
namespace {

// Read at once; at least the largest record is in memory, whatever its length says.
constexpr size_t kWindowBytes = 1 << 20;

// DATA_LOSS. `how` names the structure, not the place.
absl::Status Broken(const char* how) {
  return absl::DataLossError("the checkpoint is broken: " + std::string(how));
}

// ---- Records ----

// One record after another, each with its checksum verified. `window_` holds bytes read ahead:
// [start_, end) is not consumed yet, and `offset_` is the file position of its end.
class RecordReader {
 public:
  explicit RecordReader(const ReadableFile& file) : file_(file) {}

  // INVALID_ARGUMENT: not a checkpoint at all. FAILED_PRECONDITION: a checkpoint of another
  // version. Version 01 is read as 02: it only lacks layouts and side blocks.
  absl::Status Magic() {
    const absl::StatusOr<std::string_view> got = Fill(kCheckpointMagic.size());
    if (!got.ok()) return got.status();
    const std::string_view family = kCheckpointMagic.substr(0, kCheckpointFamilyBytes);
    if (got->substr(0, kCheckpointFamilyBytes) != family)
      return absl::InvalidArgumentError("not a checkpoint");
    if (*got != kCheckpointMagic && *got != kCheckpointMagicWithoutSides) {
      return absl::FailedPreconditionError("a checkpoint of another version, \"" +
                                           std::string(got->substr(kCheckpointFamilyBytes)) + "\"");
    }
    Drop(kCheckpointMagic.size());
    return absl::OkStatus();
  }

  // The next record. `payload` points into the window and is valid until the next call of any
  // method. The length is checked before anything is read for it.
  absl::Status Next(uint8_t* kind, std::string_view* payload) {
    Drop(record_bytes_);
    record_bytes_ = 0;
    const absl::StatusOr<std::string_view> head = Fill(kRecordHeadBytes);
    if (!head.ok()) return head.status();
    ByteTaker taker(*head);
    *kind = taker.Take<uint8_t>();
    const auto size = taker.Take<uint32_t>();
    if (size > kCheckpointRecordBytesMax) return Broken("a record is too long");
    const size_t bytes = kRecordHeadBytes + size + kRecordTailBytes;
    const absl::StatusOr<std::string_view> record = Fill(bytes);
    if (!record.ok()) return record.status();
    const std::string_view signed_bytes = record->substr(0, kRecordHeadBytes + size);
    const auto checksum = ByteTaker(record->substr(signed_bytes.size())).Take<uint64_t>();
    if (checksum != Xxh3(signed_bytes, records_)) return Broken("a checksum is wrong");
    before_ = all_;
    // The end's own checksum is not part of what the end says: `before_` is the fold without the
    // last record.
    all_ = FoldChecksum(all_, checksum);
    ++records_;
    record_bytes_ = bytes;
    *payload = signed_bytes.substr(kRecordHeadBytes);
    return absl::OkStatus();
  }

  // Number and folded checksum of the records before the last one that was read.
  uint64_t records() const { return records_ - 1; }
  uint64_t checksum() const { return before_; }
  // Up to and with the last record.
  uint64_t bytes() const { return offset_ - (window_.size() - start_) + record_bytes_; }

  // Whether the file ends behind the last record. Drops that record: its payload is gone
  // afterwards.
  absl::StatusOr<bool> AtEnd() {
    Drop(std::exchange(record_bytes_, 0));
    if (start_ < window_.size()) return false;
    char byte;
    const absl::StatusOr<size_t> got = file_.Read(offset_, &byte, 1);
    if (!got.ok()) return got.status();
    return *got == 0;
  }

 private:
  void Drop(size_t bytes) { start_ += bytes; }

  // The next `size` bytes, which stay in the window. Reads as much as fits the window, and moves
  // the rest to its front first, so each byte is moved at most once per window. DATA_LOSS: the file
  // has fewer.
  absl::StatusOr<std::string_view> Fill(size_t size) {
    if (window_.size() - start_ < size) {
      window_.erase(0, std::exchange(start_, 0));
      size_t have = window_.size();
      window_.resize(std::max(size, kWindowBytes));
      while (have < size) {
        const absl::StatusOr<size_t> got =
            file_.Read(offset_, window_.data() + have, window_.size() - have);
        if (!got.ok() || *got == 0) window_.resize(have);
        if (!got.ok()) return got.status();
        if (*got == 0) return Broken("it ends early");
        have += *got;
        offset_ += *got;
      }
      window_.resize(have);
    }
    return std::string_view(window_).substr(start_, size);
  }

  const ReadableFile& file_;
  std::string window_;
  size_t start_ = 0;     // of what was not dropped, in the window
  uint64_t offset_ = 0;  // in the file, of the window's end
  size_t record_bytes_ = 0;
  uint64_t records_ = 0;
  uint64_t before_ = 0;
  uint64_t all_ = 0;
};

// ---- Payloads ----

absl::StatusOr<CheckpointHeader> TakeHeader(uint8_t kind, std::string_view payload) {
  if (kind != kHeaderRecord) return Broken("no header");
  ByteTaker from(payload);
  CheckpointHeader header;
  header.contract_id = from.TakeText();
  header.cell = from.TakeText();
  header.replica = from.TakeText();
  header.wall_time_ns = from.Take<uint64_t>();
  header.number = from.Take<uint64_t>();
  if (!from.ok()) return Broken("the header");
  return header;
}

Load TakeLoad(ByteTaker* from) {
  Load load;
  load.running_requests = from->Take<uint32_t>();
  load.waiting_requests = from->Take<uint32_t>();
  load.used_blocks = from->Take<uint64_t>();
  load.free_blocks = from->Take<uint64_t>();
  load.waiting_prefill_blocks = from->Take<uint64_t>();
  load.tokens_per_s = from->Take<double>();
  load.workers = from->Take<uint32_t>();
  return load;
}

CacheClass TakeClass(ByteTaker* from, bool* ok) {
  CacheClass of;
  const auto kind = from->Take<uint8_t>();
  *ok = *ok && kind < kCacheKinds;
  of.kind = static_cast<CacheKind>(kind < kCacheKinds ? kind : 0);
  of.drops_last = from->Take<uint8_t>() & kClassDropsLast;
  of.block_size = from->Take<uint32_t>();
  of.window_tokens = from->Take<uint32_t>();
  return of;
}

// False: no holder can have this layout. The count is checked before the loop, so that a wrong one
// costs no memory.
bool TakeLayout(ByteTaker* from, CacheLayout* layout) {
  bool ok = true;
  layout->has_main = from->Take<uint8_t>() & kLayoutHasMain;
  layout->main = TakeClass(from, &ok);
  const uint64_t sides = from->TakeVarint();
  if (sides > kSideClassesMax) return false;
  for (uint64_t i = 0; i < sides; ++i) layout->sides.push_back(TakeClass(from, &ok));
  return ok && from->ok() && ValidateLayout(*layout).ok();
}

// The loop over labels ends with the payload (`from.ok()`), whatever the count says. All values are
// checked against what a live stream could have had: the registry relies on it.
absl::StatusOr<HolderImage> TakeHolder(std::string_view payload) {
  ByteTaker from(payload);
  HolderImage image;
  image.info.id.name = from.TakeText();
  image.info.id.rank = from.Take<uint32_t>();
  image.info.id.replica = from.TakeText();
  image.info.address = from.TakeText();
  for (uint64_t left = from.TakeVarint(); left > 0 && from.ok(); --left) {
    std::string name = from.TakeText();
    image.info.labels.emplace_back(std::move(name), from.TakeText());
  }
  image.stream.epoch = from.Take<uint64_t>();
  image.stream.instance_id = from.Take<uint64_t>();
  image.stream.applied = from.Take<uint64_t>();
  const auto flags = from.Take<uint8_t>();
  image.stream.whole = flags & kHolderWhole;
  image.stream.sender_degraded = flags & kHolderSenderDegraded;
  image.lease_over = flags & kHolderLeaseOver;
  const auto silent = from.Take<uint64_t>();
  if (flags & kHolderHasLoad) image.load = TakeLoad(&from);
  for (Digest::OfTier& tier : image.digest.tiers) {
    tier.blocks = from.Take<uint64_t>();
    tier.sum = from.Take<uint64_t>();
  }
  const bool layout_ok = (flags & kHolderHasLayout) == 0 || TakeLayout(&from, &image.layout);
  // Far from where adding the checkpoint's age could overflow.
  constexpr uint64_t kSilentMax = std::numeric_limits<int64_t>::max() / 4;
  const bool load_ok = !image.load.has_value() ||
                       (std::isfinite(image.load->tokens_per_s) && image.load->tokens_per_s >= 0);
  if (!from.ok() || silent > kSilentMax || !load_ok || !layout_ok ||
      image.stream.epoch > kEpochMax || image.stream.applied > kBatchNumberMax ||
      !ValidateHolder(image.info.id, image.info.labels).ok()) {
    return Broken("a holder");
  }
  image.silent = Duration(static_cast<int64_t>(silent));
  return image;
}

template <typename Hash>
bool TakeHashes(ByteTaker* from, uint64_t count, std::vector<Hash>* hashes) {
  const std::string_view bytes = from->TakeBytes(count * sizeof(Hash));
  if (!from->ok()) return false;
  hashes->resize(count);
  if (count > 0) std::memcpy(hashes->data(), bytes.data(), bytes.size());
  return true;
}

// False: not a run. `run` is reused from call to call, hence every field is set. The position of
// the last block must fit.
bool TakeRun(ByteTaker* from, Stored* run, TierMask* tiers) {
  const auto flags = from->Take<uint8_t>();
  const uint64_t position = from->TakeVarint();
  run->parent = kNoParent;
  if (flags & kRunHasParent) run->parent = SequenceHash{from->Take<uint64_t>()};
  const uint64_t count = from->TakeVarint();
  *tiers = TierMask(flags & kRunTiers);
  if (!from->ok() || tiers->empty() || count == 0 || count > kBatchBlocksMax ||
      position > std::numeric_limits<Position>::max() - count) {
    return false;
  }
  run->side = 0;
  run->position = static_cast<Position>(position);
  run->local_hashes.clear();
  if (!TakeHashes(from, count, &run->blocks)) return false;
  return !(flags & kRunHasLocals) || TakeHashes(from, count, &run->local_hashes);
}

// False: not a list of names. Files from before the class bits have 0 there: not known.
bool TakeNames(ByteTaker* from, Stored* run, TierMask* tiers) {
  const auto flags = from->Take<uint8_t>();
  const uint64_t count = from->TakeVarint();
  *tiers = TierMask(flags & kRunTiers);
  const SideClass side = flags >> kNamesSideShift;
  run->side = side == 0 ? kUnknownSide : side;
  run->position = 0;
  run->parent = kNoParent;
  run->local_hashes.clear();
  return from->ok() && !tiers->empty() && count > 0 && count <= kBatchBlocksMax &&
         TakeHashes(from, count, &run->blocks);
}

// ---- The file ----

// One walk through the whole file. Without a visitor it only checks. The state is what order
// demands: a holder needs a domain before it, runs a holder.
class Pass {
 public:
  Pass(const ReadableFile& file, const CheckpointExpectation& expect, CheckpointVisitor* visitor)
      : reader_(file), expect_(expect), visitor_(visitor) {}

  absl::StatusOr<CheckpointCounts> Run() {
    if (absl::Status bad = reader_.Magic(); !bad.ok()) return bad;
    if (absl::Status bad = Header(); !bad.ok()) return bad;
    for (;;) {
      if (absl::Status bad = NextRecord(); !bad.ok()) return bad;
      if (kind_ == kEndRecord) break;
      if (absl::Status bad = Take(); !bad.ok()) return bad;
    }
    if (absl::Status bad = End(); !bad.ok()) return bad;
    return counts_;
  }

 private:
  // The next record, or the one that `TakeEngines` has read beyond the engines (`left_`).
  absl::Status NextRecord() {
    if (std::exchange(left_, false)) return absl::OkStatus();
    return reader_.Next(&kind_, &payload_);
  }

  absl::Status Header() {
    if (absl::Status bad = NextRecord(); !bad.ok()) return bad;
    const absl::StatusOr<CheckpointHeader> header = TakeHeader(kind_, payload_);
    if (!header.ok()) return header.status();
    if (header->contract_id != expect_.contract_id) {
      return absl::FailedPreconditionError("hash contract \"" + header->contract_id +
                                           "\" is not ours, \"" + expect_.contract_id + "\"");
    }
    if (expect_.cell.has_value() && header->cell != *expect_.cell) {
      return absl::FailedPreconditionError("cell \"" + header->cell + "\" is not ours, \"" +
                                           *expect_.cell + "\"");
    }
    return visitor_ == nullptr ? absl::OkStatus() : visitor_->OnHeader(*header);
  }

  // Dispatches one record between header and end. Unknown kinds are skipped: a newer writer may
  // have added some (checksums and counts still cover them).
  absl::Status Take() {
    switch (kind_) {
      case kHeaderRecord:
        return Broken("a second header");
      case kDomainRecord:
        return TakeDomain();
      case kHolderRecord: {
        if (!in_domain_) return Broken("a holder without a domain");
        in_holder_ = true;
        const absl::StatusOr<HolderImage> image = TakeHolder(payload_);
        if (!image.ok()) return image.status();
        ++counts_.holders;
        return visitor_ == nullptr ? absl::OkStatus() : visitor_->OnHolder(*image);
      }
      case kRunsRecord:
        return TakeRuns(TakeRun, &counts_.blocks);
      case kSidesRecord:
        return TakeRuns(TakeNames, &counts_.side_blocks);
      case kEnginesRecord:
        return TakeEngines();
      default:
        return absl::OkStatus();
    }
  }

  absl::Status TakeDomain() {
    ByteTaker from(payload_);
    Domain domain;
    domain.model = from.TakeText();
    domain.tenant = from.TakeText();
    const auto block_size = from.Take<uint32_t>();
    if (!from.ok() || !ValidateDomain(domain).ok() || block_size == 0 ||
        block_size > kBlockSizeMax) {
      return Broken("a domain");
    }
    in_domain_ = true;
    in_holder_ = false;
    return visitor_ == nullptr ? absl::OkStatus() : visitor_->OnDomain(domain, block_size);
  }

  // Runs and side names alike. The blocks are counted for the end's check also when there is no
  // visitor.
  absl::Status TakeRuns(bool (*take)(ByteTaker*, Stored*, TierMask*), uint64_t* blocks) {
    if (!in_holder_) return Broken("runs without a holder");
    ByteTaker from(payload_);
    while (!from.empty()) {
      TierMask tiers;
      if (!take(&from, &run_, &tiers)) return Broken("a run");
      *blocks += run_.blocks.size();
      if (visitor_ == nullptr) continue;
      if (absl::Status bad = visitor_->OnRun(&run_, tiers); !bad.ok()) return bad;
    }
    return absl::OkStatus();
  }

  // Consecutive engine records are one stream of bytes, which the visitor pulls. It need not pull
  // all: what it leaves is read here as further engine records and skipped (`engines_told_`), so
  // that the walk goes on behind them. A record of another kind, once read, is left for
  // `NextRecord`.
  absl::Status TakeEngines() {
    counts_.engine_bytes += payload_.size();
    if (visitor_ == nullptr) return absl::OkStatus();
    if (std::exchange(engines_told_, true)) return absl::OkStatus();
    std::string_view rest = payload_;
    return visitor_->OnEngines([&](char* to, size_t size) -> absl::StatusOr<size_t> {
      while (rest.empty()) {
        if (left_) return size_t{0};
        if (absl::Status bad = reader_.Next(&kind_, &payload_); !bad.ok()) return bad;
        left_ = kind_ != kEnginesRecord;
        if (left_) return size_t{0};
        counts_.engine_bytes += payload_.size();
        rest = payload_;
      }
      const size_t take = std::min(size, rest.size());
      std::memcpy(to, rest.data(), take);
      rest.remove_prefix(take);
      return take;
    });
  }

  // Compares what was read with what the writer counted. Bytes behind the end are refused: a file
  // whose end is in its middle was put together from two.
  absl::Status End() {
    ByteTaker from(payload_);
    const auto records = from.Take<uint64_t>();
    const auto blocks = from.Take<uint64_t>();
    const auto checksum = from.Take<uint64_t>();
    if (!from.ok() || records != reader_.records() ||
        blocks != counts_.blocks + counts_.side_blocks || checksum != reader_.checksum()) {
      return Broken("records are missing");
    }
    counts_.bytes = reader_.bytes();
    const absl::StatusOr<bool> at_end = reader_.AtEnd();
    if (!at_end.ok()) return at_end.status();
    if (!*at_end) return Broken("something stands behind its end");
    return visitor_ == nullptr ? absl::OkStatus() : visitor_->OnEnd();
  }

  RecordReader reader_;
  const CheckpointExpectation& expect_;
  CheckpointVisitor* const visitor_;
  uint8_t kind_ = 0;
  std::string_view payload_;
  bool left_ = false;  // the last record read is still to be taken
  bool in_domain_ = false;
  bool in_holder_ = false;
  bool engines_told_ = false;
  Stored run_;
  CheckpointCounts counts_;
};

}  // namespace

// The first pass reads everything to learn whether it may be told: a visitor never sees part of a
// spoiled file, unless the file changes or fails between the passes.
absl::StatusOr<CheckpointCounts> ReadCheckpoint(const ReadableFile& file,
                                                const CheckpointExpectation& expect,
                                                CheckpointVisitor* visitor) {
  absl::StatusOr<CheckpointCounts> checked = Pass(file, expect, nullptr).Run();
  if (!checked.ok()) return checked;
  return Pass(file, expect, visitor).Run();
}

absl::StatusOr<CheckpointHeader> ReadCheckpointHeader(const ReadableFile& file) {
  RecordReader reader(file);
  if (absl::Status bad = reader.Magic(); !bad.ok()) return bad;
  uint8_t kind = 0;
  std::string_view payload;
  if (absl::Status bad = reader.Next(&kind, &payload); !bad.ok()) return bad;
  return TakeHeader(kind, payload);
}

}  // namespace kvatlas
