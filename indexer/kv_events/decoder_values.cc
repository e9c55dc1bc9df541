// Decoders of single fields. Each reads one value in full, or fails somewhere inside it:
// `EventReader::ReadField` then goes back to its start and skips it. Lists go into the arena; texts
// and digests point into the payload, but for digests in hexadecimal digits, which are decoded into
// the arena.

#include "indexer/kv_events/decoder_values.h"

#include <algorithm>

#include "indexer/base/big_endian.h"
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

// A digest's last 8 bytes, of a shorter one all: `EngineBlockHash::value`.
uint64_t LastBytes(std::string_view bytes) {
  return FromBigEndian(bytes.substr(bytes.size() - std::min<size_t>(bytes.size(), 8)));
}

// `bytes` lies in the payload or the arena, and outlives the event.
DecodeResult HashOfBytes(const ValueReader& reader, std::string_view bytes, EngineBlockHash* hash) {
  if (bytes.empty()) return DecodeResult::kMalformed;
  if (bytes.size() > reader.hash_bytes_max) return DecodeResult::kTooLarge;
  *hash = {.value = LastBytes(bytes), .bytes = bytes};
  return DecodeResult::kOk;
}

// 0 … 15, or beyond for what is no digit.
constexpr unsigned DigitValue(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a') + 10;
  if (digit >= 'A' && digit <= 'F') return static_cast<unsigned>(digit - 'A') + 10;
  return 16;
}

// An odd number of digits has a first byte of one digit, as a number would.
DecodeResult HashOfDigits(const ValueReader& reader, std::string_view digits,
                          EngineBlockHash* hash) {
  if (digits.starts_with("0x") || digits.starts_with("0X")) digits.remove_prefix(2);
  if (digits.empty()) return DecodeResult::kMalformed;
  const size_t size = (digits.size() + 1) / 2;
  if (size > reader.hash_bytes_max) return DecodeResult::kTooLarge;
  char* const bytes = reader.arena->Allocate<char>(size);
  if (bytes == nullptr) return DecodeResult::kTooLarge;
  unsigned byte = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    const unsigned value = DigitValue(digits[i]);
    if (value > 15) return DecodeResult::kMalformed;
    byte = (byte << 4 | value) & 0xff;
    // An odd number of digits: the first byte has one.
    const size_t digits_left = digits.size() - 1 - i;
    if (digits_left % 2 == 0) bytes[size - 1 - digits_left / 2] = static_cast<char>(byte);
  }
  return HashOfBytes(reader, {bytes, size}, hash);
}

// A text, bytes, a number, or [identifier, offset, …], of which further values are skipped. Nil and
// maps are malformed: a key that cannot be read must not be left out, or blocks of different
// content would get one hash.
DecodeResult DecodeExtraKey(const ValueReader& reader, ExtraKey* key) {
  MsgpackReader& in = *reader.in;
  MsgpackInteger integer;
  *key = {};
  switch (in.Peek()) {
    case MsgpackType::kText:
      return in.ReadText(&key->text) ? DecodeResult::kOk : DecodeResult::kMalformed;
    case MsgpackType::kBytes:
      key->kind = ExtraKey::Kind::kBytes;
      return in.ReadBytes(&key->text) ? DecodeResult::kOk : DecodeResult::kMalformed;
    case MsgpackType::kInteger:
      key->kind = ExtraKey::Kind::kNumber;
      if (!in.ReadInteger(&integer)) return DecodeResult::kMalformed;
      key->offset = static_cast<int64_t>(integer.bits);
      return DecodeResult::kOk;
    case MsgpackType::kFloat:
    case MsgpackType::kBool:
      key->kind = ExtraKey::Kind::kNumber;
      return in.Skip() ? DecodeResult::kOk : DecodeResult::kMalformed;
    case MsgpackType::kArray: {
      uint32_t values = 0;
      key->kind = ExtraKey::Kind::kTextAt;
      if (!in.ReadArray(&values) || values < 2 || !in.ReadText(&key->text) ||
          !in.ReadInteger(&integer)) {
        return DecodeResult::kMalformed;
      }
      key->offset = static_cast<int64_t>(integer.bits);
      for (; values > 2; --values) {
        if (!in.Skip()) return DecodeResult::kMalformed;
      }
      return DecodeResult::kOk;
    }
    default:
      return DecodeResult::kMalformed;
  }
}

// Every value of an array by `decode(T*)`, into the arena. Room for all is taken first: `ReadArray`
// fails for a count beyond the payload's bytes, so that a forged count cannot take more than the
// payload's size in values.
template <typename T, typename Decode>
DecodeResult DecodeArray(const ValueReader& reader, std::span<const T>* values, Decode decode) {
  uint32_t count = 0;
  if (!reader.in->ReadArray(&count)) return DecodeResult::kMalformed;
  T* const room = reader.arena->Allocate<T>(count);
  if (room == nullptr) return DecodeResult::kTooLarge;
  for (uint32_t i = 0; i < count; ++i) {
    T* const value = new (room + i) T{};
    const DecodeResult result = decode(value);
    if (result != DecodeResult::kOk) return result;
  }
  *values = {room, count};
  return DecodeResult::kOk;
}

// Lists by block: nil, or an array of `decode_block(std::span<const T>*)`. Empty when every list
// is.
template <typename T, typename DecodeBlock>
DecodeResult DecodeByBlock(const ValueReader& reader, std::span<const std::span<const T>>* blocks,
                           DecodeBlock decode_block) {
  *blocks = {};
  if (reader.in->ReadNil()) return DecodeResult::kOk;
  std::span<const std::span<const T>> lists;
  const DecodeResult result =
      DecodeArray<std::span<const T>>(reader, &lists, [&](std::span<const T>* list) {
        return reader.in->ReadNil() ? DecodeResult::kOk : decode_block(list);
      });
  if (result != DecodeResult::kOk) return result;
  const bool some =
      std::any_of(lists.begin(), lists.end(), [](const auto& list) { return !list.empty(); });
  if (some) *blocks = lists;
  return DecodeResult::kOk;
}

// Calls `read(key)` for every key of a map; `read` reads the value.
template <typename Read>
DecodeResult DecodeMap(const ValueReader& reader, Read read) {
  uint32_t pairs = 0;
  if (!reader.in->ReadMap(&pairs)) return DecodeResult::kMalformed;
  for (; pairs > 0; --pairs) {
    std::string_view key;
    if (reader.in->Peek() != MsgpackType::kText) {
      if (!reader.in->Skip()) return DecodeResult::kMalformed;
    } else if (!reader.in->ReadText(&key)) {
      return DecodeResult::kMalformed;
    }
    const DecodeResult result = read(key);
    if (result != DecodeResult::kOk) return result;
  }
  return DecodeResult::kOk;
}

DecodeResult SkipValue(const ValueReader& reader) {
  return reader.in->Skip() ? DecodeResult::kOk : DecodeResult::kMalformed;
}

// A number, or an identifier.
DecodeResult DecodeMultimodalHash(const ValueReader& reader, uint64_t* hash) {
  MsgpackInteger integer;
  std::string_view identifier;
  switch (reader.in->Peek()) {
    case MsgpackType::kInteger:
      if (!reader.in->ReadInteger(&integer)) return DecodeResult::kMalformed;
      *hash = integer.bits;
      return DecodeResult::kOk;
    case MsgpackType::kText:
      if (!reader.in->ReadText(&identifier) || identifier.empty()) return DecodeResult::kMalformed;
      *hash = MultimodalHash(identifier);
      return DecodeResult::kOk;
    default:
      return DecodeResult::kMalformed;
  }
}

// A map with a hash under either key; other keys are skipped.
DecodeResult DecodeMultimodalObject(const ValueReader& reader, uint64_t* hash) {
  bool found = false;
  const DecodeResult result = DecodeMap(reader, [&](std::string_view key) {
    if (key != "mm_hash" && key != "hash") return SkipValue(reader);
    found = true;
    return DecodeMultimodalHash(reader, hash);
  });
  if (result != DecodeResult::kOk) return result;
  return found ? DecodeResult::kOk : DecodeResult::kMalformed;
}

DecodeResult DecodeMultimodalObjects(const ValueReader& reader, std::span<const uint64_t>* hashes) {
  return DecodeArray<uint64_t>(
      reader, hashes, [&](uint64_t* hash) { return DecodeMultimodalObject(reader, hash); });
}

}  // namespace

// An engine's name for a block, by msgpack type: a number, bytes as they are, or hexadecimal
// digits.
DecodeResult DecodeHash(const ValueReader& reader, EngineBlockHash* hash) {
  MsgpackInteger integer;
  std::string_view bytes;
  switch (reader.in->Peek()) {
    case MsgpackType::kInteger:
      if (!reader.in->ReadInteger(&integer)) return DecodeResult::kMalformed;
      *hash = {.value = integer.bits, .bytes = {}};
      return DecodeResult::kOk;
    case MsgpackType::kBytes:
      if (!reader.in->ReadBytes(&bytes)) return DecodeResult::kMalformed;
      return HashOfBytes(reader, bytes, hash);
    case MsgpackType::kText:
      if (!reader.in->ReadText(&bytes)) return DecodeResult::kMalformed;
      return HashOfDigits(reader, bytes, hash);
    default:
      return DecodeResult::kMalformed;
  }
}

DecodeResult DecodeOptionalHash(const ValueReader& reader, std::optional<EngineBlockHash>* hash) {
  hash->reset();
  if (reader.in->ReadNil()) return DecodeResult::kOk;
  EngineBlockHash value;
  const DecodeResult result = DecodeHash(reader, &value);
  if (result == DecodeResult::kOk) *hash = value;
  return result;
}

DecodeResult DecodeHashes(const ValueReader& reader, std::span<const EngineBlockHash>* hashes,
                          bool* present) {
  *hashes = {};
  *present = !reader.in->ReadNil();
  if (!*present) return DecodeResult::kOk;
  return DecodeArray<EngineBlockHash>(
      reader, hashes, [&](EngineBlockHash* hash) { return DecodeHash(reader, hash); });
}

DecodeResult DecodeOffsets(const ValueReader& reader, std::span<const uint32_t>* offsets,
                           bool* present) {
  *offsets = {};
  *present = !reader.in->ReadNil();
  if (!*present) return DecodeResult::kOk;
  return DecodeArray<uint32_t>(reader, offsets, [&](uint32_t* offset) {
    MsgpackInteger integer;
    if (reader.in->Peek() != MsgpackType::kInteger || !reader.in->ReadInteger(&integer) ||
        integer.negative || integer.bits > std::numeric_limits<uint32_t>::max()) {
      return DecodeResult::kMalformed;
    }
    *offset = static_cast<uint32_t>(integer.bits);
    return DecodeResult::kOk;
  });
}

uint8_t ComponentOf(std::string_view label) {
  if (label == "full") return kComponentFull;
  if (label == "swa") return kComponentSwa;
  if (label == "mamba") return kComponentMamba;
  return kComponentUnknown;
}

// An empty list is a snapshot without components: nothing of the block is resident.
DecodeResult DecodeComponents(const ValueReader& reader, std::optional<uint8_t>* components) {
  components->reset();
  if (reader.in->ReadNil()) return DecodeResult::kOk;
  uint32_t count = 0;
  if (!reader.in->ReadArray(&count)) return DecodeResult::kMalformed;
  unsigned bits = 0;
  for (; count > 0; --count) {
    std::string_view label;
    if (!reader.in->ReadText(&label)) return DecodeResult::kMalformed;
    bits |= ComponentOf(label);
  }
  *components = static_cast<uint8_t>(bits);
  return DecodeResult::kOk;
}

DecodeResult DecodeComponent(const ValueReader& reader, std::optional<uint8_t>* component) {
  component->reset();
  if (reader.in->ReadNil()) return DecodeResult::kOk;
  std::string_view label;
  if (!reader.in->ReadText(&label)) return DecodeResult::kMalformed;
  *component = ComponentOf(label);
  return DecodeResult::kOk;
}

DecodeResult DecodeExtraKeys(const ValueReader& reader,
                             std::span<const std::span<const ExtraKey>>* extra_keys) {
  return DecodeByBlock<ExtraKey>(reader, extra_keys, [&](std::span<const ExtraKey>* keys) {
    return DecodeArray<ExtraKey>(reader, keys,
                                 [&](ExtraKey* key) { return DecodeExtraKey(reader, key); });
  });
}

// Both spellings of a block's objects: a map with a list in it, or the list.
DecodeResult DecodeMultimodal(const ValueReader& reader,
                              std::span<const std::span<const uint64_t>>* multimodal) {
  return DecodeByBlock<uint64_t>(reader, multimodal, [&](std::span<const uint64_t>* hashes) {
    if (reader.in->Peek() != MsgpackType::kMap) return DecodeMultimodalObjects(reader, hashes);
    return DecodeMap(reader, [&](std::string_view key) {
      return key == "mm_objects" ? DecodeMultimodalObjects(reader, hashes) : SkipValue(reader);
    });
  });
}

}  // namespace kvatlas
