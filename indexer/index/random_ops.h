// Do two structures give the same answers to the same calls? Random calls, the comparison, and the
// shortest calls that still differ, printed as code to paste into a test.
//
// Blocks and holders are small numbers, so that calls meet; `Spread` says how a block's number becomes
// a hash.

#ifndef KVATLAS_INDEXER_INDEX_RANDOM_OPS_H_
#define KVATLAS_INDEXER_INDEX_RANDOM_OPS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "indexer/index/index.h"

namespace kvatlas {

enum class Spread { kSmall, kHighBits, kMixed };

struct Op {
  enum Kind { kAddHolder, kRemoveHolder, kMask, kUnmask, kStore, kRemove, kClear, kFind };
  Kind kind = kFind;
  uint32_t holder = 0;
  // A tier's number for kStore and kRemove, a mask's bits for kClear and kFind.
  uint32_t tiers = 0;
  uint32_t position = 0;
  std::vector<uint32_t> blocks;
};

struct RandomOptions {
  size_t ops = 300;
  uint32_t holders = 5;
  uint32_t blocks = 30;
  uint64_t blocks_max = 0;
  Spread spread = Spread::kMixed;
};

std::vector<Op> RandomOps(uint64_t seed, const RandomOptions& options);

// A fresh structure to compare with the reference.
using MakeTested = std::function<std::unique_ptr<Index>()>;

// Empty when the tested structure does as the reference does, else what differs first.
std::string FirstDifference(const MakeTested& make, const std::vector<Op>& ops,
                            const RandomOptions& options);

// Leaves out what is not needed for a difference.
std::vector<Op> Shrink(const MakeTested& make, std::vector<Op> ops, const RandomOptions& options);

// C++ that says these calls again.
std::string ToCode(const std::vector<Op>& ops);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_RANDOM_OPS_H_
