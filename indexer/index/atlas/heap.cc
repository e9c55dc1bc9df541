#include "indexer/index/atlas/heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "indexer/index/atlas/epoch.h"

namespace kvatlas::atlas {
namespace {

constexpr uint16_t kClassBytes[] = {
    16,   32,   48,   64,   80,   96,   112,   128,   192,   256,   320,   384,
    448,  512,  640,  768,  896,  1024, 1280,  1536,  1792,  2048,  2560,  3072,
    3584, 4096, 4608, 5120, 6400, 8192, 10880, 13056, 16384, 21824, 32768,
};
constexpr size_t kClasses = std::size(kClassBytes);
constexpr size_t kObjectBytesMax = kClassBytes[kClasses - 1];

// The smallest class that holds i * 16 bytes.
struct ClassTable {
  uint8_t of[kObjectBytesMax / 16 + 1];
};

constexpr ClassTable MakeClassTable() {
  ClassTable table{};
  size_t size_class = 0;
  for (size_t i = 0; i < std::size(table.of); ++i) {
    while (kClassBytes[size_class] < i * 16) ++size_class;
    table.of[i] = static_cast<uint8_t>(size_class);
  }
  return table;
}

constexpr ClassTable kClassTable = MakeClassTable();

uint8_t ClassOf(size_t bytes) { return kClassTable.of[(bytes + 15) / 16]; }

constexpr size_t kLineMapBytes = kRegionBytes / kLineBytes * sizeof(Ref);

// The first part of the region, in pages of the system's usual size.
constexpr size_t kSmallBytes = size_t{8} << 20;

// Retired objects are looked through when there are this many.
constexpr size_t kRetiredMax = 64;

}  // namespace

std::unique_ptr<Heap> Heap::Create(uint64_t retained_bytes) {
  constexpr size_t kPageTableBytes = kPages * sizeof(Page);
  void* memory = mmap(nullptr, kRegionBytes + kLineMapBytes + kPageTableBytes,
                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // A small index lives in small pages; what a large one touches at random is worth large ones.
  char* const region = static_cast<char*>(memory);
  madvise(region + kSmallBytes, kRegionBytes - kSmallBytes, MADV_HUGEPAGE);
  return std::unique_ptr<Heap>(new Heap(region, retained_bytes));
}

Heap::Heap(char* region, uint64_t retained_bytes)
    : region_(region),
      line_map_(reinterpret_cast<std::atomic<Ref>*>(region + kRegionBytes)),
      pages_(reinterpret_cast<Page*>(region + kRegionBytes + kLineMapBytes)),
      retained_pages_max_(
          static_cast<uint32_t>(std::min<uint64_t>(retained_bytes / kPageBytes, kPages))),
      classes_(new SizeClass[kClasses]) {}

Heap::~Heap() { munmap(region_, kRegionBytes + kLineMapBytes + kPages * sizeof(Page)); }

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
  bytes_.fetch_sub(pages * kPageBytes, std::memory_order_relaxed);
  ReturnPages(static_cast<uint32_t>(size_t{ref} * 8 / kPageBytes), static_cast<uint32_t>(pages));
}

Ref Heap::AllocateObject(uint8_t size_class) {
  SizeClass& objects = classes_[size_class];
  const size_t object_bytes = kClassBytes[size_class];
  SpinLockHolder lock(&objects.lock);
  uint32_t number = NextPage(objects);
  if (number == kNoPage) {
    number = TakePage();
    if (number == kNoPage) return 0;
    pages_[number].size_class = size_class;
    pages_[number].use = PageUse::kObjects;
    Link(&objects.sparse, number);
  }
  Page& page = pages_[number];
  char* const start = region_ + size_t{number} * kPageBytes;
  size_t object;
  if (page.first_free != 0) {
    object = page.first_free - 1u;
    page.first_free = *reinterpret_cast<uint16_t*>(start + object * object_bytes);
    --page.free;
  } else {
    object = page.carved++;
    bytes_.fetch_add(object_bytes, std::memory_order_relaxed);
  }
  Relink(&objects, number, kPageBytes / object_bytes);
  return static_cast<Ref>((size_t{number} * kPageBytes + object * object_bytes) / 8);
}

void Heap::FreeObject(Ref ref, uint8_t size_class) {
  SizeClass& objects = classes_[size_class];
  const size_t object_bytes = kClassBytes[size_class];
  const size_t offset = size_t{ref} * 8;
  const uint32_t number = static_cast<uint32_t>(offset / kPageBytes);
  {
    SpinLockHolder lock(&objects.lock);
    Page& page = pages_[number];
    *reinterpret_cast<uint16_t*>(region_ + offset) = page.first_free;
    page.first_free = static_cast<uint16_t>(1 + offset % kPageBytes / object_bytes);
    ++page.free;
    Relink(&objects, number, kPageBytes / object_bytes);
    if (page.free < page.carved) return;
    Unlink(&objects.sparse, number);
    bytes_.fetch_sub(page.carved * object_bytes, std::memory_order_relaxed);
  }
  ReturnPages(number, 1);
}

// The fuller pages first, so that the others can run empty.
uint32_t Heap::NextPage(const SizeClass& objects) {
  return objects.dense.first != kNoPage ? objects.dense.first : objects.sparse.first;
}

// A page's list by how full it is; a full one is in none.
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

bool Heap::BetterElsewhere(Ref ref, size_t bytes) {
  if (bytes > kObjectBytesMax) return false;
  SizeClass& objects = classes_[ClassOf(bytes)];
  const uint32_t number = static_cast<uint32_t>(size_t{ref} * 8 / kPageBytes);
  SpinLockHolder lock(&objects.lock);
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
  uint32_t left = fail_pages_.load(std::memory_order_relaxed);
  while (left != 0) {
    if (fail_pages_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

uint32_t Heap::TakePage() {
  if (PageFails()) return kNoPage;
  SpinLockHolder lock(&pages_lock_);
  uint32_t number = kNoPage;
  if (retained_.first != kNoPage) {
    number = retained_.first;
    Unlink(&retained_, number);
  } else if (returned_.first != kNoPage) {
    number = returned_.first;
    Unlink(&returned_, number);
  } else if (pages_end_ < kPages) {
    number = pages_end_++;
  }
  if (number != kNoPage) pages_[number] = Page{};
  return number;
}

void Heap::ReturnPages(uint32_t first, uint32_t count) {
  for (uint32_t number = first; number < first + count; ++number) {
    {
      SpinLockHolder lock(&pages_lock_);
      if (retained_.count < retained_pages_max_) {
        pages_[number].use = PageUse::kRetained;
        Link(&retained_, number);
        continue;
      }
    }
    madvise(region_ + size_t{number} * kPageBytes, kPageBytes, MADV_DONTNEED);
    SpinLockHolder lock(&pages_lock_);
    pages_[number].use = PageUse::kReturned;
    Link(&returned_, number);
  }
}

// Objects beyond the largest class: whole pages in a row. They are rare: a table of thousands of holders.
Ref Heap::AllocateLarge(size_t bytes) {
  if (PageFails()) return 0;
  const size_t pages = (bytes + kPageBytes - 1) / kPageBytes;
  if (pages >= kPages) return 0;
  SpinLockHolder lock(&pages_lock_);
  const uint32_t first = FindAdjacent(static_cast<uint32_t>(pages));
  if (first == kNoPage) return 0;
  for (uint32_t number = first; number < first + pages; ++number) {
    Page& page = pages_[number];
    if (page.use == PageUse::kRetained) Unlink(&retained_, number);
    if (page.use == PageUse::kReturned) Unlink(&returned_, number);
    page = Page{};
    page.use = PageUse::kLarge;
  }
  pages_end_ = std::max<uint32_t>(pages_end_, first + static_cast<uint32_t>(pages));
  bytes_.fetch_add(pages * kPageBytes, std::memory_order_relaxed);
  return static_cast<Ref>(size_t{first} * kPageBytes / 8);
}

uint32_t Heap::FindAdjacent(uint32_t pages) {
  uint32_t free = 0;
  for (uint32_t number = 1; number < pages_end_; ++number) {
    const PageUse use = pages_[number].use;
    free = use == PageUse::kRetained || use == PageUse::kReturned ? free + 1 : 0;
    if (free == pages) return number + 1 - pages;
  }
  return pages_end_ - free + pages <= kPages ? pages_end_ - free : kNoPage;
}

// ---- Retired ----

void Heap::Retire(Ref ref, size_t bytes) {
  const uint64_t epoch = RetireEpoch();
  size_t retired;
  {
    SpinLockHolder lock(&retired_lock_);
    retired_.push_back({.epoch = epoch, .ref = ref, .bytes = static_cast<uint32_t>(bytes)});
    retired = retired_.size();
  }
  if (retired % kRetiredMax == 0) Reclaim();
}

void Heap::Reclaim() {
  const uint64_t oldest = OldestActiveEpoch();
  std::vector<Retired> free;
  {
    SpinLockHolder lock(&retired_lock_);
    const auto middle = std::partition(retired_.begin(), retired_.end(),
                                       [&](const Retired& each) { return each.epoch >= oldest; });
    free.assign(middle, retired_.end());
    retired_.erase(middle, retired_.end());
  }
  for (const Retired& each : free) Free(each.ref, each.bytes);
}

}  // namespace kvatlas::atlas
