// How is text from outside put into a JSON string?
//
// Control characters, quotes and backslashes are escaped; bytes that are not UTF-8 become U+FFFD,
// so the result is always valid. Without quotes round it.

#ifndef KVATLAS_INDEXER_SERVICE_TEXT_ESCAPE_H_
#define KVATLAS_INDEXER_SERVICE_TEXT_ESCAPE_H_

#include <string>
#include <string_view>

namespace kvatlas {

void AppendJsonEscaped(std::string* out, std::string_view text);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_TEXT_ESCAPE_H_
