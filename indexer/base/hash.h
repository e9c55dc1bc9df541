// The hash contract, by which every process, and every router that shares it, gives a block the
// same name: XXH3-64 over token ids, chained over blocks.
//
//   seed      = S + xxh3(lora_name, seed 0) + xxh3(cache_salt, seed 1)        (mod 2^64, empty adds nothing)
//   local[i]  = xxh3(tokens of block i as u32 little-endian [+ sorted multimodal hashes as u64], seed)
//   seq[0]    = local[0]
//   seq[i]    = xxh3(seq[i-1] as u64 ‖ local[i] as u64, S)                    (little-endian)
//
// S is `HashContract::seed`, 1337 by default. It is byte-compatible with NVIDIA Dynamo's router and
// with Mooncake's RFC #1527.
//
// *Truth*: only full blocks have a hash; a partial tail is no block. Position plays no part in a
// local hash. Two ends that differ in the contract never match and never know: so they compare
// `HashContract::Id()` at hello and refuse to mix.
// *Threads*: pure functions.
// *Cost*: about 5 ns for a local hash of 16 tokens and 8 ns for a step of the chain.
//
// Example:
//   std::vector<LocalHash> locals = LocalHashes(tokens, {.block_size = 16}, BlockSeed({}));
//   std::vector<SequenceHash> sequence = SequenceHashes(locals);

#ifndef KVATLAS_INDEXER_BASE_HASH_H_
#define KVATLAS_INDEXER_BASE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/ids.h"

namespace kvatlas {

using TokenId = uint32_t;

inline constexpr uint64_t kDefaultHashSeed = 1337;

// The parameters that two ends must agree on.
struct HashContract {
  uint64_t seed = kDefaultHashSeed;

  // "xxh3-chain-1:1337": algorithm, version, seed.
  std::string Id() const;
};

// Names that separate prompts of equal tokens: an adapter, a tenant's salt. Empty means none.
struct CacheNamespace {
  std::string_view lora_name;
  std::string_view cache_salt;
};

// Seed of local hashes under this contract and namespace.
uint64_t BlockSeed(const CacheNamespace& cache_namespace, const HashContract& contract = {});

// How tokens are cut into blocks.
struct Blocking {
  uint32_t block_size = 16;
  // EAGLE and multi-token prediction: tokens behind a block that its hash covers too. EAGLE's
  // blocks cover one: block i is tokens [i*block_size, i*block_size + block_size].
  uint32_t eagle = 0;
};

// Number of full blocks of `tokens` tokens; 0 when `block_size` is 0.
size_t FullBlocks(size_t tokens, const Blocking& blocking);

// Local hash of one block; `multimodal` are the hashes of the objects in it, in any order.
LocalHash LocalHashOf(std::span<const TokenId> block, std::span<const uint64_t> multimodal,
                      uint64_t seed);

// Local hashes of all full blocks. `multimodal[i]`, where it exists, belongs to block i.
std::vector<LocalHash> LocalHashes(std::span<const TokenId> tokens, const Blocking& blocking,
                                   uint64_t seed,
                                   std::span<const std::vector<uint64_t>> multimodal = {});

// An image, audio or video in a prompt: the tokens that stand for it, and `MultimodalHash` of its
// identifier.
struct PromptItem {
  size_t offset = 0;
  size_t length = 0;
  uint64_t hash = 0;

  friend bool operator==(const PromptItem&, const PromptItem&) = default;
};

// The hashes of the items of which each block of these tokens has a part, as engines put them into
// a block's extra keys (vLLM 0.33.0 v1/core/kv_cache_utils.py, _gen_mm_extra_hash_keys); blocks
// behind the last item are left out.
std::vector<std::vector<uint64_t>> ItemsByBlock(std::span<const PromptItem> items, size_t tokens,
                                                uint32_t block_size);

// One step of the chain. The first block's sequence hash is its local hash.
SequenceHash NextSequenceHash(SequenceHash parent, LocalHash local,
                              const HashContract& contract = {});

// The whole chain from the root.
std::vector<SequenceHash> SequenceHashes(std::span<const LocalHash> locals,
                                         const HashContract& contract = {});

// The chain of blocks that follow `parent`; at the root when `parent` is `kNoParent`.
std::vector<SequenceHash> SequenceHashesAfter(SequenceHash parent,
                                              std::span<const LocalHash> locals,
                                              const HashContract& contract = {});

// Hash of a multimodal object's identifier: the first 16 digits of one with 64 hex digits, else
// XXH3 of the bytes; 0 for an empty one.
uint64_t MultimodalHash(std::string_view identifier);

// The term that one block adds to a digest.
uint64_t DigestTerm(SequenceHash block);

// XXH3-64 with a seed, as the contract uses it.
uint64_t Xxh3(std::string_view bytes, uint64_t seed);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_HASH_H_
