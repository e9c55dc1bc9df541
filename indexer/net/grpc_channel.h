// Channels by which this process reaches gRPC servers.
//
// A channel that notices a dead peer by keepalive and comes back quickly after a restart.
//
// Threads: the channel may be used from any.
// Truth: no call is retried here; a call on a broken channel fails with UNAVAILABLE unless it waits
//     for readiness. Environment proxies are not used. Encrypted as `grpc_credentials.h` says,
//     where the process has TLS files.
//
// Example:
//   std::shared_ptr<grpc::Channel> channel = MakeChannel(address.ToString());
//   auto stub = proto::Leaf::NewStub(channel);

#ifndef KVATLAS_INDEXER_NET_GRPC_CHANNEL_H_
#define KVATLAS_INDEXER_NET_GRPC_CHANNEL_H_

#include <chrono>
#include <memory>
#include <string>

#include "indexer/base/clock.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace kvatlas {

class Security;

struct GrpcChannelOptions {
  int message_bytes_max = 16 << 20;  // each way, as in GrpcServerOptions
  Duration keepalive_time = std::chrono::seconds(10);
  Duration keepalive_timeout = std::chrono::seconds(5);
  Duration backoff_initial = std::chrono::milliseconds(50);  // gRPC 1.51 raises it to 100 ms
  Duration backoff_max = std::chrono::seconds(1);
  Duration connect_timeout = std::chrono::seconds(2);
  // Null: that of the process. Otherwise the channel keeps it, and its files are followed as long
  // as the channel lives.
  std::shared_ptr<Security> security = nullptr;
  bool own_connection = false;  // true: shares no connection with other channels to this target
};

// `target` is HOST:PORT, or a gRPC name such as "dns:///leaves.example:7410". Never fails: a target
// that cannot be reached shows up in its calls.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const GrpcChannelOptions& options = {});

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_CHANNEL_H_
