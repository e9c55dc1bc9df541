#include "tools/testing/cluster/client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <deque>
#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_status.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

// Also the time that a restart may take.
constexpr Duration kDeadline = seconds(30);
// Of a route, for the frontend: a machine that is busy with all these processes is no reason to
// fall back.
constexpr uint32_t kRouteDeadlineMs = 20'000;
// Of a route by text, which is tokenized first.
constexpr uint32_t kRouteChatDeadlineMs = 20'000;

void Prepare(grpc::ClientContext& context, Duration deadline = kDeadline) {
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::milliseconds>(deadline));
}

template <typename Response>
absl::StatusOr<Response> Answer(const grpc::Status& status, Response&& response) {
  if (!status.ok()) return FromGrpcStatus(status);
  return std::move(response);
}

}  // namespace

ClusterClient::ClusterClient(const Cluster& cluster) : model_(cluster.options().model) {
  frontend_ = v1::Frontend::NewStub(MakeChannel(cluster.frontend()));
  for (uint32_t cell = 0; cell < cluster.options().cells; ++cell) {
    leaves_.push_back(v1::Leaf::NewStub(MakeChannel(cluster.leaf(cell))));
  }
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
    engines_.push_back(engine::v1::Engine::NewStub(
        MakeChannel(cluster.engine(worker), {.security = Security::Open()})));
  }
}

absl::StatusOr<v1::RouteResponse> ClusterClient::Route(std::span<const SequenceHash> blocks,
                                                       uint32_t prompt_tokens,
                                                       uint32_t expected_output_tokens) {
  v1::RouteRequest request;
  request.mutable_domain()->set_model(model_);
  request.mutable_sequence_hashes()->Reserve(static_cast<int>(blocks.size()));
  for (SequenceHash hash : blocks) request.add_sequence_hashes(Raw(hash));
  request.set_prompt_tokens(prompt_tokens);
  request.set_expected_output_tokens(expected_output_tokens);
  request.set_deadline_ms(kRouteDeadlineMs);
  grpc::ClientContext context;
  Prepare(context);
  v1::RouteResponse response;
  const grpc::Status status = frontend_->Route(&context, request, &response);
  return Answer(status, std::move(response));
}

absl::StatusOr<v1::RouteResponse> ClusterClient::RouteChat(std::string body) {
  v1::RouteChatRequest request;
  request.set_body(std::move(body));
  request.set_deadline_ms(kRouteChatDeadlineMs);
  grpc::ClientContext context;
  Prepare(context);
  v1::RouteResponse response;
  const grpc::Status status = frontend_->RouteChat(&context, request, &response);
  return Answer(status, std::move(response));
}

absl::Status ClusterClient::Report(const v1::ReportRequest& report) {
  grpc::ClientContext context;
  Prepare(context);
  v1::ReportResponse response;
  return FromGrpcStatus(frontend_->Report(&context, report, &response));
}

absl::StatusOr<engine::v1::StepResponse> ClusterClient::Submit(
    uint32_t worker, const engine::v1::SubmitRequest& request) {
  grpc::ClientContext context;
  Prepare(context);
  engine::v1::StepResponse response;
  const grpc::Status status = engines_[worker]->Submit(&context, request, &response);
  return Answer(status, std::move(response));
}

std::vector<absl::StatusOr<engine::v1::StepResponse>> ClusterClient::Advance(
    const std::vector<uint32_t>& workers, double time_ms, uint32_t wait_ack_ms) {
  struct Call {
    grpc::ClientContext context;
    engine::v1::StepResponse response;
    grpc::Status status;
  };
  engine::v1::AdvanceRequest request;
  request.set_time_ms(time_ms);
  request.set_wait_ack_ms(wait_ack_ms);
  std::deque<Call> calls(workers.size());
  Mutex mutex;
  CondVar done;
  size_t left = workers.size();
  for (size_t i = 0; i < workers.size(); ++i) {
    Call& call = calls[i];
    Prepare(call.context);
    engines_[workers[i]]->async()->Advance(&call.context, &request, &call.response,
                                           [&call, &mutex, &done, &left](grpc::Status status) {
                                             MutexLock lock(&mutex);
                                             call.status = std::move(status);
                                             if (--left == 0) done.Signal();
                                           });
  }
  {
    MutexLock lock(&mutex);
    while (left > 0) done.Wait(&mutex);
  }
  std::vector<absl::StatusOr<engine::v1::StepResponse>> answers;
  for (Call& call : calls) answers.push_back(Answer(call.status, std::move(call.response)));
  return answers;
}

absl::Status ClusterClient::WaitAcknowledged(uint32_t worker, Duration timeout) {
  engine::v1::WaitAcknowledgedRequest request;
  request.set_timeout_ms(static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()));
  grpc::ClientContext context;
  Prepare(context, timeout + kDeadline);
  engine::v1::WaitAcknowledgedResponse response;
  const grpc::Status status = engines_[worker]->WaitAcknowledged(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  if (response.acknowledged()) return absl::OkStatus();
  return absl::UnavailableError(response.connected() ? "its leaf has not acknowledged everything"
                                                     : "it is not connected to its leaf");
}

absl::StatusOr<engine::v1::ContentsResponse> ClusterClient::Contents(uint32_t worker) {
  grpc::ClientContext context;
  Prepare(context);
  engine::v1::ContentsResponse response;
  const grpc::Status status = engines_[worker]->Contents(&context, {}, &response);
  return Answer(status, std::move(response));
}

absl::StatusOr<v1::FindOverlapsResponse> ClusterClient::FindOverlaps(
    uint32_t cell, std::span<const SequenceHash> blocks) {
  v1::FindOverlapsRequest request;
  request.mutable_domain()->set_model(model_);
  for (SequenceHash hash : blocks) request.add_sequence_hashes(Raw(hash));
  request.set_all_workers(true);
  grpc::ClientContext context;
  Prepare(context);
  v1::FindOverlapsResponse response;
  const grpc::Status status = leaves_[cell]->FindOverlaps(&context, request, &response);
  return Answer(status, std::move(response));
}

absl::StatusOr<v1::StatsResponse> ClusterClient::LeafStats(uint32_t cell) {
  grpc::ClientContext context;
  Prepare(context);
  v1::StatsResponse response;
  const grpc::Status status = leaves_[cell]->Stats(&context, {}, &response);
  return Answer(status, std::move(response));
}

}  // namespace kvatlas
