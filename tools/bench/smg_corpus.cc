#include "tools/bench/smg_corpus.h"

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

constexpr char kMagic[8] = {'S', 'M', 'G', 'M', 'C', 'K', '0', '1'};
constexpr uint32_t kVersion = 1;
constexpr int kSizesBeforeTotals = 5;  // window, trace_dup, length factor, worker_dup, workers

// Takes numbers from the front; after the end everything is 0 and `failed`.
class Cursor {
 public:
  explicit Cursor(std::span<const unsigned char> bytes) : rest_(bytes) {}

  template <typename Number>
  Number Take() {
    Number number{};
    const std::span<const unsigned char> bytes = TakeBytes(sizeof(Number));
    if (!bytes.empty()) std::memcpy(&number, bytes.data(), sizeof(Number));
    return number;
  }

  std::span<const unsigned char> TakeBytes(uint64_t bytes) {
    if (bytes > rest_.size()) {
      failed_ = true;
      rest_ = {};
      return {};
    }
    const std::span<const unsigned char> taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }

  // A slab: its count, then as many words of 8 bytes times `words`.
  std::vector<uint64_t> TakeSlab(uint64_t words) {
    const auto count = Take<uint64_t>();
    if (count > rest_.size() / (8 * words)) failed_ = true;
    if (failed_) return {};
    std::vector<uint64_t> slab(count * words);
    const std::span<const unsigned char> bytes = TakeBytes(slab.size() * 8);
    if (!bytes.empty()) std::memcpy(slab.data(), bytes.data(), bytes.size());
    return slab;
  }

  bool failed() const { return failed_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const unsigned char> rest_;
  bool failed_ = false;
};

struct Totals {
  uint64_t requests, stored, removed, cleared, request_blocks, stored_blocks, removed_blocks;
  friend bool operator==(const Totals&, const Totals&) = default;
};
static_assert(sizeof(Totals) == 7 * 8);

class Reader {
 public:
  Reader(std::span<const unsigned char> bytes, SmgCorpus* corpus)
      : cursor_(bytes), corpus_(corpus) {}

  absl::Status Read() {
    if (absl::Status status = ReadBeforeOperations(); !status.ok()) return status;
    const auto operations = cursor_.Take<uint64_t>();
    for (uint64_t i = 0; i < operations; ++i) {
      if (absl::Status status = ReadOperation(i); !status.ok()) {
        return absl::InvalidArgumentError("operation " + std::to_string(i) + ": " +
                                          std::string(status.message()));
      }
    }
    if (cursor_.failed()) return absl::InvalidArgumentError("the file ends too early");
    if (!cursor_.empty()) return absl::InvalidArgumentError("bytes after the last operation");
    if (!(found_ == said_)) {
      return absl::InvalidArgumentError("the totals are not what the operations have");
    }
    corpus_->workers = static_cast<uint32_t>(workers_.size());
    return absl::OkStatus();
  }

 private:
  struct Place {
    SequenceHash seq{0};
    uint32_t position = 0;
  };
  // What a worker rank's own hashes mean.
  using Names = absl::flat_hash_map<uint64_t, Place>;

  absl::Status ReadBeforeOperations() {
    cursor_.TakeBytes(sizeof(kMagic));
    if (cursor_.Take<uint32_t>() != kVersion) return absl::InvalidArgumentError("not version 1");
    corpus_->block_size = cursor_.Take<uint32_t>();
    cursor_.TakeBytes(kSizesBeforeTotals * 8);
    said_ = cursor_.Take<Totals>();
    cursor_.TakeBytes(cursor_.Take<uint64_t>());  // the trace's path
    queries_ = cursor_.TakeSlab(1);
    stored_ = cursor_.TakeSlab(2);
    removed_ = cursor_.TakeSlab(1);
    if (cursor_.failed()) return absl::InvalidArgumentError("the file ends before its operations");
    return absl::OkStatus();
  }

  absl::Status ReadOperation(uint64_t number) {
    if (cursor_.Take<uint32_t>() != number)
      return absl::InvalidArgumentError("its id is not dense");
    const auto time_ns = cursor_.Take<uint64_t>();
    if (time_ns < time_ns_) return absl::InvalidArgumentError("its deadline goes back");
    time_ns_ = time_ns;
    const auto worker = cursor_.Take<uint64_t>();
    const auto kind = cursor_.Take<uint8_t>();
    if (cursor_.failed()) return absl::InvalidArgumentError("the file ends in it");
    if (kind == 0) return ReadQuery();
    if (kind == 1) return ReadStored(worker);
    if (kind == 2) return ReadRemoved(worker);
    if (kind == 3) return ReadCleared(worker);
    return absl::InvalidArgumentError("unknown kind");
  }

  // `words` per entry of the slab; the range read next.
  absl::StatusOr<std::span<const uint64_t>> TakeRange(const std::vector<uint64_t>& slab,
                                                      uint64_t words) {
    const auto start = cursor_.Take<uint64_t>();
    const auto length = cursor_.Take<uint32_t>();
    if (cursor_.failed()) return absl::InvalidArgumentError("the file ends in it");
    const uint64_t entries = slab.size() / words;
    if (start > entries || length > entries - start) {
      return absl::InvalidArgumentError("its blocks lie outside their slab");
    }
    return std::span<const uint64_t>(slab).subspan(start * words, length * words);
  }

  absl::Status ReadQuery() {
    absl::StatusOr<std::span<const uint64_t>> locals = TakeRange(queries_, 1);
    if (!locals.ok()) return locals.status();
    Begin(OpKind::kQuery, 0, locals->size(), corpus_->blocks.size());
    SequenceHash seq = kNoParent;
    for (size_t i = 0; i < locals->size(); ++i) {
      seq = Next(seq, i, LocalHash{(*locals)[i]});
      corpus_->blocks.push_back({.local = LocalHash{(*locals)[i]}, .seq = seq});
    }
    ++found_.requests;
    found_.request_blocks += locals->size();
    return absl::OkStatus();
  }

  absl::Status ReadStored(uint64_t worker) {
    const uint32_t rank = TakeRank(worker);
    const bool has_parent = cursor_.Take<uint8_t>() != 0;
    const auto parent = cursor_.Take<uint64_t>();
    const bool has_position = cursor_.Take<uint8_t>() != 0;
    const auto position = cursor_.Take<uint32_t>();
    absl::StatusOr<std::span<const uint64_t>> pairs = TakeRange(stored_, 2);
    if (!pairs.ok()) return pairs.status();
    Names& names = names_[rank];
    Place before;
    if (has_parent) {
      const auto found = names.find(parent);
      if (found == names.end()) return absl::InvalidArgumentError("its parent was never stored");
      before = found->second;
    }
    uint32_t at = has_parent ? before.position + 1 : 0;
    if (has_position && position != at) {
      return absl::InvalidArgumentError("its position is not its parent's plus one");
    }
    OpHeader& header = Begin(OpKind::kStore, rank, pairs->size() / 2, corpus_->blocks.size());
    header.position = at;
    header.parent = has_parent ? Raw(before.seq) : 0;
    for (size_t i = 0; i < pairs->size(); i += 2, ++at) {
      const LocalHash local{(*pairs)[i + 1]};
      before = {.seq = Next(before.seq, at, local), .position = at};
      names[(*pairs)[i]] = before;
      corpus_->blocks.push_back({.local = local, .seq = before.seq});
    }
    ++found_.stored;
    found_.stored_blocks += pairs->size() / 2;
    return absl::OkStatus();
  }

  absl::Status ReadRemoved(uint64_t worker) {
    const uint32_t rank = TakeRank(worker);
    absl::StatusOr<std::span<const uint64_t>> hashes = TakeRange(removed_, 1);
    if (!hashes.ok()) return hashes.status();
    const size_t first = corpus_->removed.size();
    for (uint64_t hash : *hashes) {
      const auto found = names_[rank].find(hash);
      if (found != names_[rank].end()) corpus_->removed.push_back(found->second.seq);
    }
    Begin(OpKind::kRemove, rank, corpus_->removed.size() - first, first);
    ++found_.removed;
    found_.removed_blocks += hashes->size();
    return absl::OkStatus();
  }

  absl::Status ReadCleared(uint64_t worker) {
    const uint32_t rank = TakeRank(worker);
    if (cursor_.failed()) return absl::InvalidArgumentError("the file ends in it");
    Begin(OpKind::kClear, rank, 0, 0);
    ++found_.cleared;
    return absl::OkStatus();
  }

  // What every event has: the data-parallel rank and an id that says nothing to us.
  uint32_t TakeRank(uint64_t worker) {
    const auto dp_rank = cursor_.Take<uint32_t>();
    cursor_.Take<uint64_t>();
    const auto [found, is_new] =
        workers_.try_emplace({worker, dp_rank}, static_cast<uint32_t>(workers_.size()));
    if (is_new) names_.emplace_back();
    return found->second;
  }

  static SequenceHash Next(SequenceHash before, size_t position, LocalHash local) {
    return position == 0 ? SequenceHash{Raw(local)} : NextSequenceHash(before, local);
  }

  OpHeader& Begin(OpKind kind, uint32_t worker, size_t count, size_t first) {
    corpus_->operations.push_back({.header = {.kind = kind,
                                              .worker = worker,
                                              .count = static_cast<uint32_t>(count),
                                              .position = 0,
                                              .time_ns = time_ns_,
                                              .parent = 0},
                                   .first = first});
    return corpus_->operations.back().header;
  }

  Cursor cursor_;
  SmgCorpus* const corpus_;
  Totals said_{};
  Totals found_{};
  std::vector<uint64_t> queries_, stored_, removed_;
  absl::flat_hash_map<std::pair<uint64_t, uint32_t>, uint32_t> workers_;
  std::vector<Names> names_;
  uint64_t time_ns_ = 0;
};

}  // namespace

std::vector<BenchOp> SmgCorpus::Ops() const {
  std::vector<BenchOp> ops;
  ops.reserve(operations.size());
  for (const Operation& operation : operations) {
    const OpHeader& header = operation.header;
    BenchOp op{.header = header, .blocks = {}, .removed = {}};
    if (header.kind == OpKind::kRemove) {
      op.removed = std::span(removed).subspan(operation.first, header.count);
    } else if (header.kind != OpKind::kClear) {
      op.blocks = std::span(blocks).subspan(operation.first, header.count);
    }
    ops.push_back(op);
  }
  return ops;
}

bool IsSmgCorpus(std::span<const unsigned char> bytes) {
  return bytes.size() >= sizeof(kMagic) && std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) == 0;
}

absl::Status ReadSmgCorpus(std::span<const unsigned char> bytes, SmgCorpus* corpus) {
  return Reader(bytes, corpus).Read();
}

}  // namespace kvatlas
