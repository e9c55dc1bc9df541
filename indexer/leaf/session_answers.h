// What both doors of a leaf say of sessions alike: `GET /sessions` and `kvatlas.v1.Sessions`.

#ifndef KVATLAS_INDEXER_LEAF_SESSION_ANSWERS_H_
#define KVATLAS_INDEXER_LEAF_SESSION_ANSWERS_H_

#include <algorithm>
#include <cstdint>

#include "indexer/registry/holder_registry.h"

namespace kvatlas {

// In one answer.
inline constexpr uint32_t kSessionsByDefault = 64;
inline constexpr uint32_t kSessionsMax = 1024;

// Tokens of the last prompt beyond the deepest worker, which is the first of `at`. Clamped, since a
// worker may have been found with more blocks than the last prompt has: earlier prompts of the
// session count in `at` too.
inline uint64_t NextTurnComputes(const SessionAnswer& session) {
  const uint32_t deepest = session.at.empty() ? 0 : session.at.front().blocks;
  return uint64_t{session.block_size} * (session.blocks - std::min(deepest, session.blocks));
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_SESSION_ANSWERS_H_
