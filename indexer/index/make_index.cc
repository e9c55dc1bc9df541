#include <string>

#include "absl/strings/numbers.h"
#include "indexer/index/atlas/atlas.h"
#include "indexer/index/field/field.h"
#include "indexer/index/index.h"
#include "indexer/index/reference.h"
#include "indexer/index/sharded_index.h"

namespace kvatlas {
namespace {

using Make = std::unique_ptr<Index> (*)(const IndexOptions&);

// One row a structure, the default first.
struct Row {
  IndexKind kind;
  Make make;
};

constexpr Row kRows[] = {
    {{.name = "atlas",
      .whole = true,
      .exact = true,
      .about = "runs of blocks and one table of names; readers take no lock, one writer at a time"},
     MakeAtlasIndex},
    {{.name = "reference",
      .whole = true,
      .exact = true,
      .about = "maps under one mutex: slow and plainly right"},
     MakeReferenceIndex},
    {{.name = "nested_map",
      .about = "Flash Indexer 1, holder -> local hash -> sequences; over-counts equal content "
               "elsewhere; a "
               "query walks every holder, a removal scans one"},
     MakeNestedMapIndex},
    {{.name = "nested_map_exact",
      .whole = true,
      .exact = true,
      .about = "nested_map asked by sequence hash, removals by name"},
     MakeExactNestedMapIndex},
    {{.name = "actor",
      .about =
          "Flash Indexer 2, radix behind one lane of an executor: reads queue behind writes; wrong "
          "where radix is"},
     [](const IndexOptions& options) { return MakeActorIndex(options); }},
    {{.name = "inverted",
      .about = "Flash Indexer 3, local hash -> sequences -> holders; over-counts equal content "
               "elsewhere"},
     MakeInvertedIndex},
    {{.name = "inverted_exact",
      .whole = true,
      .exact = true,
      .about = "inverted asked by sequence hash"},
     MakeExactInvertedIndex},
    {{.name = "radix",
      .about = "Flash Indexer 4, a tree by content; refuses stores after a parent not held, "
               "forgets what "
               "lay behind a hole"},
     MakeRadixIndex},
    {{.name = "radix_exact",
      .exact = true,
      .about =
          "radix that keeps empty nodes and parks tails; a wrong parent from one sender hides the "
          "block from all"},
     MakeExactRadixIndex},
    {{.name = "concurrent_radix",
      .about = "Flash Indexer 5, radix with a lock per node, writes on a lane per holder; drops "
               "stores after a "
               "parent not held, else exact"},
     MakeConcurrentRadixIndex},
    {{.name = "positional",
      .about = "Flash Indexer 6, (position, local hash) -> sequences; jumps of 32 counted, not "
               "compared: "
               "over-counts with holes"},
     MakePositionalIndex},
    {{.name = "positional_binary",
      .about =
          "positional that bisects a jump for every holder lost in it; over-counts with holes"},
     MakePositionalBinaryIndex},
    {{.name = "positional_verified",
      .exact = true,
      .about = "positional that looks at every position; blocks stored with local hashes are found "
               "by queries "
               "with local hashes only"},
     MakePositionalVerifiedIndex},
    {{.name = "host_bitmap",
      .holders_max = kHostBitmapHolders,
      .about = "Modular, 256 bits a block, bisection over positions, a map per tier; over-counts "
               "with holes, "
               "256 holders"},
     MakeHostBitmapIndex},
    {{.name = "host_bitmap_exact",
      .exact = true,
      .holders_max = kHostBitmapHolders,
      .about = "host_bitmap that intersects at every position; 256 holders"},
     MakeHostBitmapExactIndex},
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
  for (const Row& row : kRows) {
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

std::string IndexFlagHelp() {
  std::string help =
      "structure of the index; these lack part of the interface and serve benchmarks only:";
  for (const IndexKind& kind : IndexKinds()) {
    if (!kind.whole) help += " " + std::string(kind.name);
  }
  return help;
}

}  // namespace kvatlas
