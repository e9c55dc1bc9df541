// Texts and tokenizers for tests that compare encodings: texts that are hard for tokenizers, and
// the small tokenizers of testdata in the forms of real models.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_TEXT_TEST_UTIL_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_TEXT_TEST_UTIL_H_

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/prompt/text/tokenizer.h"

namespace kvatlas {

using Random = std::mt19937_64;

// At least `bytes` long, and little more: white space, digits, contractions, combining marks,
// emoji, added tokens whole and in parts.
std::string RandomText(Random& random, size_t bytes);

// `text` up to a random character.
std::string CutAnywhere(const std::string& text, Random& random);

// The names of the tokenizers of testdata ("bytes", "blanks", "unigram", "sentences") and of forms
// of these ("bytes_o200k").
std::vector<std::string> TokenizerForms();

// Null, after a failure of the running test, where it cannot be loaded.
std::unique_ptr<Tokenizer> LoadTokenizerForm(const std::string& name);

// The tokens of `text` as one piece, made by the library alone, without our encoder.
std::vector<TokenId> WholeTokens(const Tokenizer& tokenizer, std::string_view text);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_TEXT_TEST_UTIL_H_
