#include "indexer/base/utf8.h"

namespace kvatlas {

// The table of well-formed sequences in the Unicode standard. Bounds on the second byte exclude
// overlong forms (E0, F0), surrogates (ED) and code points beyond U+10FFFF (F4).
size_t Utf8CharacterBytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  size_t bytes = 0;
  // The range of the second byte; the others may be any continuation byte.
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
  if (byte(0) >= 0xC2 && byte(0) <= 0xDF) {
    bytes = 2;
  } else if (byte(0) >= 0xE0 && byte(0) <= 0xEF) {
    bytes = 3;
    if (byte(0) == 0xE0) second_min = 0xA0;
    if (byte(0) == 0xED) second_max = 0x9F;
  } else if (byte(0) >= 0xF0 && byte(0) <= 0xF4) {
    bytes = 4;
    if (byte(0) == 0xF0) second_min = 0x90;
    if (byte(0) == 0xF4) second_max = 0x8F;
  }
  if (bytes == 0 || text.size() < bytes) return 0;
  if (byte(1) < second_min || byte(1) > second_max) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return bytes;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace kvatlas
