// The holders of a run in one tier. Few holders that have all of it are numbers in the run itself;
// else there is a section: holders that have all, and those that have part.
//
//   section   words > 0: a bit for every holder number;  else: a list of `listed_max` numbers, ~0 is free
//   partials  open addressing by holder; kNoHolder ends a search, kGone was a holder
//
// *Truth*: all is all that is not dead. A holder is in one of the two places, or, while it is
// written, in both.
// *Threads*: one writer; reads at any time. A change that needs more room makes a new section or
// table and publishes it with one store; the old one is retired. A holder that changes places is
// first in the new one and then no more in the old.
// *Cost*: up to three holders nothing. Then 16 bytes, and a bit for every holder number while
// numbers are small, else 4 bytes a holder until bits are cheaper. A partial is 4 + 8 bytes for
// each 64 blocks of the run's capacity.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_MEMBERS_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_MEMBERS_H_

#include <atomic>
#include <cstdint>

#include "indexer/index/atlas/heap.h"
#include "indexer/index/atlas/run.h"

namespace kvatlas::atlas {

inline constexpr uint32_t kNoHolder = 0xffffffff;
inline constexpr uint32_t kGone = 0xfffffffe;

struct Section {
  uint16_t words = 0;       // a bit a holder
  uint16_t listed_max = 0;  // or a number a holder
  std::atomic<Ref> partials{0};
  std::atomic<Holders> next{kFree};  // another tier's section
  Tier tier{};

  size_t bytes() const { return sizeof(Section) + words * sizeof(uint64_t) + listed_max * 4u; }
  std::atomic<uint64_t>* bits() { return reinterpret_cast<std::atomic<uint64_t>*>(this + 1); }
  std::atomic<uint32_t>* listed() { return reinterpret_cast<std::atomic<uint32_t>*>(this + 1); }
};
static_assert(sizeof(Section) == 16);

struct Partials {
  uint16_t words = 0;  // of offsets, a holder
  uint16_t unused = 0;
  uint32_t capacity = 0;  // a power of two
  uint32_t used = 0;      // the writer's: entries that are not kNoHolder
  uint32_t holders = 0;   // the writer's: entries that are holders

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

// The writer's operations on one tier of one run.
class Members {
 public:
  // `holders_end`: one more than the largest holder number in use.
  Members(Heap* heap, Run* run, Tier tier, uint32_t holders_end)
      : heap_(heap), run_(run), tier_(tier), holders_end_(holders_end) {}

  bool HasAll(uint32_t holder) const;
  static bool HasAll(Section* section, uint32_t holder);
  // All or part.
  bool Has(uint32_t holder) const {
    Partials* const part = partials();
    return HasAll(holder) || (part != nullptr && FindPart(part, holder) >= 0);
  }
  // Counts up to `at_most`.
  uint32_t CountAll(uint32_t at_most) const;
  static uint32_t CountAll(Section* section, uint32_t at_most);
  uint32_t CountPartials() const;

  // The blocks of a holder; `live`: the blocks that any holder has.
  Offsets Of(uint32_t holder, const Offsets& live) const;

  // False when there is no memory: nothing changed.
  bool AddAll(uint32_t holder);
  bool SetPart(uint32_t holder, const Offsets& offsets);

  // The usual case of a hole in a run of several holders: one that has part of it, and not only
  // this block, loses it.
  struct One {
    bool usual = false;                     // else: nothing is known
    bool has = false;                       // the holder has it
    bool shared = false;                    // another holder has it
    std::atomic<uint64_t>* bits = nullptr;  // of 64 blocks, this one among them
  };
  // REQUIRES: the run has sections.
  static One LookAt(Heap* heap, Run* run, Tier tier, uint32_t holder, uint32_t offset);
  // REQUIRES: `one` is usual, has, and of this moment.
  static void Take(const One& one, uint32_t offset) {
    one.bits->store(one.bits->load(std::memory_order_relaxed) & ~(uint64_t{1} << (offset % 64)),
                    std::memory_order_release);
  }

  void RemoveAll(uint32_t holder);
  void RemovePart(uint32_t holder);

  // The blocks that holders other than `except` have; `live`: the blocks that any holder has.
  Offsets Union(uint32_t except, const Offsets& live) const;

  // Calls visit(holder, offsets) for every holder.
  template <typename Visit>
  void ForEach(const Offsets& live, Visit visit) const;

  // Calls visit(holder) for those that have all of it.
  template <typename Visit>
  void ForEachAll(Visit visit) const;

  // Calls visit(holder, offsets) for those that have part of it; it may change that.
  template <typename Visit>
  void ForEachPart(Visit visit) const;

  // Tiers in which there is a holder, or was.
  static TierMask TiersOf(Heap* heap, const Run& run);

  // The one holder of the run in any tier, if it has exactly one and that has all; else kFree.
  static Holders Sole(const Run& run);

  // Gives the memory of all sections and partials back: at once when no reader has seen them.
  static void Discard(Heap* heap, Run* run, bool seen);

  // A holder's entry, or -1. For readers, too.
  static int FindPart(Partials* partials, uint32_t holder);

 private:
  static Section* SectionAt(Heap* heap, Holders link) {
    return (link & kSectionBit) == 0 ? nullptr : heap->At<Section>(link & ~kSectionBit);
  }
  bool is_inline() const {
    return (run_->holders[0].load(std::memory_order_relaxed) & kSectionBit) == 0;
  }
  // The link to the tier's section, or the end of the chain where it would be.
  std::atomic<Holders>* Link() const;
  Section* section() const {
    return is_inline() ? nullptr : SectionAt(heap_, Link()->load(std::memory_order_acquire));
  }
  Partials* partials() const {
    Section* const at = section();
    const Ref ref = at == nullptr ? 0 : at->partials.load(std::memory_order_acquire);
    return ref == 0 ? nullptr : heap_->At<Partials>(ref);
  }
  static void Insert(Partials* partials, uint32_t holder, const Offsets& offsets);
  static Offsets Load(Partials* partials, uint32_t entry);
  Section* NewSection(Tier tier, uint32_t holders, uint32_t holder_max, bool bits, Ref* ref) const;
  static void Add(Section* section, uint32_t holder);
  bool MakeSections();
  bool GrowSection(uint32_t holder);
  bool GrowPartials();

  Heap* const heap_;
  Run* const run_;
  const Tier tier_;
  const uint32_t holders_end_;
};

template <typename Visit>
void Members::ForEach(const Offsets& live, Visit visit) const {
  ForEachAll([&](uint32_t holder) { visit(holder, live); });
  ForEachPart(visit);
}

template <typename Visit>
void Members::ForEachAll(Visit visit) const {
  if (is_inline()) {
    for (const std::atomic<Holders>& slot : run_->holders) {
      const Holders one = slot.load(std::memory_order_relaxed);
      if (one != kFree && TierOf(one) == tier_) visit(HolderOf(one));
    }
    return;
  }
  Section* const at = section();
  if (at == nullptr) return;
  for (uint32_t i = 0; i < at->words; ++i) {
    for (uint64_t word = at->bits()[i].load(std::memory_order_relaxed); word != 0; word &= word - 1)
      visit(i * 64 + static_cast<uint32_t>(std::countr_zero(word)));
  }
  for (uint32_t i = 0; i < at->listed_max; ++i) {
    const uint32_t holder = at->listed()[i].load(std::memory_order_relaxed);
    if (holder != kNoHolder) visit(holder);
  }
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
