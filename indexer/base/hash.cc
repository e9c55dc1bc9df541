// The contract's formulas are in hash.h; every change here breaks the agreement with engines and
// other routers. XXH3 is compiled in (XXH_INLINE_ALL), so that a short input costs no call.

#include "indexer/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

namespace kvatlas {

static_assert(std::endian::native == std::endian::little, "hashes are over little-endian bytes");

std::string HashContract::Id() const { return "xxh3-chain-1:" + std::to_string(seed); }

uint64_t Xxh3(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

// An empty name adds nothing: prompts without adapter and salt have the contract's own seed. The
// two names have different seeds, so that equal texts in them do not cancel or coincide.
uint64_t BlockSeed(const CacheNamespace& cache_namespace, const HashContract& contract) {
  uint64_t seed = contract.seed;
  if (!cache_namespace.lora_name.empty()) seed += Xxh3(cache_namespace.lora_name, 0);
  if (!cache_namespace.cache_salt.empty()) seed += Xxh3(cache_namespace.cache_salt, 1);
  return seed;
}

// With EAGLE a block's hash needs tokens behind it, which the last block may lack.
size_t FullBlocks(size_t tokens, const Blocking& blocking) {
  if (blocking.block_size == 0) return 0;
  tokens -= std::min<size_t>(tokens, blocking.eagle);
  return tokens / blocking.block_size;
}

// Without objects the tokens are hashed in place. Objects are sorted first: their order in the
// block does not count.
LocalHash LocalHashOf(std::span<const TokenId> block, std::span<const uint64_t> multimodal,
                      uint64_t seed) {
  if (multimodal.empty())
    return LocalHash{XXH3_64bits_withSeed(block.data(), block.size_bytes(), seed)};
  std::vector<uint64_t> sorted(multimodal.begin(), multimodal.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<char> bytes(block.size_bytes() + sorted.size() * sizeof(uint64_t));
  std::memcpy(bytes.data(), block.data(), block.size_bytes());
  std::memcpy(bytes.data() + block.size_bytes(), sorted.data(), sorted.size() * sizeof(uint64_t));
  return LocalHash{XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed)};
}

std::vector<LocalHash> LocalHashes(std::span<const TokenId> tokens, const Blocking& blocking,
                                   uint64_t seed,
                                   std::span<const std::vector<uint64_t>> multimodal) {
  std::vector<LocalHash> locals(FullBlocks(tokens.size(), blocking));
  const size_t window = size_t{blocking.block_size} + blocking.eagle;
  for (size_t i = 0; i < locals.size(); ++i) {
    std::span<const uint64_t> objects;
    if (i < multimodal.size()) objects = multimodal[i];
    locals[i] = LocalHashOf(tokens.subspan(i * blocking.block_size, window), objects, seed);
  }
  return locals;
}

// An item that reaches over several blocks is in each of them; one that begins behind the tokens is
// in none.
std::vector<std::vector<uint64_t>> ItemsByBlock(std::span<const PromptItem> items, size_t tokens,
                                                uint32_t block_size) {
  std::vector<std::vector<uint64_t>> blocks;
  if (block_size == 0) return blocks;
  for (const PromptItem& item : items) {
    if (item.length == 0 || item.offset >= tokens) continue;
    const size_t end = item.offset + std::min(item.length, tokens - item.offset);
    const size_t last = (end - 1) / block_size;
    if (blocks.size() <= last) blocks.resize(last + 1);
    for (size_t block = item.offset / block_size; block <= last; ++block)
      blocks[block].push_back(item.hash);
  }
  return blocks;
}

// The contract's plain seed, without the namespace: that is in the local hashes already.
SequenceHash NextSequenceHash(SequenceHash parent, LocalHash local, const HashContract& contract) {
  const uint64_t pair[2] = {Raw(parent), Raw(local)};
  return SequenceHash{XXH3_64bits_withSeed(pair, sizeof(pair), contract.seed)};
}

std::vector<SequenceHash> SequenceHashes(std::span<const LocalHash> locals,
                                         const HashContract& contract) {
  return SequenceHashesAfter(kNoParent, locals, contract);
}

std::vector<SequenceHash> SequenceHashesAfter(SequenceHash parent,
                                              std::span<const LocalHash> locals,
                                              const HashContract& contract) {
  std::vector<SequenceHash> chain;
  chain.reserve(locals.size());
  bool at_root = parent == kNoParent;
  for (LocalHash local : locals) {
    parent = at_root ? SequenceHash{Raw(local)} : NextSequenceHash(parent, local, contract);
    at_root = false;
    chain.push_back(parent);
  }
  return chain;
}

// 64 hexadecimal digits are a hash already: its first 64 bits are used.
uint64_t MultimodalHash(std::string_view identifier) {
  if (identifier.empty()) return 0;
  const bool is_hex =
      identifier.size() == 64 &&
      identifier.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  if (!is_hex) return Xxh3(identifier, 0);
  uint64_t value = 0;
  std::from_chars(identifier.data(), identifier.data() + 16, value, 16);
  return value;
}

uint64_t DigestTerm(SequenceHash block) {
  const uint64_t raw = Raw(block);
  return XXH3_64bits(&raw, sizeof(raw));
}

}  // namespace kvatlas
