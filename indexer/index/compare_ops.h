// Compares a structure with the reference after every call of a list, and finds the shortest list
// of calls that still differs.
//
// *Truth*: after each call both answer for the prompts it touched; from time to time everything is
// compared: holdings with places and tiers, digests, counts, `Check()`.

#ifndef KVATLAS_INDEXER_INDEX_COMPARE_OPS_H_
#define KVATLAS_INDEXER_INDEX_COMPARE_OPS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "indexer/index/index.h"
#include "indexer/index/random_ops.h"

namespace kvatlas {

// A fresh structure to compare with the reference.
using MakeTested = std::function<std::unique_ptr<Index>(const IndexOptions& options)>;

// Empty when the tested structure does as the reference does, else what differs first.
std::string FirstDifference(const MakeTested& make, const std::vector<Op>& ops,
                            const RandomOptions& options);

// Leaves out what is not needed for a difference.
std::vector<Op> Shrink(const MakeTested& make, std::vector<Op> ops, const RandomOptions& options);

// `FirstDifference`, and where there is one the shortest calls as a test to paste.
std::string FirstDifferenceToPaste(const MakeTested& make, const std::vector<Op>& ops,
                                   const RandomOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_COMPARE_OPS_H_
