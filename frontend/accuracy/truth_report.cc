// Two forms of the same page: aligned text and JSON. Names of causes and of JSON fields are read by
// scripts.

#include "frontend/accuracy/truth_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/router/receipt.h"
#include "indexer/base/durations.h"

namespace kvatlas {

// The names of the fields are keys of the JSON, which scripts read.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TallyFigures, requests, predicted_tokens, served_tokens, exact,
                                   less, more, lengths, lengths_differ, without_figures, errors)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TruthStats, decisions, decisions_kept, reports, exact, less,
                                   more, without_figures, lengths_differ, errors, predicted_tokens,
                                   served_tokens, checks, checks_missed, checks_dropped, probes,
                                   probes_failed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CellAsked, cell, address, blocks_at_least, blocks_below, age_ms,
                                   error, best_blocks, us)

namespace {

using Json = nlohmann::json;

// Bytes that are no UTF-8, from a caller's error say, are replaced instead of failing the page.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string WorkerName(const HolderId& worker) {
  return worker.name.empty() ? "all workers" : worker.name + "/" + std::to_string(worker.rank);
}

// ---- Text ----

std::string Padded(std::string text, size_t width, bool right = false) {
  const size_t fill = text.size() < width ? width - text.size() : 0;
  return right ? std::string(fill, ' ') + text : text + std::string(fill, ' ');
}

// Columns as wide as their widest cell; the first `left` ones begin at the left.
std::string Table(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += (i == 0 ? "" : "  ") + Padded(row[i], widths[i], /*right=*/i >= left);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string Rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", value);
  return text;
}

// Sums that have faded below half a request are none.
std::string Percent(double part, double all) {
  return all < 0.5 ? "-" : Rounded(part / all * 100) + "%";
}

// A finding as a paragraph: a line of cause, confidence and place, then labelled lines.
std::string FindingText(const KnownFinding& known) {
  const Finding& finding = known.finding;
  std::string text = std::string(CauseName(finding.cause)) + "  " + Percent(finding.confidence, 1) +
                     "  " + ToString(finding.domain);
  if (!finding.cell.empty()) text += "  cell " + finding.cell;
  text += "  " + WorkerName(finding.worker) + "  for " + Rounded(Seconds(known.since)) + " s\n";
  const auto line = [&](const char* label, const std::string& what) {
    text += "  " + Padded(label, 10) + what + "\n";
  };
  line("meaning", std::string(CauseMeaning(finding.cause)));
  for (const std::string& evidence : finding.evidence) line("evidence", evidence);
  std::string decisions;
  for (uint64_t id : finding.decisions)
    decisions += (decisions.empty() ? "" : " ") + std::to_string(id);
  if (!decisions.empty()) line("decisions", decisions);
  line("remedy", RemedyOf(finding));
  if (!finding.or_else.empty()) line("to tell", std::string(CauseTest(finding.cause)));
  for (Cause other : finding.or_else) {
    line("or else", std::string(CauseName(other)) + ": " + std::string(CauseMeaning(other)));
    line("to tell", std::string(CauseTest(other)));
  }
  return text;
}

std::vector<std::string> WorkerRow(const WorkerTruth& worker) {
  const TallyFigures& figures = worker.figures;
  return {worker.cell,
          WorkerName(worker.worker),
          ToString(worker.domain),
          Rounded(figures.requests),
          Rounded(figures.predicted_tokens),
          Rounded(figures.served_tokens),
          Percent(figures.exact, figures.requests),
          Percent(figures.less, figures.requests),
          Percent(figures.more, figures.requests),
          Percent(figures.lengths_differ, figures.lengths),
          std::to_string(worker.checks_whole) + "/" + std::to_string(worker.checks),
          worker.leaf.has_value() ? std::to_string(worker.leaf->blocks) : "-"};
}

// ---- JSON ----

Json FindingJson(const KnownFinding& known) {
  const Finding& finding = known.finding;
  Json json = {{"cause", CauseName(finding.cause)},
               {"confidence", finding.confidence},
               {"domain", {{"model", finding.domain.model}, {"tenant", finding.domain.tenant}}},
               {"cell", finding.cell},
               {"worker", finding.worker.name},
               {"rank", finding.worker.rank},
               {"since_s", Seconds(known.since)},
               {"meaning", CauseMeaning(finding.cause)},
               {"evidence", finding.evidence},
               {"remedy", RemedyOf(finding)},
               {"test", CauseTest(finding.cause)}};
  json["decisions"] = Json::array();
  for (uint64_t id : finding.decisions) json["decisions"].push_back(std::to_string(id));
  json["or_else"] = Json::array();
  for (Cause other : finding.or_else)
    json["or_else"].push_back({{"cause", CauseName(other)}, {"test", CauseTest(other)}});
  json["workers"] = Json::array();
  for (const HolderId& worker : finding.workers) json["workers"].push_back(WorkerName(worker));
  return json;
}

// `engine` only where the leaf listens to the engine itself.
Json LeafJson(const LeafView& view) {
  Json json = {{"known", view.known},         {"masked", view.masked},
               {"connected", view.connected}, {"blocks", view.blocks},
               {"batches", view.batches},     {"age_s", Seconds(view.age)},
               {"contract", view.contract},   {"block_size", view.block_size}};
  if (!view.engine.has_value()) return json;
  json["engine"] = {{"silent_s", Seconds(view.engine->silent)},
                    {"lag_ms", view.engine->lag_ms},
                    {"parked", view.engine->parked},
                    {"restarts", view.engine->restarts},
                    {"refused", view.engine->refused},
                    {"last_refusal", view.engine->last_refusal}};
  return json;
}

Json WorkerJson(const WorkerTruth& worker) {
  Json json = worker.figures;
  json.update({{"model", worker.domain.model},
               {"tenant", worker.domain.tenant},
               {"cell", worker.cell},
               {"worker", worker.worker.name},
               {"rank", worker.worker.rank},
               {"checks", worker.checks},
               {"checks_whole", worker.checks_whole},
               {"checks_missed", worker.checks_missed}});
  if (worker.leaf.has_value()) json["leaf"] = LeafJson(*worker.leaf);
  return json;
}

std::string_view TrustName(Trust trust) {
  switch (trust) {
    case Trust::kExact:
      return "exact";
    case Trust::kDegraded:
      return "degraded";
    case Trust::kStale:
      return "stale";
    case Trust::kGuessed:
      return "guessed";
  }
  return "unknown";
}

// Each term of the cost apart: the sum alone does not say why one was preferred.
Json CandidatesJson(const std::vector<ReceiptCandidate>& candidates) {
  Json json = Json::array();
  for (const ReceiptCandidate& candidate : candidates) {
    json.push_back({{"worker", candidate.worker.name},
                    {"rank", candidate.worker.rank},
                    {"cell", candidate.cell},
                    {"overlap_blocks", candidate.overlap_blocks},
                    {"store_blocks", candidate.store_blocks},
                    {"trust", TrustName(candidate.trust)},
                    {"age_ms", candidate.age_ms},
                    {"cost", candidate.cost.total()},
                    {"prefill_cost", candidate.cost.prefill},
                    {"queue_cost", candidate.cost.queue},
                    {"decode_cost", candidate.cost.decode},
                    {"distance_cost", candidate.cost.distance},
                    {"fetch_cost", candidate.cost.fetch},
                    {"memory_cost", candidate.cost.memory},
                    {"session_cost", candidate.cost.session},
                    {"siblings_cost", candidate.cost.siblings},
                    {"transfer_cost", candidate.cost.transfer},
                    {"crowding_cost", candidate.cost.crowding}});
  }
  return json;
}

Json ReportJson(const RouteReport& report) {
  Json json = {{"accepted", report.accepted}, {"finished", report.finished}};
  if (report.cached_tokens.has_value()) json["cached_tokens"] = *report.cached_tokens;
  if (report.prompt_tokens.has_value()) json["prompt_tokens"] = *report.prompt_tokens;
  if (report.served_by.has_value()) {
    json["worker"] = report.served_by->name;
    json["rank"] = report.served_by->rank;
  }
  if (!report.error.empty()) json["error"] = report.error;
  return json;
}

}  // namespace

// No finding is good news only if there was something to judge by.
std::string PageText(const TruthPage& page) {
  std::string text;
  if (page.findings.empty()) {
    const uint64_t figures = page.stats.exact + page.stats.less + page.stats.more;
    text = figures > 0 ? "nothing found\n"
                       : "nothing to judge by: no report with cached_tokens came yet "
                         "(POST /report, or Frontend.Report)\n";
  }
  for (const KnownFinding& known : page.findings) text += FindingText(known) + "\n";
  std::vector<std::vector<std::string>> rows = {{"cell", "worker", "domain", "requests",
                                                 "predicted", "served", "exact", "less", "more",
                                                 "length differs", "in index", "held"}};
  for (const WorkerTruth& worker : page.workers) rows.push_back(WorkerRow(worker));
  if (rows.size() > 1)
    text += "\n" + Table(rows, 3) +
            "in index: of the prompts asked about again, how many the index still had whole; held: "
            "blocks that the leaf has of the worker\n";
  text += "\nreports " + std::to_string(page.stats.reports) + ", of unknown decisions " +
          std::to_string(page.stats.reports_unknown) + ", without cached_tokens " +
          std::to_string(page.stats.without_figures) + "; decisions kept " +
          std::to_string(page.stats.decisions_kept) + "; prompts asked about again " +
          std::to_string(page.stats.checks) + "\n";
  return text;
}

std::string PageJson(const TruthPage& page) {
  Json json = {{"findings", Json::array()}, {"workers", Json::array()}};
  for (const KnownFinding& known : page.findings) json["findings"].push_back(FindingJson(known));
  for (const WorkerTruth& worker : page.workers) json["workers"].push_back(WorkerJson(worker));
  json["reports"] = page.stats;
  json["reports"]["unknown"] = page.stats.reports_unknown;
  return Dump(json);
}

// Ids are strings: JSON's readers lose digits of numbers above 2^53. The salt itself is not shown.
std::string DecisionJson(const DecisionRecord& record, Time now) {
  constexpr const char* kForms[] = {"unknown", "completion", "chat"};
  const RouteResult& result = record.result;
  const Receipt& receipt = result.receipt;
  Json json = {{"decision_id", std::to_string(result.decision_id)},
               {"age_s", Seconds(now - record.at)},
               {"model", record.domain.model},
               {"tenant", record.domain.tenant},
               {"form", kForms[static_cast<int>(record.form)]},
               {"prompt_tokens", record.prompt_tokens},
               {"tokenizer", record.tokenizer},
               {"no_tokens", record.no_tokens},
               {"traits", record.traits},
               {"cache_not_read", record.cache_not_read},
               {"block_size", record.prompt.block_size},
               {"lora_name", record.prompt.lora_name},
               {"salted", !record.prompt.cache_salt.empty()},
               {"worker", result.worker.name},
               {"rank", result.worker.rank},
               {"cell", result.cell},
               {"overlap_blocks", result.overlap_blocks},
               {"predicted_tokens", result.overlap_blocks * record.prompt.block_size},
               {"sent_before_blocks", record.sent_before_blocks}};
  json["receipt"] = {{"fallback", ToString(receipt.fallback)},
                     {"reason", receipt.reason},
                     {"blocks", receipt.blocks},
                     {"cells", receipt.cells},
                     {"nodes", receipt.nodes},
                     {"candidates", CandidatesJson(receipt.candidates)},
                     {"candidates_considered", receipt.candidates_considered},
                     {"find_cells_us", receipt.find_cells_us},
                     {"find_overlaps_us", receipt.find_overlaps_us},
                     {"total_us", receipt.total_us}};
  if (record.reported_at.has_value()) {
    json["report"] = ReportJson(record.report);
    json["report"]["after_s"] = Seconds(*record.reported_at - record.at);
  }
  return Dump(json);
}

}  // namespace kvatlas
