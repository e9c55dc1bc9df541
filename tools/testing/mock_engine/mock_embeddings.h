// What does a mock engine answer to POST /v1/embeddings? A vector for each input, made from its
// tokens.
//
// *Truth*: `input` is a text, token ids, or an array of either; equal tokens have equal vectors of
// length 1. `usage` counts the tokens. `encoding_format` is "float" or "base64" (float32,
// little-endian), which is what OpenAI's Python client asks for.
// *Threads*: pure functions. *Bounds*: `kEmbeddingInputsMax` inputs.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_EMBEDDINGS_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_EMBEDDINGS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/hash.h"

namespace kvatlas {

inline constexpr size_t kEmbeddingInputsMax = 2048;
inline constexpr size_t kEmbeddingDimensions = 8;

using MakeTokens = std::function<absl::StatusOr<std::vector<TokenId>>(const std::string& text)>;

// The answer's body. INVALID_ARGUMENT names the field that is wrong; what `tokenize` refuses.
absl::StatusOr<std::string> MockEmbeddings(std::string_view body, const std::string& model,
                                           const MakeTokens& tokenize);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_EMBEDDINGS_H_
