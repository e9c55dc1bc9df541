// Visits the members of a set of holders, in order.

#ifndef KVATLAS_INDEXER_BASE_FOR_EACH_BIT_H_
#define KVATLAS_INDEXER_BASE_FOR_EACH_BIT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvatlas {

// Member h is bit h % 64 of word h / 64. Until `visit` says false; it may say nothing.
template <typename Visit>
void ForEachBit(std::span<const uint64_t> words, Visit visit) {
  for (size_t i = 0; i < words.size(); ++i) {
    for (uint64_t word = words[i]; word != 0; word &= word - 1) {
      const uint32_t bit =
          static_cast<uint32_t>(64 * i) + static_cast<uint32_t>(std::countr_zero(word));
      if constexpr (std::is_void_v<decltype(visit(bit))>) {
        visit(bit);
      } else {
        if (!visit(bit)) return;
      }
    }
  }
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_FOR_EACH_BIT_H_
