// The transport of a stream of holdings: two small interfaces, whatever is in between (in-process,
// gRPC, Redis).
//
//   StreamSender ─▶ SenderLink ══ transport ══ ReceiverSession ─▶ StreamReceiver
//
// *Threads*: stated per method.

#ifndef KVATLAS_INDEXER_STREAM_LINK_H_
#define KVATLAS_INDEXER_STREAM_LINK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

// Limits on what the peer of a connection may take of this process by its announcements, by its
// identity and the tenant of a domain. *Threads*: any.
class PeerAllowance {
 public:
  class Charge {
   public:
    virtual ~Charge() = default;
  };
  using ChargePtr = std::shared_ptr<const Charge>;

  virtual ~PeerAllowance() = default;
  // Charges a domain, or a holder, until the charge, which may be null, is destroyed.
  // RESOURCE_EXHAUSTED names the quota. `previous`: the same holder's earlier charge, destroyed
  // once this one is there.
  virtual absl::StatusOr<ChargePtr> TakeDomain(const std::string& tenant) = 0;
  virtual absl::StatusOr<ChargePtr> TakeHolder(const std::string& tenant, uint64_t label_bytes,
                                               const ChargePtr& previous) = 0;
  // Limits of one holder's blocks, as a number and as a multiple of the pool that its load reports;
  // 0: no limit.
  struct Blocks {
    uint64_t max = 0;
    double pool_times = 0;
  };
  virtual Blocks BlocksOf(const std::string& tenant) const = 0;
  // The outcome of a hello, for the audit log. OK: welcomed; `replaced` is the epoch of another
  // instance whose stream it took over, 0: none. Else why the receiver refused it.
  virtual void OnHelloAnswered(const Hello& hello, const absl::Status& answer, Epoch replaced) {
    static_cast<void>(hello), static_cast<void>(answer), static_cast<void>(replaced);
  }
};

// The receiving side of one connection, made by a `StreamAcceptor` per connection.
class ReceiverSession {
 public:
  virtual ~ReceiverSession() = default;
  // The address of the host at the other end, without a port; before the first message, and not at
  // all by transports that have none.
  virtual void OnPeer(const std::string& address) { static_cast<void>(address); }
  // Likewise, where there is a policy.
  virtual void OnAllowance(std::shared_ptr<PeerAllowance> allowance) {
    static_cast<void>(allowance);
  }
  // A message from the sender. Called one at a time per session, from a transport's thread. A
  // status other than OK closes the connection after what was replied.
  virtual absl::Status OnMessage(SenderMessage message) = 0;
  // The message that follows took so many bytes on the wire; called just before its `OnMessage`,
  // not at all by transports that serialize nothing.
  virtual void OnWireBytes(size_t bytes) { static_cast<void>(bytes); }
  // The transport between sender and receiver was lost, or is back: meanwhile silence says nothing
  // about the sender. Called only by transports that outlive a connection of the sender; one call
  // at a time with `OnMessage`.
  virtual void OnTransportLost(bool lost) { static_cast<void>(lost); }
};

// Sends a message to the sender; callable from any thread until the session is destroyed; never
// blocks. Messages after the connection's end are dropped.
using ReplyFn = std::function<void(ReceiverMessage)>;

// Accepts connections: a leaf or a hierarchy node implements it.
class StreamAcceptor {
 public:
  virtual ~StreamAcceptor() = default;
  // Any thread. The session is destroyed when the connection ends.
  virtual std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) = 0;
};

// Callbacks to the owner of a `SenderLink`, from the link's own thread(s), one call at a time.
class SenderLinkObserver {
 public:
  virtual ~SenderLinkObserver() = default;
  virtual void OnConnected() = 0;
  virtual void OnDisconnected(const absl::Status& why) = 0;
  // There was no connection, and an attempt to make one failed; it is tried again.
  virtual void OnUnreachable(const absl::Status& why) { static_cast<void>(why); }
  virtual void OnMessage(ReceiverMessage message) = 0;
  // Room to write again after `Write` returned false.
  virtual void OnWritable() = 0;
};

// The sending side: connects, reconnects with backoff until destroyed, and carries messages in
// order.
class SenderLink {
 public:
  virtual ~SenderLink() = default;
  // Starts connecting. `observer` outlives the link.
  virtual void Start(SenderLinkObserver* observer) = 0;
  // Any thread; never blocks. False: not connected, or the buffer is full (then `OnWritable`
  // follows); the message was not taken.
  virtual bool Write(const SenderMessage& message) = 0;
  // Closes this connection and connects again after the backoff.
  virtual void Reset() = 0;
  // Batch `number` is acknowledged: have those behind the link applied it as well? For transports
  // that keep what they acknowledge; when it becomes true, the observer is given a message. Any
  // thread; never blocks.
  virtual bool Confirmed(BatchNumber number) const {
    static_cast<void>(number);
    return true;
  }
  // Ends: what was written is flushed for at most `flush_for`; no calls to the observer after it
  // returns.
  virtual void Stop(std::chrono::nanoseconds flush_for) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_LINK_H_
