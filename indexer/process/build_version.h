// The text of `--version`: the version and, for a release, the commit that it was built of.
//
//   0.1.0                                   built by hand: no commit was named
//   0.1.0 (commit 1f0c…)                    --define=commit=$(tools/deploy/commit)
//
// *Threads*: pure.

#ifndef KVATLAS_INDEXER_PROCESS_BUILD_VERSION_H_
#define KVATLAS_INDEXER_PROCESS_BUILD_VERSION_H_

#include <string>
#include <string_view>

namespace kvatlas {

inline constexpr char kUnknownCommit[] = "unknown";

// The commit of this build, or `kUnknownCommit`; the same as in kvatlas_build_info.
std::string_view BuildCommit();

std::string BuildVersion(std::string_view commit = BuildCommit());

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_BUILD_VERSION_H_
