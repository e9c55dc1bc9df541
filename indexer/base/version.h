// The version that `--version` prints.
//
// One number for the whole repository: binaries are released together.

#ifndef KVATLAS_INDEXER_BASE_VERSION_H_
#define KVATLAS_INDEXER_BASE_VERSION_H_

namespace kvatlas {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_VERSION_H_
