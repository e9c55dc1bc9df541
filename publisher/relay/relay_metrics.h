// The relay in /metrics: sums over its engines and their streams, and each engine's stream and each
// stream to a leaf.
//
// *Truth*: counters of engines go on over their registrations: one that is registered again counts
// on from where its name was.
// *Threads*: the server's pool, one scrape at a time. *Lifetime*: the relay outlives the metrics'
// use.
// *Bounds*: `kRelayStreamsShown` streams of engines, and as many to leaves, have series of their
// own; the others are counted.

#ifndef KVATLAS_PUBLISHER_RELAY_RELAY_METRICS_H_
#define KVATLAS_PUBLISHER_RELAY_RELAY_METRICS_H_

#include <cstddef>

#include "indexer/telemetry/metrics.h"
#include "publisher/relay/relay.h"

namespace kvatlas {

inline constexpr size_t kRelayStreamsShown = 512;

// Once per `Metrics`.
void AddRelayMetrics(const Relay* relay, Metrics* metrics);

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_RELAY_RELAY_METRICS_H_
