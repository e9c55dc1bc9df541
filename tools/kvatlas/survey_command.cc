// Shared by status, doctor and bundle: which services are asked, and with which options.

#include "tools/kvatlas/survey_command.h"

#include <chrono>
#include <iterator>
#include <utility>

#include "tools/kvatlas/service_name.h"

namespace kvatlas {
namespace {

// The services of this host, at their default ports.
std::vector<ServiceName> UsualServices() {
  const std::string host = "127.0.0.1";
  return {{ServiceRole::kLeaf, {host, 7410}},
          {ServiceRole::kHierarchy, {host, 7420}},
          {ServiceRole::kFrontend, {host, 8092}},
          {ServiceRole::kRelay, {host, 8093}},
          {ServiceRole::kServe, {host, 8094}}};
}

}  // namespace

void AddSurveyFlags(Command* command, SurveyFlags* of) {
  command->AddServices({std::begin(kRoles), std::end(kRoles)}, kServicesMax);
  FlagSet& flags = command->flags();
  flags.Add("leaf", &of->leaves, "addresses of leaves");
  flags.Add("hierarchy", &of->hierarchies, "addresses of hierarchy nodes");
  flags.Add("frontend_http", &of->frontends, "HTTP addresses of frontends");
  flags.Add("relay", &of->relays, "HTTP addresses of relays");
}

// Without any service named, those of this host are looked for; what is not there is then no
// finding.
absl::StatusOr<Survey> SurveyFor(const Command& command, const SurveyFlags& flags,
                                 SurveyOptions options) {
  options.timeout = command.timeout();
  options.tls_ca = command.tls_ca();
  options.services = command.services();
  for (const auto& [role, addresses] : {std::pair(ServiceRole::kLeaf, &flags.leaves),
                                        std::pair(ServiceRole::kHierarchy, &flags.hierarchies),
                                        std::pair(ServiceRole::kFrontend, &flags.frontends),
                                        std::pair(ServiceRole::kRelay, &flags.relays)})
    for (const Address& address : *addresses) options.services.push_back({role, address});
  const bool named = !options.services.empty();
  if (!named) options.services = UsualServices();
  Survey survey = LookAround(options);
  if (named) return survey;
  // A service that is not at its default port is not missed, unless another service names it.
  std::erase_if(survey.unreached, [](const Unreached& what) { return what.told_by.empty(); });
  if (survey.nodes.empty() && survey.pages.empty()) {
    return absl::UnavailableError(
        "no service answers at the default ports of this host (7410, 7420, 8092, 8093, 8094); name "
        "one, as with leaf=HOST:PORT or frontend=HOST:PORT");
  }
  return survey;
}

// The one place that reads the wall clock for checks; tests give a time of their own.
CheckOptions ChecksNow() {
  CheckOptions checks;
  checks.now_unix_s = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return checks;
}

}  // namespace kvatlas
