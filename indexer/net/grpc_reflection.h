// Tells tools such as grpcurl which services a server has, and what their messages look like:
// `grpc.reflection.v1` and `v1alpha`.
//
// gRPC's own service parses what it is sent as any message, and so takes up to thirty times its
// bytes of memory; requests of this one are read as bytes.
// *Truth*: descriptors are those that are linked. Extensions, of which there are none, are
// NOT_FOUND.
// *Threads*: gRPC's; a stream's requests are answered one after the other.
// *Bounds*: a request of more than `kReflectionBytesMax` ends its stream with RESOURCE_EXHAUSTED.
// *Lifetime*: it outlives the server.
//
// Example:
//   GrpcReflection reflection({"kvatlas.v1.Leaf"});
//   reflection.AddTo(&builder);

#ifndef KVATLAS_INDEXER_NET_GRPC_REFLECTION_H_
#define KVATLAS_INDEXER_NET_GRPC_REFLECTION_H_

#include <grpcpp/impl/service_type.h>

#include <cstddef>
#include <string>
#include <vector>

namespace grpc {
class ServerBuilder;
}  // namespace grpc

namespace kvatlas {

inline constexpr size_t kReflectionBytesMax = 4096;

class GrpcReflection : public grpc::Service {
 public:
  // The full names of the other services.
  explicit GrpcReflection(std::vector<std::string> services);

  // In the place of gRPC's own, which every builder has where its library is linked.
  void AddTo(grpc::ServerBuilder* builder);

 private:
  const std::vector<std::string> services_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_REFLECTION_H_
