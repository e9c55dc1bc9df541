#include "tools/bench/hierarchy_bench_report.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;
using Result = HierarchyBenchResult;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json ToJson(const Quantiles& quantiles) {
  return {{"p50", OrNull(quantiles.p50)}, {"p99", OrNull(quantiles.p99)}};
}

template <typename T>
std::optional<double> AsDouble(const std::optional<T>& value) {
  return value.has_value() ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
}

// A figure of the table: its name, its value, how it is printed.
struct Row {
  const char* name;
  std::function<std::optional<double>(const Result&)> value;
  const char* format;
};

const std::vector<Row>& Rows() {
  using R = const Result&;
  static const auto& rows = *new std::vector<Row>{
      {"requests", [](R r) { return AsDouble(r.requests); }, "%.0f"},
      {"too long", [](R r) { return AsDouble(r.too_long); }, "%.0f"},
      {"fallbacks", [](R r) { return AsDouble(r.fallbacks); }, "%.0f"},
      {"hits kvatlas", [](R r) { return r.hit_rate.kvatlas; }, "%.4f"},
      {"hits best in the same state", [](R r) { return r.hit_rate.best_same_state; }, "%.4f"},
      {"hits / best in the same state", [](R r) { return r.of_best; }, "%.4f"},
      {"hits exact global", [](R r) { return r.hit_rate.exact_global; }, "%.4f"},
      {"hits one cell per user", [](R r) { return r.hit_rate.one_cell; }, "%.4f"},
      {"hits random", [](R r) { return r.hit_rate.random; }, "%.4f"},
      {"regret blocks, mean", [](R r) { return r.regret_blocks_mean; }, "%.3f"},
      {"regret blocks, p99", [](R r) { return r.regret_blocks_p99; }, "%.0f"},
      {"wrong cell rate", [](R r) { return r.wrong_cell_rate; }, "%.4f"},
      {"updates", [](R r) { return AsDouble(r.updates); }, "%.0f"},
      {"updates / leaves'", [](R r) { return r.update_ratio; }, "%.4f"},
      {"bytes", [](R r) { return AsDouble(r.bytes); }, "%.0f"},
      {"bytes / leaves'", [](R r) { return r.bytes_ratio; }, "%.4f"},
      {"of these for load", [](R r) { return AsDouble(r.load_bytes); }, "%.0f"},
      {"leaf updates", [](R r) { return AsDouble(r.leaf_updates); }, "%.0f"},
      {"leaf bytes", [](R r) { return AsDouble(r.leaf_bytes); }, "%.0f"},
      {"of these for load ", [](R r) { return AsDouble(r.leaf_load_bytes); }, "%.0f"},
      {"find cells us, p50", [](R r) { return r.find_cells_us.p50; }, "%.2f"},
      {"find cells us, p99", [](R r) { return r.find_cells_us.p99; }, "%.2f"},
      {"staleness ms, p50", [](R r) { return r.staleness_ms.p50; }, "%.1f"},
      {"staleness ms, p99", [](R r) { return r.staleness_ms.p99; }, "%.1f"},
      {"(cell, waypoint) pairs", [](R r) { return AsDouble(r.coverage); }, "%.0f"},
      {"bytes per pair", [](R r) { return r.hierarchy_bytes_per_coverage; }, "%.1f"},
      {"after five minutes of ticks", [](R r) { return r.hierarchy_bytes_tended; }, "%.1f"},
      {"a tick, us", [](R r) { return r.tick_us; }, "%.0f"},
      {"snapshots", [](R r) { return AsDouble(r.snapshots); }, "%.0f"},
      {"messages lost", [](R r) { return AsDouble(r.messages_lost); }, "%.0f"},
      {"wrong at rest", [](R r) { return AsDouble(r.wrong_at_rest); }, "%.0f"},
      {"snapshot installed, ms", [](R r) { return r.snapshot_ms; }, "%.0f"},
      {"questions meanwhile", [](R r) { return r.snapshot_queries; }, "%.0f"},
      {"their find cells us, p99", [](R r) { return r.find_cells_us_during_snapshot_p99; }, "%.2f"},
      {"over gRPC us, p50", [](R r) { return r.find_cells_grpc_us.p50; }, "%.1f"},
      {"over gRPC us, p99", [](R r) { return r.find_cells_grpc_us.p99; }, "%.1f"},
      {"questions a second", [](R r) { return r.qps; }, "%.0f"},
      {"bytes of an answer", [](R r) { return r.answer_bytes; }, "%.0f"},
      {"processor us of the node, a question", [](R r) { return r.node_cpu_us; }, "%.0f"},
      {"… of who asks", [](R r) { return r.client_cpu_us; }, "%.0f"},
      {"seconds", [](R r) { return std::optional<double>(r.seconds); }, "%.2f"},
  };
  return rows;
}

std::string Text(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Line(const std::vector<std::string>& cells, int first_width, int width) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    char text[256];
    std::snprintf(text, sizeof(text), i == 0 ? "%-*s" : "%*s", i == 0 ? first_width : width,
                  cells[i].c_str());
    line += text;
  }
  return line + "\n";
}

std::optional<double> MeanOf(const Row& row, std::span<const Result> results) {
  double sum = 0;
  for (const Result& result : results) {
    const std::optional<double> value = row.value(result);
    if (!value.has_value()) return std::nullopt;
    sum += *value;
  }
  return sum / static_cast<double>(results.size());
}

std::string Header(const Result& result) {
  char text[512];
  std::snprintf(
      text, sizeof(text),
      "%s: %lu cells x %lu workers, schedule %s, K %u, delay %g ms, loss %g, budget %lu\n",
      result.workload.c_str(), result.cells, result.workers.value_or(0),
      result.options.schedule.c_str(), result.options.ask, result.options.delay_ms,
      result.options.loss, result.options.budget);
  return text;
}

}  // namespace

std::string ToJson(const Result& r) {
  const Json json = {
      {"workload", r.workload},
      {"seed", r.options.seed},
      {"cells", r.cells},
      {"workers", OrNull(r.workers)},
      {"capacity", r.options.capacity},
      {"split", r.options.split},
      {"schedule", r.options.schedule},
      {"ask", r.options.ask},
      {"delay_ms", r.options.delay_ms},
      {"loss", r.options.loss},
      {"partition_every_s", r.options.partition_every_s},
      {"budget", r.options.budget},
      {"withdraw_delay_ms", r.options.withdraw_delay_ms},
      {"requests", OrNull(r.requests)},
      {"too_long", OrNull(r.too_long)},
      {"fallbacks", OrNull(r.fallbacks)},
      {"hit_rate",
       {{"kvatlas", OrNull(r.hit_rate.kvatlas)},
        {"best_same_state", OrNull(r.hit_rate.best_same_state)},
        {"exact_global", OrNull(r.hit_rate.exact_global)},
        {"one_cell", OrNull(r.hit_rate.one_cell)},
        {"random", OrNull(r.hit_rate.random)}}},
      {"of_best", OrNull(r.of_best)},
      {"regret_blocks",
       {{"mean", OrNull(r.regret_blocks_mean)}, {"p99", OrNull(r.regret_blocks_p99)}}},
      {"wrong_cell_rate", OrNull(r.wrong_cell_rate)},
      {"updates", OrNull(r.updates)},
      {"bytes", OrNull(r.bytes)},
      {"leaf_updates", OrNull(r.leaf_updates)},
      {"leaf_bytes", OrNull(r.leaf_bytes)},
      {"load_bytes", OrNull(r.load_bytes)},
      {"leaf_load_bytes", OrNull(r.leaf_load_bytes)},
      {"update_ratio", OrNull(r.update_ratio)},
      {"bytes_ratio", OrNull(r.bytes_ratio)},
      {"find_cells_us", ToJson(r.find_cells_us)},
      {"hierarchy_bytes_per_coverage", OrNull(r.hierarchy_bytes_per_coverage)},
      {"hierarchy_bytes_tended", OrNull(r.hierarchy_bytes_tended)},
      {"tick_us", OrNull(r.tick_us)},
      {"staleness_ms", ToJson(r.staleness_ms)},
      {"coverage", OrNull(r.coverage)},
      {"hierarchy_bytes", OrNull(r.hierarchy_bytes)},
      {"snapshots", OrNull(r.snapshots)},
      {"messages_lost", OrNull(r.messages_lost)},
      {"wrong_at_rest", OrNull(r.wrong_at_rest)},
      {"snapshot_ms", OrNull(r.snapshot_ms)},
      {"snapshot_queries", OrNull(r.snapshot_queries)},
      {"find_cells_us_during_snapshot", {{"p99", OrNull(r.find_cells_us_during_snapshot_p99)}}},
      {"find_cells_grpc_us", ToJson(r.find_cells_grpc_us)},
      {"qps", OrNull(r.qps)},
      {"answer_bytes", OrNull(r.answer_bytes)},
      {"node_cpu_us", OrNull(r.node_cpu_us)},
      {"client_cpu_us", OrNull(r.client_cpu_us)},
      {"seconds", r.seconds},
  };
  return json.dump();
}

std::string ToTable(std::span<const Result> results) {
  if (results.empty()) return "";
  std::string table = Header(results[0]);
  std::vector<std::string> head = {"", "mean"};
  if (results.size() > 1) head.insert(head.end(), {"smallest", "largest"});
  table += Line(head, 32, 14);
  for (const Row& row : Rows()) {
    const std::optional<double> mean = MeanOf(row, results);
    if (!mean.has_value()) continue;
    std::vector<std::string> cells = {row.name, Text(row.format, *mean)};
    if (results.size() > 1) {
      double low = *row.value(results[0]), high = low;
      for (const Result& result : results) {
        low = std::min(low, *row.value(result));
        high = std::max(high, *row.value(result));
      }
      cells.push_back(Text(row.format, low));
      cells.push_back(Text(row.format, high));
    }
    table += Line(cells, 32, 14);
  }
  return table;
}

std::string ToFrontier(std::span<const Result> results, size_t runs,
                       std::span<const std::string> labels) {
  const auto percent = [](std::optional<double> value) {
    return value.has_value() ? Text("%.2f", *value * 100) : std::string("-");
  };
  std::string table = Line(
      {"", "hits %", "of best %", "updates %", "bytes %", "wrong cell %", "regret", "stale ms p50"},
      40, 13);
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::span<const Result> of = results.subspan(i * runs, runs);
    const auto mean = [&](std::function<std::optional<double>(const Result&)> value) {
      return MeanOf({"", std::move(value), ""}, of);
    };
    const std::optional<double> stale = mean([](const Result& r) { return r.staleness_ms.p50; });
    table +=
        Line({labels[i], percent(mean([](const Result& r) { return r.hit_rate.kvatlas; })),
              percent(mean([](const Result& r) { return r.of_best; })),
              percent(mean([](const Result& r) { return r.update_ratio; })),
              percent(mean([](const Result& r) { return r.bytes_ratio; })),
              percent(mean([](const Result& r) { return r.wrong_cell_rate; })),
              Text("%.3f", mean([](const Result& r) { return r.regret_blocks_mean; }).value_or(0)),
              stale.has_value() ? Text("%.1f", *stale) : "-"},
             40, 13);
  }
  return table;
}

}  // namespace kvatlas
