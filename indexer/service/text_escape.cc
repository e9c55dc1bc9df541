#include "indexer/service/text_escape.h"

#include <cstddef>

namespace kvatlas {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// The length of the UTF-8 character of two to four bytes that `text` starts with, or 0 if it starts
// with none: stray and missing continuations, overlong forms, surrogates, beyond U+10FFFF.
size_t MultibyteLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t length = 0;
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
  if (byte(0) >= 0xC2 && byte(0) <= 0xDF) {
    length = 2;
  } else if (byte(0) >= 0xE0 && byte(0) <= 0xEF) {
    length = 3;
    if (byte(0) == 0xE0) second_min = 0xA0;
    if (byte(0) == 0xED) second_max = 0x9F;
  } else if (byte(0) >= 0xF0 && byte(0) <= 0xF4) {
    length = 4;
    if (byte(0) == 0xF0) second_min = 0x90;
    if (byte(0) == 0xF4) second_max = 0x8F;
  }
  if (length == 0 || text.size() < length) return 0;
  if (byte(1) < second_min || byte(1) > second_max) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (!IsContinuation(byte(i))) return 0;
  }
  return length;
}

void AppendControl(std::string* out, unsigned char byte) {
  constexpr char kHex[] = "0123456789abcdef";
  out->append("\\u00");
  out->push_back(kHex[byte >> 4]);
  out->push_back(kHex[byte & 15]);
}

}  // namespace

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
    } else if (length = MultibyteLength(text); length > 0) {
      out->append(text.substr(0, length));
    } else {
      out->append(kReplacement);
      length = 1;
    }
    text.remove_prefix(length);
  }
}

}  // namespace kvatlas
