// The sequences of a random test: a random trie of blocks, each a small number with one parent and
// one position, so that whatever is drawn from it keeps to what a sequence hash means (`index.h`,
// *Names*).
//
// Numbers from `size()` on are foreign: blocks that are never stored, for prompts that leave the
// trie.
//
// Example:
//   const RandomTrie trie({.seed = 7, .blocks = 100});
//   std::vector<uint32_t> path = trie.PathTo(42);     // from the root to block 42

#ifndef KVATLAS_INDEXER_INDEX_RANDOM_TRIE_H_
#define KVATLAS_INDEXER_INDEX_RANDOM_TRIE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "indexer/base/ids.h"

namespace kvatlas {

// How a block's number becomes its hash. Only `kChained` keeps to the hash contract (`hash.h`); the
// others are chosen to meet in a table.
enum class Spread {
  kSmall,         // the number itself, 0 included
  kHighBits,      // differ in the upper 16 bits only
  kMixed,         // all over
  kSameLowBits,   // equal in the lower 32 bits
  kSameHighBits,  // equal in the upper 32 bits
  kFibonacci,     // equal in the upper bits after Fibonacci hashing
  kChained,       // real chains; contents repeat all over the trie
};

enum class Shape {
  kMixed,     // runs of a few blocks, forks anywhere, some roots
  kLongRuns,  // runs of hundreds of blocks, few forks
  kBushy,     // few blocks with very many children
  kRoots,     // first blocks, most without a child
  kChain,     // one sequence
};

struct TrieOptions {
  uint64_t seed = 1;
  uint32_t blocks = 30;
  Shape shape = Shape::kMixed;
  Spread spread = Spread::kMixed;
};

class RandomTrie {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  explicit RandomTrie(const TrieOptions& options);

  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }

  // For any block of the trie.
  uint32_t parent(uint32_t block) const { return nodes_[block].parent; }
  Position position(uint32_t block) const { return nodes_[block].position; }
  SequenceHash parent_hash(uint32_t block) const;

  // For foreign blocks as well.
  SequenceHash hash(uint32_t block) const;
  LocalHash local(uint32_t block) const;
  std::vector<SequenceHash> hashes(std::span<const uint32_t> blocks) const;
  std::vector<LocalHash> locals(std::span<const uint32_t> blocks) const;

  // From the root to `block`.
  std::vector<uint32_t> PathTo(uint32_t block) const;
  // Goes on to the last descendant in order of numbers, `blocks_max` further blocks at most.
  void Descend(std::vector<uint32_t>* path, size_t blocks_max) const;

 private:
  struct Node {
    uint32_t parent = kNone;
    Position position = 0;
    uint32_t last_child = kNone;
    uint32_t children = 0;
    SequenceHash hash{0};
    LocalHash local{0};
  };

  uint32_t ParentOf(uint32_t block, uint64_t random) const;
  SequenceHash SpreadHash(uint32_t block) const;

  const TrieOptions options_;
  std::vector<Node> nodes_;
  uint32_t roots_ = 0;
};

// A bijection of 64-bit numbers that looks random (the finalizer of SplitMix64).
uint64_t MixBits(uint64_t value);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_RANDOM_TRIE_H_
