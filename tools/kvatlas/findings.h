// Findings about a fleet: what is wrong, where, and what mends it, from what the services said of
// themselves (`survey.h`).
//
// *Truth*: of that moment. A stream that is being repaired right then is a finding, too. Each
// finding has a name that never changes, for scripts that leave some out. *Threads*: functions
// without state.

#ifndef KVATLAS_TOOLS_KVATLAS_FINDINGS_H_
#define KVATLAS_TOOLS_KVATLAS_FINDINGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/kvatlas/survey.h"

namespace kvatlas {

enum class Severity : uint8_t {
  kError,    // answers are wrong, missing or impossible
  kWarning,  // it works, and will not for long, or not as well as it could
};
std::string_view SeverityName(Severity severity);  // "error"

struct FleetFinding {
  Severity severity = Severity::kError;
  std::string id;      // "schedule_mismatch"
  std::string where;   // "leaf 10.0.0.1:7410 (cell a)"
  std::string what;    // a clause with what was expected and what was found
  std::string remedy;  // what to do, with the flag that does it
};

struct FleetFindingName {
  std::string_view id;
  std::string_view meaning;
};
// All names, in the order of the manual.
const std::vector<FleetFindingName>& FleetFindingNames();

struct CheckOptions {
  // A certificate that ends sooner is a finding.
  int64_t certificate_days = 7;
  // Clocks that differ by more are a finding.
  int64_t clock_ms = 2000;
  int64_t now_unix_s = 0;
};

// Worst first, then by where. A mistake that several services report is told once for each of them.
std::vector<FleetFinding> FindingsOf(const Survey& survey, const CheckOptions& options);

// ---- Its parts ----

// A leaf whose Redis is away, or full: the silence of workers that publish through it has that
// cause.
bool IsWithoutRedis(const SurveyedNode& node);

class FindingList {
 public:
  void Error(std::string id, std::string where, std::string what, std::string remedy);
  void Warning(std::string id, std::string where, std::string what, std::string remedy);
  std::vector<FleetFinding> Take() { return std::move(findings_); }

 private:
  void Add(Severity severity, std::string id, std::string where, std::string what,
           std::string remedy);
  std::vector<FleetFinding> findings_;
};

// Checks each service by itself: memory, disk, addresses, certificates, reachability.
void CheckServices(const Survey& survey, const CheckOptions& options, FindingList* findings);
// Checks services together: schedules, seeds, versions, clocks, names, reports to parents.
void CheckAgreement(const Survey& survey, const CheckOptions& options, FindingList* findings);
// Checks streams: refused, silent, degraded, differing.
void CheckStreams(const Survey& survey, FindingList* findings);
// Checks engines and their event streams.
void CheckEngines(const Survey& survey, FindingList* findings);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_FINDINGS_H_
