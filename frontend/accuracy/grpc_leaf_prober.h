// `Leaf.Stats` of one domain, over gRPC.
//
// *Lifetime*: the destructor waits for the calls under way, which end by answer or deadline.

#ifndef KVATLAS_FRONTEND_ACCURACY_GRPC_LEAF_PROBER_H_
#define KVATLAS_FRONTEND_ACCURACY_GRPC_LEAF_PROBER_H_

#include <string>

#include "frontend/accuracy/leaf_prober.h"
#include "frontend/cluster_client/peers_by_address.h"
#include "frontend/cluster_client/pending_calls.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace kvatlas {

class GrpcLeafProber : public LeafProber {
 public:
  GrpcLeafProber();
  ~GrpcLeafProber() override;

  void Probe(const std::string& leaf_address, const Domain& domain, Duration deadline,
             Callback callback) override;

 private:
  PeersByAddress<grpc::Channel> channels_;
  PendingCalls under_way_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_GRPC_LEAF_PROBER_H_
