// Findings, workers and decisions as text for people, and as JSON.
//
// *Threads*: pure.

#ifndef KVATLAS_FRONTEND_ACCURACY_TRUTH_REPORT_H_
#define KVATLAS_FRONTEND_ACCURACY_TRUTH_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "frontend/accuracy/decision_log.h"
#include "frontend/accuracy/truth.h"
#include "indexer/base/clock.h"

namespace kvatlas {

struct TruthPage {
  std::vector<KnownFinding> findings;
  std::vector<WorkerTruth> workers;  // the worst first
  TruthStats stats;
};

// Aligned, a line of at most 120 columns or so each, but for evidence.
std::string PageText(const TruthPage& page);
// {"findings":[{"cause":…,"confidence":…,"domain":…,"cell":…,"worker":…,"rank":…,"since_s":…,"meaning":…,"evidence":[…],
//   "decisions":["…"],"remedy":…,"or_else":[{"cause":…,"test":…}]}],"workers":[…],"reports":{…}}
std::string PageJson(const TruthPage& page);
// The receipt, the report, and both compared.
std::string DecisionJson(const DecisionRecord& record, Time now);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_TRUTH_REPORT_H_
