// The library inside an engine that tells leaves which blocks the engine has: calls that cost the
// engine's thread next to nothing, and a thread of its own that does the rest.
//
//   engine's thread             publisher's thread
//     Stored ┐                    hash, count copies,      ┌─▶ leaf, replica 0
//     Removed├─▶ bounded queue ─▶ resident set, batches ───┤
//     SetLoad┘                      │                      └─▶ leaf, replica 1
//                                  the calls as they are ───▶ ZeroMQ, for consumers that are not ours
//
// *Truth*: what the leaves are told is the engine's contents, as a set of (tier, block): physical
// copies of a block are counted here with a floor of zero, the first store and the last removal are
// passed on. The resident set is complete whatever happens to connections, so a leaf that was away,
// restarted or lost something is brought up to date by replay or by a snapshot. Nothing that the
// engine said is ever dropped for lack of room.
// *Threads*: any thread may call everything but `Stop`; events take effect in the order of the
// calls.
// *Cost*: for the engine's thread a short lock and a copy of the arguments into a buffer that is
// reused; no allocation once the buffer has grown, no hashing, no system call but a wake-up after
// 100 ms without any call. Memory: 2 MiB, and about 150 bytes a held block.
// *Bounds*: at most `queue_bytes_max` wait for the publisher's thread. Beyond, the engine's thread
// works off as much as it adds before it goes on (`PublisherStats::inline_records`): it pays for
// its own work, waits at most for one slice of the other's, and nothing is lost. Each replica's
// unacknowledged batches are bounded by `SenderOptions::window_batches`; beyond, the replica is
// owed a snapshot. A replica that is found while the engine runs is owed one from the start; one
// that is no longer found is dropped, and comes back as a new one.
// *Lifetime*: the engine owns it; the destructor stops it without a goodbye, so that a restart
// within the lease goes unnoticed by queries.
//
// Example (`example_engine.cc` has all of it):
//   absl::StatusOr<std::unique_ptr<Publisher>> publisher = Publisher::Create(
//       {.leaves = {"127.0.0.1:7410"}, .worker = "worker-3", .domain = {"llama-70b", ""},
//       .block_size = 16});
//   (*publisher)->Stored(Tier::kDevice, {7001, 7002}, /*parent=*/std::nullopt, tokens);   // 32 tokens
//   (*publisher)->Removed(Tier::kDevice, {7002});

#ifndef KVATLAS_PUBLISHER_PUBLISHER_H_
#define KVATLAS_PUBLISHER_PUBLISHER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/stream/link.h"
#include "indexer/stream/sender.h"
#include "publisher/zmq_publisher.h"

namespace kvatlas {

// The engine's name of a block: opaque, compared, never computed.
using EngineHash = uint64_t;

// A group of layers of a hybrid model whose blocks the engine stores and evicts by themselves.
struct EngineGroup {
  uint32_t number = 0;  // the engine's own
  CacheKind kind = CacheKind::kFull;
  uint32_t block_size = 0;  // tokens; 0: the domain's
  uint32_t window_tokens =
      0;  // of a sliding window, the next token counted in, as vLLM counts; else 0
};

// Through Redis instead of, or beside, gRPC: a log that every replica of the leaf reads.
struct RedisPublisherOptions {
  std::string url = {};   // as in `redis_url.h`; empty: none
  std::string cell = {};  // the leaf's; empty: `PublisherOptions::cell`
  uint32_t shards = 1;    // the same for all processes of the cell
};

// PEM files for TLS to the leaves, watched while the publisher runs. `ca` checks the leaves'
// certificates; a certificate of identity worker/CELL/NAME with its key, where leaves have a
// policy.
struct PublisherTls {
  std::string certificate = {};
  std::string key = {};  // of mode 0640 or less
  std::string ca = {};   // empty: no TLS
};

struct PublisherOptions {
  // HOST:PORT of every replica of the cell's leaf, or where they are found, now and whenever they
  // come and go: dns:HOST:PORT, redis://HOST:PORT (`found_leaves.h`). Empty: events are kept and no
  // leaf is told.
  std::vector<std::string> leaves = {};
  std::string cell = {};                          // its leaves are found by leases in Redis
  Duration find_every = std::chrono::seconds(1);  // looks at Redis; DNS names take five times that
  PublisherTls tls = {};
  RedisPublisherOptions redis = {};
  // Names and labels are UTF-8 of at most 256 bytes; only worker and model must not be empty.
  std::string worker = {};
  uint32_t dp_rank = 0;  // data-parallel rank of this engine in the worker
  Domain domain = {};
  uint32_t block_size = 16;  // tokens
  HashContract contract = {};
  // For calls that name no namespace.
  std::string lora_name = {};
  std::string cache_salt = {};
  std::vector<std::pair<std::string, std::string>> labels = {};  // at most 32, e.g. {"zone", "a"}
  // For `Publish` and hybrid models, facts that no event has (`EngineWorkerOptions` in
  // `engine_worker.h`): the attention groups of which a speculating engine matches one block more
  // than it reuses (no value: none; empty: all); the tokens of a chunk of chunked local attention;
  // those of SGLang's sliding window.
  std::optional<std::vector<uint32_t>> drops_last = {};
  uint32_t chunk_tokens = 0;
  uint32_t window_tokens = 0;
  bool hybrid = false;  // `EngineWorkerOptions::hybrid`

  // A batch is sent when so many blocks wait, or when the oldest event is so old; the thread looks
  // every 2 ms, or as often as `batch_age` says. Under load batches grow.
  size_t batch_blocks = 64;
  Duration batch_age = std::chrono::milliseconds(2);
  // Waiting for the publisher's thread: arguments as they were given and 32 bytes a call.
  size_t queue_bytes_max = 32 << 20;
  SenderOptions sender = {};
  // The same calls as vLLM's KV events (`zmq_publisher.h`), when it has an endpoint. Calls by the
  // contract's hashes cannot be told there; a call that this library drops (`invalid_calls` aside)
  // is told all the same.
  ZmqPublisherOptions zmq = {};

  // Makes the link to a leaf; gRPC when empty. The link may be started and stopped from other
  // threads.
  std::function<std::unique_ptr<SenderLink>(const std::string& address)> make_link = {};
  const Clock* clock = &Clock::Real();
};

struct ReplicaStats {
  std::string address;
  bool connected = false;
  bool welcomed = false;
  bool at_rest = false;  // everything told so far is acknowledged
  BatchNumber last_number = 0;
  BatchNumber acknowledged = 0;
  uint64_t bytes_sent = 0;  // serialized; 0 for links that `make_link` made
  SenderStats sender;
  // Not OK: it is not told, and why. UNAVAILABLE: it is not reached. INVALID_ARGUMENT: it refuses
  // for good. Else it refuses, and is tried again; FAILED_PRECONDITION: after something is mended,
  // such as two publishers of one name. OK and not `welcomed`: it is being connected.
  absl::Status status;
};

struct PublisherStats {
  // Blocks named by the engine, as far as the publisher's thread has come.
  uint64_t blocks_stored = 0;
  uint64_t blocks_removed = 0;
  uint64_t clears = 0;
  // The blocks of those that changed the set of (tier, block) and went to the leaves; the rest were
  // copies, or unknown.
  uint64_t blocks_stored_passed = 0;
  uint64_t blocks_removed_passed = 0;
  uint64_t batches = 0;      // sent, by the replica that was sent most
  uint64_t blocks_held = 0;  // distinct
  // Dropped, since only a bug of the engine can cause it; `last_error` says what.
  uint64_t unknown_parents = 0;  // blocks stored after one that is not held: they cannot be hashed
  uint64_t unknown_removed = 0;  // blocks removed that were not held
  uint64_t renamed = 0;          // engine hashes in use that were given to other tokens
  uint64_t invalid_calls = 0;    // arguments that contradict each other, or are over a bound
  // By `Publish`: batches; batches that could not be read; events or blocks without effect by the
  // rules of `indexer/kv_events`; blocks that wait for a parent.
  uint64_t engine_batches = 0;
  uint64_t engine_unreadable = 0;
  uint64_t engine_refused = 0;
  uint64_t engine_parked = 0;
  // The latest error: why a call was refused or something that the engine said was dropped; or,
  // while it lasts, why a replica is not told: "leaf 10.0.0.1:7410: Connection refused".
  absl::Status last_error;

  uint64_t inline_records =
      0;                     // calls worked off by the engine's thread because the queue was full
  uint64_t queue_bytes = 0;  // waiting now
  std::vector<ReplicaStats> replicas;
  std::optional<ZmqPublisherStats> zmq;
};

class Publisher {
 public:
  // INVALID_ARGUMENT: an option is out of range, or a name is not UTF-8. UNAVAILABLE: a ZeroMQ
  // endpoint cannot be bound. Leaves need not be reachable.
  static absl::StatusOr<std::unique_ptr<Publisher>> Create(PublisherOptions options);
  ~Publisher();

  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // The calls below return false, counted in `invalid_calls`, when their arguments contradict each
  // other, are over a bound, or the engine spoke in another way before (`Publish`); then nothing
  // happened, and `PublisherStats::last_error` says why with the counts that were expected and
  // given.

  // A run of consecutive blocks is now in `tier`, after `parent` (nothing: at the sequence's
  // start). REQUIRES: tokens.size() == blocks.size() * block_size. Without any tokens the blocks
  // are ones already held in another tier, in any order, and `parent` is ignored.
  bool Stored(Tier tier, std::span<const EngineHash> blocks, std::optional<EngineHash> parent,
              std::span<const TokenId> tokens);
  bool Stored(Tier tier, std::span<const EngineHash> blocks, std::optional<EngineHash> parent,
              std::span<const TokenId> tokens, const CacheNamespace& cache_namespace);
  // One copy less of each block.
  bool Removed(Tier tier, std::span<const EngineHash> blocks);

  // The same for engines that have the contract's hashes; `parent` is `kNoParent` at position 0.
  // Blocks stored with these are removed with these.
  bool StoredHashed(Tier tier, Position position, SequenceHash parent,
                    std::span<const SequenceHash> blocks);
  bool RemovedHashed(Tier tier, std::span<const SequenceHash> blocks);

  // For hybrid models (`cache_class.h`): the classes of the engine's cache, before the first block
  // of a side class. Later ones may add classes behind those of before, and change `drops_last`;
  // else the call is refused.
  bool SetLayout(const CacheLayout& layout);
  // Blocks of the class `layout.sides[side - 1]`: of each the main block that ends at the same
  // token, by its hash, whether that is held or not. REQUIRES: the class's block size is a multiple
  // of the domain's. `position` and parents are not needed, and copies are counted as those of main
  // blocks.
  bool StoredSideHashed(SideClass side, Tier tier, std::span<const SequenceHash> blocks);
  bool RemovedSideHashed(SideClass side, Tier tier, std::span<const SequenceHash> blocks);

  // For hybrid models whose blocks have names of the engine's own: the blocks of one group, those
  // with full attention included, which are calls of this kind, too. By the rules of `Publish`,
  // which these calls are in other words: blocks of other groups are joined by name to those with
  // full attention, whichever come first; what a chunk's tokens are, and which groups drop their
  // last block, is in the options. Everything the engine says is said by these, by `Publish` and by
  // `Cleared()`. REQUIRES: tokens.size() == blocks.size() * the group's block size. The very first
  // call is of a group with full attention, where there is one: until then the model counts as one
  // without. Where the options have an adapter or a salt, `cache_namespace` has one too: such
  // blocks cannot go without.
  bool StoredInGroup(const EngineGroup& group, Tier tier, std::span<const EngineHash> blocks,
                     std::optional<EngineHash> parent, std::span<const TokenId> tokens);
  bool StoredInGroup(const EngineGroup& group, Tier tier, std::span<const EngineHash> blocks,
                     std::optional<EngineHash> parent, std::span<const TokenId> tokens,
                     const CacheNamespace& cache_namespace);
  // REQUIRES: blocks of the group were stored before.
  bool RemovedInGroup(uint32_t group, Tier tier, std::span<const EngineHash> blocks);

  // Nothing is left in these tiers, of any class, however many copies there were.
  bool Cleared(TierMask tiers = TierMask::All());

  // One batch of events in the engine's own words: the msgpack that vLLM's and SGLang's publishers
  // would send, in any of their forms. It is read by the rules of the leaf's own ingest
  // (`indexer/kv_events`): attention groups, adapters, salts, objects, hashes of bytes, copies.
  // REQUIRES: an engine speaks this way (or by groups) or by the other calls, not both;
  // `Cleared()` of all tiers, loads and the rest go with either.
  bool Publish(std::string_view engine_batch);

  // The latest one travels with the next batch. REQUIRES: `tokens_per_s` is a number from 0.
  bool SetLoad(const Load& load);

  // Braces instead of a span: Stored(tier, {7001, 7002}, parent, tokens).
  bool Stored(Tier tier, std::initializer_list<EngineHash> blocks, std::optional<EngineHash> parent,
              std::span<const TokenId> tokens) {
    return Stored(tier, std::span(blocks.begin(), blocks.size()), parent, tokens);
  }
  bool Removed(Tier tier, std::initializer_list<EngineHash> blocks) {
    return Removed(tier, std::span(blocks.begin(), blocks.size()));
  }

  // Sends what waits at once, without waiting for `batch_age`. Does not block.
  void Flush();

  // Blocks until everything said before is acknowledged by every replica that is connected, and by
  // at least one (by none, when there are no leaves and none are looked for). False: the time ran
  // out.
  bool WaitAcknowledged(Duration timeout);

  PublisherStats Stats() const;

  // For interfaces of other languages: a call was refused before it came here. False.
  bool RefuseCall(const absl::Status& why);

  // Works off the queue, sends what is due for at most `flush_for` and ends. With `goodbye` the
  // leaves forget the worker at once. Idempotent; events after it are ignored.
  void Stop(bool goodbye, Duration flush_for = std::chrono::seconds(1));

 private:
  struct Impl;
  explicit Publisher(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_PUBLISHER_H_
