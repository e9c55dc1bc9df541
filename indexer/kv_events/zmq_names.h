// Resolves the names in registered endpoints, and finds out why an engine cannot be reached. Does
// both on threads of its own, since the system's resolver may take many seconds; libzmq would do it
// on its I/O threads, where all engines wait, and would connect to whatever comes out.
//
//   Watch ─▶ every `look_every`, while the engine is not connected: resolve ─▶ EngineAddresses ─▶ ZmqStream::SetAddresses
//                                                                   ProbeEndpoint ─▶ ZmqStream::Probed
//
// *Truth*: a stream is given only addresses that `addresses` contains, at the first connection and
// at each later one. An engine that is connected is left alone, wherever its name leads meanwhile.
// *Threads*: any. `kThreads`, from the first stream on; one that waits for the resolver or a probe
// when this ends is left behind, and ends when that does.
// *Bounds*: a name that has no address within is asked for again after `look_every`, doubling up to
// `kRetryMax`, and so is an endpoint that cannot be reached; a probe takes `kProbeTimeout` for each
// of a name's addresses.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_NAMES_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_NAMES_H_

#include <chrono>
#include <functional>
#include <memory>

#include "indexer/base/clock.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/resolve_host.h"
#include "indexer/kv_events/zmq_stream.h"

namespace kvatlas {

class ZmqNames {
 public:
  static constexpr int kThreads = 4;
  static constexpr Duration kRetryMax = std::chrono::minutes(1);
  // The first look that can find something wrong.
  static constexpr Duration kFirstLook = std::chrono::milliseconds(400);
  static constexpr Duration kProbeTimeout = std::chrono::seconds(1);

  ZmqNames(const EngineAddresses& addresses, HostResolver resolve, Duration look_every);
  ~ZmqNames();  // Stop()

  ZmqNames(const ZmqNames&) = delete;
  ZmqNames& operator=(const ZmqNames&) = delete;

  // Until the stream is gone or abandoned. `changed` is called when it was given something new; not
  // after `Stop` returned.
  void Watch(const std::shared_ptr<ZmqStream>& stream, std::function<void()> changed);

  // Does not wait for the resolver.
  void Stop();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_NAMES_H_
