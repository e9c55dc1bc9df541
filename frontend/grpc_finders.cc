#include "frontend/grpc_finders.h"

#include <google/protobuf/arena.h>
#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <utility>

#include "frontend/wire.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/service/grpc_status.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {
namespace {

// Everything that lives as long as one call. Both messages lie in an arena: an answer has a few small ones per worker.
template <typename Stub, typename Request, typename Response>
struct Call {
  static constexpr size_t kBytes = 8 << 10;

  std::shared_ptr<Stub> stub;
  grpc::ClientContext context;
  char bytes[kBytes];
  google::protobuf::Arena arena{bytes, kBytes};
  Request& request = *google::protobuf::Arena::CreateMessage<Request>(&arena);
  Response& response = *google::protobuf::Arena::CreateMessage<Response>(&arena);
};

template <typename Call>
std::shared_ptr<Call> NewCall(ChannelCache* channels) {
  channels->Begin();
  return std::shared_ptr<Call>(new Call, [channels](Call* call) {
    delete call;
    channels->End();
  });
}

gpr_timespec DeadlineIn(Duration duration) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(duration.count(), GPR_TIMESPAN));
}

}  // namespace

ChannelCache::~ChannelCache() {
  MutexLock lock(&mutex_);
  while (under_way_ > 0) idle_.Wait(&mutex_);
}

void ChannelCache::Begin() {
  MutexLock lock(&mutex_);
  ++under_way_;
}

void ChannelCache::End() {
  MutexLock lock(&mutex_);
  if (--under_way_ == 0) idle_.SignalAll();
}

std::shared_ptr<grpc::Channel> ChannelCache::Get(const std::string& address) {
  MutexLock lock(&mutex_);
  Entry& entry = channels_[address];
  entry.used = ++uses_;
  if (entry.channel == nullptr) entry.channel = MakeChannel(address);
  std::shared_ptr<grpc::Channel> channel = entry.channel;
  if (channels_.size() > kFinderChannelsMax) {
    channels_.erase(std::min_element(
        channels_.begin(), channels_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
  return channel;
}

void GrpcCellFinder::Connect(const std::string& hierarchy_address) {
  channels_.Get(hierarchy_address)->GetState(/*try_to_connect=*/true);
}

void GrpcOverlapFinder::Connect(const std::string& leaf_address) {
  channels_.Get(leaf_address)->GetState(/*try_to_connect=*/true);
}

void GrpcCellFinder::FindCells(const std::string& hierarchy_address, const CellQuestion& question,
                               Duration deadline, Callback callback) {
  auto call =
      NewCall<Call<v1::Hierarchy::Stub, v1::FindCellsRequest, v1::FindCellsResponse>>(&channels_);
  call->stub = channels_.StubTo<v1::Hierarchy>(hierarchy_address);
  ToProto(question, &call->request);
  call->context.set_deadline(DeadlineIn(deadline));
  call->stub->async()->FindCells(
      &call->context, &call->request, &call->response,
      [call, callback = std::move(callback)](const grpc::Status& status) {
        if (status.ok()) {
          callback(FromProto(call->response));
        } else {
          callback(FromGrpcStatus(status));
        }
      });
}

void GrpcOverlapFinder::FindOverlaps(const std::string& leaf_address,
                                     const OverlapQuestion& question, Duration deadline,
                                     Callback callback) {
  auto call =
      NewCall<Call<v1::Leaf::Stub, v1::FindOverlapsRequest, v1::FindOverlapsResponse>>(&channels_);
  call->stub = channels_.StubTo<v1::Leaf>(leaf_address);
  LabelsKey key{leaf_address, *question.domain};
  KnownLabels known = LabelsOf(key);
  ToProto(question, known.version, &call->request);
  call->context.set_deadline(DeadlineIn(deadline));
  call->stub->async()->FindOverlaps(&call->context, &call->request, &call->response,
                                    [this, call, key = std::move(key), known = std::move(known),
                                     callback = std::move(callback)](const grpc::Status& status) {
                                      if (!status.ok()) return callback(FromGrpcStatus(status));
                                      WorkersAnswer answer = FromProto(call->response);
                                      answer.labels = TakeLabels(key, known, call->response);
                                      callback(std::move(answer));
                                    });
}

GrpcOverlapFinder::KnownLabels GrpcOverlapFinder::LabelsOf(const LabelsKey& key) {
  MutexLock lock(&labels_mutex_);
  const auto found = labels_.find(key);
  return found == labels_.end() ? KnownLabels{} : found->second;
}

std::shared_ptr<const LabelsByWorker> GrpcOverlapFinder::TakeLabels(
    const LabelsKey& key, const KnownLabels& known, const v1::FindOverlapsResponse& response) {
  const uint64_t version = response.labels_version();
  if (version == known.version) return known.labels;
  std::shared_ptr<const LabelsByWorker> labels = version == 0 ? nullptr : LabelsFromProto(response);
  MutexLock lock(&labels_mutex_);
  if (labels_.size() >= kFinderChannelsMax && !labels_.contains(key)) labels_.clear();
  labels_[key] = {.version = version, .labels = labels};
  return labels;
}

GrpcTimer::~GrpcTimer() {
  MutexLock lock(&mutex_);
  while (set_ > 0) idle_.Wait(&mutex_);
}

void GrpcTimer::After(Duration delay, std::function<void()> callback) {
  {
    MutexLock lock(&mutex_);
    ++set_;
  }
  auto alarm = std::make_shared<grpc::Alarm>();
  // The alarm keeps its callback, and the callback its alarm until it has run.
  alarm->Set(DeadlineIn(delay), [this, alarm, callback = std::move(callback)](bool) mutable {
    const std::shared_ptr<grpc::Alarm> last = std::move(alarm);
    std::exchange(callback, nullptr)();
    MutexLock lock(&mutex_);
    if (--set_ == 0) idle_.SignalAll();
  });
}

}  // namespace kvatlas
