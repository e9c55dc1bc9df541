// Which cells are asked for workers that decode what others prefill?
//
// Workers that prefill and workers that decode may be in different cells, and coverage says nothing
// of a decoder: it is worth having without any block of the prompt. So cells that decode are looked
// for on their own, as long as a worker that only prefills could be chosen and no decoder has
// answered:
//
//   1. `AddDecoders`      the best cell that is known to decode, in the same wave as cells that are known not to; now and then
//                         beside it cells of which it is not known, so that new ones are found
//   2. `TakeForDecoders`  after that wave: the others that are known to; then those of which it is
//     not known, several at once, and
//                         nodes when there are no such cells; not while a worker that does both was found
//   3. the route          the hierarchy had named its best cells alone: now all of them
//   4. `Choose`           no decoder that stands well answered: remembered ones, by their last known loads
//
// The first cell with a decoder is enough.

#ifndef KVATLAS_FRONTEND_ROUTER_DECODER_SEARCH_H_
#define KVATLAS_FRONTEND_ROUTER_DECODER_SEARCH_H_

#include <vector>

#include "frontend/router/candidates.h"
#include "frontend/router/cell_search.h"
#include "frontend/router/route_request.h"
#include "frontend/router/target.h"

namespace kvatlas {

void AddDecoders(const RouteRequest& request, const Answers& answers, CellSearch* search,
                 std::vector<Target>* leaves);

// Leaves, or nodes; empty: there are none left, or no time.
std::vector<Target> TakeForDecoders(const RouteRequest& request, const Answers& answers,
                                    CellSearch* search);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_DECODER_SEARCH_H_
