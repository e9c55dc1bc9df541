#include "indexer/index/reusable.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace kvatlas {
namespace {

constexpr size_t kAhead = 8;  // rows whose slots are loaded ahead

uint64_t RoundDown(uint64_t value, uint64_t unit) { return value - value % unit; }

// Blocks that end at a boundary and must be held for it.
uint64_t BlocksOfWindow(const CacheClass& side, bool drop) {
  const uint64_t blocks = (uint64_t{side.window_tokens} + side.block_size - 1) / side.block_size;
  return std::max<uint64_t>(1, blocks + drop);
}

}  // namespace

std::optional<SequenceHash> Reusable::NameAt(const CacheClass& side,
                                             std::span<const SequenceHash> blocks,
                                             uint32_t block_size, uint64_t end) {
  const uint64_t common = std::lcm(uint64_t{side.block_size}, uint64_t{block_size});
  const uint64_t twin = (end + common - 1) / common * common;
  if (twin / block_size > blocks.size()) return std::nullopt;
  return SideName(SideTag(side), blocks[twin / block_size - 1], static_cast<uint32_t>(twin - end));
}

uint64_t Reusable::FirstNeeded(const CacheClass& side, uint64_t length) {
  const uint64_t end = length / side.block_size;
  if (side.kind == CacheKind::kWindow) return end - std::min(end, BlocksOfWindow(side, false));
  if (side.kind == CacheKind::kChunk)
    return RoundDown(length, std::max<uint64_t>(1, side.window_tokens)) / side.block_size;
  return end - 1;
}

std::optional<SequenceHash> Reusable::NameOf(const Side& side, size_t block) const {
  const uint64_t end = (block + 1) * side.of.block_size;
  const uint64_t twin =
      side.common == side.of.block_size ? end : (end + side.common - 1) / side.common * side.common;
  if (twin > tokens_) return std::nullopt;
  return SideName(side.tag, blocks_[twin / block_size_ - 1], static_cast<uint32_t>(twin - end));
}

void Reusable::Open(const CacheLayout& layout, std::span<const Overlap> holders) {
  uint32_t last = 0;
  for (const Overlap& overlap : holders) last = std::max(last, Raw(overlap.holder));
  words_ = last / 64 + 1;
  sides_used_ = layout.sides.size();
  if (sides_.size() < sides_used_) sides_.resize(sides_used_);
  for (size_t i = 0; i < sides_used_; ++i) {
    Side& side = sides_[i];
    side.of = layout.sides[i];
    side.tag = SideTag(side.of);
    side.common = std::lcm(uint64_t{side.of.block_size}, block_size_);
    side.blocks = tokens_ / side.of.block_size;
    side.known.assign(side.blocks, 0);
    if (side.rows.size() < side.blocks * words_) side.rows.resize(side.blocks * words_);
  }
}

const uint64_t* Reusable::Row(Side* side, size_t block) {
  uint64_t* const row = side->rows.data() + block * words_;
  if (side->known[block]) return row;
  side->known[block] = 1;
  // Walks go from deep to shallow.
  if (block >= kAhead)
    if (const auto ahead = NameOf(*side, block - kAhead)) reader_->Prefetch(*ahead);
  if (const auto name = NameOf(*side, block)) {
    reader_->Row(*name, tiers_, {row, words_});
  } else {
    std::fill_n(row, words_, 0);
  }
  return row;
}

// ---- All holders at once ----

void Reusable::Accept(Side* side, uint64_t length, std::span<uint64_t> accepted) {
  const uint64_t end = length / side->of.block_size;  // a multiple, as the alignment is
  const uint64_t first = FirstNeeded(side->of, length);
  for (uint64_t block = end; block-- > first;) {
    const uint64_t* const row = Row(side, block);
    uint64_t any = 0;
    for (size_t word = 0; word < words_; ++word) any |= accepted[word] &= row[word];
    if (any == 0) return;
  }
}

// From the deepest length down: the holders that reach it join those that wait, and those that every class accepts leave.
void Reusable::FindAllAtOnce(uint64_t alignment, std::span<Overlap> holders) {
  const uint64_t step = alignment / block_size_;  // blocks
  order_.clear();
  slot_of_.assign(words_ * 64, 0);
  for (uint32_t i = 0; i < holders.size(); ++i) {
    slot_of_[Raw(holders[i].holder)] = i;
    holders[i].blocks = static_cast<uint32_t>(RoundDown(holders[i].blocks, step));
    if (holders[i].blocks > 0) order_.push_back(i);
  }
  std::sort(order_.begin(), order_.end(),
            [&](uint32_t a, uint32_t b) { return holders[a].blocks > holders[b].blocks; });
  pending_.assign(words_, 0);
  size_t next = 0;
  size_t waiting = 0;
  uint64_t length = order_.empty() ? 0 : holders[order_[0]].blocks;
  while (length > 0) {
    for (; next < order_.size() && holders[order_[next]].blocks >= length; ++next, ++waiting) {
      const uint32_t holder = Raw(holders[order_[next]].holder);
      pending_[holder / 64] |= uint64_t{1} << (holder % 64);
    }
    if (waiting == 0) {
      if (next == order_.size()) break;
      length = holders[order_[next]].blocks;
      continue;
    }
    accepted_ = pending_;
    for (size_t i = 0; i < sides_used_; ++i) Accept(&sides_[i], length * block_size_, accepted_);
    for (size_t word = 0; word < words_; ++word) {
      pending_[word] &= ~accepted_[word];
      for (uint64_t bits = accepted_[word]; bits != 0; bits &= bits - 1, --waiting) {
        const size_t holder = word * 64 + static_cast<size_t>(std::countr_zero(bits));
        holders[slot_of_[holder]].blocks = static_cast<uint32_t>(length);
      }
    }
    length -= step;
  }
  for (size_t word = 0; word < words_; ++word) {
    for (uint64_t bits = pending_[word]; bits != 0; bits &= bits - 1)
      holders[slot_of_[word * 64 + static_cast<size_t>(std::countr_zero(bits))]].blocks = 0;
  }
}

// ---- Step by step, as the engine does it ----

uint64_t Reusable::FindOfMain(uint64_t held, uint64_t length_max, bool drop) const {
  uint64_t length = RoundDown(std::min(held, length_max), block_size_);
  if (drop && length > 0) length -= std::min(alignment_, block_size_);
  return RoundDown(length, alignment_);
}

uint64_t Reusable::FindOfSide(Side* side, uint32_t holder, uint64_t length_max, bool drop) {
  const uint64_t size = side->of.block_size;
  uint64_t block = length_max / size;
  if (side->of.kind == CacheKind::kState) {
    for (; block > 0; --block)
      if (block * size % alignment_ == 0 && Has(side, block - 1, holder)) return block * size;
    return 0;
  }
  if (side->of.kind == CacheKind::kChunk) {
    uint64_t end = RoundDown(length_max, std::max<uint64_t>(1, side->of.window_tokens)) / size;
    while (end < block && Has(side, end, holder)) ++end;
    return end * size;
  }
  const uint64_t needed = BlocksOfWindow(side->of, drop);
  uint64_t run = 0;
  uint64_t found = 0;  // blocks
  for (; block > 0; --block) {
    if (!Has(side, block - 1, holder)) {
      run = 0;
      continue;
    }
    if (run == 0 && (block - drop) * size % alignment_ != 0) continue;
    if (++run >= needed) {
      found = block - 1 + run;
      break;
    }
  }
  // What is left of a run stands at the head.
  if (found == 0) found = RoundDown(run * size, alignment_) / size;
  if (drop && found > 0) found = RoundDown((found - 1) * size, alignment_) / size;
  return found * size;
}

// vLLM's loop: each class in turn shortens the length, until none does. A class that drops its last block is given one
// more to match, once for each length.
uint64_t Reusable::FindStepByStep(const CacheLayout& layout, uint32_t holder, uint64_t held) {
  const size_t classes = sides_used_ + layout.has_main;
  const bool simple = layout.has_main && sides_used_ == 1;
  const auto class_of = [&](size_t i) -> const CacheClass& {
    return layout.has_main ? (i == 0 ? layout.main : layout.sides[i - 1]) : layout.sides[i];
  };
  uint64_t hit = tokens_;
  uint64_t main_hit = 0;
  bool main_known = false;
  uint32_t verified = 0;
  for (;;) {
    uint64_t length = hit;
    for (size_t i = 0; i < classes; ++i) {
      const CacheClass& of = class_of(i);
      const bool is_main = layout.has_main && i == 0;
      if (is_main && main_known) {
        length = std::min(length, main_hit);
        continue;
      }
      const bool drop = of.drops_last && (verified >> i & 1) == 0;
      uint64_t length_max = length;
      if (drop && of.kind != CacheKind::kState)
        length_max = std::min(length + (is_main ? block_size_ : of.block_size), tokens_);
      const uint64_t found =
          is_main ? FindOfMain(held, length_max, drop)
                  : FindOfSide(&sides_[i - layout.has_main], holder, length_max, drop);
      if (drop) {
        verified |= 1u << i;
      } else if (found < length) {
        verified = 0;
      }
      length = found;
      if (is_main) {
        main_hit = found;
        main_known = true;
      }
    }
    if (length >= hit) return hit;
    hit = length;
    if (simple || classes == 1) return hit;
  }
}

void Reusable::Find(const CacheLayout& layout, std::span<const SequenceHash> blocks,
                    uint32_t block_size, TierMask tiers, const SideIndex::Reader& sides,
                    std::span<Overlap> holders) {
  if (holders.empty()) return;
  blocks_ = blocks;
  block_size_ = block_size;
  tokens_ = uint64_t{block_size} * blocks.size();
  tiers_ = tiers;
  reader_ = &sides;
  alignment_ = AlignmentOf(layout);
  const bool fits = alignment_ != 0 && alignment_ % block_size == 0;
  // Where blocks are dropped, or a chunk begins inside a block (which the engine then does not look at), the steps matter.
  bool by_steps = layout.main.drops_last;
  for (const CacheClass& side : layout.sides)
    by_steps = by_steps || side.drops_last ||
               (side.kind == CacheKind::kChunk && side.window_tokens % side.block_size != 0);
  if (!fits) {
    for (Overlap& overlap : holders) overlap.blocks = 0;
    return;
  }
  Open(layout, holders);
  if (!layout.has_main)
    for (Overlap& overlap : holders) overlap.blocks = static_cast<uint32_t>(blocks.size());
  if (!by_steps) return FindAllAtOnce(alignment_, holders);
  for (Overlap& overlap : holders)
    overlap.blocks = static_cast<uint32_t>(
        FindStepByStep(layout, Raw(overlap.holder), overlap.blocks * block_size_) / block_size_);
}

}  // namespace kvatlas
