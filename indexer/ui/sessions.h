// The page's question what of sessions is where, and its answer, from any source.
//
// *Format* of GET /ui/sessions.json, ?session=ID of one alone, as clients name it:
//   {"cells_asked":2, "cells":4, "failed":["cell b: late"],
//    "sessions":[{"session":"9f0c…","model":"m","tenant":"","cell":"a","worker":"w0","rank":0,"age_ms":40,"prompts":3,
//                 "tokens":4096,"at":[{"worker":"w0","rank":0,"tokens":4080}],"next_turn_computes":16}]}
// `session` is a hash. The latest comes first; there are at most `kSessionsShown`.

#ifndef KVATLAS_INDEXER_UI_SESSIONS_H_
#define KVATLAS_INDEXER_UI_SESSIONS_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "indexer/net/http_server.h"
#include "proto/kvatlas/v1/sessions.pb.h"

namespace kvatlas {

inline constexpr size_t kSessionsShown = 64;

v1::FindSessionsRequest SessionsQuestion(const HttpRequest& request);

struct SessionsAnswer {
  std::vector<std::pair<std::string, v1::FindSessionsResponse>> cells;  // by cell
  size_t cells_known = 1;
  size_t cells_asked = 1;
  std::vector<std::string> failed;  // which, and why
};

std::string SessionsJson(const SessionsAnswer& answer);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_UI_SESSIONS_H_
