#include "indexer/net/grpc_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <utility>
#include <vector>

#include "indexer/base/durations.h"
#include "indexer/net/grpc_credentials.h"
#include "indexer/net/grpc_log.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;

// Keeps a `Security` alive as long as its channel: gRPC owns the factory with the channel. It
// intercepts nothing.
class Keeps final : public ClientInterceptorFactoryInterface {
 public:
  explicit Keeps(std::shared_ptr<Security> security) : security_(std::move(security)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return nullptr;
  }

 private:
  const std::shared_ptr<Security> security_;
};

}  // namespace

// gRPC shares a connection among channels with the same target and arguments, unless
// `own_connection`. Proxies of the environment are off: addresses of the fleet are reached
// directly.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const GrpcChannelOptions& options) {
  RouteGrpcLog();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.message_bytes_max);
  arguments.SetMaxSendMessageSize(options.message_bytes_max);
  // As in `GrpcServer`: an answer is not inflated either.
  arguments.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds<int>(options.keepalive_time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds<int>(options.keepalive_timeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no bound
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   Milliseconds<int>(options.backoff_initial));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds<int>(options.backoff_max));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds<int>(options.connect_timeout));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (options.security == nullptr) {
    return grpc::CreateCustomChannel(target, MakeChannelCredentials(Security::OfProcess().get()),
                                     arguments);
  }
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> kept;
  kept.push_back(std::make_unique<Keeps>(options.security));
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, MakeChannelCredentials(options.security.get()), arguments, std::move(kept));
}

}  // namespace kvatlas
