#include <string>

#include "indexer/index/flat.h"
#include "indexer/index/index.h"
#include "indexer/index/reference.h"

namespace kvatlas {
namespace {

constexpr std::string_view kNames[] = {"flat", "reference"};

}  // namespace

absl::StatusOr<std::unique_ptr<Index>> MakeIndex(std::string_view name,
                                                 const IndexOptions& options) {
  if (name == "flat") return MakeFlatIndex(options);
  if (name == "reference") return MakeReferenceIndex(options);
  std::string known;
  for (std::string_view each : IndexNames()) known += " " + std::string(each);
  return absl::InvalidArgumentError("no index structure '" + std::string(name) +
                                    "'; there are:" + known);
}

std::span<const std::string_view> IndexNames() { return kNames; }

}  // namespace kvatlas
