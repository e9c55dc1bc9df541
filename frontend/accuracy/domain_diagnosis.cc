// All workers of a domain. Each is diagnosed alone first. A cause that all show becomes one finding
// about the domain; and if no worker shows anything, the evidence of the quiet ones is pooled,
// since what each shows too little of may be shown by all together.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "frontend/accuracy/diagnosis.h"

namespace kvatlas {
namespace {

// Whether anything is known of the worker: one with too few requests cannot show a cause and must
// not prevent "all do".
bool IsInformed(const WorkerEvidence& worker) {
  size_t served = 0;
  for (const Comparison& c : worker.comparisons) served += c.served.has_value();
  return served >= kShownMin || worker.checks.size() >= kConfirmedMin;
}

// The workers as if they were one. The leaf's view is kept only if there is one of each, with
// summed figures and the worst trust; what concerns a single stream (masked, its engine, its epoch)
// is left out. Comparisons are put in time order again, as steps that look for a break need.
WorkerEvidence Pool(const std::vector<const WorkerEvidence*>& workers) {
  WorkerEvidence pool{.domain = workers.front()->domain,
                      .cell = {},
                      .worker = {},
                      .comparisons = {},
                      .checks = {},
                      .leaf = workers.front()->leaf,
                      .leaf_before = {},
                      .no_batch_since = {},
                      .own_contract = workers.front()->own_contract,
                      .now = workers.front()->now};
  for (const WorkerEvidence* worker : workers) {
    pool.comparisons.insert(pool.comparisons.end(), worker->comparisons.begin(),
                            worker->comparisons.end());
    pool.checks.insert(pool.checks.end(), worker->checks.begin(), worker->checks.end());
    if (!worker->leaf.has_value()) pool.leaf.reset();
    if (!pool.leaf.has_value() || worker == workers.front()) continue;
    pool.leaf->blocks += worker->leaf->blocks;
    pool.leaf->batches += worker->leaf->batches;
    pool.leaf->hybrid = pool.leaf->hybrid || worker->leaf->hybrid;
    pool.leaf->trust = std::max(pool.leaf->trust, worker->leaf->trust);
  }
  if (pool.leaf.has_value()) {
    pool.leaf->masked = false;
    pool.leaf->engine.reset();
  }
  std::stable_sort(pool.comparisons.begin(), pool.comparisons.end(),
                   [](const Comparison& a, const Comparison& b) { return a.at < b.at; });
  return pool;
}

// Causes in how prompts are made and named: the frontend's side, which all workers share.
bool ConcernsPrompts(Cause cause) {
  switch (cause) {
    case Cause::kWrongBlockSize:
    case Cause::kHashContract:
    case Cause::kTokenizer:
    case Cause::kChatTemplate:
    case Cause::kBosDoubled:
    case Cause::kBosMissing:
    case Cause::kCacheSalt:
    case Cause::kLoraNamespace:
    case Cause::kPromptDiffers:
      return true;
    default:
      return false;
  }
}

// The workers that have a decision among these.
std::vector<HolderId> WorkersWith(const std::vector<const WorkerEvidence*>& workers,
                                  const std::vector<uint64_t>& decisions) {
  const std::set<uint64_t> wanted(decisions.begin(), decisions.end());
  std::vector<HolderId> having;
  for (const WorkerEvidence* worker : workers) {
    const bool has = std::any_of(worker->comparisons.begin(), worker->comparisons.end(),
                                 [&](const Comparison& c) { return wanted.contains(c.decision); });
    if (has) having.push_back(worker->worker);
  }
  return having;
}

}  // namespace

std::vector<Finding> DiagnoseDomain(const std::vector<WorkerEvidence>& workers) {
  std::vector<Finding> findings;
  std::vector<const WorkerEvidence*> quiet;
  std::map<Cause, std::vector<Finding>> by_cause;
  size_t informed = 0;
  for (const WorkerEvidence& worker : workers) {
    std::vector<Finding> of_worker = Diagnose(worker);
    if (of_worker.empty() && !worker.comparisons.empty()) quiet.push_back(&worker);
    informed += IsInformed(worker) || !of_worker.empty();
    for (Finding& finding : of_worker) by_cause[finding.cause].push_back(std::move(finding));
  }
  for (auto& [cause, of_cause] : by_cause) {
    // Not all informed workers show it, or it is a matter of each engine: the findings stay the
    // workers' own.
    if (!ConcernsPrompts(cause) || of_cause.size() < 2 || of_cause.size() < informed) {
      for (Finding& finding : of_cause) findings.push_back(std::move(finding));
      continue;
    }
    Finding all = std::move(of_cause.front());
    all.evidence.push_back("all " + std::to_string(of_cause.size()) +
                           " workers of the domain show it");
    all.workers = {all.worker};
    for (size_t i = 1; i < of_cause.size(); ++i) all.workers.push_back(of_cause[i].worker);
    all.worker = {};
    all.cell.clear();
    findings.push_back(std::move(all));
  }
  // A pooled finding must be shown by two workers, else it is one worker's and too weak.
  if (findings.empty() && quiet.size() >= 2) {
    for (Finding& finding : Diagnose(Pool(quiet))) {
      finding.workers = WorkersWith(quiet, finding.decisions);
      if (!ConcernsPrompts(finding.cause) || finding.workers.size() < 2) continue;
      findings.push_back(std::move(finding));
    }
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.confidence > b.confidence; });
  return findings;
}

}  // namespace kvatlas
