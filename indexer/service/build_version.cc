#include "indexer/service/build_version.h"

#include "absl/strings/str_cat.h"
#include "indexer/service/build_commit.h"
#include "indexer/service/version.h"

namespace kvatlas {

std::string_view BuildCommit() { return kBuildCommit; }

std::string BuildVersion(std::string_view commit) {
  if (commit == kUnknownCommit) return kVersion;
  return absl::StrCat(kVersion, " (commit ", std::string(commit), ")");
}

}  // namespace kvatlas
