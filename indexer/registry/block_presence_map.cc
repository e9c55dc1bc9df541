// The constructor turns the dump into sets, asks them for each block of the prompt (`Class::run`:
// blocks in a row up to here) and draws the strips. `EndedBy` then replays the engine's look-up on
// these runs.

#include "indexer/registry/block_presence_map.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "indexer/base/cache_class_text.h"
#include "indexer/index/reusable.h"

namespace kvatlas {

BlockPresenceMap::BlockPresenceMap(const HolderDump& dump, std::span<const SequenceHash> blocks,
                                   uint32_t block_size)
    : layout_(dump.layout), block_size_(block_size), blocks_(blocks.size()) {
  if (layout_.plain() || block_size == 0) return;
  absl::flat_hash_set<SequenceHash> main, side_names;
  for (const Stored& run : dump.runs)
    (run.side == 0 ? main : side_names).insert(run.blocks.begin(), run.blocks.end());
  const uint32_t alignment = AlignmentOf(layout_);
  if (alignment % block_size == 0) alignment_ = alignment;
  while (held_ < blocks_ && (!layout_.has_main || main.contains(blocks[held_]))) ++held_;
  for (const CacheClass& of : layout_.sides) {
    Class& side = sides_.emplace_back(Class{.of = of, .run = {}});
    if (of.block_size == 0) continue;
    side.of.block_size = EndsEvery(layout_, of);
    side.run.resize(blocks_ * block_size_ / side.of.block_size);
    for (size_t i = 0; i < side.run.size(); ++i) {
      const std::optional<SequenceHash> name =
          Reusable::NameAt(of, blocks, block_size, (i + 1) * side.of.block_size);
      if (name.has_value() && side_names.contains(*name))
        side.run[i] = 1 + (i == 0 ? 0 : side.run[i - 1]);
    }
  }
  if (layout_.has_main) {
    Strip& strip = strips_.emplace_back(
        Strip{.of = layout_.main, .held = {}, .accepts = static_cast<uint32_t>(held_)});
    for (const SequenceHash block : blocks) strip.held += main.contains(block) ? '#' : '.';
  }
  for (size_t i = 0; i < sides_.size(); ++i)
    strips_.push_back({.of = layout_.sides[i],
                       .held = StripOf(sides_[i]),
                       .accepts = static_cast<uint32_t>(LongestOf(sides_[i], held_ * block_size_) /
                                                        block_size_)});
}

// Several small blocks of the class may end in one main block, or none (`-`) where its blocks are
// larger.
std::string BlockPresenceMap::StripOf(const Class& side) const {
  std::string strip;
  for (uint64_t block = 0; block < blocks_; ++block) {
    const uint64_t size = std::max<uint32_t>(1, side.of.block_size);
    const uint64_t first = block * block_size_ / size, end = (block + 1) * block_size_ / size;
    uint64_t held = 0;
    for (uint64_t i = first; i < end && i < side.run.size(); ++i) held += side.run[i] > 0;
    strip += first == end ? '-' : held == 0 ? '.' : held == end - first ? '#' : '+';
  }
  return strip;
}

// Whether the class alone would let a prefix of so many tokens be reused: from the first block that
// it needs, all up to the end are held in a row. REQUIRES: `tokens` is a multiple of the alignment,
// and not 0.
bool BlockPresenceMap::Accepts(const Class& side, uint64_t tokens) const {
  const uint64_t end = tokens / side.of.block_size;
  const uint64_t first = Reusable::FirstNeeded(side.of, tokens);
  return first == end || (end <= side.run.size() && side.run[end - 1] >= end - first);
}

// The longest prefix of at most `tokens` that the class accepts. O(length / alignment).
uint64_t BlockPresenceMap::LongestOf(const Class& side, uint64_t tokens) const {
  if (alignment_ == 0) return 0;
  tokens -= tokens % alignment_;
  while (tokens > 0 && !Accepts(side, tokens)) tokens -= alignment_;
  return tokens;
}

// The fixed point of the engine's look-up: class after class shortens the length until none does.
// The last class that shortened it has ended it. A class that drops its last block explains the
// rest.
std::string BlockPresenceMap::EndedBy(uint32_t reusable) const {
  if (layout_.plain() || reusable >= blocks_) return "";
  std::string ended = layout_.has_main && held_ < blocks_ ? ToString(layout_.main) : "";
  if (alignment_ == 0) return "alignment";
  uint64_t length = held_ * block_size_;
  if (length % alignment_ != 0) ended = "alignment";
  length -= length % alignment_;
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (const Class& side : sides_) {
      const uint64_t longest = LongestOf(side, length);
      if (longest == length) continue;
      ended = ToString(side.of);
      length = longest;
      shorter = true;
    }
  }
  bool drops = layout_.main.drops_last;
  for (const CacheClass& side : layout_.sides) drops = drops || side.drops_last;
  if (drops && length > reusable * block_size_) return "look_ahead";
  return ended;
}

}  // namespace kvatlas
