// Routes gRPC's own messages into our log, at most one per place in its source and 10 seconds.
//
// Servers and channels of this folder call this themselves.
// Threads: any; the first call does it.

#ifndef KVATLAS_INDEXER_NET_GRPC_LOG_H_
#define KVATLAS_INDEXER_NET_GRPC_LOG_H_

namespace kvatlas {

void RouteGrpcLog();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_LOG_H_
