#include "indexer/service/text_escape.h"

#include <cstddef>

#include "indexer/base/utf8.h"

namespace kvatlas {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

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
    } else if (length = Utf8CharacterBytes(text); length > 0) {
      out->append(text.substr(0, length));
    } else {
      out->append(kReplacement);
      length = 1;
    }
    text.remove_prefix(length);
  }
}

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
