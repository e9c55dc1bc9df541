// Reads an event's token ids: a list of numbers as engines write them, flat or in pairs.
//
// *Truth*: a list with strings or numbers beyond 32 bits is one whose content cannot be hashed
// (`opaque`); one with anything else is no list of tokens. Pairs (EAGLE's bigrams) overlap:
// [[a,b],[b,c]] is a, b, c; pairs that do not are opaque.
// *Threads*: pure. *Cost*: below 3 ns a token, whatever the mix of widths.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_TOKENS_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_TOKENS_H_

#include <span>

#include "indexer/base/hash.h"
#include "indexer/kv_events/decoder_arena.h"
#include "indexer/kv_events/msgpack_reader.h"

namespace kvatlas {

struct DecodedTokens {
  std::span<const TokenId> tokens;  // in the arena; none when opaque
  bool bigrams = false;
  bool opaque = false;
};

enum class DecodeResult : uint8_t {
  kOk,
  kMalformed,  // another type, or cut off
  kTooLarge,   // over a bound
};

// The value is nil or an array.
DecodeResult DecodeTokens(MsgpackReader* reader, DecoderArena* arena, DecodedTokens* decoded);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_TOKENS_H_
