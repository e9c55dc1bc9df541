#include <string>

#include "indexer/index/flat.h"
#include "indexer/index/index.h"
#include "indexer/index/reference.h"

namespace kvatlas {
namespace {

using Make = std::unique_ptr<Index> (*)(const IndexOptions&);

// One row a structure, the default first.
struct Row {
  IndexKind kind;
  Make make;
};

constexpr Row kRows[] = {
    {{.name = "flat",
      .whole = true,
      .exact = true,
      .about = "sharded table of blocks with holder sets; one lock a probe"},
     MakeFlatIndex},
    {{.name = "reference",
      .whole = true,
      .exact = true,
      .about = "maps under one mutex: slow and plainly right"},
     MakeReferenceIndex},
};

constexpr size_t kRowCount = std::size(kRows);

struct Kinds {
  IndexKind kinds[kRowCount];
};

constexpr Kinds AllKinds() {
  Kinds all;
  for (size_t i = 0; i < kRowCount; ++i) all.kinds[i] = kRows[i].kind;
  return all;
}

constexpr Kinds kKinds = AllKinds();

}  // namespace

absl::StatusOr<std::unique_ptr<Index>> MakeIndex(std::string_view name,
                                                 const IndexOptions& options) {
  std::string known;
  for (const Row& row : kRows) {
    if (row.kind.name == name) return row.make(options);
    known += " " + std::string(row.kind.name);
  }
  return absl::InvalidArgumentError("no index structure '" + std::string(name) +
                                    "'; there are:" + known);
}

std::span<const IndexKind> IndexKinds() { return kKinds.kinds; }

const IndexKind* FindIndexKind(std::string_view name) {
  for (const IndexKind& kind : IndexKinds()) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

std::vector<std::string_view> WholeIndexNames() {
  std::vector<std::string_view> names;
  for (const IndexKind& kind : IndexKinds()) {
    if (kind.whole) names.push_back(kind.name);
  }
  return names;
}

}  // namespace kvatlas
