#include "indexer/base/cache_class_text.h"

namespace kvatlas {

// UINT32_MAX tokens stand for a window without an end.
std::string ToString(const CacheClass& of) {
  const std::string tokens =
      of.window_tokens == UINT32_MAX ? "all" : std::to_string(of.window_tokens);
  switch (of.kind) {
    case CacheKind::kFull:
      return "main";
    case CacheKind::kWindow:
      return "window:" + tokens;
    case CacheKind::kState:
      return "state";
    case CacheKind::kChunk:
      return "chunk:" + tokens;
  }
  return "unknown";
}

}  // namespace kvatlas
