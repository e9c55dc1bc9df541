// How is text from outside put into a JSON string, and into a metric's label?
//
// Control characters, quotes and backslashes are escaped; bytes that are not UTF-8 become U+FFFD,
// so the result is always valid. Without quotes round it.

#ifndef KVATLAS_INDEXER_SERVICE_TEXT_ESCAPE_H_
#define KVATLAS_INDEXER_SERVICE_TEXT_ESCAPE_H_

#include <string>
#include <string_view>

namespace kvatlas {

void AppendJsonEscaped(std::string* out, std::string_view text);

// A label in Prometheus' text format, name="value": of the value quotes, backslashes and ends of lines are escaped, nothing else.
std::string MetricLabel(std::string_view name, std::string_view value);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_TEXT_ESCAPE_H_
