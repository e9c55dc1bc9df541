// Values as serde words them in errors: floating point as Rust prints it, strings with Rust's
// escapes for debugging.

#include "indexer/compat/dynamo/http_json_words.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace kvatlas {

// std::to_chars gives the shortest digits that mean the number, in scientific form; only their
// layout is made here, by the place of the decimal point: digits and ".0", a point within, "0.000…"
// before, else an exponent.
std::string FloatWords(double value) {
  std::string out = std::signbit(value) ? "-" : "";
  if (value == 0) return out + "0.0";
  char text[40];
  const std::to_chars_result end =
      std::to_chars(text, text + sizeof(text), std::fabs(value), std::chars_format::scientific);
  const std::string_view scientific(text, static_cast<size_t>(end.ptr - text));
  const size_t e = scientific.find('e');
  std::string digits(1, scientific[0]);
  if (e > 1) digits += scientific.substr(2, e - 2);
  const int exponent = std::atoi(std::string(scientific.substr(e + 1)).c_str());
  const int before_point =
      exponent + 1;  // digits of the number, or zeros behind the point when negative
  const int count = static_cast<int>(digits.size());
  if (before_point >= count && before_point <= 16) {
    return out + digits + std::string(static_cast<size_t>(before_point - count), '0') + ".0";
  }
  if (before_point > 0 && before_point <= 16) {
    digits.insert(static_cast<size_t>(before_point), ".");
    return out + digits;
  }
  if (before_point > -5 && before_point <= 0) {
    return out + "0." + std::string(static_cast<size_t>(-before_point), '0') + digits;
  }
  if (count > 1) digits.insert(1, ".");
  return out + digits + (exponent < 0 ? "e" : "e+") + std::to_string(exponent);
}

// Bytes beyond ASCII are passed on as they are: the text was checked to be UTF-8. Control
// characters without a short form are \u{hex}, without leading zeros.
std::string QuotedWords(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    switch (c) {
      case '"':
      case '\\':
        out += '\\';
        out += c;
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\0':
        out += "\\0";
        break;
      default:
        if (byte >= 0x20 && byte != 0x7F) {
          out += c;
        } else {
          out += "\\u{";
          if (byte >= 16) out += kHex[byte >> 4];
          out += kHex[byte & 15];
          out += '}';
        }
    }
  }
  return out + '"';
}

}  // namespace kvatlas
