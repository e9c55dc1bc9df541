// Turns the events of one worker into changes of its ranks' holdings, hashed by the contract.
//
//   EngineBatch ─▶ EngineWorker ─┬▶ rank 0: names, namespaces, copies, orphans ─▶ HoldingsWriter (a holder)
//                                └▶ rank 1: …
//
// *Truth*: content is always hashed again from tokens with the contract; the engine's hash is an
// alias that belongs to one worker rank alone. Physical copies are counted per tier with a floor of
// zero: the first store and the last removal are passed on. Blocks inherit the namespace (adapter,
// salt) of their parent: nothing ever matches across namespaces. Main attention (full, MLA, sink)
// is the main class: a block counts when every main group of its rank that announces blocks has it.
// Windows, states and chunks are side classes (`cache_class.h`): their blocks are placed by their
// engine names, which are those of the main blocks that end at the same token, and wait unplaced
// until such a main block comes. Without main attention a window or state stands for it. Blocks
// whose parent is unknown are parked with their tokens and linked when it comes.
// *Threads*: any; a worker's calls are serialised by its own mutex, its writers are called with it
// held.
// *Cost*: per stored block a hash of its tokens, a step of the chain and one table access; about 20
// bytes a held block and rank, longer engine hashes their length more. No allocation per event once
// grown.
// *Bounds*: `EngineWorkerOptions`.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_WORKER_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_WORKER_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/holdings_writer.h"
#include "indexer/base/ids.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

class SglangBlockHashes;

// Makes the writer of a rank that was first named by a registration or by a batch.
using MakeHoldingsWriter =
    std::function<absl::StatusOr<std::shared_ptr<HoldingsWriter>>(uint32_t rank)>;

// The block that a name stands for.
struct KnownBlock {
  SequenceHash block{0};
  Position position = 0;
  std::string lora_name;
  std::string cache_salt;
  uint32_t eagle = 0;  // `Blocking::eagle`
};

struct EngineWorkerOptions {
  std::string name = {};  // for logs
  uint32_t block_size = 16;
  // With a block size of 0: called with the size of the engine's first whole blocks of the main
  // class on the device (without such a class, of its finest), and returns the size that counts
  // from now on. Called by `Learn` with this worker's lock, once; until then nothing is held.
  std::function<uint32_t(uint32_t found)> learn_block_size = {};
  HashContract contract = {};
  // A namespace that every block of this worker is in unless its event says another (registration's
  // lora_name).
  std::string lora_name = {};
  std::string additional_salt = {};
  // For a model that sees images: the token that stands for one, repeated (`PadImages`).
  std::optional<TokenId> image_token = {};
  // For engines that announce what they hold already as if it were stored again (vLLM's
  // `kv_cache_report_mode` "full"): a block is gone with the first removal. With several copies
  // that is too early, never too late.
  bool counts_copies = true;
  // EAGLE and multi-token prediction without look-ahead hashes: attention groups of which the
  // engine matches one block more than it reuses. No value: none; empty: all.
  std::optional<std::vector<uint32_t>> drops_last = {};
  // For chunked local attention: tokens of a chunk, which no event says. 0: unknown; then only
  // prefixes held from their start count.
  uint32_t chunk_tokens = 0;
  // For SGLang's events by component: tokens of its sliding window, which no event says. 0:
  // likewise. An engine with one that says nothing of components is answered by what full attention
  // holds, as degraded.
  uint32_t window_tokens = 0;
  // The model has windows or recurrent states beside full attention, of which the engine's events
  // may not tell (SGLang to 0.5.23). Until they do, answers are what full attention holds, an upper
  // bound, and degraded.
  bool hybrid = false;
  // Tokens that tiers beside the device store and load only together (vLLM's OffloadingConnector,
  // chunks of several blocks): a store there without tokens names such a chunk by its last block.
  // 0: not said; where the events describe their chunks, they tell it.
  uint32_t offload_chunk_tokens = 0;
  // Tiers that blocks leave without a word: while something may be there, the rank is degraded.
  // Where a connector is known to be of that kind, its stores tell it.
  TierMask silent_tiers = {};
  // How much these tiers keep, of a rank, and for how long, where that is known: what was stored
  // there first goes, as if it were removed. 0: not known.
  uint64_t silent_blocks = 0;
  Duration silent_time{0};
  // Blocks of other owners and places (`ownership`, `locality`) are those of a store that it
  // shares: they are in the external tier. Else they are refused.
  bool shares_store = false;
  // Tiers whose blocks are the store's: what leaves them without a word is in doubt there, not
  // here.
  TierMask store_tiers = {};
  // Fills `Stored::local_hashes`.
  bool keep_local_hashes = false;
  size_t orphan_blocks_max = 65536;    // parked, per rank
  size_t orphan_bytes_max = 64 << 20;  // likewise
  // Memory of adapters and salts under which a rank holds blocks: beyond it, blocks under further
  // ones are shed.
  size_t namespace_bytes_max = 64 << 20;
  Duration orphan_ttl = std::chrono::seconds(60);
  // After a loss that nothing repaired, what is not confirmed by then is dropped.
  Duration repair_timeout = std::chrono::seconds(30);
  uint32_t ranks_max = 1024;
  // Asks the domain's other workers (`EngineWorker::Find`) for a hash that came without tokens and
  // that this worker never announced: Mooncake's blocks were computed by other workers. May be
  // empty. Called by `Apply` and `Tick` without this worker's lock; until it answers, such a block
  // is parked.
  std::function<std::optional<KnownBlock>(const EngineBlockHash& hash)> resolve = {};
  // The table of SGLang's names of blocks (`sglang_block_hash.h`); null: no service needs it. It
  // outlives the worker.
  SglangBlockHashes* page_names = nullptr;
  bool is_sglang = false;  // the engine's own names are those
  // While it is full no further block is parked, and no block taken under an adapter or salt that
  // is new; null: no budget.
  const MemoryBudget* memory = nullptr;
};

struct EngineRankStats {
  uint32_t rank = 0;
  uint32_t stream_rank =
      0;  // of the stream that publishes it; of several, of its own or else of the first one
  uint32_t streams = 1;  // that published it; 0: unknown, it was restored
  Trust trust = Trust::kExact;
  std::array<uint64_t, kTiers> blocks = {};  // distinct, by tier
  uint64_t aliases = 0;
  uint64_t side_names = 0;  // of side classes, among the aliases
  uint64_t unjoined = 0;    // of these, without a block of the main class that has their name
  CacheLayout layout;
  uint64_t suspects = 0;     // unconfirmed since a loss
  bool settling = false;     // these are dropped, or will be within `repair_timeout`
  uint64_t parked = 0;       // blocks
  uint64_t alias_bytes = 0;  // memory of names and orphans
  bool eagle = false;        // its hashes look ahead: queries must look under such hashes too
  // Why nothing that it stores is taken, in words; empty: it is. Its trust is degraded meanwhile.
  std::string refused;
};

struct EngineWorkerStats {
  uint64_t batches = 0;
  uint64_t events = 0;
  uint64_t stores = 0;  // events that had an effect, or none since all was known; likewise below
  uint64_t removes = 0;
  uint64_t blocks_stored = 0;  // named in stored events
  uint64_t blocks_removed = 0;
  uint64_t clears = 0;
  uint64_t copies = 0;  // stores of blocks already held in that tier
  uint64_t linked = 0;  // parked blocks whose parent came
  std::array<uint64_t, kRefusals> refused =
      {};                    // by reason: events, or blocks where a part was refused
  std::string last_refusal;  // in words
  std::vector<EngineRankStats> ranks;
};

// One name of one block: what a dump or another replica needs.
struct EngineAlias {
  uint32_t rank = 0;
  uint32_t group = 0;    // attention group
  EngineBlockHash hash;  // views are valid during the visit
  SequenceHash block{0};
  SequenceHash parent =
      kNoParent;  // as the sink has it; `kNoParent` beyond position 0: it cannot tell
  Position position = 0;
  LocalHash local{0};  // likewise; 0 when not kept
  std::array<uint32_t, kTiers> copies = {};
  bool suspect = false;
  // For `Restore`: of the stream that publishes the rank; nothing: unknown, and the losses of all
  // concern it.
  std::optional<uint32_t> stream_rank = {};
  bool lasting = false;  // of a suspect, for `Restore`: only a loss, not time, drops it
  uint32_t eagle = 0;    // `Blocking::eagle`
  // A block of a side class: `block` is its name (`SideName`), 0 while it waits for the main block
  // of its engine name;
  // `position` is counted in blocks of its class, and there is no parent.
  bool side = false;
  std::string_view lora_name = {};  // the namespace of the chain
  std::string_view cache_salt = {};
};

// The state of a rank beside its names: another replica needs it before them.
struct EngineRankMark {
  uint32_t rank = 0;
  std::optional<uint32_t> stream_rank = {};  // as in `EngineAlias`
  bool extras_seen = false;  // salts or multimodal objects: tokens alone prove nothing
  bool zero_named = false;   // some block was named 0, so that a parent of 0 is no root
  bool given_up = false;     // something lost will not come back: degraded until a clear
  // Attention groups that blocks of a tier need.
  std::array<std::vector<uint32_t>, kTiers> required = {};
  // Attention groups of side classes, in the order in which the classes became known.
  std::vector<std::pair<uint32_t, CacheClass>> sides = {};
  bool has_main = true;       // false: some side group stands for the main class, too
  bool side_unknown = false;  // what is known of side classes is not all
  uint32_t chunk_blocks = 0;  // that tiers beside the device load together; 0: not known
  TierMask silent = {};       // tiers that blocks leave without a word
  // Names, by group, that stood for blocks of two namespaces.
  std::vector<std::pair<uint32_t, EngineBlockHash>> ambiguous = {};
  // Side blocks that end inside main blocks: a name that waits for its main block, and the name of
  // the block before it, which gets its place from that.
  struct SideLink {
    uint32_t group = 0;
    EngineBlockHash name;
    EngineBlockHash before;
  };
  std::vector<SideLink> side_links = {};
  // For side blocks that several chains share: a side name beside the one that `EngineAlias` has.
  struct SharedSide {
    uint32_t group = 0;
    EngineBlockHash name;
    SequenceHash side_name{0};
  };
  std::vector<SharedSide> shared_sides = {};
};

class EngineWorker {
 public:
  EngineWorker(EngineWorkerOptions options, MakeHoldingsWriter make_writer);
  ~EngineWorker();

  EngineWorker(const EngineWorker&) = delete;
  EngineWorker& operator=(const EngineWorker&) = delete;

  // The block size, where it is still to be learned. REQUIRES: nothing of its streams was applied.
  void SetBlockSize(uint32_t block_size);

  // Whether the block size is known, now that this batch is here: it may be the first one to tell
  // it. Until it is, batches are to be kept back from `Apply`, which drops them.
  bool Learn(const EngineBatch& batch, Time now);

  // A batch that came on the stream registered for `stream_rank`. Events of a rank that has no
  // writer (`make_writer` failed) are counted as shed.
  void Apply(uint32_t stream_rank, const EngineBatch& batch, Time now);

  // The engine behind that stream started anew: everything of the ranks it published is gone; trust
  // is exact. Ranks that other streams publish too do not know what is gone: as after `Unreadable`.
  void Restarted(uint32_t stream_rank, Time now);

  // Batches of that stream were lost. Blocks held stay, unconfirmed, and the trust of its ranks is
  // degraded; blocks stored from now on are certain. After `repair_timeout` the rest is dropped (in
  // `Tick`, in bounded steps).
  void Lost(uint32_t stream_rank, Time now);

  // Something of that stream came and cannot be read: as `Lost`, but no replay tells more, and
  // nothing repairs it.
  void Unreadable(uint32_t stream_rank, Time now);

  // Everything that this rank holds, from any stream, is in doubt: as `Unreadable`. Nothing when
  // there is no such rank.
  void Doubt(uint32_t rank, Time now);

  // Everything lost was replayed in time: all is as if nothing had happened. Undoes the latest
  // `Lost` alone: an earlier one that still waits stands. REQUIRES: since `Lost` no batch was
  // applied but the replayed ones, in order.
  void Repaired(uint32_t stream_rank);

  // The block that any rank holds under this name; an integer finds a digest that ends in it too.
  std::optional<KnownBlock> Find(const EngineBlockHash& hash) const;

  // Whether any rank holds a block of this adapter and salt.
  bool HoldsNamespace(std::string_view lora_name, std::string_view cache_salt) const;

  // A rank's holdings go away, with its writer.
  void RemoveRank(uint32_t rank);

  // The stream has ended for this process. Ranks that it alone published hold nothing now and are
  // returned, its own too when nothing was ever heard of it; those that others publish too are as
  // after `Unreadable`.
  std::vector<uint32_t> RemoveStream(uint32_t stream_rank, Time now);

  // Time passes: orphans that waited too long, unconfirmed blocks. To be called every second or so.
  void Tick(Time now);

  EngineWorkerStats Stats() const;
  // Tokens behind blocks that their hashes cover: bit k where some rank announces such blocks; 0:
  // none does. Takes no lock: asked with every query.
  uint32_t look_aheads() const;

  // Every name of every rank that stands for a held block, parents not necessarily before children.
  void ForEachAlias(const std::function<void(const EngineAlias&)>& visit) const;
  // Puts back what `ForEachAlias` told, in any order and its tiers at once or one by one, into a
  // worker that is empty. The writer gets it as if it were stored. INVALID_ARGUMENT: contradicts
  // itself; nothing of that entry was taken. `more`: others follow, blocks after their parents
  // where they can, and the writer may get it later, by `Tick` at the latest.
  absl::Status Restore(const EngineAlias& alias, bool more = false);

  // The mark of each rank; a large one in several calls. Views are valid during the visit.
  void ForEachRank(const std::function<void(const EngineRankMark&)>& visit) const;
  // Puts that back, before any name of the rank; without a mark a rank assumes that it has seen
  // salts and objects. INVALID_ARGUMENT; RESOURCE_EXHAUSTED.
  absl::Status RestoreRank(const EngineRankMark& mark);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_WORKER_H_
