// The input of one try of a route, set when it begins and the same for all of its stages: another
// block size, a wait for room and another worker for the same request begin new tries.

#ifndef KVATLAS_FRONTEND_ROUTER_ROUTE_REQUEST_H_
#define KVATLAS_FRONTEND_ROUTER_ROUTE_REQUEST_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "frontend/router/fleet.h"
#include "frontend/router/fleet_memory.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/policy/policy.h"
#include "frontend/router/policy/worker_fit.h"
#include "frontend/router/prepared_prompt.h"
#include "frontend/router/readings.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"

namespace kvatlas {

// The shares of the time that is left which one level of hierarchies may use, and a wave of leaves
// when others could follow it.
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
  Readings::Ptr readings = nullptr;        // of which `prompt` is the first; null: there is one
  std::optional<CellWorker> session = {};  // where its last request went
  Time until{0};

  const FrontendOptions& options() const { return fleet->options; }
  const Domain& domain() const { return input->domain; }
  Time Now() const { return fleet->clock->Now(); }
  Duration Left() const { return until - Now(); }
  std::shared_ptr<ModelFleet> Model() const { return fleet->Model(input->domain.model); }
  std::shared_ptr<ModelFleet> KnownModel() const { return fleet->KnownModel(input->domain.model); }
  // Where engines read the prompt differently, each worker goes by its own reading.
  size_t readings_count() const { return readings == nullptr ? 1 : readings->size(); }
  const PreparedPrompt& PromptOf(size_t reading) const {
    return readings == nullptr ? *prompt : *readings->prompt(reading);
  }
  size_t ReadingOf(const Labels* labels, const HolderId& worker) const {
    return readings == nullptr ? 0 : readings->OfWorker(labels, worker);
  }
  // Also of a reading that is not known.
  uint32_t BlocksOf(size_t reading) const {
    return readings == nullptr ? prompt->blocks() : readings->blocks(reading);
  }
  const PreparedPrompt& Shortest() const {
    return readings == nullptr ? *prompt : readings->shortest();
  }
  const std::string& NameOf(size_t reading) const {
    return readings == nullptr ? input->reading : readings->name(reading);
  }
  // Where the reading that was sent deepest went: the head that readings have in common belongs to
  // all of them.
  SentTo LastSent(const FleetMemory& memory) const {
    SentTo sent = memory.LastSentTo(domain(), prompt->waypoints(), Now());
    for (size_t reading = 1; reading < readings_count(); ++reading) {
      SentTo other = memory.LastSentTo(domain(), PromptOf(reading).waypoints(), Now());
      if (other.waypoints <= sent.waypoints) continue;
      sent = std::move(other);
      sent.reading = reading;
    }
    return sent;
  }
  void FindOverlaps(const std::string& leaf_address, Duration deadline,
                    OverlapFinder::Callback callback) const {
    const OverlapQuestion question = {.domain = &domain(),
                                      .sequence = prompt->reusable(),
                                      .trace = input->trace,
                                      .session = SessionHash(input->session_id),
                                      .frontend = fleet->Asker()};
    if (readings == nullptr)
      return fleet->overlap_finder->FindOverlaps(leaf_address, question, deadline,
                                                 std::move(callback));
    Readings::FindOverlaps(readings, fleet->overlap_finder, leaf_address, question, deadline,
                           std::move(callback));
  }

  // A cell's, by its labels.
  double DistanceOf(const Labels* labels) const {
    if (options().zone.empty() || labels == nullptr) return 0;
    const auto zone = labels->find("zone");
    return zone == labels->end() || zone->second == options().zone ? 0 : options().zone_distance;
  }
};

using RequestPtr = std::shared_ptr<const RouteRequest>;

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_ROUTE_REQUEST_H_
