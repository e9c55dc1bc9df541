#include "indexer/service/grpc_credentials.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

namespace kvatlas {

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials() {
  return grpc::InsecureServerCredentials();
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials() {
  return grpc::InsecureChannelCredentials();
}

}  // namespace kvatlas
