// Layout of tables, and the short forms of numbers, times and hashes that all commands print.

#include "tools/kvatlas/table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>

namespace kvatlas {
namespace {

// Columns on a terminal: bytes that begin a character of UTF-8. Wide and combining characters count
// as one.
size_t WidthOf(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

constexpr char kGreen[] = "\x1b[32m", kYellow[] = "\x1b[33m", kRed[] = "\x1b[31m",
               kPlain[] = "\x1b[0m";

// By the first word of a state, which all services share. A state that is not here stays plain.
constexpr std::pair<std::string_view, const char*> kColours[] = {
    {"exact", kGreen},       {"connected", kGreen}, {"ready", kGreen},     {"at rest", kGreen},
    {"sending", kGreen},     {"ok", kGreen},        {"degraded", kYellow}, {"stale", kYellow},
    {"connecting", kYellow}, {"starting", kYellow}, {"paused", kYellow},   {"silent", kYellow},
    {"not ready", kRed},     {"masked", kRed},      {"down", kRed},        {"disconnected", kRed},
    {"unreachable", kRed},   {"refused", kRed},     {"failed", kRed},
};

}  // namespace

std::string ShownLines(std::string_view text) {
  std::string shown;
  for (size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1))
    shown += Shown(text.substr(0, end)) + '\n';
  return shown + Shown(text);
}

std::string Coloured(const std::string& state) {
  for (const auto& [word, colour] : kColours) {
    // The word has to end there: "ok" does not begin "okay".
    const bool begins =
        state.starts_with(word) && (state.size() == word.size() || state[word.size()] == ':' ||
                                    state[word.size()] == ' ' || state[word.size()] == ',');
    if (begins) return colour + state + kPlain;
  }
  return state;
}

Table::Table(std::vector<std::string> heads) : heads_(std::move(heads)) {
  for (std::string& head : heads_) {
    right_.push_back(head.ends_with('>'));
    states_.push_back(head.ends_with('*'));
    if (right_.back() || states_.back()) head.pop_back();
  }
}

// Cells may come from other hosts: `Shown` makes control characters visible, so that no cell can
// steer the terminal.
void Table::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Shown(cell);
  rows_.push_back(std::move(cells));
}

void Table::Print(std::ostream& out, bool colours) const {
  if (rows_.empty()) return;
  std::vector<size_t> widths;
  for (size_t column = 0; column < heads_.size(); ++column) {
    size_t width = WidthOf(heads_[column]);
    for (const auto& row : rows_) width = std::max(width, WidthOf(row[column]));
    widths.push_back(width);
  }
  const auto print = [&](const std::vector<std::string>& cells, bool coloured) {
    std::string line;
    for (size_t column = 0; column < cells.size(); ++column) {
      // Widths are those of the plain text: codes of colours take no columns.
      const std::string gap(widths[column] - WidthOf(cells[column]), ' ');
      const std::string cell =
          coloured && states_[column] ? Coloured(cells[column]) : cells[column];
      if (column > 0) line += "  ";
      line += right_[column] ? gap + cell : cell + gap;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  };
  print(heads_, /*coloured=*/false);
  for (const auto& row : rows_) print(row, colours);
}

std::string Grouped(uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string ShortMs(uint64_t ms) {
  char text[32];
  if (ms < 1000) {
    std::snprintf(text, sizeof text, "%llu ms", static_cast<unsigned long long>(ms));
  } else if (ms < 120'000) {
    std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms) / 1000);
  } else {
    std::snprintf(text, sizeof text, "%llu min", static_cast<unsigned long long>(ms / 60'000));
  }
  return text;
}

std::string Hex(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace kvatlas
