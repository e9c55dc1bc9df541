// What do the commands share that look at a whole fleet?
//
// *Threads*: none.

#ifndef KVATLAS_TOOLS_KVATLAS_SURVEY_COMMAND_H_
#define KVATLAS_TOOLS_KVATLAS_SURVEY_COMMAND_H_

#include "absl/status/statusor.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/findings.h"
#include "tools/kvatlas/survey.h"

namespace kvatlas {

// --leaf, --hierarchy, --frontend_http, --relay.
void AddSurveyFlags(Command* command, SurveyOptions* options);

// From the services named; of this host, where none is. UNAVAILABLE: none was named, and none of this host answers.
absl::StatusOr<Survey> SurveyFor(const Command& command, SurveyOptions options);

// The limits of `FindingsOf` as they are without flags, and the time.
CheckOptions ChecksNow();

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_SURVEY_COMMAND_H_
