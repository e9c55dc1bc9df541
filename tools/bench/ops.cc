#include "tools/bench/ops.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace kvatlas {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'O', 'P', 'S', '0', '0', '1'};

// A whole file, mapped read-only.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (size_ > 0) munmap(data_, size_);
  }

  absl::Status Map(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return absl::NotFoundError(path + ": " + std::strerror(errno));
    absl::Status status = MapOpened(path, file);
    close(file);
    return status;
  }

  std::span<const unsigned char> bytes() const {
    return {static_cast<const unsigned char*>(data_), size_};
  }

 private:
  absl::Status MapOpened(const std::string& path, int file) {
    struct stat about;
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
      return absl::InvalidArgumentError(path + ": not a regular file");
    }
    if (about.st_size == 0) return absl::InvalidArgumentError(path + ": empty");
    void* data = mmap(nullptr, about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) return absl::InvalidArgumentError(path + ": " + std::strerror(errno));
    data_ = data;
    size_ = about.st_size;
    return absl::OkStatus();
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes of a body; 128 bits would not be needed, a count has 32.
size_t BodyBytes(const OpHeader& header) {
  switch (header.kind) {
    case OpKind::kQuery:
    case OpKind::kStore:
      return size_t{header.count} * sizeof(OpBlock);
    case OpKind::kRemove:
      return size_t{header.count} * sizeof(SequenceHash);
    case OpKind::kClear:
      return 0;
  }
  return 0;
}

// Why a header cannot be, or null.
const char* WhyWrong(const OpHeader& header, uint32_t workers) {
  if (header.kind < OpKind::kQuery || header.kind > OpKind::kClear) return "unknown kind";
  if (header.kind == OpKind::kQuery) {
    return header.worker == 0 ? nullptr : "a query names a worker";
  }
  if (header.worker >= workers) return "no such worker";
  if (header.kind == OpKind::kClear && header.count != 0) return "a clear names blocks";
  if (header.kind != OpKind::kStore) return nullptr;
  if (header.position == 0 && header.parent != 0) return "a store at the root has a parent";
  if (header.count > std::numeric_limits<uint32_t>::max() - header.position) {
    return "positions overflow";
  }
  return nullptr;
}

// Adds an operation to the totals of a header.
void Count(const OpHeader& op, OpsHeader* totals) {
  ++totals->ops;
  if (op.kind == OpKind::kQuery) totals->query_blocks += op.count;
  if (op.kind == OpKind::kStore) totals->store_blocks += op.count;
  if (op.kind == OpKind::kRemove) totals->remove_blocks += op.count;
}

absl::Status CheckTotals(const OpsHeader& said, const OpsHeader& found) {
  if (said.query_blocks != found.query_blocks) {
    return absl::InvalidArgumentError("query_blocks is not what the operations have");
  }
  if (said.store_blocks != found.store_blocks) {
    return absl::InvalidArgumentError("store_blocks is not what the operations have");
  }
  if (said.remove_blocks != found.remove_blocks) {
    return absl::InvalidArgumentError("remove_blocks is not what the operations have");
  }
  return absl::OkStatus();
}

// One operation from the front of `bytes`, which become the rest.
absl::StatusOr<BenchOp> TakeOp(std::span<const unsigned char>* bytes, uint32_t workers) {
  if (bytes->size() < sizeof(OpHeader)) return absl::InvalidArgumentError("the file ends in it");
  BenchOp op;
  std::memcpy(&op.header, bytes->data(), sizeof(OpHeader));
  if (const char* why = WhyWrong(op.header, workers)) return absl::InvalidArgumentError(why);
  const size_t body_bytes = BodyBytes(op.header);
  if (bytes->size() - sizeof(OpHeader) < body_bytes) {
    return absl::InvalidArgumentError("the file ends in its blocks");
  }
  const unsigned char* body = bytes->data() + sizeof(OpHeader);
  if (op.header.kind == OpKind::kRemove) {
    op.removed = {reinterpret_cast<const SequenceHash*>(body), op.header.count};
  } else {
    op.blocks = {reinterpret_cast<const OpBlock*>(body), body_bytes / sizeof(OpBlock)};
  }
  *bytes = bytes->subspan(sizeof(OpHeader) + body_bytes);
  return op;
}

// Appends all operations of a KVOPS001 file to `ops`. The status has no file name.
absl::Status ParseOps(std::span<const unsigned char> bytes, OpsHeader* header,
                      std::vector<BenchOp>* ops) {
  if (bytes.size() < sizeof(OpsHeader))
    return absl::InvalidArgumentError("shorter than its header");
  std::memcpy(header, bytes.data(), sizeof(OpsHeader));
  if (std::memcmp(header->magic, kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError("not a KVOPS001 file");
  }
  if (header->reserved != 0) return absl::InvalidArgumentError("the reserved field is not 0");
  bytes = bytes.subspan(sizeof(OpsHeader));
  if (header->ops > bytes.size() / sizeof(OpHeader)) {
    return absl::InvalidArgumentError("more operations than the file has room for");
  }
  ops->reserve(header->ops);
  OpsHeader found{};
  for (uint64_t i = 0; i < header->ops; ++i) {
    absl::StatusOr<BenchOp> op = TakeOp(&bytes, header->workers);
    if (!op.ok()) {
      return absl::InvalidArgumentError("operation " + std::to_string(i) + ": " +
                                        std::string(op.status().message()));
    }
    Count(op->header, &found);
    ops->push_back(*op);
  }
  if (!bytes.empty()) return absl::InvalidArgumentError("bytes after the last operation");
  return CheckTotals(*header, found);
}

}  // namespace

// ---- OpsFile ----

struct OpsFile::Contents {
  Mapping mapping;
  OpsHeader header{};
  std::vector<BenchOp> ops;
};

OpsFile::OpsFile(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
OpsFile::OpsFile(OpsFile&&) = default;
OpsFile& OpsFile::operator=(OpsFile&&) = default;
OpsFile::~OpsFile() = default;

const OpsHeader& OpsFile::header() const { return contents_->header; }
std::span<const BenchOp> OpsFile::ops() const { return contents_->ops; }

absl::StatusOr<OpsFile> OpsFile::Open(const std::string& path) {
  auto contents = std::make_unique<Contents>();
  if (absl::Status mapped = contents->mapping.Map(path); !mapped.ok()) return mapped;
  const absl::Status parsed =
      ParseOps(contents->mapping.bytes(), &contents->header, &contents->ops);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(path + ": " + std::string(parsed.message()));
  }
  return OpsFile(std::move(contents));
}

// ---- OpsWriter ----

struct OpsWriter::State {
  std::string path;
  FILE* file = nullptr;
  OpsHeader header{};
  bool failed = false;

  ~State() {
    if (file != nullptr) fclose(file);
  }

  void Write(const void* data, size_t bytes) {
    if (bytes > 0 && fwrite(data, 1, bytes, file) != bytes) failed = true;
  }

  void WriteOp(const OpHeader& op, const void* body) {
    Write(&op, sizeof(op));
    if (body != nullptr) Write(body, BodyBytes(op));
    Count(op, &header);
    header.duration_ns = std::max(header.duration_ns, op.time_ns);
  }
};

OpsWriter::OpsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
OpsWriter::OpsWriter(OpsWriter&&) = default;
OpsWriter& OpsWriter::operator=(OpsWriter&&) = default;
OpsWriter::~OpsWriter() = default;

absl::StatusOr<OpsWriter> OpsWriter::Create(const std::string& path, uint32_t block_size,
                                            uint32_t workers) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->file = fopen(path.c_str(), "wb");
  if (state->file == nullptr) {
    return absl::InvalidArgumentError(path + ": " + std::strerror(errno));
  }
  std::memcpy(state->header.magic, kMagic, sizeof(kMagic));
  state->header.block_size = block_size;
  state->header.workers = workers;
  state->Write(&state->header, sizeof(OpsHeader));
  return OpsWriter(std::move(state));
}

void OpsWriter::Query(std::span<const OpBlock> blocks, uint64_t time_ns) {
  state_->WriteOp({.kind = OpKind::kQuery,
                   .worker = 0,
                   .count = static_cast<uint32_t>(blocks.size()),
                   .position = 0,
                   .time_ns = time_ns,
                   .parent = 0},
                  blocks.data());
}

void OpsWriter::Store(uint32_t worker, uint32_t position, SequenceHash parent,
                      std::span<const OpBlock> blocks, uint64_t time_ns) {
  state_->WriteOp({.kind = OpKind::kStore,
                   .worker = worker,
                   .count = static_cast<uint32_t>(blocks.size()),
                   .position = position,
                   .time_ns = time_ns,
                   .parent = position == 0 ? 0 : Raw(parent)},
                  blocks.data());
}

void OpsWriter::Remove(uint32_t worker, std::span<const SequenceHash> blocks, uint64_t time_ns) {
  state_->WriteOp({.kind = OpKind::kRemove,
                   .worker = worker,
                   .count = static_cast<uint32_t>(blocks.size()),
                   .position = 0,
                   .time_ns = time_ns,
                   .parent = 0},
                  blocks.data());
}

void OpsWriter::Clear(uint32_t worker, uint64_t time_ns) {
  state_->WriteOp({.kind = OpKind::kClear,
                   .worker = worker,
                   .count = 0,
                   .position = 0,
                   .time_ns = time_ns,
                   .parent = 0},
                  nullptr);
}

absl::Status OpsWriter::Finish() {
  if (fseek(state_->file, 0, SEEK_SET) != 0) state_->failed = true;
  state_->Write(&state_->header, sizeof(OpsHeader));
  if (fclose(std::exchange(state_->file, nullptr)) != 0) state_->failed = true;
  if (!state_->failed) return absl::OkStatus();
  return absl::ResourceExhaustedError(state_->path + ": could not be written");
}

const OpsHeader& OpsWriter::header() const { return state_->header; }

}  // namespace kvatlas
