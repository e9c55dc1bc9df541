// The page's question where a prompt is cached, and its answer, from any source.
//
// *Format* of POST /ui/explain:
//   {"model":"m", "tokens":[1,2,…]}     or "text":"…", where there is a tokenizer; with "tenant", "lora_name", "cache_salt"
// and of its answer, which has no hashes:
//   {"model":"m", "tokens":700, "block_size":16, "blocks":43, "diverges_at":12,      null: all of it is somewhere
//    "cells_asked":2, "cells":4, "failed":["cell b: late"],
//    "workers":[{"cell":"a","worker":"w0","rank":0,"overlap":12,"trust":"exact","age_ms":3,"tiers":"dddddhhhhkkk.dd"}]}
// `tiers` has a letter for each block, the nearest tier that the worker has it in: d(evice),
// h(ost), k (disk), x (external), or a dot. The deepest worker comes first.

#ifndef KVATLAS_INDEXER_UI_EXPLAIN_H_
#define KVATLAS_INDEXER_UI_EXPLAIN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/hash.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

struct ExplainQuestion {
  std::string model;
  std::string tenant;
  std::string lora_name;
  std::string cache_salt;
  std::vector<TokenId> tokens;  // or
  std::string text;
};

// INVALID_ARGUMENT: what is missing, or of another type.
absl::StatusOr<ExplainQuestion> ReadExplain(const std::string& body);

// REQUIRES: it has tokens.
v1::ExplainRequest ToRequest(const ExplainQuestion& question);

struct ExplainAnswer {
  std::vector<std::pair<std::string, v1::ExplainResponse>> cells;  // by cell
  size_t cells_known = 1;
  size_t cells_asked = 1;
  std::vector<std::string> failed;  // which, and why
};

std::string ExplainJson(const ExplainQuestion& question, const ExplainAnswer& answer);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_UI_EXPLAIN_H_
