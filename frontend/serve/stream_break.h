// When were an engine's event streams last broken? Blocks that it served before may be gone with
// its process.
//
// *Truth*: as seen at each look. For a stream that broke and came back between two looks it is the
// time of the first.
// *Threads*: none; the caller serialises.

#ifndef KVATLAS_FRONTEND_SERVE_STREAM_BREAK_H_
#define KVATLAS_FRONTEND_SERVE_STREAM_BREAK_H_

#include <cstdint>
#include <map>

#include "indexer/base/clock.h"
#include "indexer/net/connection_watch.h"

namespace kvatlas {

class StreamBreak {
 public:
  void Look(uint32_t rank, const ConnectionStatus& connection, Time now);
  // 0: no stream ever was anything but connected.
  Time last() const { return last_; }

 private:
  struct Seen {
    bool connected = false;
    Time at{0};
  };

  std::map<uint32_t, Seen> seen_;
  Time last_{0};
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_STREAM_BREAK_H_
