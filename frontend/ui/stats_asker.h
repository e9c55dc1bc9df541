// What does a peer say of itself? `Hierarchy.Stats` or `Leaf.Stats` of one address.
//
// *Threads*: any. The callback is called exactly once, from any thread, possibly before the call returns.
// *Lifetime* of `GrpcStatsAsker`: the destructor waits for the calls under way, which end by answer or deadline.

#ifndef KVATLAS_FRONTEND_UI_STATS_ASKER_H_
#define KVATLAS_FRONTEND_UI_STATS_ASKER_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "frontend/peers/peers_by_address.h"
#include "frontend/peers/under_way.h"
#include "indexer/base/clock.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace kvatlas {

enum class StatsOf { kNode, kLeaf };

class StatsAsker {
 public:
  using Callback = std::function<void(absl::StatusOr<v1::StatsResponse>)>;
  virtual ~StatsAsker() = default;
  virtual void Ask(StatsOf what, const std::string& address, Duration deadline,
                   Callback callback) = 0;
};

class GrpcStatsAsker : public StatsAsker {
 public:
  GrpcStatsAsker();
  ~GrpcStatsAsker() override;
  void Ask(StatsOf what, const std::string& address, Duration deadline, Callback callback) override;

 private:
  PeersByAddress<grpc::Channel> channels_;
  UnderWay under_way_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_STATS_ASKER_H_
