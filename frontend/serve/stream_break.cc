// A stream that is broken at a look gives the time of the break directly. A stream that is
// connected at two looks, but whose connection is younger than the first look, has broken in
// between: the first look is the safe time.

#include "frontend/serve/stream_break.h"

#include <algorithm>

namespace kvatlas {

void StreamBreak::Look(uint32_t rank, const ConnectionStatus& connection, Time now) {
  Seen& seen = seen_[rank];
  const bool connected = connection.state == ConnectionState::kConnected;
  if (!connected) {
    last_ = std::max(last_, now - connection.since);
  } else if (seen.connected && now - connection.since > seen.at) {
    last_ = std::max(last_, seen.at);
  }
  seen = {.connected = connected, .at = now};
}

}  // namespace kvatlas
