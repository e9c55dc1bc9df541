// Answers that every structure must give, and those that some get wrong: a table of cases, each a
// script of events and questions.
//
// *Format*: statements between semicolons, words between blanks. Holders 0, 1, 2 and 3 exist at the
// beginning.
//
//   HOLDER stores BLOCKS [refused]     one event; `refused` expects RESOURCE_EXHAUSTED
//   HOLDER loses BLOCKS                one event
//   HOLDER clears[/TIERS]
//   HOLDER goes | comes | is_masked | is_unmasked
//   HOLDER holds -> N                  its holdings
//   find BLOCKS -> none | HOLDER:N …
//   tiers BLOCKS -> HOLDER:N:DEVICE,HOST,DISK,EXTERNAL …
//   blocks -> N, holdings -> N         of the whole index
//   heard -> N                         changes since this was last asked
//
//   BLOCKS = CONTENTS[FROM:TO], CONTENTS@POSITIONS in this order, or CONTENTS; then /TIERS, as in
//   /device+host or /none CONTENTS = 1..8, 1,2,3, 7*200 (a block 200 times), several joined with +,
//   or - for none POSITIONS = 3,0, or 1..300:3 for every third
//
// Where a kind is known to answer otherwise, its answer follows in the same statement: `-> 0:1 |
// nested_map inverted 0:3`. Any such kind is run although it lacks a claim, and must make just that
// mistake.
//
// Example: "0 stores 1..8; 0 loses 1..8@3; find 1..8 -> 0:3; 0 stores 1..8[3:4]/host; find
// 1..8/device+host -> 0:8"

#ifndef KVATLAS_INDEXER_INDEX_CONFORMANCE_CASES_H_
#define KVATLAS_INDEXER_INDEX_CONFORMANCE_CASES_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace kvatlas {

struct ConformanceCase {
  std::string_view name;
  // Run over kinds that have these (`Claim`).
  unsigned claims = 0;
  std::string_view script;
  // The script runs so often, on the same index.
  int times = 1;
  uint64_t blocks_max = 0;
};

std::span<const ConformanceCase> ConformanceCases();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_CONFORMANCE_CASES_H_
