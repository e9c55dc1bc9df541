#include "indexer/service/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "indexer/base/mutex.h"
#include "indexer/service/grpc_credentials.h"
#include "indexer/service/grpc_deadline.h"
#include "indexer/service/grpc_log.h"

namespace kvatlas {
namespace {

int Milliseconds(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, std::numeric_limits<int>::max()));
}

// Both are switches of the whole process in gRPC, to be set before the first builder.
void EnableHealthAndReflection() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
}

// Debian's Abseil looks for lock cycles at every lock that gRPC takes: a tenth of a service's processor time.
void StopLookingForDeadlocks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

void SetLimits(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(options.message_bytes_max);
  builder->SetMaxSendMessageSize(options.message_bytes_max);
  builder->SetResourceQuota(grpc::ResourceQuota("kvatlas").SetMaxThreads(options.threads_max));
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no bound
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Milliseconds(options.client_ping_min));
}

}  // namespace

struct GrpcServer::Impl {
  std::vector<grpc::Service*> services;   // immutable after Start
  std::vector<std::string> health_names;  // likewise
  std::unique_ptr<grpc::Server> server;   // immutable after Start
  Mutex stop_mutex;
  bool stopped ABSL_GUARDED_BY(stop_mutex) = false;
};

GrpcServer::GrpcServer(GrpcServerOptions options)
    : options_(std::move(options)), impl_(std::make_unique<Impl>()) {}

GrpcServer::~GrpcServer() { Stop(Duration::zero()); }

void GrpcServer::Register(grpc::Service* service, std::string full_name) {
  if (!full_name.empty()) AddHealthName(full_name);
  impl_->services.push_back(service);
}

void GrpcServer::AddHealthName(std::string name) { impl_->health_names.push_back(std::move(name)); }

absl::Status GrpcServer::Start() {
  RouteGrpcLog();
  EnableHealthAndReflection();
  StopLookingForDeadlocks();
  grpc::ServerBuilder builder;
  SetLimits(options_, &builder);
  int port = 0;
  builder.AddListeningPort(options_.listen.ToString(), MakeServerCredentials(), &port);
  for (grpc::Service* const service : impl_->services) builder.RegisterService(service);
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr || port == 0) {
    impl_->server = nullptr;
    return absl::UnavailableError(
        absl::StrCat("cannot listen for gRPC on ", options_.listen.ToString(),
                     ": already in use, or not an address of this machine"));
  }
  address_ = {options_.listen.host, static_cast<uint16_t>(port)};
  SetHealth(Health::kLoading);
  return absl::OkStatus();
}

void GrpcServer::SetHealth(Health health) {
  if (impl_->server == nullptr) return;
  grpc::HealthCheckServiceInterface* const service = impl_->server->GetHealthCheckService();
  const bool serving = health == Health::kServing;
  service->SetServingStatus("", serving);
  for (const std::string& name : impl_->health_names) service->SetServingStatus(name, serving);
}

void GrpcServer::Stop(Duration grace) {
  MutexLock lock(&impl_->stop_mutex);
  if (impl_->server == nullptr || std::exchange(impl_->stopped, true)) return;
  SetHealth(Health::kStopping);
  impl_->server->Shutdown(DeadlineIn(grace));
  impl_->server->Wait();
}

}  // namespace kvatlas
