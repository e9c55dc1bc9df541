// Which cells may hold this prompt? The question to hierarchy nodes: the top of the hierarchy,
// whole or in shards, and the nodes below it.
//
//   AskTop     the one or two shards that have the prompt's waypoints, their answers as one; none of them answers: the others,
//              which know the shallow waypoints
//   AskNodes   several nodes at once, each for itself
//
// Replicas of a shard or a node are asked as `FirstAnswer` does. Answers are remembered in the
// model's memory.
// *Threads*: `done` is called once, in the thread of the answer that completes the question; maybe
// before the call returns.

#ifndef KVATLAS_FRONTEND_ROUTER_CELL_QUESTION_H_
#define KVATLAS_FRONTEND_ROUTER_CELL_QUESTION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "frontend/router/first_answer.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/route_request.h"
#include "frontend/router/target.h"

namespace kvatlas {

using CellsOutcome = FirstAnswer<CellsAnswer>::Outcome;

struct TopAnswer {
  std::optional<CellsAnswer> answer = {};  // nothing: no node of the top level answered
  std::vector<CellsOutcome> failures = {};
  uint64_t us = 0;
};

// At most `best` cells; 0: all. REQUIRES: the hierarchy map is not empty.
void AskTop(const RequestPtr& request, uint32_t best, Duration budget,
            std::function<void(TopAnswer)> done);

// In the order of `nodes`.
void AskNodes(const RequestPtr& request, const std::vector<Target>& nodes, uint32_t best,
              Duration budget, std::function<void(std::vector<CellsOutcome>)> done);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_CELL_QUESTION_H_
