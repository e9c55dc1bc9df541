#include "tools/bench/bench_result.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kNameWidth = 38;

template <typename Value>
Json OrNull(const std::optional<Value>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json OrNull(const std::optional<Percentiles>& value, bool with_max) {
  if (!value.has_value()) {
    Json nulls = {{"p50", nullptr}, {"p99", nullptr}, {"p999", nullptr}, {"mean", nullptr}};
    if (with_max) nulls["max"] = nullptr;
    return nulls;
  }
  Json json = {
      {"p50", value->p50}, {"p99", value->p99}, {"p999", value->p999}, {"mean", value->mean}};
  if (with_max) json["max"] = value->max;
  return json;
}

std::optional<double> Ratio(uint64_t bytes, uint64_t count) {
  if (count == 0) return std::nullopt;
  return static_cast<double>(bytes) / static_cast<double>(count);
}

void AddMemory(const std::optional<MemoryResult>& memory, Json* json) {
  const auto add = [&](const char* name, auto value_of) {
    (*json)[name] = memory.has_value() ? Json(value_of(*memory)) : Json(nullptr);
  };
  using M = MemoryResult;
  add("bytes_per_holding", [](const M& m) { return OrNull(Ratio(m.bytes_built, m.holdings)); });
  add("bytes_per_block",
      [](const M& m) { return OrNull(Ratio(m.bytes_built, m.distinct_blocks)); });
  add("bytes_peak", [](const M& m) { return m.bytes_peak; });
  add("bytes_after_clear", [](const M& m) { return m.bytes_after_clear; });
  if (!memory.has_value()) return;
  add("bytes_built", [](const M& m) { return m.bytes_built; });
  add("bytes_stated", [](const M& m) { return m.bytes_stated; });
  add("holdings", [](const M& m) { return m.holdings; });
  add("distinct_blocks", [](const M& m) { return m.distinct_blocks; });
  add("clear_us", [](const M& m) { return OrNull(std::optional(m.clear_us), true); });
  add("clear_ns_per_block", [](const M& m) { return m.clear_ns_per_block; });
  add("churn_stored_blocks", [](const M& m) { return OrNull(m.churn_stored_blocks); });
  add("bytes_after_churn", [](const M& m) { return OrNull(m.bytes_after_churn); });
}

void AddCheck(const std::optional<CheckResult>& check, Json* json) {
  const auto add = [&](const char* name, uint64_t CheckResult::* field) {
    (*json)[name] = check.has_value() ? Json((*check).*field) : Json(nullptr);
  };
  add("checked", &CheckResult::checked);
  add("over", &CheckResult::over);
  add("under", &CheckResult::under);
  add("checked_queries", &CheckResult::queries);
  add("over_blocks", &CheckResult::over_blocks);
  add("under_blocks", &CheckResult::under_blocks);
}

void AddHarness(const std::optional<HarnessCost>& harness, Json* json) {
  if (!harness.has_value()) {
    (*json)["harness"] = nullptr;
    return;
  }
  (*json)["harness"] = {{"block_ops_per_s", harness->block_ops_per_s},
                        {"ns_per_stored_block", OrNull(harness->ns_per_stored_block)},
                        {"ns_per_removed_block", OrNull(harness->ns_per_removed_block)},
                        {"ns_per_query_block", OrNull(harness->ns_per_query_block)}};
}

void AddUndisturbed(const std::optional<Undisturbed>& undisturbed, Json* json) {
  if (!undisturbed.has_value()) {
    (*json)["undisturbed"] = nullptr;
    return;
  }
  (*json)["undisturbed"] = {{"block_ops_per_s", undisturbed->block_ops_per_s},
                            {"ns_per_stored_block", OrNull(undisturbed->ns_per_stored_block)},
                            {"ns_per_removed_block", OrNull(undisturbed->ns_per_removed_block)},
                            {"ns_per_query_block", OrNull(undisturbed->ns_per_query_block)},
                            {"query_ns", OrNull(undisturbed->query_ns, true)},
                            {"write_ns", OrNull(undisturbed->write_ns, true)}};
}

// The speed of one thread.
void AddSpeed(const BenchResult& result, Json* json) {
  (*json)["block_ops"] = OrNull(result.block_ops);
  (*json)["block_ops_per_s"] = OrNull(result.block_ops_per_s);
  (*json)["block_ops_per_s_median"] = OrNull(result.block_ops_per_s_median);
  (*json)["block_ops_per_s_worst"] = OrNull(result.block_ops_per_s_worst);
  (*json)["block_ops_per_s_first"] = OrNull(result.block_ops_per_s_first);
  (*json)["block_ops_per_cpu_s"] = OrNull(result.block_ops_per_cpu_s);
  (*json)["ns_per_stored_block"] = OrNull(result.ns_per_stored_block);
  (*json)["ns_per_removed_block"] = OrNull(result.ns_per_removed_block);
  (*json)["ns_per_query_block"] = OrNull(result.ns_per_query_block);
  (*json)["query_ns"] = OrNull(result.query_ns, /*with_max=*/true);
  (*json)["write_ns"] = OrNull(result.write_ns, /*with_max=*/true);
  (*json)["results_per_query"] = OrNull(result.results_per_query);
  AddUndisturbed(result.undisturbed, json);
}

Json ToJsonObject(const BenchResult& result, const std::string& ops) {
  Json json;
  json["ops"] = ops;
  json["index"] = result.index;
  json["mode"] = result.mode;
  json["query"] = result.query;
  json["sink"] = result.sink;
  json["event_threads"] = result.event_threads;
  json["query_threads"] = result.query_threads;
  json["skipped"] = OrNull(result.skipped);
  AddSpeed(result, &json);
  json["steady"] = nullptr;
  if (result.steady != nullptr) AddSpeed(*result.steady, &json["steady"]);
  json["event_block_ops_per_s"] = OrNull(result.event_block_ops_per_s);
  json["query_block_ops_per_s"] = OrNull(result.query_block_ops_per_s);
  json["event_block_ops_per_cpu_s"] = OrNull(result.event_block_ops_per_cpu_s);
  json["query_block_ops_per_cpu_s"] = OrNull(result.query_block_ops_per_cpu_s);
  json["write_blocks_max"] = OrNull(result.write_blocks_max);
  json["refused_events"] = OrNull(result.refused_events);
  json["refused_why"] = OrNull(result.refused_why);
  const std::optional<CoverageResult>& coverage = result.coverage;
  json["waypoints_covered"] = coverage.has_value() ? Json(coverage->covered) : Json(nullptr);
  json["waypoints_announced"] = coverage.has_value() ? Json(coverage->announced) : Json(nullptr);
  AddMemory(result.memory, &json);
  AddCheck(result.check, &json);
  json["check_skipped"] = OrNull(result.check_skipped);
  json["sustained_block_ops_per_s"] = OrNull(result.sustained_block_ops_per_s);
  json["sustained_speed"] = OrNull(result.sustained_speed);
  AddHarness(result.harness, &json);
  return json;
}

// The figures of `json` by name, those in objects as OBJECT.NAME.
void AddFigures(const std::string& prefix, const Json& json,
                std::vector<std::pair<std::string, double>>* figures) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) AddFigures(prefix + name + ".", value, figures);
    if (value.is_number()) figures->push_back({prefix + name, value.get<double>()});
  }
}

std::string Cell(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), std::abs(value) >= 1000 ? "%.0f" : "%.4g", value);
  return text;
}

std::string Padded(const std::string& text) {
  constexpr size_t kWidth = 20;
  return std::string(text.size() < kWidth ? kWidth - text.size() : 1, ' ') + text;
}

// ---- Repetitions ----

// Puts the better of both into `best`.
template <typename Value>
void Better(const std::optional<Value>& other, bool larger, std::optional<Value>* best) {
  if (!other.has_value()) return;
  if (!best->has_value() || (larger ? *other > **best : *other < **best)) *best = other;
}

void Better(const std::optional<Percentiles>& other, std::optional<Percentiles>* best) {
  if (!other.has_value() || !best->has_value()) {
    if (other.has_value()) *best = other;
    return;
  }
  for (double Percentiles::* field : {&Percentiles::p50, &Percentiles::p99, &Percentiles::p999,
                                      &Percentiles::max, &Percentiles::mean}) {
    (**best).*field = std::min((**best).*field, (*other).*field);
  }
}

}  // namespace

std::string ToJson(const BenchResult& result, const std::string& ops) {
  return ToJsonObject(result, ops).dump();
}

std::string ToTable(std::span<const BenchResult> results) {
  std::vector<std::string> names;  // of rows, in the order of the JSON
  std::vector<std::map<std::string, double>> columns;
  std::string head, notes;
  for (const BenchResult& result : results) {
    for (const auto& [what, why] : {std::pair{"skipped", result.skipped},
                                    {"refused an event", result.refused_why},
                                    {"was not checked", result.check_skipped}}) {
      if (why.has_value()) notes += result.index + " " + what + ": " + *why + "\n";
    }
    if (result.skipped.has_value()) continue;
    head += Padded(result.index);
    std::vector<std::pair<std::string, double>> figures;
    AddFigures("", ToJsonObject(result, ""), &figures);
    for (const auto& [name, value] : figures) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    columns.emplace_back(figures.begin(), figures.end());
  }
  std::string table;
  if (!columns.empty()) table = std::string(kNameWidth, ' ') + head + "\n";
  for (const std::string& name : names) {
    table += name + std::string(kNameWidth - std::min(kNameWidth, name.size()), ' ');
    for (const auto& column : columns) {
      const auto figure = column.find(name);
      table += Padded(figure == column.end() ? "-" : Cell(figure->second));
    }
    table += "\n";
  }
  return table + notes;
}

BenchResult Together(const std::vector<BenchResult>& repetitions) {
  BenchResult together = repetitions.front();
  if (repetitions.front().skipped.has_value()) return together;
  std::vector<BenchResult> warm = repetitions;
  if (warm.size() > 1) warm.erase(warm.begin());
  together = warm.front();
  together.block_ops_per_s_first = repetitions.front().block_ops_per_s;
  std::vector<double> rates;
  for (const BenchResult& one : warm) {
    Better(one.block_ops_per_s, true, &together.block_ops_per_s);
    Better(one.block_ops_per_cpu_s, true, &together.block_ops_per_cpu_s);
    Better(one.event_block_ops_per_s, true, &together.event_block_ops_per_s);
    Better(one.query_block_ops_per_s, true, &together.query_block_ops_per_s);
    Better(one.event_block_ops_per_cpu_s, true, &together.event_block_ops_per_cpu_s);
    Better(one.query_block_ops_per_cpu_s, true, &together.query_block_ops_per_cpu_s);
    Better(one.ns_per_stored_block, false, &together.ns_per_stored_block);
    Better(one.ns_per_removed_block, false, &together.ns_per_removed_block);
    Better(one.ns_per_query_block, false, &together.ns_per_query_block);
    Better(one.query_ns, &together.query_ns);
    Better(one.write_ns, &together.write_ns);
    Better(one.sustained_block_ops_per_s, true, &together.sustained_block_ops_per_s);
    if (one.block_ops_per_s.has_value()) rates.push_back(*one.block_ops_per_s);
  }
  if (rates.empty()) return together;
  std::sort(rates.begin(), rates.end());
  const size_t middle = rates.size() / 2;
  together.block_ops_per_s_median =
      rates.size() % 2 == 1 ? rates[middle] : (rates[middle - 1] + rates[middle]) / 2;
  together.block_ops_per_s_worst = rates.front();
  return together;
}

}  // namespace kvatlas
