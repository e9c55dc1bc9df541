// The truth over gRPC: `kvatlas.v1.Truth`.
//
// *Threads*: any. *Lifetime*: truth and clock outlive it.

#ifndef KVATLAS_FRONTEND_ACCURACY_TRUTH_SERVICE_H_
#define KVATLAS_FRONTEND_ACCURACY_TRUTH_SERVICE_H_

#include <memory>

#include "frontend/accuracy/truth.h"
#include "indexer/base/clock.h"
#include "indexer/security/security.h"
#include "proto/kvatlas/v1/truth.grpc.pb.h"

namespace kvatlas {

class TruthService : public v1::Truth::Service {
 public:
  TruthService(Truth* truth, const Clock* clock) : truth_(truth), clock_(clock) {}

  grpc::Status GetDecision(grpc::ServerContext* context, const v1::GetDecisionRequest* request,
                           v1::Decision* response) override;
  grpc::Status Diagnose(grpc::ServerContext* context, const v1::DiagnoseRequest* request,
                        v1::DiagnoseResponse* response) override;

 private:
  Truth* const truth_;
  const Clock* const clock_;
  const std::shared_ptr<Security> security_ = Security::OfProcess();
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_TRUTH_SERVICE_H_
