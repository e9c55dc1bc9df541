// Decides which calls a gRPC server lets in, and for how long.
//
//   call ─▶ certificate, "authorization: Bearer …" ─▶ Identity ─▶ verb of the method allowed? ─▶ handler
//                                                                    ╰▶ UNAUTHENTICATED, PERMISSION_DENIED
//
// Methods are refused before their handler runs, whatever the service; what a message names (a
// holder, a domain) the handler checks with the identity of the call. Calls that stream are cut
// when files change and their identity is no longer allowed. Nothing of this happens without a
// policy.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_NET_GRPC_GUARD_H_
#define KVATLAS_INDEXER_NET_GRPC_GUARD_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/security/security.h"

namespace grpc {
class ServerBuilder;
class ServerContextBase;
class ServerCredentials;
}  // namespace grpc

namespace kvatlas {

// The verb of a method such as "/kvatlas.v1.Leaf/FindOverlaps". Unknown methods are for operators.
Verb VerbOfMethod(std::string_view method);

// Makes `credentials`, which are of TLS, and the server refuse and cut calls. Without a policy:
// nothing.
void GuardCalls(const std::shared_ptr<Security>& security, grpc::ServerCredentials* credentials,
                grpc::ServerBuilder* builder);

// The credentials that a call came with, for `Security::Authenticate`.
struct CallCredentials {
  std::string chain_pem;
  std::string bearer;
};
CallCredentials CredentialsOf(const grpc::ServerContextBase& context);

// Anonymous without a policy. Never null: a call without a good credential is not let in.
std::shared_ptr<const Identity> IdentityOf(Security* security,
                                           const grpc::ServerContextBase& context);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_GUARD_H_
