// In a word and a reason: is this engine listened to? For pages, statistics and metrics, beside the
// trust of answers.
//
//   starting     the leaf is not listening yet: it recovers
//   connecting   no connection yet, and nothing known to be wrong
//   connected    it is heard
//   unreachable  there is no connection: "unreachable: tcp://10.0.0.7:5557: Connection refused"
//   refused      it is heard, and nothing that it stores is taken: "its blocks have 32 tokens, and the domain's 16: …"
//   paused, failed   as `ListenerStatus`
//
// *Threads*: pure functions.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_STATE_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_STATE_H_

#include <string>
#include <string_view>

#include "indexer/engine_directory/engine_directory.h"

namespace kvatlas {

struct EngineState {
  std::string_view name;
  std::string reason;  // empty where nothing is wrong
};

// The state of one listener of `entry`.
EngineState StateOf(const EngineEntry& entry, const EngineListener& listener);
// The most urgent state among its listeners.
EngineState StateOf(const EngineEntry& entry);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_STATE_H_
