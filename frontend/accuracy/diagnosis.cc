#include "frontend/accuracy/diagnosis.h"

#include <algorithm>
#include <string>
#include <utility>

#include "frontend/accuracy/diagnostician.h"

namespace kvatlas {
namespace {

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

// From facts to guesses; each step goes on only with what the ones before left unexplained.
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
