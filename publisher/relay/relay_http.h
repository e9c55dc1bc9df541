// The relay over HTTP, for people and scripts.
//
//   GET  /health                  200; with `AdminHttp`'s /ready, which is 503 {"ready":false,"reason":"2 of 4 workers"} at first
//   GET  /status                  engines' streams, ranks, and the streams to leaves
//   GET  /workers                 the engines, in the words of a leaf's /workers
//   POST /register, /unregister   as a leaf's: {"instance_id":1,"endpoint":"tcp://…","model_name":"m","block_size":16,…}
//   GET  /dump?model=…&tenant=…&worker=…
//        what leaves are told: lines of JSON, each a kvatlas.v1.DumpResponse, the last of a rank
//        with "last_of_worker"
//
// *Truth*: an instance may be named by a text as well as by a number. Of a dump each rank is a
// consistent cut.
// *Threads*: the server's pool. *Lifetime*: the relay outlives the server.

#ifndef KVATLAS_PUBLISHER_RELAY_RELAY_HTTP_H_
#define KVATLAS_PUBLISHER_RELAY_RELAY_HTTP_H_

#include "indexer/process/admin_http.h"
#include "publisher/relay/relay.h"

namespace kvatlas {

// REQUIRES: `http` has not started.
void AddRelayRoutes(Relay* relay, AdminHttp* http);

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_RELAY_RELAY_HTTP_H_
