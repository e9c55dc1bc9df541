// Checks that a text is UTF-8. Names travel in protobuf's strings, which a receiver refuses
// otherwise.
//
// *Truth*: as Unicode defines it: no stray or missing continuation bytes, no overlong forms, no
// surrogates, nothing beyond U+10FFFF. The empty text is UTF-8.
// *Threads*: pure functions.

#ifndef KVATLAS_INDEXER_BASE_UTF8_H_
#define KVATLAS_INDEXER_BASE_UTF8_H_

#include <cstddef>
#include <string_view>

namespace kvatlas {

// Bytes of the character that `text` starts with, 1 to 4; 0: it starts with none.
size_t Utf8CharacterBytes(std::string_view text);

bool IsUtf8(std::string_view text);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_UTF8_H_
