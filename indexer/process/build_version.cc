#include "indexer/process/build_version.h"

#include "absl/strings/str_cat.h"
#include "indexer/base/version.h"
#include "indexer/process/build_commit.h"

namespace kvatlas {

std::string_view BuildCommit() { return kBuildCommit; }

// The commit is left out where the build did not know it.
std::string BuildVersion(std::string_view commit) {
  if (commit == kUnknownCommit) return kVersion;
  return absl::StrCat(kVersion, " (commit ", std::string(commit), ")");
}

}  // namespace kvatlas
