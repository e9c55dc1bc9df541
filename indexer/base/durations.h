// Durations as plain numbers: what answers, options of libraries and JSON carry.

#ifndef KVATLAS_INDEXER_BASE_DURATIONS_H_
#define KVATLAS_INDEXER_BASE_DURATIONS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "indexer/base/clock.h"

namespace kvatlas {

// Whole milliseconds: never negative, and at most what a `T` holds.
template <typename T = uint32_t>
constexpr T Milliseconds(Duration duration) {
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<T>(std::clamp<int64_t>(ms, 0, std::numeric_limits<T>::max()));
}

constexpr double Seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_DURATIONS_H_
