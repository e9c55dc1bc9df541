#include "tools/testing/mock_engine/mock_tokens.h"

namespace kvatlas {

std::vector<TokenId> MockTokens(std::span<const SequenceHash> blocks, uint32_t block_size) {
  std::vector<TokenId> tokens;
  tokens.reserve(blocks.size() * block_size);
  for (const SequenceHash block : blocks) {
    uint64_t state = Raw(block);
    for (uint32_t i = 0; i < block_size; ++i) {
      // A step of splitmix64.
      uint64_t mixed = (state += 0x9e3779b97f4a7c15);
      mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
      mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
      tokens.push_back(static_cast<TokenId>((mixed ^ mixed >> 31) >> 47));
    }
  }
  return tokens;
}

}  // namespace kvatlas
