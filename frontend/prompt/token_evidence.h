// Evidence that tokens made here are the engine's: by shape of requests, from samples that the
// engine tokenized as well.
//
//   shape   model, engine, path, and features that engines read in different ways: tools, reasoning, parts
//
// *Truth*: a shape with a sample that differed is distrusted for `distrust_for`, and sampled anew
// after that. A shape without samples is neither trusted nor distrusted.
// *Threads*: any. *Cost*: a search for some words in the first `kShapeBytesMax` of a body.
// *Bounds*: `shapes_max` shapes; others are never sampled. `under_way_max` samples at a time.

#ifndef KVATLAS_FRONTEND_PROMPT_TOKEN_EVIDENCE_H_
#define KVATLAS_FRONTEND_PROMPT_TOKEN_EVIDENCE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kShapeBytesMax = size_t{256} << 10;

struct TokenEvidenceOptions {
  uint32_t first = 3;   // so many requests of a shape are samples
  uint32_t every = 64;  // then one of so many
  size_t shapes_max = 1024;
  size_t under_way_max = 4;
  Duration distrust_for = std::chrono::minutes(10);
  const Clock* clock = &Clock::Real();
};

// "vLLM's /v1/chat/completions of llama-70b with tools and reasoning".
std::string ShapeOf(const std::string& model, const BodyPrompt& prompt);

class TokenEvidence {
 public:
  explicit TokenEvidence(const TokenEvidenceOptions& options) : options_(options) {}

  // A sample differed not long ago.
  bool IsDistrusted(const std::string& shape);
  // At least `first` samples were equal, and none differed since.
  bool IsTrusted(const std::string& shape);
  // This request is a sample: `Add` or `Unknown` has to follow.
  bool Samples(const std::string& shape);

  void Unknown();  // the engine gave no tokens
  // True: the first difference of this shape, which is worth a line in the log.
  bool Add(const std::string& shape, const std::vector<TokenId>& here,
           const std::vector<TokenId>& engine);

  struct Counts {
    uint64_t equal = 0;
    uint64_t different = 0;
  };
  Counts counts() const;

 private:
  struct Shape {
    uint64_t requests = 0;
    uint32_t sampled = 0;  // since the last difference
    uint32_t equal = 0;    // of these
    bool told = false;
    Time distrusted_until{0};
  };

  const TokenEvidenceOptions options_;
  mutable Mutex mutex_;
  std::map<std::string, Shape> shapes_ ABSL_GUARDED_BY(mutex_);
  size_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TOKEN_EVIDENCE_H_
