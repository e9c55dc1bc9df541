// The order of the steps (`Run`), and how findings are added; the steps themselves are in the files
// that diagnostician.h lists.

#include "frontend/accuracy/diagnosis.h"

#include <algorithm>
#include <string>
#include <utility>

#include "frontend/accuracy/diagnostician.h"

namespace kvatlas {
namespace {

// Evidence is in time order; the latest decisions are the ones most likely still in the log.
std::vector<uint64_t> Latest(std::vector<uint64_t> decisions) {
  std::reverse(decisions.begin(), decisions.end());
  std::vector<uint64_t> latest;
  for (uint64_t decision : decisions) {
    if (latest.size() == kFindingDecisionsMax) break;
    if (std::find(latest.begin(), latest.end(), decision) == latest.end())
      latest.push_back(decision);
  }
  return latest;
}

}  // namespace

// From facts to guesses; each step goes on only with what the ones before left unexplained:
//   1. An engine that is not reached explains everything else.
//   2. `SelfContradictions`, `Silence`: what leaf and stream say of themselves. `waits_`: too early
//      to judge.
//   3. Who served it: another rank, another worker.
//   4. `NothingServed` before blindness, since a cache that is off makes no hits to be blind to.
//   5. Blindness, in part and of all; then a stream that has stopped.
//   6. Some prompts that differ; too little served; and what nothing explains.
// A step may add several findings; the next ones are then skipped.
std::vector<Finding> Diagnostician::Run() {
  if (Unreachable()) return std::move(findings_);
  SelfContradictions();
  if (findings_.empty()) Silence();
  if (waits_) return {};
  if (findings_.empty()) RankMixedUp();
  if (findings_.empty()) WorkerMixedUp();
  if (findings_.empty()) NothingServed();
  if (findings_.empty()) BlindInPart();
  if (findings_.empty()) Blind();
  if (findings_.empty()) SilenceInStream();
  if (findings_.empty()) Diverging();
  if (findings_.empty()) PromptDiffers();
  if (findings_.empty()) TooLittleServed();
  if (findings_.empty()) Unexplained();
  std::stable_sort(findings_.begin(), findings_.end(),
                   [](const Finding& a, const Finding& b) { return a.confidence > b.confidence; });
  return std::move(findings_);
}

void Diagnostician::Add(Cause cause, double confidence, Evidence evidence, Decisions decisions) {
  findings_.push_back({.cause = cause,
                       .confidence = confidence,
                       .domain = e_.domain,
                       .cell = e_.cell,
                       .worker = e_.worker,
                       .evidence = std::move(evidence),
                       .decisions = Latest(std::move(decisions)),
                       .or_else = {},
                       .workers = {},
                       .remedy = RemedyFor(cause)});
}

// One finding per cause; each names the others in `or_else`.
void Diagnostician::AddAlternatives(const std::vector<std::pair<Cause, double>>& causes,
                                    const Evidence& evidence, const Decisions& decisions) {
  for (const auto& [cause, confidence] : causes) {
    Add(cause, confidence, evidence, decisions);
    for (const auto& [other, _] : causes)
      if (other != cause) findings_.back().or_else.push_back(other);
  }
}

std::vector<Finding> Diagnose(const WorkerEvidence& evidence) {
  return Diagnostician(evidence).Run();
}

}  // namespace kvatlas
