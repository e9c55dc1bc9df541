// The slow twin of `EngineDecoder`: msgpack-cxx unpacks a value to a tree of objects, and the batch
// is built from the tree, the obvious way.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_TWIN_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_TWIN_H_

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

class DecoderTwin {
 public:
  DecoderTwin();
  ~DecoderTwin();

  // As `EngineDecoder::Decode` with default options, but for the bound on memory.
  absl::Status Decode(std::string_view payload, EngineBatch* batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_TWIN_H_
