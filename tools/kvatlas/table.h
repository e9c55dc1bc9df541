// A table for people: columns as wide as their widest cell, numbers to the right, states in colour.
//
//   Table table({"WORKER", "RANK>", "TRUST*"});       '>': to the right, '*': a state, coloured where colours are wanted
//   table.Add({"w0", "0", "exact"});
//   table.Print(std::cout, /*colours=*/isatty(1));

#ifndef KVATLAS_TOOLS_KVATLAS_TABLE_H_
#define KVATLAS_TOOLS_KVATLAS_TABLE_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/telemetry/text_escape.h"  // Shown

namespace kvatlas {

class Table {
 public:
  explicit Table(std::vector<std::string> heads);
  // REQUIRES: a cell for each head.
  void Add(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }
  // Heads, then rows in the order they came; no heads without rows.
  void Print(std::ostream& out, bool colours = false) const;

 private:
  std::vector<std::string> heads_;
  std::vector<bool> right_;
  std::vector<bool> states_;
  std::vector<std::vector<std::string>> rows_;
};

// `Shown` of a text of several lines, which stay. Cells of tables are `Shown`.
std::string ShownLines(std::string_view text);

// Green, yellow or red on a terminal by the word with which `state` begins: "exact", "degraded",
// "unreachable: …"; a word that is no state stays as it is.
std::string Coloured(const std::string& state);

// "1,234,567"
std::string Grouped(uint64_t number);
// "35 ms", "4.2 s", "3 min": of a duration in milliseconds.
std::string ShortMs(uint64_t ms);
// Sixteen hexadecimal digits.
std::string Hex(uint64_t hash);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_TABLE_H_
