// Two ways to the same answer. `FindAllAtOnce` works on sets of holders, a word for 64, from the
// deepest length down: right where the order of the engine's steps does not matter. Else
// `FindStepByStep` does for each holder what the engine does. `Find` chooses.
//
// Lengths are tokens, or units of the alignment where they are called units: prefixes end only at
// multiples of it.

#include "indexer/index/reusable.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "indexer/base/for_each_bit.h"

namespace kvatlas {
namespace {

uint64_t RoundDown(uint64_t value, uint64_t unit) { return value - value % unit; }

// Number of blocks before a boundary that cover a window, at least one; one more where the engine
// drops the last (`drop`).
uint64_t BlocksOfWindow(const CacheClass& side, bool drop) {
  const uint64_t blocks = (uint64_t{side.window_tokens} + side.block_size - 1) / side.block_size;
  return std::max<uint64_t>(1, blocks + drop);
}

// Number of blocks before a boundary that must be held, for a class that is no chunk; fewer near
// the beginning of the prompt.
uint64_t BlocksBefore(const CacheClass& side) {
  return side.kind == CacheKind::kWindow ? BlocksOfWindow(side, false) : 1;
}

}  // namespace

// The twin is the next end at or behind `end` at which a main and a side block end together
// (`SideName`). A prompt that ends before it has no name for the block.
std::optional<SequenceHash> Reusable::NameAt(const CacheClass& side,
                                             std::span<const SequenceHash> blocks,
                                             uint32_t block_size, uint64_t end) {
  const bool is_twin = side.kind == CacheKind::kState && end % block_size == 0;
  const uint64_t common =
      is_twin ? block_size : std::lcm(uint64_t{side.block_size}, uint64_t{block_size});
  const uint64_t twin = (end + common - 1) / common * common;
  if (twin / block_size > blocks.size()) return std::nullopt;
  return SideName(SideTag(side), blocks[twin / block_size - 1], static_cast<uint32_t>(twin - end));
}

uint64_t Reusable::FirstNeeded(const CacheClass& side, uint64_t length) {
  if (side.kind == CacheKind::kChunk)
    return RoundDown(length, std::max<uint64_t>(1, side.window_tokens)) / side.block_size;
  const uint64_t end = length / side.block_size;
  return end - std::min(end, BlocksBefore(side));
}

// Prepares the sides of a layout for one prompt. Vectors only grow; rows are marked unknown and
// read when they are first needed.
void Reusable::Open(const CacheLayout& layout) {
  sides_used_ = layout.sides.size();
  if (sides_.size() < sides_used_) sides_.resize(sides_used_);
  for (size_t i = 0; i < sides_used_; ++i) {
    Side& side = sides_[i];
    side.of = layout.sides[i];
    side.tag = SideTag(side.of);
    side.of.block_size = EndsEvery(layout, side.of);
    side.common = std::lcm(uint64_t{side.of.block_size}, block_size_);
    side.named = RoundDown(tokens_, side.common) / side.of.block_size;
    const size_t blocks = tokens_ / side.of.block_size;
    side.known.assign(blocks, 0);
    side.per_unit = alignment_ / side.of.block_size;
    side.needed = BlocksBefore(side.of);
    side.ahead = 1;
    side.low = side.split = SIZE_MAX;
    if (side.rows.size() < blocks * words_) side.rows.resize(blocks * words_);
    if (side.above.size() < side.rows.size()) side.above.resize(side.rows.size());
  }
}

// Walks go from deep to shallow, so some rows before the wanted one are read with it: one more time
// as many at each call, up to `kNamesAtOnce`. Blocks behind the last common end have no name and no
// holder.
void Reusable::ReadRows(Side* side, size_t block) {
  uint64_t* const rows = side->rows.data();
  if (block >= side->named) {
    side->known[block] = 1;
    std::fill_n(rows + block * words_, words_, 0);
    return;
  }
  const size_t count = std::min(side->ahead, block + 1);
  const size_t from = block + 1 - count;
  SequenceHash names[SideIndex::Reader::kNamesAtOnce];
  for (size_t i = 0; i < count; ++i) {
    names[i] = NameOf(*side, from + i);
    side->known[from + i] = 1;
  }
  reader_->Rows({names, count}, tiers_, words_, rows + from * words_);
  side->ahead = std::min(side->ahead * 2, SideIndex::Reader::kNamesAtOnce);
}

// ---- All holders at once ----

// Holders among `among` that have every block of the class that a prefix of `units` needs: the AND
// of the rows [first, end). The window slides down from call to call. As a queue made of two
// stacks: `above` has, for each block b of [split, end), the AND of [split, b], so that the upper
// end may fall; `below` has the AND of [low, split) and takes new rows at the lower end. When the
// end falls to `split`, the whole window becomes the new `above`. So each row is read and combined
// twice at most.
bool Reusable::Accept(Side* side, uint64_t units, const uint64_t* among, uint64_t* accepted) {
  const uint64_t end = units * side->per_unit;
  const uint64_t first = side->of.kind == CacheKind::kChunk
                             ? FirstNeeded(side->of, units * alignment_)
                             : end - std::min(end, side->needed);
  if (first == end) {
    if (accepted != among) std::copy_n(among, words_, accepted);
    return true;
  }
  if (end <= side->split) {
    side->split = first;
    side->below.assign(words_, ~uint64_t{0});
    for (uint64_t block = end; block-- > first;) Row(side, block);
    const uint64_t* before = side->below.data();
    for (uint64_t block = first; block < end; ++block) {
      const uint64_t* const row = Row(side, block);
      uint64_t* const above = side->above.data() + block * words_;
      for (size_t word = 0; word < words_; ++word) above[word] = before[word] & row[word];
      before = above;
    }
  } else {
    for (uint64_t block = side->low; block-- > first;) {
      const uint64_t* const row = Row(side, block);
      for (size_t word = 0; word < words_; ++word) side->below[word] &= row[word];
    }
  }
  side->low = first;
  const uint64_t* const above = side->above.data() + (end - 1) * words_;
  const uint64_t* const below = side->below.data();
  uint64_t any = 0;
  for (size_t word = 0; word < words_; ++word)
    any |= accepted[word] = among[word] & above[word] & below[word];
  return any != 0;
}

void Reusable::Join(const OverlapSteps& held, size_t step, std::span<const uint64_t> holders) {
  const std::span<const uint64_t> more = held.holders(step);
  for (size_t word = 0; word < std::min(words_, more.size()); ++word)
    pending_[word] |= more[word] & holders[word];
}

// From the deepest length down, in units of the alignment:
// 1. Holders whose main class reaches the length join those that wait (`pending_`).
// 2. Each class in turn takes out those that it does not accept (`Accept`).
// 3. Holders that all classes accept are done at this length and leave.
// With none waiting, the next length is where the next holders join. At the end those still waiting
// can reuse nothing.
void Reusable::FindAllAtOnce(const OverlapSteps& held, std::span<const uint64_t> holders,
                             std::vector<Overlap>* found) {
  const auto unit = static_cast<uint32_t>(alignment_ / block_size_);  // blocks
  pending_.assign(words_, 0);
  accepted_.resize(words_);
  size_t step = held.depths.size();
  uint32_t units = step == 0 ? 0 : held.depths.back() / unit;
  while (units > 0) {
    while (step > 0 && held.depths[step - 1] >= units * unit) Join(held, --step, holders);
    const uint64_t* among = pending_.data();
    bool any = true;
    for (size_t i = 0; i < sides_used_ && any; ++i) {
      any = Accept(&sides_[i], units, among, accepted_.data());
      among = accepted_.data();
    }
    uint64_t waiting = 0;
    for (size_t word = 0; word < words_; ++word) {
      const uint64_t done = any ? among[word] : 0;
      waiting |= pending_[word] &= ~done;
      for (uint64_t bits = done; bits != 0; bits &= bits - 1) {
        const size_t holder = word * 64 + static_cast<size_t>(std::countr_zero(bits));
        found->push_back({HolderIndex(static_cast<uint32_t>(holder)), units * unit});
      }
    }
    --units;
    if (waiting == 0) units = step == 0 ? 0 : std::min(units, held.depths[step - 1] / unit);
  }
  while (step > 0) Join(held, --step, holders);
  ForEachBit(pending_, [&](uint32_t holder) { found->push_back({HolderIndex(holder), 0}); });
}

// ---- Step by step, as the engine does it ----

// Drops a block where the engine does, then rounds down to the alignment.
uint64_t Reusable::FindOfMain(uint64_t held, uint64_t length_max, bool drop) const {
  uint64_t length = RoundDown(std::min(held, length_max), block_size_);
  if (drop && length > 0) length -= std::min(alignment_, block_size_);
  return RoundDown(length, alignment_);
}

// The largest length that one class of one holder accepts, by kind: a state needs its one block, a
// chunk the blocks from its beginning on, a window a run of blocks. The window's search goes from
// the end to the beginning, as vLLM's; a run that reaches the beginning of the prompt needs no full
// window.
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
  // No full window: a run that reaches the beginning of the prompt counts.
  if (found == 0) found = RoundDown(run * size, alignment_) / size;
  if (drop && found > 0) found = RoundDown((found - 1) * size, alignment_) / size;
  return found * size;
}

// vLLM's loop: each class in turn shortens the length, until none does. A class that drops its last
// block is given one more to match, once for each length: `verified` has a bit for each class that
// had it, and is cleared when another class shortens the length. The main class is searched once,
// since its answer only gets cut.
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

// A layout without a main class starts from the whole prompt for all of `holders`. Where the
// alignment is no multiple of the domain's blocks nothing can be reused.
void Reusable::Find(const CacheLayout& layout, std::span<const SequenceHash> blocks,
                    uint32_t block_size, TierMask tiers, const SideIndex::Reader& sides,
                    const OverlapSteps& held, std::span<const uint64_t> holders,
                    std::vector<Overlap>* found) {
  blocks_ = blocks;
  block_size_ = block_size;
  tokens_ = uint64_t{block_size} * blocks.size();
  tiers_ = tiers;
  reader_ = &sides;
  words_ = holders.size();
  alignment_ = AlignmentOf(layout);
  const OverlapSteps* of = &held;
  if (!layout.has_main) {
    all_.depths = {static_cast<uint32_t>(blocks.size())};
    all_.words_per_step = static_cast<uint32_t>(words_);
    all_.words.assign(holders.begin(), holders.end());
    of = &all_;
  }
  // Where blocks are dropped, or a chunk begins inside a block (which the engine then does not look
  // at), the steps matter.
  bool by_steps = layout.main.drops_last;
  for (const CacheClass& side : layout.sides)
    by_steps = by_steps || side.drops_last ||
               (side.kind == CacheKind::kChunk && side.window_tokens % side.block_size != 0);
  const bool fits = alignment_ != 0 && alignment_ % block_size == 0;
  if (fits) Open(layout);
  if (fits && !by_steps) return FindAllAtOnce(*of, holders, found);
  for (size_t step = 0; step < of->depths.size(); ++step) {
    pending_.assign(words_, 0);
    Join(*of, step, holders);
    ForEachBit(pending_, [&](uint32_t holder) {
      const uint64_t reused =
          fits ? FindStepByStep(layout, holder, of->depths[step] * block_size_) / block_size_ : 0;
      found->push_back({HolderIndex(holder), static_cast<uint32_t>(reused)});
    });
  }
}

}  // namespace kvatlas
