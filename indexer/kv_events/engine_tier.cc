// Tables and rules for the texts by which engines name tiers, places, owners and kinds of
// attention. Pure functions: `EngineRank::Admit` and `RoleOf` call them for each event.

#include "indexer/kv_events/engine_tier.h"

#include <array>
#include <cstddef>
#include <utility>

namespace kvatlas {
namespace {

// The media that engines write, in lower case; the first match counts.
constexpr std::array<std::pair<std::string_view, Tier>, 15> kMedia = {{
    {"gpu", Tier::kDevice},
    {"cpu", Tier::kHost},
    {"cpu_pinned", Tier::kHost},
    {"disk", Tier::kDisk},
    {"storage", Tier::kDisk},
    {"external", Tier::kExternal},
    {"device", Tier::kDevice},
    {"cpu_tier1", Tier::kHost},
    {"cpu_tier2", Tier::kDisk},
    {"nvme", Tier::kDisk},
    {"fs", Tier::kDisk},
    {"network", Tier::kExternal},
    {"remote", Tier::kExternal},
    {"shared", Tier::kExternal},
    {"obj", Tier::kExternal},
}};

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool EqualFolded(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (size_t i = 0; i < text.size(); ++i)
    if (Lower(text[i]) != lower[i]) return false;
  return true;
}

}  // namespace

// Absent is the device: engines without offloading name no medium.
std::optional<Tier> TierOfMedium(std::string_view medium) {
  if (medium.empty()) return Tier::kDevice;
  for (const auto& [name, tier] : kMedia)
    if (EqualFolded(medium, name)) return tier;
  return std::nullopt;
}

bool CountsCopies(std::string_view medium) {
  return TierOfMedium(medium) == Tier::kDevice || EqualFolded(medium, "cpu") ||
         EqualFolded(medium, "storage");
}

// `LOCAL` and `REMOTE` are compared as spelled. A healthy engine announces remote blocks, which are
// refused with a line for debugging alone; another value is one that this release does not know.
std::optional<Refusal> LocalityRefusal(std::string_view locality) {
  if (locality.empty() || locality == "LOCAL") return std::nullopt;
  return locality == "REMOTE" ? Refusal::kRemoteLocality : Refusal::kUnknownLocality;
}

// Any owner that is named is another one: the engine's own blocks name none.
std::optional<Refusal> OwnershipRefusal(std::string_view ownership) {
  if (ownership.empty()) return std::nullopt;
  return Refusal::kUnsupportedOwnership;
}

bool IsMainAttention(std::string_view spec_kind) {
  return spec_kind == "full_attention" || spec_kind == "mla_attention" ||
         spec_kind == "sink_full_attention";
}

std::optional<CacheClass> SideClassOf(std::string_view spec_kind, std::optional<uint32_t> window,
                                      uint32_t block_size, uint32_t chunk_tokens) {
  CacheClass side{.block_size = block_size};
  if (spec_kind == "sliding_window" || spec_kind == "sliding_window_mla") {
    side.kind = CacheKind::kWindow;
    // vLLM counts the next token into its window: of w tokens w - 1 are read from the cache.
    side.window_tokens = window.value_or(0) == 0 ? kWholePrefix : *window - 1;
  } else if (spec_kind == "mamba") {
    side.kind = CacheKind::kState;
  } else if (spec_kind == "chunked_local_attention") {
    // Without the chunk's size the class is a window as long as the prefix: a hit then needs every
    // block from the start, which is too little, never too much.
    side.kind = chunk_tokens == 0 ? CacheKind::kWindow : CacheKind::kChunk;
    side.window_tokens = chunk_tokens == 0 ? kWholePrefix : chunk_tokens;
  } else {
    return std::nullopt;
  }
  return side;
}

}  // namespace kvatlas
