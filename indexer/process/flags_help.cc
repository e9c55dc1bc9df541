// The texts that a process prints about its flags: --help, --check, and the list that /status
// shows.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "indexer/base/version.h"
#include "indexer/net/redis_url.h"
#include "indexer/process/flags.h"

namespace kvatlas {
namespace {

constexpr size_t kTextColumn = 34;  // of a flag's description
constexpr size_t kColumnsMax = 118;

// Puts `text` at `column`, in lines of at most `kColumnsMax`; `at` is where the cursor is. A flag
// whose name reaches beyond the column has its text on the next line.
std::string Wrapped(std::string_view text, size_t at, size_t column = kTextColumn) {
  std::string lines;
  if (at >= column) {
    lines = "\n";
    at = 0;
  }
  lines.append(column - at, ' ');
  at = column;
  for (const absl::string_view word :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ' ', absl::SkipEmpty())) {
    if (at > column && at + 1 + word.size() > kColumnsMax) {
      lines += "\n" + std::string(column, ' ');
      at = column;
    }
    if (at > column) {
      lines += ' ';
      ++at;
    }
    absl::StrAppend(&lines, word);
    at += word.size();
  }
  return lines + "\n";
}

// A basic string of TOML.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      absl::StrAppend(&quoted, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
    else
      quoted += c;
  }
  return quoted + "\"";
}

bool IsTopic(const std::string& group, const std::string& topic) {
  return absl::AsciiStrToLower(group) == absl::AsciiStrToLower(topic);
}

}  // namespace

// In the order of --help: the program's own groups as they were first used, then the common ones,
// then the last.
std::vector<std::string> FlagSet::Groups() const {
  std::vector<std::string> groups;
  for (const Flag& flag : flags_) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end())
      groups.push_back(flag.group);
  }
  const auto place = [this](const std::string& group) {
    return group == kLastGroup ? 2 : static_cast<int>(common_groups_.count(group));
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
  return groups;
}

// Defaults are shown without passwords: --help may be pasted into a ticket.
std::string FlagSet::FlagHelp(const Flag& flag) const {
  const std::string name = absl::StrCat("  --", flag.name, " ", flag.type);
  const std::string shown = flag.default_text.empty() ? "none" : flag.default_text;
  return name + Wrapped(absl::StrCat(flag.help, flag.repeats ? "; may be given several times" : "",
                                     " (default: ", WithoutPasswords(shown), ")"),
                        name.size());
}

// The built-in switches stand below the last group, or below the only one if it has no heading.
std::string FlagSet::GroupHelp(const std::string& group) const {
  std::string text = absl::StrCat("\n", group.empty() ? "Flags" : group, ":\n");
  for (const Flag& flag : flags_) {
    if (flag.group == group) text += FlagHelp(flag);
  }
  if (group != kLastGroup && !(group.empty() && Groups().back() == group)) return text;
  if (TakesCheck())
    text += "  --check" + Wrapped(
                              "look at everything that was told, print what counts, and exit: 0, "
                              "or 2 with what is wrong",
                              9);
  text += "  --help[=TOPIC], -h" +
          Wrapped("show this, or one topic or flag, and exit; man: a page of the manual", 20);
  text += "  --version" + Wrapped("show the version and exit", 11);
  return text;
}

// Usage, topics, the sources of settings, all groups, examples.
std::string FlagSet::Help() const {
  const std::vector<std::string> groups = Groups();
  std::string text =
      absl::StrCat(command_, " ", kVersion, ": ", about_, "\n\nUsage: ", command_,
                   " [--flag=value...]", words_usage_.empty() ? "" : " " + words_usage_, "\n");
  if (groups.size() > 1) {
    std::vector<std::string> topics = groups;
    std::erase(topics, "");  // of flags before the first group
    constexpr std::string_view kTopics = "Topics, for --help=TOPIC:";
    absl::StrAppend(&text, std::string(kTopics),
                    Wrapped(absl::AsciiStrToLower(absl::StrJoin(topics, ", ")), kTopics.size(),
                            kTopics.size() + 1));
  }
  if (reads_config_) {
    absl::StrAppend(&text,
                    "Each flag may also be a variable of the environment (KVATLAS_LOG_LEVEL for "
                    "--log_level), or a key of the\n",
                    "file of --config, at its top or in its section [", section_,
                    "]. A flag wins over a variable, that over the file.\n");
  }
  for (const std::string& group : groups) text += GroupHelp(group);
  if (!examples_.empty()) text += "\nExamples:\n";
  for (const auto& [command, does] : examples_)
    absl::StrAppend(&text, "  # ", does, "\n  ", command, "\n");
  return text;
}

// "man" and "markdown" first, then a group by its heading in any case, then a flag.
std::optional<std::string> FlagSet::Help(std::string topic) const {
  if (topic == "man") return ManPage();
  if (topic == "markdown") return Markdown();
  for (const std::string& group : Groups()) {
    if (IsTopic(group, topic)) return GroupHelp(group).substr(1);
  }
  std::replace(topic.begin(), topic.end(), '-', '_');
  const Flag* const flag = Find(topic);
  if (flag == nullptr) return std::nullopt;
  return FlagHelp(*flag);
}

std::vector<FlagSet::Told> FlagSet::AllTold() const {
  std::vector<Told> told;
  for (const Flag& flag : flags_) {
    const auto given = settings_.find(&flag);
    if (given != settings_.end())
      told.push_back({flag.name, values_.at(&flag), given->second.where});
  }
  return told;
}

std::vector<FlagSet::Text> FlagSet::Texts() const {
  std::vector<Text> texts;
  for (const Flag& flag : flags_)
    texts.push_back({flag.name, flag.type, WithoutPasswords(flag.default_text), flag.help,
                     flag.group, flag.kind == Flag::Kind::kBool});
  return texts;
}

// Every flag with its present value, as TOML that can be used as a configuration file, without
// passwords. A number that does not fit TOML's 64 bits is written as a string, which the reader
// takes.
std::string FlagSet::Effective() const {
  std::string text = absl::StrCat("# ", program_, " ", kVersion, "\n");
  for (const std::string& group : Groups()) {
    absl::StrAppend(&text, "\n# ", group.empty() ? "Flags" : group, "\n");
    for (const Flag& flag : flags_) {
      if (flag.group != group || flag.name == "config") continue;
      const std::string value = WithoutPasswords(values_.at(&flag));
      int64_t fits = 0;
      double number = 0;
      absl::StrAppend(&text, flag.name, " = ");
      if (flag.kind == Flag::Kind::kBool) {
        text += value;
      } else if (flag.kind == Flag::Kind::kList) {
        std::vector<std::string> elements;
        for (const absl::string_view element : absl::StrSplit(value, ',', absl::SkipEmpty()))
          elements.push_back(Quoted({element.data(), element.size()}));
        absl::StrAppend(&text, "[", absl::StrJoin(elements, ", "), "]");
      } else if (flag.kind == Flag::Kind::kNumber &&
                 (absl::SimpleAtoi(value, &fits) ||
                  (flag.type == "NUMBER" && absl::SimpleAtod(value, &number)))) {
        text += value;
      } else {
        text += Quoted(value);
      }
      const std::string where = WhereFrom(flag.name);
      absl::StrAppend(&text, where.empty() ? "" : "  # " + where, "\n");
    }
  }
  return text;
}

}  // namespace kvatlas
