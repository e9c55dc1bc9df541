// Ids, positions and counts as types that cannot be mixed up.
//
// *Truth*: an id from outside (a worker's name, a cell's name) is a string and means the same in
// every process. A dense id (`HolderIndex`) is given out by one index, starts at 0, is small so
// that it can be a bit in a set, and means nothing elsewhere.

#ifndef KVATLAS_INDEXER_BASE_IDS_H_
#define KVATLAS_INDEXER_BASE_IDS_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

namespace kvatlas {

// Hash of one block's tokens (`hash.h`); the same wherever the block stands.
enum class LocalHash : uint64_t {};

// Rolling hash of the whole prefix up to and with a block: the block's identity.
enum class SequenceHash : uint64_t {};

// The parent of a sequence's first block.
inline constexpr SequenceHash kNoParent{0};

constexpr uint64_t Raw(LocalHash hash) { return static_cast<uint64_t>(hash); }
constexpr uint64_t Raw(SequenceHash hash) { return static_cast<uint64_t>(hash); }

// 0-based place of a block in its sequence.
using Position = uint32_t;

// A holder inside one index: dense, from 0.
enum class HolderIndex : uint32_t {};

constexpr uint32_t Raw(HolderIndex holder) { return static_cast<uint32_t>(holder); }

// Incarnation of a stream's sender; larger is younger.
using Epoch = uint64_t;

// Number of a batch within an epoch: from 1, never reused. 0 means "none yet".
using BatchNumber = uint64_t;

// A holder of blocks: a worker rank at a leaf, a cell in the hierarchy.
//
// `name` is the worker's or cell's name, `rank` the data-parallel rank (0 for a cell), `replica`
// tells replicas of one cell apart (empty for a worker).
struct HolderId {
  std::string name;
  uint32_t rank = 0;
  std::string replica;

  friend bool operator==(const HolderId& a, const HolderId& b) {
    return std::tie(a.name, a.rank, a.replica) == std::tie(b.name, b.rank, b.replica);
  }
  friend bool operator<(const HolderId& a, const HolderId& b) {
    return std::tie(a.name, a.rank, a.replica) < std::tie(b.name, b.rank, b.replica);
  }
  template <typename H>
  friend H AbslHashValue(H h, const HolderId& id) {
    return H::combine(std::move(h), id.name, id.rank, id.replica);
  }
};

// "worker-3/0", or "cell-a@replica-1".
inline std::string ToString(const HolderId& id) {
  return id.replica.empty() ? id.name + "/" + std::to_string(id.rank) : id.name + "@" + id.replica;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_IDS_H_
