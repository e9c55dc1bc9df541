// `capacity_` says which form a set has: kInline, kDense, or the size of the sorted array. The form
// changes in `SetMember` and `SetDense` alone, by the two rules `DenseIsSmaller` and
// `SortedIsMuchSmaller`.

#include "indexer/index/holder_set.h"

#include <algorithm>
#include <utility>

namespace kvatlas {

HolderSet::HolderSet(HolderSet&& other) noexcept { *this = std::move(other); }

HolderSet& HolderSet::operator=(HolderSet&& other) noexcept {
  if (this == &other) return *this;
  Free();
  count_ = std::exchange(other.count_, 0);
  capacity_ = std::exchange(other.capacity_, kInline);
  if (capacity_ == kInline) {
    std::copy(other.inline_, other.inline_ + kInlineMembers, inline_);
  } else if (capacity_ == kDense) {
    dense_ = other.dense_;
  } else {
    array_ = other.array_;
  }
  return *this;
}

void HolderSet::Free() {
  if (capacity_ == kDense) {
    delete dense_;
  } else if (capacity_ != kInline) {
    delete[] array_;
  }
  count_ = 0;
  capacity_ = kInline;
}

TierMask HolderSet::Get(HolderIndex holder) const {
  const uint32_t raw = Raw(holder);
  if (is_dense()) return dense_->Get(raw);
  const uint32_t at = LowerBound(raw);
  return at < count_ && HolderOf(members()[at]) == raw ? TiersOf(members()[at]) : TierMask();
}

// A mask of no tier takes the holder out, in either form.
void HolderSet::Set(HolderIndex holder, TierMask tiers) {
  if (is_dense()) {
    SetDense(Raw(holder), tiers);
  } else {
    SetMember(Raw(holder), tiers);
  }
}

void HolderSet::Read(TierMask tiers, std::span<uint64_t> row) const {
  std::fill(row.begin(), row.end(), 0);
  if (!is_dense()) {
    const Member* const all = members();
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t holder = HolderOf(all[i]);
      if (holder / 64 >= row.size()) return;
      if (TiersOf(all[i]).Intersects(tiers)) row[holder / 64] |= uint64_t{1} << holder % 64;
    }
    return;
  }
  const size_t words = std::min<size_t>(dense_->words, row.size());
  for (int tier = 0; tier < kTiers; ++tier) {
    const std::vector<uint64_t>& bits = dense_->tiers[tier];
    if (bits.empty() || !tiers.Has(static_cast<Tier>(tier))) continue;
    for (size_t word = 0; word < words; ++word) row[word] |= bits[word];
  }
}

uint32_t HolderSet::LowerBound(uint32_t holder) const {
  const Member* all = members();
  return static_cast<uint32_t>(std::lower_bound(all, all + count_, Pack(holder, TierMask())) - all);
}

// Members are sorted by holder, so the last one tells how many words a dense form would have.
void HolderSet::SetMember(uint32_t holder, TierMask tiers) {
  const uint32_t at = LowerBound(holder);
  const bool is_in = at < count_ && HolderOf(members()[at]) == holder;
  if (tiers.empty()) {
    if (is_in) Erase(at);
  } else if (is_in) {
    members()[at] = Pack(holder, tiers);
  } else {
    Insert(at, Pack(holder, tiers));
    if (DenseIsSmaller(count_, HolderOf(members()[count_ - 1]) / 64 + 1)) BecomeDense();
  }
}

void HolderSet::Insert(uint32_t at, Member member) {
  const uint32_t capacity = capacity_ == kInline ? kInlineMembers : capacity_;
  if (count_ == capacity) Resize(capacity * 2);
  Member* all = members();
  std::copy_backward(all + at, all + count_, all + count_ + 1);
  all[at] = member;
  ++count_;
}

// The array shrinks by half when it is a quarter full: a holder that comes and goes does not make
// it grow and shrink in turns.
void HolderSet::Erase(uint32_t at) {
  Member* all = members();
  std::copy(all + at + 1, all + count_, all + at);
  --count_;
  if (capacity_ != kInline && count_ <= capacity_ / 4) Resize(capacity_ / 2);
}

// Moves the members to an array of another size, or back into the object. The array's pointer lies
// where inline members lie, hence the copy in between.
void HolderSet::Resize(uint32_t capacity) {
  Member* const old = capacity_ == kInline ? nullptr : array_;
  if (capacity <= kInlineMembers) {
    Member kept[kInlineMembers] = {0, 0};
    std::copy(old, old + count_, kept);
    std::copy(kept, kept + kInlineMembers, inline_);
    capacity_ = kInline;
  } else {
    Member* const array = new Member[capacity];
    std::copy(members(), members() + count_, array);
    array_ = array;
    capacity_ = capacity;
  }
  delete[] old;
}

void HolderSet::SetDense(uint32_t holder, TierMask tiers) {
  const bool was_in = !dense_->Get(holder).empty();
  dense_->Set(holder, tiers);
  count_ = count_ - was_in + !tiers.empty();
  if (SortedIsMuchSmaller(count_, dense_->words)) BecomeSorted();
}

// Bits cost 8 bytes a word in each tier in use: taken as one and a half.
bool HolderSet::DenseIsSmaller(uint32_t count, uint32_t words) {
  return count >= kDenseFrom && size_t{count} * sizeof(Member) >= size_t{words} * 12;
}

// A wide gap between the two, so that one holder coming and going does not flip
// the form.
bool HolderSet::SortedIsMuchSmaller(uint32_t count, uint32_t words) {
  return count < kDenseFrom / 2 || size_t{count} * sizeof(Member) * 4 < size_t{words} * 8;
}

void HolderSet::BecomeDense() {
  Dense* const dense = new Dense;
  dense->words = HolderOf(members()[count_ - 1]) / 64 + 1;
  for (uint32_t i = 0; i < count_; ++i) dense->Set(HolderOf(members()[i]), TiersOf(members()[i]));
  if (capacity_ != kInline) delete[] array_;
  dense_ = dense;
  capacity_ = kDense;
}

// `dense_` and `array_` share their place: the dense form is kept by a pointer of its own until
// everything is read.
void HolderSet::BecomeSorted() {
  Dense* const dense = dense_;
  const uint32_t capacity = std::bit_ceil(std::max(count_, kInlineMembers * 2));
  Member* const array = new Member[capacity];
  uint32_t filled = 0;
  ForEachWord(TierMask::All(), [&](uint32_t word, uint64_t bits) {
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t holder = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      array[filled++] = Pack(holder, dense->Get(holder));
    }
  });
  array_ = array;
  capacity_ = capacity;
  delete dense;
}

TierMask HolderSet::Dense::Get(uint32_t holder) const {
  if (holder / 64 >= words) return TierMask();
  TierMask mask;
  for (int tier = 0; tier < kTiers; ++tier) {
    if (!tiers[tier].empty() && (tiers[tier][holder / 64] >> holder % 64 & 1) != 0) {
      mask = mask | TierMask(static_cast<Tier>(tier));
    }
  }
  return mask;
}

// Grows to the largest number ever set. A tier has no bits before its first member.
void HolderSet::Dense::Set(uint32_t holder, TierMask mask) {
  if (holder / 64 >= words) {
    words = holder / 64 + 1;
    for (std::vector<uint64_t>& bits : tiers) {
      if (!bits.empty()) bits.resize(words);
    }
  }
  for (int tier = 0; tier < kTiers; ++tier) {
    const bool in_tier = mask.Has(static_cast<Tier>(tier));
    std::vector<uint64_t>& bits = tiers[tier];
    if (in_tier && bits.empty()) bits.resize(words);
    if (bits.empty()) continue;
    const uint64_t bit = uint64_t{1} << holder % 64;
    bits[holder / 64] = in_tier ? bits[holder / 64] | bit : bits[holder / 64] & ~bit;
  }
}

size_t HolderSet::HeapBytes() const {
  if (capacity_ == kInline) return 0;
  if (capacity_ != kDense) return size_t{capacity_} * sizeof(Member);
  size_t bytes = sizeof(Dense);
  for (const std::vector<uint64_t>& bits : dense_->tiers)
    bytes += bits.capacity() * sizeof(uint64_t);
  return bytes;
}

absl::Status HolderSet::Check() const {
  uint32_t counted = 0;
  ForEachWord(TierMask::All(), [&](uint32_t, uint64_t bits) {
    counted += static_cast<uint32_t>(std::popcount(bits));
  });
  if (counted != count_) return absl::InternalError("holder set: wrong count");
  if (is_dense()) return absl::OkStatus();
  for (uint32_t i = 0; i < count_; ++i) {
    const Member member = members()[i];
    if (TiersOf(member).empty()) return absl::InternalError("holder set: member in no tier");
    if (i > 0 && HolderOf(members()[i - 1]) >= HolderOf(member)) {
      return absl::InternalError("holder set: members out of order");
    }
  }
  return absl::OkStatus();
}

}  // namespace kvatlas
