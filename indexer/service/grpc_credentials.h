// Whom do we trust on a gRPC connection?
//
// Everyone who reaches the port: plain TCP for now, with servers on loopback unless told otherwise.
// Every server and channel takes its credentials from here, so TLS has one place to arrive in.

#ifndef KVATLAS_INDEXER_SERVICE_GRPC_CREDENTIALS_H_
#define KVATLAS_INDEXER_SERVICE_GRPC_CREDENTIALS_H_

#include <memory>

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace kvatlas {

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials();
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_GRPC_CREDENTIALS_H_
