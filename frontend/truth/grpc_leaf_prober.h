// `Leaf.Stats` of one domain, over gRPC.
//
// *Lifetime*: the destructor waits for the calls under way, which end by answer or deadline.

#ifndef KVATLAS_FRONTEND_TRUTH_GRPC_LEAF_PROBER_H_
#define KVATLAS_FRONTEND_TRUTH_GRPC_LEAF_PROBER_H_

#include <string>

#include "frontend/peers/peers_by_address.h"
#include "frontend/peers/under_way.h"
#include "frontend/truth/leaf_prober.h"

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
  UnderWay under_way_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_TRUTH_GRPC_LEAF_PROBER_H_
