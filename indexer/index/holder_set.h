// The holders of a block: a set of holders with a tier mask each, small when few hold and a bit per
// holder when many do.
//
//   inline   up to 2 holders in the object's own 16 bytes
//   sorted   a sorted array of (holder, mask), 4 bytes a holder
//   dense    a bit per holder number for each tier in use
//
// *Truth*: a holder is in the set exactly when its mask is not empty.
// *Threads*: as a standard container.
// *Cost*: `Get` O(log n) or O(1); `Set` moves up to n times 4 bytes, or sets a bit. The form
// follows from the number of holders and the largest one, so that 10,000 holders cost 1.25 KB a
// tier.
// *Bounds*: holder numbers below `kHoldersMax`.

#ifndef KVATLAS_INDEXER_INDEX_HOLDER_SET_H_
#define KVATLAS_INDEXER_INDEX_HOLDER_SET_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {

class HolderSet {
 public:
  static constexpr uint32_t kHoldersMax = 1u << 28;

  HolderSet() = default;
  HolderSet(HolderSet&& other) noexcept;
  HolderSet& operator=(HolderSet&& other) noexcept;
  ~HolderSet() { Free(); }

  bool empty() const { return count_ == 0; }
  uint32_t size() const { return count_; }

  // Tiers in which `holder` has the block; empty when it is not in the set.
  TierMask Get(HolderIndex holder) const;

  // An empty mask takes the holder out.
  void Set(HolderIndex holder, TierMask tiers);

  // Calls `visit(word, bits)` for every group of 64 holder numbers with members
  // in one of `tiers`, in increasing order: bit b of `bits` is holder 64 * word
  // + b.
  template <typename Visit>
  void ForEachWord(TierMask tiers, Visit visit) const;

  // Sets `row` to the holders below 64 * row.size() with a member in one of `tiers`, a bit each.
  void Read(TierMask tiers, std::span<uint64_t> row) const;

  // Reads such words at places the caller chooses, in increasing order.
  class WordReader {
   public:
    WordReader(const HolderSet& set, TierMask tiers);
    // REQUIRES: `word` is larger than in the call before.
    uint64_t Bits(uint32_t word);

   private:
    const HolderSet& set_;
    const TierMask tiers_;
    uint32_t next_ = 0;
  };

  // Memory beside the object itself.
  size_t HeapBytes() const;

  absl::Status Check() const;

 private:
  // A holder and its mask in 32 bits, ordered by holder.
  using Member = uint32_t;

  struct Dense {
    uint32_t words = 0;
    // Each is empty (no holder has it in that tier) or `words` long.
    std::vector<uint64_t> tiers[kTiers];

    uint64_t Bits(uint32_t word, TierMask tiers) const;
    TierMask Get(uint32_t holder) const;
    void Set(uint32_t holder, TierMask mask);
  };

  static constexpr uint32_t kInlineMembers = 2;
  // Below this many holders, never dense.
  static constexpr uint32_t kDenseFrom = 12;
  // Values of `capacity_`; others are the length of `array_`.
  static constexpr uint32_t kInline = 0;
  static constexpr uint32_t kDense = ~0u;

  static Member Pack(uint32_t holder, TierMask tiers) { return holder << kTiers | tiers.bits(); }
  static uint32_t HolderOf(Member member) { return member >> kTiers; }
  static TierMask TiersOf(Member member) { return TierMask(static_cast<uint8_t>(member)); }

  bool is_dense() const { return capacity_ == kDense; }
  Member* members() { return capacity_ == kInline ? inline_ : array_; }
  const Member* members() const { return capacity_ == kInline ? inline_ : array_; }
  // First member whose holder is not below `holder`. REQUIRES: not dense.
  uint32_t LowerBound(uint32_t holder) const;

  void SetMember(uint32_t holder, TierMask tiers);
  void Insert(uint32_t at, Member member);
  void Erase(uint32_t at);
  void Resize(uint32_t capacity);
  void SetDense(uint32_t holder, TierMask tiers);
  // Whether `count` holders with numbers below 64 * `words` are smaller as
  // bits.
  static bool DenseIsSmaller(uint32_t count, uint32_t words);
  static bool SortedIsMuchSmaller(uint32_t count, uint32_t words);
  void BecomeDense();
  void BecomeSorted();
  void Free();

  uint32_t count_ = 0;
  uint32_t capacity_ = kInline;
  union {
    Member inline_[kInlineMembers] = {0, 0};
    Member* array_;
    Dense* dense_;
  };
};

static_assert(sizeof(HolderSet) == 16);

template <typename Visit>
void HolderSet::ForEachWord(TierMask tiers, Visit visit) const {
  if (is_dense()) {
    for (uint32_t word = 0; word < dense_->words; ++word) {
      if (const uint64_t bits = dense_->Bits(word, tiers); bits != 0) visit(word, bits);
    }
    return;
  }
  const Member* all = members();
  for (uint32_t i = 0; i < count_;) {
    const uint32_t word = HolderOf(all[i]) / 64;
    uint64_t bits = 0;
    for (; i < count_ && HolderOf(all[i]) / 64 == word; ++i) {
      if (TiersOf(all[i]).Intersects(tiers)) bits |= uint64_t{1} << HolderOf(all[i]) % 64;
    }
    if (bits != 0) visit(word, bits);
  }
}

inline HolderSet::WordReader::WordReader(const HolderSet& set, TierMask tiers)
    : set_(set), tiers_(tiers) {}

inline uint64_t HolderSet::WordReader::Bits(uint32_t word) {
  if (set_.is_dense()) return set_.dense_->Bits(word, tiers_);
  const Member* all = set_.members();
  uint64_t bits = 0;
  for (; next_ < set_.count_ && HolderOf(all[next_]) / 64 <= word; ++next_) {
    const Member member = all[next_];
    if (HolderOf(member) / 64 == word && TiersOf(member).Intersects(tiers_)) {
      bits |= uint64_t{1} << HolderOf(member) % 64;
    }
  }
  return bits;
}

inline uint64_t HolderSet::Dense::Bits(uint32_t word, TierMask mask) const {
  if (word >= words) return 0;
  uint64_t bits = 0;
  for (int tier = 0; tier < kTiers; ++tier) {
    if (mask.Has(static_cast<Tier>(tier)) && !tiers[tier].empty()) bits |= tiers[tier][word];
  }
  return bits;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_HOLDER_SET_H_
