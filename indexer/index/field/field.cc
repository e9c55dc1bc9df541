// The rows of this folder in `IndexKinds`, for programs that link it.

#include "indexer/index/field/field.h"

#include "indexer/index/index.h"

namespace kvatlas {
namespace {

constexpr IndexMaker kRows[] = {
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

[[maybe_unused]] const bool kAdded = AddIndexMakers(kRows);

}  // namespace
}  // namespace kvatlas
