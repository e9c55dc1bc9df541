// A `SenderLink` over the network: one gRPC call of `Holdings.Stream`, made again whenever it ends.
//
//   1. A call is started. While the server is not reached it fails, with the reason
//     (`OnUnreachable`), and 3 follows.
//   2. The server sends its headers: connected. Messages flow both ways.
//   3. The call ends (`Reset`, a refusal, a dead peer): disconnected, then 1 again after the
//      backoff, which starts over once a connection has carried a message back.
//
// *Truth*: messages arrive in order, or the connection ends; those still in the buffer then are
// lost.
// *Threads*: any; observers are called from gRPC's threads, one call at a time, with no lock held.
// `Stop` must not be called from an observer. No thread of its own.
// *Bounds*: the buffer, by `GrpcLinkOptions`; one message is always taken when it is empty. Acks
// are read one at a time: an observer that is slow slows the receiver down.
// *Cost*: a message is converted and queued by its writer; gRPC's threads do the rest.
//
// Example:
//   auto link = std::make_unique<GrpcLink>("127.0.0.1:7410", GrpcLinkOptions{});
//   SenderPump pump(options, identity, &resident, &resident_mutex, std::move(link),
//   &Clock::Real());

#ifndef KVATLAS_INDEXER_TRANSPORT_GRPC_LINK_H_
#define KVATLAS_INDEXER_TRANSPORT_GRPC_LINK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "indexer/base/clock.h"
#include "indexer/stream/link.h"

namespace kvatlas {

class Security;

struct GrpcLinkOptions {
  Duration backoff_initial = std::chrono::milliseconds(50);  // doubled from time to time
  Duration backoff_max = std::chrono::seconds(1);
  size_t buffer_messages_max = 64;
  size_t buffer_bytes_max = 4 << 20;
  std::shared_ptr<Security> security = nullptr;  // null: that of the process
};

class GrpcLink : public SenderLink {
 public:
  // `target`: HOST:PORT.
  explicit GrpcLink(const std::string& target, const GrpcLinkOptions& options = {});
  // Stop(0), when it was started.
  ~GrpcLink() override;

  void Start(SenderLinkObserver* observer) override;
  bool Write(const SenderMessage& message) override;
  void Reset() override;
  void Stop(std::chrono::nanoseconds flush_for) override;

  // Messages given to gRPC since the start, and their serialized size without framing.
  uint64_t messages_written() const;
  uint64_t bytes_written() const;

 private:
  struct Core;
  class Call;
  const std::shared_ptr<Core> core_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_GRPC_LINK_H_
