// May this node be asked? It is ready once the cells that it waits for have reported, or after
// `ready_after`, and stays ready. A node that starts again knows nothing until then: its answers
// would send prompts to any cell.
//
// The cells are those of the file that an earlier process of this node kept (`Keep`), and as many
// as `cells_expected`. With neither a node is ready at once. A cell has reported when a replica of
// it is connected and caught up with in each domain that the cell reports on, or reported on
// before. One of the file that does not report is waited for after a further start too, if that
// comes within the hour.
//
// *Threads*: `Look` and `Keep` one, `Get` any. *Cost*: of `Look` a lock per holder, until ready; of
// `Keep` the same, to be called now and then.
// *Bounds*: `kCellsKeptMax` cells of all domains in the file; more are not kept.
// *Format*: a line "CELL<tab>MODEL[|TENANT]" each. A file that is damaged counts for what can be
// read.

#ifndef KVATLAS_HIERARCHY_CELLS_GATE_H_
#define KVATLAS_HIERARCHY_CELLS_GATE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/telemetry/health.h"

namespace kvatlas {

inline constexpr size_t kCellsKeptMax = size_t{1} << 16;

struct CellsGateOptions {
  uint32_t cells_expected = 0;  // by name, replicas counting once
  std::string file;             // empty: none
  Duration ready_after = std::chrono::seconds(30);
  const Clock* clock = &Clock::Real();
};

class CellsGate {
 public:
  // Reads the file. What is wrong with it is logged.
  explicit CellsGate(CellsGateOptions options);

  // Looks which cells have reported; logs the missing ones when `ready_after` is over.
  void Look(const HolderRegistry& registry);
  // As of the last `Look`.
  Readiness Get() const;

  // Once ready: writes the file when the cells changed.
  void Keep(const HolderRegistry& registry);

 private:
  std::string Missing(const HolderRegistry& registry);

  const CellsGateOptions options_;
  const Time started_at_;
  std::set<std::string> kept_;     // lines of the file; of the thread that looks
  std::set<std::string> unheard_;  // those of which none was there yet; likewise
  mutable Mutex mutex_;
  Readiness readiness_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_HIERARCHY_CELLS_GATE_H_
