// The changes that an engine's own batch of events makes, for engines that hand over their KV
// events as they are (vLLM's and SGLang's `EventPublisher`): the msgpack of a batch goes in,
// changes of a set of (tier, block) come out.
//
//   payload ─▶ EngineDecoder ─▶ EngineWorker (copies, groups, namespaces, tiers) ─▶ Contents::Take ─▶ changes
//
// *Truth*: what the leaf's ingest of raw streams makes of the same bytes
// (`indexer/kv_events/README.md`), so every form and every rule is the same whether an engine is
// listened to or embeds the publisher. Ranks named in a batch are not looked at: a publisher is one
// rank.
// *Pairs*: an engine whose hashes look ahead by a token (EAGLE's bigrams) holds blocks under
// look-ahead hashes. A leaf that listens to the engine itself knows, and looks under both; one that
// is told hashes does not: its clients have to ask for look-ahead hashes (`Tokens.eagle`), else
// finds nothing. Said in the log, once, and in `look_ahead`.
// *Hybrid models*: blocks of side classes (`cache_class.h`) are told as events with `side`, their
// classes by `Contents::SetLayout`. Where these cannot be known, `degraded` says so.
// *Threads*: none; the caller serialises.
// *Bounds*: the decoder's and the worker's. A batch that cannot be read may have removed something:
// what is held is then unconfirmed, and dropped after 30 s unless it is stored anew. What it stored
// is missing until a clear; so long `degraded` says so, and a leaf with every answer about this
// rank.

#ifndef KVATLAS_PUBLISHER_ENGINE_BATCHES_H_
#define KVATLAS_PUBLISHER_ENGINE_BATCHES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "publisher/resident_blocks.h"

namespace kvatlas {

struct EngineBatchesOptions {
  std::string name;  // for logs
  uint32_t block_size = 16;
  HashContract contract = {};
  // For batches that name none.
  std::string lora_name = {};
  std::string cache_salt = {};
  // As in `EngineWorkerOptions`: what no event says of the cache's classes.
  std::optional<std::vector<uint32_t>> drops_last = {};
  uint32_t chunk_tokens = 0;
  uint32_t window_tokens = 0;
  bool hybrid = false;
};

struct EngineBatchesStats {
  uint64_t batches = 0;
  uint64_t unreadable = 0;  // batches, or events of them
  uint64_t blocks_stored = 0;
  uint64_t blocks_removed = 0;
  uint64_t clears = 0;
  // Without effect by rule (`Refusal` in `engine_event.h`): events, or blocks where a part was
  // refused. Groups that are not main attention, whose events are no mistake, are not among them.
  uint64_t refused = 0;
  std::string last_refusal;  // in words
  uint64_t parked = 0;       // blocks that wait for their parent
  bool look_ahead = false;   // some hashes look ahead: see *Pairs*
};

class EngineBatches {
 public:
  // `contents` outlives it.
  EngineBatches(const EngineBatchesOptions& options, Contents* contents);
  ~EngineBatches();

  // Appends what the batch changes of `contents` to `changes`. INVALID_ARGUMENT,
  // RESOURCE_EXHAUSTED: it could not be read.
  absl::Status Apply(std::string_view payload, Time now, std::vector<Event>* changes);

  // Nothing is left, as if the engine had started anew.
  void Clear(Time now, std::vector<Event>* changes);

  // To be called every second or so: orphans that waited too long, blocks that stayed unconfirmed.
  void Tick(Time now, std::vector<Event>* changes);

  // True: it is not certain that what is held is complete and right.
  bool degraded() const;

  EngineBatchesStats Stats() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_ENGINE_BATCHES_H_
