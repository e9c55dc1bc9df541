#include "indexer/kv_events/decoder_tokens.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvatlas {
namespace {

// Plain tokens: the four forms that hold 0 … 2^32-1 and that encoders write, told apart by the
// first byte. Sizes of those that would start at each of 16 bytes; 0 where none would.
using Vector = uint8_t __attribute__((vector_size(16)));

inline Vector PlainSizes(const uint8_t* bytes) {
  Vector first;
  std::memcpy(&first, bytes, sizeof(first));
  // A comparison is all ones where it holds.
  return (static_cast<Vector>(first < 0x80) & 1) | (static_cast<Vector>(first == 0xcc) & 2) |
         (static_cast<Vector>(first == 0xcd) & 3) | (static_cast<Vector>(first == 0xce) & 5);
}

// The bits of a plain token, of the big-endian number that ends with it; by its size.
constexpr uint32_t kPlainBits[] = {0, 0x7f, 0xff, 0xffff, 0, 0xffffffff};

// Sizes of the plain tokens that would start at each byte of a window are computed at once, then
// the tokens are walked by them: a step waits for one load, and no branch depends on a width, so
// that a mix costs as little as a run of equals. (A table by first byte waits for two loads a
// token; branches mispredict on real text.)
constexpr size_t kWindow = 4 * sizeof(Vector);
constexpr size_t kReach = sizeof(uint64_t);  // read at a token's first byte

// Reads plain tokens until there are `count`, another value comes, or too few bytes are left for a
// window.
size_t ReadWindows(MsgpackReader* reader, size_t count, TokenId* tokens) {
  size_t read = 0;
  while (read < count && reader->remaining() >= kWindow + kReach) {
    const uint8_t* const window = reader->position();
    alignas(Vector) uint8_t sizes[kWindow];
    for (size_t i = 0; i < kWindow; i += sizeof(Vector)) {
      const Vector plain = PlainSizes(window + i);
      std::memcpy(sizes + i, &plain, sizeof(plain));
    }
    size_t at = 0;
    bool plain = true;
    while (at < kWindow && read < count) {
      const unsigned size = sizes[at];
      if (size == 0) {
        plain = false;
        break;
      }
      const auto bytes = LoadBigEndian<uint64_t>(window + at);
      tokens[read++] = static_cast<TokenId>(bytes >> (64 - 8 * size)) & kPlainBits[size];
      at += size;
    }
    reader->Seek(window + at);
    if (!plain) break;
  }
  return read;
}

enum class TokenKind : uint8_t { kNumber, kOpaque, kNone };

// One token of any form.
TokenKind ReadToken(MsgpackReader* reader, TokenId* token) {
  MsgpackInteger integer;
  std::string_view text;
  switch (reader->Peek()) {
    case MsgpackType::kInteger:
      if (!reader->ReadInteger(&integer)) return TokenKind::kNone;
      if (integer.negative || integer.bits > std::numeric_limits<TokenId>::max()) {
        return TokenKind::kOpaque;
      }
      *token = static_cast<TokenId>(integer.bits);
      return TokenKind::kNumber;
    case MsgpackType::kText:
      return reader->ReadText(&text) ? TokenKind::kOpaque : TokenKind::kNone;
    case MsgpackType::kBytes:
      return reader->ReadBytes(&text) ? TokenKind::kOpaque : TokenKind::kNone;
    default:
      return TokenKind::kNone;
  }
}

// A flat list. `tokens` has room for `count`.
bool ReadFlat(MsgpackReader* reader, size_t count, TokenId* tokens, bool* opaque) {
  size_t read = ReadWindows(reader, count, tokens);
  while (read < count) {
    const TokenKind kind = ReadToken(reader, &tokens[read]);
    if (kind == TokenKind::kNone) return false;
    if (kind == TokenKind::kOpaque) *opaque = true;
    ++read;
    // The tail of a payload is read token by token; after a wide one there may be windows again.
    if (reader->remaining() >= kWindow + kReach) {
      read += ReadWindows(reader, count - read, tokens + read);
    }
  }
  return true;
}

// A list of pairs, each beginning with the second of the one before. `tokens` has room for `count`
// + 1.
bool ReadPairs(MsgpackReader* reader, size_t count, TokenId* tokens, bool* opaque) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t values = 0;
    TokenId first = 0;
    TokenId second = 0;
    if (!reader->ReadArray(&values) || values != 2) return false;
    const TokenKind kinds[] = {ReadToken(reader, &first), ReadToken(reader, &second)};
    for (const TokenKind kind : kinds) {
      if (kind == TokenKind::kNone) return false;
      if (kind == TokenKind::kOpaque) *opaque = true;
    }
    if (i > 0 && tokens[i] != first) *opaque = true;
    tokens[i] = first;
    tokens[i + 1] = second;
  }
  return true;
}

}  // namespace

DecodeResult DecodeTokens(MsgpackReader* reader, DecoderArena* arena, DecodedTokens* decoded) {
  *decoded = {};
  uint32_t count = 0;
  if (reader->ReadNil()) return DecodeResult::kOk;
  if (!reader->ReadArray(&count)) return DecodeResult::kMalformed;
  if (count == 0) return DecodeResult::kOk;
  const bool bigrams = reader->Peek() == MsgpackType::kArray;
  const size_t room = size_t{count} + (bigrams ? 1 : 0);
  const DecoderArena::Mark mark = arena->mark();
  auto* const tokens = arena->Allocate<TokenId>(room);
  if (tokens == nullptr) return DecodeResult::kTooLarge;
  const bool ok = bigrams ? ReadPairs(reader, count, tokens, &decoded->opaque)
                          : ReadFlat(reader, count, tokens, &decoded->opaque);
  if (!ok) {
    *decoded = {};
    return DecodeResult::kMalformed;
  }
  decoded->bigrams = bigrams;
  if (decoded->opaque) {
    arena->Release(mark);
  } else {
    decoded->tokens = {tokens, room};
  }
  return DecodeResult::kOk;
}

}  // namespace kvatlas
