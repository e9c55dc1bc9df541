// Reads msgpack values one after the other, where they lie. A cursor that never leaves them.
//
// *Truth*: a read that returns true has taken exactly one value (of an array or map only the
// header); one that returns false has found another type, or the end, and may stand anywhere:
// `Seek` back, then `Skip`. A count or a length that the bytes left cannot hold reads as the end:
// memory reserved for `n` values is never more than in proportion to the payload.
// *Threads*: one per reader. *Cost*: a few instructions each; `Skip` walks without recursion and
// without memory, so nesting of any depth costs nothing.
//
// Example:
//   MsgpackReader reader(payload);
//   uint32_t values;
//   if (reader.ReadArray(&values)) { while (values-- > 0 && reader.Skip()) {} }

#ifndef KVATLAS_INDEXER_KV_EVENTS_MSGPACK_READER_H_
#define KVATLAS_INDEXER_KV_EVENTS_MSGPACK_READER_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kvatlas {

enum class MsgpackType : uint8_t {
  kEnd,      // no bytes left
  kInvalid,  // 0xc1, which is nothing
  kNil,
  kBool,
  kInteger,
  kFloat,
  kText,
  kBytes,
  kArray,
  kMap,
  kExtension,
};

struct MsgpackInteger {
  uint64_t bits = 0;  // two's complement
  bool negative = false;
};

// The type that a value's first byte says.
constexpr MsgpackType MsgpackTypeOf(uint8_t first) {
  if (first <= 0x7f || first >= 0xe0) return MsgpackType::kInteger;
  if (first <= 0x8f) return MsgpackType::kMap;
  if (first <= 0x9f) return MsgpackType::kArray;
  if (first <= 0xbf) return MsgpackType::kText;
  if (first == 0xc0) return MsgpackType::kNil;
  if (first == 0xc1) return MsgpackType::kInvalid;
  if (first <= 0xc3) return MsgpackType::kBool;
  if (first <= 0xc6) return MsgpackType::kBytes;
  if (first <= 0xc9) return MsgpackType::kExtension;
  if (first <= 0xcb) return MsgpackType::kFloat;
  if (first <= 0xd3) return MsgpackType::kInteger;
  if (first <= 0xd8) return MsgpackType::kExtension;
  if (first <= 0xdb) return MsgpackType::kText;
  if (first <= 0xdd) return MsgpackType::kArray;
  return MsgpackType::kMap;
}

// The big-endian number at `at`.
template <typename Unsigned>
inline Unsigned LoadBigEndian(const uint8_t* at) {
  Unsigned value;
  std::memcpy(&value, at, sizeof(value));
  if constexpr (std::endian::native == std::endian::little) {
    if constexpr (sizeof(value) == 2) value = __builtin_bswap16(value);
    if constexpr (sizeof(value) == 4) value = __builtin_bswap32(value);
    if constexpr (sizeof(value) == 8) value = __builtin_bswap64(value);
  }
  return value;
}

class MsgpackReader {
 public:
  using Position = const uint8_t*;

  explicit MsgpackReader(std::string_view bytes)
      : at_(reinterpret_cast<Position>(bytes.data())), end_(at_ + bytes.size()) {}

  Position position() const { return at_; }
  Position end() const { return end_; }
  size_t remaining() const { return static_cast<size_t>(end_ - at_); }
  // REQUIRES: a position of these bytes.
  void Seek(Position position) { at_ = position; }

  MsgpackType Peek() const {
    static constexpr std::array<MsgpackType, 256> kTypes = [] {
      std::array<MsgpackType, 256> types{};
      for (size_t first = 0; first < types.size(); ++first) {
        types[first] = MsgpackTypeOf(static_cast<uint8_t>(first));
      }
      return types;
    }();
    return at_ == end_ ? MsgpackType::kEnd : kTypes[*at_];
  }

  bool ReadNil() {
    if (at_ == end_ || *at_ != 0xc0) return false;
    ++at_;
    return true;
  }

  // The header of an array, or of a map, whose `count` values, or pairs, follow.
  bool ReadArray(uint32_t* count) {
    if (at_ == end_) return false;
    const uint8_t first = *at_++;
    if ((first & 0xf0) == 0x90) {
      *count = first & 0x0f;
    } else if (!(first == 0xdc && ReadCount<uint16_t>(count)) &&
               !(first == 0xdd && ReadCount<uint32_t>(count))) {
      return false;
    }
    return *count <= remaining();
  }

  bool ReadMap(uint32_t* count) {
    if (at_ == end_) return false;
    const uint8_t first = *at_++;
    if ((first & 0xf0) == 0x80) {
      *count = first & 0x0f;
    } else if (!(first == 0xde && ReadCount<uint16_t>(count)) &&
               !(first == 0xdf && ReadCount<uint32_t>(count))) {
      return false;
    }
    return *count <= remaining() / 2;
  }

  bool ReadText(std::string_view* text) {
    if (at_ == end_) return false;
    const uint8_t first = *at_++;
    uint32_t size = first & 0x1f;
    if ((first & 0xe0) != 0xa0 && !(first == 0xd9 && ReadCount<uint8_t>(&size)) &&
        !(first == 0xda && ReadCount<uint16_t>(&size)) &&
        !(first == 0xdb && ReadCount<uint32_t>(&size))) {
      return false;
    }
    return Take(size, text);
  }

  bool ReadBytes(std::string_view* bytes) {
    if (at_ == end_) return false;
    const uint8_t first = *at_++;
    uint32_t size = 0;
    if (!(first == 0xc4 && ReadCount<uint8_t>(&size)) &&
        !(first == 0xc5 && ReadCount<uint16_t>(&size)) &&
        !(first == 0xc6 && ReadCount<uint32_t>(&size))) {
      return false;
    }
    return Take(size, bytes);
  }

  // An integer of any width; no float, though it be whole.
  bool ReadInteger(MsgpackInteger* integer) {
    if (at_ == end_) return false;
    const uint8_t first = *at_;
    if (first <= 0x7f || first >= 0xe0) {
      *integer = Signed(static_cast<int8_t>(first));
      ++at_;
      return true;
    }
    return ReadWideInteger(integer);
  }

  bool ReadFloat(double* number);

  // Takes a whole value with all that is in it. False: it ends beyond the bytes, or is none.
  bool Skip();

 private:
  static MsgpackInteger Signed(int64_t value) {
    return {.bits = static_cast<uint64_t>(value), .negative = value < 0};
  }

  template <typename Unsigned>
  bool ReadBigEndian(Unsigned* value) {
    if (remaining() < sizeof(Unsigned)) return false;
    *value = LoadBigEndian<Unsigned>(at_);
    at_ += sizeof(Unsigned);
    return true;
  }

  template <typename Unsigned>
  bool ReadCount(uint32_t* count) {
    Unsigned value;
    if (!ReadBigEndian(&value)) return false;
    *count = value;
    return true;
  }

  template <typename Unsigned, typename Value>
  bool ReadNumber(MsgpackInteger* integer) {
    Unsigned value;
    if (!ReadBigEndian(&value)) return false;
    const auto number = static_cast<Value>(value);
    *integer = {.bits = static_cast<uint64_t>(number), .negative = number < 0};
    return true;
  }

  bool Take(uint32_t size, std::string_view* bytes) {
    if (size > remaining()) return false;
    *bytes = {reinterpret_cast<const char*>(at_), size};
    at_ += size;
    return true;
  }

  bool ReadWideInteger(MsgpackInteger* integer);

  Position at_;
  Position end_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_MSGPACK_READER_H_
