// `GET /sessions`: which workers have the prompts of a session, and what its next turn would
// compute. Sessions are known from the prompts that frontends told of.
//
//   ?session=ID   of this one alone, as clients named it; without: the latest, at most `max` of a domain (64, at most 1,024)
//
//   [{"session": "9f0c…", "model": "m", "tenant": "", "worker": "w", "rank": 0, "age_ms": 40,
//   "prompts": 3, "tokens": 4096,
//     "at": [{"worker": "w", "rank": 0, "tokens": 4080}], "next_turn_computes": 16}]
//
// *Truth*: `tokens` of `at` are a lower bound: only some of a prompt's blocks are looked up.
// `next_turn_computes` is an upper bound, at the worker with most, without the new turn's own
// tokens. Session ids are kept as hashes alone.
// *Threads*: any.

#ifndef KVATLAS_INDEXER_LEAF_HTTP_SESSIONS_H_
#define KVATLAS_INDEXER_LEAF_HTTP_SESSIONS_H_

#include "indexer/process/admin_http.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

// REQUIRES: `http` has not started. `registry` outlives it.
void AddSessionsHttp(const HolderRegistry* registry, AdminHttp* http);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_HTTP_SESSIONS_H_
