// A model's tokenizer, from text to ids: a tokenizer.json as the Python packages `tokenizers` and
// `transformers` read it, or a SentencePiece model.
//
// *Truth*: the ids are those of these packages, for any text that is UTF-8; a text that the library
// behind cannot encode is an error.
// *Threads*: all methods may be called from any thread at once.
// *Cost*: text_benchmark measures it; README.md lists the tokenizers that our own encoder takes.
//
// Example:
//   ASSIGN tokenizer = MakeTokenizer({.tokenizer_json = Read("tokenizer.json")});
//   std::vector<TokenId> tokens;
//   absl::Status status = tokenizer->Encode("Hello", 0, kOnePiece, tokens, nullptr);

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_TOKENIZER_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_TOKENIZER_H_

#include <cstddef>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/hash.h"

namespace kvatlas {

// A place where a text may be cut without a change of its tokens: text[0, bytes) has exactly
// `tokens` of them, and the rest can be tokenized alone.
struct TokenCut {
  size_t bytes = 0;
  size_t tokens = 0;
};

inline constexpr size_t kOnePiece = std::numeric_limits<size_t>::max();

// The tokens around those of a text, where special tokens are wanted: BOS and its like.
struct TokensAround {
  std::vector<TokenId> before = {};
  std::vector<TokenId> after = {};
};

// Facts of a loaded tokenizer. Immutable.
struct TokenizerFacts {
  size_t vocabulary_size = 0;
  TokensAround around = {};
  // Set where SGLang puts other tokens around a text than the file says (rust/src/rules.rs).
  std::optional<TokensAround> sglang_around = std::nullopt;
  // {"bos_token": "<s>", …}: what chat templates print.
  nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object();
  // A cut holds in every text that has the same bytes up to this many behind the cut.
  size_t lookahead_bytes = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends to `tokens` the tokens of `text` from `from` on (0 or a cut), without those around a
  // text. Appends to `cuts`, unless it is null, cuts at least `piece_bytes_min` apart, counted from
  // `from` and from the first token appended. With kOnePiece the library behind encodes the whole
  // text, without our encoder. INVALID_ARGUMENT: not UTF-8. After an error `tokens` and `cuts` hold
  // anything.
  virtual absl::Status Encode(std::string_view text, size_t from, size_t piece_bytes_min,
                              std::vector<TokenId>& tokens, std::vector<TokenCut>* cuts) const = 0;

  virtual const TokenizerFacts& facts() const = 0;
};

// How a tokenizer.json is read.
enum class TokenizerRules {
  // As `AutoTokenizer` of transformers 5 does, which today's engines use: see rust/src/rules.rs.
  kTransformers,
  // The file alone, as the package `tokenizers` does.
  kFile,
};

// The contents of a model's files; empty where a file is missing.
struct TokenizerFiles {
  std::string tokenizer_json = {};
  nlohmann::ordered_json tokenizer_config = {};
  nlohmann::ordered_json special_tokens_map = {};
  std::string model_type = {};  // of config.json
  TokenizerRules rules = TokenizerRules::kTransformers;
};

// INVALID_ARGUMENT: not a tokenizer.json that the library knows.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const TokenizerFiles& files);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_TOKENIZER_H_
