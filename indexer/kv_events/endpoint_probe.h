// Finds out why there is no connection to an endpoint. libzmq tries again silently, and its monitor
// reports no errors: so one connection is tried beside it, and closed at once.
//
// *Threads*: any; waits for the resolver, and `timeout` at most for the connection.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENDPOINT_PROBE_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENDPOINT_PROBE_H_

#include <string>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/resolve_host.h"

namespace kvatlas {

// OK: something listens at tcp://HOST:PORT or ipc://PATH. UNAVAILABLE has the system's words:
// "Connection refused", "no answer within 1s". UNIMPLEMENTED: an endpoint of another kind.
absl::Status ProbeEndpoint(const std::string& endpoint, const HostResolver& resolve,
                           Duration timeout);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENDPOINT_PROBE_H_
