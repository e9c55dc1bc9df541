// How do tests of the decoder say frames and read batches? Payloads from hexadecimal digits or
// piece by piece, batches as text to compare.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_TEST_UTIL_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_TEST_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

// The bytes of "93 cb41d9…": pairs of digits, blanks between them or not.
std::string FromHex(std::string_view digits);

// A batch in words, every field that is not at its default; equal texts mean equal batches.
std::string ToText(const EngineBatch& batch);
std::string ToText(const EngineEvent& event);

// Writes msgpack values one behind the other, in their shortest form unless a width is asked for.
class MsgpackWriter {
 public:
  MsgpackWriter& Nil() { return Byte(0xc0); }
  MsgpackWriter& Bool(bool value) { return Byte(value ? 0xc3 : 0xc2); }
  MsgpackWriter& Unsigned(uint64_t value);
  MsgpackWriter& Signed(int64_t value);  // negative ones; else as `Unsigned`
  // cc, cd, ce, cf or d0 … d3 with as many bytes as the width says.
  MsgpackWriter& Wide(uint8_t code, uint64_t value);
  MsgpackWriter& Float(double value);
  MsgpackWriter& Text(std::string_view text);
  MsgpackWriter& Bytes(std::string_view bytes);
  MsgpackWriter& Array(size_t count);
  MsgpackWriter& Map(size_t pairs);
  MsgpackWriter& Extension(uint8_t type, std::string_view bytes);
  // Bytes as they are.
  MsgpackWriter& Raw(std::string_view bytes);

  const std::string& bytes() const { return bytes_; }

 private:
  MsgpackWriter& Byte(uint8_t byte);
  MsgpackWriter& BigEndian(uint64_t value, size_t size);
  MsgpackWriter& Header(uint8_t code, size_t length, size_t size);

  std::string bytes_;
};

// A batch of these events, written one behind the other; the time is 1.5 s, the rank 0.
std::string BatchOf(size_t events, std::string_view bytes);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_TEST_UTIL_H_
