#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "indexer/index/atlas/atlas.h"
#include "indexer/index/index.h"
#include "indexer/index/reference.h"
#include "indexer/index/sharded_index.h"

namespace kvatlas {
namespace {

// Two vectors in step: `IndexKinds` hands the first one out.
struct Known {
  std::vector<IndexKind> kinds;
  std::vector<IndexMaker> makers;

  void Add(const IndexMaker& maker) {
    kinds.push_back(maker.kind);
    makers.push_back(maker);
  }
};

// Never destroyed: an index may be made while others end.
Known& AllKnown() {
  static Known& known = *[] {
    auto* all = new Known;
    all->Add({{.name = "atlas",
               .whole = true,
               .exact = true,
               .about = "runs of blocks and one table of names; readers take no lock, one writer "
                        "at a time"},
              MakeAtlasIndex});
    all->Add({{.name = "reference",
               .whole = true,
               .exact = true,
               .about = "maps under one mutex: slow and plainly right"},
              MakeReferenceIndex});
    return all;
  }();
  return known;
}

}  // namespace

bool AddIndexMakers(std::span<const IndexMaker> makers) {
  for (const IndexMaker& maker : makers) AllKnown().Add(maker);
  return true;
}

absl::StatusOr<std::unique_ptr<Index>> MakeIndex(std::string_view name,
                                                 const IndexOptions& options) {
  uint32_t shards = 1;
  if (const size_t star = name.find('*'); star != name.npos) {
    const std::string number(name.substr(star + 1));
    if (!absl::SimpleAtoi(number, &shards) || shards < 1 || shards > kIndexShardsMax)
      return absl::InvalidArgumentError("index '" + std::string(name) +
                                        "': the number of shards has to be 1 to " +
                                        std::to_string(kIndexShardsMax));
    name = name.substr(0, star);
  }
  std::string known;
  for (const IndexMaker& row : AllKnown().makers) {
    if (row.kind.name == name) {
      std::unique_ptr<Index> index =
          shards == 1 ? row.make(options) : MakeShardedIndex(shards, options, row.make);
      if (index == nullptr)
        return absl::ResourceExhaustedError(
            "no memory or no addresses for another index (ulimit -v, vm.overcommit_memory)");
      return index;
    }
    known += " " + std::string(row.kind.name);
  }
  return absl::InvalidArgumentError("no index structure '" + std::string(name) +
                                    "'; there are:" + known);
}

std::string WithShards(std::string_view name, uint32_t shards) {
  std::string all(name);
  if (shards != 1) all += "*" + std::to_string(shards);
  return all;
}

std::span<const IndexKind> IndexKinds() { return AllKnown().kinds; }

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
