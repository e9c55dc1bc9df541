// Converts errors for the other side of a gRPC call.
//
// The same code and message: both libraries use the same sixteen codes. Payloads and error details
// are dropped; a code from outside the set becomes UNKNOWN.

#ifndef KVATLAS_INDEXER_NET_GRPC_STATUS_H_
#define KVATLAS_INDEXER_NET_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace kvatlas {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_STATUS_H_
