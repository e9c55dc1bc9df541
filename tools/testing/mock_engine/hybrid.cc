#include "tools/testing/mock_engine/hybrid.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>

#include "absl/status/status.h"

namespace kvatlas {

absl::StatusOr<HybridOptions> ParseHybrid(std::string_view text) {
  HybridOptions hybrid;
  if (text.empty()) return hybrid;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view kind = text.substr(0, colon);
  if (kind == "window") hybrid.kind = CacheKind::kWindow;
  if (kind == "mamba") hybrid.kind = CacheKind::kState;
  const char* const end = text.data() + text.size();
  const char* const digits = text.data() + std::min(colon + 1, text.size());
  const auto [parsed, error] = std::from_chars(digits, end, hybrid.tokens);
  if (hybrid.plain() || error != std::errc() || parsed != end || hybrid.tokens < 2) {
    return absl::InvalidArgumentError(
        "'" + std::string(text) + "': must be window:TOKENS or mamba:TOKENS, 2 tokens at least");
  }
  return hybrid;
}

CacheLayout LayoutOf(const HybridOptions& hybrid, uint32_t block_size) {
  CacheLayout layout;
  layout.main = {.kind = CacheKind::kFull, .block_size = block_size};
  if (hybrid.kind == CacheKind::kWindow) {
    layout.sides.push_back(
        {.kind = CacheKind::kWindow, .block_size = block_size, .window_tokens = hybrid.tokens - 1});
  } else if (hybrid.kind == CacheKind::kState) {
    layout.sides.push_back({.kind = CacheKind::kState, .block_size = block_size});
  }
  return layout;
}

uint32_t WindowBlocks(const HybridOptions& hybrid, uint32_t block_size) {
  return (hybrid.tokens - 1 + block_size - 1) / block_size;
}

uint32_t ReuseLimit(size_t blocks, uint32_t prompt_tokens, uint32_t block_size) {
  if (blocks == 0) return 0;
  return static_cast<uint32_t>(prompt_tokens > blocks * block_size ? blocks : blocks - 1);
}

}  // namespace kvatlas
