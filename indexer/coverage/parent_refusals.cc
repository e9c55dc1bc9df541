#include "indexer/coverage/parent_refusals.h"

#include <chrono>

#include "indexer/base/domain.h"
#include "indexer/service/log.h"
#include "indexer/service/text_escape.h"

namespace kvatlas {

void AppendParentMetrics(const std::vector<ParentStats>& parents, const std::string& prefix,
                         std::string* text) {
  const auto label = [](const ParentStats& stats) {
    return MetricLabel("domain", ToString(stats.domain)) + "," +
           MetricLabel("parent", stats.parent);
  };
  const std::string connected = prefix + "_parent_connected";
  AppendGaugeHead(connected, "1: a stream to this parent is open.", text);
  for (const ParentStats& stats : parents)
    AppendGauge(connected, label(stats), stats.connected ? "1" : "0", text);
  const std::string name = prefix + "_parent_refuses";
  AppendGaugeHead(name, "1: this parent refuses what is reported.", text);
  for (const ParentStats& stats : parents) {
    const bool refuses = !stats.status.ok() || !stats.refusal.ok();
    AppendGauge(name, label(stats), refuses ? "1" : "0", text);
  }
}

void LogRefusal(std::string_view flag, const ParentRefusal& refusal) {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::minutes(1));
  LogEvery(limiter, refusal.parent + " " + ToString(refusal.domain), LogLevel::kWarning,
           "a parent refuses what is reported",
           {{"parent", refusal.parent},
            {"domain", ToString(refusal.domain)},
            {flag, refusal.schedule},
            {"reason", refusal.why}});
}

}  // namespace kvatlas
