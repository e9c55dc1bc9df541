// The parts of the reader that are not inlined: wide numbers, and skipping a value of any form
// without recursion.

#include "indexer/kv_events/msgpack_reader.h"

namespace kvatlas {
namespace {

// The extent of a value by its first byte: its header, then what the header counts.
struct Extent {
  uint8_t fixed = 1;        // bytes of the first byte and of what always follows
  uint8_t length_size = 0;  // bytes of a length or count after the first byte
  uint8_t nested = 0;       // values inside, as the first byte alone says
  // The unit of that length.
  enum class Counts : uint8_t {
    kNothing,
    kBytes,
    kValues,
    kPairs,
    kInvalid
  } counts = Counts::kNothing;
};

// All first bytes of msgpack's specification. First bytes that are not named here are one-byte
// values: small integers, nil and bools.
constexpr std::array<Extent, 256> MakeExtents() {
  using Counts = Extent::Counts;
  std::array<Extent, 256> extents{};
  for (uint8_t count = 0; count < 16; ++count) {
    extents[0x80 + count].nested = static_cast<uint8_t>(2 * count);
    extents[0x90 + count].nested = count;
  }
  for (uint8_t size = 0; size < 32; ++size) extents[0xa0 + size].fixed = 1 + size;
  extents[0xc1].counts = Counts::kInvalid;
  for (uint8_t width = 0; width < 3; ++width) {
    const auto length_size = static_cast<uint8_t>(1 << width);
    extents[0xc4 + width] = {1, length_size, 0, Counts::kBytes};  // bin
    extents[0xc7 + width] = {2, length_size, 0, Counts::kBytes};  // ext: the type is one byte more
    extents[0xd9 + width] = {1, length_size, 0, Counts::kBytes};  // str
  }
  extents[0xca].fixed = 5;
  extents[0xcb].fixed = 9;
  for (uint8_t width = 0; width < 4; ++width) {
    extents[0xcc + width].fixed = static_cast<uint8_t>(1 + (1 << width));
    extents[0xd0 + width].fixed = static_cast<uint8_t>(1 + (1 << width));
  }
  for (uint8_t width = 0; width < 5; ++width) {
    extents[0xd4 + width].fixed = static_cast<uint8_t>(2 + (1 << width));  // fixext
  }
  for (uint8_t width = 0; width < 2; ++width) {
    const auto length_size = static_cast<uint8_t>(2 << width);
    extents[0xdc + width] = {1, length_size, 0, Counts::kValues};
    extents[0xde + width] = {1, length_size, 0, Counts::kPairs};
  }
  return extents;
}

constexpr std::array<Extent, 256> kExtents = MakeExtents();

// The length behind the first byte, in 1, 2 or 4 bytes.
uint64_t LoadLength(const uint8_t* at, uint8_t size) {
  if (size == 1) return *at;
  if (size == 2) return LoadBigEndian<uint16_t>(at);
  return LoadBigEndian<uint32_t>(at);
}

}  // namespace

// An integer of a form with a header byte; `at_` is at that byte.
bool MsgpackReader::ReadWideInteger(MsgpackInteger* integer) {
  switch (*at_++) {
    case 0xcc:
      return ReadNumber<uint8_t, uint8_t>(integer);
    case 0xcd:
      return ReadNumber<uint16_t, uint16_t>(integer);
    case 0xce:
      return ReadNumber<uint32_t, uint32_t>(integer);
    case 0xcf:
      return ReadNumber<uint64_t, uint64_t>(integer);
    case 0xd0:
      return ReadNumber<uint8_t, int8_t>(integer);
    case 0xd1:
      return ReadNumber<uint16_t, int16_t>(integer);
    case 0xd2:
      return ReadNumber<uint32_t, int32_t>(integer);
    case 0xd3:
      return ReadNumber<uint64_t, int64_t>(integer);
    default:
      return false;
  }
}

bool MsgpackReader::ReadFloat(double* number) {
  if (at_ == end_) return false;
  const uint8_t first = *at_++;
  if (first == 0xca) {
    uint32_t bits;
    if (!ReadBigEndian(&bits)) return false;
    *number = std::bit_cast<float>(bits);
    return true;
  }
  uint64_t bits;
  if (first != 0xcb || !ReadBigEndian(&bits)) return false;
  *number = std::bit_cast<double>(bits);
  return true;
}

// Skips one value and all that is inside it, in a loop: a frame nested a million deep needs no
// stack.
bool MsgpackReader::Skip() {
  // Values still to come. Each takes a byte at least, so that their number stays below that of the
  // bytes left.
  uint64_t pending = 1;
  while (pending > 0) {
    if (pending > remaining()) return false;
    --pending;
    const Extent extent = kExtents[*at_];
    const size_t header = size_t{extent.fixed} + extent.length_size;
    if (header > remaining()) return false;
    pending += extent.nested;
    if (extent.counts != Extent::Counts::kNothing) {
      if (extent.counts == Extent::Counts::kInvalid) return false;
      const uint64_t length = LoadLength(at_ + 1, extent.length_size);
      if (extent.counts == Extent::Counts::kBytes) {
        if (length > remaining() - header) return false;
        at_ += length;
      } else {
        pending += extent.counts == Extent::Counts::kPairs ? 2 * length : length;
      }
    }
    at_ += header;
  }
  return true;
}

}  // namespace kvatlas
