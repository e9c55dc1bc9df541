// A hash table from 64-bit keys to rows of a fixed number of bytes, in little more memory than the
// rows need, by linear hashing.
//
//   key ─▶ mixed ─┬ low bits ─▶ bucket ─▶ [ rows, room | a byte of each mixed key | 6 bytes of it and the payload, each ]
//                 └ upper 8 bits: found in the bucket by memchr
//
// *Truth*: keys are compared whole: the lowest 8 bits of a mixed key are those of its bucket's
// number, of which there are 256 at least, the other 56 are in the row. Several rows may have the
// same key; `match` tells them apart.
// *Growth*: the table has one bucket more for every `kRowsPerBucket` rows more: an `Insert` splits
// at most one bucket, an `Erase` merges at most two into one. A bucket has as much room as its rows
// need and about 1/16 more. So a call moves the rows of at most three buckets (32 to 128 rows each,
// whatever the size of the table), unless many rows share one key.
// *Threads*: none; the caller serialises. Const methods may run at the same time.
// *Cost*: from 20,000 rows on, of 4 bytes of payload 11.8 a row as it grows and 12.1 in a steady
// state of evictions, of 11 bytes 19.0 and 19.6; `bytes` counts the allocator's heads, not what it
// keeps in reserve (measured with glibc: a tenth of 4 million rows). An empty one takes nothing, a
// few rows 4 KiB. A look-up waits for memory three times (number to bucket, bucket, row);
// `Prefetch` does so once for many of them.
// *Lifetime*: the number of a row is valid until the next `Insert`, `Erase`, `Shrink` or `Clear`.
//
// Example:
//   BucketTable table(/*payload_bytes=*/4);
//   const size_t row = table.Insert(key);
//   std::memcpy(table.Payload(row), &value, 4);
//   if (const size_t row = table.Find(key); row != BucketTable::kNone) table.Erase(row);

#ifndef KVATLAS_INDEXER_BASE_BUCKET_TABLE_H_
#define KVATLAS_INDEXER_BASE_BUCKET_TABLE_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvatlas {

class BucketTable {
 public:
  static constexpr size_t kNone = ~size_t{0};
  static constexpr size_t kRowsPerBucket = 64;  // on average, when it grows
  static constexpr size_t kPrefetchMax = 64;

  // REQUIRES: 2 <= payload_bytes. `seed` decides which keys share a bucket.
  explicit BucketTable(size_t payload_bytes, uint64_t seed = 0x9e3779b97f4a7c15)
      : row_bytes_(kRestBytes + payload_bytes), seed_(seed) {}
  ~BucketTable() { Clear(); }

  BucketTable(const BucketTable&) = delete;
  BucketTable& operator=(const BucketTable&) = delete;

  size_t size() const { return size_; }
  size_t bytes() const { return bytes_; }

  // Loads what look-ups of these keys will touch. REQUIRES: at most `kPrefetchMax`.
  void Prefetch(std::span<const uint64_t> keys) const;

  // The first row with that key for which `match(const uint8_t* payload)` is true, or kNone.
  template <typename Match>
  size_t Find(uint64_t key, const Match& match) const {
    return size_ == 0 ? kNone : FindMixed(Mix(key), match);
  }
  size_t Find(uint64_t key) const {
    return Find(key, [](const uint8_t*) { return true; });
  }

  // A row more with that key; its payload is anything.
  size_t Insert(uint64_t key);
  void Erase(size_t row);
  // Likewise, and the table has as many buckets afterwards; the row's number is the bucket's last
  // row's now.
  void EraseKeepingBuckets(size_t row);
  // At most `steps` buckets less, when there are too many.
  void Shrink(size_t steps);
  // Forgets everything. O(buckets).
  void Clear();

  uint64_t KeyOf(size_t row) const { return Unmix(MixedOf(row)); }
  uint8_t* Payload(size_t row) { return Row(row) + kRestBytes; }
  const uint8_t* Payload(size_t row) const { return Row(row) + kRestBytes; }

  // ---- Visits: bucket by bucket, each row once ----

  size_t buckets() const { return buckets_; }
  size_t RowsIn(size_t bucket) const {
    const uint8_t* const memory = Memory(bucket);
    return memory == nullptr ? 0 : Load<uint32_t>(memory);
  }
  // REQUIRES: at < RowsIn(bucket).
  static size_t RowAt(size_t bucket, size_t at) { return bucket << kAtBits | at; }
  template <typename Visit>  // void(size_t row)
  void ForEach(const Visit& visit) const {
    for (size_t bucket = 0; bucket < buckets_; ++bucket)
      for (size_t at = 0; at < RowsIn(bucket); ++at) visit(RowAt(bucket, at));
  }
  // With changes in between: from cursor 0 to the next one that is 0, what is there all the time is
  // in one of the buckets, however they split and merge meanwhile, and once only where rows before
  // the cursor are left out. REQUIRES: buckets() != 0.
  size_t BucketOfCursor(uint64_t cursor) const { return BucketOf(Reversed(cursor)); }
  uint64_t CursorBehind(size_t bucket) const;
  bool IsBefore(size_t row, uint64_t cursor) const { return Reversed(MixedOf(row)) < cursor; }

  // ---- For tests ----

  // Rows copied since the table was made, other than by `Find` and `Payload`.
  uint64_t moved() const { return moved_; }
  // "" or what is wrong inside.
  std::string Check() const;

 private:
  // Bytes of a row before its payload: bits 8 to 55 of its mixed key.
  static constexpr size_t kRestBytes = 6;
  static constexpr uint64_t kRestMask = (uint64_t{1} << 48) - 1;
  static constexpr size_t kBucketsMin = 256;  // the lowest 8 bits of a mixed key are its bucket's
  static constexpr size_t kBucketsPerChunk = 512;
  static constexpr size_t kHeadBytes = 8;  // rows, room
  static constexpr int kAtBits = 32;
  static_assert(std::endian::native == std::endian::little);

  using Chunk = std::array<uint8_t*, kBucketsPerChunk>;  // null: no rows

  template <typename T>
  static T Load(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static void StoreCount(uint8_t* memory, size_t rows) {
    const uint32_t count = static_cast<uint32_t>(rows);
    std::memcpy(memory, &count, sizeof(count));
  }
  static size_t Room(const uint8_t* memory) { return Load<uint32_t>(memory + 4); }

  // A bijection each.
  uint64_t Mix(uint64_t key) const {
    key = (key ^ seed_) * kMultiplier;
    key = (key ^ key >> 32) * kMultiplier;
    return key ^ key >> 32;
  }
  uint64_t Unmix(uint64_t mixed) const;
  static constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;
  static uint64_t Reversed(uint64_t bits);

  uint8_t*& Memory(size_t bucket) {
    return (*chunks_[bucket / kBucketsPerChunk])[bucket % kBucketsPerChunk];
  }
  uint8_t* Memory(size_t bucket) const {
    return (*chunks_[bucket / kBucketsPerChunk])[bucket % kBucketsPerChunk];
  }
  size_t BucketOf(uint64_t mixed) const {
    const size_t bucket = mixed & (2 * half_ - 1);
    return bucket < buckets_ ? bucket : bucket - half_;
  }
  uint8_t* RowIn(uint8_t* memory, size_t at) const {
    return memory + kHeadBytes + Room(memory) + at * row_bytes_;
  }
  uint8_t* Row(size_t row) const {
    return RowIn(Memory(row >> kAtBits), row & ((uint64_t{1} << kAtBits) - 1));
  }
  uint64_t MixedOf(size_t row) const;

  template <typename Match>
  size_t FindMixed(uint64_t mixed, const Match& match) const {
    const size_t bucket = BucketOf(mixed);
    uint8_t* const memory = Memory(bucket);
    if (memory == nullptr) return kNone;
    const uint8_t* const tops = memory + kHeadBytes;
    const uint8_t* const end = tops + Load<uint32_t>(memory);
    const uint64_t rest = mixed >> 8 & kRestMask;
    for (const uint8_t* top = tops; top != end; ++top) {
      top = static_cast<const uint8_t*>(
          std::memchr(top, static_cast<int>(mixed >> 56), static_cast<size_t>(end - top)));
      if (top == nullptr) return kNone;
      const uint8_t* const row = RowIn(memory, static_cast<size_t>(top - tops));
      if ((Load<uint64_t>(row) & kRestMask) == rest && match(row + kRestBytes))
        return RowAt(bucket, static_cast<size_t>(top - tops));
    }
    return kNone;
  }

  size_t BytesFor(size_t room) const;
  uint8_t* Allocate(size_t rows);
  void Free(uint8_t* memory);
  void Append(uint8_t* memory, uint8_t top, const uint8_t* row);
  uint8_t* Refit(size_t bucket, size_t rows);
  void AddBucket();
  void Split();
  void Merge();

  const size_t row_bytes_;
  const uint64_t seed_;
  size_t size_ = 0;
  size_t bytes_ = 0;
  size_t buckets_ = 0;
  size_t half_ = 0;  // the largest power of two that is at most `buckets_`
  std::vector<std::unique_ptr<Chunk>> chunks_;
  uint64_t moved_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_BUCKET_TABLE_H_
