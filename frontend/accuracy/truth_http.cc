// Pages, metrics and the part of the status. Numbers in queries are clipped to `kShownMax`; what is
// no number counts as not given. Under a policy a decision is shown only to callers that may give
// feedback for its tenant.

#include "frontend/accuracy/truth_http.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "frontend/accuracy/truth_report.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr size_t kWorkersShown = 64;
constexpr size_t kDecisionsShown = 100;
constexpr size_t kDetailsShown = 64;  // some 4 KB each
constexpr size_t kShownMax = 65536;

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

size_t CountIn(const HttpRequest& request, std::string_view name, size_t otherwise) {
  const std::optional<std::string> text = request.Param(name);
  const std::optional<uint64_t> value = text.has_value() ? Number(*text) : std::nullopt;
  return static_cast<size_t>(std::min<uint64_t>(value.value_or(otherwise), kShownMax));
}

// Whether the caller may see the decision. To others it is as unknown as one that never was (404),
// so that ids tell nothing.
bool Sees(const Security& security, const HttpRequest& request, const DecisionRecord& record) {
  const std::shared_ptr<const AccessPolicy> policy = security.policy();
  if (policy == nullptr) return true;
  PolicyTarget target;
  target.tenant = record.tenant;
  return policy->Decide(*request.identity, Verb::kFeedback, target).allowed;
}

// The latest decisions that the caller may see: ids, or with `detail` whole records. Records are
// looked up one by one, so the mutex is never held for the whole list; one that was forgotten
// meanwhile is skipped.
std::string DecisionList(const Truth& truth, const Security& security, const Clock& clock,
                         const HttpRequest& request) {
  const bool detail = request.Param("detail").value_or("0") == "1";
  const size_t max = CountIn(request, "max", detail ? kDetailsShown : kDecisionsShown);
  std::string list;
  for (uint64_t id : truth.LatestDecisions(detail ? std::min(max, kDetailsShown) : max)) {
    if (detail || security.enforces()) {
      const std::optional<DecisionRecord> record = truth.Find(id);
      if (!record.has_value() || !Sees(security, request, *record)) continue;
      if (detail) {
        list += (list.empty() ? "" : ",") + DecisionJson(*record, clock.Now());
        continue;
      }
    }
    list += (list.empty() ? "\"" : ",\"") + std::to_string(id) + "\"";
  }
  return "{\"decisions\":[" + list + "]}\n";
}

// Both paths: the list, and one decision by its id.
HttpResponse Decision(const Truth& truth, const Security& security, const Clock& clock,
                      const HttpRequest& request) {
  constexpr std::string_view kPrefix = "/decisions/";
  if (request.path.size() <= kPrefix.size())
    return {.body = DecisionList(truth, security, clock, request)};
  const std::optional<uint64_t> id = Number(std::string_view(request.path).substr(kPrefix.size()));
  if (!id.has_value()) return HttpError(400, "a decision's id is a number");
  const std::optional<DecisionRecord> record = truth.Find(*id);
  if (!record.has_value() || !Sees(security, request, *record))
    return HttpError(404, "no such decision, or it is forgotten");
  return {.body = DecisionJson(*record, clock.Now())};
}

// Judges now: the page is never older than the question.
HttpResponse Diagnosis(Truth* truth, const HttpRequest& request) {
  const TruthPage page{.findings = truth->Diagnose(),
                       .workers = truth->workers(CountIn(request, "workers", kWorkersShown)),
                       .stats = truth->stats()};
  if (request.Param("format") == "json") return {.body = PageJson(page)};
  return {.content_type = "text/plain; charset=utf-8", .body = PageText(page)};
}

std::string Labels(const Domain& domain, const std::string& cell, const HolderId& worker) {
  return MetricLabel("domain", ToString(domain)) + "," + MetricLabel("cell", cell) + "," +
         MetricLabel("worker", worker.name) + "," +
         MetricLabel("rank", std::to_string(worker.rank));
}

// Series whose labels come and go, written as text at each scrape; the fixed ones are counters of
// `Metrics`.
void AppendSeries(const Truth& truth, std::string* text) {
  constexpr char kFinding[] = "kvatlas_frontend_finding";
  AppendGaugeHead(kFinding, "Why predictions and engines part: confidence, 0 to 1.", text);
  for (const KnownFinding& known : truth.findings()) {
    const Finding& finding = known.finding;
    AppendGauge(kFinding,
                MetricLabel("cause", CauseName(finding.cause)) + "," +
                    Labels(finding.domain, finding.cell, finding.worker),
                std::to_string(finding.confidence), text);
  }
  const std::vector<WorkerTruth> workers = truth.workers(kWorkersShown);
  const auto family = [&](const std::string& name, const char* help, auto value) {
    AppendGaugeHead(name, help, text);
    for (const WorkerTruth& worker : workers)
      AppendGauge(name, Labels(worker.domain, worker.cell, worker.worker),
                  std::to_string(value(worker)), text);
  };
  family("kvatlas_frontend_worker_predicted_tokens", "Promised lately; forgets by half-lives.",
         [](const WorkerTruth& worker) { return worker.figures.predicted_tokens; });
  family("kvatlas_frontend_worker_served_tokens", "Served from cache lately, likewise.",
         [](const WorkerTruth& worker) { return worker.figures.served_tokens; });
  family("kvatlas_frontend_worker_checks_missed",
         "Of the latest finished prompts that were asked about, those the index knows nothing of.",
         [](const WorkerTruth& worker) { return worker.checks_missed; });
}

}  // namespace

void AddTruthHttp(Truth* truth, const Clock* clock, AdminHttp* http) {
  const auto decision = [truth, clock,
                         security = Security::OfProcess()](const HttpRequest& request) {
    return Decision(*truth, *security, *clock, request);
  };
  http->Handle("GET", "/decisions", decision);
  http->Handle("GET", "/decisions/*", decision);
  http->Handle("GET", "/diagnosis",
               [truth](const HttpRequest& request) { return Diagnosis(truth, request); });
}

// `TruthStats` counts since the start, so counters are raised to its values at each scrape.
void AddTruthMetrics(const Truth* truth, Metrics* metrics) {
  const auto counter = [metrics](const std::string& name, const char* help,
                                 const MetricLabels& labels = {}) {
    return metrics->AddCounter("kvatlas_frontend_" + name, help, labels);
  };
  constexpr const char* kServed = "Reported requests by what was served against predicted.";
  struct Series {
    Counter counter;
    uint64_t TruthStats::* value;
  };
  std::vector<Series> series = {
      {counter("served_total", kServed, {{"result", "exact"}}), &TruthStats::exact},
      {counter("served_total", kServed, {{"result", "less"}}), &TruthStats::less},
      {counter("served_total", kServed, {{"result", "more"}}), &TruthStats::more},
      {counter("served_total", kServed, {{"result", "unknown"}}), &TruthStats::without_figures},
      {counter("predicted_tokens_total", "Promised, of reported requests."),
       &TruthStats::predicted_tokens},
      {counter("served_tokens_total", "Served from cache, of reported requests."),
       &TruthStats::served_tokens},
      {counter("reported_blocks_total", "Full blocks of the prompts of these requests."),
       &TruthStats::reported_blocks},
      {counter("cached_blocks_total", "Of these, those that engines say they had cached."),
       &TruthStats::cached_blocks},
      {counter("prompt_lengths_differ_total", "Prompts that the engine counts otherwise."),
       &TruthStats::lengths_differ},
      {counter("requests_failed_total", "Reported as failed at the worker."), &TruthStats::errors},
      {counter("reports_unknown_total", "Reports on decisions that are not known (any more)."),
       &TruthStats::reports_unknown},
      {counter("truth_checks_total", "Finished prompts asked about again."), &TruthStats::checks},
      {counter("truth_checks_missed_total", "Of these, such that the index knew nothing of."),
       &TruthStats::checks_missed},
  };
  Gauge kept =
      metrics->AddGauge("kvatlas_frontend_decisions_kept", "Receipts that can be looked up.");
  Gauge bytes = metrics->AddGauge("kvatlas_frontend_decision_bytes", "Their memory.");
  metrics->OnScrape([truth, series, kept, bytes]() mutable {
    const TruthStats stats = truth->stats();
    for (Series& one : series) one.counter.RaiseTo(static_cast<double>(stats.*one.value));
    kept.Set(static_cast<double>(stats.decisions_kept));
    bytes.Set(static_cast<double>(stats.decision_bytes));
  });
  metrics->OnText([truth](std::string* text) { AppendSeries(*truth, text); });
}

std::string TruthStatusJson(const Truth& truth) {
  const TruthStats stats = truth.stats();
  Json json = {{"reports", stats.reports},
               {"exact", stats.exact},
               {"less", stats.less},
               {"more", stats.more},
               {"without_cached_tokens", stats.without_figures},
               {"prompt_lengths_differ", stats.lengths_differ},
               {"predicted_tokens", stats.predicted_tokens},
               {"served_tokens", stats.served_tokens},
               {"findings", Json::array()}};
  for (const KnownFinding& known : truth.findings()) {
    json["findings"].push_back({{"cause", CauseName(known.finding.cause)},
                                {"confidence", known.finding.confidence},
                                {"domain", ToString(known.finding.domain)},
                                {"cell", known.finding.cell},
                                {"worker", known.finding.worker.name},
                                {"rank", known.finding.worker.rank},
                                {"evidence", known.finding.evidence},
                                {"remedy", RemedyOf(known.finding)}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvatlas
