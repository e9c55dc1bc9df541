// What a frontend reports to the leaf of the worker that it chose, and the outcome: the types of
// `PendingBlocks`, for both ends.
//
// *Truth*: a frontend's report, not the engine's: a reason to expect blocks, never a promise of
// them.

#ifndef KVATLAS_INDEXER_BASE_ROUTED_H_
#define KVATLAS_INDEXER_BASE_ROUTED_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// Longer than any prefill should take; a report may say another time, of at most `kRoutedTtlMax`.
inline constexpr Duration kRoutedTtl = std::chrono::seconds(30);
inline constexpr Duration kRoutedTtlMax = std::chrono::minutes(10);

// Blocks of one prompt that are reported; further ones are left out: 32 KiB.
inline constexpr uint32_t kRoutedBlocksMax = 4096;

// As `Routed` has a session; 0: none.
inline uint64_t SessionHash(std::string_view id) { return id.empty() ? 0 : Xxh3(id, 0) | 1; }

// One prompt on its way to a worker rank; or, at a hierarchy node, to a cell, with waypoints for
// blocks.
struct Routed {
  uint64_t decision = 0;  // of the frontend that tells: its own, never used twice
  HolderId worker = {};
  Position first = 0;  // of `blocks`; what is before is there, or on its way by another telling
  std::span<const SequenceHash> blocks =
      {};                           // that the worker is to compute; valid during the call
  SequenceHash parent = kNoParent;  // the block before them
  uint64_t session = 0;             // hash of the session that the prompt belongs to; 0: none
  Duration ttl = kRoutedTtl;        // so long they are expected
};

struct RouteOver {
  uint64_t decision = 0;
  bool failed = false;                         // the worker did not take the request, or gave it up
  std::optional<uint32_t> cached_tokens = {};  // as the engine counted; not sent to other processes
};

// Blocks on their way to a worker.
struct Pending {
  uint32_t depth =
      0;  // leading blocks of the prompt asked for that it has or is about to have; 0: no more than it has
  uint64_t blocks = 0;    // of other frontends' prompts, yet to come
  uint32_t requests = 0;  // and these prompts
  bool session = false;   // the session's last request went there

  friend bool operator==(const Pending&, const Pending&) = default;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_ROUTED_H_
