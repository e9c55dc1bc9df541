// Questions to an atlas: all holders, tiers, the compact form. Each is one walk (`walker.h`) with
// another way to write down which holders drop out where. An `Emit` has
//   Word(mask, depth, i, bits)   holders `bits` of word i drop out at `depth`, for mask `mask`
//   Reset()                      what was emitted is void: the walk begins again
//   Drop(i, bits)                the same for some holders, at the end of a walk by holder

#include <algorithm>
#include <bit>

#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/epoch.h"
#include "indexer/index/atlas/walker.h"

namespace kvatlas::atlas {
namespace {

// How often a walk is tried before it is done by holder.
constexpr int kWalks = 4;

// One a thread and not one an index: queries of several indexes on a thread follow one another.
WalkMemory& ThreadMemory() {
  static thread_local WalkMemory memory;
  return memory;
}

// Appends to a vector of overlaps, through a buffer on the stack: one check of the vector's room
// for hundreds of holders, and a full word without a look at single bits.
class ListEmit {
 public:
  explicit ListEmit(std::vector<Overlap>* overlaps)
      : overlaps_(*overlaps), first_(overlaps->size()) {}

  void Word(size_t, uint32_t depth, uint32_t i, uint64_t bits) {
    if (size_ > kRoom - 64) Flush();
    const uint32_t from = i * 64;
    if (bits == ~uint64_t{0}) {
      for (uint32_t bit = 0; bit < 64; ++bit)
        found_[size_ + bit] = {.holder = HolderIndex{from + bit}, .blocks = depth};
      size_ += 64;
      return;
    }
    for (; bits != 0; bits &= bits - 1)
      found_[size_++] = {
          .holder = HolderIndex{from + static_cast<uint32_t>(std::countr_zero(bits))},
          .blocks = depth};
  }
  void Reset() {
    size_ = 0;
    overlaps_.resize(first_);
  }
  // Rare: only holders that were written during a walk by holder.
  void Drop(uint32_t i, uint64_t bits) {
    Flush();
    overlaps_.erase(
        std::remove_if(overlaps_.begin() + static_cast<std::ptrdiff_t>(first_), overlaps_.end(),
                       [&](const Overlap& each) {
                         return Raw(each.holder) / 64 == i &&
                                (bits >> (Raw(each.holder) % 64) & 1) != 0;
                       }),
        overlaps_.end());
  }
  void Flush() {
    overlaps_.insert(overlaps_.end(), found_, found_ + size_);
    size_ = 0;
  }

 private:
  // Holders that are buffered: a word of 64 must fit behind what is there.
  static constexpr size_t kRoom = 512;

  std::vector<Overlap>& overlaps_;
  const size_t first_;
  size_t size_ = 0;
  Overlap found_[kRoom];
};

// Fills steps. Depths come in growing order but for those of partial holders, so a place is looked
// for from the end.
class StepEmit {
 public:
  StepEmit(uint32_t words, OverlapSteps* steps) : steps_(*steps) {
    steps_.words_per_step = words;
    Reset();
  }

  void Word(size_t, uint32_t depth, uint32_t i, uint64_t bits) {
    steps_.words[StepAt(depth) * steps_.words_per_step + i] |= bits;
  }
  void Reset() {
    steps_.depths.clear();
    steps_.words.clear();
  }
  void Drop(uint32_t i, uint64_t bits) {
    for (size_t step = 0; step < steps_.depths.size(); ++step)
      steps_.words[step * steps_.words_per_step + i] &= ~bits;
  }

 private:
  // The step of this depth, made where there is none: words of later steps move up.
  size_t StepAt(uint32_t depth) {
    size_t step = steps_.depths.size();
    while (step > 0 && steps_.depths[step - 1] > depth) --step;
    if (step > 0 && steps_.depths[step - 1] == depth) return step - 1;
    steps_.depths.insert(steps_.depths.begin() + static_cast<std::ptrdiff_t>(step), depth);
    steps_.words.insert(
        steps_.words.begin() + static_cast<std::ptrdiff_t>(step * steps_.words_per_step),
        steps_.words_per_step, 0);
    return step;
  }

  OverlapSteps& steps_;
};

// Fills a row a holder: the depth for the tiers asked for together, then for every tier by itself.
class TierEmit {
 public:
  explicit TierEmit(uint32_t holders) : holders_((holders + 63) / 64 * 64) { Reset(); }

  void Word(size_t mask, uint32_t depth, uint32_t i, uint64_t bits) {
    for (; bits != 0; bits &= bits - 1)
      rows_[(i * 64 + static_cast<uint32_t>(std::countr_zero(bits))) * kColumns + mask] = depth;
  }
  void Reset() { rows_.assign(size_t{holders_} * kColumns, 0); }
  void Drop(uint32_t i, uint64_t bits) {
    for (; bits != 0; bits &= bits - 1)
      rows_[(i * 64 + static_cast<uint32_t>(std::countr_zero(bits))) * kColumns] = 0;
  }
  // Rows without a depth for the tiers asked for are in no answer, whatever single tiers have.
  void AppendTo(std::vector<TierOverlap>* overlaps) const {
    for (uint32_t holder = 0; holder < holders_; ++holder) {
      const uint32_t* row = &rows_[size_t{holder} * kColumns];
      if (row[0] == 0) continue;
      TierOverlap overlap{.holder = HolderIndex{holder}, .blocks = row[0]};
      std::copy_n(row + 1, kTiers, overlap.by_tier);
      overlaps->push_back(overlap);
    }
  }

 private:
  static constexpr size_t kColumns = 1 + kTiers;
  const uint32_t holders_;
  std::vector<uint32_t> rows_;
};

}  // namespace

// R3 and R4: a few walks by version, each void if anything changed; then one by holder (R5).
template <typename Emit>
void AtlasIndex::Find(const OverlapQuery& query, std::span<const TierMask> masks,
                      Emit* emit) const {
  Walker<Emit> walker(*this, query, masks, &ThreadMemory(), emit);
  for (int i = 0; i < kWalks; ++i) {
    if (walker.WalkByVersion()) return;
    emit->Reset();
  }
  walker.WalkByHolder([&](uint32_t i, uint64_t bits) { emit->Drop(i, bits); });
}

// A block without holders is in no table.
bool AtlasIndex::MayHold(SequenceHash block) const {
  EpochGuard guard;
  return table_->Find(block) != 0;
}

void AtlasIndex::FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const {
  EpochGuard guard;
  ListEmit emit(overlaps);
  Find(query, std::span(&query.tiers, 1), &emit);
  emit.Flush();
}

void AtlasIndex::FindSteps(const OverlapQuery& query, OverlapSteps* steps) const {
  EpochGuard guard;
  StepEmit emit((holders_end() + 63) / 64, steps);
  Find(query, std::span(&query.tiers, 1), &emit);
}

// All five masks in one walk, so that they are of one instant.
void AtlasIndex::FindTierOverlaps(const OverlapQuery& query,
                                  std::vector<TierOverlap>* overlaps) const {
  EpochGuard guard;
  TierMask masks[1 + kTiers] = {query.tiers};
  for (int tier = 0; tier < kTiers; ++tier) masks[1 + tier] = static_cast<Tier>(tier);
  TierEmit emit(holders_end());
  Find(query, masks, &emit);
  emit.AppendTo(overlaps);
}

}  // namespace kvatlas::atlas
