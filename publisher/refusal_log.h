// Which leaves take nothing of a holder's stream, and why? In the log, once a minute per holder and leaf.
//
// Not while a leaf stops or has not begun (UNAVAILABLE): it is asked again soon, and nothing is to be mended.

#ifndef KVATLAS_PUBLISHER_REFUSAL_LOG_H_
#define KVATLAS_PUBLISHER_REFUSAL_LOG_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "indexer/base/ids.h"
#include "indexer/service/log.h"

namespace kvatlas {

inline void LogLeafRefusal(const std::string& leaf, const HolderId& holder,
                           const absl::Status& why) {
  if (why.ok() || absl::IsUnavailable(why)) return;
  static LogLimiter& limiter = *new LogLimiter(std::chrono::minutes(1));
  LogEvery(limiter, leaf + " " + ToString(holder), LogLevel::kWarning, "a leaf refuses the stream",
           {{"leaf", leaf}, {"holder", ToString(holder)}, {"reason", why}});
}

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_REFUSAL_LOG_H_
