// Who holds which blocks of a run, in one tier? A section: holders that have all of it, and those that have part.
//
//   section   words > 0: a bit for every holder number;  else: a list of `listed_max` numbers, ~0 is free
//   partials  open addressing by holder; kNobody ends a search, kGone was somebody
//
// *Truth*: a holder is in one of the two places, or, while it is written, in both or in neither.
// *Threads*: writes under the run's lock; reads at any time. A change that needs more room makes a new section
// or table and publishes it with one store; the old one is retired.
// *Cost*: 16 bytes, then a bit for every holder number while numbers are small, else 4 bytes a holder until bits
// are cheaper. A partial is 4 + 8 bytes for each 64 blocks of the run's capacity.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_MEMBERS_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_MEMBERS_H_

#include <atomic>
#include <cstdint>

#include "indexer/index/atlas/heap.h"
#include "indexer/index/atlas/run.h"

namespace kvatlas::atlas {

inline constexpr uint32_t kNobody = 0xffffffff;
inline constexpr uint32_t kGone = 0xfffffffe;

struct Section {
  uint16_t words = 0;       // a bit a holder
  uint16_t listed_max = 0;  // or a number a holder
  std::atomic<Ref> partials{0};

  size_t bytes() const { return sizeof(Section) + words * sizeof(uint64_t) + listed_max * 4u; }
  std::atomic<uint64_t>* bits() { return reinterpret_cast<std::atomic<uint64_t>*>(this + 1); }
  std::atomic<uint32_t>* listed() { return reinterpret_cast<std::atomic<uint32_t>*>(this + 1); }
};
static_assert(sizeof(Section) == 8);

struct Partials {
  uint16_t words = 0;  // of offsets, a holder
  uint16_t unused = 0;
  uint32_t capacity = 0;  // a power of two
  uint32_t used = 0;      // under the run's lock: entries that are not kNobody
  uint32_t holders = 0;   // under the run's lock: entries that are somebody

  static size_t Bytes(uint32_t words, uint32_t capacity) {
    return sizeof(Partials) + (capacity * 4u + 7) / 8 * 8 + size_t{capacity} * words * 8;
  }
  size_t bytes() const { return Bytes(words, capacity); }
  std::atomic<uint32_t>* names() { return reinterpret_cast<std::atomic<uint32_t>*>(this + 1); }
  std::atomic<uint64_t>* offsets(uint32_t entry) {
    char* first = reinterpret_cast<char*>(this + 1) + (capacity * 4u + 7) / 8 * 8;
    return reinterpret_cast<std::atomic<uint64_t>*>(first) + size_t{entry} * words;
  }
};
static_assert(sizeof(Partials) == 16);

// The operations on one section of one run, under the run's lock.
class Members {
 public:
  // `slot` is where the run refers to the section (0: it has none), `holders_end` one more than the largest
  // holder number in use.
  Members(Heap* heap, std::atomic<Ref>* slot, uint32_t capacity, uint32_t holders_end)
      : heap_(heap), slot_(slot), capacity_(capacity), holders_end_(holders_end) {}

  bool exists() const { return section() != nullptr; }
  bool HasAll(uint32_t holder) const;
  // All or part.
  bool Has(uint32_t holder) const {
    Partials* const part = partials();
    return HasAll(holder) || (part != nullptr && FindPart(part, holder) >= 0);
  }
  // Counts up to `at_most`.
  uint32_t CountAll(uint32_t at_most) const;
  uint32_t CountPartials() const;

  // What a holder has of [0, len).
  Offsets Of(uint32_t holder, uint32_t len) const;

  // False when there is no memory: nothing changed.
  bool AddAll(uint32_t holder);
  bool SetPart(uint32_t holder, const Offsets& offsets);

  // The usual case of a hole: a holder that has part of the run, and not only this block, loses one block.
  struct One {
    bool usual = false;   // else: nothing is known
    bool has = false;     // the holder has it
    bool shared = false;  // somebody else has it
    uint32_t entry = 0;
  };
  One LookAt(uint32_t holder, uint32_t offset) const;
  // REQUIRES: `one` is usual, has, and of this moment.
  void Take(const One& one, uint32_t offset);

  void RemoveAll(uint32_t holder);
  void RemovePart(uint32_t holder);

  // What everybody but `except` has of [0, len).
  Offsets Union(uint32_t except, uint32_t len) const;

  // Calls visit(holder, offsets) for every holder.
  template <typename Visit>
  void ForEach(uint32_t len, Visit visit) const;

  // The same for those that have part of it.
  template <typename Visit>
  void ForEachPart(Visit visit) const;

  // Gives the memory of section and partials back: at once when nobody has seen them.
  void Discard(bool seen);

  // A holder's entry, or -1. For readers, too.
  static int FindPart(Partials* partials, uint32_t holder);

 private:
  Section* section() const {
    const Ref ref = slot_->load(std::memory_order_acquire);
    return ref == 0 ? nullptr : heap_->At<Section>(ref);
  }
  Partials* partials() const {
    Section* const at = section();
    const Ref ref = at == nullptr ? 0 : at->partials.load(std::memory_order_acquire);
    return ref == 0 ? nullptr : heap_->At<Partials>(ref);
  }
  static void Insert(Partials* partials, uint32_t holder, const Offsets& offsets);
  static Offsets Load(Partials* partials, uint32_t entry);
  bool GrowSection(uint32_t holder);
  bool GrowPartials();

  Heap* const heap_;
  std::atomic<Ref>* const slot_;
  const uint32_t capacity_;
  const uint32_t holders_end_;
};

template <typename Visit>
void Members::ForEach(uint32_t len, Visit visit) const {
  Section* const at = section();
  if (at == nullptr) return;
  const Offsets all = Offsets::Range(0, len);
  for (uint32_t i = 0; i < at->words; ++i) {
    for (uint64_t word = at->bits()[i].load(std::memory_order_relaxed); word != 0; word &= word - 1)
      visit(i * 64 + static_cast<uint32_t>(std::countr_zero(word)), all);
  }
  for (uint32_t i = 0; i < at->listed_max; ++i) {
    const uint32_t holder = at->listed()[i].load(std::memory_order_relaxed);
    if (holder != kNobody) visit(holder, all);
  }
  ForEachPart(visit);
}

template <typename Visit>
void Members::ForEachPart(Visit visit) const {
  Partials* const part = partials();
  if (part == nullptr) return;
  for (uint32_t i = 0; i < part->capacity; ++i) {
    const uint32_t holder = part->names()[i].load(std::memory_order_relaxed);
    if (holder < kGone) visit(holder, Load(part, i));
  }
}

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_MEMBERS_H_
