#include "tools/bench/hierarchy_bench_sweep.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>

namespace kvatlas {
namespace {

using Result = HierarchyBenchResult;

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// From dense to sparse, and what is in between.
constexpr const char* kCandidates[] = {
    "every:1",
    "every:8",
    "every:16",
    "every:32",
    "every:64",
    "every:128",
    "dense:8;every:32",
    "early:7;every:32",
    "early:7,15;every:32",
    "early:7,15;every:64",
    "early:7,15,31;every:64",
    "early:7,15,31,63;every:128",
    "early:7,15,31,63,127;every:256",
    "early:7,15,63;every:256",
    "early:7,15,47;every:256",
    "early:7,15,47,143;every:256",
    "early:7,31;every:64",
    "early:7,31,63;every:128",
    "early:7,31,127;every:256",
    "early:7,31,63,127;every:128",
    "every:8to32;every:16to64;every:32to128;every:64",
    "powers:64;every:64",
    "powers:128;every:128",
    "powers:1024;every:1024",
};

Sweep OverNumbers(const std::string& x_name, bool logarithmic, const std::vector<double>& values,
                  const HierarchyBenchOptions& base, const std::vector<uint32_t>& asks,
                  const std::function<void(double, HierarchyBenchOptions*)>& set) {
  Sweep sweep{.x_name = x_name, .logarithmic = logarithmic, .points = {}};
  for (uint32_t ask : asks) {
    for (double value : values) {
      SweepPoint point{.series = "K = " + std::to_string(ask),
                       .label = "K = " + std::to_string(ask) + ", " + Text(value),
                       .x = value,
                       .options = base};
      point.options.ask = ask;
      set(value, &point.options);
      sweep.points.push_back(std::move(point));
    }
  }
  return sweep;
}

Sweep OverSchedules(const HierarchyBenchOptions& base) {
  Sweep sweep{
      .x_name = "updates, % of the leaves', logarithmic", .logarithmic = true, .points = {}};
  for (const char* name : kCandidates) {
    sweep.points.push_back({.series = "", .label = name, .x = 0, .options = base});
    sweep.points.back().options.schedule = name;
  }
  return sweep;
}

using MakeFn = std::function<Sweep(const HierarchyBenchOptions&)>;

const std::map<std::string, MakeFn>& Makers() {
  using Options = HierarchyBenchOptions;
  static const auto& makers = *new std::map<std::string, MakeFn>{
      {"schedule", OverSchedules},
      {"staleness",
       [](const Options& base) {
         return OverNumbers("delay, ms", true, {0, 10, 30, 100, 300, 1000, 3000, 10000, 30000},
                            base, {1, 2}, [](double x, Options* o) { o->delay_ms = x; });
       }},
      {"ask",
       [](const Options& base) {
         Sweep sweep{.x_name = "K", .logarithmic = false, .points = {}};
         for (uint32_t ask : {1, 2, 3, 4, 6, 8}) {
           sweep.points.push_back({.series = "kvatlas",
                                   .label = "K = " + std::to_string(ask),
                                   .x = double(ask),
                                   .options = base});
           sweep.points.back().options.ask = ask;
         }
         return sweep;
       }},
      {"budget",
       [](const Options& base) {
         return OverNumbers("waypoints a cell may have announced", true,
                            {32, 64, 128, 256, 512, 1024, 2048}, base, {2},
                            [](double x, Options* o) { o->budget = static_cast<uint64_t>(x); });
       }},
      {"split",
       [](const Options& base) {
         return OverNumbers("blocks for 512 tokens", true, {1, 2, 4, 8, 16, 32}, base, {2},
                            [&base](double x, Options* o) {
                              o->split = static_cast<uint32_t>(x);
                              // The same memory, in blocks of another size.
                              o->capacity = base.capacity * o->split / base.split;
                            });
       }},
      {"withdraw",
       [](const Options& base) {
         return OverNumbers("delay of withdrawals, ms", true, {0, 50, 100, 250, 1000, 5000, 30000},
                            base, {2}, [](double x, Options* o) { o->withdraw_delay_ms = x; });
       }},
      {"loss",
       [](const Options& base) {
         return OverNumbers("messages lost", false, {0, 0.01, 0.03, 0.1, 0.3}, base, {2},
                            [](double x, Options* o) { o->loss = x; });
       }},
  };
  return makers;
}

// ---- The picture ----

constexpr double kWidth = 920, kLeft = 70, kRight = 640, kPlotHeight = 240, kPanelHeight = 320;
constexpr const char* kColours[] = {"#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed",
                                    "#0891b2", "#be185d", "#4d7c0f", "#475569", "#a16207"};

struct Dot {
  double x, y;
  std::string label;
};
struct Panel {
  std::string title;
  std::map<std::string, std::vector<Dot>> series;
  double low = 0, high = 1;  // of y
};

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (char c : text) escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return escaped;
}

class Drawing {
 public:
  template <typename... Args>
  void Add(const char* format, Args... args) {
    char text[512];
    std::snprintf(text, sizeof(text), format, args...);
    body_ += text;
  }
  void Words(double x, double y, const std::string& words, const char* anchor, int size) {
    Add("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\">", x, y, anchor, size);
    body_ += Escaped(words) + "</text>\n";
  }
  void Line(double x1, double y1, double x2, double y2, const char* colour, double width) {
    Add("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
        "stroke-width=\"%.1f\"/>\n",
        x1, y1, x2, y2, colour, width);
  }
  std::string Document(double height) const {
    char head[256];
    std::snprintf(head, sizeof(head),
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                  "font-family=\"sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" "
                  "fill=\"white\"/>\n",
                  kWidth, height);
    return head + body_ + "</svg>\n";
  }

 private:
  std::string body_;
};

// 0 has a place on a logarithmic axis too: left of everything.
struct Axis {
  bool logarithmic;
  double smallest;  // above 0
  double low, high;
  double At(double x) const { return !logarithmic ? x : std::log10(x > 0 ? x : smallest / 3); }
  double Place(double x) const {
    return kLeft + (kRight - kLeft) * (At(x) - low) / std::max(high - low, 1e-9);
  }
};

Axis AxisOf(const Panel& panel, bool logarithmic) {
  Axis axis{logarithmic, 1e300, 1e300, -1e300};
  for (const auto& [name, dots] : panel.series) {
    for (const Dot& dot : dots)
      if (dot.x > 0) axis.smallest = std::min(axis.smallest, dot.x);
  }
  if (!logarithmic) axis.low = 0;
  for (const auto& [name, dots] : panel.series) {
    for (const Dot& dot : dots) {
      axis.low = std::min(axis.low, axis.At(dot.x));
      axis.high = std::max(axis.high, axis.At(dot.x));
    }
  }
  return axis;
}

void DrawTicks(const Panel& panel, const Axis& axis, double top, Drawing* drawing) {
  const double bottom = top + kPlotHeight;
  for (int i = 0; i <= 4; ++i) {
    const double y = panel.low + (panel.high - panel.low) * i / 4;
    const double at = bottom - kPlotHeight * i / 4;
    drawing->Line(kLeft, at, kRight, at, i == 0 ? "black" : "#e5e7eb", 1);
    drawing->Words(kLeft - 6, at + 4, Text(std::round(y * 1e3) / 1e3), "end", 11);
  }
  drawing->Line(kLeft, top, kLeft, bottom, "black", 1);
  double last = -1e300;
  std::map<double, bool> xs;
  for (const auto& [name, dots] : panel.series)
    for (const Dot& dot : dots) xs[dot.x] = true;
  for (const auto& [x, unused] : xs) {
    if (axis.Place(x) - last < 34) continue;
    last = axis.Place(x);
    drawing->Words(last, bottom + 16, Text(std::round(x * 100) / 100), "middle", 11);
  }
}

void DrawPanel(const Panel& panel, const Sweep& sweep, double top, Drawing* drawing) {
  drawing->Words(10, top - 12, panel.title, "start", 14);
  const Axis axis = AxisOf(panel, sweep.logarithmic);
  DrawTicks(panel, axis, top, drawing);
  const double bottom = top + kPlotHeight;
  drawing->Words((kLeft + kRight) / 2, bottom + 34, sweep.x_name, "middle", 12);
  size_t number = 0;
  double legend = top;
  for (const auto& [name, dots] : panel.series) {
    const bool alone = name.empty();
    const Dot* before = nullptr;
    for (const Dot& dot : dots) {
      const char* colour = kColours[(alone ? 0 : number) % std::size(kColours)];
      const double share = (dot.y - panel.low) / std::max(panel.high - panel.low, 1e-9);
      const double x = axis.Place(dot.x), y = bottom - kPlotHeight * std::clamp(share, 0.0, 1.0);
      if (before != nullptr && !alone) {
        const double old = (before->y - panel.low) / std::max(panel.high - panel.low, 1e-9);
        drawing->Line(axis.Place(before->x), bottom - kPlotHeight * std::clamp(old, 0.0, 1.0), x, y,
                      colour, 2);
      }
      drawing->Add("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x, y, colour);
      before = &dot;
      if (!alone) continue;
      // Points that stand alone are told apart by number.
      const std::string mark = std::to_string(++number);
      drawing->Words(x + 5, y + (number % 2 == 0 ? -3 : 11), mark, "start", 9);
      drawing->Words(kRight + 24, legend + 4, mark, "end", 9);
      drawing->Words(kRight + 30, legend + 4, dot.label, "start", 9);
      legend += 12;
    }
    if (!alone) {
      drawing->Line(kRight + 16, legend, kRight + 36, legend,
                    kColours[number % std::size(kColours)], 3);
      drawing->Words(kRight + 42, legend + 4, name, "start", 12);
      legend += 20;
      ++number;
    }
  }
}

// 1, 2, 4, 6, 8 or 10 times a power of ten, not below `value`: quarters of it are short numbers.
double RoundUp(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (double step : {1.0, 2.0, 4.0, 6.0, 8.0})
    if (value <= step * power) return step * power;
  return 10 * power;
}

std::optional<double> MeanOf(std::span<const Result> results,
                             const std::function<std::optional<double>(const Result&)>& value) {
  double sum = 0;
  for (const Result& result : results) {
    const std::optional<double> one = value(result);
    if (!one.has_value()) return std::nullopt;
    sum += *one;
  }
  return sum / static_cast<double>(std::max<size_t>(results.size(), 1));
}

}  // namespace

std::vector<std::string> SweepNames() {
  std::vector<std::string> names;
  for (const auto& [name, make] : Makers()) names.push_back(name);
  return names;
}

Sweep MakeSweep(const std::string& name, const HierarchyBenchOptions& base) {
  return Makers().at(name)(base);
}

std::string ToCurves(const Sweep& sweep, std::span<const Result> results, size_t runs,
                     const std::string& title) {
  using ValueFn = std::function<std::optional<double>(const Result&)>;
  const auto percent = [](std::optional<double> value) {
    return value.has_value() ? std::optional<double>(*value * 100) : value;
  };
  const bool by_updates = std::all_of(sweep.points.begin(), sweep.points.end(),
                                      [](const SweepPoint& point) { return point.series.empty(); });
  struct Kind {
    const char* title;
    ValueFn value;
  };
  const Kind kinds[] = {
      {"hits, % of the best in the same state",
       [&](const Result& r) { return percent(r.of_best); }},
      {"prompt blocks found in cache, %",
       [&](const Result& r) { return percent(r.hit_rate.kvatlas); }},
      {"requests whose first cell had less than promised, %",
       [&](const Result& r) { return percent(r.wrong_cell_rate); }},
      {"bytes, % of the leaves'", [&](const Result& r) { return percent(r.bytes_ratio); }},
  };
  Drawing drawing;
  drawing.Words(10, 24, title, "start", 17);
  double top = 70;
  for (const Kind& kind : kinds) {
    Panel panel{.title = kind.title, .series = {}};
    double low = 1e300, high = -1e300;
    for (size_t i = 0; i < sweep.points.size(); ++i) {
      const std::span<const Result> of = results.subspan(i * runs, runs);
      const std::optional<double> y = MeanOf(of, kind.value);
      if (!y.has_value()) continue;
      const SweepPoint& point = sweep.points[i];
      const double x =
          by_updates
              ? MeanOf(of, [&](const Result& r) { return percent(r.update_ratio); }).value_or(0)
              : point.x;
      panel.series[point.series].push_back({x, *y, point.label});
      low = std::min(low, *y);
      high = std::max(high, *y);
    }
    if (panel.series.empty()) continue;
    // Curves that hardly move are seen from 0; hits near the top from not far below.
    panel.low = low > 80 ? 100 - RoundUp(100 - std::min(low, 99.0)) : 0;
    panel.high = low > 80 ? 100 : RoundUp(std::max(high, 0.1));
    DrawPanel(panel, sweep, top, &drawing);
    top += kPanelHeight;
  }
  return drawing.Document(top - 20);
}

}  // namespace kvatlas
