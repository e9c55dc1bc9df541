// What is done with the messages of one stream, once their order is known?
//
// *Threads*: called by one thread at a time, in order.

#ifndef KVATLAS_INDEXER_ENGINES_STREAM_SINK_H_
#define KVATLAS_INDEXER_ENGINES_STREAM_SINK_H_

#include <cstdint>
#include <string_view>

#include "indexer/base/clock.h"

namespace kvatlas {

struct StreamSinkStats {
  uint64_t undecodable = 0;  // payloads that are no batch
  double lag_ms = 0;         // engine's clock to applied, of the last batch that named a time
};

// `EngineWorker`'s calls, for one stream; see there.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  virtual void Apply(std::string_view payload, Time now) = 0;
  virtual void Lost(Time now) = 0;
  virtual void Repaired() = 0;
  virtual void Restarted(Time now) = 0;
  virtual StreamSinkStats Stats() const { return {}; }
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINES_STREAM_SINK_H_
