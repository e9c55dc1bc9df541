// Everything that one data-parallel rank of an engine holds: its names, by attention group, and the
// effect of each event on them.
//
//   event ─▶ Admit: owner, locality, medium, group
//         ─▶ stored: content ─▶ place block by block ─▶ first copy in every group ─▶ pending ─▶ writer
//         │                        └▶ parent unknown, no tokens: parked, linked when the name comes
//         └▶ removed: last copy ─▶ pending ─▶ writer
//
// *Truth*: a group that announces blocks in a tier is required there: a block is passed on when
// every required group has it. A name that comes with other content names that from then on, and
// what it named is gone. Blocks are handed over together at the end of a batch, or when many wait:
// as if in the order in which they came (`PendingEvents`). The writer's answer shows whether a
// block has two names: from then on names are counted, and events that are still to be handed over
// are rewritten as if names had been counted before (`CountPending`). So wherever blocks are handed
// over, each change of a name is pending or was handed over.
// *Threads*: none; the worker serialises. Pending events go to the writer with `Flush`.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_RANK_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_RANK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "indexer/kv_events/alias_table.h"
#include "indexer/kv_events/duplicates.h"
#include "indexer/kv_events/engine_content.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/namespaces.h"
#include "indexer/kv_events/orphans.h"
#include "indexer/kv_events/pending_events.h"
#include "indexer/kv_events/sglang_block_hash.h"

namespace kvatlas {

// Memory that one event at a time uses.
struct EngineScratch {
  StoredContent content;
  std::vector<TokenId> padded;        // a block's tokens, images among them
  std::vector<SequenceHash> members;  // of a chunk
  std::string member;                 // the digest that names one
  Repeats repeats;
};

class EngineRank {
 public:
  // All outlive the rank. `counters` and `scratch` are shared by a worker's ranks.
  EngineRank(const EngineWorkerOptions& options, uint32_t rank,
             std::shared_ptr<HoldingsWriter> writer, EngineWorkerStats* counters,
             EngineScratch* scratch);

  // Loads what these events will look up, of those with few names each.
  void Prefetch(std::span<const EngineEvent> events) const;
  void Apply(const EngineEvent& event, Time now);
  void Flush();
  // Nothing more comes of a batch.
  void EndBatch() {
    if (!ends_.empty()) FindChunks();
    DropOld();
    Flush();
  }

  // What may have happened to the blocks held.
  enum class LossKind {
    kGap,         // batches are missing; `Repair` undoes it
    kUnreadable,  // something that was said could not be read, and no replay will tell more
    kUnknown,  // likewise, but of a kind that need not have removed anything: what is held stays, in doubt
  };
  void Restart();
  void Lose(LossKind kind, Time now);
  void Repair();
  void Tick(Time now);

  std::optional<KnownBlock> Find(const EngineBlockHash& hash) const;
  // Unresolved names, at most `most`.
  std::vector<std::string> Unresolved(size_t most) { return parked_.WithoutTokens(most); }
  // One of those is known now.
  void Resolve(const std::string& name, const KnownBlock& known);

  void ForEachAlias(const std::function<void(const EngineAlias&)>& visit) const;
  absl::Status Restore(const EngineAlias& alias, bool more);
  // Without its `rank` and `stream_rank`. `visit` is called at least once, more often where there
  // is much.
  void Mark(const std::function<void(EngineRankMark)>& visit) const;
  absl::Status RestoreMark(const EngineRankMark& mark);

  uint32_t look_aheads() const { return look_aheads_; }
  const Namespaces& spaces() const { return spaces_; }
  EngineRankStats Stats() const;

 private:
  // Names of one attention group, a table for each length of digests.
  struct Group {
    uint32_t id = 0;
    bool main = true;  // its blocks are of the main class, or stand for it
    size_t side = 0;   // not 0: of `sides_[side - 1]`
    std::vector<std::unique_ptr<AliasTable>> tables;
  };
  // One side class. Places of its groups' names have the side name for block (0: unjoined) and
  // count positions in blocks of the class; where the group stands for the main class, they are as
  // in main groups.
  struct Side {
    CacheClass of;
    uint64_t tag = 0;
    uint32_t groups = 0;  // a bit each; a block is held when all have it
  };
  enum class Role : uint8_t { kMain, kSide, kOther };
  struct Kind {
    Role role = Role::kMain;
    CacheClass side;
  };
  // Where the next block of an event goes.
  struct Chain {
    enum class State { kKnown, kUnknown, kRefused } state = State::kUnknown;
    SequenceHash parent = kNoParent;
    Position position = 0;  // of the next block
    uint32_t space = 0;
  };
  // A store being applied.
  struct Store {
    const EngineEvent& event;
    Tier tier;
    size_t group;
    size_t blocks;  // leading ones that can be placed
    Time now;
    AliasTable::Copies copies;
    bool by_name = false;  // a known name is trusted before the tokens
    bool taken = false;
  };
  static constexpr size_t kGroupsMax = 32;
  static constexpr size_t kLengthsMax = 8;  // of names, per group
  static constexpr size_t kKindsMax = 1024;
  static constexpr size_t kAmbiguousMax = 1 << 16;
  static constexpr size_t kNamesPerBlockMax = 16;  // chains that share an inner side block

  // ---- engine_rank.cc: events ----
  void ApplyStored(const EngineEvent& event, Time now);
  void ApplyRemoved(const EngineEvent& event);
  void ApplyCleared(const EngineEvent& event);
  bool IsOfStore(const EngineEvent& event) const;
  std::optional<Tier> Admit(const EngineEvent& event);
  // Nothing: refused.
  std::optional<Role> RoleOf(const EngineEvent& event);
  bool Learn(uint32_t id, const Kind& kind);
  bool SpansBlocks(const EngineEvent& event, Tier tier, size_t* blocks);
  std::optional<size_t> GroupOf(const std::optional<uint32_t>& id, bool make);
  void Require(size_t group, Tier tier);
  // It turned out to be of another kind: what it has goes, and blocks no longer need it.
  void DropGroup(size_t group);
  // Blocks of the main class no longer need this group.
  void Unrequire(size_t group);

  Chain StartOf(const Store& store);
  static bool Restates(const EngineEvent& event);
  AliasTable::Copies CopiesOf(const EngineEvent& event, Tier tier) const;
  bool IsRoot(const EngineEvent& event, Tier tier) const;
  // Its tokens alone prove nothing: it may be of a namespace that it does not say.
  bool HidesNamespace(const EngineEvent& event) const {
    return (extras_seen_ || missed_) && (event.group.has_value() || !event.spec_kind.empty());
  }
  // The number of a namespace; these three refuse `blocks` blocks and return nothing where they
  // cannot be in it.
  std::optional<uint32_t> SpaceOf(std::string_view lora_name, std::string_view salt, uint32_t eagle,
                                  size_t blocks);
  std::optional<uint32_t> SpaceAtRoot(const Store& store);
  std::optional<uint32_t> SpaceAfter(uint32_t parent, std::string_view lora_name,
                                     std::string_view salt, uint32_t eagle, size_t blocks);
  LocalHash ContentHash(std::span<const TokenId> tokens, std::span<const uint64_t> objects,
                        uint32_t space, uint32_t look_ahead) const;
  void PlaceTokens(Store* store, Chain chain);
  void PlaceNames(Store* store);
  bool JoinKnown(const Store& store, const EngineBlockHash& name, const BlockPlace& place,
                 SequenceHash parent);
  void ParkBlock(const Store& store, size_t i, bool with_tokens);
  // False: it was not held there, nor parked.
  bool RemoveOne(size_t group, const EngineBlockHash& name, Tier tier);
  bool RemoveName(size_t group, const EngineBlockHash& name, Tier tier, bool is_member);

  // ---- engine_rank_chunks.cc: what is stored and loaded only together ----
  // What a store beside the device says of how its connector works.
  void NoteOffload(const EngineEvent& event, Tier tier);
  void NoteRemoval(const EngineEvent& event, Tier tier);
  void NoteChunk(size_t blocks);
  void UpdateChunks();
  // A store without tokens that says no size: vLLM's OffloadingConnector names a chunk so.
  static bool MayEndChunk(const EngineEvent& event) {
    return event.tokens.empty() && event.block_size == 0 && event.group.has_value() &&
           !event.envelope;
  }
  // Notes such a name, which has a place. How many blocks it stands for is known when the batch is
  // through (`FindChunks`).
  void NoteEnd(size_t group, const EngineBlockHash& name, const BlockPlace& place, Tier tier);
  void FindChunks();
  bool IsLarge(const EngineEvent& event) const {
    return event.block_size > options_.block_size && event.block_size % options_.block_size == 0 &&
           event.look_ahead == 0 && !event.tokens_opaque;
  }
  void ApplyLarge(const EngineEvent& event, Tier tier, Time now);
  // The name of the block that is `back` blocks before the last one of a chunk. Valid until the
  // next call.
  EngineBlockHash MemberName(const EngineBlockHash& chunk, uint32_t back);
  // The other blocks of the chunk that this one ends, in a tier whose stores name chunks by their
  // last block.
  void PlaceMembers(size_t group, const EngineBlockHash& name, const BlockPlace& place, Tier tier,
                    uint32_t count, AliasTable::Copies copies);
  // From the one `from` blocks before the last on.
  void RemoveMembers(size_t group, const EngineBlockHash& name, Tier tier, bool all,
                     uint32_t from = 1);

  // ---- engine_rank_blocks.cc: names, blocks, what is pending ----
  void PrefetchNames(size_t group, std::span<const EngineBlockHash> names) const;
  AliasTable* Table(size_t group, size_t name_bytes) const;
  // Null: names of too many lengths.
  AliasTable* TableFor(size_t group, const EngineBlockHash& name);
  std::optional<BlockPlace> FindPlace(size_t group, const EngineBlockHash& name) const;
  // `count` stores of a block with this content, under this name.
  void Place(size_t group, const EngineBlockHash& name, const BlockPlace& place,
             SequenceHash parent, std::optional<LocalHash> local, Tier tier, uint32_t count,
             AliasTable::Copies copies);
  void Rename(AliasTable* table, size_t slot, size_t group, const EngineBlockHash& name,
              uint32_t new_space);
  void EraseName(size_t group, AliasTable* table, size_t slot, bool is_member = false);
  // The first copy of a name came, or its last one left.
  void Came(size_t group, const EngineBlockHash& name, const BlockPlace& place, SequenceHash parent,
            std::optional<LocalHash> local, Tier tier);
  void Left(size_t group, const EngineBlockHash& name, const BlockPlace& place, Tier tier);
  bool HeldByOthers(size_t group, const EngineBlockHash& name, Tier tier) const;
  void Held(size_t group, const EngineBlockHash& name, const BlockPlace& place, SequenceHash parent,
            std::optional<LocalHash> local, Tier tier);
  void Unheld(size_t group, const EngineBlockHash& name, SequenceHash block, Tier tier);
  void PassStored(const BlockPlace& place, SequenceHash parent, std::optional<LocalHash> local,
                  Tier tier);
  void PassRemoved(SequenceHash block, Tier tier);
  void FlushMain();
  void SendCleared(TierMask tiers);
  void CountNames();
  void CountPending(std::span<const Event> left);
  // As many copies of every tier as were parked, in doubt when they were.
  void PlaceParked(size_t group, const EngineBlockHash& name, const BlockPlace& place,
                   SequenceHash parent, std::optional<LocalHash> local, const ParkedBlock& parked);
  void LinkAll();
  void LinkChildren(const std::string& parent, const BlockPlace& place);
  void NamePage(const EngineBlockHash& name, const BlockPlace& place, SequenceHash parent,
                std::span<const TokenId> tokens, std::span<const uint64_t> objects,
                uint32_t look_ahead);
  // Neither adapter nor salt.
  bool IsPlain(uint32_t space) const;

  // ---- engine_rank_groups.cc: side classes ----
 public:
  // A main group that a batch names is known before its events apply, so that no side group stands
  // for it meanwhile.
  bool NeedsMain() const { return !AnyMainGroup(); }
  void LearnMain(const EngineEvent& event);

 private:
  bool AnyMainGroup() const;
  bool HasMain() const;
  void MakeSide(size_t group, const CacheClass& of);
  // Side groups stand for the main class no longer.
  void DemoteSides();
  void UpdateLayout();
  void ApplySideStored(const EngineEvent& event, size_t group, Tier tier, size_t blocks);
  // One copy more; false: refused.
  bool StoreSide(size_t group, const EngineBlockHash& name, Tier tier, AliasTable::Copies copies);
  absl::Status RestoreInner(const EngineRankMark& mark);
  void RestoreSide(size_t group, const EngineBlockHash& name, const BlockPlace& place);
  bool ApplyComponents(const EngineEvent& event, Tier tier);
  std::optional<BlockPlace> JoinedPlace(size_t group, const EngineBlockHash& name) const;
  // A main block has this name now.
  void JoinSides(const EngineBlockHash& name, const BlockPlace& main);
  void Join(size_t group, const EngineBlockHash& name, const BlockPlace& place);
  void JoinInner(size_t group, const EngineBlockHash& name, const BlockPlace& main);
  void Link(size_t group, const EngineBlockHash& before, const EngineBlockHash& name);
  // Names of side groups that stood for what a main name no longer means.
  void DropSideNames(const EngineBlockHash& name);
  SequenceHash SideNameOf(size_t group, const BlockPlace& place) const;
  bool HeldByClass(size_t group, const EngineBlockHash& name, Tier tier) const;
  void SideHeld(size_t group, const EngineBlockHash& name, const BlockPlace& place, Tier tier);
  void SideUnheld(size_t group, const EngineBlockHash& name, const BlockPlace& place, Tier tier);
  void PassSide(bool stored, size_t side, Tier tier, SequenceHash name);
  void FlushSides();
  // Passes the side blocks of a tier on again, after `SendCleared` for the main class's sake.
  void ResendSides(Tier tier);
  // Something of a side group is gone from its table.
  void NoteErased(size_t group, const EngineBlockHash& name, const BlockPlace& place);

  // ---- engine_rank_age.cc: tiers that blocks leave without a word ----
  struct Age {
    std::string key;      // `ParkedName`, and the tier
    uint64_t number = 0;  // of its store
    Time at{0};
  };
  static constexpr size_t kAgesSpare = 1024;
  bool Ages(Tier tier) const;
  void NoteAge(size_t group, const EngineBlockHash& name, Tier tier);
  void ForgetAge(size_t group, const EngineBlockHash& name, Tier tier);
  bool IsYoungest(const Age& age) const;
  uint64_t AgingBlocks() const;
  void DropOld();

  // ---- engine_rank_state.cc: the whole rank ----
  void ClearTier(Tier tier);
  void ClearAll();
  bool DropUnconfirmed(size_t slots);
  bool AnyUnconfirmed() const;
  void SettleIfCertain(Time now);
  // Offers again what the index had no room for.
  void Heal();
  void UpdateTrust();
  void Refuse(Refusal refusal, uint64_t count, const std::string& detail = "");

  const EngineWorkerOptions& options_;
  const uint32_t rank_;
  const std::shared_ptr<HoldingsWriter> writer_;
  EngineWorkerStats* const counters_;

  std::vector<Group> groups_;
  absl::flat_hash_map<uint32_t, Kind> kinds_;   // of groups
  std::array<uint32_t, kTiers> required_ = {};  // groups, a bit each
  Namespaces spaces_;
  Orphans parked_;
  absl::flat_hash_set<std::string> ambiguous_;  // names seen in two namespaces
  std::vector<std::string> linked_;             // names that came, whose children may be parked
  bool zero_named_ = false;                     // there was a block named 0
  bool extras_seen_ = false;                    // salts or objects: an event without may hide some
  bool missed_ = false;                         // events were lost that may have had some

  // Blocks that tiers beside the device load together; as told, or as found out.
  uint32_t chunk_blocks_ = 1;
  uint32_t told_chunk_blocks_ = 1;
  uint32_t described_blocks_ = 1;  // of events that name all their blocks, the most
  // Blocks that names of chunks' ends stand for: as told, or the greatest common divisor of where
  // such chunks end; 0: none was seen.
  uint32_t named_blocks_ = 0;
  uint32_t next_named_blocks_ = 0;                  // with those of this batch
  std::vector<std::pair<std::string, Tier>> ends_;  // of this batch, by `ParkedName`
  // While those are several: of blocks, the one before.
  absl::flat_hash_map<SequenceHash, SequenceHash> before_;
  bool places_members_ = false;                          // names being placed are not the engine's
  TierMask silent_;                                      // tiers that blocks leave without a word
  TierMask removes_;                                     // tiers that are not so after all
  std::deque<Age> ages_;                                 // in the order of their stores
  absl::flat_hash_map<std::string, uint64_t> youngest_;  // by `Age::key`: the store that counts
  uint64_t stored_count_ = 0;
  bool has_undated_ = false;  // among `ages_`, restored ones
  Time now_{0};
  uint32_t look_aheads_ = 0;  // bit k: of hashes that cover k tokens behind their block

  // Names per block and tier, kept once some block has two.
  bool counts_names_ = false;
  std::array<absl::flat_hash_map<SequenceHash, uint32_t>, kTiers> names_;

  std::array<uint64_t, kTiers> held_ = {};
  PendingEvents pending_;       // of the main class
  PendingEvents side_pending_;  // of side classes

  enum class Loss { kNone, kWaiting, kDropping } loss_ = Loss::kNone;
  // While kWaiting: gaps that nothing repaired yet; a loss that nothing repairs; and one that no
  // time drops, only such a one. Without either of the first two there is no deadline.
  uint32_t gaps_ = 0;
  bool final_ = false;
  bool lasting_ = false;
  std::optional<Time> deadline_;
  Time settle_at_{0};      // when to look next whether anything is still in doubt
  bool given_up_ = false;  // something lost will not come back
  // Nothing of the main class ever had the domain's block size, and blocks of this one were
  // refused; 0: none.
  uint32_t refused_size_ = 0;
  bool fits_ = false;      // something had it
  bool marked_ = false;    // `RestoreMark` was called
  bool degraded_ = false;  // as the writer was told

  // Blocks that the index shed are offered again, name by name.
  bool shed_ = false;
  struct Healing {
    size_t group = 0;
    size_t table = 0;
    uint64_t cursor = 0;
    bool shed = false;  // something was, since this round began
  } healing_;

  std::vector<Side> sides_;
  CacheLayout layout_;     // as the writer was told
  uint64_t unjoined_ = 0;  // names of side groups without a block
  // Links of names inside a main block that wait for it: a name to the name before it, by
  // `ParkedName`.
  absl::flat_hash_map<std::string, std::string> links_;
  // By `ParkedName` of names inside a main block that several chains share: the other chains' side
  // names.
  absl::flat_hash_map<std::string, std::vector<SequenceHash>> more_names_;
  bool side_unknown_ = false;
  bool anything_stored_ =
      false;  // of a hybrid (`EngineWorkerOptions::hybrid`), since it was cleared

  EngineScratch* const scratch_;
  PageNamer pages_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_RANK_H_
