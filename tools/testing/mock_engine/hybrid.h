// Which side class does the mock engine's model have beside full attention? One word of a command
// line, as an option of engines, of checks and of the index.
//
// *Format*: `window:TOKENS`, sliding-window attention over so many tokens, the next one among them,
// as vLLM counts;
// `mamba:TOKENS`, a recurrent state that is kept at the end of each prefill chunk of so many
// tokens; empty: neither.
//
// Example:
//   absl::StatusOr<HybridOptions> hybrid = ParseHybrid("window:1024");
//   publisher->SetLayout(LayoutOf(*hybrid, /*block_size=*/64));

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_HYBRID_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_HYBRID_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "indexer/base/cache_class.h"

namespace kvatlas {

// The side class of a mock engine; it has one at most.
inline constexpr SideClass kMockSide = 1;

struct HybridOptions {
  CacheKind kind = CacheKind::kFull;  // kWindow, kState; kFull: no side class
  uint32_t tokens = 0;                // of the window, of a prefill chunk

  bool plain() const { return kind == CacheKind::kFull; }
};

// INVALID_ARGUMENT: none of the forms above, or fewer than 2 tokens.
absl::StatusOr<HybridOptions> ParseHybrid(std::string_view text);

// Side blocks are as long as main blocks.
CacheLayout LayoutOf(const HybridOptions& hybrid, uint32_t block_size);

// Window blocks before a boundary that a hit there needs, unless all blocks from the head are held.
uint32_t WindowBlocks(const HybridOptions& hybrid, uint32_t block_size);

// Blocks that an engine reuses at most of a prompt of `blocks` blocks: it computes the last token
// again, to have something to decode from. `prompt_tokens`: of the whole prompt; fewer than its
// blocks hold (a trace's last one counts as full): as many as these.
uint32_t ReuseLimit(size_t blocks, uint32_t prompt_tokens, uint32_t block_size);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_HYBRID_H_
