// doctor: what is wrong in the fleet, and what mends it. Looks around (`SurveyFor`), checks
// (`FindingsOf`), leaves out what --ignore names, prints. The exit status is 3 with any finding, so
// that a script can wait for a healthy fleet.

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tools/kvatlas/command.h"
#include "tools/kvatlas/findings.h"
#include "tools/kvatlas/survey.h"
#include "tools/kvatlas/survey_command.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

std::string Counted(size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

// Shown with every result: "nothing is wrong" is worth as much as what was looked at.
std::string LookedAt(const Survey& survey) {
  return Counted(survey.Count("hierarchy"), "hierarchy node", "hierarchy nodes") + ", " +
         Counted(survey.Count("leaf"), "leaf", "leaves") + ", " +
         Counted(survey.Count("frontend"), "frontend", "frontends") + ", " +
         Counted(survey.Count("relay"), "relay", "relays") + ", " +
         Counted(survey.engines.size(), "engine", "engines");
}

// Texts of services are `Shown`: control characters in them must not reach a terminal.
void Print(const std::vector<FleetFinding>& findings, const Survey& survey, Command* command) {
  size_t errors = 0;
  for (const FleetFinding& finding : findings) {
    errors += finding.severity == Severity::kError;
    command->PrintJson({{"severity", std::string(SeverityName(finding.severity))},
                        {"id", finding.id},
                        {"where", finding.where},
                        {"what", finding.what},
                        {"remedy", finding.remedy}});
    if (!command->table()) continue;
    command->out() << SeverityName(finding.severity) << "  " << Shown(finding.where) << ": "
                   << Shown(finding.what) << " [" << finding.id << "]\n    "
                   << Shown(finding.remedy) << "\n";
  }
  if (!command->table()) return;
  if (findings.empty()) {
    command->out() << "nothing is wrong";
  } else {
    command->out() << Counted(errors, "error", "errors") << ", "
                   << Counted(findings.size() - errors, "warning", "warnings");
  }
  command->out() << "; looked at " << LookedAt(survey) << "\n";
}

// A misspelt name would leave out nothing, in silence.
absl::Status CheckIgnored(const std::vector<std::string>& ignored) {
  for (const std::string& id : ignored) {
    const auto& names = FleetFindingNames();
    if (std::any_of(names.begin(), names.end(), [&](const auto& of) { return of.id == id; }))
      continue;
    std::string all;
    for (const FleetFindingName& name : names)
      all += (all.empty() ? "" : ", ") + std::string(name.id);
    return absl::InvalidArgumentError("--ignore: \"" + id + "\" is none of " + all);
  }
  return absl::OkStatus();
}

}  // namespace

int RunDoctor(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("doctor",
                  "What is wrong in a fleet, where, and what mends it. From the services that are "
                  "named all others are found, but for frontends and relays; without any: those "
                  "of this host.",
                  io);
  SurveyFlags survey_flags;
  AddSurveyFlags(&command, &survey_flags);
  CheckOptions checks = ChecksNow();
  std::vector<std::string> ignored;
  command.flags().Add("ignore", &ignored, "findings, by name, that are left out");
  command.flags().Add("certificate_days", &checks.certificate_days,
                      "a certificate that ends sooner is told of", 0, 3650);
  Duration clock = std::chrono::milliseconds(checks.clock_ms);
  command.flags().Add("clock_skew", &clock, "clocks that differ by more are told of");
  if (const auto exit = command.Parse(arguments)) return *exit;
  if (absl::Status bad = CheckIgnored(ignored); !bad.ok())
    return command.Usage(std::string(bad.message()));
  checks.clock_ms = std::chrono::duration_cast<std::chrono::milliseconds>(clock).count();
  const absl::StatusOr<Survey> survey = SurveyFor(command, survey_flags);
  if (!survey.ok()) return command.Fail(survey.status());
  std::vector<FleetFinding> findings = FindingsOf(*survey, checks);
  // Ignored findings count neither in the sums nor in the exit status.
  std::erase_if(findings, [&](const FleetFinding& finding) {
    return std::find(ignored.begin(), ignored.end(), finding.id) != ignored.end();
  });
  Print(findings, *survey, &command);
  const int done = command.Done();
  // Services were named and none answered: the findings say so, and the status is that of
  // "unreachable".
  if (survey->nodes.empty() && survey->pages.empty()) return kExitUnreachable;
  return findings.empty() || done != kExitOk ? done : kExitDifferent;
}

}  // namespace kvatlas
