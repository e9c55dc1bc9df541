// One holder in one domain: its receiver, its lease, its place in the index, and what queries see
// of it. A part of `HolderRegistry`.
//
//   live ──lease ran out──▶ masked ──heard again──▶ live
//     └──goodbye──▶ retired ◀──sweep_after──┘          retired: in no table; `Sweep` empties it, then its
//                                                      number in the index is given back
//
// A local holder (`holder_handle.h`) uses neither receiver nor lease: its handle says whether it is
// masked.
//
// *Threads*: any. `mutex_` serialises messages, ticks and sweeps; `view_mutex_`, taken last and
// briefly, guards what others see. Queries take neither.
// *Truth*: the domain's observer sees exactly what queries see: nothing of a masked holder.

#ifndef KVATLAS_INDEXER_REGISTRY_HOLDER_H_
#define KVATLAS_INDEXER_REGISTRY_HOLDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/holdings_writer.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/index.h"
#include "indexer/index/side_index.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/registry/peer_quotas.h"
#include "indexer/registry/pending_blocks.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/receiver.h"

namespace kvatlas {

// Counters of a domain over all its holders.
struct DomainCounters {
  std::atomic<uint64_t> blocks_stored{0};
  std::atomic<uint64_t> blocks_removed{0};
  std::atomic<uint64_t> bytes_received{0};
  // `TierMask`s of everything ever stored: most domains use the device tier alone.
  std::atomic<uint8_t> tiers_seen{0};
  // Grows when a holder's cache classes change; 0: no holder ever had any but the main class.
  std::atomic<uint64_t> layouts_version{0};
};

// A connection, unique in the process; 0 is none.
using SessionId = uint64_t;

class Holder : private HoldingsSink {
 public:
  // All pointers outlive the holder; `observer` may be null. `number` is this holder's in `index`
  // and `sides`.
  Holder(Index* index, SideIndex* sides, HolderIndex number, DomainObserver* observer,
         PendingBlocks* pending, DomainCounters* counters, const ReceiverOptions& options,
         HolderId id);
  // A local one, live from the start.
  Holder(Index* index, SideIndex* sides, HolderIndex number, DomainObserver* observer,
         PendingBlocks* pending, DomainCounters* counters, HolderInfo info, Time now);

  const HolderId& id() const { return id_; }
  HolderIndex number() const { return number_; }

  enum class Taken {
    kYes,      // welcomed: the connection is now the stream's only one
    kRefused,  // `Refuse` was sent
    kRetired,  // this holder is no more: make another
  };
  // A hello that fits the domain. `why` says why it was refused; `replaced` becomes the epoch of
  // the other instance that had the stream before, if one had.
  Taken OnHello(const Hello& hello, SessionId session, const ReplyFn& reply, Time now,
                absl::Status* why, Epoch* replaced);

  // Any other message. FAILED_PRECONDITION: the connection was replaced, or the holder retired.
  absl::Status OnMessage(const SenderMessage& message, SessionId session, Time now);

  // After it `reply` of that connection is not used.
  void OnDisconnected(SessionId session, Time now);

  // While the transport is lost, a live holder stays in answers with a growing age, stale after a
  // lease, for `sweep_after` at most.
  void OnTransportLost(SessionId session, bool lost, Time now);

  enum class Lease { kLive, kMasked, kJustMasked, kOver };
  // Time passes. kOver: the holder was silent for `sweep_after` beyond its lease and is retired;
  // the caller forgets it.
  Lease Tick(Duration sweep_after, Time now);

  // Out of every answer from now on; messages are refused. Idempotent.
  void Retire();

  // Retires a holder that no hello was ever welcomed for; true when it did.
  bool RetireIfNew();

  // Takes about `blocks_max` blocks out of the index; false: nothing is left. REQUIRES: retired.
  bool Sweep(uint64_t blocks_max);

  // ---- Of one that is restored ----

  // Hellos are refused with UNAVAILABLE until `FinishRestore`. The layout is the image's: a query
  // that finds the first of the restored blocks applies it already. REQUIRES: new, and in no table
  // yet.
  void BeginRestore(const CacheLayout& layout);
  absl::Status RestoreRun(const Stored& run);
  // `lease_goes_on`: else it is masked until it is heard. False: the contents are not those of the
  //   image.
  bool FinishRestore(HolderImage image, bool lease_goes_on, Time now);

  // FAILED_PRECONDITION: a local one, never welcomed, or retired.
  absl::StatusOr<HolderCut> Cut(Time now) const;
  std::optional<ReceiverPosition> StreamPosition() const;

  // ---- Of a local one ----

  // FAILED_PRECONDITION: retired.
  Applied ApplyLocal(std::span<const Event> events);
  void ForEachLocal(const std::function<void(SequenceHash, SequenceHash, LocalHash)>& visit) const;
  void SetLocalTrust(Trust trust, Time now);
  void SetLocalReached(bool reached, Time now);
  bool reached() const { return reached_.load(std::memory_order_relaxed); }
  void SetLocalLayout(const CacheLayout& layout);
  void SetLocalMasked(bool masked);
  void SetLocalLoad(const Load& load);
  void Heard(Time now);

  // ---- Of any ----

  // The holder's share of its address's quotas (`peer_quotas.h`); null: none. Given back when the
  // holder is forgotten.
  std::shared_ptr<const PeerQuotas::Charge> charge() const;
  void SetCharge(std::shared_ptr<const PeerQuotas::Charge> charge);
  // A further limit of its blocks, beside `ReceiverOptions::blocks_max`. Blocks beyond it are shed.
  void SetBlocks(PeerAllowance::Blocks allowed);

  std::shared_ptr<const HolderInfo> info() const;
  // Null: the main class alone.
  std::shared_ptr<const CacheLayout> layout() const;
  // In answers at this moment. Takes no lock.
  bool Live(Time asked) const;

  // The fields of an answer but for `blocks`; false: not live. `asked` is when the index was asked.
  // `overlap->holder` is only to be compared: a caller that has that one (`info()`) keeps it.
  bool Describe(Time asked, HolderOverlap* overlap) const;

  HolderStats Stats(Time now) const;
  ReceiverStats receiver_stats() const;
  // NOT_FOUND: retired; its number may be another's.
  absl::StatusOr<HolderDump> Dump(Time now) const;

 private:
  // The state behind `PublishedState`; brought up to date after every message and tick.
  struct View {
    Trust trust = Trust::kExact;
    Trust told = Trust::kExact;  // of a local one, by its reader
    Time exact_since{0};
    std::optional<Load> load;
    std::shared_ptr<const HolderInfo> info;
    std::shared_ptr<const CacheLayout> layout;
    std::shared_ptr<const PeerQuotas::Charge> charge;
  };

  absl::Status Apply(const Event& event) override;
  Applied ApplyInTurn(std::span<const Event> events);
  Applied ApplyToIndex(std::span<const Event> events);
  absl::Status ApplyToSides(const Event& event);
  SideIndex::Changed CountSides();
  void SetLoad(const Load& load) override;
  void SetLayout(const CacheLayout& layout) override;
  void ForEachHeld(const std::function<void(SequenceHash, TierMask, SideClass)>& visit) override;
  Digest CurrentDigest() override;
  void TellHoldings(bool gained);

  static constexpr size_t kLoadWords = 6;

  void SetTrust(Trust trust, Time now);
  void ShowTrust(Trust trust, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(view_mutex_);
  void Mask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unmask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateView(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Reply(std::vector<ReceiverMessage>* messages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  uint64_t BlocksMax() const;  // 0: no limit. Called with `mutex_` held, as `Apply`

  std::vector<SideHolding> SideHoldings() const;
  Digest DigestNow() const;

  Index* const index_;
  SideIndex* const sides_;
  const HolderIndex number_;
  DomainObserver* const observer_;
  PendingBlocks* const pending_;
  DomainCounters* const counters_;
  const HolderId id_;
  const bool local_;
  const Duration lease_ttl_;              // a local one's never ends
  const uint64_t blocks_max_;             // 0: no limit
  PeerAllowance::Blocks allowed_;         // guarded by `mutex_`, as `pool_blocks_`
  uint64_t pool_blocks_ = 0;              // by the load last heard; 0: none yet
  std::atomic<uint64_t> blocks_{0};       // distinct
  std::atomic<bool> reached_{true};       // written under `view_mutex_`
  std::atomic<uint64_t> side_blocks_{0};  // distinct; likewise
  // Written under `mutex_`; read by the sink's methods, which run under it too.
  Digest side_digest_;
  CacheLayout layout_;
  bool has_layout_ = false;  // it had side classes once: queries look at its version
  bool masked_ = false;
  ChangeLog changes_;  // of the events that are being applied; keeps its memory

  mutable Mutex mutex_;
  StreamReceiver receiver_ ABSL_GUARDED_BY(mutex_);
  SessionId session_ ABSL_GUARDED_BY(mutex_) = 0;
  ReplyFn reply_ ABSL_GUARDED_BY(mutex_);
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;  // ever
  bool retired_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Time> transport_lost_since_ ABSL_GUARDED_BY(mutex_);
  bool restoring_ ABSL_GUARDED_BY(mutex_) = false;

  // The fields that queries read of every holder that they report, in two cache lines and without a
  // lock; a copy of `view_`:
  //   1. `Publish` makes `version` odd, writes, and makes it even again.
  //   2. `Read` takes what it reads if the version was even and is the same afterwards, else looks
  //      again, a few times, and then at `view_`. Each of its loads acquires, so that the second
  //      look at the version is the last.
  struct alignas(64) PublishedState {
    std::atomic<uint32_t> version{0};
    std::atomic<bool> live{false};
    std::atomic<Trust> trust{Trust::kExact};
    std::atomic<bool> has_load{false};
    std::atomic<int64_t> last_heard_ns{0};
    std::atomic<int64_t> lease_began_ns{0};  // later than that where it was restored
    std::atomic<int64_t> exact_since_ns{0};
    std::atomic<const HolderInfo*> info{nullptr};
    std::atomic<uint64_t> load[kLoadWords] = {};
  };
  static_assert(sizeof(PublishedState) == 128);
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(view_mutex_);
  bool Read(HolderOverlap* overlap, Time* exact_since) const;

  PublishedState published_;
  mutable Mutex view_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  View view_ ABSL_GUARDED_BY(view_mutex_);
};

// Side blocks as runs, of at most `kBatchBlocksMax` blocks.
std::vector<Stored> AsRuns(const std::vector<SideHolding>& sides);

// Holdings as runs, tier by tier, each of at most `kBatchBlocksMax` blocks. Reorders `holdings`.
std::vector<Stored> AsRuns(std::vector<Holding>* holdings);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_HOLDER_H_
