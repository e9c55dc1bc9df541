// The holders of this process and what each holds. Streams of many senders come in, one index per
// domain is kept from them under leases, and questions are answered.
//
//   connection ─▶ session ─▶ StreamReceiver (one per holder and domain) ─▶ Index (one per domain)
//                                                                             │ changes
//   query ─▶ FindOverlaps ─▶ Index ─▶ holders' trust, age, load               ▼
//                                                                          DomainObserver
//
// *Place*: a leaf has one with worker ranks as holders, a hierarchy node one with cells as holders.
// It is the `StreamAcceptor` behind their transports.
// *Truth*: the first hello of a domain fixes its block size; a contradiction, another hash contract
// or another schedule is refused with FAILED_PRECONDITION and a reason for both sides. A receiver
// is kept across connections, so that a sender that reconnects goes on where it was; a new
// connection of a stream replaces the older one, whose late messages have no effect. A holder that
// is silent for `lease_ttl` is in no answer from that moment, and is as it was when it resumes.
// After `sweep_after` more it is forgotten. Goodbye forgets it at once.
// *Threads*: any thread may call everything. Messages of one holder are serialised by its own
// mutex; queries take none of those and run beside ingest. The owner calls `Tick` from a timer.
// *Cost*: a query costs what the index costs, a short lock to get the table of holders, and a short
// lock per holder reported. The table is copied when a holder comes or goes: 16 bytes a holder.
// *Bounds*: `HolderRegistryOptions`; what one address may take of them: `peer_quotas.h`. A domain,
// once there, stays, so that its block size does: until `DropDomain`, or until it has had no
// holders for `forget_domain_after`, or has none when a hello comes with another block size or when
// there are `domains_max`.
//
// Example:
//   HolderRegistry registry({.contract_id = HashContract().Id()});
//   std::unique_ptr<ReceiverSession> session = registry.Accept(reply);   // a transport does this
//   absl::StatusOr<OverlapAnswer> answer = registry.FindOverlaps({"llama-70b", ""}, {.blocks = hashes});

#ifndef KVATLAS_INDEXER_REGISTRY_HOLDER_REGISTRY_H_
#define KVATLAS_INDEXER_REGISTRY_HOLDER_REGISTRY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/routed.h"
#include "indexer/base/tier.h"
#include "indexer/index/index.h"
#include "indexer/index/side_index.h"
#include "indexer/registry/domain_observer.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/peer_quotas.h"
#include "indexer/registry/pending_blocks.h"
#include "indexer/registry/refused_holders.h"
#include "indexer/registry/tier_reach.h"
#include "indexer/stream/link.h"
#include "indexer/stream/receiver.h"

namespace kvatlas {

struct HolderRegistryOptions {
  std::string index_name = "atlas";  // as `MakeIndex` knows it
  IndexOptions index;                // per domain
  ReceiverOptions receiver;
  std::string contract_id;  // `HashContract::Id()`
  std::string schedule;     // expected of senders: "" at a leaf, `WaypointSchedule::Name()` above
  Duration sweep_after = std::chrono::minutes(5);  // after the lease ran out
  uint64_t sweep_blocks_per_tick = 1 << 16;
  // Upkeep of every domain's index (`Index::Maintain`) in one tick: a millisecond or so.
  uint64_t maintain_steps_per_tick = 1 << 13;
  // A domain without holders, those being swept included, is forgotten after so long, and earlier
  // when there are `domains_max`.
  Duration forget_domain_after = std::chrono::minutes(10);
  PeerLimits peer = {};
  PendingOptions pending = {};  // of each domain
  uint32_t domains_max = 1024;
  uint32_t holders_max = 1 << 16;  // per domain, those being swept included
  bool answer_held = false;        // every answer as with `held_only`
  const Clock* clock = &Clock::Real();
  // Called once per domain, before its first change; may be empty or return null. The observer
  // lives until the registry is gone, or until `forget`, which may be empty: the domain is
  // forgotten, and tells it nothing more.
  std::function<DomainObserver*(const Domain& domain, uint32_t block_size)> observe;
  std::function<void(DomainObserver*)> forget = {};
};

// A holder's own statements in its last hello.
struct HolderInfo {
  HolderId id;
  std::string address;  // where the holder itself answers queries; may be empty
  std::vector<std::pair<std::string, std::string>> labels;
  // A version of id and labels, 0 without labels; valid within this process only.
  uint64_t labels_version = 0;
};

struct HolderOverlap {
  const HolderInfo* holder = nullptr;  // never null in an answer, and as long there as the answer
  // Leading blocks that the holder can reuse: what every class of its cache accepts (`reusable.h`).
  // For holders with full attention alone the same as `held`.
  uint32_t blocks = 0;
  uint32_t held = 0;  // leading blocks of the main class
  Trust trust = Trust::kExact;
  Duration age{0};           // since the holder was last heard
  std::optional<Load> load;  // absent when never reported
  // Where it was asked for, and the holder has some of `blocks` only below its device tier.
  std::optional<TierReach> reach = {};
  HolderIndex number{0};  // in the domain's index
  Pending pending = {};   // where it was asked for
  // `blocks`, or more where a store that it shares with others has more (`shared_stores.h`), and
  // how sure that is.
  uint32_t loadable = 0;
  Trust loadable_trust = Trust::kExact;
};

struct OverlapAnswer {
  uint32_t block_size = 0;
  std::vector<HolderOverlap> holders;              // in no particular order
  std::vector<std::shared_ptr<const void>> keeps;  // what `holder`s point into
};

// Work ahead of a request at the holder's average worker: blocks to prefill, a request counting for
// one. A holder without a load is taken for idle.
double QueuedPrefillBlocksPerWorker(const std::optional<Load>& load);

struct HolderStats {
  std::shared_ptr<const HolderInfo> holder;
  Epoch epoch = 0;
  BatchNumber applied = 0;
  Trust trust = Trust::kExact;
  Duration age{0};
  bool masked = false;
  bool connected = false;
  uint64_t blocks = 0;       // distinct, of the main class
  uint64_t side_blocks = 0;  // of side classes
  CacheLayout layout;
  std::optional<Load> load;
  ReceiverStats receiver;
  uint64_t behind_batches = 0;  // `StreamReceiver::behind`
  uint64_t snapshot_bytes = 0;  // memory for the snapshot that is being received
  PendingStats pending = {};
};

struct DomainStats {
  Domain domain;
  uint32_t block_size = 0;
  IndexStats index;
  SideIndex::Stats sides;  // of hybrid models
  // Since the start, also of holders that are gone.
  uint64_t blocks_stored = 0;   // blocks named in stored events of batches and snapshots
  uint64_t blocks_removed = 0;  // the same of removed events
  uint64_t batches = 0;
  uint64_t bytes_received = 0;  // as serialized, of batches and snapshots
  uint64_t gaps = 0;
  uint64_t snapshots = 0;
  uint64_t digests_equal = 0;
  uint64_t digests_different = 0;
  std::vector<HolderStats> holders;
  PendingStats pending = {};
};

// A session of which frontends told prompts.
struct SessionAnswer {
  uint64_t session = 0;  // `SessionHash`
  Domain domain = {};
  uint32_t block_size = 0;
  HolderId worker = {};  // where its last prompt went
  Duration age{0};       // of that
  uint64_t prompts = 0;
  uint32_t blocks = 0;  // of the last prompt
  // A worker with some of its prompts' blocks, and so deep at least; the deepest first. `worker`
  // also by what it had when a first prompt was sent there.
  struct At {
    HolderId worker;
    uint32_t blocks;
  };
  std::vector<At> at = {};
};

struct RegistryStats {
  uint64_t streams_open = 0;     // connections
  uint64_t streams_refused = 0;  // hellos refused by this registry or a receiver
  uint64_t holders_expired = 0;
  uint64_t holders_swept = 0;
  uint64_t domains_forgotten = 0;  // for want of holders
};

// The contents of a holder: a consistent cut.
struct HolderDump {
  std::shared_ptr<const HolderInfo> holder;
  std::vector<Stored>
      runs;  // of at most `kBatchBlocksMax` blocks; side blocks by their names, a class a run
  CacheLayout layout;
  BatchNumber applied = 0;  // last batch included
  Trust trust = Trust::kExact;
};

// A block of a side class by its name.
struct SideHolding {
  SequenceHash name{0};
  TierMask tiers;
  SideClass side = kUnknownSide;  // of the holder's layout
};

// A holder fed by a stream as a checkpoint keeps it, its contents aside.
struct HolderImage {
  HolderInfo info;
  ReceiverPosition stream;
  Duration silent{0};       // since the sender was heard
  bool lease_over = false;  // it was masked for that
  std::optional<Load> load;
  Digest digest;  // of the contents
  CacheLayout layout;
};

// Image and contents belong together: the contents are what was held after the image's stream
// position.
struct HolderCut {
  uint32_t block_size = 0;  // of its domain
  HolderImage image;
  std::vector<Holding> holdings;  // in no particular order
  std::vector<SideHolding> sides;
};

// A holder that comes back from an image, run by run; in no answer, and no stream is welcomed to
// it, before `Finish`.
//
// *Threads*: one. *Lifetime*: destroyed without `Finish` the holder is forgotten. It does not
// outlive the registry.
class RestoredHolder {
 public:
  virtual ~RestoredHolder() = default;
  // Where `side` is not 0: side blocks of that class of the image's layout, or `kUnknownSide`.
  // RESOURCE_EXHAUSTED: shed.
  virtual absl::Status Apply(const Stored& run) = 0;
  // From now on it is as if it had been welcomed long ago and is silent: its lease runs, unless it
  // was over when the image was made. Answers are degraded, or stale by its age, until the sender
  // has said hello and is caught up with. False: what was restored is not what the digest says
  // (shed), so that only a snapshot makes it exact.
  virtual bool Finish() = 0;
};

class HolderRegistry : public StreamAcceptor {
 public:
  // A domain for which `MakeIndex(options.index_name, options.index)` fails is refused.
  explicit HolderRegistry(HolderRegistryOptions options);
  // REQUIRES: all sessions are destroyed.
  ~HolderRegistry() override;

  HolderRegistry(const HolderRegistry&) = delete;
  HolderRegistry& operator=(const HolderRegistry&) = delete;

  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override;

  // Time passes: repeats what receivers ask for, masks holders whose lease ran out, sweeps. To be
  // called every 200 ms or so; calls at the same time wait for each other.
  void Tick();

  // From now on hellos are refused with UNAVAILABLE.
  void StopAccepting();

  // Every live holder that has at least one leading block; with `all_holders` also those without,
  // with `by_tier` also how deep they reach in the upper tiers alone (of a query of all tiers).
  // With `held_only` side classes are not looked at, and `blocks` is `held`. A holder that was
  // written at each of a few tries is `kDegraded`, as what is held of its classes may be of
  // different instants. NOT_FOUND: the domain was never announced.
  absl::StatusOr<OverlapAnswer> FindOverlaps(const Domain& domain, const OverlapQuery& query,
                                             bool all_holders = false, bool by_tier = false,
                                             bool held_only = false) const;

  // ---- What is on its way (`pending_blocks.h`) ----

  // NOT_FOUND: no such domain or holder.
  absl::Status Tell(const Domain& domain, uint64_t frontend, const Routed& routed);
  // Unknown domains and decisions are ignored.
  void End(const Domain& domain, uint64_t frontend, const RouteOver& over);
  // The frontend is gone: ends all that it told. *Cost*: a look at each domain.
  void Leave(uint64_t frontend);
  // Adds to an answer to the same question what is pending at each holder. Prompts of `frontend`,
  // which asks, count in `depth` alone. 0: no frontend. *Cost*: nothing where nothing is pending.
  void AddPending(const Domain& domain, std::span<const SequenceHash> blocks, uint64_t frontend,
                  uint64_t session, OverlapAnswer* answer) const;

  // Sessions of all domains, the latest of each first and at most `max` of each; `session` alone
  // unless it is 0. *Cost*: at most `PendingBlocks::kSessionSamples` questions of one block for
  // each session.
  std::vector<SessionAnswer> Sessions(uint64_t session, size_t max) const;

  // Memory of what is pending, all domains together. *Cost*: a lock for each domain.
  uint64_t PendingBytes() const;

  // Only the `best` live holders, best first: those that reach deepest; among equals, and among
  // those that reach nowhere, the ones with the least `QueuedPrefillBlocksPerWorker` as of the last
  // `Tick`, then by name. Costs a constant for each of the best, not for each there is. Nothing: it
  // cannot be told so, ask `FindOverlaps`: the domain is unknown, has replicas, side classes or
  // less than four times as many holders, or no query came between the last two ticks.
  std::optional<OverlapAnswer> FindBest(const Domain& domain, const OverlapQuery& query,
                                        size_t best) const;

  // The same in short, for answers that need no more: tells `visit` of every live holder that
  // reaches beyond 0 in any tier, by what it can reuse, or with `held_only` by what its main class
  // holds. The info is valid during the visit. NOT_FOUND: the domain was never announced.
  absl::Status VisitReaches(
      const Domain& domain, std::span<const SequenceHash> blocks,
      const std::function<void(const HolderInfo& holder, const TierReach& reach)>& visit,
      bool held_only = false) const;

  // False only if nothing in that domain, masked or not, holds the block; true where the index
  // cannot tell.
  bool MayHold(const Domain& domain, SequenceHash block) const;

  // A holder that is fed in this process. Its domain is made when it is new. FAILED_PRECONDITION:
  // the domain has another block size. ALREADY_EXISTS: there is a live holder of that id.
  // RESOURCE_EXHAUSTED: too many.
  absl::StatusOr<std::unique_ptr<HolderHandle>> AddLocal(const Domain& domain, uint32_t block_size,
                                                         HolderInfo info);

  // Forgets a domain that has no holders (those being swept aside), so that its block size may
  // change. False: it has some, or does not exist.
  bool DropDomain(const Domain& domain);

  // NOT_FOUND: the domain was never announced.
  absl::StatusOr<uint32_t> BlockSizeOf(const Domain& domain) const;

  // In order.
  std::vector<Domain> Domains() const;
  // In order, masked ones too.
  std::vector<HolderId> HoldersOf(const Domain& domain) const;

  // That of the options, or null.
  const MemoryBudget* memory() const;

  RegistryStats Stats() const;
  // Senders that were refused and not welcomed since.
  std::vector<RefusedHolder> Refused() const;
  // NOT_FOUND: no such domain. Waits for each holder's writer in turn.
  absl::StatusOr<DomainStats> StatsOf(const Domain& domain) const;

  // NOT_FOUND: no such domain or holder.
  absl::StatusOr<HolderDump> Dump(const Domain& domain, const HolderId& holder) const;

  // ---- Checkpoints ----

  // A consistent cut of a holder fed by a stream; its writer waits while the contents are copied,
  // queries do not. NOT_FOUND: no such domain or holder. FAILED_PRECONDITION: fed in this process,
  // or no hello was welcomed yet.
  absl::StatusOr<HolderCut> Cut(const Domain& domain, const HolderId& holder) const;

  // Where that holder's stream stands: a reader of a log goes on behind `applied` of that epoch.
  // Nothing: unknown, or fed in this process.
  std::optional<ReceiverPosition> PositionOf(const Domain& domain, const HolderId& holder) const;

  // A holder as an earlier process kept it, `silent` counting up to now. Its domain is made when it
  // is new. Statuses as `AddLocal`.
  absl::StatusOr<std::unique_ptr<RestoredHolder>> Restore(const Domain& domain, uint32_t block_size,
                                                          HolderImage image);

 private:
  class Session;
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_HOLDER_REGISTRY_H_
