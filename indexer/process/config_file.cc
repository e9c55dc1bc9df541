#include "indexer/process/config_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/nearest_name.h"

namespace kvatlas {
namespace {

// Some texts make an assertion of toml++ fail. The assertion is replaced by this exception, in
// every build, so that such a text is refused instead of ending the process.
struct NoToml {};
[[noreturn]] void RefuseToml() { throw NoToml(); }

}  // namespace
}  // namespace kvatlas

// With NDEBUG, toml++ would tell the compiler to assume what it asserts.
#undef NDEBUG
#define TOML_ASSERT(holds) (static_cast<bool>(holds) ? void() : ::kvatlas::RefuseToml())
#define TOML_EXCEPTIONS 1
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace kvatlas {
namespace {

std::string Underscored(std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// One value as a flag takes it. Nothing: it is a list, a table, a date or a time.
std::optional<std::string> ScalarText(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) {
    char digits[32];
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, number->get()).ptr);
  }
  return std::nullopt;
}

// Collects the entries of one file: the top level first, then the section over it. Both are checked
// for keys that come twice, which TOML itself allows where only hyphens and underscores differ.
class Reader {
 public:
  Reader(const std::string& section, bool only_section)
      : section_(section), only_section_(only_section) {}

  // In the order of the file, so that problems are reported from top to bottom.
  std::vector<ConfigEntry> Read(const toml::table& file) {
    ReadTable(file, /*top=*/true);
    if (const toml::table* own = file[section_].as_table(); own != nullptr)
      ReadTable(*own, /*top=*/false);
    std::vector<ConfigEntry> entries;
    for (auto& [key, entry] : entries_) entries.push_back(std::move(entry));
    std::stable_sort(entries.begin(), entries.end(),
                     [](const ConfigEntry& a, const ConfigEntry& b) { return a.line < b.line; });
    return entries;
  }

 private:
  static int LineOf(const toml::key& key) { return static_cast<int>(key.source().begin.line); }

  // Keeps the first problem of an entry; it is reported only if the key counts for this process.
  static void Bad(int line, std::string why, ConfigEntry* entry) {
    if (!entry->problem.empty()) return;
    entry->line = line;
    entry->problem = std::move(why);
  }

  // Tables named for a process are sections; any other table is a list of NAME=VALUE.
  bool IsSection(const toml::key& key, const toml::node& value) const {
    const std::vector<std::string>& sections = ConfigSections();
    return value.is_table() && (key.str() == section_ || std::find(sections.begin(), sections.end(),
                                                                   key.str()) != sections.end());
  }

  // An entry of the section replaces that of the top as a whole, its problem included.
  void ReadTable(const toml::table& table, bool top) {
    std::map<std::string, ConfigEntry> entries;
    for (const auto& [key, value] : table) {
      if (top && (only_section_ || IsSection(key, value))) continue;
      ConfigEntry entry{.key = Underscored(key.str()), .text = "", .line = LineOf(key)};
      SetText(value, &entry);
      const int line = LineOf(key);
      const auto [at, is_new] = entries.emplace(entry.key, entry);
      if (!is_new) Bad(line, "is there twice", &at->second);
    }
    for (auto& [key, entry] : entries) entries_[key] = std::move(entry);
  }

  // The value as text: lists are joined by commas, the elements of a table as NAME=VALUE.
  static void SetText(const toml::node& value, ConfigEntry* entry) {
    entry->is_list = value.is_array() || value.is_table();
    if (const toml::array* array = value.as_array()) {
      for (const toml::node& element : *array) AddElement("", element, entry);
    } else if (const toml::table* table = value.as_table()) {
      for (const auto& [name, element] : *table) {
        if (name.str().find('=') != std::string_view::npos || name.empty())
          return Bad(LineOf(name), "a name is empty, or has a '='", entry);
        AddElement(std::string(name.str()) + "=", element, entry);
      }
    } else if (const std::optional<std::string> text = ScalarText(value); text.has_value()) {
      entry->text = *text;
    } else {
      Bad(entry->line, "dates and times are no values here; write a string", entry);
    }
  }

  // Commas separate the elements in the flag's text, so an element must not contain one.
  static void AddElement(const std::string& prefix, const toml::node& element, ConfigEntry* entry) {
    const int line = static_cast<int>(element.source().begin.line);
    const std::optional<std::string> text = ScalarText(element);
    if (!text.has_value()) {
      return Bad(line,
                 absl::StrCat("an element is a string, a number or a boolean",
                              prefix.empty() ? "" : ", and no section has this name"),
                 entry);
    }
    if ((prefix + *text).empty()) return Bad(line, "has an empty element", entry);
    if ((prefix + *text).find(',') != std::string::npos)
      return Bad(line,
                 absl::StrCat("\"", prefix, *text,
                              "\" has a comma, which separates elements: ", "make it two"),
                 entry);
    absl::StrAppend(&entry->text, entry->text.empty() ? "" : ",", prefix, *text);
  }

  const std::string& section_;
  const bool only_section_;
  std::map<std::string, ConfigEntry> entries_;
};

absl::Status CannotRead(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", absl::string_view(why.data(), why.size())));
}

// The type is checked on the open descriptor. One byte beyond the bound is read, to tell a file
// that is too long.
absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  // O_NONBLOCK: opening a FIFO would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return CannotRead(path, strerror(errno));
  struct stat file = {};
  std::string text;
  absl::Status bad;
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
    bad = CannotRead(path, "is no regular file");
  } else {
    text.resize(kConfigFileBytesMax + 1);
    size_t size = 0;
    for (ssize_t n = 1; n > 0 && size < text.size();) {
      n = read(fd, text.data() + size, text.size() - size);
      if (n > 0) size += static_cast<size_t>(n);
      if (n < 0 && errno == EINTR) n = 1;
      if (n < 0) bad = CannotRead(path, strerror(errno));
    }
    text.resize(size);
    if (size > kConfigFileBytesMax) bad = CannotRead(path, "is longer than 1 MiB");
  }
  close(fd);
  if (!bad.ok()) return bad;
  return text;
}

}  // namespace

const std::vector<std::string>& ConfigSections() {
  static const std::vector<std::string>& sections =
      *new std::vector<std::string>{"leaf", "hierarchy", "frontend", "relay", "serve", "kvatlas"};
  return sections;
}

// toml++ throws; its exceptions end here.
absl::StatusOr<std::vector<ConfigEntry>> ParseConfig(std::string_view text, const std::string& name,
                                                     const std::string& section,
                                                     bool only_section) {
  try {
    return Reader(section, only_section).Read(toml::parse(text, name));
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ":", error.source().begin.line, ": ", std::string(error.description())));
  } catch (const NoToml&) {
    return absl::InvalidArgumentError(name + ": is no TOML");
  }
}

absl::StatusOr<std::vector<ConfigEntry>> ReadConfigFile(const std::string& path,
                                                        const std::string& section,
                                                        bool only_section) {
  const absl::StatusOr<std::string> text = ReadWhole(path);
  if (!text.ok()) return text.status();
  return ParseConfig(*text, path, section, only_section);
}

}  // namespace kvatlas
