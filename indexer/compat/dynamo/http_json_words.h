// How does serde show a value in a refusal? `string "abc"`, `floating point `1.0``.
//
// *Threads*: pure functions.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_JSON_WORDS_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_JSON_WORDS_H_

#include <string>
#include <string_view>

namespace kvatlas {

// The shortest digits that mean this number, always with a point or an exponent: "1.0",
// "1.8446744073709552e+19". REQUIRES: finite.
std::string FloatWords(double value);

// In quotes, escaped as Rust's {:?} does.
std::string QuotedWords(std::string_view text);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_JSON_WORDS_H_
