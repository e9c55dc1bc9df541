// Which block does this engine hash name, and in which tiers does the engine hold it? The names that one worker rank
// (and one attention group) gave, with the copies that it announced.
//
//   slot   [ key 8 | block 8 | position 16 bits, namespace 6, tiers 4, confirmed 4, flags 2 | rest of a digest ]
//
// *Truth*: names are compared by all their bytes. The key of a name is its last 8 bytes through a seeded bijection;
// slots are in order of keys with gaps (linear probing without wrapping around), so that a miss ends early, removal
// shifts back, and growth streams. What does not fit a slot (a second copy, a position beyond 65534, a namespace beyond
// 62) moves to a record that the slot points to.
// *Copies*: counted in the device tier, saturating, with a floor of zero; other tiers are sets, since connectors announce
// again what they hold. After `Lose` a copy is unconfirmed until it is stored again; `certain` counts those since.
// *Threads*: none; the caller serialises.
// *Cost*: 20 bytes a slot, a digest longer than 8 bytes the rest of its length more, at most 7/8 full and, where it only grows, 3/4 at least; one or two cache
// lines a look-up. Grows and shrinks in place.
// *Lifetime*: a slot number is valid until the next `FindOrInsert` or `Erase`.
//
// Example:
//   AliasTable names(0);
//   bool inserted;
//   const size_t slot = names.FindOrInsert(hash, {.block = block, .position = 0, .space = 0}, &inserted);
//   if (names.Store(slot, Tier::kDevice)) …   // the first copy
//   if (names.Remove(slot, Tier::kDevice) == AliasTable::Gone::kLast && names.tiers(slot).empty()) names.Erase(slot);

#ifndef KVATLAS_INDEXER_ENGINES_ALIAS_TABLE_H_
#define KVATLAS_INDEXER_ENGINES_ALIAS_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/engines/engine_event.h"

namespace kvatlas {

// A block as its chain has it.
struct BlockPlace {
  SequenceHash block{0};
  Position position = 0;
  uint32_t space = 0;  // number of its namespace

  friend bool operator==(const BlockPlace&, const BlockPlace&) = default;
};

using TierCopies = std::array<uint16_t, kTiers>;

// Zeroed memory that grows and shrinks, in place where the system can.
class Pages {
 public:
  Pages() = default;
  ~Pages() { Resize(0); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // What is added is zero. Memory that runs out ends the process.
  void Resize(size_t bytes);
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

class AliasTable {
 public:
  static constexpr size_t kNone = ~size_t{0};

  // For names whose `EngineBlockHash::bytes` are of this length; 0: integers. `seed` orders the keys.
  // Without `counts_copies` the device tier is a set, too.
  explicit AliasTable(size_t name_bytes, uint64_t seed = 0x9e3779b97f4a7c15,
                      bool counts_copies = true);

  AliasTable(const AliasTable&) = delete;
  AliasTable& operator=(const AliasTable&) = delete;

  size_t name_bytes() const { return name_bytes_; }
  size_t size() const { return size_; }
  size_t bytes() const;

  // Loads what a look-up of this name will touch.
  void Prefetch(const EngineBlockHash& name) const {
    if (homes_ == 0) return;
    const uint8_t* slot = At(Home(KeyOf(name.value)));
    __builtin_prefetch(slot);
    __builtin_prefetch(slot + 64);
  }

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
  SequenceHash block(size_t slot) const;
  TierMask tiers(size_t slot) const { return TierMask((Meta(slot) >> kTiersShift) & 0xf); }

  // One copy more; true: the first one in that tier.
  bool Store(size_t slot, Tier tier);
  enum class Gone { kNotHeld, kCopy, kLast };
  // One copy less.
  Gone Remove(size_t slot, Tier tier);
  // As `Store`, but there is one copy afterwards, however many there were before.
  bool StoreOnce(size_t slot, Tier tier);

  TierCopies copies(size_t slot) const;
  TierCopies certain(size_t slot) const;
  // Puts a slot back as it was: `certain[t] <= copies[t]`.
  void Restore(size_t slot, const TierCopies& copies, const TierCopies& certain);

  // ---- Losses ----

  // All that is held is unconfirmed from now on. O(copies beyond the first); once more before `Confirm` or a whole
  // `DropUnconfirmed`: O(slots).
  void Lose();
  // Everything held is certain after all. O(slots).
  void Confirm();
  // Looks at about `slots` slots from where it stopped: tiers with no certain copy are told to `drop`, then dropped; a slot
  // with none left is erased; counts become the certain ones. True: it is through.
  bool DropUnconfirmed(size_t slots,
                       const std::function<void(size_t slot, TierMask dropped, bool erased)>& drop);
  uint64_t Unconfirmed() const;
  // Some copy of something is. At most O(slots).
  bool AnyUnconfirmed() const;

  // `memory` is the view's.
  EngineBlockHash NameAt(size_t slot, std::string* memory) const;
  // Each slot once. `name.bytes` is valid during the visit.
  void ForEach(const std::function<void(const EngineBlockHash& name, size_t slot)>& visit) const;
  // At most about `*slots` slots from a key on, which is where it stopped; what comes and goes meanwhile moves nothing out of
  // its way. False: it stopped because there are more, or at the slot that `visit` said false to.
  bool ForEachFrom(
      uint64_t* key, size_t* slots,
      const std::function<bool(const EngineBlockHash& name, size_t slot)>& visit) const;

  // For tests: "" or what is wrong inside.
  std::string Check() const;

 private:
  // What does not fit a slot.
  struct Record {
    SequenceHash block{0};
    Position position = 0;
    uint32_t space = 0;
    TierCopies copies = {};
    TierCopies certain = {};
  };

  static constexpr size_t kSlotBytes = 20;  // and the rest of a digest
  static constexpr uint32_t kUsed = 1u << 31;
  static constexpr uint32_t kIsRecord = 1u << 30;
  static constexpr int kTiersShift = 26;
  static constexpr int kConfirmedShift = 22;  // bits equal to `generation_` are confirmed
  static constexpr int kSpaceShift = 16;
  static constexpr uint32_t kSpaceEnd = 63;
  static constexpr uint32_t kPositionEnd = 0xffff;

  uint8_t* At(size_t slot) const { return pages_.data() + slot * stride_; }
  template <typename T>
  static T Load(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint64_t Key(size_t slot) const { return Load<uint64_t>(At(slot)); }
  uint64_t Word(size_t slot) const { return Load<uint64_t>(At(slot) + 8); }
  uint32_t Meta(size_t slot) const { return Load<uint32_t>(At(slot) + 16); }
  void SetWord(size_t slot, uint64_t word) { std::memcpy(At(slot) + 8, &word, sizeof(word)); }
  void SetMeta(size_t slot, uint32_t meta) { std::memcpy(At(slot) + 16, &meta, sizeof(meta)); }
  void Copy(size_t to, size_t from) {
    std::memcpy(At(to), At(from), kSlotBytes);
    if (rest_bytes_ != 0) std::memcpy(At(to) + kSlotBytes, At(from) + kSlotBytes, rest_bytes_);
  }
  bool Used(size_t slot) const { return Meta(slot) != 0; }

  // A bijection, so that a name's value can be told from its key.
  uint64_t KeyOf(uint64_t value) const {
    value = (value ^ seed_) * kMultiplier;
    return (value ^ value >> 32) * kMultiplier;
  }
  uint64_t ValueOf(uint64_t key) const;
  size_t Home(uint64_t key) const {
    return static_cast<size_t>((static_cast<unsigned __int128>(key) * homes_) >> 64);
  }
  // The least key whose home is this, or the largest one beyond the homes.
  uint64_t FirstKeyOf(size_t home) const {
    if (home >= homes_) return ~uint64_t{0};
    return static_cast<uint64_t>(((static_cast<unsigned __int128>(home) << 64) + homes_ - 1) /
                                 homes_);
  }
  static constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;

  bool SameRest(size_t slot, const EngineBlockHash& name) const;
  // Where the name is, or where it would be inserted.
  bool Seek(const EngineBlockHash& name, size_t* slot) const;
  bool Confirmed(uint32_t meta, int tier) const {
    return (meta >> (kConfirmedShift + tier) & 1) == generation_;
  }
  uint32_t WithConfirmed(uint32_t meta, int tier, bool confirmed) const;

  Record RecordOf(size_t slot) const;
  // Writes it where it fits.
  void SetRecord(size_t slot, const Record& record);
  void FreeRecord(uint32_t number);

  size_t Slots() const { return homes_ == 0 ? 0 : homes_ + Spill(homes_); }
  static size_t Spill(size_t homes) { return homes < 4096 ? 64 : 512; }
  void SetHomes(size_t homes) {
    homes_ = homes;
    shrink_below_ = homes / 100 * 65;
  }
  void EraseSlot(size_t slot);
  void Grow();
  void MaybeShrink();

  const size_t name_bytes_;
  const size_t rest_bytes_;  // of a digest before its last 8
  const size_t stride_;
  const uint64_t seed_;
  const bool counts_copies_;
  Pages pages_;
  size_t homes_ = 0;
  size_t shrink_below_ = 0;  // slots
  size_t size_ = 0;
  uint32_t generation_ = 0;
  bool mixed_ = false;      // there may be bits of both generations
  uint64_t drop_from_ = 0;  // key
  std::vector<Record> records_;
  std::vector<uint32_t> free_records_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINES_ALIAS_TABLE_H_
