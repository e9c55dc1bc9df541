// The memory of one atlas: a region of address space of its own, cut into pages of equal objects,
// that gives memory back when blocks go.
//
//   region    16 GiB of addresses, less where they are limited; 64 KiB pages; a page holds objects of one size class
//   Ref       where an object begins, in 8-byte words from the region's start: 31 bits; 0 is "none"
//   runs      have pages of their own (`run.h`), so that any word inside one leads to where it begins: the page's
//             shape says how large its objects are
//
// *Runs*: a reader's Ref is a run's as long as its guard is held. The writer, which keeps Refs for
// longer, asks `IsRun`: there is a run, or there was one, and its first 8 bytes are as they were
// when it was freed. They are zero when there never was one.
// *Truth*: `bytes()` is what was given out, freed objects of pages still in use included: what the
// index adds to resident memory, except for the retained pages.
// *Threads*: one writer at a time; `RunOf`, `At`, `word` and `bytes` beside it.
// *Cost*: an allocation is a pop from a list, retiring a push to a queue. A page that runs empty is
// returned to the system at once, except `retained_bytes` of them.
// *Bounds*: 16 GiB; beyond that, or when the system has none, `Allocate` returns 0. Addresses are
// only reserved, and made usable in extents of half of what is used: where the system promises no
// more than it has, an index counts for little more than it holds.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_HEAP_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_HEAP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

namespace kvatlas::atlas {

using Ref = uint32_t;

inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kLineWords = kLineBytes / 8;
inline constexpr int kRefBits = 31;
inline constexpr size_t kRegionBytes = size_t{8} << kRefBits;
inline constexpr size_t kRunBytesMax = 4224;

class Heap {
 public:
  // Null when the address space cannot be had. `address_bytes_max`: of it, at least 16 MiB; 0: all
  // that is of use.
  static std::unique_ptr<Heap> Create(uint64_t retained_bytes, uint64_t address_bytes_max = 0);
  ~Heap();

  // Memory of any content, aligned to 16 bytes and, for whole lines, to a line; 0 when there is
  // none.
  Ref Allocate(size_t bytes);

  // The size that an allocation of `bytes` gets.
  static size_t RoundUp(size_t bytes);

  // Gives back an object that no other thread can see. `bytes` as allocated.
  void Free(Ref ref, size_t bytes);

  // True if the object lies on a page that is mostly free and a new one of its size would lie on
  // another: moving it helps the page to run empty.
  bool IsOnSparsePage(Ref ref, size_t bytes) const;

  // Gives back an object that was just unlinked and that readers may still look at (`epoch.h`).
  void Retire(Ref ref, size_t bytes);

  // The same for runs. An allocation is of at least `bytes`: `RoundUpRun` says of how many; at most
  // `kRunBytesMax`.
  Ref AllocateRun(size_t bytes);
  static size_t RoundUpRun(size_t bytes);
  void FreeRun(Ref ref);
  void RetireRun(Ref ref);
  bool RunIsOnSparsePage(Ref ref) const;

  // Where the run begins that `word` is in.
  Ref RunOf(Ref word) const {
    const uint64_t shape = shapes_[word / kPageWords].load(std::memory_order_acquire);
    const uint32_t number = NumberIn(shape, word % kPageWords);
    return word / kPageWords * kPageWords + number * static_cast<uint16_t>(shape);
  }

  // True if a run begins here, or did.
  bool IsRun(Ref ref) const {
    const uint64_t shape = shapes_[ref / kPageWords].load(std::memory_order_acquire);
    const uint32_t number = NumberIn(shape, ref % kPageWords);
    return number * static_cast<uint16_t>(shape) == ref % kPageWords &&
           number < static_cast<uint16_t>(shape >> 16);
  }

  // Frees retired objects that no guard can see any more. The writer calls it where it has no Ref
  // in hand (W6), since anything retired before may be gone afterwards.
  void Reclaim();

  // The same when much has been retired since the last time.
  void MaybeReclaim() {
    if (untagged_ >= kRetiredMax) Reclaim();
  }

  template <typename T>
  T* At(Ref ref) const {
    return reinterpret_cast<T*>(region_ + size_t{ref} * 8);
  }

  // The hash of a block, where `word` is its place.
  std::atomic<uint64_t>& word(Ref word) const { return *At<std::atomic<uint64_t>>(word); }

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // For tests: the next `count` allocations that need a new page fail.
  void FailPages(uint32_t count) { fail_pages_ = count; }

 private:
  static constexpr size_t kPageBytes = 1 << 16;
  static constexpr uint32_t kPageWords = kPageBytes / 8;
  static constexpr uint8_t kNoClass = 0xff;
  // Retired objects are looked through when there are this many more.
  static constexpr size_t kRetiredMax = 64;
  static constexpr uint32_t kNoPage = 0;  // page 0 is never used, so that no Ref is 0

  enum class PageUse : uint8_t { kNever, kObjects, kLarge, kRetained, kReturned };

  enum class Fill : uint8_t { kSparse, kDense, kFull };

  struct Page {
    uint32_t next;
    uint32_t previous;
    uint16_t first_free;  // 1 + the object's number
    uint16_t free;        // objects that were given back
    uint16_t carved;      // objects that were ever given out
    uint8_t size_class;
    PageUse use;
    Fill fill;
  };

  // Pages in a doubly linked list.
  struct PageList {
    uint32_t first = kNoPage;
    uint32_t count = 0;
  };

  struct SizeClass {
    PageList dense;   // pages with a free object, more than half used
    PageList sparse;  // the others that have one
  };

  struct Retired {
    uint64_t epoch;
    Ref ref;
    uint32_t bytes;  // kRun: a run; kPage: `ref` is the number of a page that was for runs
  };
  static constexpr uint32_t kRun = 0;
  static constexpr uint32_t kPage = 0xffffffff;

  Heap(char* region, uint32_t pages_max, uint64_t retained_bytes);

  // The shape of a page for runs, by bits: 63…32 2^32 over the object's size, rounded up; 31…16
  // objects ever given out; 15…0 the size in words. 0: another page.
  static uint32_t NumberIn(uint64_t shape, uint32_t word) {
    return static_cast<uint32_t>((shape >> 32) * word >> 32);
  }

  void Add(int64_t bytes) {
    bytes_.store(bytes_.load(std::memory_order_relaxed) + static_cast<uint64_t>(bytes),
                 std::memory_order_relaxed);
  }
  void Link(PageList* list, uint32_t page);
  void Unlink(PageList* list, uint32_t page);

  static uint32_t NextPage(const SizeClass& objects);
  void Relink(SizeClass* objects, uint32_t number, size_t capacity);
  Ref AllocateObject(uint8_t size_class);
  bool OpenPage(SizeClass* objects, uint8_t size_class);
  void FreeObject(Ref ref, uint8_t size_class);
  bool IsOnSparsePage(Ref ref, uint8_t size_class) const;
  void RetireTagged(Ref ref, uint32_t bytes);
  Ref AllocateLarge(size_t bytes);
  uint32_t FindAdjacent(uint32_t pages);
  uint32_t TakePage();
  void ReturnPages(uint32_t page, uint32_t count);
  bool PageFails();
  bool Commit(uint32_t pages);

  char* const region_;
  const uint32_t pages_max_;
  std::atomic<uint64_t>* const shapes_;
  Page* const pages_;
  const uint32_t retained_pages_max_;
  std::unique_ptr<SizeClass[]> classes_;
  std::atomic<uint64_t> bytes_{0};
  uint32_t fail_pages_ = 0;

  uint32_t pages_end_ = 1;
  uint32_t pages_usable_ = 0;
  PageList retained_;
  PageList returned_;

  // In order of epochs; the last `untagged_` have none yet.
  std::deque<Retired> retired_;
  size_t untagged_ = 0;
};

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_HEAP_H_
