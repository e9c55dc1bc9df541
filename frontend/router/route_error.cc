// Which status says best why there is no worker, and when to come again.

#include "frontend/router/route_error.h"

#include <algorithm>
#include <chrono>

#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// The times after which clients may come again: the default where nothing says how long a queue is,
// and the limits.
constexpr Duration kRetryAfterDefault = std::chrono::seconds(1);
constexpr Duration kRetryAfterMin = std::chrono::milliseconds(100);
constexpr Duration kRetryAfterMax = std::chrono::seconds(30);

// A line per ten seconds and domain; it has the addresses that the status must not show to clients.
LogLimiter& NoWorkerLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}

// How long the least overloaded worker needs for the blocks above its threshold. Clipped as a
// double first: the product may exceed what a duration holds.
Duration RetryAfterOf(const Choice& choice, const FrontendOptions& options) {
  if (choice.least_excess == 0 || choice.least_excess == UINT64_MAX) return kRetryAfterDefault;
  const double ns = static_cast<double>(choice.least_excess) *
                    static_cast<double>(options.prefill_per_block.count());
  const double most = static_cast<double>(kRetryAfterMax.count());
  return std::max(Duration(static_cast<int64_t>(std::min(ns, most))), kRetryAfterMin);
}

}  // namespace

// NOT_FOUND is an answer: the peer knows no such worker.
void FleetSaid::CountFailure(const absl::Status& why) {
  if (absl::IsNotFound(why)) {
    some_answered = true;
  } else {
    ++unanswered;
  }
}

absl::Status StoppedError() { return absl::UnavailableError("the frontend is stopping"); }

// From "not known" to "known not to be": UNAVAILABLE if anything did not answer or nothing was
// there to ask; no decoder; draining, which passes; not allowed; at last the model is unknown. Only
// the last means that the name is wrong.
absl::Status NoWorkerError(const Domain& domain, const Choice& choice, bool lacks_decoder,
                           const FleetSaid& said) {
  const std::string name = ToString(domain);
  if (said.unanswered > 0 || !said.some_answered) {
    LogEvery(NoWorkerLog(), name, LogLevel::kWarning, "no worker can be found",
             {{"domain", name},
              {"unanswered", said.unanswered},
              {"reason", said.reason.empty() ? "nothing to ask" : said.reason}});
    const std::string why = said.unanswered > 0 ? std::to_string(said.unanswered) +
                                                      " hierarchy nodes or leaves did not answer"
                                                : "no hierarchy node and no leaf is known";
    return WithRetryAfter(
        absl::UnavailableError("no worker of " + name + " can be found now: " + why),
        kRetryAfterDefault);
  }
  if (lacks_decoder)
    return absl::NotFoundError("no worker of " + name +
                               " decodes what others prefill, among those that answered");
  if (choice.draining > 0) {
    return WithRetryAfter(
        absl::UnavailableError("the workers of " + name + " that this request allows are draining"),
        kRetryAfterDefault);
  }
  if (choice.not_allowed > 0)
    return absl::NotFoundError("no worker of " + name + " that this request allows, of " +
                               std::to_string(choice.not_allowed) + " seen");
  return UnknownModelError(domain.model);
}

absl::Status OverloadedError(const Domain& domain, const Choice& choice,
                             const FrontendOptions& options) {
  const uint32_t workers = choice.overloaded + choice.overloaded_decoders;
  return WithRetryAfter(
      absl::ResourceExhaustedError("all " + std::to_string(workers) + " workers of " +
                                   ToString(domain) + " that answered are over their thresholds"),
      RetryAfterOf(choice, options));
}

}  // namespace kvatlas
