// One `Call` object per question; its deleter ends the count that the destructor waits for.

#include "frontend/ui/peer_asker.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <memory>
#include <utility>

#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/net/grpc_status.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "proto/kvatlas/v1/sessions.grpc.pb.h"

namespace kvatlas {
namespace {

template <typename Service, typename Request, typename Response>
// All that lives as long as one call. The channel is held too: the table may give it up meanwhile.
struct Call {
  using Stub = typename Service::Stub;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Stub> stub;
  grpc::ClientContext context;
  Request request;
  Response response;
};

// Hands the answer of an ended call on; the call lives until then.
template <typename Call, typename Callback>
auto Done(std::shared_ptr<Call> call, Callback callback) {
  return [call = std::move(call), callback = std::move(callback)](const grpc::Status& status) {
    if (status.ok()) {
      callback(std::move(call->response));
    } else {
      callback(FromGrpcStatus(status));
    }
  };
}

using LeafStats = Call<v1::Leaf, v1::StatsRequest, v1::StatsResponse>;
using NodeStats = Call<v1::Hierarchy, v1::StatsRequest, v1::StatsResponse>;
using LeafExplain = Call<v1::Leaf, v1::ExplainRequest, v1::ExplainResponse>;
using LeafSessions = Call<v1::Sessions, v1::FindSessionsRequest, v1::FindSessionsResponse>;

}  // namespace

GrpcPeerAsker::GrpcPeerAsker()
    : channels_([](const std::string& address) { return MakeChannel(address); }) {}
// Deadlines bound the wait.
GrpcPeerAsker::~GrpcPeerAsker() { under_way_.WaitForNone(); }

template <typename Call>
// A call that is ready to be started.
std::shared_ptr<Call> GrpcPeerAsker::NewCall(const std::string& address, Duration deadline) {
  under_way_.Begin();
  std::shared_ptr<Call> call(new Call, [this](Call* ended) {
    delete ended;
    under_way_.End();
  });
  std::shared_ptr<grpc::Channel> given_up;
  call->channel = channels_.Get(address, &given_up);
  call->stub = std::make_unique<typename Call::Stub>(call->channel);
  call->context.set_deadline(DeadlineIn(deadline));
  return call;
}

void GrpcPeerAsker::Ask(StatsOf what, const std::string& address, Duration deadline,
                        Told callback) {
  if (what == StatsOf::kLeaf) {
    const auto call = NewCall<LeafStats>(address, deadline);
    call->stub->async()->Stats(&call->context, &call->request, &call->response,
                               Done(call, std::move(callback)));
  } else {
    const auto call = NewCall<NodeStats>(address, deadline);
    call->stub->async()->Stats(&call->context, &call->request, &call->response,
                               Done(call, std::move(callback)));
  }
}

void GrpcPeerAsker::Explain(const std::string& leaf_address, const v1::ExplainRequest& request,
                            Duration deadline, Explained callback) {
  const auto call = NewCall<LeafExplain>(leaf_address, deadline);
  call->request = request;
  call->stub->async()->Explain(&call->context, &call->request, &call->response,
                               Done(call, std::move(callback)));
}

void GrpcPeerAsker::FindSessions(const std::string& leaf_address,
                                 const v1::FindSessionsRequest& request, Duration deadline,
                                 Sessions callback) {
  const auto call = NewCall<LeafSessions>(leaf_address, deadline);
  call->request = request;
  call->stub->async()->FindSessions(&call->context, &call->request, &call->response,
                                    Done(call, std::move(callback)));
}

}  // namespace kvatlas
