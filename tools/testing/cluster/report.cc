#include "tools/testing/cluster/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

std::optional<double> Mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Json Percentiles(std::vector<double> values) {
  return {{"p50", OrNull(Percentile(values, 50))}, {"p99", OrNull(Percentile(values, 99))}};
}

Json TtftJson(std::vector<double> values) {
  return {{"mean", OrNull(Mean(values))},
          {"p50", OrNull(Percentile(values, 50))},
          {"p90", OrNull(Percentile(values, 90))},
          {"p99", OrNull(Percentile(values, 99))}};
}

Json LevelJson(const std::optional<LevelCost>& cost) {
  if (!cost.has_value()) return {{"updates", nullptr}, {"bytes", nullptr}};
  return {{"updates", cost->updates}, {"bytes", cost->bytes}};
}

Json AtRestJson(const std::optional<AtRest>& at_rest) {
  if (!at_rest.has_value()) return {{"checked", nullptr}, {"over", nullptr}, {"under", nullptr}};
  return {{"checked", at_rest->checked},
          {"over", at_rest->over},
          {"under", at_rest->under},
          {"over_blocks", at_rest->over_blocks},
          {"under_blocks", at_rest->under_blocks},
          {"not_exact", at_rest->not_exact}};
}

std::string Number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

// 1234567 as "1,234,567".
std::string Grouped(uint64_t value) {
  std::string text = std::to_string(value);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

Json ChaosJson(const std::optional<std::vector<ChaosStep>>& chaos) {
  if (!chaos.has_value()) return nullptr;
  Json steps = Json::array();
  for (const ChaosStep& step : *chaos) {
    steps.push_back({{"request", step.request},
                     {"what", step.kill ? "kill" : "restart"},
                     {"process", step.process}});
  }
  return steps;
}

std::string Percent(uint64_t part, uint64_t whole, int digits = 1) {
  if (whole == 0) return "-";
  return Number(100.0 * static_cast<double>(part) / static_cast<double>(whole), digits) + " %";
}

// Rows of a name and a few right-aligned columns.
class Table {
 public:
  void Title(const std::string& text) { text_ += "\n" + text + "\n"; }
  void Row(const std::string& name, const std::vector<std::string>& columns,
           const std::string& remark = "") {
    char cell[64];
    std::snprintf(cell, sizeof(cell), "  %-26s", name.c_str());
    text_ += cell;
    for (const std::string& column : columns) {
      std::snprintf(cell, sizeof(cell), "%14s", column.c_str());
      text_ += cell;
    }
    text_ += (remark.empty() ? "" : "  " + remark) + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void HitRow(Table& table, const std::string& name, const std::optional<uint64_t>& cached,
            const ReplayReport& report) {
  if (!cached.has_value()) return;
  const std::optional<uint64_t>& round_robin = report.cached_blocks.round_robin;
  const bool comparable = round_robin.has_value() && *round_robin > 0;
  table.Row(name, {Grouped(*cached), Percent(*cached, report.prompt_blocks),
                   comparable ? Number(double(*cached) / double(*round_robin), 2) + " x" : "-"});
}

void LatencyRow(Table& table, const std::string& name, std::vector<double> us) {
  if (us.empty()) return;
  table.Row(name, {Number(*Percentile(us, 50), 0) + " us", Number(*Percentile(us, 99), 0) + " us"});
}

void AddHits(Table& table, const ReplayReport& report) {
  table.Title("Prompt blocks found in the chosen worker's cache (of " +
              Grouped(report.prompt_blocks) + ")                      vs turns");
  const bool by_name = report.cached_blocks.chosen.has_value();
  HitRow(table, by_name ? report.policy : "kvatlas",
         by_name ? report.cached_blocks.chosen : report.cached_blocks.kvatlas, report);
  HitRow(table, "best in the same state", report.cached_blocks.best_same_state, report);
  HitRow(table, "one exact global index", report.cached_blocks.exact_global, report);
  if (report.policy != "round_robin")
    HitRow(table, "round robin", report.cached_blocks.round_robin, report);
  HitRow(table, "held, not all reusable", report.cached_blocks.held, report);
}

void AddTimes(Table& table, const ReplayReport& report) {
  table.Title("Time                                   p50           p99");
  LatencyRow(table, "tokenize", report.tokenize_us);
  LatencyRow(table, "request, with its engine", report.request_us);
  LatencyRow(table, "route", report.route_us);
  LatencyRow(table, "  find cells", report.find_cells_us);
  LatencyRow(table, "  find overlaps", report.find_overlaps_us);
  std::vector<double> ttft = report.ttft_ms;
  if (!ttft.empty()) {
    table.Row("first token (simulated)",
              {Number(*Percentile(ttft, 50), 0) + " ms", Number(*Percentile(ttft, 99), 0) + " ms"},
              "mean " + Number(*Mean(ttft), 0) + " ms");
  }
}

void AddCost(Table& table, const ReplayReport& report) {
  if (!report.upward.has_value() || !report.leaf.has_value()) return;
  table.Title("Cost of the streams                updates         bytes");
  table.Row("engines to leaves", {Grouped(report.leaf->updates), Grouped(report.leaf->bytes)});
  table.Row("leaves to hierarchy",
            {Grouped(report.upward->updates), Grouped(report.upward->bytes)});
  table.Row("", {Percent(report.upward->updates, report.leaf->updates, 2),
                 Percent(report.upward->bytes, report.leaf->bytes, 2)});
}

void AddPromises(Table& table, const ReplayReport& report) {
  table.Title("Promises                           checked     too much    too little");
  if (report.promised_over.has_value()) {
    table.Row("while running", {Grouped(report.requests - report.errors - report.too_long),
                                Grouped(*report.promised_over), Grouped(*report.promised_under)});
    if (report.hybrid.has_value()) {
      table.Row("  in blocks",
                {Grouped(report.prompt_blocks), Grouped(report.promised_over_blocks.value_or(0)),
                 Grouped(report.promised_under_blocks.value_or(0))});
    }
  }
  if (report.at_rest.has_value()) {
    table.Row("at rest", {Grouped(report.at_rest->checked), Grouped(report.at_rest->over),
                          Grouped(report.at_rest->under)});
  }
}

// A kill and its restart a row.
void AddChaos(Table& table, const ReplayReport& report) {
  if (!report.chaos.has_value()) return;
  table.Title("Killed (-9), and started again before request");
  for (size_t i = 0; i < report.chaos->size(); ++i) {
    const ChaosStep& step = (*report.chaos)[i];
    if (!step.kill) continue;
    const bool back = i + 1 < report.chaos->size();
    table.Row(step.process,
              {Grouped(step.request), back ? Grouped((*report.chaos)[i + 1].request) : "never"});
  }
  if (report.rest_seconds.has_value())
    table.Row("at rest after the end", {Number(*report.rest_seconds, 1) + " s"});
}

}  // namespace

std::optional<double> Percentile(std::vector<double>& values, double percent) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

std::string ToJson(const ReplayReport& r) {
  const Json json = {
      {"policy", r.policy},
      {"requests", r.requests},
      {"errors", r.errors},
      {"fallbacks", r.fallbacks},
      {"too_long", r.too_long},
      {"cells", r.cells},
      {"workers", r.workers},
      {"block_size", r.block_size},
      {"prompt_blocks", r.prompt_blocks},
      {"cached_blocks",
       {{"chosen", OrNull(r.cached_blocks.chosen)},
        {"kvatlas", OrNull(r.cached_blocks.kvatlas)},
        {"best_same_state", OrNull(r.cached_blocks.best_same_state)},
        {"exact_global", OrNull(r.cached_blocks.exact_global)},
        {"round_robin", OrNull(r.cached_blocks.round_robin)},
        {"held", OrNull(r.cached_blocks.held)}}},
      {"predicted_blocks", OrNull(r.predicted_blocks)},
      {"promised", {{"over", OrNull(r.promised_over)}, {"under", OrNull(r.promised_under)}}},
      {"promised_blocks",
       {{"over", OrNull(r.promised_over_blocks)}, {"under", OrNull(r.promised_under_blocks)}}},
      {"hybrid", OrNull(r.hybrid)},
      {"answer", OrNull(r.answer)},
      {"at_rest", AtRestJson(r.at_rest)},
      {"events",
       {{"stored", OrNull(r.events_stored)},
        {"removed", OrNull(r.events_removed)},
        {"batches", OrNull(r.events_batches)}}},
      {"upward", LevelJson(r.upward)},
      {"leaf", LevelJson(r.leaf)},
      {"serve", r.serve},
      {"request_us", Percentiles(r.request_us)},
      {"route_us", Percentiles(r.route_us)},
      {"find_cells_us", Percentiles(r.find_cells_us)},
      {"find_overlaps_us", Percentiles(r.find_overlaps_us)},
      {"ttft_ms", TtftJson(r.ttft_ms)},
      {"tokenizer", OrNull(r.tokenizer)},
      {"tokenize_us", Percentiles(r.tokenize_us)},
      {"token_differences", OrNull(r.token_differences)},
      {"unacknowledged", r.unacknowledged},
      {"mirror_differences", r.mirror_differences},
      {"rate", OrNull(r.rate)},
      {"chaos", ChaosJson(r.chaos)},
      {"rest_seconds", OrNull(r.rest_seconds)},
      {"seconds", r.seconds},
      {"requests_per_s",
       r.seconds > 0 ? Json(static_cast<double>(r.requests) / r.seconds) : Json(nullptr)},
  };
  return json.dump();
}

std::string ToTable(const ReplayReport& report) {
  Table table;
  table.Title(std::to_string(report.cells) + " cells x " + std::to_string(report.workers) +
              " workers" + (report.serve ? " behind kvatlas serve" : "") + ", policy " +
              report.policy + ", " + Grouped(report.requests) + " requests in " +
              Number(report.seconds, 1) + " s (" +
              Number(report.seconds > 0 ? double(report.requests) / report.seconds : 0, 0) +
              "/s): " + Grouped(report.errors) + " errors, " + Grouped(report.fallbacks) +
              " fallbacks, " + Grouped(report.too_long) + " too long");
  AddHits(table, report);
  AddTimes(table, report);
  AddCost(table, report);
  AddPromises(table, report);
  AddChaos(table, report);
  std::string text = table.text();
  if (report.hybrid.has_value()) {
    text += "\nHybrid model " + *report.hybrid + "; leaves promise " +
            report.answer.value_or("reusable") + " blocks\n";
  }
  if (report.tokenizer.has_value()) {
    text += "\nAsked by chat; tokenizer: " + *report.tokenizer + "; " +
            Grouped(report.token_differences.value_or(0)) + " prompts of other lengths there\n";
  }
  for (const std::string& note : report.notes) text += "note: " + note + "\n";
  if (report.at_rest.has_value()) {
    for (const std::string& example : report.at_rest->examples)
      text += "differs: " + example + "\n";
  }
  return text;
}

}  // namespace kvatlas
