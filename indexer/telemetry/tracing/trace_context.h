// The trace that work belongs to, by W3C Trace Context, level 1: the content of the header or
// metadata `traceparent`.
//
// *Truth*: a text that is not exactly of that form is none: never a guess. Versions above 00 are
// read as 00, as the standard says.
// *Threads*: pure.
//
// Example:
//   std::optional<TraceContext> from =
//   ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");

#ifndef KVATLAS_INDEXER_TELEMETRY_TRACING_TRACE_CONTEXT_H_
#define KVATLAS_INDEXER_TELEMETRY_TRACING_TRACE_CONTEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvatlas {

inline constexpr char kTraceparent[] = "traceparent";
// Belongs to the trace that `kTraceparent` names: it is dropped where another trace takes its
// place.
inline constexpr char kTracestate[] = "tracestate";
inline constexpr size_t kTraceparentBytes = 55;

struct TraceContext {
  uint64_t trace_high = 0, trace_low = 0;  // together the trace's id; 0: no trace
  uint64_t span = 0;                       // whose child is what follows
  bool sampled = false;

  bool valid() const { return (trace_high | trace_low) != 0 && span != 0; }
  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// Nothing: it is none.
std::optional<TraceContext> ParseTraceparent(std::string_view text);

// Empty for a context that is not valid.
std::string ToTraceparent(const TraceContext& context);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_TRACING_TRACE_CONTEXT_H_
