// Arguments as C has them, as values of C++.

#ifndef KVATLAS_FRONTEND_GATEWAY_C_ARGUMENTS_H_
#define KVATLAS_FRONTEND_GATEWAY_C_ARGUMENTS_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "indexer/base/clock.h"

namespace kvatlas {

inline constexpr size_t kTextsMax = 4096;  // leaves, or names of workers
inline constexpr uint64_t kUsMax = 1'000'000ull * 3600 * 24;

inline std::string StringOf(const char* text) { return text == nullptr ? "" : text; }

inline Duration Us(uint64_t us) { return std::chrono::microseconds(std::min(us, kUsMax)); }

// A pointer that may be null only for nothing.
inline bool Fits(const void* values, size_t count) { return values != nullptr || count == 0; }

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_C_ARGUMENTS_H_
