// Which structures are measured, and what must be known of one before it is?

#ifndef KVATLAS_TOOLS_BENCH_CONTENDER_H_
#define KVATLAS_TOOLS_BENCH_CONTENDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/index/index.h"

namespace kvatlas {

struct Contender {
  std::string name;
  // Holders that it can have; 0: any number.
  uint32_t holders_max = 0;
  std::function<absl::StatusOr<std::unique_ptr<Index>>(const IndexOptions&)> make;
};

// Does nothing and answers nothing: the harness's own cost.
Contender NullContender();

// By names of `IndexKinds`, `null`, or `all` for all of them. INVALID_ARGUMENT names what exists.
absl::StatusOr<std::vector<Contender>> ContendersByName(const std::vector<std::string>& names);

// What a structure is made with where speed is measured: room for `workers`, and memory that was
// given back is kept for the next repetition, as the allocator of the published peers is told to.
IndexOptions WarmOptions(uint32_t workers);

// A new structure with holders 0 … workers-1. RESOURCE_EXHAUSTED when it cannot have so many.
absl::StatusOr<std::unique_ptr<Index>> MakeWithHolders(const Contender& contender,
                                                       const IndexOptions& options,
                                                       uint32_t workers);

// For the next repetition: a warm new structure with holders, or, with `reuse`, `old` without its
// blocks.
absl::StatusOr<std::unique_ptr<Index>> NextIndex(const Contender& contender, uint32_t workers,
                                                 bool reuse, std::unique_ptr<Index> old);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_CONTENDER_H_
