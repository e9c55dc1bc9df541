// A tokenizer over a SentencePiece model (tokenizer.model), as the package mistral_common uses it:
// the whole text in one piece, BOS in front where special tokens are asked for. Control tokens
// written in a text are text, not tokens.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_TOKENIZER_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_TOKENIZER_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/tokenizer.h"

namespace kvatlas {

// `model`: the file's bytes. INVALID_ARGUMENT: no SentencePiece model.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(std::string_view model);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_TOKENIZER_H_
