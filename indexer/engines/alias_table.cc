#include "indexer/engines/alias_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace kvatlas {
namespace {

constexpr size_t kMapFrom = 256 << 10;  // bytes; smaller ones are the allocator's

constexpr size_t kPage = 1 << 16;  // at least the system's

uint8_t* Checked(void* memory) {
  if (memory == nullptr || memory == MAP_FAILED) std::abort();
  return static_cast<uint8_t*>(memory);
}

uint16_t OneMore(uint16_t copies) { return copies == 0xffff ? copies : copies + 1; }

}  // namespace

// ---- Memory ----

void Pages::Resize(size_t bytes) {
  const bool was_mapped = bytes_ >= kMapFrom;
  const bool is_mapped = bytes >= kMapFrom;
  if (was_mapped && is_mapped) {
    data_ = Checked(mremap(data_, bytes_, bytes, MREMAP_MAYMOVE));
    // The rest of the last page may have been in use before.
    const size_t page_end = (bytes_ + kPage - 1) / kPage * kPage;
    if (bytes > bytes_) std::memset(data_ + bytes_, 0, std::min(bytes, page_end) - bytes_);
    bytes_ = bytes;
    return;
  }
  uint8_t* data = nullptr;
  if (is_mapped) {
    data =
        Checked(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  } else if (bytes != 0) {
    data = Checked(std::calloc(1, bytes));
  }
  if (data_ != nullptr && data != nullptr) std::memcpy(data, data_, std::min(bytes, bytes_));
  if (data_ != nullptr) was_mapped ? static_cast<void>(munmap(data_, bytes_)) : std::free(data_);
  data_ = data;
  bytes_ = bytes;
}

// ---- Look-ups ----

AliasTable::AliasTable(size_t name_bytes, uint64_t seed, bool counts_copies)
    : name_bytes_(name_bytes),
      rest_bytes_(name_bytes > 8 ? name_bytes - 8 : 0),
      stride_(kSlotBytes + rest_bytes_),
      seed_(seed),
      counts_copies_(counts_copies) {}

size_t AliasTable::bytes() const {
  return pages_.bytes() + records_.capacity() * sizeof(Record) +
         free_records_.capacity() * sizeof(uint32_t);
}

uint64_t AliasTable::ValueOf(uint64_t key) const {
  constexpr uint64_t kInverse = 0xf1de83e19937733d;  // of kMultiplier, mod 2^64
  static_assert(kMultiplier * kInverse == 1);
  key *= kInverse;
  key ^= key >> 32;
  return key * kInverse ^ seed_;
}

bool AliasTable::SameRest(size_t slot, const EngineBlockHash& name) const {
  return rest_bytes_ == 0 ||
         std::memcmp(At(slot) + kSlotBytes, name.bytes.data(), rest_bytes_) == 0;
}

bool AliasTable::Seek(const EngineBlockHash& name, size_t* slot) const {
  const uint64_t key = KeyOf(name.value);
  size_t at = Home(key);
  // The slot behind the last one is never used.
  for (; Used(at); ++at) {
    const uint64_t other = Key(at);
    if (other > key) break;
    if (other == key && SameRest(at, name)) {
      *slot = at;
      return true;
    }
  }
  *slot = at;
  return false;
}

size_t AliasTable::Find(const EngineBlockHash& name) const {
  size_t slot;
  return size_ != 0 && Seek(name, &slot) ? slot : kNone;
}

size_t AliasTable::FindValue(uint64_t value) const {
  if (size_ == 0) return kNone;
  const uint64_t key = KeyOf(value);
  size_t at = Home(key);
  while (Used(at) && Key(at) < key) ++at;
  return Used(at) && Key(at) == key ? at : kNone;
}

size_t AliasTable::FindOrInsert(const EngineBlockHash& name, const BlockPlace& place,
                                bool* inserted) {
  size_t slot;
  *inserted = false;
  if (homes_ == 0) Grow();
  if (Seek(name, &slot)) return slot;
  *inserted = true;
  if (size_ + 1 > homes_ - homes_ / 8) {
    Grow();
    Seek(name, &slot);
  }
  size_t end;
  for (;; Seek(name, &slot)) {
    end = slot;
    while (Used(end)) ++end;
    if (end + 1 < Slots()) break;
    Grow();
  }
  std::memmove(At(slot + 1), At(slot), (end - slot) * stride_);
  const uint64_t key = KeyOf(name.value);
  std::memcpy(At(slot), &key, sizeof(key));
  if (rest_bytes_ != 0) std::memcpy(At(slot) + kSlotBytes, name.bytes.data(), rest_bytes_);
  SetMeta(slot, kUsed);
  if (place.position < kPositionEnd && place.space < kSpaceEnd) {
    SetMeta(slot, kUsed | place.space << kSpaceShift | place.position);
    SetWord(slot, Raw(place.block));
  } else {
    SetRecord(slot, {.block = place.block, .position = place.position, .space = place.space});
  }
  ++size_;
  return slot;
}

void AliasTable::Erase(size_t slot) {
  EraseSlot(slot);
  if (homes_ > 64 && size_ > shrink_below_) return;
  MaybeShrink();
}

void AliasTable::EraseSlot(size_t slot) {
  if (Meta(slot) & kIsRecord) FreeRecord(static_cast<uint32_t>(Word(slot)));
  size_t end = slot + 1;
  while (Used(end) && Home(Key(end)) < end) ++end;
  std::memmove(At(slot), At(slot + 1), (end - slot - 1) * stride_);
  SetMeta(end - 1, 0);
  --size_;
}

void AliasTable::Clear() {
  pages_.Resize(0);
  homes_ = 0;
  size_ = 0;
  shrink_below_ = 0;
  records_ = std::vector<Record>();
  free_records_ = std::vector<uint32_t>();
  mixed_ = false;
  drop_from_ = 0;
}

// ---- Slots ----

uint32_t AliasTable::WithConfirmed(uint32_t meta, int tier, bool confirmed) const {
  const uint32_t bit = 1u << (kConfirmedShift + tier);
  return (generation_ == 1) == confirmed ? meta | bit : meta & ~bit;
}

SequenceHash AliasTable::block(size_t slot) const {
  const uint64_t word = Word(slot);
  return Meta(slot) & kIsRecord ? records_[word].block : SequenceHash{word};
}

BlockPlace AliasTable::place(size_t slot) const {
  const uint32_t meta = Meta(slot);
  const uint64_t word = Word(slot);
  if (meta & kIsRecord) {
    const Record& record = records_[word];
    return {record.block, record.position, record.space};
  }
  return {SequenceHash{word}, meta & 0xffff, meta >> kSpaceShift & 0x3f};
}

void AliasTable::SetPlace(size_t slot, const BlockPlace& place) {
  Record record = RecordOf(slot);
  record.block = place.block;
  record.position = place.position;
  record.space = place.space;
  SetRecord(slot, record);
}

AliasTable::Record AliasTable::RecordOf(size_t slot) const {
  const uint32_t meta = Meta(slot);
  if (meta & kIsRecord) return records_[Word(slot)];
  const BlockPlace at = place(slot);
  Record record{.block = at.block, .position = at.position, .space = at.space};
  for (int tier = 0; tier < kTiers; ++tier) {
    record.copies[tier] = meta >> (kTiersShift + tier) & 1;
    record.certain[tier] = record.copies[tier] != 0 && Confirmed(meta, tier);
  }
  return record;
}

void AliasTable::SetRecord(size_t slot, const Record& record) {
  uint32_t meta = kUsed;
  bool fits = record.position < kPositionEnd && record.space < kSpaceEnd;
  for (int tier = 0; tier < kTiers; ++tier) {
    if (record.copies[tier] == 0) continue;
    fits = fits && record.copies[tier] == 1;
    meta = WithConfirmed(meta | 1u << (kTiersShift + tier), tier, record.certain[tier] != 0);
  }
  const bool was_record = Meta(slot) & kIsRecord;
  if (fits) {
    if (was_record) FreeRecord(static_cast<uint32_t>(Word(slot)));
    SetMeta(slot, meta | record.space << kSpaceShift | record.position);
    SetWord(slot, Raw(record.block));
    return;
  }
  if (!was_record) {
    if (free_records_.empty()) {
      free_records_.push_back(static_cast<uint32_t>(records_.size()));
      records_.emplace_back();
    }
    SetWord(slot, free_records_.back());
    free_records_.pop_back();
  }
  records_[Word(slot)] = record;
  SetMeta(slot, meta | kIsRecord);
}

void AliasTable::FreeRecord(uint32_t number) {
  records_[number] = Record();
  free_records_.push_back(number);
  if (free_records_.size() < records_.size()) return;
  records_ = std::vector<Record>();
  free_records_ = std::vector<uint32_t>();
}

bool AliasTable::Store(size_t slot, Tier tier) {
  const int t = static_cast<int>(tier);
  const uint32_t meta = Meta(slot);
  const bool held = meta >> (kTiersShift + t) & 1;
  const bool counted = counts_copies_ && tier == Tier::kDevice;
  if (!(meta & kIsRecord) && (!held || !counted)) {
    SetMeta(slot, WithConfirmed(meta | 1u << (kTiersShift + t), t, true));
    return !held;
  }
  Record record = RecordOf(slot);
  record.copies[t] = counted ? OneMore(record.copies[t]) : 1;
  record.certain[t] = counted ? OneMore(record.certain[t]) : 1;
  SetRecord(slot, record);
  return !held;
}

bool AliasTable::StoreOnce(size_t slot, Tier tier) {
  const bool first = Store(slot, tier);
  if (!(Meta(slot) & kIsRecord)) return first;
  const int t = static_cast<int>(tier);
  Record record = RecordOf(slot);
  record.copies[t] = record.certain[t] = 1;
  SetRecord(slot, record);
  return first;
}

AliasTable::Gone AliasTable::Remove(size_t slot, Tier tier) {
  const int t = static_cast<int>(tier);
  const uint32_t meta = Meta(slot);
  if (!(meta >> (kTiersShift + t) & 1)) return Gone::kNotHeld;
  if (!(meta & kIsRecord)) {
    SetMeta(slot, meta & ~(1u << (kTiersShift + t)) & ~(1u << (kConfirmedShift + t)));
    return Gone::kLast;
  }
  Record record = RecordOf(slot);
  --record.copies[t];
  if (record.certain[t] != 0) --record.certain[t];
  SetRecord(slot, record);
  return record.copies[t] == 0 ? Gone::kLast : Gone::kCopy;
}

TierCopies AliasTable::copies(size_t slot) const { return RecordOf(slot).copies; }
TierCopies AliasTable::certain(size_t slot) const { return RecordOf(slot).certain; }

void AliasTable::Restore(size_t slot, const TierCopies& copies, const TierCopies& certain) {
  Record record = RecordOf(slot);
  record.copies = copies;
  record.certain = certain;
  mixed_ = mixed_ || copies != certain;
  SetRecord(slot, record);
}

// ---- Losses ----

void AliasTable::Lose() {
  for (Record& record : records_) record.certain = {};
  generation_ ^= 1;
  drop_from_ = 0;
  if (mixed_) {
    for (size_t slot = 0; slot < Slots(); ++slot) {
      uint32_t meta = Meta(slot);
      if (meta == 0) continue;
      for (int tier = 0; tier < kTiers; ++tier) meta = WithConfirmed(meta, tier, false);
      SetMeta(slot, meta);
    }
  }
  mixed_ = true;
}

void AliasTable::Confirm() {
  for (Record& record : records_) record.certain = record.copies;
  for (size_t slot = 0; slot < Slots() && mixed_; ++slot) {
    uint32_t meta = Meta(slot);
    if (meta == 0) continue;
    for (int tier = 0; tier < kTiers; ++tier) meta = WithConfirmed(meta, tier, true);
    SetMeta(slot, meta);
  }
  mixed_ = false;
  drop_from_ = 0;
}

bool AliasTable::DropUnconfirmed(
    size_t slots, const std::function<void(size_t slot, TierMask dropped, bool erased)>& drop) {
  if (!mixed_) return true;
  size_t at = homes_ == 0 ? 0 : Home(drop_from_);
  for (size_t looked = 0; looked < slots && at < Slots(); ++looked) {
    if (!Used(at)) {
      // Nothing behind a gap belongs before it.
      drop_from_ = FirstKeyOf(at++);
      continue;
    }
    if (Key(at) < drop_from_) {
      ++at;
      continue;
    }
    drop_from_ = Key(at);
    const Record before = RecordOf(at);
    Record record = before;
    record.copies = record.certain;
    TierMask dropped;
    bool held = false;
    for (int tier = 0; tier < kTiers; ++tier) {
      held = held || record.copies[tier] != 0;
      if (before.copies[tier] != 0 && record.copies[tier] == 0)
        dropped = dropped | TierMask(static_cast<Tier>(tier));
    }
    if (!dropped.empty() || !held) drop(at, dropped, !held);
    if (held) {
      SetRecord(at++, record);
      continue;
    }
    // What is left is not spread evenly meanwhile: no shrinking before the end.
    EraseSlot(at);
  }
  if (at < Slots()) return false;
  mixed_ = false;
  drop_from_ = 0;
  MaybeShrink();
  return true;
}

uint64_t AliasTable::Unconfirmed() const {
  uint64_t count = 0;
  if (!mixed_) return count;
  for (size_t slot = 0; slot < Slots(); ++slot) {
    if (!Used(slot)) continue;
    const Record record = RecordOf(slot);
    bool unconfirmed = false;
    for (int tier = 0; tier < kTiers; ++tier)
      unconfirmed = unconfirmed || (record.copies[tier] != 0 && record.certain[tier] == 0);
    count += unconfirmed;
  }
  return count;
}

bool AliasTable::AnyUnconfirmed() const {
  for (size_t slot = 0; mixed_ && slot < Slots(); ++slot) {
    if (!Used(slot)) continue;
    const Record record = RecordOf(slot);
    if (record.copies != record.certain) return true;
  }
  return false;
}

// ---- Growth ----

// Slots stay in order. They go to the end first, then each to its place.
void AliasTable::Grow() {
  size_t homes = homes_ < 4096 ? std::max<size_t>(16, homes_ * 2) : homes_ + homes_ / 7;
  // Again where the spill behind the last home did not take what belongs there.
  for (;; homes += homes / 5) {
    const size_t slots = Slots();
    size_t to = homes + Spill(homes);
    pages_.Resize(to * stride_);
    for (size_t from = slots; from-- > 0;) {
      if (!Used(from)) continue;
      --to;
      if (to == from) continue;
      Copy(to, from);
      SetMeta(from, 0);
    }
    SetHomes(homes);
    size_t next = 0;
    bool fits = true;
    for (size_t from = to; from < Slots() && fits; ++from) {
      const size_t place = std::max(Home(Key(from)), next);
      // One slot at the end stays free.
      fits = place <= from && place + 1 < Slots();
      if (!fits) break;
      if (place != from) {
        Copy(place, from);
        SetMeta(from, 0);
      }
      next = place + 1;
    }
    if (fits) return;
  }
}

// Slots move towards the front, in order.
void AliasTable::MaybeShrink() {
  if (size_ == 0) {
    pages_.Resize(0);
    homes_ = 0;
    shrink_below_ = 0;
    return;
  }
  if (homes_ <= 64 || size_ > shrink_below_) return;
  const size_t slots = Slots();
  const size_t homes = homes_;
  SetHomes(std::max<size_t>(16, size_ + size_ / 4));
  size_t next = 0;
  for (size_t from = 0; from < slots; ++from)
    if (Used(from)) next = std::max(Home(Key(from)), next) + 1;
  if (next >= Slots()) {
    SetHomes(homes);
    shrink_below_ = size_ / 2;  // by chance they do not fit now
    return;
  }
  next = 0;
  for (size_t from = 0; from < slots; ++from) {
    if (!Used(from)) continue;
    const size_t place = std::max(Home(Key(from)), next);
    if (place != from) {
      Copy(place, from);
      SetMeta(from, 0);
    }
    next = place + 1;
  }
  pages_.Resize(Slots() * stride_);
}

// ---- Visits ----

EngineBlockHash AliasTable::NameAt(size_t slot, std::string* memory) const {
  EngineBlockHash name{.value = ValueOf(Key(slot)), .bytes = {}};
  if (name_bytes_ == 0) return name;
  memory->resize(name_bytes_);
  std::memcpy(memory->data(), At(slot) + kSlotBytes, rest_bytes_);
  for (size_t i = rest_bytes_; i < name_bytes_; ++i)
    (*memory)[i] = static_cast<char>(name.value >> (8 * (name_bytes_ - 1 - i)));
  name.bytes = *memory;
  return name;
}

void AliasTable::ForEach(
    const std::function<void(const EngineBlockHash& name, size_t slot)>& visit) const {
  std::string memory;
  for (size_t slot = 0; slot < Slots(); ++slot)
    if (Used(slot)) visit(NameAt(slot, &memory), slot);
}

bool AliasTable::ForEachFrom(
    uint64_t* key, size_t* slots,
    const std::function<bool(const EngineBlockHash& name, size_t slot)>& visit) const {
  std::string memory;
  for (size_t at = homes_ == 0 ? 0 : Home(*key); at < Slots(); ++at) {
    if (*slots == 0) return false;
    --*slots;
    if (!Used(at)) {
      *key = std::max(*key, FirstKeyOf(at));
      continue;
    }
    if (Key(at) < *key) continue;
    *key = Key(at);
    if (!visit(NameAt(at, &memory), at)) return false;
  }
  return true;
}

std::string AliasTable::Check() const {
  size_t used = 0;
  size_t records = 0;
  uint64_t key = 0;
  for (size_t slot = 0; slot < Slots(); ++slot) {
    if (!Used(slot)) continue;
    if (Key(slot) < key) return "keys out of order";
    key = Key(slot);
    const size_t home = Home(key);
    if (home > slot) return "before its home";
    for (size_t between = home; between < slot; ++between)
      if (!Used(between)) return "a gap before a slot";
    ++used;
    records += (Meta(slot) & kIsRecord) != 0;
  }
  if (used != size_) return "size";
  if (records + free_records_.size() != records_.size()) return "records";
  if (homes_ != 0 && Used(Slots() - 1)) return "the last slot is used";
  return "";
}

}  // namespace kvatlas
