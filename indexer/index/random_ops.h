// The calls of a random test: stores of runs that begin anywhere, removals in every order, holders
// that come, go and are masked, clears, sweeps, and questions of every kind, over a `RandomTrie`.
//
// Example:
//   const RandomOptions options = {.trie = {.blocks = 12}, .holders = 3};
//   const std::vector<Op> ops = RandomOps(options.trie.seed, options);
//   std::string difference = FirstDifference(make, ops, options);   // compare_ops.h

#ifndef KVATLAS_INDEXER_INDEX_RANDOM_OPS_H_
#define KVATLAS_INDEXER_INDEX_RANDOM_OPS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "indexer/index/random_trie.h"

namespace kvatlas {

struct Op {
  enum Kind {
    kAddHolder,
    kRemoveHolder,
    kMask,
    kUnmask,
    kStore,  // the blocks as they follow each other in the trie; where they do not, another event begins
    kRemove,  // one event
    kClear,
    kSweep,  // one step of about `count` blocks
    kTend,   // `count` steps
    kFind,
    kFindTiers,
    kFindSteps,
  };
  Kind kind = kFind;
  uint32_t holder = 0;
  // A tier's number for kStore and kRemove, a mask's bits for kClear and the questions.
  uint32_t tiers = 0;
  // For the questions: not 0 asks for some holders only, drawn from this number.
  uint32_t count = 0;
  std::vector<uint32_t> blocks;
};

struct RandomOptions {
  TrieOptions trie = {};
  size_t ops = 300;
  // Holders that may exist at once.
  uint32_t holders = 5;
  // Blocks in one store.
  uint32_t run_max = 12;
  uint64_t blocks_max = 0;
  bool keep_local_hashes = false;
  // False for structures that do not claim the whole interface: one tier, and overlaps only.
  bool whole = true;
  // The whole state is compared after so many calls.
  uint32_t state_every = 50;
};

// Says a number below `below`, which is at least 1.
using Choose = std::function<uint32_t(uint32_t below)>;

// Calls drawn with `choose` while `more` says so.
std::vector<Op> ChooseOps(const Choose& choose, const std::function<bool()>& more,
                          const RandomTrie& trie, const RandomOptions& options);

// `options.ops` calls.
std::vector<Op> RandomOps(uint64_t seed, const RandomOptions& options);

// C++ that says these again.
std::string ToCode(const std::vector<Op>& ops);
std::string ToCode(const RandomOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_RANDOM_OPS_H_
