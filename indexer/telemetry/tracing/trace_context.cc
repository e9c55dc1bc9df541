#include "indexer/telemetry/tracing/trace_context.h"

#include <cstdio>

namespace kvatlas {
namespace {

// Hexadecimal digits in lower case, the only ones that the standard allows. False: another
// character.
bool ReadHex(std::string_view text, uint64_t* value) {
  *value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return false;
    *value = (*value << 4) | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return true;
}

}  // namespace

//   00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//   version   trace                       span          flags
std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  if (text.size() < kTraceparentBytes || text[2] != '-' || text[35] != '-' || text[52] != '-')
    return std::nullopt;
  uint64_t version = 0, flags = 0;
  TraceContext context;
  if (!ReadHex(text.substr(0, 2), &version) || !ReadHex(text.substr(3, 16), &context.trace_high) ||
      !ReadHex(text.substr(19, 16), &context.trace_low) ||
      !ReadHex(text.substr(36, 16), &context.span) || !ReadHex(text.substr(53, 2), &flags))
    return std::nullopt;
  if (version == 0xff || (version == 0 && text.size() != kTraceparentBytes)) return std::nullopt;
  if (text.size() > kTraceparentBytes && text[kTraceparentBytes] != '-') return std::nullopt;
  context.sampled = (flags & 1) != 0;
  if (!context.valid()) return std::nullopt;
  return context;
}

// Always version 00, with no other flag than "sampled".
std::string ToTraceparent(const TraceContext& context) {
  if (!context.valid()) return "";
  char text[kTraceparentBytes + 1];
  std::snprintf(text, sizeof(text), "00-%016llx%016llx-%016llx-%02x",
                static_cast<unsigned long long>(context.trace_high),
                static_cast<unsigned long long>(context.trace_low),
                static_cast<unsigned long long>(context.span), context.sampled ? 1 : 0);
  return text;
}

}  // namespace kvatlas
