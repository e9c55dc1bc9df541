// What did real engines send, and what did their pools hold afterwards? Recordings made by
// run_engines.py.
//
// *Format*: recording.py. *Bounds*: a file is trusted to be ours, but a broken one is refused: no
// length that it claims is believed beyond its end.

#ifndef KVATLAS_TESTS_INTEROP_RECORDING_H_
#define KVATLAS_TESTS_INTEROP_RECORDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"

namespace kvatlas {

struct Recording {
  struct Stream {
    std::string instance;
    uint32_t rank = 0;
    uint32_t block_size = 0;
    uint32_t live_from = 0;  // earlier messages can only be had by replay
    // Classes of the engine's cache, as what its events do not say (drops, chunks) would have to be
    // registered; plain: full attention alone.
    CacheLayout layout;
  };
  struct Frame {
    uint32_t stream = 0;
    std::string topic;
    uint64_t number = 0;
    std::string payload;
  };
  struct Question {
    std::string lora_name;
    std::string cache_salt;
    std::vector<TokenId> tokens;
    // By stream: leading blocks that the engine would reuse if more tokens followed, and those of
    // its main class.
    std::vector<uint32_t> depths;
    std::vector<uint32_t> held;
  };
  std::string about;  // JSON
  std::vector<Stream> streams;
  std::vector<Frame> frames;  // in the order in which they were sent
  std::vector<Question> questions;
};

// What no event says of a stream's engine, as its registration has to. A class that drops alone is
// known by its place in the layout: the recorded engines number their attention groups so.
struct Unsaid {
  std::string eagle_drop;
  uint32_t chunk_tokens = 0;
};
Unsaid UnsaidOf(const Recording::Stream& stream);

// NOT_FOUND: no such file. DATA_LOSS: not a whole recording.
absl::StatusOr<Recording> ReadRecording(const std::string& path);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_INTEROP_RECORDING_H_
