// From an engine's hash to the block that it names and the tiers that hold it: the names of one
// worker rank and one attention group, with the copies that it announced.
//
//   row of a `BucketTable`   [ 7 bytes of the key ][ block 8 | position 2 | code 1 | rest of a digest ]
//   code ─▶ state            namespace, copies and certain copies of each tier: of 254 kinds that any number of names share
//
// *Truth*: names are compared by all their bytes: the key of a name is its last 8 bytes, the rest
// is in the row. A name whose position is beyond 65,535, or whose state is none of the first 254
// kinds, has a record that its row points to.
// *Copies*: counted by tier, saturating, with a floor of zero; a store says whether it is a copy
// more. After `Lose` a copy is unconfirmed until it is stored again; `certain` counts those since.
// *Threads*: none; the caller serialises.
// *Cost*: see `bucket_table.h`: 19.0 bytes a name as it grows and 19.6 in a steady state of
// evictions, a digest longer than 8 bytes the rest of its length more, a record 48 bytes more. No
// call moves more than three buckets' names. Losses are O(kinds of states + records).
// *Lifetime*: a slot number is valid until the next `FindOrInsert` or `Erase`.
//
// Example:
//   AliasTable names(0);
//   names.Prefetch(event.hashes);  // waits for memory once
//   bool inserted;
//   const size_t slot = names.FindOrInsert(hash, {.block = block, .position = 0, .space = 0},
//   &inserted);
//   if (names.Store(slot, Tier::kDevice)) …   // the first copy
//   if (names.Remove(slot, Tier::kDevice) == AliasTable::Gone::kLast && names.tiers(slot).empty()) names.Erase(slot);

#ifndef KVATLAS_INDEXER_KV_EVENTS_ALIAS_TABLE_H_
#define KVATLAS_INDEXER_KV_EVENTS_ALIAS_TABLE_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/bucket_table.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

// A block as its chain has it.
struct BlockPlace {
  SequenceHash block{0};
  Position position = 0;
  uint32_t space = 0;  // number of its namespace

  friend bool operator==(const BlockPlace&, const BlockPlace&) = default;
};

using TierCopies = std::array<uint16_t, kTiers>;

class AliasTable {
 public:
  static constexpr size_t kNone = BucketTable::kNone;

  // For names whose `EngineBlockHash::bytes` are of this length; 0: integers. `seed` orders the
  // keys.
  explicit AliasTable(size_t name_bytes, uint64_t seed = 0x9e3779b97f4a7c15);

  AliasTable(const AliasTable&) = delete;
  AliasTable& operator=(const AliasTable&) = delete;

  size_t name_bytes() const { return name_bytes_; }
  size_t size() const { return rows_.size(); }
  size_t bytes() const;

  // Loads what look-ups of these names will touch. Names of another length are left out.
  void Prefetch(std::span<const EngineBlockHash> names) const;

  // kNone: not there.
  size_t Find(const EngineBlockHash& name) const;
  // By the last 8 bytes alone; the first one of them that there is.
  size_t FindValue(uint64_t value) const;

  // Its slot; a new one names `place` and is in no tier yet.
  size_t FindOrInsert(const EngineBlockHash& name, const BlockPlace& place, bool* inserted);
  void Erase(size_t slot);
  // Forgets everything, memory included.
  void Clear();

  BlockPlace place(size_t slot) const;
  // The name stands for another block; its copies stay.
  void SetPlace(size_t slot, const BlockPlace& place);
  SequenceHash block(size_t slot) const { return place(slot).block; }
  TierMask tiers(size_t slot) const { return StateOf(slot).tiers(); }

  // How a store counts in its tier.
  enum class Copies : uint8_t {
    kOneMore,
    kSome,  // one, if there was none
    kOne,   // one, however many there were
  };
  // True: the first one in that tier.
  bool Store(size_t slot, Tier tier, Copies copies = Copies::kOneMore);
  enum class Gone { kNotHeld, kCopy, kLast };
  // One copy less.
  Gone Remove(size_t slot, Tier tier);

  TierCopies copies(size_t slot) const { return std::bit_cast<TierCopies>(StateOf(slot).copies); }
  TierCopies certain(size_t slot) const { return std::bit_cast<TierCopies>(StateOf(slot).certain); }
  // Puts a slot back as it was: `certain[t] <= copies[t]`.
  void Restore(size_t slot, const TierCopies& copies, const TierCopies& certain);

  // ---- Losses ----

  // All that is held is unconfirmed from now on.
  void Lose();
  // Everything held is certain after all.
  void Confirm();
  // Looks at about `slots` slots from where it stopped: `drop` is called with the tiers that have
  // no certain copy, then they are dropped; a slot with none left is erased; counts become the
  // certain ones. True: it is through.
  bool DropUnconfirmed(size_t slots,
                       const std::function<void(size_t slot, TierMask dropped, bool erased)>& drop);
  // Names with a tier of which no copy is certain.
  uint64_t Unconfirmed() const;
  // Some copy of something is.
  bool AnyUnconfirmed() const;

  // `memory` is the view's.
  EngineBlockHash NameAt(size_t slot, std::string* memory) const;
  // Each slot once. `name.bytes` is valid during the visit.
  void ForEach(const std::function<void(const EngineBlockHash& name, size_t slot)>& visit) const;
  // About `*slots` slots from a cursor on (0: the first), bucket by bucket; what comes and goes
  // meanwhile moves nothing out of its way, some are visited twice. False: there are more, or
  // `visit` said false: then it goes on in the same bucket.
  bool ForEachFrom(
      uint64_t* cursor, size_t* slots,
      const std::function<bool(const EngineBlockHash& name, size_t slot)>& visit) const;

  // ---- For tests ----

  uint64_t moved() const { return rows_.moved(); }  // names, by growing, shrinking and removals
  // "" or what is wrong inside.
  std::string Check() const;

 private:
  // The state that many names share; counts of the four tiers as `TierCopies` has them, in one
  // word.
  struct State {
    uint64_t copies = 0;
    uint64_t certain = 0;
    uint32_t space = 0;

    friend bool operator==(const State&, const State&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const State& state) {
      return H::combine(std::move(h), state.space, state.copies, state.certain);
    }
    TierMask tiers() const {
      uint32_t bits = 0;
      for (int tier = 0; tier < kTiers; ++tier)
        bits |= static_cast<uint32_t>((copies >> (16 * tier) & 0xffff) != 0) << tier;
      return TierMask(static_cast<uint8_t>(bits));
    }
    bool unconfirmed() const;  // some tier has no certain copy
  };
  // One without names stays until its code is needed.
  struct Kind {
    State state;
    uint32_t names = 0;
  };
  struct Record {
    SequenceHash block{0};  // of a free one: the next free one
    Position position = 0;
    State state;
    bool used = false;
  };

  // A payload: block (or number of a record), position, code, rest of a digest.
  static constexpr size_t kPositionAt = 8;
  static constexpr size_t kCodeAt = 10;
  static constexpr size_t kRestAt = 11;
  static constexpr uint8_t kNoCode = 0;
  static constexpr uint8_t kIsRecord = 255;
  static constexpr Position kPositionMax = 0xffff;
  static constexpr uint32_t kNoRecord = ~uint32_t{0};

  uint64_t Word(size_t slot) const {
    uint64_t word;
    std::memcpy(&word, rows_.Payload(slot), sizeof(word));
    return word;
  }
  void SetWord(size_t slot, uint64_t word) {
    std::memcpy(rows_.Payload(slot), &word, sizeof(word));
  }
  uint8_t Code(size_t slot) const { return rows_.Payload(slot)[kCodeAt]; }
  const State& StateOf(size_t slot) const {
    const uint8_t code = Code(slot);
    return code == kIsRecord ? records_[Word(slot)].state : kinds_[code].state;
  }
  // Writes it to the row where it fits.
  void Set(size_t slot, const BlockPlace& place, const State& state);
  void SetState(size_t slot, const State& state);
  void Erased(size_t slot);

  // kIsRecord: there are too many kinds.
  uint8_t CodeOf(const State& state);
  void Take(uint8_t code) { idle_ -= kinds_[code].names++ == 0; }
  void Release(uint8_t code) { idle_ += --kinds_[code].names == 0; }
  uint32_t NewRecord();
  void FreeRecord(uint32_t number);
  // Calls `change(State*)` for each kind and record.
  template <typename Change>
  void ChangeStates(const Change& change);

  const size_t name_bytes_;
  const size_t rest_bytes_;  // of a digest before its last 8
  BucketTable rows_;
  std::vector<Kind> kinds_;  // by code; the first one is of no name
  size_t idle_ = 0;          // others without names
  absl::flat_hash_map<State, uint8_t> codes_;
  std::array<uint8_t, 64> recent_ = {};  // codes, by a cheap hash of the state
  std::deque<Record> records_;
  uint32_t free_record_ = kNoRecord;
  uint32_t records_used_ = 0;
  bool mixed_ = false;      // something may be unconfirmed
  uint64_t drop_from_ = 0;  // cursor
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ALIAS_TABLE_H_
