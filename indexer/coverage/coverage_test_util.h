// One change, told as the holder of an index tells it.

#ifndef KVATLAS_INDEXER_COVERAGE_COVERAGE_TEST_UTIL_H_
#define KVATLAS_INDEXER_COVERAGE_COVERAGE_TEST_UTIL_H_

#include "indexer/coverage/coverage.h"

namespace kvatlas {

inline void Tell(Coverage& coverage, HolderIndex holder, SequenceHash block, Position position,
                 TierMask before, TierMask after, const Stored* stored) {
  ChangeLog changes;
  changes.Add(block, position, before, after);
  coverage.OnChanged(holder, changes, stored);
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COVERAGE_COVERAGE_TEST_UTIL_H_
