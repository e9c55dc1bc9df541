// `Leaf.Stats` of one domain as a `LeafAnswer`. A call at a time and per question; channels are
// kept by address.

#include "frontend/accuracy/grpc_leaf_prober.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <memory>
#include <utility>

#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/net/grpc_status.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {
namespace {

// Lives until the answer has been passed on; its deleter ends the count of calls under way.
struct Call {
  std::unique_ptr<v1::Leaf::Stub> stub;
  grpc::ClientContext context;
  v1::StatsRequest request;
  v1::StatsResponse response;
};

// A value that is not known is no promise.
Trust TrustOf(v1::Trust trust) {
  switch (trust) {
    case v1::TRUST_EXACT:
      return Trust::kExact;
    case v1::TRUST_STALE:
      return Trust::kStale;
    case v1::TRUST_GUESSED:
      return Trust::kGuessed;
    default:
      return Trust::kDegraded;
  }
}

// Only of engines that the leaf listens to itself.
LeafEngineView EngineOf(const v1::EngineStats& stats) {
  LeafEngineView engine;
  engine.block_size = stats.block_size();
  engine.lora_name = stats.lora_name();
  engine.salted = stats.salted();
  engine.silent = std::chrono::milliseconds(stats.silent_ms());
  engine.lag_ms = stats.lag_ms();
  engine.clears = stats.clears();
  engine.restarts = stats.restarts();
  engine.messages_lost = stats.messages_lost();
  engine.parked = stats.parked();
  for (const auto& [reason, count] : stats.refused()) engine.refused[reason] = count;
  engine.last_refusal = stats.last_refusal();
  return engine;
}

// The view of one holder; `at`, contract and block size are filled in by the caller.
LeafView ViewOf(const v1::HolderStats& stats) {
  LeafView view;
  view.known = true;
  view.masked = stats.masked();
  view.connected = stats.connected();
  view.trust = TrustOf(stats.trust());
  view.age = std::chrono::milliseconds(stats.age_ms());
  view.epoch = stats.epoch();
  view.blocks = stats.blocks();
  view.batches = stats.batches();
  // Only holders of hybrid models have a layout of their groups.
  view.hybrid = stats.has_layout();
  if (stats.has_engine()) view.engine = EngineOf(stats.engine());
  return view;
}

// The question names one domain, so there is one at most.
LeafAnswer AnswerOf(const v1::StatsResponse& response) {
  LeafAnswer answer;
  answer.contract = response.contract();
  for (const v1::DomainStats& domain : response.domains()) {
    answer.block_size = domain.block_size();
    for (const v1::HolderStats& stats : domain.holder_stats()) {
      const v1::Holder& holder = stats.holder();
      answer.workers[{holder.name(), holder.rank(), holder.replica()}] = ViewOf(stats);
    }
  }
  return answer;
}

}  // namespace

GrpcLeafProber::GrpcLeafProber()
    : channels_([](const std::string& address) { return MakeChannel(address); }) {}
// `channels_` outlives the calls.
GrpcLeafProber::~GrpcLeafProber() { under_way_.WaitForNone(); }

void GrpcLeafProber::Probe(const std::string& leaf_address, const Domain& domain, Duration deadline,
                           Callback callback) {
  under_way_.Begin();
  std::shared_ptr<Call> call(new Call, [this](Call* ended) {
    delete ended;
    under_way_.End();
  });
  std::shared_ptr<grpc::Channel> given_up;
  // The call's stub holds its channel, also if the table gives it up meanwhile.
  call->stub = v1::Leaf::NewStub(channels_.Get(leaf_address, &given_up));
  ToProto(domain, call->request.mutable_domain());
  call->context.set_deadline(DeadlineIn(deadline));
  call->stub->async()->Stats(&call->context, &call->request, &call->response,
                             [call, callback = std::move(callback)](const grpc::Status& status) {
                               if (status.ok()) {
                                 callback(AnswerOf(call->response));
                               } else {
                                 callback(FromGrpcStatus(status));
                               }
                             });
}

}  // namespace kvatlas
