// Numbers in the sentences of a finding's evidence, as a person reads them.

#ifndef KVATLAS_FRONTEND_ACCURACY_EVIDENCE_TEXT_H_
#define KVATLAS_FRONTEND_ACCURACY_EVIDENCE_TEXT_H_

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "indexer/base/clock.h"

namespace kvatlas {

std::string Number(std::integral auto n) { return std::to_string(n); }

inline std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

inline std::string SecondsText(Duration duration) {
  return Number(std::chrono::duration<double>(duration).count()) + " s";
}

inline std::string Signed(int64_t value) { return (value > 0 ? "+" : "") + std::to_string(value); }

// "5 of 6 requests"
inline std::string Share(size_t part, size_t all, const std::string& what) {
  return Number(part) + " of " + Number(all) + " " + what;
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_EVIDENCE_TEXT_H_
