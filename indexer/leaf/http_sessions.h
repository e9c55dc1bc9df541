// What of a session is where, and what would its next turn compute? `GET /sessions`, of sessions
// whose prompts frontends told of.
//
//   ?session=ID   of this one alone, as clients named it; without: the latest, at most `max` of a domain (64, at most 1,024)
//
//   [{"session": "9f0c…", "model": "m", "tenant": "", "worker": "w", "rank": 0, "age_ms": 40,
//   "prompts": 3, "tokens": 4096,
//     "at": [{"worker": "w", "rank": 0, "tokens": 4080}], "next_turn_computes": 16}]
//
// *Truth*: `tokens` of `at` are what a worker has at least: one block in some is looked for.
// `next_turn_computes`: at most, at the worker with most, beside what is new. Of ids only hashes
// are kept.
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
