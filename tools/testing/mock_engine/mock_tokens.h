// Which tokens are in a mock engine's block? Traces name blocks by hash and have no tokens; raw
// engine events need some. They are made from the block's hash, so that equal blocks have equal
// tokens, in every process.
//
// *Truth*: a prompt's tokens are those of its blocks, one after the other. A leaf that hashes them
// gets other sequence hashes than the trace's, and the same overlaps: ask it by tokens.
// *Cost*: about 1 ns a token.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_TOKENS_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_TOKENS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// `block_size` tokens for each block, below 2^17.
std::vector<TokenId> MockTokens(std::span<const SequenceHash> blocks, uint32_t block_size);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_TOKENS_H_
