// Escapes text from outside for JSON strings, metric labels and terminals; and writes gauges as
// text.
//
// Control characters, quotes and backslashes are escaped; bytes that are not UTF-8 become U+FFFD,
// so the result is always valid. Without quotes round it.

#ifndef KVATLAS_INDEXER_TELEMETRY_TEXT_ESCAPE_H_
#define KVATLAS_INDEXER_TELEMETRY_TEXT_ESCAPE_H_

#include <string>
#include <string_view>

namespace kvatlas {

void AppendJsonEscaped(std::string* out, std::string_view text);

// Text from outside, such as a worker's name, as a terminal may get it: what moves the cursor, ends
// a line, turns the direction of writing or is not seen is written as \u001b is, and what is not
// UTF-8 as U+FFFD.
std::string Shown(std::string_view text);

// A label in Prometheus' text format, name="value": of the value quotes, backslashes and ends of
// lines are escaped, nothing else.
std::string MetricLabel(std::string_view name, std::string_view value);

// A gauge whose series come and go, for `Metrics::OnText`: what stands before them, and each of
// them. `labels` are of `MetricLabel`, with commas in between.
void AppendGaugeHead(std::string_view name, std::string_view help, std::string* text);
void AppendGauge(std::string_view name, std::string_view labels, std::string_view value,
                 std::string* text);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_TEXT_ESCAPE_H_
