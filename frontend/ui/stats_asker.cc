#include "frontend/ui/stats_asker.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <memory>
#include <utility>

#include "indexer/service/grpc_channel.h"
#include "indexer/service/grpc_deadline.h"
#include "indexer/service/grpc_status.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {
namespace {

struct Call {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Leaf::Stub> leaf;
  std::unique_ptr<v1::Hierarchy::Stub> node;
  grpc::ClientContext context;
  v1::StatsRequest request;
  v1::StatsResponse response;
};

}  // namespace

GrpcStatsAsker::GrpcStatsAsker()
    : channels_([](const std::string& address) { return MakeChannel(address); }) {}
GrpcStatsAsker::~GrpcStatsAsker() { under_way_.WaitForNone(); }

void GrpcStatsAsker::Ask(StatsOf what, const std::string& address, Duration deadline,
                         Callback callback) {
  under_way_.Begin();
  std::shared_ptr<Call> call(new Call, [this](Call* ended) {
    delete ended;
    under_way_.End();
  });
  std::shared_ptr<grpc::Channel> given_up;
  call->channel = channels_.Get(address, &given_up);
  call->context.set_deadline(DeadlineIn(deadline));
  auto done = [call, callback = std::move(callback)](const grpc::Status& status) {
    if (status.ok()) {
      callback(std::move(call->response));
    } else {
      callback(FromGrpcStatus(status));
    }
  };
  if (what == StatsOf::kLeaf) {
    call->leaf = v1::Leaf::NewStub(call->channel);
    call->leaf->async()->Stats(&call->context, &call->request, &call->response, std::move(done));
  } else {
    call->node = v1::Hierarchy::NewStub(call->channel);
    call->node->async()->Stats(&call->context, &call->request, &call->response, std::move(done));
  }
}

}  // namespace kvatlas
