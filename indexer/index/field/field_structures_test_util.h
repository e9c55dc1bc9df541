// What the tests of the field's older structures share: contents as small numbers, and one structure with its holders.
//
// Contents are small numbers that stand for local hashes: {1, 2, 3} is a prompt of three blocks, its sequence
// hashes are the real chain.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_FIELD_STRUCTURES_TEST_UTIL_H_
#define KVATLAS_INDEXER_INDEX_FIELD_FIELD_STRUCTURES_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/index/index.h"

namespace kvatlas {

using Contents = std::vector<uint64_t>;
using Scores = std::map<uint32_t, uint32_t>;

inline std::vector<LocalHash> Locals(const Contents& contents) {
  std::vector<LocalHash> locals;
  for (uint64_t content : contents) locals.push_back(LocalHash{content});
  return locals;
}

inline std::vector<SequenceHash> Chain(const Contents& contents) {
  return SequenceHashes(Locals(contents));
}

// Blocks from number `from` on of a sequence, with their local hashes.
inline Stored StoredFrom(const Contents& contents, size_t from) {
  const std::vector<SequenceHash> chain = Chain(contents);
  const std::vector<LocalHash> locals = Locals(contents);
  return {.position = static_cast<Position>(from),
          .parent = from == 0 ? kNoParent : chain[from - 1],
          .blocks = {chain.begin() + from, chain.end()},
          .local_hashes = {locals.begin() + from, locals.end()}};
}

inline Contents Head(const Contents& contents, size_t blocks) {
  return Contents(contents.begin(), contents.begin() + blocks);
}

inline Scores ToScores(const std::vector<Overlap>& overlaps) {
  Scores scores;
  for (const Overlap& overlap : overlaps) {
    EXPECT_TRUE(scores.emplace(Raw(overlap.holder), overlap.blocks).second) << "twice";
  }
  return scores;
}

inline Scores Find(const Index& index, const Contents& contents) {
  const std::vector<SequenceHash> chain = Chain(contents);
  const std::vector<LocalHash> locals = Locals(contents);
  std::vector<Overlap> overlaps;
  index.FindOverlaps({.blocks = chain, .local_hashes = locals}, &overlaps);
  return ToScores(overlaps);
}

// One structure, its holders 0 and 1.
class Tested {
 public:
  explicit Tested(std::string_view name, const IndexOptions& options = {})
      : index_(*MakeIndex(name, options)) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(index_->AddHolder().ok());
  }
  ~Tested() { EXPECT_TRUE(index_->Check().ok()) << index_->Name() << ": " << index_->Check(); }

  absl::Status TryStore(uint32_t holder, const Contents& contents, size_t from = 0) {
    return index_->Apply(HolderIndex{holder}, StoredFrom(contents, from), nullptr);
  }
  void Store(uint32_t holder, const Contents& contents, size_t from = 0) {
    const absl::Status status = TryStore(holder, contents, from);
    EXPECT_TRUE(status.ok()) << status;
  }
  // The block at this position.
  void Remove(uint32_t holder, const Contents& contents, size_t position) {
    const absl::Status status =
        index_->Apply(HolderIndex{holder}, Removed{.blocks = {Chain(contents)[position]}}, nullptr);
    EXPECT_TRUE(status.ok()) << status;
  }
  Scores Find(const Contents& contents) const { return kvatlas::Find(*index_, contents); }

  Index& operator*() { return *index_; }
  Index* operator->() { return index_.get(); }

 private:
  std::unique_ptr<Index> index_;
};

uint64_t ShapeOf(const Index& index, std::string_view name) {
  for (const auto& [each, value] : index.Stats().shape) {
    if (each == name) return value;
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_FIELD_STRUCTURES_TEST_UTIL_H_
