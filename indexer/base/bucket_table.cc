// A bucket is one allocation: a head of two u32 (rows, room), a byte of each row's mixed key, then
// the rows. A row has 48 further bits of its key in 6 bytes, and its payload; the lowest 8 bits are
// those of its bucket's number, so that the whole key can be restored (MixedOf).
//
// Linear hashing: with `buckets_` between `half_` and 2 * `half_`, buckets below `buckets_ - half_`
// and those from `half_` on are split (one bit more counts), the rest are not. Split takes the next
// unsplit bucket in order, Merge undoes the last split.

#include "indexer/base/bucket_table.h"

#include <algorithm>
#include <cstdlib>

namespace kvatlas {
namespace {

// Bytes that the allocator takes for a block of `bytes`: 8 more for its head, in all a multiple of
// 16.
constexpr size_t Allocated(size_t bytes) { return (bytes + 8 + 15) / 16 * 16; }

}  // namespace

uint64_t BucketTable::Unmix(uint64_t mixed) const {
  constexpr uint64_t kInverse = 0xf1de83e19937733d;  // of kMultiplier, mod 2^64
  static_assert(kMultiplier * kInverse == 1);
  mixed = (mixed ^ mixed >> 32) * kInverse;
  return (mixed ^ mixed >> 32) * kInverse ^ seed_;
}

// The bits in reverse order: within bytes by swaps, then the bytes.
uint64_t BucketTable::Reversed(uint64_t bits) {
  const auto swap = [](uint64_t of, int by, uint64_t mask) {
    return (of >> by & mask) | (of & mask) << by;
  };
  bits = swap(bits, 1, 0x5555555555555555);
  bits = swap(bits, 2, 0x3333333333333333);
  bits = swap(bits, 4, 0x0f0f0f0f0f0f0f0f);
  return __builtin_bswap64(bits);
}

uint64_t BucketTable::MixedOf(size_t row) const {
  const size_t bucket = row >> kAtBits;
  const size_t at = row & ((uint64_t{1} << kAtBits) - 1);
  const uint8_t* const memory = Memory(bucket);
  return uint64_t{memory[kHeadBytes + at]} << 56 | (Load<uint64_t>(Row(row)) & kRestMask) << 8 |
         (bucket & (kBucketsMin - 1));
}

// A look-up waits for memory three times: number of the bucket to its pointer, to its head, to its
// row. Each pass here asks for one step of all keys at once, so that their waits overlap.
void BucketTable::Prefetch(std::span<const uint64_t> keys) const {
  if (size_ == 0) return;
  uint64_t mixed[kPrefetchMax];
  const uint8_t* memory[kPrefetchMax];
  for (size_t i = 0; i < keys.size(); ++i) {
    mixed[i] = Mix(keys[i]);
    const size_t bucket = BucketOf(mixed[i]);
    __builtin_prefetch(&(*chunks_[bucket / kBucketsPerChunk])[bucket % kBucketsPerChunk]);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    memory[i] = Memory(BucketOf(mixed[i]));
    if (memory[i] == nullptr) continue;
    __builtin_prefetch(memory[i]);
    __builtin_prefetch(memory[i] + 64);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    if (memory[i] == nullptr) continue;
    const uint8_t* const tops = memory[i] + kHeadBytes;
    const size_t rows = Load<uint32_t>(memory[i]);
    const void* const top = std::memchr(tops, static_cast<int>(mixed[i] >> 56), rows);
    const size_t at =
        top == nullptr ? rows : static_cast<size_t>(static_cast<const uint8_t*>(top) - tops);
    const uint8_t* const row = tops + Room(memory[i]) + at * row_bytes_;
    __builtin_prefetch(row);
    __builtin_prefetch(row + row_bytes_ - 1);
  }
}

// ---- Buckets ----

size_t BucketTable::BytesFor(size_t room) const { return kHeadBytes + room * (1 + row_bytes_); }

// Room for `rows` and a sixteenth more, and for what fits into the allocator's rounding anyway. Out
// of memory aborts: the caller cannot go on with half a bucket.
uint8_t* BucketTable::Allocate(size_t rows) {
  const size_t bytes = Allocated(BytesFor(rows + std::max<size_t>(1, rows / 16))) - 8;
  const uint32_t room = static_cast<uint32_t>((bytes - kHeadBytes) / (1 + row_bytes_));
  uint8_t* const memory = static_cast<uint8_t*>(std::malloc(BytesFor(room)));
  if (memory == nullptr) std::abort();
  bytes_ += Allocated(BytesFor(room));
  StoreCount(memory, 0);
  std::memcpy(memory + 4, &room, sizeof(room));
  return memory;
}

void BucketTable::Free(uint8_t* memory) {
  if (memory == nullptr) return;
  bytes_ -= Allocated(BytesFor(Room(memory)));
  std::free(memory);
}

// REQUIRES: there is room.
void BucketTable::Append(uint8_t* memory, uint8_t top, const uint8_t* row) {
  const size_t rows = Load<uint32_t>(memory);
  memory[kHeadBytes + rows] = top;
  std::memcpy(RowIn(memory, rows), row, row_bytes_);
  StoreCount(memory, rows + 1);
  ++moved_;
}

// Gives the bucket new memory for `rows` and some more, with the rows that it has; none for 0.
// REQUIRES: rows >= RowsIn(bucket).
uint8_t* BucketTable::Refit(size_t bucket, size_t rows) {
  uint8_t*& memory = Memory(bucket);
  uint8_t* const old = memory;
  memory = rows == 0 ? nullptr : Allocate(rows);
  if (old != nullptr && rows != 0) {
    const size_t count = Load<uint32_t>(old);
    std::memcpy(memory + kHeadBytes, old + kHeadBytes, count);
    std::memcpy(RowIn(memory, 0), RowIn(old, 0), count * row_bytes_);
    StoreCount(memory, count);
    moved_ += count;
  }
  Free(old);
  return memory;
}

// Makes the number of the next bucket valid, with a new chunk of pointers where needed. A chunk
// starts with null pointers.
void BucketTable::AddBucket() {
  if (buckets_ == chunks_.size() * kBucketsPerChunk) {
    const size_t numbers_before = chunks_.capacity();
    chunks_.push_back(std::make_unique<Chunk>());
    bytes_ += Allocated(sizeof(Chunk)) +
              (chunks_.capacity() - numbers_before) * sizeof(std::unique_ptr<Chunk>);
  }
  if (++buckets_ == 2 * half_) half_ = buckets_;
}

// Splits the first bucket that was not split since the last doubling: rows whose next bit is 1 go
// to the new bucket. The bit is at least the 9th, so it is one of those in the row.
void BucketTable::Split() {
  const size_t from = buckets_ - half_;
  const uint64_t bit = half_;
  AddBucket();
  uint8_t* const old = Memory(from);
  if (old == nullptr) return;
  const size_t rows = Load<uint32_t>(old);
  size_t going = 0;
  for (size_t at = 0; at < rows; ++at)
    going += ((Load<uint64_t>(RowIn(old, at)) & kRestMask) << 8 & bit) != 0;
  uint8_t* const staying_memory = rows == going ? nullptr : Allocate(rows - going);
  uint8_t* const going_memory = going == 0 ? nullptr : Allocate(going);
  for (size_t at = 0; at < rows; ++at) {
    const uint8_t* const row = RowIn(old, at);
    const bool goes = ((Load<uint64_t>(row) & kRestMask) << 8 & bit) != 0;
    Append(goes ? going_memory : staying_memory, old[kHeadBytes + at], row);
  }
  Memory(from) = staying_memory;
  Memory(buckets_ - 1) = going_memory;
  Free(old);
}

// Undoes the last split: the last bucket goes back into the one it came from.
void BucketTable::Merge() {
  if (buckets_ == half_) half_ /= 2;
  const size_t last = --buckets_;
  const size_t into = last - half_;
  uint8_t* const from = Memory(last);
  Memory(last) = nullptr;
  if (from != nullptr) {
    const size_t rows = Load<uint32_t>(from);
    uint8_t* const memory = Refit(into, RowsIn(into) + rows);
    for (size_t at = 0; at < rows; ++at) Append(memory, from[kHeadBytes + at], RowIn(from, at));
    Free(from);
  }
  // One chunk stays in reserve, so that a size at its edge does not allocate and free it in turn.
  if (buckets_ + 2 * kBucketsPerChunk <= chunks_.size() * kBucketsPerChunk) {
    chunks_.pop_back();
    bytes_ -= Allocated(sizeof(Chunk));
  }
}

// ---- Changes ----

// The first insert makes the least number of buckets. Afterwards at most one split, before the row
// is placed, since a split moves rows.
size_t BucketTable::Insert(uint64_t key) {
  if (buckets_ == 0) {
    half_ = kBucketsMin;
    while (buckets_ < kBucketsMin) AddBucket();
  }
  if (size_ >= buckets_ * kRowsPerBucket) Split();
  const uint64_t mixed = Mix(key);
  const size_t bucket = BucketOf(mixed);
  uint8_t* memory = Memory(bucket);
  const size_t rows = memory == nullptr ? 0 : Load<uint32_t>(memory);
  if (memory == nullptr || rows == Room(memory)) memory = Refit(bucket, rows + 1);
  memory[kHeadBytes + rows] = static_cast<uint8_t>(mixed >> 56);
  const uint64_t rest = mixed >> 8;
  std::memcpy(RowIn(memory, rows), &rest, kRestBytes);
  StoreCount(memory, rows + 1);
  ++size_;
  return RowAt(bucket, rows);
}

void BucketTable::Erase(size_t row) {
  EraseKeepingBuckets(row);
  Shrink(1);
}

// The bucket's last row takes the place of the erased one. The bucket gets smaller memory when more
// than about a twelfth of its rows, and 3, is unused: the slack on both sides keeps insert and
// erase in turn from allocating each time.
void BucketTable::EraseKeepingBuckets(size_t row) {
  const size_t bucket = row >> kAtBits;
  const size_t at = row & ((uint64_t{1} << kAtBits) - 1);
  uint8_t* const memory = Memory(bucket);
  const size_t last = Load<uint32_t>(memory) - 1;
  if (at != last) {
    memory[kHeadBytes + at] = memory[kHeadBytes + last];
    std::memcpy(RowIn(memory, at), RowIn(memory, last), row_bytes_);
    ++moved_;
  }
  StoreCount(memory, last);
  --size_;
  if (last == 0 || Room(memory) - last > 3 + last / 12) Refit(bucket, last);
}

// Merges below three quarters of `kRowsPerBucket`, while Insert splits above the whole: the gap
// keeps the two from undoing each other.
void BucketTable::Shrink(size_t steps) {
  if (size_ == 0) return Clear();
  for (; steps > 0 && buckets_ > kBucketsMin && size_ < buckets_ * (kRowsPerBucket * 3 / 4);
       --steps)
    Merge();
}

void BucketTable::Clear() {
  for (size_t bucket = 0; bucket < buckets_; ++bucket) Free(Memory(bucket));
  chunks_ = std::vector<std::unique_ptr<Chunk>>();
  size_ = bytes_ = buckets_ = half_ = 0;
}

// ---- Visits ----

// A cursor is a position in the order of reversed mixed keys. In that order each bucket is one
// contiguous range, and a split halves the range: so a visit in cursor order sees every row that is
// there all the time, whatever splits and merges. Returns the end of the bucket's range; it wraps
// to 0 behind the last one.
uint64_t BucketTable::CursorBehind(size_t bucket) const {
  const bool is_split = bucket >= half_ || bucket < buckets_ - half_;
  const int bits = std::countr_zero(half_) + (is_split ? 1 : 0);
  return Reversed(bucket) + (uint64_t{1} << (64 - bits));
}

std::string BucketTable::Check() const {
  size_t rows = 0;
  size_t bytes = chunks_.capacity() * sizeof(std::unique_ptr<Chunk>) +
                 chunks_.size() * Allocated(sizeof(Chunk));
  for (size_t bucket = 0; bucket < buckets_; ++bucket) {
    const uint8_t* const memory = Memory(bucket);
    if (memory == nullptr) continue;
    if (RowsIn(bucket) == 0) return "an empty bucket has memory";
    if (RowsIn(bucket) > Room(memory)) return "a bucket has more rows than room";
    bytes += Allocated(BytesFor(Room(memory)));
    rows += RowsIn(bucket);
    for (size_t at = 0; at < RowsIn(bucket); ++at)
      if (BucketOf(MixedOf(RowAt(bucket, at))) != bucket) return "a row is in a wrong bucket";
  }
  if (rows != size_) return "size";
  if (bytes != bytes_) return "bytes";
  if (buckets_ != 0 && half_ != std::bit_floor(buckets_)) return "half";
  return "";
}

}  // namespace kvatlas
