// A block's term in a digest: `DigestTerm` of `hash.h`, inlined, since it is computed for every
// block that changes.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_DIGEST_TERM_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_DIGEST_TERM_H_

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>

namespace kvatlas::atlas {

inline uint64_t DigestTermOf(uint64_t hash) { return XXH3_64bits(&hash, sizeof(hash)); }

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_DIGEST_TERM_H_
