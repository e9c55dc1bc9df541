// Shared by the commands that look at a whole fleet: status, doctor and bundle.
//
// *Threads*: none.

#ifndef KVATLAS_TOOLS_KVATLAS_SURVEY_COMMAND_H_
#define KVATLAS_TOOLS_KVATLAS_SURVEY_COMMAND_H_

#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/findings.h"
#include "tools/kvatlas/survey.h"

namespace kvatlas {

// Services that flags name, beside the words KIND=HOST:PORT.
struct SurveyFlags {
  std::vector<Address> leaves;
  std::vector<Address> hierarchies;
  std::vector<Address> frontends;
  std::vector<Address> relays;
};

// Words of every kind, and --leaf, --hierarchy, --frontend_http, --relay.
void AddSurveyFlags(Command* command, SurveyFlags* flags);

// From the services named, whatever `options` say of services, timeout and CAs; of this host, where
// none is named. UNAVAILABLE: none was named, and none of this host answers.
absl::StatusOr<Survey> SurveyFor(const Command& command, const SurveyFlags& flags,
                                 SurveyOptions options = {});

// The limits of `FindingsOf` as they are without flags, and the time.
CheckOptions ChecksNow();

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_SURVEY_COMMAND_H_
