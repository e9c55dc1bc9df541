// One thread makes a call every `kGrpcBeatEvery` on a channel that cannot connect. The call fails
// at once within the process, and its callback is the work that keeps one of gRPC's threads awake.

#include "indexer/net/grpc_awake.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <memory>

namespace kvatlas {
namespace {

// A channel to an address that cannot exist. It tries to connect once an hour, and fails its calls
// at once in between. Its own subchannel pool keeps it apart from all other channels.
std::shared_ptr<grpc::Channel> Nowhere() {
  constexpr int kHourMs = 3'600'000;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kHourMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kHourMs);
  return grpc::CreateCustomChannel("unix:/dev/null/nowhere", grpc::InsecureChannelCredentials(),
                                   arguments);
}

// One call, from Beat until its callback. The request is one empty slice: a message without bytes.
struct Call {
  grpc::ClientContext context;
  grpc::Slice nothing;
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

}  // namespace

GrpcAwake::GrpcAwake() : nowhere_(Nowhere()) {
  thread_ = std::thread([this] { Run(); });
}

GrpcAwake::~GrpcAwake() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

uint64_t GrpcAwake::beats() {
  MutexLock lock(&mutex_);
  return beats_;
}

// One call at a time, so a stuck gRPC piles up none. At the stop it waits for the call under way,
// whose callback uses this object.
void GrpcAwake::Run() {
  MutexLock lock(&mutex_);
  while (!stopping_ || under_way_) {
    if (!stopping_ && !under_way_) {
      under_way_ = true;
      mutex_.Unlock();
      Beat();
      mutex_.Lock();
    }
    changed_.WaitFor(&mutex_, kGrpcBeatEvery);
  }
}

// Called without the mutex: gRPC may run the callback within this call.
void GrpcAwake::Beat() {
  auto* const call = new Call;
  nowhere_.UnaryCall(&call->context, "/", {}, &call->request, &call->response,
                     [this, call](const grpc::Status&) {
                       delete call;
                       MutexLock lock(&mutex_);
                       under_way_ = false;
                       ++beats_;
                       if (stopping_) changed_.SignalAll();
                     });
}

}  // namespace kvatlas
