#include "indexer/telemetry/text_escape.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <utility>

#include "indexer/base/utf8.h"

namespace kvatlas {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// \u00XX, in lower case.
void AppendControl(std::string* out, unsigned char byte) {
  constexpr char kHex[] = "0123456789abcdef";
  out->append("\\u00");
  out->push_back(kHex[byte >> 4]);
  out->push_back(kHex[byte & 15]);
}

// Characters that Shown escapes: control characters of ASCII and Latin-1, marks that turn the
// direction of writing, and invisible ones (Unicode 15, general categories Cc, Cf, Zl, Zp). Sorted.
constexpr std::pair<uint32_t, uint32_t> kNotShown[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},
    {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f},
    {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};

// REQUIRES: one character of UTF-8.
uint32_t CodeOf(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  uint32_t code = character.size() == 1 ? first : first & (0x7fu >> character.size());
  for (const char c : character.substr(1))
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3f);
  return code;
}

}  // namespace

// Byte by byte in ASCII, character by character beyond. A byte that begins no valid character
// becomes U+FFFD alone, and the next byte is tried again.
void AppendJsonEscaped(std::string* out, std::string_view text) {
  while (!text.empty()) {
    const unsigned char byte = static_cast<unsigned char>(text[0]);
    size_t length = 1;
    if (byte == '"' || byte == '\\') {
      out->push_back('\\');
      out->push_back(text[0]);
    } else if (byte == '\n') {
      out->append("\\n");
    } else if (byte == '\t') {
      out->append("\\t");
    } else if (byte == '\r') {
      out->append("\\r");
    } else if (byte < 0x20 || byte == 0x7F) {
      AppendControl(out, byte);
    } else if (byte < 0x80) {
      out->push_back(text[0]);
    } else if (length = Utf8CharacterBytes(text); length > 0) {
      out->append(text.substr(0, length));
    } else {
      out->append(kReplacement);
      length = 1;
    }
    text.remove_prefix(length);
  }
}

// A name of a worker may contain anything; on a terminal it must not move the cursor or imitate a
// line of its own.
std::string Shown(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    const uint32_t code = bytes == 0 ? 0xfffd : CodeOf(character);
    const bool hidden = std::any_of(
        std::begin(kNotShown), std::end(kNotShown),
        [code](const auto& range) { return code >= range.first && code <= range.second; });
    if (hidden) {
      char escaped[16];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(code));
      shown += escaped;
    } else {
      shown += bytes == 0 ? "\xef\xbf\xbd" : character;
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

// Prometheus' format escapes these three alone and takes any UTF-8.
std::string MetricLabel(std::string_view name, std::string_view value) {
  std::string label(name);
  label += "=\"";
  for (const char c : value) {
    if (c == '\n') {
      label += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') label += '\\';
    label += c;
  }
  return label += '"';
}

void AppendGaugeHead(std::string_view name, std::string_view help, std::string* text) {
  text->append("# HELP ").append(name).append(" ").append(help);
  text->append("\n# TYPE ").append(name).append(" gauge\n");
}

void AppendGauge(std::string_view name, std::string_view labels, std::string_view value,
                 std::string* text) {
  text->append(name).append("{").append(labels).append("} ").append(value).append("\n");
}

}  // namespace kvatlas
