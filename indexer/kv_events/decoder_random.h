// Random frames of every form that the decoder knows, with values of wrong types here and there,
// and frames with bytes changed.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_RANDOM_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "indexer/kv_events/decoder_test_util.h"

namespace kvatlas {

class RandomFrames {
 public:
  explicit RandomFrames(uint64_t seed) : random_(seed) {}

  std::string Payload();
  // A few bytes of it changed, cut out, doubled or cut off.
  std::string Mutated(std::string payload);
  // One event, as a tuple or a map.
  std::string Event();

 private:
  uint64_t Below(uint64_t below) { return random_() % below; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  std::string_view Pick(std::initializer_list<std::string_view> texts);

  void WriteEvent(MsgpackWriter* out);
  void WriteMap(MsgpackWriter* out);
  void WriteTuple(MsgpackWriter* out);
  void WriteTail(MsgpackWriter* out, size_t values);
  void WriteKey(MsgpackWriter* out, std::string_view key);
  // The value of a field, rarely of a wrong type.
  void WriteValue(MsgpackWriter* out, std::string_view key);
  void WriteTag(MsgpackWriter* out);
  void WriteHash(MsgpackWriter* out);
  void WriteHashes(MsgpackWriter* out);
  void WriteTokens(MsgpackWriter* out);
  void WriteLookahead(MsgpackWriter* out);
  void WriteOffsets(MsgpackWriter* out);
  void WriteLabel(MsgpackWriter* out);
  void WriteToken(MsgpackWriter* out, bool strange);
  void WriteExtraKeys(MsgpackWriter* out);
  void WriteMultimodal(MsgpackWriter* out);
  void WriteText(MsgpackWriter* out);
  void WriteInteger(MsgpackWriter* out);
  void WriteAnything(MsgpackWriter* out, int depth);

  std::mt19937_64 random_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_RANDOM_H_
