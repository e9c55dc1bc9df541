// What of a session is at which worker, over gRPC: `GET /sessions` for frontends' pages.
//
// *Truth*: as `http_sessions.h` has it. An asker sees the sessions of tenants and models that it
// may dump.
// *Threads*: any; a call holds a thread of gRPC's for as long as it looks blocks up.
// *Lifetime*: the registry outlives it, and it the server.

#ifndef KVATLAS_INDEXER_LEAF_SESSIONS_SERVICE_H_
#define KVATLAS_INDEXER_LEAF_SESSIONS_SERVICE_H_

#include <memory>

#include "absl/status/status.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/security/security.h"
#include "proto/kvatlas/v1/sessions.grpc.pb.h"

namespace kvatlas {

class SessionsService : public v1::Sessions::Service {
 public:
  explicit SessionsService(const HolderRegistry* registry) : registry_(registry) {}

  grpc::Status FindSessions(grpc::ServerContext* context, const v1::FindSessionsRequest* request,
                            v1::FindSessionsResponse* response) override;

  // The same for askers over other transports than gRPC.
  absl::Status FindFor(const Identity& asker, const v1::FindSessionsRequest& request,
                       v1::FindSessionsResponse* response) const;

 private:
  const HolderRegistry* const registry_;
  const std::shared_ptr<Security> security_ = Security::OfProcess();
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_SESSIONS_SERVICE_H_
