// Two passes of defence: fields of JSON by their names, and every text by patterns. Rules are
// applied line by line, in their order.

#include "tools/kvatlas/scrub.h"

#include <array>
#include <regex>
#include <utility>

#include "indexer/process/process_facts.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

struct Rule {
  std::regex pattern;
  const char* instead;
};

// Compiled once and never destroyed. In this order: credentials in headers, secrets behind their
// names, contents of prompts behind their names (an open bracket or quote runs to the end of the
// cut line), and numbers that are long enough to be hashes.
const std::array<Rule, 4>& Rules() {
  constexpr auto kAnyCase = std::regex::ECMAScript | std::regex::icase | std::regex::optimize;
  static const auto& rules = *new std::array<Rule, 4>{{
      {std::regex("\\b(bearer|basic) +[^ \",]+", kAnyCase), "$1 ***"},
      {std::regex("(password|passwd|secret|token|api_?key|authorization|salt)(\"? *[=:] *)"
                  "(\"[^\"]*\"|[^ \",;}]+)",
                  kAnyCase),
       "$1$2***"},
      {std::regex("\\b(tokens|[a-z_]*hashes|prompt|messages|content|input)(\"? *[=:] *)"
                  "(\\[[^\\]]*\\]?|\"[^\"]*\"?)",
                  kAnyCase),
       "$1$2***"},
      {std::regex("\\b(0x)?[0-9a-f]{16,}\\b|\\b[0-9]{17,}\\b", kAnyCase), "<number>"},
  }};
  return rules;
}

// Cut first, so that the cost of the patterns is bounded. `WithoutSecrets` cleans URLs.
std::string ScrubbedLine(std::string line) {
  if (line.size() > kScrubbedLineBytesMax) {
    line.resize(kScrubbedLineBytesMax);
    line += "…";
  }
  line = WithoutSecrets(line);
  for (const Rule& rule : Rules()) line = std::regex_replace(line, rule.pattern, rule.instead);
  return line;
}

// Fields whose values are of a prompt, or open something. The whole name has to match.
bool IsSecret(const std::string& field) {
  static const std::regex secret(
      "password|passwd|secret|token|api_?key|authorization|(.*_)?salt|tokens|(.*_)?(token|input)_"
      "ids|"
      ".*hash(es)?|prompt|messages|content|input|text");
  return std::regex_match(field, secret);
}

}  // namespace

std::string ScrubbedText(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    out += ScrubbedLine(std::string(text.substr(0, newline)));
    if (newline == std::string_view::npos) break;
    out += '\n';
    text.remove_prefix(newline + 1);
  }
  return out;
}

void Scrub(Json* json) {
  if (json->is_object()) {
    for (auto& [field, value] : json->items()) {
      // A time in nanoseconds, which the pattern of long numbers would take for a hash.
      if (field == "epoch") continue;
      if (IsSecret(field) && !value.is_boolean() && !value.is_null()) {
        value = "***";
      } else {
        Scrub(&value);
      }
    }
  } else if (json->is_array()) {
    for (Json& element : *json) Scrub(&element);
  } else if (json->is_string()) {
    *json = ScrubbedText(json->get<std::string>());
  }
}

}  // namespace kvatlas
