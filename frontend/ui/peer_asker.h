// Asks a peer about itself, a prompt or sessions: `Hierarchy.Stats`, `Leaf.Stats`, `Leaf.Explain`
// or `Sessions.FindSessions` of one address.
//
// *Threads*: any. A callback is called exactly once, from any thread, possibly before the call
// returns. *Lifetime* of `GrpcPeerAsker`: the destructor waits for the calls under way, which end
// by answer or deadline.

#ifndef KVATLAS_FRONTEND_UI_PEER_ASKER_H_
#define KVATLAS_FRONTEND_UI_PEER_ASKER_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "frontend/cluster_client/peers_by_address.h"
#include "frontend/cluster_client/pending_calls.h"
#include "indexer/base/clock.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "proto/kvatlas/v1/sessions.pb.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace kvatlas {

enum class StatsOf { kNode, kLeaf };

class PeerAsker {
 public:
  using Told = std::function<void(absl::StatusOr<v1::StatsResponse>)>;
  virtual ~PeerAsker() = default;
  virtual void Ask(StatsOf what, const std::string& address, Duration deadline, Told callback) = 0;

  using Explained = std::function<void(absl::StatusOr<v1::ExplainResponse>)>;
  virtual void Explain(const std::string& leaf_address, const v1::ExplainRequest& request,
                       Duration deadline, Explained callback) = 0;

  using Sessions = std::function<void(absl::StatusOr<v1::FindSessionsResponse>)>;
  virtual void FindSessions(const std::string& leaf_address, const v1::FindSessionsRequest& request,
                            Duration deadline, Sessions callback) = 0;
};

class GrpcPeerAsker : public PeerAsker {
 public:
  GrpcPeerAsker();
  ~GrpcPeerAsker() override;
  void Ask(StatsOf what, const std::string& address, Duration deadline, Told callback) override;
  void Explain(const std::string& leaf_address, const v1::ExplainRequest& request,
               Duration deadline, Explained callback) override;
  void FindSessions(const std::string& leaf_address, const v1::FindSessionsRequest& request,
                    Duration deadline, Sessions callback) override;

 private:
  template <typename Call>
  std::shared_ptr<Call> NewCall(const std::string& address, Duration deadline);

  PeersByAddress<grpc::Channel> channels_;
  PendingCalls under_way_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_PEER_ASKER_H_
