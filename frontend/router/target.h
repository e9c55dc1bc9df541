// Which cells and nodes are worth asking, and in what order? The hierarchy's word on a cell, what
// is remembered of it and what is in flight to it become an expected cost; and the sources that
// cells come from when the hierarchy does not help.
//
// *Truth*: an order in which to ask; never an overlap. *Cost*: one lock of the model's memory a
// list; a cost per cell.

#ifndef KVATLAS_FRONTEND_ROUTER_TARGET_H_
#define KVATLAS_FRONTEND_ROUTER_TARGET_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "frontend/router/lookup_clients.h"
#include "frontend/router/receipt.h"
#include "frontend/router/route_request.h"

namespace kvatlas {

// A cell or node that may be asked.
struct Target {
  CellAsked asked;  // name, address and bounds; the rest once it was asked
  std::vector<std::string> other_addresses = {};
  bool is_node = false;
  double distance = 0;
  uint32_t expected_blocks = 0;  // covered, or sent there so lately that no report shows it
  double cost = 0;               // expected; for the order
  double best_cost = 0;          // if its upper bound were true, and a worker there idle
  bool for_decoders =
      false;  // asked for workers that decode: the first cell that has one is enough

  std::vector<std::string> Addresses() const;
};

// Targets of the cells that have an address, in the order given.
std::vector<Target> TargetsOf(const RouteRequest& request, const std::vector<CellFound>& cells);

// Cheapest first, but the deepest cell is among the first `at_once`, and the session's, if these
// are more than one: its average load says little about the one worker that has the prefix.
void RankTargets(const RouteRequest& request, size_t at_once, std::vector<Target>* targets);

// One rung of the fallbacks: cells of which it is not known what they cover.
struct CellSource {
  Fallback fallback;  // what a choice among their answers is reported as
  std::vector<Target> (*cells)(const RouteRequest& request);
};

// In the order in which they are gone through when no hierarchy helped, and when none is
// configured.
std::span<const CellSource> SourcesAfterHierarchy();
std::span<const CellSource> SourcesWithoutHierarchy();

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_TARGET_H_
