// All domains are read first and written family by family, since Prometheus wants the series of a
// family in one place.

#include "indexer/transport/holder_states.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/domain.h"
#include "indexer/base/overlap.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

// As numbered by `Trust`.
constexpr std::array<std::string_view, 3> kTrusts = {"exact", "degraded", "stale"};

struct States {
  std::string label;  // of the domain
  std::array<uint64_t, kTrusts.size()> by_trust = {};
  uint64_t masked = 0;
  uint64_t claimed_twice = 0;
  uint64_t repairs_timed_out = 0;
};

States StatesOf(const DomainStats& stats) {
  States states = {.label = MetricLabel("domain", ToString(stats.domain))};
  for (const HolderStats& holder : stats.holders) {
    ++states.by_trust[static_cast<size_t>(holder.trust)];
    states.masked += holder.masked;
    states.claimed_twice += holder.receiver.hellos_refused;
    states.repairs_timed_out += holder.receiver.repairs_timed_out;
  }
  return states;
}

}  // namespace

void AppendHolderStates(const HolderRegistry& registry, const std::string& prefix,
                        std::string* text) {
  std::vector<States> all;
  for (const Domain& domain : registry.Domains()) {
    const absl::StatusOr<DomainStats> stats = registry.StatsOf(domain);
    if (stats.ok()) all.push_back(StatesOf(*stats));
  }
  const auto head = [&](const std::string& name, std::string_view help, std::string_view type) {
    text->append("# HELP ").append(name).append(" ").append(help);
    text->append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
  };
  const std::string by_trust = prefix + "_holders_by_trust";
  head(by_trust, "Holders by how sure the answers about them are.", "gauge");
  for (const States& states : all) {
    for (size_t trust = 0; trust < kTrusts.size(); ++trust)
      AppendGauge(by_trust, states.label + "," + MetricLabel("trust", kTrusts[trust]),
                  std::to_string(states.by_trust[trust]), text);
  }
  const auto family = [&](const char* name, const char* help, const char* type,
                          uint64_t States::* of) {
    head(prefix + name, help, type);
    for (const States& states : all)
      AppendGauge(prefix + name, states.label, std::to_string(states.*of), text);
  };
  family("_holders_masked", "Holders that no answer has: silent for a lease, or not reached.",
         "gauge", &States::masked);
  family("_names_claimed_twice_total", "Hellos refused, since a younger process has the name.",
         "counter", &States::claimed_twice);
  family("_repairs_timed_out_total", "Repairs that did not come in time.", "counter",
         &States::repairs_timed_out);
}

}  // namespace kvatlas
