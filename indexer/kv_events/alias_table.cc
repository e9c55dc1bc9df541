// How names and their states are stored. A row of `rows_` has a one-byte code; `kinds_` says which
// state (namespace, copies, certain copies) the code stands for. Names with equal states share one
// kind, so that a row needs no counts of its own, and a loss changes all names by changing the
// kinds.
//
//   code      meaning                                       word in the row      position in the row
//   0         no state yet, only inside `FindOrInsert`      -                    -
//   1 … 254   index into `kinds_`                           the block            16 bits
//   255       state, block and position are in a record     index of the record  unused
//
// Invariants, which `Check` tests: `kinds_[c].names` counts the rows with code c; `idle_` counts
// kinds without names, code 0 aside; `codes_` finds a kind by its state. After a loss several kinds
// may have equal states: `codes_` then finds one of them, and the others empty as their names
// change.

#include "indexer/kv_events/alias_table.h"

#include <algorithm>

namespace kvatlas {
namespace {

constexpr uint64_t kCountMax = 0xffff;

// The count of a tier.
// Counts of four tiers, 16 bits each, in one word: states are compared and hashed as words. A count
// stops at its maximum, so that a name with more copies than that leaves too early, never too late.
uint64_t CountOf(uint64_t counts, int tier) { return counts >> (16 * tier) & kCountMax; }
uint64_t WithCount(uint64_t counts, int tier, uint64_t count) {
  return (counts & ~(kCountMax << (16 * tier))) | count << (16 * tier);
}
uint64_t OneMore(uint64_t count) { return std::min(count + 1, kCountMax); }

}  // namespace

AliasTable::AliasTable(size_t name_bytes, uint64_t seed)
    : name_bytes_(name_bytes),
      rest_bytes_(name_bytes > 8 ? name_bytes - 8 : 0),
      rows_(kRestAt + rest_bytes_, seed) {}

size_t AliasTable::bytes() const {
  return rows_.bytes() + kinds_.capacity() * sizeof(Kind) +
         codes_.capacity() * (sizeof(State) + 2) + records_.size() * sizeof(Record);
}

// ---- Look-ups ----

// Names of another length are of another table and are left out.
void AliasTable::Prefetch(std::span<const EngineBlockHash> names) const {
  uint64_t keys[BucketTable::kPrefetchMax];
  for (size_t i = 0; i < names.size();) {
    size_t count = 0;
    for (; i < names.size() && count < BucketTable::kPrefetchMax; ++i)
      if (names[i].bytes.size() == name_bytes_) keys[count++] = names[i].value;
    rows_.Prefetch({keys, count});
  }
}

// Names of at most 8 bytes are equal when their keys are. The key of a longer name is its last 8
// bytes, and the rest is compared in the row.
size_t AliasTable::Find(const EngineBlockHash& name) const {
  if (rest_bytes_ == 0) return rows_.Find(name.value);
  return rows_.Find(name.value, [&](const uint8_t* payload) {
    return std::memcmp(payload + kRestAt, name.bytes.data(), rest_bytes_) == 0;
  });
}

size_t AliasTable::FindValue(uint64_t value) const { return rows_.Find(value); }

size_t AliasTable::FindOrInsert(const EngineBlockHash& name, const BlockPlace& place,
                                bool* inserted) {
  size_t slot = Find(name);
  *inserted = slot == kNone;
  if (!*inserted) return slot;
  slot = rows_.Insert(name.value);
  uint8_t* const payload = rows_.Payload(slot);
  payload[kCodeAt] = kNoCode;
  if (rest_bytes_ != 0) std::memcpy(payload + kRestAt, name.bytes.data(), rest_bytes_);
  Set(slot, place, {.copies = 0, .certain = 0, .space = place.space});
  return slot;
}

// Gives up a row's code or record, before the row itself goes.
void AliasTable::Erased(size_t slot) {
  const uint8_t code = Code(slot);
  if (code == kIsRecord) return FreeRecord(static_cast<uint32_t>(Word(slot)));
  Release(code);
}

void AliasTable::Erase(size_t slot) {
  // The last name takes the memory with it: an engine that is idle costs nothing.
  if (size() == 1) return Clear();
  Erased(slot);
  rows_.Erase(slot);
}

void AliasTable::Clear() {
  rows_.Clear();
  kinds_ = std::vector<Kind>();
  idle_ = 0;
  codes_ = decltype(codes_)();
  recent_ = {};
  records_ = std::deque<Record>();
  free_record_ = kNoRecord;
  records_used_ = 0;
  mixed_ = false;
  drop_from_ = 0;
}

// ---- Slots ----

bool AliasTable::State::unconfirmed() const {
  const State certain_ones{.copies = certain, .certain = 0, .space = 0};
  return tiers() != certain_ones.tiers();
}

BlockPlace AliasTable::place(size_t slot) const {
  const uint64_t word = Word(slot);
  const uint8_t code = Code(slot);
  if (code == kIsRecord) {
    const Record& record = records_[word];
    return {record.block, record.position, record.state.space};
  }
  uint16_t position;
  std::memcpy(&position, rows_.Payload(slot) + kPositionAt, sizeof(position));
  return {SequenceHash{word}, position, kinds_[code].state.space};
}

void AliasTable::SetPlace(size_t slot, const BlockPlace& place) {
  State state = StateOf(slot);
  state.space = place.space;
  Set(slot, place, state);
}

// Writes place and state of a row, into a record where the row has no room for them. The new code
// is taken before the old one is released: where both are the same its kind never becomes idle in
// between, and could not be given to another state.
void AliasTable::Set(size_t slot, const BlockPlace& place, const State& state) {
  const uint8_t code = place.position <= kPositionMax ? CodeOf(state) : kIsRecord;
  uint8_t* const payload = rows_.Payload(slot);
  const uint8_t before = std::exchange(payload[kCodeAt], code);
  if (code == kIsRecord) {
    if (before != kIsRecord) SetWord(slot, NewRecord());
    records_[Word(slot)] = {place.block, place.position, state, true};
  } else {
    Take(code);
    if (before == kIsRecord) FreeRecord(static_cast<uint32_t>(Word(slot)));
    const uint16_t position = static_cast<uint16_t>(place.position);
    SetWord(slot, Raw(place.block));
    std::memcpy(payload + kPositionAt, &position, sizeof(position));
  }
  if (before != kIsRecord && before != kNoCode) Release(before);
}

// As `Set` where the place stays: only the code changes, unless a record is involved.
void AliasTable::SetState(size_t slot, const State& state) {
  uint8_t& code = rows_.Payload(slot)[kCodeAt];
  const uint8_t after = code == kIsRecord ? kIsRecord : CodeOf(state);
  if (after == kIsRecord) return Set(slot, place(slot), state);
  Take(after);
  Release(code);
  code = after;
}

// The code of a state; of a new state a new code, or that of an idle kind. kIsRecord: all 254 are
// in use. Not taken yet: a further call may give the same code to another state, so that the caller
// takes it at once.
//
// `recent_` answers almost every call: events of one batch change names between few states.
uint8_t AliasTable::CodeOf(const State& state) {
  const uint64_t hash = state.copies * 3 + state.certain * 5 + state.space;
  uint8_t& recent = recent_[(hash * 0x9e3779b97f4a7c15) >> 58];
  if (recent != kNoCode && kinds_[recent].state == state) return recent;
  if (kinds_.empty()) kinds_.resize(1);
  const auto known = codes_.find(state);
  if (known != codes_.end()) return recent = known->second;
  size_t code = kinds_.size();
  if (code < kIsRecord) {
    kinds_.emplace_back();
    ++idle_;
  } else {
    if (idle_ == 0) return kIsRecord;
    // Ends, since some kind is idle. 254 steps at most, and only where there are more kinds than
    // codes.
    for (code = 1; kinds_[code].names != 0;) ++code;
    // After a loss several codes may stand for one state, of which this need not be the one that is
    // found.
    const auto old = codes_.find(kinds_[code].state);
    if (old != codes_.end() && old->second == code) codes_.erase(old);
  }
  kinds_[code].state = state;
  codes_.emplace(state, static_cast<uint8_t>(code));
  return recent = static_cast<uint8_t>(code);
}

// Free records are a list through their `block` fields. `Word(slot)` is set by the caller.
uint32_t AliasTable::NewRecord() {
  ++records_used_;
  if (free_record_ == kNoRecord) {
    records_.emplace_back();
    return static_cast<uint32_t>(records_.size() - 1);
  }
  const uint32_t number = free_record_;
  free_record_ = static_cast<uint32_t>(Raw(records_[number].block));
  return number;
}

// With the last record the memory of all of them goes.
void AliasTable::FreeRecord(uint32_t number) {
  records_[number] = {.block = SequenceHash{free_record_}, .position = 0, .state = {}};
  free_record_ = number;
  if (--records_used_ != 0) return;
  records_ = std::deque<Record>();
  free_record_ = kNoRecord;
}

// A store counts in both numbers: it confirms its own copy.
bool AliasTable::Store(size_t slot, Tier tier, Copies copies) {
  const int t = static_cast<int>(tier);
  State state = StateOf(slot);
  const uint64_t before = CountOf(state.copies, t);
  const auto after = [copies](uint64_t count) {
    if (copies == Copies::kOneMore) return OneMore(count);
    return copies == Copies::kOne ? 1 : std::max<uint64_t>(count, 1);
  };
  state.copies = WithCount(state.copies, t, after(before));
  state.certain = WithCount(state.certain, t, after(CountOf(state.certain, t)));
  SetState(slot, state);
  return before == 0;
}

// A removal takes a certain copy first: which copy the engine removed is unknown, and too few
// certain ones drop a name too early, never too late.
AliasTable::Gone AliasTable::Remove(size_t slot, Tier tier) {
  const int t = static_cast<int>(tier);
  State state = StateOf(slot);
  const uint64_t copies = CountOf(state.copies, t);
  if (copies == 0) return Gone::kNotHeld;
  const uint64_t certain = CountOf(state.certain, t);
  state.copies = WithCount(state.copies, t, copies - 1);
  state.certain = WithCount(state.certain, t, certain == 0 ? 0 : certain - 1);
  SetState(slot, state);
  return copies == 1 ? Gone::kLast : Gone::kCopy;
}

void AliasTable::Restore(size_t slot, const TierCopies& copies, const TierCopies& certain) {
  mixed_ = mixed_ || copies != certain;
  SetState(slot, {.copies = std::bit_cast<uint64_t>(copies),
                  .certain = std::bit_cast<uint64_t>(certain),
                  .space = StateOf(slot).space});
}

// ---- Losses ----

// Changes every state at once, without looking at rows: O(kinds + records). `codes_` is made anew;
// the first of several equal kinds is the one that is found.
template <typename Change>
void AliasTable::ChangeStates(const Change& change) {
  codes_.clear();
  for (size_t code = 1; code < kinds_.size(); ++code) {
    change(&kinds_[code].state);
    codes_.try_emplace(kinds_[code].state, static_cast<uint8_t>(code));
  }
  for (Record& record : records_)
    if (record.used) change(&record.state);
}

void AliasTable::Lose() {
  ChangeStates([](State* state) { state->certain = 0; });
  mixed_ = true;
  drop_from_ = 0;
}

void AliasTable::Confirm() {
  ChangeStates([](State* state) { state->certain = state->copies; });
  mixed_ = false;
  drop_from_ = 0;
}

// Walks bucket by bucket from `drop_from_`. Rows are erased without merging buckets, so that the
// cursor stays valid through the walk; `Shrink` makes up for it afterwards. `erased` names have to
// be read by `drop` before they go: it is called first. A call ends at the first bucket border
// after `slots` slots, and buckets that are empty count as one, so that a sparse table ends a call
// too.
bool AliasTable::DropUnconfirmed(
    size_t slots, const std::function<void(size_t slot, TierMask dropped, bool erased)>& drop) {
  size_t erased = 0;
  size_t looked = 0;
  while (mixed_ && size() != 0 && looked < slots) {
    const size_t bucket = rows_.BucketOfCursor(drop_from_);
    ++looked;
    for (size_t at = 0; at < rows_.RowsIn(bucket); ++looked) {
      const size_t slot = rows_.RowAt(bucket, at);
      State state = StateOf(slot);
      const TierMask before = state.tiers();
      state.copies = state.certain;
      const TierMask dropped(before.bits() & ~state.tiers().bits());
      const bool held = !state.tiers().empty();
      if (!dropped.empty() || !held) drop(slot, dropped, !held);
      if (held) {
        if (state != StateOf(slot)) SetState(slot, state);
        ++at;
      } else {
        Erased(slot);
        rows_.EraseKeepingBuckets(slot);
        ++erased;
      }
    }
    drop_from_ = rows_.CursorBehind(bucket);
    if (drop_from_ == 0) mixed_ = false;
  }
  if (size() == 0) Clear();
  if (erased != 0) rows_.Shrink(erased);
  if (mixed_) return false;
  drop_from_ = 0;
  return true;
}

// Free records have no copies and are not counted.
uint64_t AliasTable::Unconfirmed() const {
  uint64_t count = 0;
  if (!mixed_) return count;
  for (const Kind& kind : kinds_) count += kind.state.unconfirmed() ? kind.names : 0;
  for (const Record& record : records_) count += record.state.unconfirmed();
  return count;
}

bool AliasTable::AnyUnconfirmed() const {
  if (!mixed_) return false;
  const auto doubtful = [](const State& state) { return state.copies != state.certain; };
  for (const Kind& kind : kinds_)
    if (kind.names != 0 && doubtful(kind.state)) return true;
  return std::any_of(records_.begin(), records_.end(),
                     [&](const Record& record) { return doubtful(record.state); });
}

// ---- Visits ----

// Puts a name together again: the rest from the row, the last 8 bytes, or all of a shorter name,
// from the key. Keys are big-endian numbers.
EngineBlockHash AliasTable::NameAt(size_t slot, std::string* memory) const {
  EngineBlockHash name{.value = rows_.KeyOf(slot), .bytes = {}};
  if (name_bytes_ == 0) return name;
  memory->resize(name_bytes_);
  std::memcpy(memory->data(), rows_.Payload(slot) + kRestAt, rest_bytes_);
  for (size_t i = rest_bytes_; i < name_bytes_; ++i)
    (*memory)[i] = static_cast<char>(name.value >> (8 * (name_bytes_ - 1 - i)));
  name.bytes = *memory;
  return name;
}

void AliasTable::ForEach(
    const std::function<void(const EngineBlockHash& name, size_t slot)>& visit) const {
  std::string memory;
  rows_.ForEach([&](size_t slot) { visit(NameAt(slot, &memory), slot); });
}

// Visits whole buckets: a bucket that a visit ends early is visited again from its start.
bool AliasTable::ForEachFrom(
    uint64_t* cursor, size_t* slots,
    const std::function<bool(const EngineBlockHash& name, size_t slot)>& visit) const {
  std::string memory;
  while (size() != 0) {
    if (*slots == 0) return false;
    const size_t bucket = rows_.BucketOfCursor(*cursor);
    const size_t rows = rows_.RowsIn(bucket);
    for (size_t at = 0; at < rows; ++at) {
      const size_t slot = rows_.RowAt(bucket, at);
      if (!visit(NameAt(slot, &memory), slot)) return false;
    }
    *slots -= std::min(*slots, rows + 1);
    *cursor = rows_.CursorBehind(bucket);
    if (*cursor == 0) break;
  }
  return true;
}

std::string AliasTable::Check() const {
  if (const std::string wrong = rows_.Check(); !wrong.empty()) return wrong;
  std::vector<uint32_t> names(kinds_.size());
  size_t records = 0;
  bool is_sound = true;
  rows_.ForEach([&](size_t slot) {
    const uint8_t code = Code(slot);
    if (code == kIsRecord) {
      ++records;
      is_sound = is_sound && Word(slot) < records_.size() && records_[Word(slot)].used;
    } else {
      is_sound = is_sound && code != kNoCode && code < kinds_.size();
      if (is_sound) ++names[code];
    }
  });
  if (!is_sound) return "a row's code";
  if (records != records_used_) return "records";
  for (size_t code = 0; code < kinds_.size(); ++code)
    if (names[code] != kinds_[code].names) return "names of a kind";
  size_t idle = 0;
  for (size_t code = 1; code < kinds_.size(); ++code) idle += kinds_[code].names == 0;
  if (idle != idle_) return "kinds without names";
  for (const auto& [state, code] : codes_)
    if (kinds_[code].state != state) return "a code's state";
  return "";
}

}  // namespace kvatlas
