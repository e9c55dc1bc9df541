// `Door` accepts connections and gives them to gRPC; SetLimits has the bounds that gRPC enforces;
// `GrpcServer::Start` puts door, server and watch together. A connection passes the account
// (connection_account.h), gRPC's handshake, the guard of its calls (grpc_guard.h) and then runs the
// services.

#include "indexer/net/grpc_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "indexer/base/durations.h"
#include "indexer/base/mutex.h"
#include "indexer/net/bounded_methods.h"
#include "indexer/net/connection_account.h"
#include "indexer/net/grpc_awake.h"
#include "indexer/net/grpc_call_watch.h"
#include "indexer/net/grpc_credentials.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/net/grpc_log.h"
#include "indexer/net/grpc_reflection.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/process_memory.h"

namespace kvatlas {
namespace {

// GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, which has no public name.
constexpr char kHandshakeTimeoutMs[] = "grpc.server_handshake_timeout_ms";
// The header of the SETTINGS frame with which gRPC greets every client.
constexpr size_t kH2GreetingBytes = 9;
// The header of the record with which TLS answers a client's hello. Both are for
// `CheckOwnListeners`, which tells by them that gRPC itself handles new connections.
constexpr size_t kTlsGreetingBytes = 5;
constexpr int kReadBytesMax = 64 << 10;
// Calls whose messages of the longest kind may be under way on one connection at once.
constexpr uint64_t kMessagesAtOnce = 4;
// Names that orchestrators ask for by convention.
constexpr char kLiveness[] = "liveness";
constexpr char kReadiness[] = "readiness";
// How long accepting pauses when the machine has no descriptor left.
constexpr int kAcceptPauseMs = 50;

// A switch of the whole process in gRPC, to be set before the first builder.
void EnableHealth() { grpc::EnableDefaultHealthCheckService(true); }

// Debian's Abseil looks for lock cycles at every lock that gRPC takes: a tenth of a service's
// processor time.
void StopLookingForDeadlocks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

void SetLimits(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(options.message_bytes_max);
  builder->SetMaxSendMessageSize(options.message_bytes_max);
  builder->SetResourceQuota(
      grpc::ResourceQuota("kvatlas").SetMaxThreads(ThreadsThatFit(options.threads_max)));
  // gRPC 1.51 inflates a message as a whole before it looks at the limit
  // (message_decompress_filter.cc), so none is inflated: a compressed one fails its call with
  // UNIMPLEMENTED. The second argument names what is wrong; alone it ends a call whose message may
  // be inflated already.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->AddChannelArgument(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET,
                              1 << GRPC_COMPRESS_NONE);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_max);
  // `GrpcCallWatch` needs the figures of channelz alone; its traces would cost more than they do.
  builder->AddChannelArgument(GRPC_ARG_MAX_CHANNEL_TRACE_EVENT_MEMORY_PER_NODE, 0);
  // The bytes of one read bound how many calls can begin before the first of them is over.
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadBytesMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                              Milliseconds<int>(options.idle_timeout));
  builder->AddChannelArgument(kHandshakeTimeoutMs, Milliseconds<int>(options.handshake_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                              Milliseconds<int>(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              Milliseconds<int>(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no bound
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Milliseconds<int>(options.client_ping_min));
}

bool Encrypts(const GrpcServerOptions& options, Security& security) {
  return options.tls == PortTls::kOwn ||
         (options.tls == PortTls::kOfProcess && security.tls() != nullptr);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> CredentialsOfPort(
    const GrpcServerOptions& options, const std::shared_ptr<Security>& security) {
  if (options.tls == PortTls::kOwn)
    return MakeOwnServerCredentials(options.own_certificate, options.own_key);
  if (options.tls == PortTls::kClear) return grpc::InsecureServerCredentials();
  if (security->tls() != nullptr && security->tls()->server() == nullptr) {
    return absl::InvalidArgumentError("a server needs a certificate: --tls_cert and --tls_key");
  }
  return MakeServerCredentials(security);
}

// Accepts for gRPC, on a thread of its own: a listener of gRPC's that meets EMFILE once never
// accepts again (CVE-2023-4785). `stop_` is an eventfd that ends the thread's poll.
class Door {
 public:
  explicit Door(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> into)
      : into_(std::move(into)), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Door() {
    Close();
    if (stop_ >= 0) close(stop_);
  }

  ConnectionListener& listener() { return listener_; }

  // While `watch` says so, connections wait.
  void Open(const GrpcCallWatch* watch) {
    watch_ = watch;
    thread_ = std::thread([this] { Run(); });
  }

  // From now on no connection is accepted, and the port is free.
  void Close() {
    if (thread_.joinable()) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = write(stop_, &one, sizeof(one));
      thread_.join();
    }
    listener_.Close();
  }

 private:
  // Waits for connections or the stop. While AcceptAll asks for a pause, only the stop is polled:
  // the listener would be readable at once.
  void Run() {
    pollfd ready[] = {{stop_, POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    while (true) {
      poll(ready, 2, -1);
      if (ready[0].revents != 0) return;
      if (ready[1].revents == 0) continue;
      // A connection that waits for room is accepted already and makes nothing readable, so it is
      // tried again after the pause.
      for (int pause_ms; (pause_ms = AcceptAll()) > 0;) {
        if (poll(ready, 1, pause_ms) > 0) return;
      }
    }
  }

  // Accepts what waits. Returns the pause in ms before the next try; 0: none, the poll tells of the
  // next connection.
  int AcceptAll() {
    for (int i = 0; i < kAcceptedInARow; ++i) {
      if (watch_->settling()) return Milliseconds<int>(kFullPause);
      const ConnectionListener::Accepted accepted = listener_.Accept(/*with_busy=*/false);
      switch (accepted.outcome) {
        case ConnectionListener::Outcome::kNone:
          return 0;
        case ConnectionListener::Outcome::kFull:
          return Milliseconds<int>(kFullPause);
        case ConnectionListener::Outcome::kFailed:
          LogEvery(limiter_, LogLevel::kWarning, "grpc accept failed",
                   {{"address", listener_.address().ToString()}});
          return kAcceptPauseMs;
        case ConnectionListener::Outcome::kShed:
          LogEvery(
              limiter_, LogLevel::kWarning, "grpc connection refused",
              {{"address", listener_.address().ToString()}, {"reason", "too many connections"}});
          break;
        case ConnectionListener::Outcome::kAccepted: {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
          parameters.listener_fd = listener_.fd();
          parameters.fd = accepted.fd;
          into_->HandleNewConnection(&parameters);
          break;
        }
      }
    }
    return 0;
  }

  // Connections accepted in a row before the stop is looked at.
  static constexpr int kAcceptedInARow = 64;

  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> into_;
  const int stop_;
  ConnectionListener listener_;
  const GrpcCallWatch* watch_ = nullptr;
  LogLimiter limiter_{std::chrono::seconds(10)};
  std::thread thread_;
};

}  // namespace

struct GrpcServer::Impl {
  std::vector<grpc::Service*> services;        // immutable after Start
  std::unique_ptr<GrpcReflection> reflection;  // likewise; outlives the server
  std::vector<std::string> health_names;       // likewise
  std::unique_ptr<grpc::Server> server;        // immutable after Start
  std::unique_ptr<GrpcCallWatch> watch;        // likewise
  std::unique_ptr<Door> door;                  // likewise; gives to the server, and asks the watch
  std::unique_ptr<GrpcAwake> awake;            // likewise
  Mutex health_mutex;
  bool stopping ABSL_GUARDED_BY(health_mutex) = false;
  Mutex stop_mutex;  // before `health_mutex`
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

// 1. The switches of the process, and the limits of this server.
// 2. Credentials, and the guard, which has to be set on the credentials before the port takes them.
// 3. The door listens. gRPC has no port of its own: it is given descriptors.
// 4. gRPC builds and starts. No connection reaches it before the door is opened.
// 5. Health says NOT_SERVING. gRPC says SERVING for the instant before, but nothing is accepted
//    yet.
// 6. The watch learns this server's channelz id as the difference of the ids before and after; a
//    server that another thread starts at the same time would be watched twice.
// 7. The door opens.
absl::Status GrpcServer::Start() {
  RouteGrpcLog();
  EnableHealth();
  StopLookingForDeadlocks();
  grpc::ServerBuilder builder;
  SetLimits(options_, &builder);
  const std::shared_ptr<Security> security =
      options_.security != nullptr ? options_.security : Security::OfProcess();
  if (absl::Status open = security->MayListen(options_.listen); !open.ok()) return open;
  if (security->connection_age() > Duration(0)) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               Milliseconds<int>(security->connection_age()));
  }
  const absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> made =
      CredentialsOfPort(options_, security);
  if (!made.ok()) return made.status();
  const std::shared_ptr<grpc::ServerCredentials>& credentials = *made;
  const bool tls = Encrypts(options_, *security);
  if (tls) GuardCalls(security, credentials.get(), &builder);
  impl_->door = std::make_unique<Door>(builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials));
  const absl::Status bad = impl_->door->listener().Listen(
      options_.listen, {.connections_max = options_.connections_max,
                        .greeting_bytes = tls ? kTlsGreetingBytes : kH2GreetingBytes,
                        .hello = tls ? TlsClientHello() : "",
                        .user_timeout = options_.keepalive_timeout,
                        .may_send = static_cast<uint64_t>(options_.unasked_bytes_max)});
  if (!bad.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot listen for gRPC on ",
                                               options_.listen.ToString(), ": ", bad.message()));
  }
  std::vector<std::string> names;
  for (grpc::Service* const service : impl_->services) {
    BoundMethods(service);
    builder.RegisterService(service);
    for (std::string& name : ServicesOf(service)) names.push_back(std::move(name));
  }
  impl_->reflection = std::make_unique<GrpcReflection>(std::move(names));
  impl_->reflection->AddTo(&builder);
  const std::vector<int64_t> others = GrpcServerIds();
  impl_->server = builder.BuildAndStart();
  if (impl_->server == nullptr) return absl::InternalError("gRPC does not start: see its log");
  address_ = impl_->door->listener().address();
  impl_->server->GetHealthCheckService()->SetServingStatus(kLiveness, true);
  SetHealth(Health::kLoading);
  std::vector<int64_t> ours;
  const std::vector<int64_t> all = GrpcServerIds();
  std::set_difference(all.begin(), all.end(), others.begin(), others.end(),
                      std::back_inserter(ours));
  const uint64_t unasked_bytes_max = static_cast<uint64_t>(options_.unasked_bytes_max);
  impl_->watch = std::make_unique<GrpcCallWatch>(
      std::move(ours),
      GrpcCallLimits{.calls_max = options_.streams_max + options_.streams_max / 4,
                     .unasked_bytes_max = unasked_bytes_max,
                     .unfinished_bytes_max =
                         unasked_bytes_max +
                         kMessagesAtOnce * static_cast<uint64_t>(options_.message_bytes_max)},
      &impl_->door->listener());
  impl_->door->Open(impl_->watch.get());
  impl_->awake = std::make_unique<GrpcAwake>();
  return absl::OkStatus();
}

// kStopping is final: a late report of a part that loads must not say SERVING again.
void GrpcServer::SetHealth(Health health) {
  if (impl_->server == nullptr) return;
  grpc::HealthCheckServiceInterface* const service = impl_->server->GetHealthCheckService();
  MutexLock lock(&impl_->health_mutex);
  if (impl_->stopping) return;
  impl_->stopping = health == Health::kStopping;
  const bool serving = health == Health::kServing;
  service->SetServingStatus("", serving);
  service->SetServingStatus(kReadiness, serving);
  for (const std::string& name : impl_->health_names) service->SetServingStatus(name, serving);
}

// 1. Health says NOT_SERVING, so that clients go elsewhere. 2. The door closes: no new connection.
//    3. Shutdown ends idle connections, lets calls finish for `grace`, then cancels them. 4. Wait
//    until all have ended. Later callers wait for the first one by `stop_mutex`.
void GrpcServer::Stop(Duration grace) {
  MutexLock lock(&impl_->stop_mutex);
  if (impl_->server == nullptr || std::exchange(impl_->stopped, true)) return;
  SetHealth(Health::kStopping);
  impl_->door->Close();
  impl_->server->Shutdown(DeadlineIn(grace));
  impl_->server->Wait();
}

}  // namespace kvatlas
