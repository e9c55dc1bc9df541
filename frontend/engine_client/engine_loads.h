// The load that engines report at their own /metrics, where their events carry none; for the
// engines that --engines names.
//
//   FindOverlaps ─▶ answer, a worker without load ─▶ Of(worker) ─▶ its engine is polled for a minute from now on
//
// *Truth*: as the engine said it at most three polls ago; older is unknown. Names of metrics: those
// of vLLM and SGLang (`engine_probe.h`). A leaf's word on a worker's load comes first.
// *Threads*: any; one of its own polls, all engines at once. *Cost*: one short request per engine
// and `every`, while its load is wanted.
// *Bounds*: engines within `EngineCallOptions::reach` alone; an answer of `kMetricsBytesMax` within
// `timeout`.
// *Lifetime*: the destructor cuts what is under way. A finder that fills answers in holds it and
// outlives the calls of the one below.
//
// Example:
//   EngineLoads loads({.engines = {{"w0", "http://10.0.0.7:8000"}}});
//   EngineLoadFinder finder(&overlap_finder, &loads);

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_LOADS_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_LOADS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontend/engine_client/engine_call.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

inline constexpr size_t kMetricsBytesMax = 8 << 20;
inline constexpr Duration kLoadWantedFor = std::chrono::minutes(1);

struct EngineLoadsOptions {
  std::map<std::string, std::string> engines = {};  // urls by worker name
  Duration every = std::chrono::seconds(1);         // 0: nothing is polled
  Duration timeout = std::chrono::seconds(1);
  EngineCallOptions call = {};
};

struct EngineLoadState {
  std::string worker;
  std::string url;
  std::string state;  // "unwanted", "waiting", "known", "failing"
  std::string reason = {};
  Duration age{0};                      // of `loads`
  std::map<uint32_t, Load> loads = {};  // by rank
};

class EngineLoads {
 public:
  explicit EngineLoads(EngineLoadsOptions options, const Clock* clock = &Clock::Real());
  ~EngineLoads();

  EngineLoads(const EngineLoads&) = delete;
  EngineLoads& operator=(const EngineLoads&) = delete;

  void SetEngines(const std::map<std::string, std::string>& engines);
  // Nothing: not known, or not yet. It is asked for from now on.
  std::optional<Load> Of(const HolderId& worker);
  std::vector<EngineLoadState> States() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

// Fills in the loads that leaves do not say.
class EngineLoadFinder : public OverlapFinderInFront {
 public:
  EngineLoadFinder(OverlapFinder* finder, EngineLoads* loads)
      : OverlapFinderInFront(finder), loads_(loads) {}

  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;

 private:
  EngineLoads* const loads_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_LOADS_H_
