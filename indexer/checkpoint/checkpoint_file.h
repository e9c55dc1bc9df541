// One checkpoint as a file, written and read: bytes become typed values, or a reason why not.
//
//   header, then for each domain: the domain, then for each holder: the holder and its runs; then
//   engines; then the end
//
// *Format*: the magic "KVACKP02", then records: kind (1 byte), length (u32), payload, xxh3-64 of
// kind, length and payload with the record's number as seed (u64). All integers little-endian; v
// marks LEB128 varints; texts have a v length.
//
//   1 header   contract id, cell, replica: texts; wall time in ns u64; the checkpoint's own number u64
//   2 domain   model, tenant: texts; block size u32
//   3 holder   name text, rank u32, replica, address: texts; labels: v count, then two texts each; epoch, instance id, applied:
//              u64; flags u8 (1 whole, 2 lease over, 4 load, 8 sender degraded, 16 layout); silent ns u64; load: running, waiting u32, used, free,
//              waiting prefill u64, tokens/s f64, workers u32; digest: per tier blocks, sum u64; layout:
//              flags u8 (1 it has a main class), the main class, v count, side classes; of each kind, flags u8 (1 drops last),
//              block size, window tokens u32
//   4 runs     of the last holder: until the payload ends, flags u8 (1, 2, 4, 8 tiers device, host, disk, external, 16 parent,
//              32 local hashes), position v, parent u64 if it has one, count v, sequence hashes u64, local hashes u64 if any
//   5 engines  the next piece of a replica's snapshot (`replica_snapshot.h`): names and positions
//   of engines' own streams
//   7 sides    of the last holder: until the payload ends, flags u8 (tiers as in runs; the upper four bits are the number of the side
//              class in the holder's layout, from 1; 0: not known, as in files from before these bits), count v, names of side
//              blocks u64 (`cache_class.h`)
//   6 end      records before u64, blocks u64 (side blocks too), and c u64: from 0, c = xxh3-64(c ‖ checksum) over all records before
//
// A run has one set of tiers: blocks in several are written once. Runs come parents first. An
// unknown kind of record is skipped, a payload may have more at its end; anything that older
// readers must not miss changes the magic's number. 01 had neither layouts nor side blocks; it is
// read as it was: its holders have the main class alone.
// *Cost*: 8 bytes a block and holder and some 5 to 13 a run; engines' names as their snapshot has
// them.
// *Truth*: `ReadCheckpoint` checks all of the file before it tells anything. What it refuses:
// DATA_LOSS: a checksum, a length, a value or the end is not as it was written.
// FAILED_PRECONDITION: another version, contract or cell. INVALID_ARGUMENT: no checkpoint at all.
// *Bounds*: a record has at most `kCheckpointRecordBytesMax`; reading keeps one, whatever lengths
// say.

#ifndef KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_FILE_H_
#define KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/tier.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/checkpoint/file_layer.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

inline constexpr size_t kCheckpointRecordBytesMax = 1 << 20;

struct CheckpointHeader {
  std::string contract_id;
  std::string cell;
  std::string replica;
  uint64_t wall_time_ns = 0;  // when it was begun
  uint64_t number = 0;
};

struct CheckpointCounts {
  uint64_t holders = 0;
  uint64_t blocks = 0;       // (holder, block) pairs of holders fed by streams, of their main class
  uint64_t side_blocks = 0;  // likewise, of side classes
  uint64_t engine_bytes = 0;
  uint64_t engine_names =
      0;               // of blocks that engines' own streams told; of a checkpoint that was written
  uint64_t bytes = 0;  // of the file
};

// Writes in the order of the format. After an error nothing more is to be written.
class CheckpointWriter {
 public:
  // The file outlives it. `pause`, which may be empty, is called after each record, of about 256 KB
  // at most; its error ends the writing with it.
  CheckpointWriter(WritableFile* file, std::function<absl::Status()> pause);

  absl::Status Begin(const CheckpointHeader& header);
  absl::Status AddDomain(const Domain& domain, uint32_t block_size);
  // A holder of the domain added last.
  absl::Status AddHolder(const HolderCut& cut);
  absl::Status AddEngines(std::string_view piece);
  // How many names the pieces have, for `counts`.
  void CountEngineNames(uint64_t names) { counts_.engine_names = names; }
  absl::Status End();

  const CheckpointCounts& counts() const { return counts_; }

 private:
  absl::Status AddSides(const std::vector<SideHolding>& sides);
  absl::Status Record(uint8_t kind, std::string_view payload);
  absl::Status Flush();

  WritableFile* const file_;
  const std::function<absl::Status()> pause_;
  CheckpointCounts counts_;
  std::string buffer_;
  uint64_t checksum_ = 0;  // of all records so far
  uint64_t records_ = 0;
};

// Receives what is read, in the order of the file. Anything but OK ends the reading with it.
class CheckpointVisitor {
 public:
  virtual ~CheckpointVisitor() = default;
  virtual absl::Status OnHeader(const CheckpointHeader& header) = 0;
  virtual absl::Status OnDomain(const Domain& domain, uint32_t block_size) = 0;
  // The runs that follow are this holder's, until the next one or `OnEnd`.
  virtual absl::Status OnHolder(const HolderImage& image) = 0;
  // The run is in all of `tiers`; its own tier is the visitor's to set. Side blocks come behind the
  // main ones, as runs of one class (`side`) or of classes that are not known (`kUnknownSide`).
  virtual absl::Status OnRun(Stored* run, TierMask tiers) = 0;
  // At most once: the bytes of a replica's snapshot. It need not read them.
  virtual absl::Status OnEngines(const ReadChunk& read) = 0;
  virtual absl::Status OnEnd() = 0;
};

struct CheckpointExpectation {
  std::string contract_id;
  std::optional<std::string> cell;  // nothing: any
};

absl::StatusOr<CheckpointCounts> ReadCheckpoint(const ReadableFile& file,
                                                const CheckpointExpectation& expect,
                                                CheckpointVisitor* visitor);

// The header alone, of which only its own checksum is checked; statuses as above.
absl::StatusOr<CheckpointHeader> ReadCheckpointHeader(const ReadableFile& file);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_FILE_H_
