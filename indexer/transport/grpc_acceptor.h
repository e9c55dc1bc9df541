// Receives streams of holdings over the network: the `Holdings` service in front of a
// `StreamAcceptor`, one session per call.
//
//   call ─▶ headers at once ─▶ messages, typed and checked (`wire.h`) ─▶ ReceiverSession
//                replies, from any thread ─▶ queue per connection ─▶ call
//
// *Truth*: a message that `wire.h` refuses ends the call with INVALID_ARGUMENT and the field's
// name. A `Refuse` is sent and then the call ends with the same status; a session's status ends it
// likewise, after what was replied before. A sender that half-closes is answered OK. The session is
// destroyed when the call is over.
// A hello that the policy does not allow ends the call with PERMISSION_DENIED before its session
// hears of it; a stream is cut when a later policy does not allow its hello any more.
// *Threads*: any. Sessions are called from gRPC's threads, one message at a time per call. No
// thread of its own. Replies never block: a slow reader has its acks merged, the newest one counts;
// with more than `replies_max` others waiting it is cut off with RESOURCE_EXHAUSTED.
// *Lifetime*: `acceptor` outlives this, this outlives the server.
//
// Example:
//   GrpcAcceptor streams(&registry);
//   server.Register(streams.service(), "kvatlas.v1.Holdings");
//   ...
//   streams.Stop();       // so that the server's stop need not wait for senders
//   server.Stop(grace);

#ifndef KVATLAS_INDEXER_TRANSPORT_GRPC_ACCEPTOR_H_
#define KVATLAS_INDEXER_TRANSPORT_GRPC_ACCEPTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "indexer/security/security.h"
#include "indexer/stream/link.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace kvatlas {

struct GrpcAcceptorOptions {
  size_t replies_max = 64;  // waiting on one connection
  // The claims of a hello are checked with the identity of its call: a holder of this cell, or
  // coverage of a cell.
  Verb verb = Verb::kPublish;
  std::string cell = {};                         // of this leaf, for workers' hellos
  std::shared_ptr<Security> security = nullptr;  // null: that of the process
};

struct GrpcAcceptorStats {
  uint64_t connections = 0;        // open now
  uint64_t connections_total = 0;  // since the start
  uint64_t messages_received = 0;
  uint64_t bytes_received = 0;    // serialized, without framing
  uint64_t messages_refused = 0;  // by `wire.h`
  uint64_t hellos_refused = 0;    // by the policy
};

class GrpcAcceptor {
 public:
  explicit GrpcAcceptor(StreamAcceptor* acceptor, const GrpcAcceptorOptions& options = {});
  // REQUIRES: the server is stopped.
  ~GrpcAcceptor();

  GrpcAcceptor(const GrpcAcceptor&) = delete;
  GrpcAcceptor& operator=(const GrpcAcceptor&) = delete;

  // For `GrpcServer::Register`.
  grpc::Service* service();

  GrpcAcceptorStats Stats() const;

  // Ends every connection, and new ones, with UNAVAILABLE. Does not wait for their end.
  void Stop();

 private:
  class Service;
  struct Core;
  class Connection;
  const std::shared_ptr<Core> core_;
  const std::unique_ptr<Service> service_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_GRPC_ACCEPTOR_H_
