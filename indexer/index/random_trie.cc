#include "indexer/index/random_trie.h"

#include <algorithm>
#include <random>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

// x with x * odd == 1 (mod 2^64), by Newton's iteration: each step doubles the correct bits.
constexpr uint64_t InverseOf(uint64_t odd) {
  uint64_t x = odd;
  for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
  return x;
}
static_assert(InverseOf(kGolden) * kGolden == 1);

}  // namespace

uint64_t MixBits(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

RandomTrie::RandomTrie(const TrieOptions& options) : options_(options) {
  std::mt19937_64 random(options.seed);
  nodes_.reserve(options.blocks);
  for (uint32_t block = 0; block < options.blocks; ++block) {
    Node node;
    node.parent = block == 0 ? kNone : ParentOf(block, random());
    uint32_t sibling = 0;
    if (node.parent == kNone) {
      sibling = roots_++;
    } else {
      Node& parent = nodes_[node.parent];
      node.position = parent.position + 1;
      sibling = parent.children++;
      parent.last_child = block;
    }
    // Siblings differ; elsewhere contents repeat.
    node.local = LocalHash{MixBits(sibling + 1)};
    nodes_.push_back(node);
    nodes_.back().hash = options.spread != Spread::kChained ? SpreadHash(block)
                         : node.parent == kNone
                             ? SequenceHash{Raw(node.local)}
                             : NextSequenceHash(nodes_[node.parent].hash, node.local);
  }
}

uint32_t RandomTrie::ParentOf(uint32_t block, uint64_t random) const {
  const uint32_t before = block - 1;
  const uint64_t dice = random % 1000;
  const uint32_t anywhere = static_cast<uint32_t>((random >> 20) % block);
  switch (options_.shape) {
    case Shape::kMixed:
      return dice < 700 ? before : dice < 950 ? anywhere : kNone;
    case Shape::kLongRuns:
      return dice < 995 ? before : dice < 999 ? anywhere : kNone;
    case Shape::kBushy:
      return dice < 100 ? before : dice < 980 ? anywhere % (1 + block / 200) : kNone;
    case Shape::kRoots:
      return dice < 100 ? before : kNone;
    case Shape::kChain:
      return before;
  }
  return kNone;
}

SequenceHash RandomTrie::SpreadHash(uint32_t block) const {
  const uint64_t number = block;
  const uint64_t mixed32 = static_cast<uint32_t>(block * 0x9E3779B1u);
  switch (options_.spread) {
    case Spread::kSmall:
      return SequenceHash{number};
    case Spread::kHighBits:
      return SequenceHash{number << 48};
    case Spread::kMixed:
    case Spread::kChained:
      return SequenceHash{(number + 1) * 0xBF58476D1CE4E5B9u};
    case Spread::kSameLowBits:
      return SequenceHash{mixed32 << 32 | 0x5EED5EEDu};
    case Spread::kSameHighBits:
      return SequenceHash{uint64_t{0xFEDCBA98u} << 32 | mixed32};
    case Spread::kFibonacci:
      return SequenceHash{(number + 1) * InverseOf(kGolden)};
  }
  return SequenceHash{number};
}

SequenceHash RandomTrie::parent_hash(uint32_t block) const {
  return parent(block) == kNone ? kNoParent : hash(parent(block));
}

SequenceHash RandomTrie::hash(uint32_t block) const {
  return block < size() ? nodes_[block].hash : SpreadHash(block);
}

LocalHash RandomTrie::local(uint32_t block) const {
  return block < size() ? nodes_[block].local : LocalHash{MixBits(uint64_t{block} << 20)};
}

std::vector<SequenceHash> RandomTrie::hashes(std::span<const uint32_t> blocks) const {
  std::vector<SequenceHash> hashes;
  for (uint32_t block : blocks) hashes.push_back(hash(block));
  return hashes;
}

std::vector<LocalHash> RandomTrie::locals(std::span<const uint32_t> blocks) const {
  std::vector<LocalHash> locals;
  for (uint32_t block : blocks) locals.push_back(local(block));
  return locals;
}

std::vector<uint32_t> RandomTrie::PathTo(uint32_t block) const {
  std::vector<uint32_t> path(position(block) + 1);
  for (size_t i = path.size(); i > 0; --i) {
    path[i - 1] = block;
    block = parent(block);
  }
  return path;
}

void RandomTrie::Descend(std::vector<uint32_t>* path, size_t blocks_max) const {
  for (size_t left = blocks_max; left > 0 && !path->empty(); --left) {
    const uint32_t child = nodes_[path->back()].last_child;
    if (child == kNone) return;
    path->push_back(child);
  }
}

}  // namespace kvatlas
