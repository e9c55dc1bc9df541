// Three layers: objects of a size class on a page (`AllocateObject`, `FreeObject`), pages
// (`TakePage`, `ReturnPages`, `AllocateLarge`), and retired objects, which wait for readers
// (`RetireTagged`, `Reclaim`).
//
// A page's life: never used (beyond `pages_end_`); used for objects of one class, or as part of a
// large object; free again, retained with its memory (up to `retained_pages_max_`) or returned to
// the system. A page for runs passes through `Retire` before it is free. The writer alone changes
// anything; readers look at `shapes_`, objects and `bytes_`.

#include "indexer/index/atlas/heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "indexer/index/atlas/epoch.h"

namespace kvatlas::atlas {
namespace {

// Sizes of objects other than runs: sections, partials, chunks of lists, segments of the table. All
// are multiples of 16; the largest is half a page.
constexpr uint16_t kClassBytes[] = {
    16,   32,   48,   64,   80,   96,   112,   128,   192,   256,   320,   384,
    448,  512,  640,  768,  896,  1024, 1280,  1536,  1792,  2048,  2560,  3072,
    3584, 4096, 4608, 5120, 6400, 8192, 10880, 13056, 16384, 21824, 32768,
};
constexpr size_t kClasses = std::size(kClassBytes);
constexpr size_t kObjectBytesMax = kClassBytes[kClasses - 1];

// Sizes of runs. Short runs are many: a class for every block more, up to 128 bytes. From 256 bytes
// on they are multiples of a line.
constexpr uint16_t kRunClassBytes[] = {
    48,   56,   64,   72,   80,   88,   96,   104,  112,  120,  128,  144, 160,
    176,  192,  224,  256,  320,  384,  448,  512,  576,  640,  704,  768, 896,
    1024, 1152, 1280, 1408, 1536, 1792, 2176, 2560, 3072, 3584, 4224,
};
constexpr size_t kRunClasses = std::size(kRunClassBytes);
static_assert(kRunClassBytes[kRunClasses - 1] == kRunBytesMax);

// By size in grains: the smallest class that holds i * kGrain bytes. Made at compile time, so that
// an allocation finds its class by one load.
template <size_t kGrain, size_t kBytesMax>
struct ClassTable {
  uint8_t of[kBytesMax / kGrain + 1] = {};

  constexpr explicit ClassTable(const uint16_t* bytes) {
    size_t size_class = 0;
    for (size_t i = 0; i < std::size(of); ++i) {
      while (bytes[size_class] < i * kGrain) ++size_class;
      of[i] = static_cast<uint8_t>(size_class);
    }
  }
};

constexpr ClassTable<16, kObjectBytesMax> kClassTable(kClassBytes);
constexpr ClassTable<8, kRunBytesMax> kRunClassTable(kRunClassBytes);

uint8_t ClassOf(size_t bytes) { return kClassTable.of[(bytes + 15) / 16]; }

// Classes of runs come behind the others.
uint8_t RunClassOf(size_t bytes) {
  return static_cast<uint8_t>(kClasses + kRunClassTable.of[(bytes + 7) / 8]);
}

size_t BytesOf(uint8_t size_class) {
  return size_class < kClasses ? kClassBytes[size_class] : kRunClassBytes[size_class - kClasses];
}

// Offset in a free object of the number of the next free one. The first 8 bytes stay as they were
// when it was freed: `IsRun` and readers of a run that was freed rely on it.
constexpr size_t kNextOffset = 8;

// This much of the region stays in pages of the system's usual size: a small index would not fill a
// huge page.
constexpr size_t kSmallBytes = size_t{8} << 20;

// The smallest region, and the smallest step by which its usable part grows (`Commit`).
constexpr size_t kRegionBytesMin = size_t{16} << 20;
constexpr size_t kExtentBytesMin = size_t{8} << 20;

}  // namespace

// 1. Addresses are reserved as readable: a reader may load any word of the region, used or not.
// 2. The tables `shapes_` and `pages_` lie behind the region and are writable at once; their pages
//    cost memory when they are touched.
// 3. Behind the first `kSmallBytes` huge pages are asked for.
// The region becomes writable in extents (`Commit`), so that a system without overcommit counts
// little more than is used.
std::unique_ptr<Heap> Heap::Create(uint64_t retained_bytes, uint64_t address_bytes_max) {
  const uint64_t bytes_max = address_bytes_max == 0 ? kRegionBytes : address_bytes_max;
  const size_t pages = std::min<uint64_t>(bytes_max, kRegionBytes) / kPageBytes;
  const size_t region_bytes = pages * kPageBytes;
  if (region_bytes < kRegionBytesMin) return nullptr;
  const size_t table_bytes = pages * (sizeof(uint64_t) + sizeof(Page));
  void* memory = mmap(nullptr, region_bytes + table_bytes, PROT_READ,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* const region = static_cast<char*>(memory);
  if (mprotect(region + region_bytes, table_bytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(memory, region_bytes + table_bytes);
    return nullptr;
  }
  if (region_bytes > kSmallBytes)
    madvise(region + kSmallBytes, region_bytes - kSmallBytes, MADV_HUGEPAGE);
  return std::unique_ptr<Heap>(new Heap(region, static_cast<uint32_t>(pages), retained_bytes));
}

Heap::Heap(char* region, uint32_t pages_max, uint64_t retained_bytes)
    : region_(region),
      pages_max_(pages_max),
      shapes_(reinterpret_cast<std::atomic<uint64_t>*>(region + size_t{pages_max} * kPageBytes)),
      pages_(reinterpret_cast<Page*>(shapes_ + pages_max)),
      retained_pages_max_(
          static_cast<uint32_t>(std::min<uint64_t>(retained_bytes / kPageBytes, pages_max))),
      classes_(new SizeClass[kClasses + kRunClasses]) {}

Heap::~Heap() {
  munmap(region_, size_t{pages_max_} * (kPageBytes + sizeof(uint64_t) + sizeof(Page)));
}

// Makes the first `pages` of the region writable, and half as many again as are usable now, so that
// it is seldom called. If the system refuses the larger extent, just enough is tried; false: it
// refuses that, too. Pages never become unwritable again.
bool Heap::Commit(uint32_t pages) {
  if (pages <= pages_usable_) return true;
  constexpr uint32_t kExtentPagesMin = kExtentBytesMin / kPageBytes;
  const uint32_t extent = std::max(kExtentPagesMin, pages_usable_ / 2);
  const uint32_t wanted = std::min(std::max(pages, pages_usable_ + extent), pages_max_);
  for (const uint32_t end : {wanted, pages}) {
    const size_t from = size_t{pages_usable_} * kPageBytes;
    if (mprotect(region_ + from, size_t{end} * kPageBytes - from, PROT_READ | PROT_WRITE) != 0)
      continue;
    pages_usable_ = end;
    return true;
  }
  return false;
}

// ---- Objects ----

Ref Heap::Allocate(size_t bytes) {
  return bytes <= kObjectBytesMax ? AllocateObject(ClassOf(bytes)) : AllocateLarge(bytes);
}

size_t Heap::RoundUp(size_t bytes) {
  return bytes <= kObjectBytesMax ? kClassBytes[ClassOf(bytes)]
                                  : (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

void Heap::Free(Ref ref, size_t bytes) {
  if (bytes <= kObjectBytesMax) {
    FreeObject(ref, ClassOf(bytes));
    return;
  }
  const size_t pages = (bytes + kPageBytes - 1) / kPageBytes;
  Add(-static_cast<int64_t>(pages * kPageBytes));
  ReturnPages(static_cast<uint32_t>(size_t{ref} * 8 / kPageBytes), static_cast<uint32_t>(pages));
}

// Runs have classes of their own behind the others, so a page has either runs or other objects.
Ref Heap::AllocateRun(size_t bytes) { return AllocateObject(RunClassOf(bytes)); }

size_t Heap::RoundUpRun(size_t bytes) { return BytesOf(RunClassOf(bytes)); }

// The page knows the class, so a run is freed without its size.
void Heap::FreeRun(Ref ref) { FreeObject(ref, pages_[ref / kPageWords].size_class); }

// 1. A page of the class with a free object: the fuller ones first (`NextPage`), else a new one
//    (`OpenPage`).
// 2. On it an object that was freed, else the next one that was never given out ("carved").
// 3. The shape of a page for runs counts the carved ones: a reader that has a word of a run finds
//    where it begins by `RunOf`, so the count is raised, with release, after the run's first word
//    is zero.
// 4. The page changes lists if it became dense or full (`Relink`).
// `bytes_` grows only with carved objects: freed ones stay resident with their page.
Ref Heap::AllocateObject(uint8_t size_class) {
  SizeClass& objects = classes_[size_class];
  const size_t object_bytes = BytesOf(size_class);
  if (NextPage(objects) == kNoPage && !OpenPage(&objects, size_class)) return 0;
  const uint32_t number = NextPage(objects);
  Page& page = pages_[number];
  char* const start = region_ + size_t{number} * kPageBytes;
  size_t object;
  if (page.first_free != 0) {
    object = page.first_free - 1u;
    page.first_free = *reinterpret_cast<uint16_t*>(start + object * object_bytes + kNextOffset);
    --page.free;
  } else {
    object = page.carved++;
    Add(static_cast<int64_t>(object_bytes));
    if (size_class >= kClasses) {
      *reinterpret_cast<uint64_t*>(start + object * object_bytes) = 0;
      // Partner: `RunOf`.
      shapes_[number].store(shapes_[number].load(std::memory_order_relaxed) + (1 << 16),
                            std::memory_order_release);
    }
  }
  Relink(&objects, number, kPageBytes / object_bytes);
  return static_cast<Ref>((size_t{number} * kPageBytes + object * object_bytes) / 8);
}

// A page for runs gets its shape here: the reciprocal of the object size, by which `NumberIn`
// divides without a division, the carved count 0, and the size in words.
bool Heap::OpenPage(SizeClass* objects, uint8_t size_class) {
  const uint32_t number = TakePage();
  if (number == kNoPage) return false;
  pages_[number].size_class = size_class;
  pages_[number].use = PageUse::kObjects;
  Link(&objects->sparse, number);
  if (size_class >= kClasses) {
    const uint64_t words = BytesOf(size_class) / 8;
    shapes_[number].store(((uint64_t{1} << 32) / words + 1) << 32 | words,
                          std::memory_order_release);
  }
  return true;
}

// The list of a page's free objects lies in these objects, at `kNextOffset`. A page whose last
// object goes leaves all lists and is returned; one for runs only after every reader that may have
// a word of it has left (`RetireTagged`), and with shape 0 from here on: `IsRun` is false for all
// of it.
void Heap::FreeObject(Ref ref, uint8_t size_class) {
  SizeClass& objects = classes_[size_class];
  const size_t object_bytes = BytesOf(size_class);
  const size_t offset = size_t{ref} * 8;
  const uint32_t number = static_cast<uint32_t>(offset / kPageBytes);
  Page& page = pages_[number];
  *reinterpret_cast<uint16_t*>(region_ + offset + kNextOffset) = page.first_free;
  page.first_free = static_cast<uint16_t>(1 + offset % kPageBytes / object_bytes);
  ++page.free;
  Relink(&objects, number, kPageBytes / object_bytes);
  if (page.free < page.carved) return;
  Unlink(&objects.sparse, number);
  Add(-int64_t{page.carved} * static_cast<int64_t>(object_bytes));
  shapes_[number].store(0, std::memory_order_release);
  // A reader may still ask which run a word is in.
  if (size_class >= kClasses) {
    RetireTagged(number, kPage);
  } else {
    ReturnPages(number, 1);
  }
}

// The fuller pages first, so that the others run empty and go back.
uint32_t Heap::NextPage(const SizeClass& objects) {
  return objects.dense.first != kNoPage ? objects.dense.first : objects.sparse.first;
}

// Puts a page into the list for how full it is: more than half is dense, a full one is in none.
// Constant time: most calls change nothing.
void Heap::Relink(SizeClass* objects, uint32_t number, size_t capacity) {
  Page& page = pages_[number];
  const size_t used = page.carved - page.free;
  const Fill fill = used == capacity      ? Fill::kFull
                    : used * 2 > capacity ? Fill::kDense
                                          : Fill::kSparse;
  if (fill == page.fill) return;
  if (page.fill == Fill::kSparse) Unlink(&objects->sparse, number);
  if (page.fill == Fill::kDense) Unlink(&objects->dense, number);
  page.fill = fill;
  if (fill == Fill::kSparse) Link(&objects->sparse, number);
  if (fill == Fill::kDense) Link(&objects->dense, number);
}

bool Heap::IsOnSparsePage(Ref ref, size_t bytes) const {
  return bytes <= kObjectBytesMax && IsOnSparsePage(ref, ClassOf(bytes));
}

bool Heap::RunIsOnSparsePage(Ref ref) const {
  return IsOnSparsePage(ref, pages_[ref / kPageWords].size_class);
}

// An object on the page from which the class allocates next stays: it would move within that page.
bool Heap::IsOnSparsePage(Ref ref, uint8_t size_class) const {
  const SizeClass& objects = classes_[size_class];
  const uint32_t number = static_cast<uint32_t>(size_t{ref} * 8 / kPageBytes);
  return pages_[number].fill == Fill::kSparse && NextPage(objects) != number;
}

// ---- Pages ----

void Heap::Link(PageList* list, uint32_t page) {
  pages_[page].next = list->first;
  pages_[page].previous = kNoPage;
  if (list->first != kNoPage) pages_[list->first].previous = page;
  list->first = page;
  ++list->count;
}

void Heap::Unlink(PageList* list, uint32_t page) {
  const Page& gone = pages_[page];
  if (gone.previous != kNoPage) pages_[gone.previous].next = gone.next;
  if (gone.previous == kNoPage) list->first = gone.next;
  if (gone.next != kNoPage) pages_[gone.next].previous = gone.previous;
  --list->count;
}

bool Heap::PageFails() {
  if (fail_pages_ == 0) return false;
  --fail_pages_;
  return true;
}

// Retained pages first, which have their memory, then returned ones, then a new one behind
// `pages_end_`. Page 0 is never given out.
uint32_t Heap::TakePage() {
  if (PageFails()) return kNoPage;
  uint32_t number = kNoPage;
  if (retained_.first != kNoPage) {
    number = retained_.first;
    Unlink(&retained_, number);
  } else if (returned_.first != kNoPage) {
    number = returned_.first;
    Unlink(&returned_, number);
  } else if (pages_end_ < pages_max_ && Commit(pages_end_ + 1)) {
    number = pages_end_++;
  }
  if (number != kNoPage) pages_[number] = Page{};
  return number;
}

// MADV_DONTNEED gives the memory back at once and leaves the addresses readable as zeros.
void Heap::ReturnPages(uint32_t first, uint32_t count) {
  for (uint32_t number = first; number < first + count; ++number) {
    const bool retain = retained_.count < retained_pages_max_;
    if (!retain) madvise(region_ + size_t{number} * kPageBytes, kPageBytes, MADV_DONTNEED);
    pages_[number].use = retain ? PageUse::kRetained : PageUse::kReturned;
    Link(retain ? &retained_ : &returned_, number);
  }
}

// Objects beyond the largest class: whole pages in a row, found by a walk over all pages
// (`FindAdjacent`). They are rare: partials or sections of thousands of holders.
Ref Heap::AllocateLarge(size_t bytes) {
  if (PageFails()) return 0;
  const size_t pages = (bytes + kPageBytes - 1) / kPageBytes;
  if (pages >= pages_max_) return 0;
  const uint32_t first = FindAdjacent(static_cast<uint32_t>(pages));
  if (first == kNoPage || !Commit(first + static_cast<uint32_t>(pages))) return 0;
  for (uint32_t number = first; number < first + pages; ++number) {
    Page& page = pages_[number];
    if (page.use == PageUse::kRetained) Unlink(&retained_, number);
    if (page.use == PageUse::kReturned) Unlink(&returned_, number);
    page = Page{};
    page.use = PageUse::kLarge;
  }
  pages_end_ = std::max<uint32_t>(pages_end_, first + static_cast<uint32_t>(pages));
  Add(static_cast<int64_t>(pages * kPageBytes));
  return static_cast<Ref>(size_t{first} * kPageBytes / 8);
}

// The first gap of free pages that is long enough, else the end of the used ones, together with
// free pages just before it. O(pages).
uint32_t Heap::FindAdjacent(uint32_t pages) {
  uint32_t free = 0;
  for (uint32_t number = 1; number < pages_end_; ++number) {
    const PageUse use = pages_[number].use;
    free = use == PageUse::kRetained || use == PageUse::kReturned ? free + 1 : 0;
    if (free == pages) return number + 1 - pages;
  }
  return pages_end_ - free + pages <= pages_max_ ? pages_end_ - free : kNoPage;
}

// ---- Retired ----

void Heap::Retire(Ref ref, size_t bytes) { RetireTagged(ref, static_cast<uint32_t>(bytes)); }

void Heap::RetireRun(Ref ref) { RetireTagged(ref, kRun); }

// The tag comes later, in `Reclaim`: one epoch serves all that was retired since the last time.
// That is safe, as a later epoch only makes an object wait for longer.
void Heap::RetireTagged(Ref ref, uint32_t bytes) {
  retired_.push_back({.epoch = 0, .ref = ref, .bytes = bytes});
  ++untagged_;
}

// 1. Everything retired since the last time gets the epoch of now (`RetireEpoch`).
// 2. Objects whose epoch is below that of the oldest guard are freed: no reader can have them.
// 3. Runs that are freed may leave pages behind, which are retired in their turn: hence another
//    round while there are some.
// `retired_` is in order of epochs, so the walk ends at the first that must wait.
void Heap::Reclaim() {
  do {
    const uint64_t epoch = RetireEpoch();
    for (auto each = retired_.end() - static_cast<std::ptrdiff_t>(untagged_);
         each != retired_.end(); ++each)
      each->epoch = epoch;
    untagged_ = 0;
    const uint64_t oldest = OldestActiveEpoch();
    size_t free = 0;
    while (free < retired_.size() && retired_[free].epoch < oldest) ++free;
    for (; free > 0; --free) {
      const Retired each = retired_.front();
      retired_.pop_front();
      if (each.bytes == kRun) {
        FreeRun(each.ref);
      } else if (each.bytes == kPage) {
        ReturnPages(each.ref, 1);
      } else {
        Free(each.ref, each.bytes);
      }
    }
  } while (untagged_ != 0);
}

}  // namespace kvatlas::atlas
