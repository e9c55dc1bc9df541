// What does an index have to do, in which order? A recorded stream of queries and KV events: one
// input for every structure, ours and others'.
//
// *Format*: KVOPS001, little-endian, everything 8-byte aligned. A header of 64 bytes (`OpsHeader`),
// then operations: 32 bytes (`OpHeader`) and a body: query and store: count × { local u64, seq u64
// }; remove: count × { seq u64 }; clear: nothing. Local and sequence hashes follow the hash
// contract (`indexer/base/hash.h`).
// *Truth*: an `OpsFile` is checked on opening: every operation lies inside the file, kinds and
// worker numbers are in range, the counts of the header are those of the body. What is wrong is
// said with the operation's number.
// *Threads*: an opened file is immutable; any number of threads may read it.
// *Lifetime*: the file is mapped; spans of `BenchOp` point into it and live as long as it does.
//
// Example:
//   absl::StatusOr<OpsFile> file = OpsFile::Open("a.ops");
//   for (const BenchOp& op : file->ops()) ...

#ifndef KVATLAS_TOOLS_BENCH_OPS_H_
#define KVATLAS_TOOLS_BENCH_OPS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/ids.h"

namespace kvatlas {

struct OpsHeader {
  char magic[8];
  uint32_t block_size = 0;
  uint32_t workers = 0;
  uint64_t ops = 0;
  uint64_t query_blocks = 0;
  uint64_t store_blocks = 0;
  uint64_t remove_blocks = 0;
  uint64_t duration_ns = 0;
  uint64_t reserved = 0;
};
static_assert(sizeof(OpsHeader) == 64);

enum class OpKind : uint32_t { kQuery = 1, kStore = 2, kRemove = 3, kClear = 4 };

struct OpHeader {
  OpKind kind = OpKind::kQuery;
  uint32_t worker = 0;
  uint32_t count = 0;
  uint32_t position = 0;
  uint64_t time_ns = 0;
  uint64_t parent = 0;
};
static_assert(sizeof(OpHeader) == 32);

// A block as queries and stores name it.
struct OpBlock {
  LocalHash local{0};
  SequenceHash seq{0};
};
static_assert(sizeof(OpBlock) == 16);

struct BenchOp {
  OpHeader header;
  std::span<const OpBlock> blocks;        // query, store
  std::span<const SequenceHash> removed;  // remove
};

class OpsFile {
 public:
  // NOT_FOUND, or INVALID_ARGUMENT "FILE: operation N: reason".
  static absl::StatusOr<OpsFile> Open(const std::string& path);

  OpsFile(OpsFile&&);
  OpsFile& operator=(OpsFile&&);
  ~OpsFile();

  const OpsHeader& header() const;
  std::span<const BenchOp> ops() const;

 private:
  struct Contents;
  explicit OpsFile(std::unique_ptr<Contents> contents);
  std::unique_ptr<Contents> contents_;
};

// Writes an ops file operation by operation; the header is written by `Finish`.
class OpsWriter {
 public:
  static absl::StatusOr<OpsWriter> Create(const std::string& path, uint32_t block_size,
                                          uint32_t workers);
  OpsWriter(OpsWriter&&);
  OpsWriter& operator=(OpsWriter&&);
  ~OpsWriter();

  void Query(std::span<const OpBlock> blocks, uint64_t time_ns);
  void Store(uint32_t worker, uint32_t position, SequenceHash parent,
             std::span<const OpBlock> blocks, uint64_t time_ns);
  void Remove(uint32_t worker, std::span<const SequenceHash> blocks, uint64_t time_ns);
  void Clear(uint32_t worker, uint64_t time_ns);

  // Writes what is buffered and the header; the first error of any write, if there was one.
  absl::Status Finish();

  const OpsHeader& header() const;

 private:
  struct State;
  explicit OpsWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_OPS_H_
