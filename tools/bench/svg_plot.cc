#include "tools/bench/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

constexpr double kWidth = 860;
constexpr double kNameWidth = 150;
constexpr double kValueWidth = 110;
constexpr double kBarHeight = 16;
constexpr double kRowHeight = 20;
constexpr double kTitleHeight = 34;
constexpr double kPlotHeight = 260;
constexpr const char* kColours[] = {"#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed",
                                    "#0891b2", "#be185d", "#4d7c0f", "#475569", "#a16207"};

const char* Colour(size_t i) { return kColours[i % std::size(kColours)]; }

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), value >= 100 ? "%.0f" : "%.3g", value);
  return text;
}

// A document that grows downwards.
class Drawing {
 public:
  void Text(double x, double y, const std::string& text, const char* anchor = "start",
            int size = 12) {
    Add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\">", x, y, anchor, size);
    body_ += Escaped(text) + "</text>\n";
  }
  void Bar(double x, double y, double width, const char* colour) {
    Add("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y,
        std::max(width, 1.0), kBarHeight, colour);
  }
  void Line(double x1, double y1, double x2, double y2, const char* colour, double width) {
    Add("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
        "stroke-width=\"%.1f\"/>\n",
        x1, y1, x2, y2, colour, width);
  }
  void Dot(double x, double y, const char* colour) {
    Add("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, y, colour);
  }

  double bottom = 0;

  std::string Document() const {
    char head[256];
    std::snprintf(head, sizeof(head),
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                  "font-family=\"sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" "
                  "fill=\"white\"/>\n",
                  kWidth, bottom + 20);
    return head + body_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void Add(const char* format, Args... args) {
    char text[320];
    std::snprintf(text, sizeof(text), format, args...);
    body_ += text;
  }

  std::string body_;
};

using ValueOf = std::function<std::optional<double>(const BenchResult&)>;

struct Figure {
  std::string title;
  ValueOf value;
  bool logarithmic = false;
};

std::vector<Figure> Figures() {
  using R = BenchResult;
  const auto plain = [](std::optional<double> R::* field, double unit) {
    return [field, unit](const R& r) -> std::optional<double> {
      if (!(r.*field).has_value()) return std::nullopt;
      return *(r.*field) / unit;
    };
  };
  const auto latency = [](double Percentiles::* share) {
    return [share](const R& r) -> std::optional<double> {
      if (!r.query_ns.has_value()) return std::nullopt;
      return (*r.query_ns).*share;
    };
  };
  const auto bytes = [](uint64_t MemoryResult::* field, double unit) {
    return [field, unit](const R& r) -> std::optional<double> {
      if (!r.memory.has_value()) return std::nullopt;
      return static_cast<double>((*r.memory).*field) / unit;
    };
  };
  return {
      {"million block ops per second (best)", plain(&R::block_ops_per_s, 1e6)},
      {"million block ops per second in events", plain(&R::event_block_ops_per_s, 1e6)},
      {"million block ops per second in queries", plain(&R::query_block_ops_per_s, 1e6)},
      {"sustained million block ops per second", plain(&R::sustained_block_ops_per_s, 1e6)},
      {"ns per stored block", plain(&R::ns_per_stored_block, 1)},
      {"ns per removed block", plain(&R::ns_per_removed_block, 1)},
      {"query, median, ns (logarithmic)", latency(&Percentiles::p50), true},
      {"query, p99, ns (logarithmic)", latency(&Percentiles::p99), true},
      {"memory built, MB", bytes(&MemoryResult::bytes_built, 1e6)},
      {"memory after clearing all, MB", bytes(&MemoryResult::bytes_after_clear, 1e6)},
  };
}

// A structure, and in the closed loop what its threads did.
std::string LabelOf(const BenchResult& result) {
  if (result.mode != "closed") return result.index;
  if (result.event_threads == 0) return result.index + ", queries";
  if (result.query_threads == 0) return result.index + ", events";
  return result.index + ", both";
}

// Labels in the order of their first result.
std::vector<std::string> NamesOf(std::span<const BenchResult> results) {
  std::vector<std::string> names;
  for (const BenchResult& result : results) {
    if (result.skipped.has_value()) continue;
    const std::string label = LabelOf(result);
    if (std::find(names.begin(), names.end(), label) == names.end()) names.push_back(label);
  }
  return names;
}

uint32_t Threads(const BenchResult& result) {
  return std::max(result.event_threads, result.query_threads);
}

// Of a label, its results of one figure over threads.
using Series = std::map<uint32_t, double>;

std::vector<Series> SeriesOf(std::span<const BenchResult> results,
                             const std::vector<std::string>& names, const ValueOf& value) {
  std::vector<Series> all(names.size());
  for (const BenchResult& result : results) {
    const auto name = std::find(names.begin(), names.end(), LabelOf(result));
    const std::optional<double> number = value(result);
    if (name == names.end() || !number.has_value() || result.skipped.has_value()) continue;
    Series& series = all[name - names.begin()];
    const auto [at, is_new] = series.try_emplace(Threads(result), *number);
    if (!is_new) at->second = std::max(at->second, *number);
  }
  return all;
}

double Largest(const std::vector<Series>& all) {
  double largest = 0;
  for (const Series& series : all) {
    for (const auto& [threads, value] : series) largest = std::max(largest, value);
  }
  return largest;
}

void DrawBars(const Figure& figure, const std::vector<std::string>& names,
              const std::vector<Series>& all, Drawing* drawing) {
  const double largest = Largest(all);
  const double width = kWidth - kNameWidth - kValueWidth;
  drawing->Text(10, drawing->bottom + 22, figure.title, "start", 14);
  drawing->bottom += kTitleHeight;
  for (size_t i = 0; i < names.size(); ++i) {
    const double y = drawing->bottom;
    drawing->Text(kNameWidth - 8, y + 13, names[i], "end");
    drawing->bottom += kRowHeight;
    if (all[i].empty()) {
      drawing->Text(kNameWidth, y + 13, "–");
      continue;
    }
    const double value = all[i].begin()->second;
    const double share =
        figure.logarithmic ? std::log1p(value) / std::log1p(largest) : value / largest;
    drawing->Bar(kNameWidth, y, width * share, Colour(i));
    drawing->Text(kNameWidth + width * share + 6, y + 13, Number(value));
  }
}

void DrawLines(const Figure& figure, const std::vector<std::string>& names,
               const std::vector<Series>& all, const std::set<uint32_t>& threads,
               Drawing* drawing) {
  const double largest = Largest(all);
  const double left = 60, right = kWidth - kNameWidth - 20;
  drawing->Text(10, drawing->bottom + 22, figure.title + ", over threads", "start", 14);
  const double top = drawing->bottom + kTitleHeight, bottom = top + kPlotHeight;
  const auto x_of = [&](uint32_t count) {
    return left + (right - left) * count / static_cast<double>(*threads.rbegin());
  };
  const auto y_of = [&](double value) { return bottom - (bottom - top) * value / largest; };
  drawing->Line(left, bottom, right, bottom, "black", 1);
  drawing->Line(left, bottom, left, top, "black", 1);
  drawing->Text(left - 6, top + 4, Number(largest), "end");
  drawing->Text(left - 6, bottom, "0", "end");
  for (uint32_t count : threads) {
    drawing->Text(x_of(count), bottom + 16, std::to_string(count), "middle");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const double legend = top + kRowHeight * static_cast<double>(i);
    drawing->Bar(right + 20, legend, 12, Colour(i));
    drawing->Text(right + 38, legend + 13, names[i]);
    std::optional<std::pair<double, double>> last;
    for (const auto& [count, value] : all[i]) {
      const std::pair<double, double> at = {x_of(count), y_of(value)};
      if (last.has_value()) {
        drawing->Line(last->first, last->second, at.first, at.second, Colour(i), 2);
      }
      drawing->Dot(at.first, at.second, Colour(i));
      last = at;
    }
  }
  drawing->bottom = std::max(bottom + 24, top + kRowHeight * static_cast<double>(names.size()));
}

}  // namespace

std::string ToSvg(std::span<const BenchResult> results, const std::string& title) {
  const std::vector<std::string> names = NamesOf(results);
  Drawing drawing;
  drawing.Text(10, 24, title, "start", 18);
  drawing.bottom = 30;
  for (const Figure& figure : Figures()) {
    const std::vector<Series> all = SeriesOf(results, names, figure.value);
    std::set<uint32_t> threads;
    for (const Series& series : all) {
      for (const auto& [count, value] : series) threads.insert(count);
    }
    if (threads.empty() || Largest(all) <= 0) continue;
    if (threads.size() == 1) {
      DrawBars(figure, names, all, &drawing);
    } else {
      DrawLines(figure, names, all, threads, &drawing);
    }
  }
  return drawing.Document();
}

}  // namespace kvatlas
