// The gRPC server of a process.
//
// A listening server with what every binary needs: the standard health service, reflection, message
// and keepalive limits, a port that is really ours, and a stop that lets calls finish.
// The header costs no gRPC headers.
//
// Threads: gRPC's own run the services. `Register`, then `Start`, in one thread; the rest from any.
// Truth: encrypted, and open to callers that the policy allows, as the process's `Security` has it
//     (`grpc_guard.h`); `tls` may choose otherwise for one port.
// Bounds: connections are accepted here, not by gRPC, under the account of the process
// (`connection_account.h`): silent
//     ones give way to new ones, and running out of descriptors is survived. A connection has at
//     most `streams_max` calls at once and is cut off when it has a quarter more, those included
//     that its client has reset and gRPC has not destroyed yet (`grpc_call_watch.h`). It ends
//     `idle_timeout` after its last call, and when it says nothing at all for `handshake_timeout`.
//     A message over `message_bytes_max` fails its call with RESOURCE_EXHAUSTED, and so does a call
//     of a synchronous service when `threads_max` threads are busy. A compressed message fails its
//     call with UNIMPLEMENTED. What a connection sends without beginning a call, or between two
//     messages, is bounded (`grpc_call_watch.h`). `Stop` takes at most `grace` plus the time
//     handlers need to notice that they were cancelled.
// Lifetime: services outlive the server. Synchronous and callback services only: completion queues
//     are not served.
//
// Example:
//   GrpcServer grpc({.listen = {"127.0.0.1", 7410}});
//   grpc.Register(&leaf_service, "kvatlas.v1.Leaf");
//   if (absl::Status status = grpc.Start(); !status.ok()) return service.Fail(status);
//   grpc.SetHealth(Health::kServing);
//   service.WaitForSignal();
//   grpc.Stop(service.stop_deadline());

#ifndef KVATLAS_INDEXER_NET_GRPC_SERVER_H_
#define KVATLAS_INDEXER_NET_GRPC_SERVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/telemetry/health.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace kvatlas {

class Security;

enum class PortTls : uint8_t {
  kOfProcess,  // mutual, as `Security` has it; in clear where that has no certificate
  kOwn,        // a certificate of this port alone; no client is asked for one
  kClear,  // whatever the process has: a policy knows callers by their tokens alone, and the service asks it
};

struct GrpcServerOptions {
  Address listen;
  int message_bytes_max = 16 << 20;  // each way
  int unasked_bytes_max =
      256 << 10;  // of a connection before its first call: TLS, settings, headers
  Duration keepalive_time = std::chrono::seconds(10);  // silence before a ping to the client
  Duration keepalive_timeout =
      std::chrono::seconds(5);                         // unanswered ping before the connection ends
  Duration client_ping_min = std::chrono::seconds(1);  // clients that ping faster are cut off
  int threads_max = 1024;
  size_t connections_max = size_t{1} << 20;               // the account's share may be smaller
  int streams_max = 1024;                                 // at once, per connection
  Duration idle_timeout = std::chrono::minutes(5);        // without a call the connection ends
  Duration handshake_timeout = std::chrono::seconds(10);  // for the client's first frames
  std::shared_ptr<Security> security = nullptr;           // null: that of the process
  PortTls tls = PortTls::kOfProcess;
  // For `kOwn`: PEM files, read again every second. Both empty: self-signed, made at start.
  std::string own_certificate = {};
  std::string own_key = {};
};

class GrpcServer {
 public:
  explicit GrpcServer(GrpcServerOptions options);
  ~GrpcServer();  // Stop(0)

  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // Serves `service`; with a full name ("kvatlas.v1.Leaf"), health checks may ask for it by name.
  void Register(grpc::Service* service, std::string full_name = "");

  // One more name that health checks may ask for, with the same answer. Before `Start`.
  void AddHealthName(std::string name);

  // Listens and serves. Health says NOT_SERVING until `SetHealth(kServing)`, but for an instant
  // while starting, when gRPC itself says SERVING; of the name "liveness" it says SERVING until
  // `Stop`. UNAVAILABLE, naming the address, if it cannot be had: a port is never shared with
  // another process. INVALID_ARGUMENT: the port's own certificate and key. May be called once.
  absl::Status Start();

  // Where it listens, with the port that was taken. REQUIRES: `Start` was OK.
  const Address& address() const { return address_; }

  // Sets the answer of the health service for the whole (""), for "readiness" and for each name.
  // kStopping is final.
  void SetHealth(Health health);

  // Takes no new calls, waits for those running, cancels what is left after `grace`, and returns
  // when all have ended. A stream that never ends by itself costs the whole of it. Idempotent.
  void Stop(Duration grace);

 private:
  struct Impl;

  const GrpcServerOptions options_;
  Address address_;  // written by Start
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_SERVER_H_
