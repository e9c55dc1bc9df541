// Which structures has the field used? Each is described, with what it answers wrongly, what it
// costs and which threads may call it, at the top of its source; `README.md` has them in a table.
//
// All return a fresh index; `executor` of the options may be null where one is used (`actor`,
// `concurrent_radix`).

#ifndef KVATLAS_INDEXER_INDEX_FIELD_FIELD_H_
#define KVATLAS_INDEXER_INDEX_FIELD_FIELD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "indexer/index/index.h"

namespace kvatlas {

// nested_map.cc
std::unique_ptr<Index> MakeNestedMapIndex(const IndexOptions& options);
std::unique_ptr<Index> MakeExactNestedMapIndex(const IndexOptions& options);

// actor.cc
inline constexpr size_t kActorEventsMax = 2048;

// Around `radix`, on lane 0 of `options.executor`.
std::unique_ptr<Index> MakeActorIndex(const IndexOptions& options);

// Around any structure; `name` outlives it. `executor` may be null.
std::unique_ptr<Index> MakeActorIndex(std::string_view name, std::unique_ptr<Index> inside,
                                      Executor* executor);

// inverted.cc
std::unique_ptr<Index> MakeInvertedIndex(const IndexOptions& options);
std::unique_ptr<Index> MakeExactInvertedIndex(const IndexOptions& options);

// radix.cc
std::unique_ptr<Index> MakeRadixIndex(const IndexOptions& options);
std::unique_ptr<Index> MakeExactRadixIndex(const IndexOptions& options);

// concurrent_radix.cc
std::unique_ptr<Index> MakeConcurrentRadixIndex(const IndexOptions& options);

// positional.cc
// How far a query looks ahead.
inline constexpr uint32_t kPositionalJump = 32;

std::unique_ptr<Index> MakePositionalIndex(const IndexOptions& options);
std::unique_ptr<Index> MakePositionalBinaryIndex(const IndexOptions& options);
std::unique_ptr<Index> MakePositionalVerifiedIndex(const IndexOptions& options);

// host_bitmap.cc
inline constexpr uint32_t kHostBitmapHolders = 256;

std::unique_ptr<Index> MakeHostBitmapIndex(const IndexOptions& options);
std::unique_ptr<Index> MakeHostBitmapExactIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_FIELD_H_
