// Which events are in this frame? Decodes the msgpack payload of an engine's KV event message:
// vLLM, SGLang, TensorRT-LLM, Mooncake, LMCache and relays, in every form they have had.
//
//   payload   [time, [event…], rank?, …]       time: seconds, or whole milliseconds, or nil
//             {"ts": time, "events": [event…], "data_parallel_rank": rank}
//   event     ["BlockStored", …] | {"type": "BlockStored", …} | {"event_type": "stored", …}
//
// *Truth*: decided per event, never per stream. A malformed event costs itself alone: it is skipped
// as msgpack and named in `EngineBatch::refused`. Where a payload is cut off or ceases to be
// msgpack, the events before that place are kept, and one refusal stands for the rest. Only a
// payload that is no batch fails as a whole.
// *Threads*: one decoder per thread. *Cost*: linear in the payload, about 3 ns a token; no
// allocation once its memory has grown.
// *Bounds*: `DecoderOptions`; memory grows with the payload, never with a length that it claims.
// Nesting of any depth is skipped without recursion. No input crashes it, hangs it or makes it
// allocate without bound.
//
// Example:
//   EngineDecoder decoder;
//   EngineBatch batch;
//   if (decoder.Decode(payload, &batch).ok()) worker->Apply(0, batch, now);

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_DECODER_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_DECODER_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

struct DecoderOptions {
  size_t payload_bytes_max = 64 << 20;
  size_t events_max = 1 << 17;                  // per batch: beyond, the batch is refused
  size_t hash_bytes_max = kEngineHashBytesMax;  // of one engine hash: beyond, the event is refused
  // Memory of decoded values beside the payload and the events themselves: an event that does not
  // fit is refused.
  size_t memory_bytes_max = 256 << 20;
};

class EngineDecoder {
 public:
  explicit EngineDecoder(const DecoderOptions& options = {});
  ~EngineDecoder();

  // `batch` is overwritten; its views are valid until the next call, or until `payload` goes.
  // INVALID_ARGUMENT: not a batch at all. RESOURCE_EXHAUSTED: over a bound. Either leaves no events
  // in `batch`.
  absl::Status Decode(std::string_view payload, EngineBatch* batch);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_DECODER_H_
