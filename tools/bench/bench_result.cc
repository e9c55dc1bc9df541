#include "tools/bench/bench_result.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

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

// ---- Table ----

struct Column {
  const char* title;
  std::function<std::optional<double>(const BenchResult&)> value;
  double unit;  // what 1 stands for
  int digits;
};

using R = BenchResult;

Column Plain(const char* title, std::optional<double> R::* field, double unit, int digits) {
  return {title, [field](const R& r) { return r.*field; }, unit, digits};
}

Column Latency(const char* title, std::optional<Percentiles> R::* field,
               double Percentiles::* share) {
  return {title,
          [field, share](const R& r) -> std::optional<double> {
            if (!(r.*field).has_value()) return std::nullopt;
            return (*(r.*field)).*share;
          },
          1, 0};
}

template <typename Part>
Column Of(const char* title, std::optional<Part> R::* part,
          std::function<std::optional<double>(const Part&)> value, double unit, int digits) {
  return {title,
          [part, value](const R& r) -> std::optional<double> {
            if (!(r.*part).has_value()) return std::nullopt;
            return value(*(r.*part));
          },
          unit, digits};
}

std::vector<Column> MemoryColumns() {
  using M = MemoryResult;
  const auto of = [](const char* title, std::function<std::optional<double>(const M&)> value,
                     double unit, int digits) {
    return Of<M>(title, &R::memory, std::move(value), unit, digits);
  };
  return {
      of(
          "B/holding", [](const M& m) { return Ratio(m.bytes_built, m.holdings); }, 1, 1),
      of(
          "B/block", [](const M& m) { return Ratio(m.bytes_built, m.distinct_blocks); }, 1, 1),
      of(
          "built MB", [](const M& m) { return double(m.bytes_built); }, 1e6, 1),
      of(
          "peak MB", [](const M& m) { return double(m.bytes_peak); }, 1e6, 1),
      of(
          "churned MB",
          [](const M& m) -> std::optional<double> {
            if (!m.bytes_after_churn.has_value()) return std::nullopt;
            return double(*m.bytes_after_churn);
          },
          1e6, 1),
      of(
          "cleared MB", [](const M& m) { return double(m.bytes_after_clear); }, 1e6, 1),
      of(
          "clear us p50", [](const M& m) { return m.clear_us.p50; }, 1, 1),
      of(
          "clear us max", [](const M& m) { return m.clear_us.max; }, 1, 1),
      of(
          "clear ns/block", [](const M& m) { return m.clear_ns_per_block; }, 1, 1),
  };
}

std::vector<Column> UndisturbedColumns() {
  using U = Undisturbed;
  const auto of = [](const char* title, std::function<std::optional<double>(const U&)> value,
                     double unit, int digits) {
    return Of<U>(title, &R::undisturbed, std::move(value), unit, digits);
  };
  const auto latency = [of](const char* title, std::optional<Percentiles> U::* field,
                            double Percentiles::* share) {
    return of(
        title,
        [field, share](const U& u) -> std::optional<double> {
          if (!(u.*field).has_value()) return std::nullopt;
          return (*(u.*field)).*share;
        },
        1, 0);
  };
  return {
      of(
          "| undisturbed M/s", [](const U& u) { return u.block_ops_per_s; }, 1e6, 1),
      of(
          "ns/stored", [](const U& u) { return u.ns_per_stored_block; }, 1, 1),
      of(
          "ns/removed", [](const U& u) { return u.ns_per_removed_block; }, 1, 1),
      latency("query ns p50", &U::query_ns, &Percentiles::p50),
      latency("p99", &U::query_ns, &Percentiles::p99),
      latency("write ns p99.9", &U::write_ns, &Percentiles::p999),
      latency("max", &U::write_ns, &Percentiles::max),
  };
}

// Those of the second half, with the titles of the whole.
std::vector<Column> SteadyColumns() {
  std::vector<Column> columns = {
      Plain("| steady M/s", &R::block_ops_per_s, 1e6, 1),
      Plain("median", &R::block_ops_per_s_median, 1e6, 1),
      Plain("per cpu s", &R::block_ops_per_cpu_s, 1e6, 1),
      Plain("ns/stored", &R::ns_per_stored_block, 1, 1),
      Plain("ns/removed", &R::ns_per_removed_block, 1, 1),
      Latency("query ns p50", &R::query_ns, &Percentiles::p50),
      Latency("p99", &R::query_ns, &Percentiles::p99),
      Of<Undisturbed>(
          "undisturbed M/s", &R::undisturbed,
          [](const Undisturbed& u) { return u.block_ops_per_s; }, 1e6, 1),
  };
  for (Column& column : columns) {
    column.value = [of = std::move(column.value)](const R& r) -> std::optional<double> {
      return r.steady == nullptr ? std::nullopt : of(*r.steady);
    };
  }
  return columns;
}

std::vector<Column> Columns() {
  std::vector<Column> columns = {
      {"ev thr", [](const R& r) { return std::optional<double>(r.event_threads); }, 1, 0},
      {"q thr", [](const R& r) { return std::optional<double>(r.query_threads); }, 1, 0},
      Plain("M block ops/s", &R::block_ops_per_s, 1e6, 1),
      Plain("median", &R::block_ops_per_s_median, 1e6, 1),
      Plain("worst", &R::block_ops_per_s_worst, 1e6, 1),
      Plain("first", &R::block_ops_per_s_first, 1e6, 1),
      Plain("per cpu s", &R::block_ops_per_cpu_s, 1e6, 1),
      Plain("sustained", &R::sustained_block_ops_per_s, 1e6, 1),
      Plain("events M/s", &R::event_block_ops_per_s, 1e6, 1),
      Plain("queries M/s", &R::query_block_ops_per_s, 1e6, 1),
      Plain("ev per cpu s", &R::event_block_ops_per_cpu_s, 1e6, 1),
      Plain("q per cpu s", &R::query_block_ops_per_cpu_s, 1e6, 1),
      Plain("efficiency %", &R::efficiency, 0.01, 0),
      Plain("ns/stored", &R::ns_per_stored_block, 1, 1),
      Plain("ns/removed", &R::ns_per_removed_block, 1, 1),
      Plain("ns/queried", &R::ns_per_query_block, 1, 2),
      Latency("query ns p50", &R::query_ns, &Percentiles::p50),
      Latency("p99", &R::query_ns, &Percentiles::p99),
      Latency("p99.9", &R::query_ns, &Percentiles::p999),
      Latency("write ns p50", &R::write_ns, &Percentiles::p50),
      Latency("p99", &R::write_ns, &Percentiles::p99),
      Latency("p99.9", &R::write_ns, &Percentiles::p999),
      Latency("max", &R::write_ns, &Percentiles::max),
      Plain("results", &R::results_per_query, 1, 1),
  };
  for (Column& column : UndisturbedColumns()) columns.push_back(std::move(column));
  for (Column& column : SteadyColumns()) columns.push_back(std::move(column));
  for (Column& column : MemoryColumns()) columns.push_back(std::move(column));
  using C = CheckResult;
  const auto count = [](uint64_t C::* field) {
    return [field](const C& c) { return std::optional<double>(static_cast<double>(c.*field)); };
  };
  columns.push_back(Of<C>("checked", &R::check, count(&C::checked), 1, 0));
  columns.push_back(Of<C>("over", &R::check, count(&C::over), 1, 0));
  columns.push_back(Of<C>("under", &R::check, count(&C::under), 1, 0));
  columns.push_back({"refused",
                     [](const R& r) -> std::optional<double> {
                       if (r.refused_events.value_or(0) == 0) return std::nullopt;
                       return static_cast<double>(*r.refused_events);
                     },
                     1, 0});
  return columns;
}

std::string Cell(const Column& column, const BenchResult& result) {
  const std::optional<double> value = column.value(result);
  if (!value.has_value()) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", column.digits, *value / column.unit);
  return text;
}

std::string Padded(const std::string& text, size_t width, bool left) {
  const std::string pad(width - std::min(width, text.size()), ' ');
  return left ? text + pad : pad + text;
}

bool SomeHave(const Column& column, std::span<const BenchResult> results) {
  return std::any_of(results.begin(), results.end(), [&](const BenchResult& result) {
    return !result.skipped.has_value() && column.value(result).has_value();
  });
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
  json["efficiency"] = OrNull(result.efficiency);
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
  return json.dump();
}

std::string ToTable(std::span<const BenchResult> results) {
  size_t name_width = 5;
  for (const BenchResult& result : results) {
    name_width = std::max(name_width, result.index.size());
  }
  std::string head = Padded("index", name_width, true);
  std::vector<std::string> lines(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    lines[i] = Padded(results[i].index, name_width, true);
    if (results[i].skipped.has_value()) lines[i] += "  skipped: " + *results[i].skipped;
  }
  for (const Column& column : Columns()) {
    if (!SomeHave(column, results)) continue;
    size_t width = std::string(column.title).size();
    for (const BenchResult& result : results) {
      if (!result.skipped.has_value()) width = std::max(width, Cell(column, result).size());
    }
    head += "  " + Padded(column.title, width, false);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].skipped.has_value()) continue;
      lines[i] += "  " + Padded(Cell(column, results[i]), width, false);
    }
  }
  std::string table = head + "\n";
  for (const std::string& line : lines) table += line + "\n";
  for (const BenchResult& result : results) {
    if (result.refused_why.has_value()) {
      table += result.index + " refused an event: " + *result.refused_why + "\n";
    }
    if (result.check_skipped.has_value()) {
      table += result.index + " was not checked: " + *result.check_skipped + "\n";
    }
  }
  return table;
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
