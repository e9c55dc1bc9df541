#include "indexer/coverage/parent_refusals.h"

#include <chrono>

#include "indexer/base/domain.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/metric_families.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {

// Families are built from the parents of one `Stats` call. A refusal counts whether it is for good
// (`status`) or for now (`refusal`).
void AppendParentMetrics(const std::vector<ParentStats>& parents, const std::string& prefix,
                         std::string* text) {
  MetricFamilies families;
  const auto family = [&](const char* name, const char* help, auto value) {
    families.DeclareGauge(prefix + name, help);
    for (const ParentStats& stats : parents) {
      families.Gauge(
          prefix + name, help,
          MetricLabel("domain", ToString(stats.domain)) + "," + MetricLabel("parent", stats.parent),
          static_cast<double>(value(stats)));
    }
  };
  family("_parent_connected", "1: a stream to this parent is open.",
         [](const ParentStats& s) { return s.connected ? 1 : 0; });
  family("_parent_at_rest", "1: this parent has acknowledged everything there is to say.",
         [](const ParentStats& s) { return s.at_rest ? 1 : 0; });
  family("_parent_unacknowledged_batches", "Batches that this parent has not acknowledged.",
         [](const ParentStats& s) { return s.last_batch - s.acknowledged; });
  family("_parent_refuses", "1: this parent refuses what is reported.",
         [](const ParentStats& s) { return !s.status.ok() || !s.refusal.ok() ? 1 : 0; });
  families.AppendTo(text);
}

void LogRefusal(std::string_view flag, const ParentRefusal& refusal) {
  // By parent and domain, so that one refused parent does not hide another.
  static LogLimiter& limiter = *new LogLimiter(std::chrono::minutes(1));
  LogEvery(limiter, refusal.parent + " " + ToString(refusal.domain), LogLevel::kWarning,
           "a parent refuses what is reported",
           {{"parent", refusal.parent},
            {"domain", ToString(refusal.domain)},
            {flag, refusal.schedule},
            {"reason", refusal.why}});
}

}  // namespace kvatlas
