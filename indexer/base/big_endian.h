// Numbers as bytes, the most significant first, as protocols have them.

#ifndef KVATLAS_INDEXER_BASE_BIG_ENDIAN_H_
#define KVATLAS_INDEXER_BASE_BIG_ENDIAN_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvatlas {

// If there are more than eight bytes, the last eight count.
constexpr uint64_t FromBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

// All bytes of the type.
template <std::unsigned_integral Unsigned>
std::string BigEndian(Unsigned value) {
  std::string bytes(sizeof(value), '\0');
  for (size_t i = sizeof(value); i-- > 0; value = static_cast<Unsigned>(value >> 8))
    bytes[i] = static_cast<char>(value);
  return bytes;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_BIG_ENDIAN_H_
