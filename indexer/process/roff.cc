// Every text passes Line: Escaped protects what roff reads as a request or an escape, Ascii then
// encodes what is beyond ASCII. Requests themselves are written as they are.

#include "indexer/process/roff.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/version.h"

namespace kvatlas {
namespace {

// One line, or a part of one.
std::string Escaped(std::string_view text) {
  std::string out;
  // At the start of a line '.' and '\'' begin a request; "\&" before them prints nothing.
  if (!text.empty() && (text[0] == '.' || text[0] == '\'')) out = "\\&";
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '"') {
      out += "\\(dq";
    } else if (c == '\n') {
      out += ' ';
    } else {
      out += c;
      // "\:" allows a line break here without a hyphen: words such as a|b|c are long.
      if (c == ',' || c == '|' || c == ';' || c == '/' || c == '=') out += "\\:";
    }
  }
  return out;
}

// Non-ASCII characters become \[uXXXX]: groff reads ASCII in every locale. REQUIRES: UTF-8.
std::string Ascii(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      out += text[i++];
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    uint32_t code = lead & (0xffu >> (length + 1));
    for (size_t k = 1; k < length && i + k < text.size(); ++k)
      code = code << 6 | (static_cast<unsigned char>(text[i + k]) & 0x3fu);
    i += length;
    // Ellipsis and dashes are missing on some output devices, so their ASCII spelling is used.
    if (code == 0x2026 || code == 0x2013 || code == 0x2014) {
      out += code == 0x2026 ? "..." : "\\-";
      continue;
    }
    absl::StrAppend(&out, "\\[u",
                    absl::AsciiStrToUpper(absl::StrCat(absl::Hex(code, absl::kZeroPad4))), "]");
  }
  return out;
}

std::string Line(std::string_view text) { return Ascii(Escaped(text)); }

}  // namespace

RoffPage::RoffPage(std::string_view name, int section) : name_(name) {
  absl::StrAppend(&text_, ".TH ", absl::AsciiStrToUpper(Line(name_)), " ", section,
                  " \"\" \"kvatlas ", kVersion, "\" \"kvatlas\"\n.nh\n.ad l\n");
}

void RoffPage::Name(std::string_view about) {
  // whatis(1) wants one clause without its period.
  std::string_view clause = about.substr(0, about.find(". "));
  if (!clause.empty() && clause.back() == '.') clause.remove_suffix(1);
  absl::StrAppend(&text_, ".SH NAME\n", Line(name_), " \\- ", Line(clause), "\n");
}

void RoffPage::Heading(std::string_view text) {
  absl::StrAppend(&text_, ".SH ", absl::AsciiStrToUpper(Line(text)), "\n");
}

void RoffPage::Subheading(std::string_view text) {
  absl::StrAppend(&text_, ".SS ", Line(text), "\n");
}

void RoffPage::Paragraph(std::string_view text) {
  absl::StrAppend(&text_, ".PP\n", Line(text), "\n");
}

void RoffPage::Usage(std::string_view program, std::string_view arguments) {
  absl::StrAppend(&text_, ".PP\n\\fB", Line(program), "\\fR ", Line(arguments), "\n");
}

void RoffPage::Item(std::string_view what, std::string_view value, std::string_view text) {
  absl::StrAppend(&text_, ".TP\n\\fB", Line(what), "\\fR", value.empty() ? "" : " ",
                  value.empty() ? "" : "\\fI", Line(value), value.empty() ? "" : "\\fR", "\n",
                  Line(text), "\n");
}

void RoffPage::Example(std::string_view command, std::string_view does) {
  absl::StrAppend(&text_, ".PP\n", Line(does), ":\n.PP\n.RS 4\n.nf\n", Line(command),
                  "\n.fi\n.RE\n");
}

void RoffPage::SeeAlso(const std::vector<std::string>& pages) {
  text_ += ".SH SEE ALSO\n";
  for (size_t i = 0; i < pages.size(); ++i) {
    const size_t paren = pages[i].find('(');
    absl::StrAppend(&text_, ".BR ", Line(pages[i].substr(0, paren)), " ", pages[i].substr(paren),
                    i + 1 < pages.size() ? "," : "", "\n");
  }
}

}  // namespace kvatlas
