// Are the engines of avoided workers still away? A suspicion passes (`outlier_ejection.h`), and the
// next request for a dead engine's prefix would find out for itself; a leaf whose events come
// another way may believe in that engine for long. So engines are called while their workers are
// avoided, and those that take no connection stay so.
//
//   Frontend::Avoid ─▶ OnSuspect ─▶ GET /health to each suspect's engine, every `every` ─▶ no connection ─▶ KeepAvoiding
//                                                                                     └▶ a connection ─▶ the suspicion passes in its time
//
// *Truth*: only what shows that nothing was reached keeps a suspicion; whatever an engine answers,
// it is there.
// *Threads*: one of its own, which sleeps while no worker is suspected. *Cost*: a connection per
// engine and `every`.
// *Bounds*: engines within `EngineCallOptions::reach` alone; `kSuspectsProbedMax` at once.
// *Lifetime*: within the frontend's.

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_SUSPECT_PROBE_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_SUSPECT_PROBE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "frontend/engine_client/engine_call.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"

namespace kvatlas {

inline constexpr size_t kSuspectsProbedMax = 256;

struct SuspectProbeOptions {
  Duration every = std::chrono::milliseconds(500);
  Duration timeout = std::chrono::seconds(1);  // of a connection, and of an answer
  EngineReach reach = {};
};

class SuspectProbe {
 public:
  SuspectProbe(const SuspectProbeOptions& options, Frontend* frontend);
  ~SuspectProbe();

  SuspectProbe(const SuspectProbe&) = delete;
  SuspectProbe& operator=(const SuspectProbe&) = delete;

  // Calls that ended.
  uint64_t probes() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_SUSPECT_PROBE_H_
