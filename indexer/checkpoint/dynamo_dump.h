// The `/dump` of Dynamo's indexer, written and read: what every engine holds.
//
//   {"<model>:<group>": {"block_size": 16,
//      "events": [{"worker_id":1,"storage_tier":"device","residency_domain":"worker",
//                  "event":{"event_id":0,"data":{"stored":{"parent_hash":null,"start_position":null,
//                    "blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}]}},"dp_rank":0}}],
//      "kvatlas": {"events": [ … ]}}}
//
// *Format*: `events` is what Dynamo's indexer can load: parents before children, device chains from
// the root, then the lower tiers block by block. `block_hash` is the name that this very worker has
// for the block, of a digest its value. What that form cannot say is under "kvatlas", a key that
// Dynamo ignores, in events of the same form with more keys: blocks behind a hole
// ("start_position", "parent_sequence_hash"), second names, workers whose names are no numbers
// ("worker_id" is a text); and with each event "lora_name", "cache_salt" and "eagle", with each
// block "digest" (hexadecimal), "sequence_hash", "group" and "copies", where there is something to
// say. A domain's key is split at its last ':', so that models may have colons; a group that has
// one is said in full ("model", "routing_group" beside "block_size").
// *Truth*: each worker is a consistent cut, of ranks fed by engines' own streams. Without local
// hashes (`EngineWorkerOptions::keep_local_hashes`) a dump has no blocks in Dynamo's form. It has
// no stream positions, so what a reader restores is unconfirmed.
// *Bounds*: a writer keeps one worker's names in memory, about 90 bytes a block, and 24 bytes for
// each block of a domain that goes under "kvatlas", and makes pieces of about 64 KiB, one event at
// least; a reader keeps those of all, about 40 bytes a block, and `DumpReadOptions`. Neither holds
// the text. A reader takes keys, texts and numbers of at most 1 MiB, names of domains as
// registrations may have them, events of 131,072 blocks and 65,536 worker ranks a domain.

#ifndef KVATLAS_INDEXER_CHECKPOINT_DYNAMO_DUMP_H_
#define KVATLAS_INDEXER_CHECKPOINT_DYNAMO_DUMP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/engine_worker.h"

namespace kvatlas {

// Appends the next piece of a text; false: what was appended was the last. (An HTTP server's
// `HttpBodySource`.)
using TextSource = std::function<bool(std::string* piece)>;

// The dump, worker by worker. One call at a time. The directory outlives it.
TextSource DumpSource(const EngineDirectory* directory);

// Gives the next piece of a text, at most `size` bytes; 0 at its end.
using ReadChunk = std::function<absl::StatusOr<size_t>(char* to, size_t size)>;

struct DumpReadOptions {
  HashContract contract;
  uint64_t blocks_max = 1ull << 28;
  // Memory of events that wait for their parent or their domain's block size.
  uint64_t waiting_bytes_max = 64 << 20;
};

struct DumpReadStats {
  uint64_t domains = 0;
  uint64_t failed_domains = 0;  // "error" in place of events
  uint64_t blocks = 0;
  uint64_t skipped_events = 0;   // not a store, or not of this form
  uint64_t orphaned_blocks = 0;  // whose parent never came
};

// Receives what is read, block by block.
class DumpVisitor {
 public:
  virtual ~DumpVisitor() = default;
  // Anything but OK ends the reading with it.
  virtual absl::Status OnDomain(const Domain& domain, uint32_t block_size) = 0;
  virtual absl::Status OnBlock(const Domain& domain, const std::string& instance,
                               const EngineAlias& alias) = 0;
};

// INVALID_ARGUMENT: not a dump (what was told until then was told). RESOURCE_EXHAUSTED: over a
// bound. In any order of keys and events; unknown keys have no effect.
absl::StatusOr<DumpReadStats> ReadDump(const DumpReadOptions& options, const ReadChunk& read,
                                       DumpVisitor* visitor);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_DYNAMO_DUMP_H_
