// What does one try of a route go by? Set when it begins, and the same for all of its stages: another block size, a wait for room
// and another worker for the same request begin new tries.

#ifndef KVATLAS_FRONTEND_ROUTE_ROUTE_REQUEST_H_
#define KVATLAS_FRONTEND_ROUTE_ROUTE_REQUEST_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "frontend/route/fleet.h"
#include "frontend/route/frontend.h"
#include "frontend/route/policy/policy.h"
#include "frontend/route/policy/worker_fit.h"
#include "frontend/route/prepared_prompt.h"
#include "indexer/base/clock.h"

namespace kvatlas {

// Of what is left, the part that one level of hierarchies may use, and a wave of
// leaves when others could follow it.
inline constexpr double kHierarchyShare = 0.4;
inline constexpr double kWaveShare = 0.6;

inline Duration Share(Duration of, double share) {
  return Duration(static_cast<int64_t>(static_cast<double>(of.count()) * share));
}

inline uint64_t Microseconds(Duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

struct RouteRequest {
  std::shared_ptr<FleetState> fleet;
  std::shared_ptr<const RouteInput> input;  // names sorted; the prompt is `prompt`
  std::shared_ptr<const Policy> policy = nullptr;
  std::shared_ptr<const OverloadThresholds> overload = nullptr;
  std::shared_ptr<const std::map<std::string, std::string>> engines = nullptr;  // given ones
  PreparedPrompt::Ptr prompt;
  std::optional<CellWorker> session = {};  // where its last request went
  Time until{0};

  const FrontendOptions& options() const { return fleet->options; }
  const Domain& domain() const { return input->domain; }
  Time Now() const { return fleet->clock->Now(); }
  Duration Left() const { return until - Now(); }
  std::shared_ptr<ModelFleet> Model() const { return fleet->Model(input->domain.model); }
  std::shared_ptr<ModelFleet> KnownModel() const { return fleet->KnownModel(input->domain.model); }
  // A cell's, by its labels.
  double DistanceOf(const Labels* labels) const {
    if (options().zone.empty() || labels == nullptr) return 0;
    const auto zone = labels->find("zone");
    return zone == labels->end() || zone->second == options().zone ? 0 : options().zone_distance;
  }
};

using RequestPtr = std::shared_ptr<const RouteRequest>;

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTE_ROUTE_REQUEST_H_
