// How deep a holder reaches into a prompt, and how far the answer can be trusted.

#ifndef KVATLAS_INDEXER_BASE_OVERLAP_H_
#define KVATLAS_INDEXER_BASE_OVERLAP_H_

#include <cstdint>

#include "indexer/base/ids.h"

namespace kvatlas {

// `blocks` is the largest d such that the holder has the prompt's first d blocks, each in at least
// one of the tiers asked for. Without initial values, so that many are copied as bytes: write
// `Overlap{}`.
struct Overlap {
  HolderIndex holder;
  uint32_t blocks;

  friend bool operator==(const Overlap&, const Overlap&) = default;
};

// How sure an answer about a holder is.
enum class Trust : uint8_t {
  kExact = 0,     // never over-counts; equal to the engine's contents once the stream is quiet
  kDegraded = 1,  // a gap or a difference is being repaired
  kStale = 2,     // the stream has been silent for longer than its lease
  kGuessed = 3,   // it announces nothing: what was sent there is all that is known
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_OVERLAP_H_
