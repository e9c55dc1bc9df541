#include "frontend/prompt/text/json_text.h"

#include <array>
#include <cstddef>
#include <utility>

namespace kvatlas {
namespace {

// What stands behind the backslash; 0: the byte stands for itself, 'u': as four hexadecimal digits.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes{};
  for (size_t i = 0; i < 0x20; ++i) escapes[i] = 'u';
  escapes['\b'] = 'b';
  escapes['\f'] = 'f';
  escapes['\n'] = 'n';
  escapes['\r'] = 'r';
  escapes['\t'] = 't';
  escapes['"'] = '"';
  escapes['\\'] = '\\';
  return escapes;
}();

void AppendEscape(unsigned char byte, std::string* text) {
  constexpr char kDigits[] = "0123456789abcdef";
  *text += '\\';
  *text += kEscapes[byte];
  if (kEscapes[byte] != 'u') return;
  *text += "00";
  *text += kDigits[byte >> 4];
  *text += kDigits[byte & 15];
}

}  // namespace

void AppendJsonString(std::string_view value, std::string* text) {
  *text += '"';
  size_t from = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const auto byte = static_cast<unsigned char>(value[i]);
    if (kEscapes[byte] == 0) continue;
    text->append(value, from, i - from);
    AppendEscape(byte, text);
    from = i + 1;
  }
  text->append(value, from);
  *text += '"';
}

void AppendJson(const nlohmann::ordered_json& value, std::string* text) {
  const char* separator = "";
  if (value.is_string()) {
    AppendJsonString(value.get_ref<const std::string&>(), text);
  } else if (value.is_object()) {
    *text += '{';
    for (const auto& [key, field] : value.get_ref<const nlohmann::ordered_json::object_t&>()) {
      *text += std::exchange(separator, ",");
      AppendJsonString(key, text);
      *text += ':';
      AppendJson(field, text);
    }
    *text += '}';
  } else if (value.is_array()) {
    *text += '[';
    for (const nlohmann::ordered_json& item : value) {
      *text += std::exchange(separator, ",");
      AppendJson(item, text);
    }
    *text += ']';
  } else {
    *text += value.dump();
  }
}

}  // namespace kvatlas
