// Writes the format of `checkpoint_file.h`. Put… functions append one structure to a payload, Add…
// methods write records, `Record` frames and checksums one. Bytes are collected in a buffer of 1
// MiB and appended to the file; syncing is the store's.

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/checkpoint/checkpoint_bytes.h"
#include "indexer/checkpoint/checkpoint_file.h"
#include "indexer/checkpoint/checkpoint_records.h"
#include "indexer/checkpoint/checkpoint_runs.h"

namespace kvatlas {
namespace {

// A record of runs or names is closed when its payload reaches so many bytes.
constexpr size_t kRunsBytes = 256 << 10;  // of one record, about
constexpr size_t kBufferBytes = 1 << 20;
// The payload grows by one run before it is looked at: at most 16 bytes a block (two hashes), and
// the run's head.
static_assert(kRunsBytes + kBatchBlocksMax * 16 + 64 <= kCheckpointRecordBytesMax);

void PutClass(std::string* to, const CacheClass& of) {
  PutNumber(to, static_cast<uint8_t>(of.kind));
  PutNumber(to, of.drops_last ? kClassDropsLast : uint8_t{0});
  PutNumber(to, of.block_size);
  PutNumber(to, of.window_tokens);
}

// Layouts are written only where they are not plain (full attention alone): `kHolderHasLayout`.
void PutLayout(std::string* to, const CacheLayout& layout) {
  PutNumber(to, layout.has_main ? kLayoutHasMain : uint8_t{0});
  PutClass(to, layout.main);
  PutVarint(to, layout.sides.size());
  for (const CacheClass& side : layout.sides) PutClass(to, side);
}

// The holder's record. Order and widths are the format's; `TakeHolder` reads the same in the same
// order. A field may only be added at the end, with a flag.
std::string HolderBytes(const HolderImage& image) {
  std::string to;
  PutText(&to, image.info.id.name);
  PutNumber(&to, image.info.id.rank);
  PutText(&to, image.info.id.replica);
  PutText(&to, image.info.address);
  PutVarint(&to, image.info.labels.size());
  for (const auto& [name, value] : image.info.labels) {
    PutText(&to, name);
    PutText(&to, value);
  }
  PutNumber(&to, image.stream.epoch);
  PutNumber(&to, image.stream.instance_id);
  PutNumber(&to, image.stream.applied);
  uint8_t flags = 0;
  if (image.stream.whole) flags |= kHolderWhole;
  if (image.stream.sender_degraded) flags |= kHolderSenderDegraded;
  if (image.lease_over) flags |= kHolderLeaseOver;
  if (image.load.has_value()) flags |= kHolderHasLoad;
  if (!image.layout.plain()) flags |= kHolderHasLayout;
  PutNumber(&to, flags);
  PutNumber(&to, static_cast<uint64_t>(image.silent.count()));
  if (image.load.has_value()) {
    PutNumber(&to, image.load->running_requests);
    PutNumber(&to, image.load->waiting_requests);
    PutNumber(&to, image.load->used_blocks);
    PutNumber(&to, image.load->free_blocks);
    PutNumber(&to, image.load->waiting_prefill_blocks);
    PutNumber(&to, image.load->tokens_per_s);
    PutNumber(&to, image.load->workers);
  }
  for (const Digest::OfTier& tier : image.digest.tiers) {
    PutNumber(&to, tier.blocks);
    PutNumber(&to, tier.sum);
  }
  if (!image.layout.plain()) PutLayout(&to, image.layout);
  return to;
}

// A run's blocks share tiers and follow one another, so only the first one's parent and position
// are written: a reader derives the others. Local hashes are written when any block has one; 0
// stands for a block without.
void PutRun(std::string* to, const std::vector<Holding>& holdings, std::span<const uint32_t> run) {
  const Holding& first = holdings[run.front()];
  const bool locals = std::any_of(run.begin(), run.end(),
                                  [&](uint32_t i) { return holdings[i].local != LocalHash{0}; });
  uint8_t flags = first.tiers.bits();
  if (first.parent != kNoParent) flags |= kRunHasParent;
  if (locals) flags |= kRunHasLocals;
  PutNumber(to, flags);
  PutVarint(to, first.position);
  if (first.parent != kNoParent) PutNumber(to, Raw(first.parent));
  PutVarint(to, run.size());
  for (const uint32_t i : run) PutNumber(to, Raw(holdings[i].block));
  if (locals)
    for (const uint32_t i : run) PutNumber(to, Raw(holdings[i].local));
}

}  // namespace

CheckpointWriter::CheckpointWriter(WritableFile* file, std::function<absl::Status()> pause)
    : file_(file), pause_(std::move(pause)) {}

absl::Status CheckpointWriter::Begin(const CheckpointHeader& header) {
  buffer_ += kCheckpointMagic;
  std::string payload;
  PutText(&payload, header.contract_id);
  PutText(&payload, header.cell);
  PutText(&payload, header.replica);
  PutNumber(&payload, header.wall_time_ns);
  PutNumber(&payload, header.number);
  return Record(kHeaderRecord, payload);
}

absl::Status CheckpointWriter::AddDomain(const Domain& domain, uint32_t block_size) {
  std::string payload;
  PutText(&payload, domain.model);
  PutText(&payload, domain.tenant);
  PutNumber(&payload, block_size);
  return Record(kDomainRecord, payload);
}

// The holder's record, then its main blocks as runs, parents first, then its side blocks.
// `VisitRuns` sorts all of the holder's blocks first, which is the longest step between two pauses.
absl::Status CheckpointWriter::AddHolder(const HolderCut& cut) {
  ++counts_.holders;
  counts_.blocks += cut.holdings.size();
  counts_.side_blocks += cut.sides.size();
  absl::Status status = Record(kHolderRecord, HolderBytes(cut.image));
  if (!status.ok()) return status;
  std::string payload;
  status = VisitRuns(cut.holdings, [&](std::span<const uint32_t> run) {
    PutRun(&payload, cut.holdings, run);
    if (payload.size() < kRunsBytes) return absl::OkStatus();
    absl::Status written = Record(kRunsRecord, payload);
    payload.clear();
    return written;
  });
  if (status.ok() && !payload.empty()) status = Record(kRunsRecord, payload);
  return status.ok() ? AddSides(cut.sides) : status;
}

// Names of side blocks, grouped by class and tiers: the flags byte is the class number (4 bits)
// above the tiers (4 bits). Class numbers that do not fit become 0, not known. Groups are cut at
// `kBatchBlocksMax`, so that the visitor gets them as runs. Flags 0 do not occur: a held block is
// in some tier.
absl::Status CheckpointWriter::AddSides(const std::vector<SideHolding>& sides) {
  std::array<std::vector<SequenceHash>, 256> by_flags;
  for (const SideHolding& side : sides) {
    const uint8_t of = side.side <= kNamesSideMax ? side.side : 0;
    by_flags[of << kNamesSideShift | side.tiers.bits()].push_back(side.name);
  }
  std::string payload;
  for (size_t flags = 1; flags < by_flags.size(); ++flags) {
    const std::span<const SequenceHash> names = by_flags[flags];
    for (size_t from = 0; from < names.size(); from += kBatchBlocksMax) {
      const auto piece = names.subspan(from, std::min(kBatchBlocksMax, names.size() - from));
      PutNumber(&payload, static_cast<uint8_t>(flags));
      PutVarint(&payload, piece.size());
      for (const SequenceHash name : piece) PutNumber(&payload, Raw(name));
      if (payload.size() < kRunsBytes) continue;
      if (absl::Status status = Record(kSidesRecord, payload); !status.ok()) return status;
      payload.clear();
    }
  }
  return payload.empty() ? absl::OkStatus() : Record(kSidesRecord, payload);
}

// The bytes of a snapshot, cut anywhere: the reader joins the records again (`Pass::TakeEngines`).
absl::Status CheckpointWriter::AddEngines(std::string_view piece) {
  counts_.engine_bytes += piece.size();
  for (size_t from = 0; from < piece.size(); from += kRunsBytes) {
    absl::Status status = Record(kEnginesRecord, piece.substr(from, kRunsBytes));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The end counts all records before it and folds their checksums in order, so that missing,
// repeated or reordered records are found as well as spoiled ones.
absl::Status CheckpointWriter::End() {
  std::string payload;
  PutNumber(&payload, records_);
  PutNumber(&payload, counts_.blocks + counts_.side_blocks);
  PutNumber(&payload, checksum_);
  absl::Status status = Record(kEndRecord, payload);
  return status.ok() ? Flush() : status;
}

// The record's own number seeds its checksum: a record that is moved within the file, or copied
// from another place, does not pass. The pause comes last, when the buffer is consistent.
absl::Status CheckpointWriter::Record(uint8_t kind, std::string_view payload) {
  const size_t start = buffer_.size();
  PutNumber(&buffer_, kind);
  PutNumber(&buffer_, static_cast<uint32_t>(payload.size()));
  buffer_ += payload;
  const uint64_t checksum = Xxh3(std::string_view(buffer_).substr(start), records_);
  PutNumber(&buffer_, checksum);
  checksum_ = FoldChecksum(checksum_, checksum);
  ++records_;
  if (buffer_.size() >= kBufferBytes)
    if (absl::Status status = Flush(); !status.ok()) return status;
  return pause_ ? pause_() : absl::OkStatus();
}

absl::Status CheckpointWriter::Flush() {
  absl::Status status = file_->Append(buffer_);
  counts_.bytes += buffer_.size();
  buffer_.clear();
  return status;
}

}  // namespace kvatlas
