// The memory tiers in which a copy of a block can be, and sets of them.
//
// A block may be in several tiers of one holder at once, and they evict independently.

#ifndef KVATLAS_INDEXER_BASE_TIER_H_
#define KVATLAS_INDEXER_BASE_TIER_H_

#include <cstdint>

namespace kvatlas {

enum class Tier : uint8_t { kDevice = 0, kHost = 1, kDisk = 2, kExternal = 3 };

inline constexpr int kTiers = 4;

// A set of tiers, one bit each.
class TierMask {
 public:
  constexpr TierMask() = default;
  constexpr explicit TierMask(uint8_t bits) : bits_(bits & kAllBits) {}
  constexpr TierMask(Tier tier)  // NOLINT: a tier is a set of one.
      : bits_(static_cast<uint8_t>(1u << static_cast<uint8_t>(tier))) {}

  static constexpr TierMask All() { return TierMask(kAllBits); }
  // The tiers that a domain routes on by default: device and host.
  static constexpr TierMask Routed() { return TierMask(Tier::kDevice) | TierMask(Tier::kHost); }

  constexpr uint8_t bits() const { return bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool Has(Tier tier) const { return !(*this & TierMask(tier)).empty(); }
  constexpr bool Intersects(TierMask other) const { return (bits_ & other.bits_) != 0; }

  friend constexpr TierMask operator|(TierMask a, TierMask b) {
    return TierMask(a.bits_ | b.bits_);
  }
  friend constexpr TierMask operator&(TierMask a, TierMask b) {
    return TierMask(a.bits_ & b.bits_);
  }
  friend constexpr TierMask operator~(TierMask a) { return TierMask(~a.bits_ & kAllBits); }
  friend constexpr bool operator==(TierMask a, TierMask b) { return a.bits_ == b.bits_; }

 private:
  static constexpr uint8_t kAllBits = (1u << kTiers) - 1;
  uint8_t bits_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_TIER_H_
